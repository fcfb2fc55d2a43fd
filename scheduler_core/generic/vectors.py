"""Replays recorded decisions of Kubernetes 1.1: ``python -m scheduler_core.generic.vectors FILE.jsonl [...]``.

Every line is a policy, a cluster, a pod and what the real scheduler decided. Everything it recorded must be the same: which nodes
were looked at, which predicates failed where, every score, the totals and the best nodes. Of errors the class must be the same,
the text need not. What depends on an order was recorded for the order of the line, and the engine takes that.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from scheduler_core.conformance import Runner
from scheduler_core.convert.generic import (
    GenericNode,
    GenericPod,
    GenericService,
    generic_node,
    generic_pod,
    generic_service,
)
from scheduler_core.convert.meta import shape
from scheduler_core.cooperative import finish
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.policy import DEFAULT_POLICY, Policy, PolicyError, parse_policy
from scheduler_core.generic.scheduler import NO_NODES, Decision, schedule

_COMPARED: Final = ("policy_error", "error", "available", "fails", "feasible", "scores", "totals", "best")

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A recorded decision the engine does not reproduce: what differs, as (field, expected, got)."""

    id: str
    why: str
    differences: tuple[tuple[str, object, object], ...]

    def __str__(self) -> str:
        lines = [
            f"  {name}: expected {msgspec.json.encode(expected).decode()}, got {msgspec.json.encode(got).decode()}"
            for name, expected, got in self.differences
        ]
        return "\n".join([f"{self.id} ({self.why})" if self.why else self.id, *lines])


def check(vector: Json) -> Mismatch | None:
    """The difference between a recorded decision and the engine's, or None.

    Raises:
        CoreError: the scenario cannot be read
    """
    expected, got = _classes(vector["expect"]), decided(vector["scenario"])
    differences = tuple(
        (name, expected.get(name), got.get(name)) for name in _COMPARED if expected.get(name) != got.get(name)
    )
    return Mismatch(str(vector["id"]), str(vector.get("why", "")), differences) if differences else None


def _classes(expect: Json) -> dict[str, Any]:
    """What was recorded, errors by their class; lists that are sets sorted."""
    found = dict(expect)
    if expect.get("policy_error"):
        found["policy_error"] = str(expect["policy_error"]).partition(":")[0]
    if expect.get("error"):
        found["error"] = _error_class(str(expect["error"]))
    for name in ("available", "feasible", "best"):
        if name in found:
            found[name] = sorted(found[name])
    if "fails" in found:
        found["fails"] = {node: sorted(names) for node, names in found["fails"].items()}
    return found


def _error_class(text: str) -> str:
    return "no nodes available" if text.startswith("no nodes available") else "undecidable"


def decided(scenario: Json) -> dict[str, Any]:
    """What the engine decides, in the recorded form.

    Raises:
        CoreError: the scenario cannot be read
    """
    try:
        policy = _policy(scenario["policy"])
    except PolicyError as error:
        return {"policy_error": error.problem.value}
    state = State.of(
        [generic_node(shape("Node", raw, GenericNode)) for raw in scenario["nodes"]],
        [generic_pod(shape("Pod", raw, GenericPod)) for raw in scenario["pods"]],
        [generic_service(shape("Service", raw, GenericService)) for raw in scenario["services"]],
    )
    pod = generic_pod(shape("Pod", scenario["pod"], GenericPod))
    return _recorded(finish(schedule(pod, None, state, policy, min)))


def _policy(raw: object) -> Policy:
    if raw is None:
        return DEFAULT_POLICY
    return parse_policy(raw.encode() if isinstance(raw, str) else msgspec.json.encode(raw))


def _recorded(decision: Decision) -> dict[str, Any]:
    found: dict[str, Any] = {
        "available": sorted([*decision.feasible, *decision.failures]),
        "fails": {node: sorted(entry.predicate for entry in failed) for node, failed in decision.failures.items()},
        "feasible": sorted(decision.feasible),
        "scores": decision.ranking.scores,
        "totals": decision.ranking.totals,
        "best": list(decision.best),
    }
    if decision.error:
        found["error"] = "no nodes available" if decision.error == NO_NODES else "undecidable"
    return found


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


def _fault(vector: _Vector) -> str:
    return "scenario.policy is missing (null: the default policy)" if vector.scenario.policy is msgspec.UNSET else ""


RUNNER: Final = Runner(
    "scheduler_core.generic.vectors",
    "Replays recorded decisions of Kubernetes 1.1 through the generic scheduler.",
    _Vector,
    _fault,
    check,
)

if __name__ == "__main__":
    sys.exit(RUNNER.main(sys.argv[1:]))
