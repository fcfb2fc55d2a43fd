"""Recorded decisions of the real Longhorn, and the command that replays them."""

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.longhorn.stages import one_manager_per_node
from scheduler_core.longhorn.vectors import QUESTIONS, RUNNER, check, read_cluster

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "longhorn").glob("*.jsonl"))


def line(**changes: Any) -> dict[str, Any]:
    """A recorded decision about a disk that reports nothing, so that no replica fits."""
    node = {
        "metadata": {"name": "n1"},
        "spec": {"disks": {"d1": {"allowScheduling": True}}},
        "status": {"diskStatus": {"d1": {"diskUUID": "u"}}},
    }
    keys = ("schedulable", "conditionSchedulable", "underPressure", "schedulableConsideringPressure")
    result: dict[str, Any] = dict.fromkeys(keys, False)
    return {
        "id": "made-0001",
        "nodes": [node],
        "schedule": {"op": "disk", "node": "n1", "disk": "d1"},
        "decision": {"result": {**result, "underPressure": True}, "errors": []},
        **changes,
    }


def write(path: Path, *vectors: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(vector) + "\n" for vector in vectors))
    return str(path)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_recorded_decisions_are_reproduced(path: Path) -> None:
    assert [str(mismatch) for mismatch in map(check, RUNNER.read(path)) if mismatch] == []


def test_every_question_is_recorded() -> None:
    recorded = {vector["schedule"]["op"] for path in GOLDEN for vector in RUNNER.read(path)}
    assert recorded == set(QUESTIONS)


def test_every_possible_answer_was_recorded() -> None:
    extra = {
        vector["id"]: sorted(map(str, possible - recorded))
        for path in GOLDEN
        for vector in RUNNER.read(path)
        for question in [QUESTIONS[vector["schedule"]["op"]]]
        for recorded in [frozenset(question.read_answers(vector["decision"]))]
        for possible in [
            {
                answer
                for picked in one_manager_per_node(read_cluster(vector))
                for answer in question.answer(picked, vector)
            }
        ]
        if possible - recorded
    }
    assert extra == {}


def test_a_mismatch_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = line(
        note="made up", decision={"result": {**line()["decision"]["result"], "schedulable": True}, "errors": []}
    )
    assert RUNNER.main([write(tmp_path / "a.jsonl", wrong, line())]) == 1
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "made-0001 (made up)"
    assert "STORAGE_MAXIMUM" in output[3]
    assert output[-1] == "1 passed, 1 failed"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param('{"id": "x", "nodes": []}\n', "schedule", id="no question"),
        pytest.param(json.dumps(line(schedule={"op": "guess"})), "guess", id="unknown question"),
        pytest.param(json.dumps(line(schedule={"op": "disk", "node": "n9"})), "'n9'", id="unknown node"),
        pytest.param(json.dumps(line(schedule={"op": "disk", "size": "1"})), "schedule.size", id="wrong type"),
        pytest.param(json.dumps(line(nodes=[{"metadata": 1}])), "made-0001", id="malformed object"),
        pytest.param(json.dumps(line(decision={"result": {}, "errors": []})), "schedulable", id="nothing recorded"),
    ],
)
def test_bad_input_is_an_error(text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    assert RUNNER.main([str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert problem in captured.err
