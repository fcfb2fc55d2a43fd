"""Placements that the guard reviews, and what it reads of its process, without a cluster."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from app.extender.guard import GuardContext
from scheduler_core.decide.decision import Contenders
from scheduler_core.decide.extender_settings import ExtenderSettings
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.guard.placement_guard import STEPS_PER_PLACEMENT, GuardDecision, Search, guard_placement
from scheduler_core.model.longhorn import Placement, Replica
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.budget import Budget
from tests import builders as make
from tests.builders import GI, NOW, Object
from tests.worlds.changes import changes_of, empty_state
from tests.worlds.engines import engines

NODE = "n"


def placement_review(placement: Placement) -> Object:
    """The AdmissionReview of the update that places a replica."""
    old = make.replica(
        placement.replica,
        placement.volume,
        size=placement.size / GI,
        healthy=False,
        diskPath="",
        dataEngine=placement.data_engine,
        image=placement.image,
        hardNodeAffinity=placement.hard_node_affinity,
        linkedCloneSrcReplicaName=placement.linked_clone_source,
    )
    old["metadata"]["labels"] = {"longhornvolume": placement.volume, "longhornnode": "", "longhorndiskuuid": ""}
    new = deepcopy(old)
    new["spec"] |= {
        "nodeID": placement.node,
        "diskID": placement.disk,
        "diskPath": placement.disk_path,
        "dataDirectoryName": f"{placement.volume}-0123abcd",
    }
    new["metadata"]["labels"] |= {"longhornnode": placement.node, "longhorndiskuuid": placement.disk}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "review-1",
            "kind": {"group": "longhorn.io", "version": "v1beta2", "kind": "Replica"},
            "operation": "UPDATE",
            "object": new,
            "oldObject": old,
            "dryRun": False,
        },
    }


def node_with_disks(disks: Mapping[str, Object], **fields: Any) -> list[Object]:
    """The Longhorn node n with its engines; every disk has a path of its own."""
    for name, raw in disks.items():
        raw["spec"]["path"] = path_of(name)
    return [make.storage_class("longhorn"), make.longhorn_node(NODE, disks, **fields), *engines([NODE])]


def path_of(disk: str) -> str:
    return f"/data/{disk}/"


def waiting_volume(
    name: str, size: float, age: int = 0, *, locality: str = "strict-local", node: str = NODE, **volume: Any
) -> list[Object]:
    """A pod bound to a node, whose claim's volume vol-<name> has the replica r-<name> without a place. Claims of a
    higher `age` are younger.
    """
    claim, persistent_volume, longhorn_volume = make.bound(name, size, locality=locality, **volume)
    claim["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{age:02d}Z"
    persistent_volume["spec"]["claimRef"] = {"namespace": "default", "name": name, "uid": f"uid-{name}"}
    return [
        claim,
        persistent_volume,
        longhorn_volume,
        make.pod(name, name=f"pod-{name}", uid=f"uid-pod-{name}", node=node),
        make.replica(f"r-{name}", f"vol-{name}", size=size, healthy=False),
    ]


def placement(name: str, size: float, disk: str, **fields: Any) -> Placement:
    values = {"replica": f"r-{name}", "volume": f"vol-{name}", "size": int(size * GI), "node": NODE}
    return Placement(**{**values, "disk": f"{NODE}-{disk}", "disk_path": path_of(disk), **fields})


def state_of(*objects: Object | list[Object]) -> ClusterState:
    return empty_state().update(changes_of(*objects), NOW)


def decide(
    state: ClusterState,
    wanted: Placement,
    allowances: Iterable[Placement] = (),
    ledger: Ledger | None = None,
    steps: int = STEPS_PER_PLACEMENT,
    *,
    other_nodes: bool = False,
) -> GuardDecision:
    return guard_placement(wanted, state, ledger or Ledger(), allowances, Search(Budget(steps), other_nodes))


async def _nothing(node: str) -> Sequence[Replica]:
    raise AssertionError(f"the leader does not read the replicas of node {node}")


def leader_context(
    settings: Callable[[], ExtenderSettings],
    contenders: Callable[[], Contenders],
    written: Callable[[str], Awaitable[Sequence[Replica]]] = _nothing,
) -> GuardContext:
    """The context of a process that leads; `written` returns what the API server has of a node."""

    async def recorded(node: str) -> Contenders:
        raise AssertionError(f"the leader reads no record of node {node}")

    return GuardContext(settings, lambda: True, contenders, recorded, written, lambda: "")
