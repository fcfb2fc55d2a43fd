"""How many replicas a volume gets beside those it has (controller/volume_controller.go:getReplenishReplicasCount)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.disk_pressure import pressed_replicas
from scheduler_core.longhorn.disk_stage import prefilter_refusal
from scheduler_core.longhorn.node_stage import topology_refusal
from scheduler_core.longhorn.readiness import RUNNING, engine_image_ready
from scheduler_core.longhorn.replica_request import Ask, auto_balance, balances_best_effort
from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.longhorn.space import room, space_refusal
from scheduler_core.longhorn.tags import selectors_match
from scheduler_core.model.longhorn import BEST_EFFORT, Node, Replica, Volume

HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class Replenishment:
    """How many replicas to add, and the node they must be on ("" for any)."""

    count: int = 0
    hard_node_affinity: str = ""


NOTHING = Replenishment()


def replenishments(cluster: Cluster, volume: Volume, replicas: Sequence[Replica]) -> frozenset[Replenishment]:
    """Every answer Longhorn may give; more than one where it depends on Go's map order."""
    missing = volume.number_of_replicas - sum(1 for replica in replicas if usable(volume, replica))
    if missing:
        return frozenset({Replenishment(max(0, missing))})
    if auto_balance(volume, cluster.settings) == AUTO_BALANCE_DISABLED or volume.robustness != HEALTHY:
        return frozenset({NOTHING})
    nodes = balance_nodes(cluster, volume, replicas)
    spread = _zones_to_use(cluster, volume, replicas, nodes) or _nodes_to_use(cluster, volume, replicas, nodes)
    if spread:
        return frozenset({Replenishment(spread)})
    if not balances_best_effort(volume, cluster.settings):
        return frozenset({NOTHING})
    return _best_effort(cluster, volume, replicas, nodes)


def usable(volume: Volume, replica: Replica) -> bool:
    """Whether a replica counts: active, not failed, not evicting, and not a local one that found no place."""
    waiting_local = (
        volume.data_locality == BEST_EFFORT
        and not (replica.healthy_at or replica.failed_at or replica.node_id)
        and volume.current_node_id != ""
        and replica.hard_node_affinity == volume.current_node_id
    )
    return replica.active and not replica.failed_at and not replica.eviction_requested and not waiting_local


def balance_nodes(cluster: Cluster, volume: Volume, replicas: Iterable[Replica]) -> Mapping[str, Node]:
    """The nodes auto-balance looks at (listReadySchedulableAndScheduledNodes); those with a running replica stay in."""
    running = {replica.node_id for replica in replicas if replica.current_state == RUNNING}
    return {
        name: node
        for name, node in cluster.nodes.items()
        if node.ready and (name in running or _could_take(cluster, volume, node))
    }


def _could_take(cluster: Cluster, volume: Volume, node: Node) -> bool:
    """Whether a node may take a replica. Some disk must be open and some disk have the space, not the same one."""
    known = [disk for disk in node.disks if disk.in_spec and disk.in_status]
    open_disk = any(disk.allow_scheduling and not disk.eviction_requested for disk in known)
    roomy_disk = any(
        space_refusal(volume.size, volume.actual_size, room(disk, cluster.settings)) is None for disk in known
    )
    tagged = not volume.node_selector or selectors_match(node.tags, volume.node_selector, allow_empty=True)
    topology = topology_refusal(cluster, Ask.fresh(volume), node) is None
    return node.schedulable and open_disk and roomy_disk and tagged and topology


def _joinable(cluster: Cluster, volume: Volume, node: Node) -> bool:
    return node.allow_scheduling and engine_image_ready(cluster, volume.data_engine, volume.image, node.name)


def _zones_to_use(cluster: Cluster, volume: Volume, replicas: Sequence[Replica], nodes: Mapping[str, Node]) -> int:
    """Replicas to add so that more zones are used (getReplicaCountForAutoBalanceZone).

    The engine's node counts with any replica, other nodes only with a running one.
    """
    counting = [
        replica.node_id
        for replica in replicas
        if replica.node_id in nodes and (replica.node_id == volume.node_id or replica.current_state == RUNNING)
    ]
    used = {nodes[name].zone for name in counting}
    unused = {node.zone for node in nodes.values() if node.zone not in used and _joinable(cluster, volume, node)}
    return min(len(unused), volume.number_of_replicas - len(used)) if unused else 0


def _nodes_to_use(cluster: Cluster, volume: Volume, replicas: Sequence[Replica], nodes: Mapping[str, Node]) -> int:
    """Replicas to add so that more nodes are used (getReplicaCountForAutoBalanceNode)."""
    used = extra_replicas(volume, replicas, nodes)
    if used is None:
        return 0
    unused = sum(1 for name, node in nodes.items() if name not in used and _joinable(cluster, volume, node))
    return max(0, min(unused, volume.number_of_replicas - len(used)))


def extra_replicas(volume: Volume, replicas: Iterable[Replica], nodes: Mapping[str, Node]) -> dict[str, int] | None:
    """Per node with a running replica, how many it has beyond the first; None if that is more than are wanted."""
    extra: dict[str, int] = {}
    for replica in replicas:
        if replica.current_state == RUNNING and replica.node_id in nodes:
            extra[replica.node_id] = extra.get(replica.node_id, -1) + 1
    return None if max(extra.values(), default=0) > volume.number_of_replicas else extra


def _best_effort(
    cluster: Cluster, volume: Volume, replicas: Sequence[Replica], nodes: Mapping[str, Node]
) -> frozenset[Replenishment]:
    """Even out the nodes, else relieve a pressed disk. Evening out the zones has no effect: its count is lost."""
    extra = extra_replicas(volume, replicas, nodes) or {}
    answers: set[Replenishment] = set()
    for least, owners in _least(extra):
        most = max(extra.values())
        adjust = most - least - 1
        if most in (0, least) or adjust == 0:
            answers |= _relief(cluster, volume, replicas)
            continue
        taking = [name for name in owners if _has_open_room(cluster, volume, nodes[name])]
        answers |= {Replenishment(adjust, name) for name in taking or [""]}
    return frozenset(answers) or _relief(cluster, volume, replicas)


def _least(extra: Mapping[str, int]) -> list[tuple[int, list[str]]]:
    """The least extra count and its owners, for every order in which Longhorn may walk its map.

    Its loop starts over after any node with 0 extras, so what comes after the last such node decides: itself alone, or
    any of the other counts.
    """
    if len(extra) <= 1:
        return []
    none = [name for name, count in extra.items() if count == 0]
    counts = sorted({count for count in extra.values() if count})
    if not none:
        return [(counts[0], [name for name, count in extra.items() if count == counts[0]])]
    alone: list[tuple[int, list[str]]] = [(0, [name]) for name in none]
    return alone + [(count, [name]) for name, count in extra.items() if count]


def _has_open_room(cluster: Cluster, volume: Volume, node: Node) -> bool:
    """Whether a disk of the node is open and fits the volume (getIsSchedulableToDiskNodes)."""
    return any(
        prefilter_refusal(cluster, Ask.fresh(volume), disk) is None
        and space_refusal(volume.size, volume.actual_size, room(disk, cluster.settings)) is None
        for disk in node.disks
    )


def _relief(cluster: Cluster, volume: Volume, replicas: Sequence[Replica]) -> frozenset[Replenishment]:
    pressed = pressed_replicas(cluster, volume, replicas)
    if not pressed:
        return frozenset({NOTHING})
    return frozenset(Replenishment(len(pressed), replica.node_id) for replica in pressed)
