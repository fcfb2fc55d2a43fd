"""What other pods' volumes will take on a node, so that one more pod is judged jointly with them.

Data flow: a node's demands (derived, oldest first) and offers → those that have room there together, demand before offers, older before
younger → a `Beside`: volumes that are packed jointly with the pod's own. A demand that has no room beside older ones is
*hopeless* (a stuck pod, a disk that is gone): it is left out, or it would stop everybody. An offer without room can lead
nowhere either: Longhorn's disks have changed since. Volumes that may go to any node (`roaming.py`) count like offers on every node
where they have room, after what is meant for it: of n replicas over N nodes the largest n / N, rounded up.

Volumes are told apart by what they are (the Longhorn volume, or the claim while there is none), so a claim that two pods share, or a
pod's own demand, counts once. Nothing is decided twice: a node is looked at again when its demands, its offers or its disks change,
and nodes with equal volumes beside equal disks are one question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import count, islice
from typing import Any, Final

from scheduler_core.cluster.view import View
from scheduler_core.cooperative import Steps
from scheduler_core.demand.derive import Demand
from scheduler_core.demand.index import Demands
from scheduler_core.demand.unplaced import Roamers, claim_identity, copies
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import Ledger, Offer
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.local_replicas import kept_on
from scheduler_core.volumes.requirements import kind_of, needs
from scheduler_core.volumes.resolve import PodVolume, volume_now
from scheduler_core.worth import worth

_NODES_PER_PAUSE: Final = 16
_HAVE_ROOM: Final = frozenset({Reason.ROOM, Reason.UNDECIDED})
# A cluster meets a handful of sizes and kinds in many combinations; beyond this they get new numbers, never ones in use.
_MOST_GROUPS: Final = 100_000
_WORTH_ANOTHER_TRY: Final = 2
# Nodes come and go with an autoscaler; those that are gone are dropped once they are as many as those that are there.
_SEEN_PER_NODE: Final = 2
_FEW_NODES: Final = 64

Volumes = tuple[PodVolume, ...]


@dataclass(frozen=True, slots=True)
class Own:
    """The pod that is being asked about: what is its own is not counted against it."""

    uid: str
    volumes: frozenset[str]

    @classmethod
    def of(cls, uid: str, volumes: Iterable[PodVolume]) -> Own:
        """The pod with these volumes; what was seen of a node may have them as the claims they were."""
        found = list(volumes)
        claims = (claim_identity(volume.claim) for volume in found if volume.claim)
        return cls(uid, frozenset(identity(volume) for volume in found).union(claims))


@dataclass(frozen=True, slots=True)
class Beside:
    """Other pods' volumes on one node that have room there together.

    Attributes:
        demanded: they will be there
        offered: they may come
        group: equal for nodes whose volumes are alike; `settled_group`: the same without what is only offered
        total, largest: bytes of all of them, and of the largest
        kind: of all of them, if they are new volumes of one kind
        loads: bytes of all of them by their kinds
    """

    demanded: Volumes
    offered: Volumes
    group: int
    settled_group: int
    total: int = 0
    largest: int = 0
    kind: Ask | None = None
    loads: tuple[tuple[Ask, int], ...] = ()

    @property
    def volumes(self) -> Volumes:
        """All of them."""
        return self.demanded + self.offered


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a node was found to hold.

    Attributes:
        steps: how many steps did not suffice to find out; None if it is certain
    """

    demands: tuple[Demand, ...]
    offers: tuple[Offer, ...]
    rooms: object
    names: frozenset[str]
    uids: frozenset[str]
    beside: Beside
    steps: int | None = None

    def holds(self, demands: tuple[Demand, ...], offers: tuple[Offer, ...], rooms: object, budget: Budget) -> bool:
        if self.demands is not demands or self.rooms is not rooms or self.offers != offers:
            return False
        # One node that is too hard would otherwise use up every question's budget.
        return self.steps is None or budget.left <= _WORTH_ANOTHER_TRY * self.steps

    def concerns(self, own: Own) -> bool:
        """Whether something of the pod's own is among it."""
        return own.uid in self.uids or not own.volumes.isdisjoint(self.names)


class Joint:
    """Looks at nodes, and remembers what it saw."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._numbers = count()
        self._kinds: dict[Ask, int] = {}
        self._groups: dict[tuple[tuple[int, int, int], ...], int] = {}
        self._offered: tuple[tuple[Roamers, tuple[str, ...]], dict[str, PodVolume]] | None = None

    def besides(  # noqa: PLR0913, PLR0917 # everything a node's volumes depend on
        self, memory: Memory, demands: Demands, ledger: Ledger, names: Iterable[str], own: Own, budget: Budget
    ) -> Steps[dict[str, Beside]]:
        """For each of some nodes that other pods' volumes are bound for, what they are."""
        found: dict[str, Beside] = {}
        rooms = memory.view.indexes.rooms
        for number, name in enumerate(names, start=1):
            if number % _NODES_PER_PAUSE == 0:
                yield
            there, offers, room = demands.by_node.get(name) or (), ledger.on(name), rooms.get(name)
            if room is None or not (there or offers):
                continue
            seen = self._seen.get(name)
            if seen is None or not seen.holds(there, offers, room, budget):
                seen = yield from self._look(memory, name, there, offers, room, budget)
                self._seen[name] = seen
            beside = seen.beside
            if seen.concerns(own):
                others = _others(there, offers, own, name, memory.view)
                beside = yield from self._beside(memory, name, *others, budget)
            if beside.demanded or beside.offered:
                found[name] = beside
        if len(self._seen) > _SEEN_PER_NODE * len(rooms) + _FEW_NODES:
            self._seen = {name: seen for name, seen in self._seen.items() if name in rooms}
        share = self.share(demands, ledger, own, memory.view)
        if share:
            yield from self._join(memory, names, found, share, budget)
        return found

    def concerning(self, names: Iterable[str], own: Own) -> frozenset[str]:
        """Those of some nodes, looked at already, where what others take is not the same to this pod as to one like it."""
        seen = ((name, self._seen.get(name)) for name in names)
        return frozenset(name for name, known in seen if known is not None and known.concerns(own))

    def share(self, demands: Demands, ledger: Ledger, own: Own, view: View) -> Volumes:
        """Of the volumes that may go to any node as many as one node's share is, the largest; but none of the pod's own.

        All of them on every node would stop everybody: like offers, the more there are, the narrower they count.
        """
        roamers, offered = demands.roaming, self._offered_anywhere(demands.roaming, ledger, view)
        rest = [volume for key, volume in offered.items() if key not in own.volumes]
        mine = [entry.volume for entry in map(roamers.known.get, own.volumes) if entry is not None]
        replicas = roamers.replicas + sum(map(copies, rest)) - sum(map(copies, mine))
        if not replicas:
            return ()
        young = (entry.volume for entry in roamers.by_size if entry.key not in own.volumes)
        largest = merge(young, rest, key=_largest_first)
        return tuple(islice(largest, -(-replicas // max(1, len(view.indexes.rooms)))))

    def _offered_anywhere(self, roamers: Roamers, ledger: Ledger, view: View) -> dict[str, PodVolume]:
        """What is only offered and may go to any node, the largest first; an offer may have been made before its claim was bound."""
        key = roamers, ledger.anywhere
        if self._offered is None or any(was is not now for was, now in zip(self._offered[0], key, strict=True)):
            known: list[Any] = [volume for offer in ledger.roaming for volume in offer.roaming]
            found = {identity(volume): volume for volume in (volume_now(volume, view) for volume in known)}
            rest = sorted((found[name] for name in found if roamers.known.get(name) is None), key=_largest_first)
            self._offered = key, {identity(volume): volume for volume in rest}
        return self._offered[1]

    def _join(
        self, memory: Memory, names: Iterable[str], found: dict[str, Beside], roaming: Volumes, budget: Budget
    ) -> Steps[None]:
        """Adds to the volumes of each node those roaming ones that have room there together with them, the largest first."""
        nobody = self._made((), ())
        groups: dict[int, list[str]] = {}
        for name in names:
            groups.setdefault(found.get(name, nobody).group, []).append(name)
        for members in groups.values():
            base = found.get(members[0], nobody).volumes
            for joined, those in (yield from _joined(memory, members, base, roaming, budget)).items():
                alone = self._made((), joined)
                for name in those if joined else ():
                    beside = found.get(name)
                    found[name] = self._made(beside.demanded, beside.offered + joined) if beside else alone

    def _look(  # noqa: PLR0913, PLR0917 # as besides
        self,
        memory: Memory,
        name: str,
        demands: tuple[Demand, ...],
        offers: tuple[Offer, ...],
        room: object,
        budget: Budget,
    ) -> Steps[_Seen]:
        steps, gave_up = budget.left, budget.gave_up
        offered = [_volumes(offer, name, memory.view) for offer in offers]
        beside = yield from self._beside(memory, name, demands, offered, budget)
        names = frozenset(identity(volume) for volumes in offered for volume in volumes)
        names = names.union(identity(demand.volume) for demand in demands)
        uids = frozenset(offer.uid for offer in offers)
        return _Seen(demands, offers, room, names, uids, beside, None if budget.gave_up == gave_up else steps)

    def _beside(
        self,
        memory: Memory,
        name: str,
        demands: Sequence[Demand],
        offers: Sequence[Sequence[PodVolume]],
        budget: Budget,
    ) -> Steps[Beside]:
        demanded = {identity(demand.volume): demand.volume for demand in demands}
        every = demanded | {identity(volume): volume for volumes in offers for volume in volumes}
        if (yield from _pack(memory, name, list(every.values()), budget)):
            offered = tuple(volume for key, volume in every.items() if key not in demanded)
            return self._made(tuple(demanded.values()), offered)
        demanded = {}
        if (yield from _pack(memory, name, [demand.volume for demand in demands], budget)):
            demanded = {identity(demand.volume): demand.volume for demand in demands}
        else:
            for demand in demands:
                if (yield from _pack(memory, name, [*demanded.values(), demand.volume], budget)):
                    demanded[identity(demand.volume)] = demand.volume
        every = dict(demanded)
        for part in _parts(offers):
            trial = every | {identity(volume): volume for volume in part}
            if (yield from _pack(memory, name, list(trial.values()), budget)):
                every = trial
        offered = tuple(volume for key, volume in every.items() if key not in demanded)
        return self._made(tuple(demanded.values()), offered)

    def _made(self, demanded: Volumes, offered: Volumes) -> Beside:
        volumes = demanded + offered
        kinds = [kind_of(volume.volume) for volume in volumes]
        sizes = [volume.volume.size for volume in volumes]
        groups = self._group(volumes, kinds), self._group(demanded, kinds[: len(demanded)])
        loads = _loads(kinds, sizes)
        fresh = all(not volume.volume.actual_size and not volume.volume.backing_image for volume in volumes)
        kind = loads[0][0] if len(loads) == 1 and fresh else None
        return Beside(demanded, offered, *groups, sum(sizes), max(sizes, default=0), kind, loads)

    def _group(self, volumes: Volumes, kinds: Sequence[Ask]) -> int:
        if len(self._groups) >= _MOST_GROUPS:
            self._groups.clear()
            self._kinds.clear()  # a linked clone is a kind of its own
        known = self._kinds
        alike = tuple(
            sorted(
                (volume.volume.size, volume.volume.actual_size, known.setdefault(kind, len(known)))
                for volume, kind in zip(volumes, kinds, strict=True)
            )
        )
        return self._groups.setdefault(alike, next(self._numbers))


def _loads(kinds: Sequence[Ask], sizes: Sequence[int]) -> tuple[tuple[Ask, int], ...]:
    if all(kind is kinds[0] for kind in kinds):  # hashing them takes longer
        return ((kinds[0], sum(sizes)),) if kinds else ()
    found: dict[Ask, int] = {}
    for kind, size in zip(kinds, sizes, strict=True):
        found[kind] = found.get(kind, 0) + size
    return tuple(found.items())


def identity(volume: PodVolume) -> str:
    """What tells volumes apart: the Longhorn volume, or the claim while there is none."""
    return volume.volume.name if volume.bound else claim_identity(volume.claim)


def alike(volumes: Volumes) -> object:
    """Equal for volumes that every node treats alike."""
    return tuple((kind_of(volume.volume), volume.volume.size, volume.volume.actual_size) for volume in volumes)


def counting_says_safe(free: Iterable[int], total: int, largest: int) -> bool:
    """Whether volumes of these bytes in all, the largest of so many, find room in whatever order Longhorn places them.

    To shut the largest out, the others would have to fill every disk that could take it (see `packing.order_safe`).
    """
    needed = 0
    for room in free:
        if room >= largest:
            needed += room - largest + 1
    return needed > total - largest


def _volumes(offer: Offer, name: str, view: View) -> list[PodVolume]:
    """What an offer stands for on a node: not what is kept there already, and by the names that demand has for it."""
    known: tuple[Any, ...] = offer.volumes
    found = [volume_now(volume, view) for volume in known]
    return [volume for volume in found if not volume.replicas or name not in kept_on(volume, view.cluster)]


def _others(
    demands: Iterable[Demand], offers: Iterable[Offer], own: Own, name: str, view: View
) -> tuple[list[Demand], list[list[PodVolume]]]:
    """What is left when the pod's own offer and its own volumes do not count, whoever else was offered nodes with them."""
    kept = [demand for demand in demands if identity(demand.volume) not in own.volumes]
    others = (_volumes(offer, name, view) for offer in offers if offer.uid != own.uid)
    return kept, [[volume for volume in volumes if identity(volume) not in own.volumes] for volumes in others]


def _parts(offers: Iterable[Sequence[PodVolume]]) -> Iterator[Sequence[PodVolume]]:
    """What comes to a node together or not at all: a volume that only prefers its pod's node may go elsewhere alone."""
    for volumes in offers:
        yield [volume for volume in volumes if volume.local]
        yield from ([volume] for volume in volumes if not volume.local)


def _largest_first(volume: PodVolume) -> tuple[int, str]:
    return -volume.volume.size, identity(volume)


def _joined(
    memory: Memory, names: list[str], base: Volumes, roaming: Volumes, budget: Budget
) -> Steps[dict[Volumes, list[str]]]:
    """Nodes that are alike but for their disks, by the roaming volumes that have room there beside the base's."""
    every, rest = yield from _with_room(memory, names, base + roaming, budget)
    parts: dict[Volumes, list[str]] = {(): rest} if rest else {}
    for volume in roaming:
        split: dict[Volumes, list[str]] = {}
        for joined, those in parts.items():
            fitting, others = yield from _with_room(memory, those, (*base, *joined, volume), budget)
            split |= {(*joined, volume): fitting} if fitting else {}
            split |= {joined: others} if others else {}
        parts = split
    return parts | {roaming: every}


def _with_room(
    memory: Memory, names: list[str], volumes: Volumes, budget: Budget
) -> Steps[tuple[list[str], list[str]]]:
    """The nodes where the volumes have room together, and those where they have not."""
    wanted = needs(volumes, ())
    table = yield from memory.table(wanted.kinds)
    profiles = table.of(names)
    found = yield from worth(memory, wanted, profiles, budget, examine=False)
    fits = [found[profile] in _HAVE_ROOM for profile in profiles]
    return (
        [name for name, fit in zip(names, fits, strict=True) if fit],
        [name for name, fit in zip(names, fits, strict=True) if not fit],
    )


def _pack(memory: Memory, name: str, volumes: Sequence[PodVolume], budget: Budget) -> Steps[bool]:
    if not volumes:
        return True
    wanted = needs(volumes, volumes)
    table = yield from memory.table(wanted.kinds)
    [profile] = table.of([name])
    if wanted.uniform and profile.reason is None:
        load = wanted.load
        if counting_says_safe(profile.free, load.total, load.largest):
            return True
    found = yield from worth(memory, wanted, [profile], budget, examine=False)
    return found[profile] in _HAVE_ROOM
