"""`longhorn-extender`: the entry point. It imports nothing else before Ctrl-C is handled."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_INTERRUPTED = 130
_LINE = "longhorn-extender: interrupted\n"


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
