"""What has become of demands: how many there are and why, and which of them went wrong, kept current change by change.

Data flow: the demands of a view (`demand_index.py`) and what is known of each node from before → the nodes where something is another →
only they are looked at → the next `Survey`. It costs a comparison per node with demands, and the work on those that changed.

- **Misplaced**: Longhorn placed a fresh volume, and not on the node it is wanted on. A volume with a replica that was ever healthy
  is not fresh: it was drained away, say, and its local replica is still to come.
- **Hopeless**: the demand has no room on its node beside older ones (`joint.py`), so it does not count against anybody.
- **Stuck**: a pod is bound, and a volume of it has not been on its node for `STUCK_SECONDS`.

Where a best-effort volume only prefers its pod's node, one that Longhorn has placed elsewhere is neither misplaced nor stuck.

Since when something is so is not in the cluster: it counts from when it was first seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rpds import HashTrieMap

from scheduler_core.cooperative import Steps
from scheduler_core.demand.derive import Demand, Source
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Joint, Own, identity
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.resolve import is_local

STUCK_SECONDS: Final = 60.0
# Longhorn writes down the places of a new volume's replicas one by one, and the one that counts need not be heard of first.
SETTLE_SECONDS: Final = 1.0
# Comparing a node takes one or two microseconds, looking at one fifty to two hundred.
_NODES_A_STEP: Final = 512
# They share a budget as well: a node for which it does not suffice has no hopeless demands, like one where all have room.
_LOOKS_A_STEP: Final = 16
_NOBODY: Final = Own("", frozenset())


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A volume that Longhorn placed elsewhere when it was fresh, and that is still not where it is wanted.

    Attributes:
        pod: whose volume it is, as ``namespace/name``; "" if that was never known
        node: where it is wanted
        replicas_on: where it has replicas now, in order
    """

    pod: str
    volume: str
    node: str
    replicas_on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stuck:
    """A bound pod that has waited for its volumes for too long.

    Attributes:
        pod: as ``namespace/name``
        volumes: those that are not on its node for so long, the oldest claim's first
        since: when the first of them was seen to be awaited, in the caller's seconds
    """

    pod: str
    node: str
    volumes: tuple[str, ...]
    since: float


@dataclass(frozen=True, slots=True)
class _Node:
    """What is known of one node.

    Attributes:
        rooms: of its disks, when its demands were packed
        bound_since: by pod and claim, when the demand of a bound pod was first seen
        astray_since: by volume, when a fresh one was first seen elsewhere while some replica of it had no place
        due: when something becomes another by time alone
    """

    demands: tuple[Demand, ...] = ()
    rooms: object = None
    hopeless: tuple[Demand, ...] = ()
    misplaced: tuple[Misplaced, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    bound_since: Mapping[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    astray_since: Mapping[str, float] = field(default_factory=dict[str, float])
    due: float = math.inf

    @property
    def troubled(self) -> bool:
        return bool(self.hopeless or self.misplaced or self.stuck)

    def packed_with(self, demands: tuple[Demand, ...], rooms: object) -> bool:
        """Whether these are what it was looked at with; told by identity, as unchanged values are shared between views."""
        return self.demands is demands and self.rooms is rooms


_UNKNOWN: Final = _Node()


@dataclass(frozen=True, slots=True)
class Survey:
    """What had become of all demands at one time; a new one is empty. Only `after` makes the next.

    Attributes:
        time: when it was made, in the caller's seconds
        by_source: how many demands there are, by what ties them to their nodes
        news: the misplacements that this survey is the first to have, once per pod and volume, ordered by node
    """

    time: float = -math.inf
    by_source: Mapping[Source, int] = field(default_factory=lambda: dict.fromkeys(Source, 0))
    news: tuple[Misplaced, ...] = ()
    _nodes: HashTrieMap[str, _Node] = field(default_factory=HashTrieMap)
    _troubled: HashTrieMap[str, _Node] = field(default_factory=HashTrieMap)

    @property
    def hopeless(self) -> tuple[Demand, ...]:
        """The demands without room beside older ones, ordered by node and age."""
        return tuple(entry for node in self._in_trouble() for entry in node.hopeless)

    @property
    def misplaced(self) -> tuple[Misplaced, ...]:
        """The misplaced volumes, ordered by node and age of the demand."""
        return tuple(entry for node in self._in_trouble() for entry in node.misplaced)

    @property
    def stuck(self) -> tuple[Stuck, ...]:
        """The stuck pods, ordered by node and name."""
        return tuple(entry for node in self._in_trouble() for entry in node.stuck)

    def after(  # noqa: PLR0913 # everything a survey depends on
        self,
        demands: Demands,
        memory: Memory,
        joint: Joint,
        ledger: Ledger,
        now: float,
        *,
        require_best_effort: bool = True,
    ) -> Steps[Survey]:
        """The survey at a later time; a `now` before this survey's counts as that.

        Args:
            demands: those of its view
            memory: of the view that is surveyed
            joint: remembers how nodes pack; the one that pods are decided with has done most of the work
            ledger: the offers of now, which change nothing here, but are packed in the same step
            now: the caller's seconds
            require_best_effort: whether a best-effort volume needs room on its pod's node, or only prefers it
        """
        now = max(now, self.time)
        names = yield from self._to_look_at(demands, memory, now)
        hopeless = yield from self._packed(demands, memory, joint, ledger, names)
        # A demand may have moved from one node to another; then both are looked at.
        known = {entry.volume: entry for name in names for entry in self._known(name).misplaced}
        nodes, troubled, by_source, news = self._nodes, self._troubled, dict(self.by_source), list[Misplaced]()
        for number, name in enumerate(names, start=1):
            before, there = self._known(name), demands.by_node.get(name) or ()
            for change, counted in ((-1, before.demands), (1, there)):
                for demand in counted:
                    by_source[demand.source] += change
            rooms, strict = memory.view.indexes.rooms.get(name), require_best_effort
            node, fresh = _looked(before, there, hopeless[name], known, now, rooms, strict=strict)
            nodes = nodes.insert(name, node) if there else nodes.discard(name)
            troubled = troubled.insert(name, node) if node.troubled else troubled.discard(name)
            news += fresh
            if number % _LOOKS_A_STEP == 0:
                yield
        return Survey(now, by_source, tuple(news), nodes, troubled)

    def _in_trouble(self) -> Iterator[_Node]:
        for name in sorted(self._troubled):
            yield self._troubled[name]

    def _known(self, name: str) -> _Node:
        return self._nodes.get(name) or _UNKNOWN

    def _to_look_at(self, demands: Demands, memory: Memory, now: float) -> Steps[list[str]]:
        """The nodes where something is another than before, in order."""
        names, rooms, still_there = list[str](), memory.view.indexes.rooms, 0
        for number, (name, there) in enumerate(demands.by_node.items(), start=1):
            before = self._nodes.get(name)
            still_there += before is not None
            if before is None or before.due <= now or not before.packed_with(there, rooms.get(name)):
                names.append(name)
            if number % _NODES_A_STEP == 0:
                yield
        if still_there < len(self._nodes):  # going through a persistent map takes a microsecond per entry
            names += [name for name in self._nodes if name not in demands.by_node]
        return sorted(names)

    def _packed(
        self, demands: Demands, memory: Memory, joint: Joint, ledger: Ledger, names: Sequence[str]
    ) -> Steps[dict[str, tuple[Demand, ...]]]:
        """The hopeless demands of each of some nodes."""
        found, changed, rooms = dict.fromkeys(names, tuple[Demand, ...]()), list[str](), memory.view.indexes.rooms
        for name in names:
            before, there = self._known(name), demands.by_node.get(name) or ()
            if before.packed_with(there, rooms.get(name)):
                found[name] = before.hopeless
            elif there:
                changed.append(name)
        for first in range(0, len(changed), _LOOKS_A_STEP):
            some = changed[first : first + _LOOKS_A_STEP]
            besides = yield from joint.besides(memory, demands, ledger, some, _NOBODY, Budget())
            for name in some:
                # A node where nothing has room, or that Longhorn does not know, is not among the answers.
                packed = {identity(volume) for volume in besides[name].demanded} if name in besides else set[str]()
                found[name] = tuple(demand for demand in demands.by_node[name] if identity(demand.volume) not in packed)
            yield
        return found


def _looked(  # noqa: PLR0913, PLR0917 # everything that is known of a node depends on all of these
    before: _Node,
    demands: tuple[Demand, ...],
    hopeless: tuple[Demand, ...],
    known: Mapping[str, Misplaced],
    now: float,
    rooms: object,
    *,
    strict: bool,
) -> tuple[_Node, list[Misplaced]]:
    """What is known of a node now, and which misplacements are new."""
    awaited = demands if strict else tuple(demand for demand in demands if not _content(demand))
    bound_since = {
        _wait(demand): before.bound_since.get(_wait(demand), now) for demand in awaited if demand.source is Source.POD
    }
    misplaced, news, astray_since = list[Misplaced](), list[Misplaced](), dict[str, float]()
    for demand in awaited:
        volume, since = demand.volume.name, _astray_since(demand, before, now)
        settled = since is not None and (_all_placed(demand) or since + SETTLE_SECONDS <= now)
        counted = known.get(volume) if demand.volume.bound else None
        if counted is not None or settled:
            entry = Misplaced(demand.pod or (counted.pod if counted else ""), volume, demand.node, _elsewhere(demand))
            misplaced.append(entry)
            if settled and (counted is None or (counted.pod and counted.pod != entry.pod)):
                news.append(entry)
        elif since is not None:
            astray_since[volume] = since
    ends = [since + STUCK_SECONDS for since in bound_since.values()]
    ends += [since + SETTLE_SECONDS for since in astray_since.values()]
    due = min((end for end in ends if end > now), default=math.inf)
    stuck = _stuck(awaited, bound_since, now)
    return _Node(demands, rooms, hopeless, tuple(misplaced), stuck, bound_since, astray_since, due), news


def _stuck(demands: tuple[Demand, ...], since: Mapping[tuple[str, str], float], now: float) -> tuple[Stuck, ...]:
    late: dict[str, list[Demand]] = {}
    for demand in demands:
        if since.get(_wait(demand), now) + STUCK_SECONDS <= now:
            late.setdefault(demand.pod, []).append(demand)
    return tuple(
        Stuck(
            pod=pod,
            node=late[pod][0].node,
            volumes=tuple(demand.volume.name for demand in late[pod]),
            since=min(since[_wait(demand)] for demand in late[pod]),
        )
        for pod in sorted(late)
    )


def _wait(demand: Demand) -> tuple[str, str]:
    """What a bound pod waits for; the claim stays the same while its volume is made."""
    return demand.pod, demand.volume.claim


def _astray_since(demand: Demand, before: _Node, now: float) -> float | None:
    """When the volume was first seen elsewhere while it was fresh; None if it is not elsewhere, or was not fresh."""
    if not _elsewhere(demand):
        return None
    fresh = not any(replica.healthy_at for replica in demand.volume.replicas)
    return before.astray_since.get(demand.volume.name, now if fresh else None)


def _content(demand: Demand) -> bool:
    """Whether the volume only prefers the node and has a place, if another."""
    return not is_local(demand.volume.volume, require_best_effort=False) and _elsewhere(demand) != ()


def _elsewhere(demand: Demand) -> tuple[str, ...]:
    """Where the volume has replicas, if it has none where it is wanted."""
    placed = {replica.node_id for replica in demand.volume.replicas if not replica.deleting and not replica.failed_at}
    return () if demand.node in placed else tuple(sorted(placed - {""}))


def _all_placed(demand: Demand) -> bool:
    """Whether no replica is left that may come yet."""
    return all(replica.node_id for replica in demand.volume.replicas if not replica.deleting and not replica.failed_at)
