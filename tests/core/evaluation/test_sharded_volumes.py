"""Sharded volumes: a new one needs a disk for each shard on distinct nodes, an existing one only has to be attached."""

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.explain import explain_nodes
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.offered_nodes import observed_pod
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.longhorn.csi_driver import shard_size
from scheduler_core.model.longhorn import DataLayout
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import Offered
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import GI, Object, explained, reasons, setting, state

CASES = Path(__file__).parents[2] / "golden/decision"
# A v2 volume only goes to nodes that Kubernetes has.
KUBE_NODES = [make.kube_node(f"n{number}") for number in range(1, 5)]
LAYOUT = {"type": "sharded", "mode": "erasureCoding", "dataChunks": 2, "parityChunks": 1, "stripSizeKB": 64}
SHARD = shard_size(30 * GI, DataLayout(2, 1, 64)) / GI
"""Gi of each of the three shards of a volume of 30Gi."""


def sharded_class(**parameters: Any) -> Object:
    """A class of volumes with 2 data and 1 parity shards."""
    layout: dict[str, Any] = {
        "dataLayout.type": "sharded",
        "dataLayout.dataChunks": "2",
        "dataLayout.parityChunks": "1",
    }
    return make.storage_class("ec", dataEngine="v2", **layout, **parameters)


CLASS = sharded_class()
CLAIM = make.claim("a", 30, storage_class="ec")


def block(size: float, **fields: Any) -> Object:
    return make.disk(size, kind="block", filesystem="", **fields)


def nodes(*sizes: float, **fields: Any) -> list[Object]:
    return [make.longhorn_node(f"n{index}", {"d": block(size)}, **fields) for index, size in enumerate(sizes, start=1)]


def reason(*objects: Object | list[Object]) -> str:
    (single,) = set(reasons(explained(make.pod("a"), KUBE_NODES, CLASS, CLAIM, *objects)).values())
    return single


@pytest.mark.parametrize("case", ["sharded-existing", "sharded-new", "sharded-new-default-locality"])
def test_recorded_cases_fit_every_node(case: str) -> None:
    """20Gi are free on each of three nodes, for an existing volume of 60Gi and new ones of 30Gi and 18Gi, with 2+1 shards."""
    current = state(json.loads((CASES / f"{case}.json").read_text())["items"])
    (wanted,) = current.view.snapshot.pods.values()
    explanation = explain_nodes(wanted, ["n1", "n2", "n3"], current, FilterOptions())
    assert reasons(explanation) == dict.fromkeys(("n1", "n2", "n3"), "ATTACHABLE")
    assert not explanation.decision.resolution.local


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        pytest.param((SHARD, SHARD, SHARD), "ATTACHABLE", id="exactly a shard each"),
        pytest.param((SHARD, SHARD, SHARD - 1 / GI), "NOT_TOGETHER_IN_CLUSTER", id="a byte too small"),
        pytest.param((3 * SHARD, SHARD), "TOO_FEW_NODES", id="two shards never share a node"),
        pytest.param((10, 10, 10), "NO_ROOM_IN_CLUSTER", id="no disk for a shard"),
    ],
)
def test_each_shard_needs_a_node_of_its_own(sizes: tuple[float, ...], expected: str) -> None:
    assert reason(nodes(*sizes)) == expected


def test_two_disks_of_a_node_take_one_shard() -> None:
    soft = [setting(f"replica-{kind}soft-anti-affinity", "true") for kind in ("", "zone-", "disk-")]
    pair = make.longhorn_node("n1", {"d1": block(20), "d2": block(20)})
    third = make.longhorn_node("n3", {"d": block(20)})
    assert reason(soft, pair, nodes(20, 20)[1:]) == "TOO_FEW_NODES"
    assert reason(soft, pair, nodes(20, 20)[1:], third) == "ATTACHABLE"


def test_shards_go_to_v2_disks_with_the_tags() -> None:
    mixed = [*nodes(20, 20), make.longhorn_node("n3", {"d": make.disk(100)})]
    assert reason(mixed) == "TOO_FEW_NODES"
    tagged = [make.longhorn_node(f"n{n}", {"d": block(20, tags=["fast"] if n < 3 else [])}) for n in range(1, 4)]
    fast = sharded_class(diskSelector="fast")
    assert set(reasons(explained(make.pod("a"), KUBE_NODES, fast, CLAIM, tagged)).values()) == {"TOO_FEW_NODES"}
    assert reason(tagged) == "ATTACHABLE"


def test_shards_go_to_any_zone_and_to_nodes_with_any_tags() -> None:
    strict = [setting("replica-zone-soft-anti-affinity", "false"), setting("allow-empty-node-selector-volume", "false")]
    selecting = sharded_class(nodeSelector="gold", replicaZoneSoftAntiAffinity="disabled")
    explanation = explained(
        make.pod("a"), KUBE_NODES, selecting, CLAIM, strict, nodes(20, 20, 20, zone="z", tags=["old"])
    )
    assert set(reasons(explanation).values()) == {"ATTACHABLE"}


def test_too_few_nodes_are_named() -> None:
    """Neither fewer replicas nor soft anti-affinity would help."""
    detail = explained(make.pod("a"), KUBE_NODES, CLASS, CLAIM, nodes(20, 20)).verdicts[0].detail
    assert detail == (
        "a needs 3 nodes with a disk for one of its 2 data and 1 parity shards each, 2 can take one; "
        "what helps: one more node, or a StorageClass with fewer chunks (dataLayout.dataChunks)"
    )


def test_an_existing_volume_only_has_to_be_attached() -> None:
    """Its shards count in the disks' status already, on nodes that may be full or cordoned now."""
    existing = make.bound("a", 300, dataEngine="v2", dataLayout=LAYOUT, locality="strict-local")
    closed = [make.longhorn_node("n1", {"d": block(20, scheduled=20)}), make.longhorn_node("n2", {}, ready=False)]
    assert reasons(explained(make.pod("a"), KUBE_NODES, existing, closed)) == {
        "n1": "ATTACHABLE",
        "n2": "NODE_NOT_READY",
    }


def test_a_local_volume_and_the_shards_need_room_together() -> None:
    local = [make.storage_class("local", dataEngine="v2"), make.claim("b", 18, storage_class="local")]
    four = explained(make.pod("a", "b"), KUBE_NODES, CLASS, CLAIM, local, nodes(20, 20, 20, 20))
    assert all(entry.reason.fits for entry in four.verdicts)
    three = explained(make.pod("a", "b"), KUBE_NODES, CLASS, CLAIM, local, nodes(20, 20, 20))
    assert set(reasons(three).values()) == {"NOT_TOGETHER_IN_CLUSTER"}


def test_shards_of_the_pod_may_be_in_the_way_of_its_local_volume() -> None:
    """A shard may take the only disk of n1 first, but not both disks of n2, because only one goes there."""
    local = [make.storage_class("local", dataEngine="v2"), make.claim("b", 18, storage_class="local")]
    pair = make.longhorn_node("n2", {"d1": block(20), "d2": block(20)})
    cluster = [*nodes(20), pair, *nodes(0, 0, 20, 20)[2:]]
    options = FilterOptions(packing=Packing.ORDER_SAFE)
    explanation = explained(make.pod("a", "b"), KUBE_NODES, CLASS, CLAIM, local, cluster, options=options)
    assert reasons(explanation) == {"n1": "NEVER_SAFE", "n2": "ROOM", "n3": "NEVER_SAFE", "n4": "NEVER_SAFE"}


def cluster(*objects: Object | list[Object], other_on: str) -> ClusterState:
    """A cluster with the pod `p` with a local v2 volume of 18Gi, and the pod `other` with the claim `a` ("": without a node)."""
    local = [make.storage_class("local", dataEngine="v2"), make.claim("b", 18, storage_class="local")]
    pods = [make.pod("b", name="p", uid="uid-p"), make.pod("a", name="other", uid="uid-other", node=other_on)]
    return state(KUBE_NODES, CLASS, local, pods, *objects)


def fitting(current: ClusterState, ledger: Ledger | None = None) -> list[str]:
    """The nodes that the pod `p` fits."""
    names = sorted(current.view.snapshot.longhorn_nodes)
    wanted = current.view.snapshot.pods["default", "p"]
    decision = filter_nodes(wanted, names, current, FilterOptions(), make.competing(current, ledger))
    return [name for name, entry in zip(names, decision.reasons, strict=True) if entry.fits]


def offer_to_other(view: View) -> Ledger:
    """A ledger with an offer of n1 to the pod `other`."""
    pod = view.snapshot.pods["default", "other"]
    unplaced = resolve(pod, view).unplaced
    offered = Offered(observed_pod(pod), frozenset({"n1"}), (), unplaced_volumes=unplaced)
    return step(Ledger(), offered, 0.0)[0]


def test_a_new_volume_of_another_pod_counts_on_every_node() -> None:
    bound = cluster(nodes(20, 20, 20, 40), CLAIM, other_on="n1")
    assert fitting(bound) == ["n4"]
    waiting = cluster(nodes(20, 20, 20, 40), CLAIM, other_on="")
    assert fitting(waiting) == ["n1", "n2", "n3", "n4"]
    assert fitting(waiting, offer_to_other(waiting.view)) == ["n4"]


def test_a_volume_that_exists_counts_no_more() -> None:
    """The disks' status has its shards. Of other pods' volumes only one of 2Gi counts, also while an older offer is open."""
    remote = [make.storage_class("remote", dataEngine="v2", dataLocality="disabled")]
    remote += [make.claim("r", 2, storage_class="remote"), make.pod("r", name="third", uid="uid-third", node="n1")]
    existing = make.bound("a", 15, dataEngine="v2", dataLayout=LAYOUT)
    current = cluster(nodes(20, 20, 20), existing, remote, other_on="n1")
    ledger = offer_to_other(cluster(nodes(20, 20, 20), CLAIM, other_on="").view)
    assert ledger.with_unplaced_volumes
    assert fitting(current) == fitting(current, ledger) == ["n1", "n2", "n3"]
    assert fitting(cluster(nodes(19, 20, 19), existing, remote, other_on="n1"), ledger) == ["n2"]
