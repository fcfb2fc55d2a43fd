"""What nodes are worth to a pod beside all others, kept from one question to the next: only nodes where something changed are decided.

Data flow: the pod's needs → the answers that equal needs had → without those of nodes whose profile, demands or offers have changed since
(`trail.py`) → what is missing is decided now → the next answers. So a question costs a look-up per node asked about, and
work for what changed. Where something of the pod's own counts (its offer, its volumes' demand), it is decided for it alone and not kept.

Deciding one node: alone (`worth.py`), then jointly with what others will take there (`joint.py`). Most nodes have so much room that
counting bytes shows that every order of placing all of it succeeds; nothing else needs to be known of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rpds import HashTrieMap

from scheduler_core.cluster.changelog import Trail
from scheduler_core.cluster.view import View
from scheduler_core.cooperative import Steps
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Beside, Joint, Own, Volumes, alike, counting_says_safe
from scheduler_core.evaluation.disk_profile import Profile
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.requirements import Needs, needs
from scheduler_core.volumes.resolve import PodVolume, Resolution
from scheduler_core.worth import worth

# Of all kept answers together; 0.2 kB each.
MOST_ANSWERS: Final = 100_000
_PER_PAUSE: Final = 256

_Value = tuple[Reason, Beside | None]
_Marks = tuple[Trail, Trail, Trail]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a pod, and what is known of all others.

    Attributes:
        needs: of the pod's local volumes
        examine: whether order safety matters
    """

    memory: Memory
    demands: Demands
    ledger: Ledger
    joint: Joint
    own: Own
    resolution: Resolution
    needs: Needs
    examine: bool
    budget: Budget

    @property
    def marks(self) -> _Marks:
        """Where the three things that answers depend on stand."""
        return self.memory.trail, self.demands.trail, self.ledger.trail


@dataclass(frozen=True, slots=True)
class _Asked:
    """The nodes of a question in their order; kube-scheduler mostly asks about the same ones."""

    names: Sequence[str]
    places: Mapping[str, int]

    @classmethod
    def of(cls, names: Sequence[str]) -> _Asked:
        """With the place of each."""
        return cls(names, {name: place for place, name in enumerate(names)})


@dataclass(frozen=True, slots=True)
class _Answers:
    """What was found.

    Attributes:
        marks: where everything stood
        values: by node
        asked: the nodes that were asked about last, and their reasons
        special: those among them whose reasons are the asking pod's alone
    """

    marks: _Marks
    values: HashTrieMap[str, _Value]
    asked: _Asked
    reasons: Sequence[Reason]
    special: frozenset[str]

    def changed(self, marks: _Marks) -> frozenset[str] | None:
        """The nodes where something has changed since; None: nobody knows."""
        found: frozenset[str] = frozenset()
        for now, known in zip(marks, self.marks, strict=True):
            changed = now.since(known)
            if changed is None:
                return None
            found |= changed
        return found


class Besides(Mapping[str, Beside]):
    """What others will take, by the nodes that were asked about and where there is something."""

    def __init__(self, kept: HashTrieMap[str, _Value], fresh: Mapping[str, Beside | None]) -> None:
        self._kept = kept
        self._fresh = fresh

    def get(self, name: str, default: Any = None) -> Any:
        """What others will take on a node."""
        if name in self._fresh:
            return self._fresh[name] or default
        kept = self._kept.get(name)
        return (kept[1] or default) if kept is not None else default

    def __getitem__(self, name: str) -> Beside:
        found: Beside | None = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def joined(self, more: Mapping[str, Beside]) -> Besides:
        """With those of some more nodes."""
        return Besides(self._kept, {**self._fresh, **more}) if more else self

    def __iter__(self) -> Iterator[str]:
        return (name for name in {*self._fresh, *self._kept} if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Standing:
    """Owner of the kept answers."""

    def __init__(self) -> None:
        self._answers: dict[object, _Answers] = {}  # the one used longest ago comes first
        self._kept = 0

    def judge(self, question: Question, names: Sequence[str]) -> Steps[tuple[list[Reason], Besides]]:
        """What each node is worth to the pod beside all others, and what these will take there."""
        share = question.joint.share(question.demands, question.ledger, question.own, question.memory.view)
        key = question.needs.key, question.examine, alike(share)
        special = _own_nodes(question)
        asked, values, reasons, missing = self._known(key, question.marks, names, special)
        budget, gave_up = question.budget, question.budget.gave_up
        found, besides = yield from decide(question, missing)
        # No watch may have brought the pod yet that was offered nodes with a volume of this one.
        special |= question.joint.concerning(missing, question.own)
        keeps = budget.gave_up == gave_up
        for name in missing:
            reasons[asked.places[name]] = found[name]
            if keeps and name not in special:
                values = values.insert(name, (found[name], besides.get(name)))
        if keeps:
            self._keep(key, _Answers(question.marks, values, asked, tuple(reasons), special))
        return reasons, Besides(values, {name: besides.get(name) for name in missing})

    def _known(
        self, key: object, marks: _Marks, names: Sequence[str], special: frozenset[str]
    ) -> tuple[_Asked, HashTrieMap[str, _Value], list[Reason], list[str]]:
        """The nodes in order, what is known of them, their reasons as far as known, and those to decide now."""
        kept = self._answers.get(key)
        changed = kept.changed(marks) if kept is not None else None
        if kept is None or changed is None:
            asked = kept.asked if kept is not None and kept.asked.names == names else _Asked.of(names)
            return asked, HashTrieMap(), [Reason.UNDECIDED] * len(names), list(asked.places)
        values = kept.values
        for name in changed:
            values = values.discard(name)
        if kept.asked.names == names:
            places = kept.asked.places
            missing = sorted(
                (name for name in changed | special | kept.special if name in places), key=places.__getitem__
            )
            return kept.asked, values, list(kept.reasons), missing
        asked, unknown = _Asked.of(names), (Reason.UNDECIDED, None)
        found = [unknown if name in special else values.get(name) or unknown for name in names]
        missing = [name for name, value in zip(names, found, strict=True) if value is unknown]
        return asked, values, [value[0] for value in found], missing

    def _keep(self, key: object, answers: _Answers) -> None:
        self._forget(key)
        if not answers.values:
            return
        self._answers[key] = answers
        self._kept += 1 + len(answers.values)
        while self._kept > MOST_ANSWERS and len(self._answers) > 1:
            self._forget(next(iter(self._answers)))

    def _forget(self, key: object) -> None:
        answers = self._answers.pop(key, None)
        if answers is not None:
            self._kept -= 1 + len(answers.values)


def _own_nodes(question: Question) -> frozenset[str]:
    """The nodes where something counts that is the pod's own, or another pod's that shares a volume with it."""
    view, ledger = question.memory.view, question.ledger
    found: set[str] = set()
    uids = {question.own.uid}
    for volume in question.resolution.volumes:
        found.add(question.demands.node_of(volume))
        uids |= _mounting(volume, view)
    for uid in uids:
        offer = ledger.of(uid)
        found |= offer.nodes if offer is not None else frozenset()
    return frozenset(found - {""})


def _mounting(volume: PodVolume, view: View) -> set[str]:
    namespace, _, name = volume.claim.partition("/")
    return {pod.uid for pod in view.pods_of(namespace, name)}


def decide(question: Question, names: Sequence[str]) -> Steps[tuple[dict[str, Reason], Mapping[str, Beside]]]:
    """The same for nodes of which nothing is known yet, by name."""
    memory, budget = question.memory, question.budget
    besides = yield from question.joint.besides(memory, question.demands, question.ledger, names, question.own, budget)
    table = yield from memory.table(question.needs.kinds)
    profiles = dict(zip(names, table.of(names), strict=True))
    found: dict[str, Reason] = {}
    for number, (name, profile) in enumerate(profiles.items(), start=1):
        if number % _PER_PAUSE == 0:
            yield
        if _has_plenty(question.needs, profile, besides.get(name)):
            found[name] = Reason.ROOM
    rest = {name: profile for name, profile in profiles.items() if name not in found}
    alone = yield from worth(memory, question.needs, list(rest.values()), budget, examine=question.examine)
    found |= {name: alone[profile] for name, profile in rest.items()}
    groups: dict[int, list[str]] = {}
    for name in rest:
        if name in besides and (found[name].fits or found[name] is Reason.ORDER_UNSAFE):
            groups.setdefault(besides[name].group, []).append(name)
    for members in groups.values():
        found |= yield from jointly(question, members, besides[members[0]].volumes, examine=question.examine)
    return found, besides


def _has_plenty(wanted: Needs, profile: Profile, beside: Beside | None) -> bool:
    """Whether counting alone shows that everything has room in every order; False proves nothing."""
    if profile.reason is not None or not wanted.uniform or not wanted.sizes:
        return False
    load = wanted.load
    if beside is None:
        return counting_says_safe(profile.free, load.total, load.largest)
    kind: Ask = wanted.kinds.asks[0]
    if beside.kind is None or (beside.kind is not kind and beside.kind != kind):
        return False
    return counting_says_safe(profile.free, load.total + beside.total, max(load.largest, beside.largest))


def jointly(question: Question, names: Sequence[str], volumes: Volumes, *, examine: bool) -> Steps[dict[str, Reason]]:
    """What nodes that are alike in what others will take are worth to the pod, where it fits alone."""
    wanted = needs((*question.resolution.local, *volumes), question.resolution.volumes)
    table = yield from question.memory.table(wanted.kinds)
    profiles = table.of(names)
    found = yield from worth(question.memory, wanted, profiles, question.budget, examine=examine)
    return {name: among_others(found[profile]) for name, profile in zip(names, profiles, strict=True)}


def among_others(reason: Reason) -> Reason:
    """The pod fits alone; if it does not beside others, they are why."""
    return reason if reason.fits or reason in (Reason.ORDER_UNSAFE, Reason.UNDECIDED) else Reason.SPOKEN_FOR
