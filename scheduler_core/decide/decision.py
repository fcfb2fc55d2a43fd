"""The decision about one pod: its options, its contenders, and one reason per node.

`LoggedDecision` is a decision as the decision log keeps it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from scheduler_core.evaluation import cluster_state, competing_volumes, fit
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.budget import STEPS_PER_REQUEST
from scheduler_core.structs import Struct, field, replace
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.resolve import PodVolume, Resolution, is_local

_TAKES_NO_SPACE = frozenset({Reason.NO_VOLUMES, Reason.HOME, Reason.ATTACHABLE})


class Packing(StrEnum):
    """Which nodes with room are offered.

    AUTO: only stale-safe ones where there are any, otherwise order-safe ones, otherwise all (Longhorn's proposal). STALE_SAFE: only
    stale-safe ones. ORDER_SAFE: all order-safe ones, which include the former. EXACT: all.
    """

    AUTO = "auto"
    STALE_SAFE = "stale-safe"
    ORDER_SAFE = "order-safe"
    EXACT = "exact"

    def acceptable_reasons(self, reasons: Collection[Reason]) -> frozenset[Reason]:
        """Returns the `UNSAFE` reasons with which nodes are offered. `reasons` are those of all nodes."""
        if self is Packing.STALE_SAFE or (self is Packing.AUTO and Reason.ROOM in reasons):
            return frozenset()
        if self is Packing.ORDER_SAFE or (self is Packing.AUTO and Reason.STALE_UNSAFE in reasons):
            return frozenset({Reason.STALE_UNSAFE})
        return UNSAFE


class FilterOptions(Struct, frozen=True):
    """What an administrator may choose about decisions."""

    packing: Packing = Packing.AUTO  # which nodes with room are offered
    require_best_effort: bool = True  # whether a best-effort volume needs local space, or only prefers it
    steps: int = STEPS_PER_REQUEST  # how many search steps one request may use (`packing/budget.py`)
    # Whether the scheduler binds unbound claims to existing PersistentVolumes first, as kube-scheduler does.
    match_volumes: bool = True
    # Whether order safety and stale safety are examined even if they do not decide which nodes are offered.
    rank_safety: bool = False
    guarded: bool = False  # whether the placement guard keeps the plan of every node

    def with_guard(self) -> "FilterOptions":
        """Returns the options while the placement guard keeps the plan of every node."""
        # The guard makes every node with a packing safe. An administrator asked for the other modes.
        return replace(self, guarded=True, packing=Packing.EXACT if self.packing is Packing.AUTO else self.packing)

    @property
    def examines_safety(self) -> bool:
        return self.rank_safety or self.packing is not Packing.EXACT


class Competing(Struct, frozen=True):
    """Demand and offers of other pods, whose volumes are packed jointly with the pod's."""

    demand: DemandIndex  # derived from the view that the pod is evaluated on
    ledger: Ledger  # the outstanding offers; an offer's volumes are `PodVolume`s
    contention: Contention  # caches the competitors of each node
    equivalence: EquivalenceCache  # caches the results for equivalent pods

    @classmethod
    def without_offers(cls, state: cluster_state.ClusterState) -> "Competing":
        return cls(state.demand, Ledger(), Contention(), EquivalenceCache())


# In place of competing pods, nodes that take no new volumes now, because they are reserved for other pods (the proposal's reservations).
# A pod whose replicas are already on such a node may still return to it.
Contenders = frozenset[str] | Competing
NO_CONTENDERS = frozenset[str]()  # the pod is evaluated alone


NO_SCORES: Mapping[str, int] = MappingProxyType({})


class Decision(Struct, frozen=True):
    """The answer to one request: the pod's volumes, and one reason per candidate in the order of the request."""

    resolution: Resolution
    candidates: Sequence[str]
    reasons: Sequence[Reason]
    gave_up: int = 0  # number of searches, for a packing or for order safety, that ended without an answer
    # By node, the volumes of other pods that were counted.
    competitors: Mapping[str, competing_volumes.Competitors] = {}
    # By node that fits and is not stale-safe, the reason that another packing mode gives, where that was examined.
    unsafe: Mapping[str, Reason] = {}
    # Classes of the volumes that take space on the pod's node; empty without competing pods.
    volume_classes: tuple[ReplicaRequest, ...] = ()
    # By node, what it offers to these classes; empty without competing pods.
    profiles: Mapping[str, fit.Profile] = {}
    # By node, the volumes that its reason is about, where nodes differ in them (`volumes/free_volume_matching.py`).
    resolutions: Mapping[str, Resolution] = {}
    # What the priorities of a policy file give to candidates; empty without a file.
    scores: Mapping[str, int] = field(default_factory=lambda: NO_SCORES)

    def resolution_on(self, name: str) -> Resolution:
        return self.resolutions.get(name, self.resolution)

    @property
    def fits(self) -> bool:
        return any(reason.fits for reason in self.reasons)

    @property
    def fitting_nodes(self) -> list[str]:
        pairs = zip(self.candidates, self.reasons, strict=True)
        return [name for name, reason in pairs if reason.fits]

    @property
    def unsafe_reasons(self) -> frozenset[Reason]:
        """Why some of the fitting nodes are not stale-safe, as far as that was examined."""
        if not self.unsafe:
            return frozenset()
        pairs = zip(self.candidates, self.reasons, strict=True)
        return frozenset(self.unsafe[name] for name, reason in pairs if reason.fits and name in self.unsafe)

    @property
    def takes_space(self) -> bool:
        """Whether the pod needs new space on its node."""
        return any(reason.fits and reason not in _TAKES_NO_SPACE for reason in self.reasons)

    @property
    def prefers_space(self) -> bool:
        """Whether a volume takes space on the pod's node if there is some, though it does not need it."""
        # False if the pod fits nowhere.
        return any(not volume.local for volume in volumes_on_pod_node(self.resolution)) and self.fits

    @property
    def unplaced_volumes(self) -> tuple[PodVolume, ...]:
        """The volumes that will take space on whichever node; empty if the pod fits nowhere."""
        unplaced = self.resolution.unplaced
        return unplaced if unplaced and self.fits else ()

    @property
    def needs_offer(self) -> bool:
        """Whether the pod will take what no object shows yet: space on some node, or a free PersistentVolume."""
        return self.needs_nodes or bool(self.unplaced_volumes)

    @property
    def needs_nodes(self) -> bool:
        # No other pod's claim can be bound to a free PersistentVolume that one of this pod's will be bound to.
        takes_persistent_volume = any(volume.persistent_volume for volume in self.resolution.volumes) and self.fits
        return self.takes_space or self.prefers_space or takes_persistent_volume


def volumes_on_pod_node(resolution: Resolution) -> tuple[PodVolume, ...]:
    """Returns the volumes that need or prefer space on the pod's node."""
    return tuple(volume for volume in resolution.volumes if is_local(volume.volume))


def volumes_to_offer(resolution: Resolution) -> tuple[PodVolume, ...]:
    return tuple(volume for volume in resolution.volumes if volume.persistent_volume or is_local(volume.volume))


# The worst reason counts on a node with several possible volumes. Refusals that may pass are less severe than all
# others. The others have the order of `Reason`: the order of the matches depends on the claims' names.
_PASSING = (
    Reason.NO_VOLUMES,
    Reason.HOME,
    Reason.ATTACHABLE,
    Reason.ROOM,
    Reason.STALE_UNSAFE,
    Reason.ORDER_UNSAFE,
    Reason.WAITING,
    Reason.SPOKEN_FOR,
    Reason.NEVER_SAFE,
)
_REFUSED = len(_PASSING)
_SEVERITY = {
    reason: severity
    for severity, reason in enumerate((*_PASSING, *(reason for reason in reversed(Reason) if reason not in _PASSING)))
}


def worst_by_node(parts: Sequence[tuple[Sequence[str], Sequence[Reason]]]) -> dict[str, tuple[int, Reason]]:
    """Returns each node's worst reason, and the part that it is of; a part has nodes and their reasons. A node in several parts fits only if it fits in all
    of them: kube-scheduler chooses one, and nothing shows which.
    """
    worst: dict[str, tuple[int, Reason]] = {}
    uncertain: set[str] = set()
    for index, (names, reasons) in enumerate(parts):
        for name, reason in zip(names, reasons, strict=True):
            earlier = worst.get(name)
            if earlier is None:
                worst[name] = (index, reason)
                continue
            if max(_SEVERITY[reason], _SEVERITY[earlier[1]]) >= _REFUSED and (_packs(reason) or _packs(earlier[1])):
                # The node is refused for good in one part and has a packing in another.
                uncertain.add(name)
            if _SEVERITY[reason] > _SEVERITY[earlier[1]]:
                worst[name] = (index, reason)
    return worst | {name: (worst[name][0], Reason.UNCERTAIN_VOLUME) for name in uncertain}


def _packs(reason: Reason) -> bool:
    return reason.fits or reason in UNSAFE or reason is Reason.NEVER_SAFE


def combine_decisions(decisions: Sequence[Decision], candidates: Sequence[str]) -> Decision:
    """Returns the decision about a pod that may have other volumes on some nodes, from those about each possible set."""
    worst = worst_by_node([(decision.candidates, decision.reasons) for decision in decisions])
    resolutions: dict[str, Resolution] = {}
    competitors: dict[str, competing_volumes.Competitors] = {}
    profiles: dict[str, fit.Profile] = {}
    classes: dict[ReplicaRequest, None] = {}
    for index, decision in enumerate(decisions):
        classes |= dict.fromkeys(decision.volume_classes)
        names = [name for name in decision.candidates if worst[name][0] == index]
        resolutions |= dict.fromkeys(names, decision.resolution)
        competitors |= {name: decision.competitors[name] for name in names if name in decision.competitors}
        profiles |= {name: decision.profiles[name] for name in names if name in decision.profiles}
    return Decision(
        resolution=Resolution(),
        candidates=candidates,
        reasons=[worst[name][1] for name in candidates],
        competitors=competitors,
        volume_classes=tuple(classes),
        profiles=profiles,
        resolutions=resolutions,
    )


# An ordinary entry takes 1.4 kB of memory, and recording it 13 µs. One whose texts all have their greatest length takes 8 kB, or 26 kB if
# each character takes four bytes.
MAX_DECISIONS = 1000
MAX_OFFERED = 10
# A policy's rules may have a text of their own for each node.
MAX_REASONS = 8
# A caller may send names of any length. The longest that Kubernetes accepts has 253 characters.
MAX_LENGTH = 253
# As long as the note of a Kubernetes Event.
MAX_ERROR_LENGTH = 1024


class DecisionOutcome(StrEnum):
    """How a decision ended.

    FITS: the pod fits some node. REFUSED: it fits none. ERROR: it cannot be decided about.
    """

    FITS = "fits"
    REFUSED = "refused"
    ERROR = "error"


class DecisionResult(Struct, frozen=True):
    """What a decision about a pod says. The log stores the parts that it has room for."""

    nodes: int  # number of nodes in the request
    fits: int = 0  # number of nodes that fit
    fitting: Iterable[str] = ()  # their names in the order of the request, read up to `MAX_OFFERED`
    # Numbers of other nodes by the text of their reason.
    refused: Mapping[str, int] = {}
    error: str = ""  # why there is no decision; "" if there is one
    seconds: float = 0.0  # from the decoded request to the decision
    observed: bool = False  # whether refusals are only counted and logged, so that the answer names every node


class LoggedDecision(Struct, frozen=True):
    """A decision in the log."""

    # Microseconds since 1970; greater than that of every earlier decision, also across restarts unless the clock is set
    # back.
    number: int
    time: datetime
    verb: str  # filter or preempt
    namespace: str
    pod: str
    uid: str
    nodes: int  # number of nodes in the request
    offered: tuple[str, ...]  # names of the first `MAX_OFFERED` nodes that fit
    fits: int  # number of nodes that fit
    # The `MAX_REASONS` most frequent texts of refusals, each with its number of nodes.
    refused: tuple[tuple[str, int], ...]
    error: str  # as in `DecisionResult`
    milliseconds: float
    observed: bool  # as in `DecisionResult`

    @property
    def outcome(self) -> DecisionOutcome:
        if self.error:
            return DecisionOutcome.ERROR
        return DecisionOutcome.FITS if self.fits else DecisionOutcome.REFUSED


class DecisionQuery(Struct, frozen=True):
    """Which decisions are listed; None selects all."""

    limit: int = MAX_DECISIONS  # the most entries of one page
    before: int | None = None  # only decisions with a smaller number
    namespace: str | None = None
    pod: str | None = None  # name without namespace
    outcome: DecisionOutcome | None = None

    def selects(self, entry: LoggedDecision) -> bool:
        """Whether a decision is listed."""
        return (
            (self.before is None or entry.number < self.before)
            and self.namespace in (None, entry.namespace)
            and self.pod in (None, entry.pod)
            and self.outcome in (None, entry.outcome)
        )


class DecisionPage(Struct, frozen=True):
    """Some decisions, the latest first."""

    entries: tuple[LoggedDecision, ...]
    next_before: int | None  # `DecisionQuery.before` of the next page; None if this is the last one
    recorded: int  # number of all decisions since this process began, those that are forgotten included
