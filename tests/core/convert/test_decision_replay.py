"""The command that replays recorded decisions: which files it takes, and what it prints."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_core.convert.decision_replay import Runner
from scheduler_core.generic import vectors as generic
from scheduler_core.longhorn import vectors as longhorn


class _Line(msgspec.Struct):
    id: str
    same: bool = True


RUNNER = Runner(
    "here",
    "Replays.",
    _Line,
    lambda line: "" if line.id else "it has no name",
    lambda vector: "" if vector.get("same", True) else f"{vector['id']} differs",
)


def write(path: Path, *vectors: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(vector) + "\n\n" for vector in vectors))
    return str(path)


@pytest.mark.parametrize(
    ("second", "code", "out"), [(True, 0, "2 passed, 0 failed\n"), (False, 1, "b differs\n1 passed, 1 failed\n")]
)
def test_differing_decisions_are_printed_and_counted(
    second: bool, code: int, out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert RUNNER.main([write(tmp_path / "a.jsonl", {"id": "a"}, {"id": "b", "same": second})]) == code
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "not a recorded decision: JSON is malformed"),
        ("[1]", "not a recorded decision: Expected `object`"),
        ('{"id": "\xff"}', "not a recorded decision"),
        ("[" * 100_000, "not a recorded decision"),
        ('{"id": 1}', "not a recorded decision: Expected `str`, got `int` - at `$.id`"),
        ('{"id": ""}', "not a recorded decision: it has no name"),
    ],
    ids=["no JSON", "no object", "no UTF-8", "too deep", "wrong type", "fault"],
)
def test_an_error_names_the_file_and_line(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": "a"}\n' + text.encode("latin-1"))
    assert RUNNER.main([str(path)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith(f"error: {path}:2: {problem}")


def test_files_without_any_decision_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = write(tmp_path / "a.jsonl")
    blank = tmp_path / "b.jsonl"
    blank.write_text("\n\n")
    assert RUNNER.main([empty, str(blank)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: no recorded decision in {empty}, {blank}\n")
    assert RUNNER.main([empty, write(tmp_path / "c.jsonl", {"id": "a"})]) == 0


def test_a_missing_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert RUNNER.main([str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("runner", [longhorn.RUNNER, generic.RUNNER], ids=["longhorn", "generic"])
def test_help_names_the_module(runner: Runner[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.main(["--help"])
    assert f"python -m {runner.module} " in capsys.readouterr().out
