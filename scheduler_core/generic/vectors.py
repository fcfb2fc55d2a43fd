"""Replays recorded decisions of Kubernetes 1.1: ``python -m scheduler_core.generic.vectors FILE.jsonl [...]``.

Every line is a policy, a cluster, a pod and the real scheduler's decision. The engine must reproduce everything recorded: which nodes were
available, which predicates failed where, every score, the totals and the best nodes. The class of an error must be the same, but not its
text. What depends on an order was recorded for the order of the line, and the engine takes that order.
"""

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler_core.convert import decision_replay, generic
from scheduler_core.generic import cluster_state, scheduler
from scheduler_core.generic.policy import DEFAULT_POLICY, Policy, PolicyError, parse_policy

_COMPARED = ("policy_error", "error", "available", "fails", "feasible", "scores", "totals", "best")

Json = Mapping[str, Any]


def check(vector: Json) -> str:
    """Returns the difference between a recorded decision and the engine's, or "" if they are equal."""
    expected = _normalize(vector["expect"])
    got = decide_scenario(vector["scenario"])
    differences = [
        f"  {name}: expected {_text(expected.get(name))}, got {_text(got.get(name))}"
        for name in _COMPARED
        if expected.get(name) != got.get(name)
    ]
    heading = f"{vector['id']} ({vector['why']})" if vector.get("why") else str(vector["id"])
    return "\n".join([heading, *differences]) if differences else ""


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _normalize(expect: Json) -> dict[str, Any]:
    decision = dict(expect)
    if expect.get("policy_error"):
        decision["policy_error"] = str(expect["policy_error"]).partition(":")[0]
    if expect.get("error"):
        no_nodes = str(expect["error"]).startswith("no nodes available")
        decision["error"] = "no nodes available" if no_nodes else "undecidable"
    # The order of these lists has no meaning: they are sets.
    for name in ("available", "feasible", "best"):
        if name in decision:
            decision[name] = sorted(decision[name])
    if "fails" in decision:
        decision["fails"] = {node: sorted(names) for node, names in decision["fails"].items()}
    return decision


def decide_scenario(scenario: Json) -> dict[str, Any]:
    """Returns the engine's decision in the recorded form."""
    try:
        policy = _policy(scenario["policy"])
    except PolicyError as error:
        return {"policy_error": error.stage.value}
    state = cluster_state.GenericClusterState.of(
        [generic.NODE.read(raw) for raw in scenario["nodes"]],
        [generic.SCHEDULED_POD.read(raw) for raw in scenario["pods"]],
        [generic.SERVICE.read(raw) for raw in scenario["services"]],
    )
    pod = generic.SCHEDULED_POD.read(scenario["pod"])
    return _to_recorded_form(scheduler.schedule(pod, None, state, policy, min))


def _policy(raw: object) -> Policy:
    if raw is None:
        return DEFAULT_POLICY
    return parse_policy(raw.encode() if isinstance(raw, str) else msgspec.json.encode(raw))


def _to_recorded_form(result: scheduler.ScheduleResult) -> dict[str, Any]:
    decision: dict[str, Any] = {
        "available": sorted([*result.feasible, *result.failures]),
        "fails": {node: sorted(entry.predicate for entry in failures) for node, failures in result.failures.items()},
        "feasible": sorted(result.feasible),
        "scores": result.ranking.scores,
        "totals": result.ranking.totals,
        "best": list(result.best),
    }
    if result.error:
        decision["error"] = "no nodes available" if result.error == scheduler.NO_NODES else "undecidable"
    return decision


class _Scenario(msgspec.Struct):
    nodes: list[dict[str, Any]]
    pods: list[dict[str, Any]]
    services: list[dict[str, Any]]
    pod: dict[str, Any]
    policy: Any = msgspec.UNSET


class _Vector(msgspec.Struct):
    id: str
    scenario: _Scenario
    expect: dict[str, Any]


def _find_problem(vector: _Vector) -> str:
    return "scenario.policy is missing (null: the default policy)" if vector.scenario.policy is msgspec.UNSET else ""


RUNNER = decision_replay.Runner(
    "scheduler_core.generic.vectors",
    "Replays recorded decisions of Kubernetes 1.1 through the generic scheduler.",
    _Vector,
    _find_problem,
    check,
)

if __name__ == "__main__":
    sys.exit(RUNNER.main(sys.argv[1:]))
