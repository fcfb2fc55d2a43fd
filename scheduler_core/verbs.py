"""`filter_nodes` and `explain_nodes`: the only composition of resolving, restart, node and disk rules, and packing.

Data flow of one request (seed: Filter steps 1 to 4), all from one immutable `View`:

    pod → resolve → no Longhorn volumes?            → every node
                  → tied to some nodes?             → the others are out (strict-local, a claim in use)
                  → no room anywhere for a volume that needs no local room? → no node
                  → homes of every local volume?    → only those (homes.py)
                  → reserved for another pod?       → out (seed 002, step 4)
                  → nodes with a replica of the pod: one by one (local.py); all others by profile (profiles.py)

`explain_nodes` runs this very decision and adds plans and numbers per node, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from scheduler_core.explanation import describe
from scheduler_core.homes import homes
from scheduler_core.local import local_node, stop
from scheduler_core.memory import Memory
from scheduler_core.model.kube import Pod
from scheduler_core.model.longhorn import STRICT_LOCAL
from scheduler_core.needs import Needs, needs
from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import STEPS_PER_REQUEST, Budget
from scheduler_core.profiles import Profile, attach_blocked
from scheduler_core.resolve import PodVolume, Resolution, resolve
from scheduler_core.steps import Steps
from scheduler_core.together import reasons_for, safeties_for
from scheduler_core.verdict import Reason, Verdict
from scheduler_core.view import View

# Writing out plans and what is missing takes longer than deciding, and nobody waits for it but the one who asked.
STEPS_TO_EXPLAIN: Final = 4
NOT_RESERVED: Final[frozenset[str]] = frozenset()


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

    `gave_up` counts the searches, for a packing or for order safety, that ended without an answer.
    """

    resolution: Resolution
    candidates: Sequence[str]
    reasons: Sequence[Reason]
    gave_up: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision with one verdict per candidate, in the order asked."""

    decision: Decision
    verdicts: Sequence[Verdict]


@dataclass(frozen=True, slots=True)
class _Request:
    """What every stage of a request reads."""

    view: View
    memory: Memory
    resolution: Resolution
    needs: Needs
    candidates: Sequence[str]
    options: Options
    budget: Budget
    reserved: frozenset[str]


def filter_nodes(
    pod: Pod, candidates: Sequence[str], memory: Memory, options: Options, reserved: frozenset[str] = NOT_RESERVED
) -> Steps[Decision]:
    """Which of the candidate nodes can hold all the pod's Longhorn volumes, each with its reason.

    A `reserved` node takes no new volumes now; a pod whose replicas are there already may return to it.

    Raises:
        ResolutionError: an object the pod names does not exist or contradicts it
    """
    view = memory.view
    resolution = resolve(pod, view, require_best_effort=options.require_best_effort)
    wanted = needs(resolution.local, resolution.volumes)
    budget = Budget(options.steps)
    reasons = yield from _reasons(_Request(view, memory, resolution, wanted, candidates, options, budget, reserved))
    return Decision(resolution, candidates, reasons, budget.gave_up)


def explain_nodes(
    pod: Pod, candidates: Sequence[str], memory: Memory, options: Options, reserved: frozenset[str] = NOT_RESERVED
) -> Steps[Explanation]:
    """`filter_nodes` with the numbers: for each candidate a plan, or what is missing.

    Raises:
        ResolutionError: as filter_nodes
    """
    decision = yield from filter_nodes(pod, candidates, memory, options, reserved)
    verdicts = []
    shares = Budget(STEPS_TO_EXPLAIN * options.steps).shares(len(candidates))
    for name, reason, share in zip(candidates, decision.reasons, shares, strict=True):
        verdicts.append(describe(memory.view, decision.resolution, name, reason, share))
        yield
    return Explanation(decision, verdicts)


def _reasons(request: _Request) -> Steps[list[Reason]]:
    if not request.resolution.volumes:
        return [Reason.NO_VOLUMES] * len(request.candidates)
    decided = _tied_elsewhere(request)
    if not (yield from _room_in_cluster(request)):
        return [Reason.NO_ROOM_IN_CLUSTER] * len(request.candidates)
    returned = _homes(request, decided)
    if returned:
        elsewhere = Reason.HOME_ELSEWHERE
        return [Reason.HOME if name in returned else decided.get(name, elsewhere) for name in request.candidates]
    stopped = stop(request.view, request.resolution)
    if stopped is not None:
        return [decided.get(name, stopped.reason) for name in request.candidates]
    if request.needs.sizes:
        kept = Reason.NODE_RESERVED
        decided |= {name: kept for name in request.candidates if name in request.reserved and name not in decided}
    decided |= yield from _with_replicas(request, decided)
    names = [name for name in request.candidates if name not in decided] if decided else request.candidates
    table = yield from request.memory.table(request.needs.kinds)
    profiles = table.of(names)
    worth = yield from _worth(request, request.needs, profiles, request.options.examines)
    reasons = [worth[profile] for profile in profiles]
    if decided:
        decided |= zip(names, reasons, strict=True)
        reasons = [decided[name] for name in request.candidates]
    return _offered(reasons) if request.options.packing is Packing.AUTO else reasons


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
    for volume in request.resolution.remote:
        if not any(replica.node_id for replica in volume.replicas) and not (yield from _somewhere(request, volume)):
            return False
    return True


def _somewhere(request: _Request, volume: PodVolume) -> Steps[bool]:
    alone = needs([volume], ())
    table = yield from request.memory.table(alone.kinds)
    worth = yield from _worth(request, alone, list(table.profiles.values()), examine=False)
    return any(worth[profile].fits for profile in table.profiles.values())


def _with_replicas(request: _Request, out: Mapping[str, Reason]) -> Steps[dict[str, Reason]]:
    """The candidates that hold a replica of a local volume, decided one by one."""
    names = _holding(request, out)
    shares = request.budget.shares(len(names) + 1)
    found = {}
    for name, share in zip(names, shares, strict=False):
        node = local_node(request.view, request.resolution, name)
        reason = node.reason(share)
        if reason is Reason.ROOM and request.options.examines and node.safety(share).answer is not Answer.YES:
            reason = Reason.ORDER_UNSAFE
        found[name] = reason
        yield
    request.budget.take_back(shares)
    return found


def _worth(
    request: _Request,
    wanted: Needs,
    profiles: Sequence[Profile],
    examine: bool,  # noqa: FBT001
) -> Steps[Mapping[Profile, Reason]]:
    """What each profile is worth to these needs: remembered, or found out now.

    With `examine` a profile has ROOM only if every placement order is proven to succeed, otherwise it is ORDER_UNSAFE. What
    the budget did not suffice for is not remembered, because another request may have more to spend.
    """
    known = request.memory.known(wanted, examine)
    unknown = [profile for profile in profiles if profile not in known] if known else profiles
    if not unknown:
        return known
    unknown = list(dict.fromkeys(unknown))
    reasons = yield from reasons_for(wanted, unknown, request.budget)
    found = dict(zip(unknown, reasons, strict=True))
    passing = set()
    if Reason.UNDECIDED in reasons:
        passing = {profile for profile, reason in found.items() if reason is Reason.UNDECIDED}
    if examine and Reason.ROOM in reasons:
        passing |= yield from _examined(request, wanted, found)
    known.update(found if not passing else ((key, found[key]) for key in unknown if key not in passing))
    return {**known, **found} if passing else known


def _examined(request: _Request, wanted: Needs, found: dict[Profile, Reason]) -> Steps[set[Profile]]:
    """Turns ROOM into ORDER_UNSAFE where some order fails or none was proven to; returns the profiles left unproven."""
    room = [profile for profile, reason in found.items() if reason is Reason.ROOM]
    answers = yield from safeties_for(wanted, room, request.budget)
    if answers.count(Answer.YES) == len(answers):
        return set()
    doubtful = {profile: answer for profile, answer in zip(room, answers, strict=True) if answer is not Answer.YES}
    found.update(dict.fromkeys(doubtful, Reason.ORDER_UNSAFE))
    return {profile for profile, answer in doubtful.items() if answer is Answer.UNDECIDED}
