"""`filter_nodes` and `explain_nodes`: the only composition of resolving, restart, node and disk rules, and packing.

Data flow of one request (Longhorn's proposal: Filter steps 1 to 4), all from one immutable `View`:

    pod → resolve → no Longhorn volumes?            → every node
                  → tied to some nodes?             → the others are out (strict-local, a claim in use)
                  → no room anywhere for a volume that needs no local room? → no node
                  → homes of every local volume?    → only those (homes.py)
                  → reserved for another pod?       → out (the proposal, Filter step 4)
                  → nodes with a replica of the pod: one by one (local.py); all others by profile (profiles.py)

`explain_nodes` runs this very decision and adds plans and numbers per node, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from scheduler_core.cluster.view import View
from scheduler_core.cooperative import Steps
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Beside, Joint, Own
from scheduler_core.evaluation.disk_profile import Profile, attach_blocked
from scheduler_core.evaluation.equivalence_cache import Question, Standing, among_others, jointly
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.evaluation.single_node import local_node, stop
from scheduler_core.extender.explain import describe
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.model.kube import Pod
from scheduler_core.model.longhorn import STRICT_LOCAL
from scheduler_core.model.verdict import Reason, Verdict
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import STEPS_PER_REQUEST, Budget
from scheduler_core.volumes.local_replicas import homes
from scheduler_core.volumes.requirements import Needs, needs
from scheduler_core.volumes.resolve import PodVolume, Resolution, is_local, resolve
from scheduler_core.worth import worth

# Writing out plans and what is missing takes longer than deciding, and nobody waits for it but the one who asked.
STEPS_TO_EXPLAIN: Final = 4


# What may be so only because of what was offered to others.
_WORTH_WAITING: Final = frozenset({Reason.SPOKEN_FOR, Reason.ORDER_UNSAFE})
_TAKES_NOTHING: Final = frozenset({Reason.NO_VOLUMES, Reason.HOME, Reason.ATTACHABLE})


class Packing(StrEnum):
    """Which nodes with room are offered.

    AUTO: only order-safe ones where there are any, otherwise all (Longhorn's proposal). ORDER_SAFE: only those. EXACT: all.
    """

    AUTO = "auto"
    ORDER_SAFE = "order-safe"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Options:
    """What an administrator may choose about deciding.

    Attributes:
        packing: which nodes with room are offered
        require_best_effort: whether a best-effort volume needs local room, or only prefers it
        steps: how much searching one request may do (`packing.budget`)
    """

    packing: Packing = Packing.AUTO
    require_best_effort: bool = True
    steps: int = STEPS_PER_REQUEST

    @property
    def examines(self) -> bool:
        """Whether order safety matters to what is offered."""
        return self.packing is not Packing.EXACT


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request: the pod's volumes, and one reason per candidate in the order asked.

    Attributes:
        gave_up: how many searches, for a packing or for order safety, ended without an answer
        besides: by node, the volumes of others that were counted
        kinds, profiles: of the volumes that take room where the pod goes, and by node what it has for such; empty if nobody else counts
    """

    resolution: Resolution
    candidates: Sequence[str]
    reasons: Sequence[Reason]
    gave_up: int = 0
    besides: Mapping[str, Beside] = field(default_factory=dict)
    kinds: tuple[Ask, ...] = ()
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    @property
    def takes_space(self) -> bool:
        """Whether the pod will take room somewhere that nothing in the cluster shows yet."""
        return any(reason.fits and reason not in _TAKES_NOTHING for reason in self.reasons)

    @property
    def prefers_space(self) -> bool:
        """Whether a volume of the pod will take room where the pod goes if there is some, though it needs none."""
        prefers = any(not volume.local for volume in settling(self.resolution))
        return prefers and any(reason.fits for reason in self.reasons)

    @property
    def roaming(self) -> tuple[PodVolume, ...]:
        """The volumes that will take room on a node nobody knows yet; none if the pod fits nowhere."""
        unplaced = self.resolution.unplaced
        return unplaced if unplaced and any(reason.fits for reason in self.reasons) else ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with one verdict per candidate, in the order asked."""

    decision: Decision
    verdicts: Sequence[Verdict]


@dataclass(frozen=True, slots=True)
class Others:
    """What other pods have: nodes that take no new volumes now, and volumes that are bound for some nodes.

    Attributes:
        reserved: nodes (the proposal's reservations); a pod whose replicas are there already may return to them
        demands: derived from the same view
        ledger: what was offered to pods; an offer's volumes are `PodVolume`s
        joint: remembers what it saw of nodes; None: the pod is judged alone
        standing: remembers what nodes were worth to pods like this one; None: nothing does
    """

    reserved: frozenset[str] = frozenset()
    demands: Demands | None = None
    ledger: Ledger = field(default_factory=Ledger)
    joint: Joint | None = None
    standing: Standing | None = None


NOBODY: Final = Others()


@dataclass(frozen=True, slots=True)
class _Request:
    """What every stage of a request reads."""

    pod: Pod
    view: View
    memory: Memory
    resolution: Resolution
    needs: Needs
    candidates: Sequence[str]
    options: Options
    budget: Budget
    others: Others


def filter_nodes(
    pod: Pod, candidates: Sequence[str], memory: Memory, options: Options, others: Others = NOBODY
) -> Steps[Decision]:
    """Which of the candidate nodes can hold all the pod's Longhorn volumes, beside what others have, each with its reason.

    Raises:
        ResolutionError: an object the pod names does not exist or contradicts it
    """
    view = memory.view
    resolution = resolve(pod, view, require_best_effort=options.require_best_effort)
    wanted = needs(resolution.local, resolution.volumes)
    budget = Budget(options.steps)
    request = _Request(pod, view, memory, resolution, wanted, candidates, options, budget, others)
    reasons, besides = yield from _reasons(request)
    decision = Decision(resolution, candidates, reasons, budget.gave_up, besides)
    if others.joint is None or not (decision.takes_space or decision.prefers_space):
        return decision
    return (yield from _with_profiles(request, decision))


def settling(resolution: Resolution) -> tuple[PodVolume, ...]:
    """The volumes that take room where the pod goes: those that need it there, and those that only prefer it."""
    return tuple(volume for volume in resolution.volumes if is_local(volume.volume))


def _with_profiles(request: _Request, decision: Decision) -> Steps[Decision]:
    """With what an offer is made by."""
    resolution, others, besides = request.resolution, request.others, decision.besides
    kinds = request.needs.kinds
    if decision.prefers_space:
        kinds = needs(settling(resolution), resolution.volumes).kinds
        if others.joint is not None and others.demands is not None and not request.needs.sizes:
            own, counted = Own.of(request.pod.uid, resolution.volumes), (others.demands, others.ledger)
            besides = yield from others.joint.besides(request.memory, *counted, request.candidates, own, request.budget)
    table = yield from request.memory.table(kinds)
    return replace(decision, besides=besides, kinds=kinds.asks, profiles=table.profiles)


def explain_nodes(
    pod: Pod, candidates: Sequence[str], memory: Memory, options: Options, others: Others = NOBODY
) -> Steps[Explanation]:
    """`filter_nodes` with the numbers: for each candidate a plan, or what is missing.

    Raises:
        ResolutionError: as filter_nodes
    """
    decision = yield from filter_nodes(pod, candidates, memory, options, others)
    verdicts = []
    shares = Budget(STEPS_TO_EXPLAIN * options.steps).shares(len(candidates))
    for name, reason, share in zip(candidates, decision.reasons, shares, strict=True):
        beside = decision.besides.get(name)
        volumes = beside.volumes if beside else ()
        verdicts.append(describe(memory.view, decision.resolution, name, reason, share, volumes))
        yield
    return Explanation(decision, verdicts)


_Besides = Mapping[str, Beside]
_ALONE: Final[_Besides] = {}


def _reasons(request: _Request) -> Steps[tuple[list[Reason], _Besides]]:
    """The reason of each candidate, and what was counted beside the pod on which nodes."""
    if not request.resolution.volumes:
        return [Reason.NO_VOLUMES] * len(request.candidates), _ALONE
    decided = _tied_elsewhere(request)
    if not (yield from _room_in_cluster(request)):
        return [Reason.NO_ROOM_IN_CLUSTER] * len(request.candidates), _ALONE
    returned = _homes(request, decided)
    if returned:
        elsewhere = Reason.HOME_ELSEWHERE
        home = [Reason.HOME if name in returned else decided.get(name, elsewhere) for name in request.candidates]
        return home, _ALONE
    stopped = stop(request.view, request.resolution)
    if stopped is not None:
        return [decided.get(name, stopped.reason) for name in request.candidates], _ALONE
    if request.needs.sizes:
        kept, reserved = Reason.NODE_RESERVED, request.others.reserved
        decided |= {name: kept for name in request.candidates if name in reserved and name not in decided}
    question = _question(request)
    besides: _Besides = yield from _with_replicas(request, decided, question)
    names = [name for name in request.candidates if name not in decided] if decided else request.candidates
    if question is None:
        reasons = yield from _alone(request, names)
    else:
        reasons, counted = yield from (request.others.standing or Standing()).judge(question, names)
        besides = counted.joined(besides)
    if decided:
        decided |= zip(names, reasons, strict=True)
        reasons = [decided[name] for name in request.candidates]
    if request.options.packing is Packing.AUTO:
        reasons = _offered(reasons)
    if question is not None:
        safe_only = request.options.packing is Packing.ORDER_SAFE
        reasons = yield from _waiting(question, request.candidates, reasons, besides, examine=safe_only)
    return reasons, besides


def _question(request: _Request) -> Question | None:
    """What is asked of nodes beside all others; None where they do not count, or the pod needs no space."""
    others = request.others
    if others.joint is None or others.demands is None or not request.needs.sizes:
        return None
    return Question(
        memory=request.memory,
        demands=others.demands,
        ledger=others.ledger,
        joint=others.joint,
        own=Own.of(request.pod.uid, request.resolution.volumes),
        resolution=request.resolution,
        needs=request.needs,
        examine=request.options.examines,
        budget=request.budget,
    )


def _alone(request: _Request, names: Sequence[str]) -> Steps[list[Reason]]:
    """What nodes are worth if nobody else counts."""
    table = yield from request.memory.table(request.needs.kinds)
    profiles = table.of(names)
    found = yield from worth(request.memory, request.needs, profiles, request.budget, examine=request.options.examines)
    return [found[profile] for profile in profiles]


def _waiting(
    question: Question, candidates: Sequence[str], reasons: list[Reason], besides: _Besides, *, examine: bool
) -> Steps[list[Reason]]:
    """Where nothing fits: the nodes that would, if what is only offered to others went elsewhere.

    With `examine` such a node must be order-safe then, because no other is offered.
    """
    if any(reason.fits for reason in reasons) or _WORTH_WAITING.isdisjoint(reasons):
        return reasons
    groups: dict[int, list[str]] = {}
    for name, reason in zip(candidates, reasons, strict=True):
        beside = besides.get(name) if reason in _WORTH_WAITING else None
        if beside is not None and beside.offered:
            groups.setdefault(beside.settled_group, []).append(name)
    freed: set[str] = set()
    for names in groups.values():
        found = yield from jointly(question, names, besides[names[0]].demanded, examine=examine)
        freed |= {name for name, reason in found.items() if reason.fits}
    return [Reason.WAITING if name in freed else reason for name, reason in zip(candidates, reasons, strict=True)]


def _offered(reasons: list[Reason]) -> list[Reason]:
    """With packing AUTO: nodes where an unlucky order fails are offered if there are no others."""
    if Reason.ORDER_UNSAFE not in reasons or Reason.ROOM in reasons:
        return reasons
    return [Reason.ROOM if reason is Reason.ORDER_UNSAFE else reason for reason in reasons]


def _tied_elsewhere(request: _Request) -> dict[str, Reason]:
    """The candidates that are out because a volume is tied to other nodes."""
    out: dict[str, Reason] = {}
    for nodes, reason in ties(request.resolution):
        out |= {name: reason for name in request.candidates if name not in nodes and name not in out}
    return out


def ties(resolution: Resolution) -> Iterable[tuple[frozenset[str], Reason]]:
    """Sets of nodes outside which the pod cannot run, and why.

    A strict-local volume lives where its replica is; an exclusive claim is where another live pod uses it.
    """
    for volume in resolution.volumes:
        if volume.in_use_on:
            yield volume.in_use_on, Reason.CLAIM_IN_USE
    for volume in resolution.local:
        placed = frozenset(replica.node_id for replica in volume.replicas if replica.node_id)
        if volume.volume.data_locality == STRICT_LOCAL and placed:
            yield placed, Reason.STRICT_LOCAL_ELSEWHERE


def _homes(request: _Request, out: Mapping[str, Reason]) -> frozenset[str]:
    """The candidates to return to: all local volumes have a home there, and all volumes can be attached."""
    view = request.view
    candidates = {name for name in _holding(request, out) if attach_blocked(view, request.needs.kinds, name) is None}
    return homes(request.resolution.local, candidates, view.cluster)


def _holding(request: _Request, out: Mapping[str, Reason]) -> list[str]:
    """The candidates that hold a replica of a local volume."""
    touched = {replica.node_id for volume in request.resolution.local for replica in volume.replicas}
    return [name for name in request.candidates if name in touched and name not in out] if touched else []


def _room_in_cluster(request: _Request) -> Steps[bool]:
    """Whether each volume that needs no local room, and is nowhere yet, has some disk in the cluster."""
    for volume in request.resolution.unplaced:
        if not (yield from _somewhere(request, volume)):
            return False
    return True


def _somewhere(request: _Request, volume: PodVolume) -> Steps[bool]:
    alone = needs([volume], ())
    table = yield from request.memory.table(alone.kinds)
    found = yield from worth(request.memory, alone, list(table.profiles.values()), request.budget, examine=False)
    return any(found[profile].fits for profile in table.profiles.values())


def _with_replicas(
    request: _Request, decided: dict[str, Reason], question: Question | None
) -> Steps[dict[str, Beside]]:
    """Decides the candidates that hold a replica of a local volume, one by one; what others will take there."""
    names = _holding(request, decided)
    besides: dict[str, Beside] = {}
    if question is not None and names:
        others = question.demands, question.ledger
        besides = yield from question.joint.besides(request.memory, *others, names, question.own, request.budget)
    shares = request.budget.shares(len(names) + 1)
    for name, share in zip(names, shares, strict=False):
        beside = besides[name].volumes if name in besides else ()
        node = local_node(request.view, request.resolution, name, beside)
        reason = node.reason(share)
        if beside and not reason.fits and local_node(request.view, request.resolution, name).reason(share).fits:
            reason = among_others(reason)
        if reason is Reason.ROOM and request.options.examines and node.safety(share).answer is not Answer.YES:
            reason = Reason.ORDER_UNSAFE
        decided[name] = reason
        yield
    request.budget.take_back(shares)
    return besides
