"""Whole decisions against an independent brute force, and what must not change them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.schemas.explain import explain_answer
from scheduler_core.cooperative import finish
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Options, Packing, filter_nodes
from tests.builders import (
    Object,
    as_pod,
    bound,
    claim,
    disk,
    explained,
    fitting,
    longhorn_node,
    pod,
    replica,
    setting,
    storage_class,
    view,
)

SIZES = st.sampled_from([10, 20, 30, 40, 50, 60])
TAGS = st.sampled_from([(), ("ssd",), ("hdd",)])


@st.composite
def disks(draw: st.DrawFn) -> Object:
    """A disk of up to 100Gi that may be closed, tagged, promised or used in part."""
    size = draw(st.sampled_from([40, 60, 100]))
    return {
        "size": size,
        "scheduled": draw(st.sampled_from([0, 10, 30, 60])),
        "available": draw(st.sampled_from([size, size // 4, size // 4 + 20, size // 2])),
        "reserved": draw(st.sampled_from([0, 10])),
        "tags": draw(TAGS),
        "allow": draw(st.sampled_from([True, True, True, False])),
    }


EXACT = Options(packing=Packing.EXACT)
VOLUMES = st.lists(st.tuples(SIZES, TAGS, st.sampled_from([0, 0, 5, 15])), min_size=1, max_size=4)
CLUSTERS = st.lists(st.lists(disks(), max_size=3), min_size=1, max_size=4)


def objects(cluster: Sequence[Sequence[Object]], volumes: Sequence[tuple[int, tuple[str, ...], int]]) -> list[Object]:
    """The cluster as Kubernetes objects: bound volumes ``vol-v<i>`` without replicas."""
    made = [
        longhorn_node(f"n{index}", {f"d{number}": disk(**entry) for number, entry in enumerate(node)})
        for index, node in enumerate(cluster)
    ]
    for index, (size, tags, actual) in enumerate(volumes):
        made += bound(f"v{index}", size, actual=min(actual, size), diskSelector=list(tags))
    return made


def asked(volumes: Sequence[Any]) -> Object:
    """A pod with all the volumes."""
    return pod(*(f"v{index}" for index in range(len(volumes))))


def brute_force(node: Sequence[Object], volumes: Sequence[tuple[int, tuple[str, ...], int]]) -> bool:
    """Whether any assignment of volumes to disks keeps Longhorn's rules, from their text and in whole Gi."""
    for picks in product(range(len(node)), repeat=len(volumes)):
        promised = [entry["scheduled"] for entry in node]
        for (size, tags, actual), pick in zip(volumes, picks, strict=True):
            chosen = node[pick]
            promised[pick] += size
            if not chosen["allow"] or not set(tags) <= set(chosen["tags"]):
                break
            if chosen["available"] - min(actual, size) <= chosen["size"] * 25 / 100:
                break
        else:
            if all(total <= entry["size"] - entry["reserved"] or entry["scheduled"] == total
                   for total, entry in zip(promised, node, strict=True)):  # fmt: skip
                return True
    return False


@given(CLUSTERS, VOLUMES)
def test_a_node_fits_exactly_when_some_assignment_keeps_all_rules(
    cluster: list[list[Object]], volumes: list[tuple[int, tuple[str, ...], int]]
) -> None:
    """Tags, closed disks, both space rules and packing together, over all assignments."""
    explanation = explained(asked(volumes), objects(cluster, volumes), options=EXACT)
    expected = [f"n{index}" for index, node in enumerate(cluster) if brute_force(node, volumes)]
    assert fitting(explanation) == expected


@given(CLUSTERS, VOLUMES)
def test_a_plan_keeps_every_rule(cluster: list[list[Object]], volumes: list[tuple[int, tuple[str, ...], int]]) -> None:
    """Where a node fits its plan gives each volume a disk, and no disk more than it has."""
    explanation = explained(asked(volumes), objects(cluster, volumes), options=EXACT)
    for name, verdict in zip(explanation.decision.candidates, explanation.verdicts, strict=True):
        if not verdict.fits:
            assert verdict.plan == {}
            continue
        node = {f"{name}-d{number}": entry for number, entry in enumerate(cluster[int(name[1:])])}
        assert sorted(verdict.plan) == sorted(f"vol-v{index}" for index in range(len(volumes)))
        for uuid, entry in node.items():
            placed = [volumes[int(key[5:])] for key, chosen in verdict.plan.items() if chosen == uuid]
            total = entry["scheduled"] + sum(size for size, _, _ in placed)
            assert not placed or (entry["allow"] and total <= entry["size"] - entry["reserved"])
            assert all(set(tags) <= set(entry["tags"]) for _, tags, _ in placed)


@given(CLUSTERS, VOLUMES, st.integers(0, 10))
def test_more_room_never_loses_a_node(
    cluster: list[list[Object]], volumes: list[tuple[int, tuple[str, ...], int]], more: int
) -> None:
    """Taking promises back from every disk keeps every node that fitted."""
    before = fitting(explained(asked(volumes), objects(cluster, volumes), options=EXACT))
    roomier = [[{**entry, "scheduled": max(0, entry["scheduled"] - more)} for entry in node] for node in cluster]
    after = fitting(explained(asked(volumes), objects(roomier, volumes), options=EXACT))
    assert set(before) <= set(after)


@given(CLUSTERS, VOLUMES)
def test_auto_offers_the_safe_nodes_or_else_all_with_room(
    cluster: list[list[Object]], volumes: list[tuple[int, tuple[str, ...], int]]
) -> None:
    """The three ways to pack differ in nothing but what is done about unsafe nodes."""
    raw, made = asked(volumes), objects(cluster, volumes)
    exact, auto, safe = (
        explained(raw, made, options=Options(packing=mode))
        for mode in (Packing.EXACT, Packing.AUTO, Packing.ORDER_SAFE)
    )
    proven = [
        name for name, verdict in zip(exact.decision.candidates, exact.verdicts, strict=True) if verdict.order_safe
    ]
    assert fitting(safe) == proven
    assert fitting(auto) == (proven or fitting(exact))


def shuffled(value: Any, order: random.Random) -> Any:
    """The same value with every list and map in another order, but for those whose order means something."""
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: value[key] if key == "conditions" else shuffled(value[key], order) for key in keys}
    if isinstance(value, list):
        made = [shuffled(entry, order) for entry in value]
        order.shuffle(made)
        return made
    return value


@given(CLUSTERS, VOLUMES, st.randoms(use_true_random=False))
def test_shuffling_the_input_changes_no_byte_of_the_answer(
    cluster: list[list[Object]], volumes: list[tuple[int, tuple[str, ...], int]], order: random.Random
) -> None:
    """Lists and maps come in any order from the API server; answers have one."""
    made = objects(cluster, volumes)
    made += [replica("r1", "vol-v0", "n0", disk="d0", failed=True), replica("r2", "vol-v0", "n9")]
    made += [storage_class(), setting("storage-over-provisioning-percentage", "150"), claim("x", 10)]
    raw = asked([*volumes])

    def answer(raw_pod: Object, entries: list[Object]) -> str:
        model = as_pod(raw_pod)
        return explain_answer(model, explained(raw_pod, entries)).model_dump_json()

    assert json.loads(answer(raw, made)) is not None
    assert answer(shuffled(raw, order), shuffled(made, order)) == answer(raw, made)


@given(CLUSTERS, VOLUMES, st.lists(st.integers(0, 3), unique=True, min_size=1))
def test_filter_and_explain_say_the_same_with_and_without_memory(
    cluster: list[list[Object]], volumes: list[tuple[int, tuple[str, ...], int]], picks: list[int]
) -> None:
    """Explain runs the production path; what was asked before changes nothing."""
    made = objects(cluster, volumes)
    names = [f"n{pick}" for pick in picks]
    memory = Memory(view(made))
    raw = as_pod(asked(volumes))
    finish(filter_nodes(raw, [f"n{index}" for index in range(len(cluster))], memory, Options()))
    warm = finish(filter_nodes(raw, names, memory, Options()))
    explanation = explained(asked(volumes), made, nodes=names)
    by_name = dict(zip(explanation.decision.candidates, explanation.verdicts, strict=True))
    assert [by_name[name].reason for name in names] == list(warm.reasons)
