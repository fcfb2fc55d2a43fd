"""Runs a program that is killed when its parent ends: ``python parent_death.py PARENT_PID PROGRAM [ARGUMENT...]``.

Linux sends the signal set by PR_SET_PDEATHSIG when the *thread* that forked this process ends, and keeps the setting across
exec. The setting is made in this process, after the fork, because a ``preexec_fn`` runs Python between fork and exec, which may
deadlock in a program with threads. On other systems than Linux nothing is set, and a crash of the parent leaves its children behind.

Runs with ``python -I -S``: it must import nothing but the standard library, and start fast.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CANNOT_RUN = 127


def main(parent: int, argv: list[str]) -> None:
    """Ties this process to its parent, and executes `argv`. It ends at once if the parent is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        sys.exit(_CANNOT_RUN)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 # the point of this program; no shell
    except OSError as error:
        sys.stderr.write(f"cannot run {argv[0]}: {error.strerror}\n")
        sys.exit(_CANNOT_RUN)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
