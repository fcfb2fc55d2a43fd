"""Whole decisions: what plans obey, which nodes each packing option offers, and changes that must not change them."""

import json
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, strategies as st

from app.schemas.decision import explain_answer
from scheduler_core.decide.decision import FilterOptions, Packing
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
)

SIZES = st.sampled_from([10, 20, 30, 40, 50, 60])
TAGS = st.sampled_from([(), ("ssd",), ("hdd",)])


@st.composite
def disks(draw: st.DrawFn) -> Object:
    """A disk of up to 100Gi that may be closed, tagged, scheduled or used in part."""
    size = draw(st.sampled_from([40, 60, 100]))
    return {
        "size": size,
        "scheduled": draw(st.sampled_from([0, 10, 30, 60])),
        "available": draw(st.sampled_from([size, size // 4, size // 4 + 20, size // 2])),
        "reserved": draw(st.sampled_from([0, 10])),
        "tags": draw(TAGS),
        "allow": draw(st.sampled_from([True, True, True, False])),
    }


EXACT = FilterOptions(packing=Packing.EXACT)
VOLUMES = st.lists(st.tuples(SIZES, TAGS, st.sampled_from([0, 0, 5, 15])), min_size=1, max_size=4)
CLUSTERS = st.lists(st.lists(disks(), max_size=3), min_size=1, max_size=4)


def objects(cluster: Sequence[Sequence[Object]], volumes: Sequence[tuple[int, tuple[str, ...], int]]) -> list[Object]:
    """The cluster as Kubernetes objects: bound volumes ``vol-v<i>`` without replicas."""
    raw_objects = [
        longhorn_node(f"n{index}", {f"d{number}": disk(**entry) for number, entry in enumerate(node)})
        for index, node in enumerate(cluster)
    ]
    for index, (size, tags, actual) in enumerate(volumes):
        raw_objects += bound(f"v{index}", size, actual=min(actual, size), diskSelector=list(tags))
    return raw_objects


def pod_of(volumes: Sequence[Any]) -> Object:
    return pod(*(f"v{index}" for index in range(len(volumes))))


@given(CLUSTERS, VOLUMES)
def test_a_plan_obeys_every_rule(cluster: list[list[Object]], volumes: list[tuple[int, tuple[str, ...], int]]) -> None:
    explanation = explained(pod_of(volumes), objects(cluster, volumes), options=EXACT)
    for name, verdict in zip(explanation.decision.candidates, explanation.verdicts, strict=True):
        if not verdict.fits:
            assert verdict.plan == {}
            continue
        node = {f"{name}-d{number}": entry for number, entry in enumerate(cluster[int(name[1:])])}
        assert sorted(verdict.plan) == sorted(f"vol-v{index}" for index in range(len(volumes)))
        for uuid, entry in node.items():
            volumes_on_disk = [volumes[int(key[5:])] for key, chosen in verdict.plan.items() if chosen == uuid]
            total = entry["scheduled"] + sum(size for size, _, _ in volumes_on_disk)
            assert not volumes_on_disk or (entry["allow"] and total <= entry["size"] - entry["reserved"])
            assert all(set(tags) <= set(entry["tags"]) for _, tags, _ in volumes_on_disk)


@given(CLUSTERS, VOLUMES)
def test_auto_offers_the_stale_safe_nodes_or_else_the_order_safe_ones_or_else_all_that_fit(
    cluster: list[list[Object]], volumes: list[tuple[int, tuple[str, ...], int]]
) -> None:
    """The packing options differ only in nodes that are not safe."""
    raw = pod_of(volumes)
    raw_objects = objects(cluster, volumes)
    exact, auto, order_safe, stale_safe = (
        explained(raw, raw_objects, options=FilterOptions(packing=mode))
        for mode in (Packing.EXACT, Packing.AUTO, Packing.ORDER_SAFE, Packing.STALE_SAFE)
    )
    verdicts = dict(zip(exact.decision.candidates, exact.verdicts, strict=True))
    proven = [name for name, verdict in verdicts.items() if verdict.order_safe]
    proven_on_outdated_status = [name for name, verdict in verdicts.items() if verdict.stale_safe]
    assert set(proven_on_outdated_status) <= set(proven)
    assert fitting(stale_safe) == proven_on_outdated_status
    assert fitting(order_safe) == proven
    assert fitting(auto) == (proven_on_outdated_status or proven or fitting(exact))
    assert {verdict.meeting is None for verdict in verdicts.values() if verdict.stale_safe} <= {True}


def shuffle(value: Any, order: random.Random) -> Any:
    """The value with shuffled lists and maps, except conditions, whose order matters."""
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: value[key] if key == "conditions" else shuffle(value[key], order) for key in keys}
    if isinstance(value, list):
        entries = [shuffle(entry, order) for entry in value]
        order.shuffle(entries)
        return entries
    return value


@given(CLUSTERS, VOLUMES, st.integers(0, 2**32))
def test_shuffling_the_input_changes_no_byte_of_the_answer(
    cluster: list[list[Object]], volumes: list[tuple[int, tuple[str, ...], int]], seed: int
) -> None:
    """The API server returns lists and maps in any order."""
    order = random.Random(seed)  # noqa: S311 # a reproducible order
    raw_objects = objects(cluster, volumes)
    raw_objects += [replica("r1", "vol-v0", "n0", disk="d0", failed=True), replica("r2", "vol-v0", "n9")]
    raw_objects += [storage_class(), setting("storage-over-provisioning-percentage", "150"), claim("x", 10)]
    raw = pod_of([*volumes])

    def answer(raw_pod: Object, entries: list[Object]) -> str:
        model = as_pod(raw_pod)
        return explain_answer(model, explained(raw_pod, entries)).model_dump_json()

    expected = answer(raw, raw_objects)
    assert json.loads(expected) is not None
    assert answer(shuffle(raw, order), shuffle(raw_objects, order)) == expected
