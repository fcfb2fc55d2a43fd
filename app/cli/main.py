"""`longhorn-extender`: the entry point. It imports nothing else before Ctrl-C is handled."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

# kubectl runs its plugins, and what completes their words, by a file name with this prefix.
IS_PLUGIN = os.path.basename(sys.argv[0]).startswith("kubectl")  # noqa: PTH119 # pathlib is slow to import
NAME = "kubectl longhorn-extender" if IS_PLUGIN else "longhorn-extender"
_INTERRUPTED = 130
_LINE = f"{NAME}: interrupted\n"


def main() -> None:
    """Runs the program; Ctrl-C becomes one line and an exit code, as every error does."""
    report = sys.unraisablehook

    def end_if_interrupted(unraisable: UnraisableHookArgs) -> None:
        # Python drops an exception that a signal causes in a finalizer or in the callback of a weak reference.
        if unraisable.exc_type is KeyboardInterrupt:
            os.write(2, _LINE.encode())
            os._exit(_INTERRUPTED)
        report(unraisable)

    sys.unraisablehook = end_if_interrupted
    # Modules make a hundred thousand objects that stay; the collector would look at them again and again.
    gc.disable()
    try:
        from app.cli.commands import run

        code = run()
        # Python collects once more at its end.
        gc.freeze()
        sys.exit(code)
    except KeyboardInterrupt:
        # Another Ctrl-C ends the process without a word, even while Python finalizes it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stderr.write(_LINE)
        sys.exit(_INTERRUPTED)


def complete() -> None:
    """Prints what completes the last word of `kubectl longhorn-extender WORDS`; kubectl runs it."""
    from app.cli.commands import completions

    sys.stdout.write(completions(sys.argv[1:]))
