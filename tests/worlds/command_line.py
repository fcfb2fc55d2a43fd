"""The command line, run in this process: arguments in, exit code and both outputs out."""

import gc
import io
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from app.cli.main import main


@dataclass(frozen=True)
class Result:
    """The exit code and both outputs of a command."""

    code: int
    out: str
    err: str

    @property
    def answer(self) -> Any:
        """The output as JSON; standard error may have warnings, and nothing else."""
        assert all(line.startswith("warning: ") for line in self.err.splitlines())
        return json.loads(self.out)

    @property
    def rows(self) -> list[str]:
        """The lines of the output, with one blank between two words."""
        return [" ".join(line.split()) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores the process's log configuration after the test; a command changes no signal."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    root = logging.getLogger()
    handlers = root.handlers
    level = root.level
    logging.getLogger("httpx").disabled = True
    yield
    logging.getLogger("httpx").disabled = False
    for handler in root.handlers:
        if handler not in handlers:
            handler.flush()
            handler.close()
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], process_state: None) -> Run:
    """Runs `longhorn-extender` with some arguments and standard input; asserts that no traceback is printed."""

    def run_command(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["longhorn-extender", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_info:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert isinstance(exit_info.value.code, int)
        return Result(exit_info.value.code, captured.out, captured.err)

    return run_command
