"""`filter_nodes` and `explain_nodes`: the only composition of resolving, restart, node and disk rules, and packing.

Data flow of one request (seed: Filter steps 1 to 4), all from one immutable `View`:

    pod → resolve → no Longhorn volumes?            → every node
                  → tied to some nodes?             → the others are out (strict-local, a claim in use)
                  → homes of every local volume?    → only those (homes.py)
                  → no room anywhere for a volume that needs no local room? → no node
                  → nodes with a replica of the pod: one by one (local.py); all others by profile (profiles.py)

`explain_nodes` runs this very decision and adds plans and numbers per node, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scheduler_core.explanation import describe
from scheduler_core.homes import homes
from scheduler_core.local import LocalNode, local_node
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


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one request: the pod's volumes, and one reason per candidate in the order asked.

    `gave_up` counts the searches that ended without an answer; their nodes do not fit.
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


def filter_nodes(pod: Pod, candidates: Sequence[str], memory: Memory, options: Options) -> Steps[Decision]:
    """Which of the candidate nodes can hold all the pod's Longhorn volumes, each with its reason.

    Raises:
        ResolutionError: an object the pod names does not exist or contradicts it
    """
    view = memory.view
    resolution = resolve(pod, view, require_best_effort=options.require_best_effort)
    wanted = needs(resolution.local, resolution.volumes)
    reasons = yield from _reasons(
        _Request(view, memory, resolution, wanted, candidates, options, Budget(options.steps))
    )
    return Decision(resolution, candidates, reasons, reasons.count(Reason.UNDECIDED))


def explain_nodes(pod: Pod, candidates: Sequence[str], memory: Memory, options: Options) -> Steps[Explanation]:
    """`filter_nodes` with the numbers: for each candidate a plan, or what is missing.

    Raises:
        ResolutionError: as filter_nodes
    """
    decision = yield from filter_nodes(pod, candidates, memory, options)
    verdicts = []
    for name, reason in zip(candidates, decision.reasons, strict=True):
        verdicts.append(describe(memory.view, decision.resolution, name, reason, Budget(options.steps)))
        yield
    return Explanation(decision, verdicts)


def _reasons(request: _Request) -> Steps[list[Reason]]:
    if not request.resolution.volumes:
        return [Reason.NO_VOLUMES] * len(request.candidates)
    decided = _tied_elsewhere(request)
    returned = _homes(request, decided)
    if returned:
        elsewhere = Reason.HOME_ELSEWHERE
        return [Reason.HOME if name in returned else decided.get(name, elsewhere) for name in request.candidates]
    if not (yield from _room_in_cluster(request)):
        return [Reason.NO_ROOM_IN_CLUSTER] * len(request.candidates)
    special = _with_replicas(request, decided)
    names = request.candidates
    if decided or special:
        names = [name for name in names if name not in decided and name not in special]
    table = yield from request.memory.table(request.needs.kinds)
    profiles = table.of(names)
    by_profile = yield from _verdicts(request, request.needs, set(profiles))
    if request.options.packing is not Packing.EXACT:
        by_profile = yield from _only_safe(request, by_profile, set(profiles), special)
    if not decided and not special:
        return [by_profile[profile] for profile in profiles]
    decided |= {name: reason for name, (_, reason) in special.items()}
    decided |= zip(names, (by_profile[profile] for profile in profiles), strict=True)
    return [decided[name] for name in request.candidates]


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
    local = request.resolution.local
    if not any(volume.replicas for volume in local):
        return frozenset()
    view = request.view
    candidates = {name for name in request.candidates if name not in out}
    found = homes(local, candidates, view.snapshot.longhorn_nodes)
    return frozenset(name for name in found if attach_blocked(view, request.needs.kinds, name) is None)


def _room_in_cluster(request: _Request) -> Steps[bool]:
    """Whether each volume that needs no local room, and is nowhere yet, has some disk in the cluster."""
    for volume in request.resolution.remote:
        if not any(replica.node_id for replica in volume.replicas) and not (yield from _somewhere(request, volume)):
            return False
    return True


def _somewhere(request: _Request, volume: PodVolume) -> Steps[bool]:
    alone = needs([volume], ())
    table = yield from request.memory.table(alone.kinds)
    verdicts = yield from _verdicts(request, alone, set(table.profiles.values()))
    return any(verdicts[profile].fits for profile in table.profiles.values())


_Special = dict[str, tuple[LocalNode, Reason]]


def _with_replicas(request: _Request, out: Mapping[str, Reason]) -> _Special:
    """The candidates that hold a replica of a local volume, decided one by one."""
    touched = {replica.node_id for volume in request.resolution.local for replica in volume.replicas}
    names = [name for name in request.candidates if name in touched and name not in out] if touched else []
    shares = request.budget.shares(len(names) + 1)
    found: _Special = {}
    for name, share in zip(names, shares, strict=False):
        node = local_node(request.view, request.resolution, name)
        found[name] = (node, node.reason(share))
    request.budget.take_back(shares)
    return found


def _verdicts(request: _Request, wanted: Needs, profiles: set[Profile]) -> Steps[Mapping[Profile, Reason]]:
    """The reason for each profile: remembered, or packed now. Giving up is not remembered: others may have more to spend."""
    known = request.memory.known(wanted)
    unknown = list(profiles - known.reasons.keys())
    if not unknown:
        return known.reasons
    reasons = yield from reasons_for(wanted, unknown, request.budget)
    found = dict(zip(unknown, reasons, strict=True))
    known.add(found)
    return {**known.reasons, **found} if Reason.UNDECIDED in reasons else known.reasons


def _only_safe(
    request: _Request, reasons: Mapping[Profile, Reason], profiles: set[Profile], special: _Special
) -> Steps[Mapping[Profile, Reason]]:
    """Refuses nodes where an unlucky placement order fails: all such, or with AUTO only if another node is safe.

    Refuses the nodes in `special` there, and returns the reasons of the profiles. What could not be proven counts as
    unsafe.
    """
    known = request.memory.known(request.needs)
    room = profiles & known.room
    single = [name for name, (_, reason) in special.items() if reason is Reason.ROOM]
    doubtful = list(room - known.safe - known.unsafe)
    if doubtful:
        answers = yield from safeties_for(request.needs, doubtful, request.budget)
        known.safe.update(profile for profile, answer in zip(doubtful, answers, strict=True) if answer is Answer.YES)
        known.unsafe.update(profile for profile, answer in zip(doubtful, answers, strict=True) if answer is Answer.NO)
    shares = request.budget.shares(len(single))
    safe_names = {
        name for name, share in zip(single, shares, strict=True) if special[name][0].safety(share).answer is Answer.YES
    }
    request.budget.take_back(shares)
    unsafe = room - known.safe
    if request.options.packing is Packing.AUTO and not safe_names and len(unsafe) == len(room):
        return reasons
    for name in single:
        if name not in safe_names:
            special[name] = (special[name][0], Reason.ORDER_UNSAFE)
    return {**reasons, **dict.fromkeys(unsafe, Reason.ORDER_UNSAFE)} if unsafe else reasons
