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
from typing import Final

from scheduler_core.explanation import describe
from scheduler_core.homes import homes
from scheduler_core.local import local_node
from scheduler_core.memory import Memory
from scheduler_core.model.kube import Pod
from scheduler_core.model.longhorn import STRICT_LOCAL
from scheduler_core.needs import Needs, needs
from scheduler_core.packing.budget import STEPS_PER_REQUEST, Budget
from scheduler_core.profiles import Profile, attach_blocked
from scheduler_core.resolve import PodVolume, Resolution, resolve
from scheduler_core.steps import Steps
from scheduler_core.together import quick_reasons, reason_for
from scheduler_core.verdict import Reason, Verdict
from scheduler_core.view import View

_PROFILES_PER_PAUSE: Final = 256
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Options:
    """What an administrator may choose about deciding.

    Attributes:
        require_best_effort: whether a best-effort volume needs local room, or only prefers it
        steps: how much searching one request may do (`packing.budget`)
    """

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
    budget: Budget


def filter_nodes(pod: Pod, candidates: Sequence[str], memory: Memory, options: Options) -> Steps[Decision]:
    """Which of the candidate nodes can hold all the pod's Longhorn volumes, each with its reason.

    Raises:
        ResolutionError: an object the pod names does not exist or contradicts it
    """
    view = memory.view
    resolution = resolve(pod, view, require_best_effort=options.require_best_effort)
    wanted = needs(resolution.local, resolution.volumes)
    budget = Budget(options.steps)
    reasons = yield from _reasons(_Request(view, memory, resolution, wanted, candidates, budget))
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
        return [Reason.HOME if name in returned else Reason.HOME_ELSEWHERE for name in request.candidates]
    if not (yield from _room_in_cluster(request)):
        return [Reason.NO_ROOM_IN_CLUSTER] * len(request.candidates)
    decided |= _with_replicas(request, decided)
    if not decided:
        return (yield from _by_profile(request, request.candidates))
    rest = [name for name in request.candidates if name not in decided]
    decided |= zip(rest, (yield from _by_profile(request, rest)), strict=True)
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
    verdicts = yield from _verdicts(request, alone, list(dict.fromkeys(table.profiles.values())))
    return any(verdict.fits for verdict in verdicts.values())


def _with_replicas(request: _Request, out: Mapping[str, Reason]) -> dict[str, Reason]:
    """The candidates that hold a replica of a local volume, decided one by one."""
    touched = {replica.node_id for volume in request.resolution.local for replica in volume.replicas}
    names = [name for name in request.candidates if name in touched and name not in out]
    shares = request.budget.shares(len(names) + 1)
    found = {
        name: local_node(request.view, request.resolution, name).reason(share)
        for name, share in zip(names, shares, strict=False)
    }
    request.budget.take_back(shares)
    return found


def _by_profile(request: _Request, names: Sequence[str]) -> Steps[list[Reason]]:
    table = yield from request.memory.table(request.needs.kinds)
    profiles = table.of(names)
    verdicts = yield from _verdicts(request, request.needs, profiles)
    return [verdicts[profile] for profile in profiles]


def _verdicts(request: _Request, wanted: Needs, profiles: Sequence[Profile]) -> Steps[Mapping[Profile, Reason]]:
    """The reason for each profile: remembered, or packed now; what needs a search gets an equal share of the budget."""
    known = request.memory.verdicts(wanted)
    unknown = list(set(profiles) - known.keys())
    for start in range(0, len(unknown), _PROFILES_PER_PAUSE):
        some = unknown[start : start + _PROFILES_PER_PAUSE]
        known.update(zip(some, quick_reasons(wanted, some), strict=True))
        yield
    hard = [profile for profile in unknown if known[profile] is Reason.UNDECIDED]
    if not hard:
        return known
    found = yield from _searched(request, wanted, sorted(hard, key=lambda profile: profile.key))
    return {**known, **found}


def _searched(request: _Request, wanted: Needs, hard: list[Profile]) -> Steps[dict[Profile, Reason]]:
    """Profiles that need a search; what quick ones leave of their shares goes to the others in another round.

    An answer that was found is remembered; giving up is not, because another request may have more to spend.
    """
    known = request.memory.verdicts(wanted)
    found = dict.fromkeys(hard, Reason.UNDECIDED)
    for profile in hard:
        del known[profile]
    for _ in range(_ROUNDS):
        shares = request.budget.shares(len(hard))
        for profile, share in zip(hard, shares, strict=True):
            found[profile] = reason_for(wanted, profile, share)
            yield
        request.budget.take_back(shares)
        known.update((profile, reason) for profile, reason in found.items() if reason is not Reason.UNDECIDED)
        hard = [profile for profile in hard if found[profile] is Reason.UNDECIDED]
        if not hard:
            break
    return found
