"""The command line, run in this process: arguments in, exit code and both outputs out."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from app.cli.main import main


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `longhorn-extender` with some arguments and standard input; asserts that no traceback shows."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run_command(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["longhorn-extender", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, captured.out, captured.err)

    return run_command
