"""Recorded decisions of Kubernetes 1.1, and the command that replays them."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.generic.vectors import RUNNER, check, decide_scenario

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "generic").glob("*.jsonl"))


def line(**changes: Any) -> dict[str, Any]:
    """A recorded decision: one node, a pod without requests, a total of 1."""
    node = {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    scenario = {"policy": {}, "nodes": [node], "pods": [], "services": [], "pod": {"metadata": {"name": "x"}}}
    expect = {"available": ["n1"], "fails": {}, "feasible": ["n1"], "scores": {}, "totals": {"n1": 1}, "best": ["n1"]}
    return {"id": "made-0001", "why": "made up", "scenario": scenario, "expect": expect, **changes}


def write(path: Path, *vectors: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(vector) + "\n" for vector in vectors))
    return str(path)


def test_there_are_recorded_decisions() -> None:
    """Otherwise the tests below would check nothing."""
    assert GOLDEN


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_recorded_decisions_are_reproduced(path: Path) -> None:
    vectors = list(RUNNER.read(path))
    assert vectors
    assert [str(mismatch) for mismatch in map(check, vectors) if mismatch] == []


def test_decisions_recorded_for_other_listing_orders_are_reproduced() -> None:
    for vector in (vector for path in GOLDEN for vector in RUNNER.read(path)):
        alternatives = vector["expect"].get("alternatives", [])
        decisions = [decide_scenario(scenario) for scenario in reorder(vector["scenario"])] if alternatives else []
        summaries = [{key: decision[key] for key in ("feasible", "totals", "best")} for decision in decisions]
        assert all(alternative in summaries for alternative in alternatives), vector["id"]


def reorder(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """The scenario in every order of its services, with each of its pods as the first."""
    orders = []
    for services in permutations(scenario["services"]):
        for first in range(len(scenario["pods"])):
            pods = scenario["pods"]
            reordered_pods = [pods[first], *pods[:first], *pods[first + 1 :]]
            orders.append({**scenario, "services": list(services), "pods": reordered_pods})
    return orders


def test_only_the_summary_is_printed_if_all_decisions_are_reproduced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = {**line()["scenario"]["nodes"][0], "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert (
        RUNNER.main([write(tmp_path / "a.jsonl", line(), line(scenario={**line()["scenario"], "nodes": [node]}))]) == 0
    )
    assert capsys.readouterr().out == "2 passed, 0 failed\n"


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("available", []),
        ("fails", {"n1": ["HostName"]}),
        ("feasible", []),
        ("scores", {"EqualPriority": {"n1": 1}}),
        ("totals", {"n1": 2}),
        ("best", []),
        ("error", "no nodes available to schedule pods"),
        ("policy_error", "decode: wrong"),
    ],
)
def test_a_mismatch_in_any_field_is_printed(
    field: str, wrong: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    altered = line(expect={**line()["expect"], field: wrong})
    assert RUNNER.main([write(tmp_path / "a.jsonl", altered, line())]) == 1
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "made-0001 (made up)"
    assert output[1].startswith(f"  {field}: expected ")
    assert output[-1] == "1 passed, 1 failed"


def test_only_the_stage_of_a_policy_error_must_match(tmp_path: Path) -> None:
    scenario = {**line()["scenario"], "policy": {"priorities": [{"name": "EqualPriority", "weight": 0}]}}
    for recorded, code in (("validate: any text", 0), ("fatal: any text", 1)):
        expect = {"policy_error": recorded}
        assert RUNNER.main([write(tmp_path / "a.jsonl", line(scenario=scenario, expect=expect))]) == code


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param('{"id": "x"}\n', "scenario", id="no scenario"),
        pytest.param(
            json.dumps(line(scenario={"nodes": [], "pods": [], "services": [], "pod": {}})), "policy", id="no policy"
        ),
        pytest.param(json.dumps(line(scenario={**line()["scenario"], "pod": {"metadata": 1}})), "Pod", id="malformed"),
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
