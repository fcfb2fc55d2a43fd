"""The tables of docs/generic-scheduler.md: what each policy of examples/policies decides on the cluster in that folder.

``python -m tests.core.generic.tables`` writes them into the document, between the comments that name them.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from scheduler_core.convert.generic import NODE, SCHEDULED_POD, SERVICE
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import NO_ARGUMENT, CycleState, DiskFacts, LonghornFacts, NodeFacts
from scheduler_core.generic.policy import Policy, parse_policy
from scheduler_core.generic.rule_registry import PRIORITIES
from scheduler_core.generic.scheduler import ScheduleResult, prioritize_names
from scheduler_core.model.generic import Node
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from tests.worlds.policy_rules import decide

ROOT = Path(__file__).parents[3]
POLICIES = ROOT / "examples" / "policies"
DOCUMENT = ROOT / "docs" / "generic-scheduler.md"
SAMPLES = ("default", "region-zone-rack", "city-building-room", "require-region", "combined")
LEVELS = ("region", "zone", "rack", "city", "building", "room")
_MARKED = re.compile(r"<!-- table: ([a-z-]+) -->.*?<!-- end -->", re.DOTALL)

GI = 1024**3


def policy(name: str) -> Policy:
    parsed = parse_policy((POLICIES / f"{name}.json").read_bytes())
    assert parsed.warnings == ()
    return parsed


@cache
def cluster() -> tuple[GenericClusterState, tuple[Pod, ...]]:
    """The example cluster, and the pods to be scheduled."""
    items: list[dict[str, Any]] = yaml.safe_load((POLICIES / "cluster.yaml").read_text())["items"]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for raw in items:
        by_kind.setdefault(raw["kind"], []).append(raw)
    pods = tuple(SCHEDULED_POD.read(raw) for raw in by_kind["Pod"])
    state = GenericClusterState.of(
        [NODE.read(raw) for raw in by_kind["Node"]], pods, [SERVICE.read(raw) for raw in by_kind["Service"]]
    )
    return state, tuple(pod for pod in pods if not pod.node_name)


def decisions(name: str) -> tuple[ScheduleResult, ...]:
    """A policy's decisions about the six pods; of equally good nodes it takes the first by name."""
    state, pods = cluster()
    decided = []
    for pod in pods:
        decision = decide(pod, state, policy(name))
        decided.append(decision)
        if decision.node:
            state = state.with_binding(pod, decision.node)
    return tuple(decided)


def sample_table(name: str) -> str:
    """One row per pod: its node, the node's scores, and the reasons against other nodes."""
    rows = []
    for pod, decision in zip(cluster()[1], decisions(name), strict=True):
        scores = (f"{entry.name} {score(decision, entry.name)}" for entry in policy(name).priorities)
        out = "; ".join(f"{count}: {text}" for text, count in decision.count_by_reason().items())
        total = decision.ranking.totals[decision.node]
        rows.append((pod.name, f"`{decision.node}`", len(decision.best), total, ", ".join(scores), out or "none"))
    return table(("pod", "node", "equally good", "total", "scores of the node, unweighted", "nodes out"), rows)


def score(decision: ScheduleResult, priority: str) -> int:
    return decision.ranking.scores[priority][decision.node]


def cluster_table() -> str:
    """The nodes with their labels."""
    state, _ = cluster()
    rows = [
        (f"`{name}`", *(state.nodes[name].node.labels.get(level, "") for level in LEVELS)) for name in state.node_names
    ]
    return table(("node", *LEVELS), rows)


# A pod with two volumes of 100Gi, one of them new, on six nodes: a home of the other, even and uneven disks, safe in every order but
# not on outdated status, order-unsafe, and full.
FACTS = LonghornFacts(
    {
        "home-of-one": NodeFacts(
            Reason.ROOM, True, 100 * GI, (DiskFacts(500 * GI, 300 * GI), DiskFacts(500 * GI, 250 * GI)), stale_safe=True
        ),
        "even": NodeFacts(
            Reason.ROOM, True, 0, (DiskFacts(500 * GI, 400 * GI), DiskFacts(500 * GI, 400 * GI)), stale_safe=True
        ),
        "one-full": NodeFacts(
            Reason.ROOM, True, 0, (DiskFacts(500 * GI, 400 * GI), DiskFacts(500 * GI, 0)), stale_safe=True
        ),
        "one-each": NodeFacts(Reason.ROOM, True, 0, (DiskFacts(150 * GI, 50 * GI), DiskFacts(150 * GI, 50 * GI))),
        "tight": NodeFacts(Reason.ROOM, False, 0, (DiskFacts(300 * GI, 40 * GI), DiskFacts(300 * GI, 100 * GI))),
        "full": NodeFacts(Reason.INSUFFICIENT_STORAGE),
    },
    100 * GI,
)


def longhorn_table() -> str:
    """Longhorn's priorities for made-up nodes, and the answer of /prioritize by the default policy."""
    state = GenericClusterState.of([Node(name) for name in FACTS.nodes], [], [])
    pod = Pod("shop", "db-0")
    names = [rule for rule in PRIORITIES.static if rule.startswith("Longhorn")]
    entries = [state.nodes[name] for name in FACTS.nodes]
    scores = [PRIORITIES[name].function(CycleState(pod, state, FACTS), NO_ARGUMENT, entries) for name in names]
    answer = prioritize_names(pod, list(FACTS.nodes), state, policy("extender"), FACTS)
    rows = [
        (f"`{name}`", _describe_disks(facts), *(column[index] for column in scores), answer[name])
        for index, (name, facts) in enumerate(FACTS.nodes.items())
    ]
    return table(("node", "left free after the plan", *(f"`{name}`" for name in names), "/prioritize"), rows)


def _describe_disks(facts: NodeFacts) -> str:
    disks = " + ".join(f"{disk.free // GI}Gi of {disk.limit // GI}Gi" for disk in facts.disks)
    return disks or f"no room: {facts.reason.text}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "cluster": cluster_table,
    "longhorn": longhorn_table,
    **{name: (lambda name=name: sample_table(name)) for name in SAMPLES},  # type: ignore[misc]
}


def fill_tables(text: str) -> str:
    return _MARKED.sub(lambda match: f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n\n<!-- end -->", text)


if __name__ == "__main__":
    DOCUMENT.write_text(fill_tables(DOCUMENT.read_text()))
