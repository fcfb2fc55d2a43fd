"""What is offered of a decision, and what the cluster shows of pods that have offers.

Data flow: a decision → `make_offer` → some of the nodes that fit (`offered_nodes.py`), for the ledger, and the decision as it is answered.
A view → `observe` → the ledger with the pod's progress. A decision about preemption → `make_hold` → nodes where it may make room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from scheduler_core.caches import ChangeLog, nodes_changed_since
from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import (
    Competing,
    Contenders,
    Decision,
    FilterOptions,
    resolve_candidates,
    volumes_on_pod_node,
    volumes_to_offer,
)
from scheduler_core.decide.offered_nodes import choose_nodes
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.handover_record import unschedulable_digest
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import (
    NodeSelected,
    ObservedPod,
    Offered,
    OffersRestored,
    Outcome,
    PodGone,
    RecordedOffer,
)
from scheduler_core.volumes.by_node import merge_resolutions
from scheduler_core.volumes.existing_replicas import decided_node
from scheduler_core.volumes.resolve import PodVolume

Moment = tuple[ClusterState, Contenders]
"""What a decision was made from."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The ledger after a look at one pod."""

    ledger: Ledger
    outcomes: tuple[Outcome, ...]
    seen: bool  # whether some view so far had the pod


def make_offer(pod: Pod, decision: Decision, view: View, competing: int, recent: int = 0) -> tuple[Offered, Decision]:
    """Returns a pod's offer, and the decision as answered; `competing` other offers are outstanding, and `recent` were
    made lately in a burst.
    """
    volumes = volumes_to_offer(decision.resolution)
    on_pod_node = volumes_on_pod_node(decision.resolution)
    offered = Offered(
        pod=observed_pod(_newer(pod, view)),
        nodes=frozenset(),
        selected_node=view.selected_node(pod),
        unplaced_volumes=tuple(volume for volume in decision.unplaced_volumes if volume not in on_pod_node),
    )
    if not decision.needs_nodes:
        return offered, decision
    fitting = decision.fitting_nodes
    takes_space = decision.takes_space or decision.prefers_space
    nodes = choose_nodes(decision, view, competing, recent) if takes_space else frozenset(fitting)
    if len(nodes) == len(fitting):
        return replace(offered, nodes=nodes, volumes=volumes), decision
    left_out = frozenset(fitting) - nodes
    return replace(offered, nodes=nodes, volumes=volumes), _with_reason(decision, left_out, Reason.NOT_OFFERED)


def make_hold(pod: Pod, decision: Decision, view: View) -> Offered:
    """Returns the hold of a pod for which preemption may make room."""
    return Offered(
        pod=observed_pod(_newer(pod, view)),
        # kube-scheduler chooses one of the nodes that fit and nominates the pod to it.
        nodes=frozenset(decision.fitting_nodes if decision.takes_space else ()),
        volumes=volumes_on_pod_node(decision.resolution),
        selected_node=view.selected_node(pod),
        priority=pod.priority,
    )


def stale_nodes(decision: Decision, before: Moment, after: Moment) -> frozenset[str]:
    """Names of fitting nodes that changed since the decision."""
    if before[0].view.version == after[0].view.version:
        return frozenset()
    changed = nodes_changed_since(_changelogs(before), _changelogs(after))
    old = _facts(before)
    new = _facts(after)
    return frozenset(
        name
        for name, reason in zip(decision.candidates, decision.reasons, strict=True)
        if (changed is None or name in changed)
        and reason.fits
        and any(first.get(name) is not second.get(name) for first, second in zip(old, new, strict=True))
    )


def _changelogs(moment: Moment) -> tuple[ChangeLog, ...]:
    state, contenders = moment
    demand = (contenders.demand.changelog,) if isinstance(contenders, Competing) else ()
    return state.profiles.changelog, *demand


def _facts(moment: Moment) -> tuple[Mapping[str, object], ...]:
    """Returns the values by node that a decision was made from; an unchanged value is the same object in the next view."""
    state, contenders = moment
    view = state.view
    demand = (contenders.demand.by_node,) if isinstance(contenders, Competing) else ()
    return view.indexes.free_space, view.snapshot.longhorn_nodes, view.snapshot.nodes or {}, *demand


def exclude(decision: Decision, names: frozenset[str]) -> Decision:
    """Returns the decision with these nodes marked WAITING, because it no longer holds for them."""
    return _with_reason(decision, names, Reason.WAITING) if names else decision


def _with_reason(decision: Decision, names: frozenset[str], reason: Reason) -> Decision:
    pairs = zip(decision.candidates, decision.reasons, strict=True)
    return replace(decision, reasons=[reason if name in names else before for name, before in pairs])


def observed_pod(pod: Pod) -> ObservedPod:
    """Returns a pod as the ledger reads it."""
    return ObservedPod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        version=pod.version,
        node_name=pod.node_name,
        nominated_node=pod.nominated_node,
        unschedulable=pod.unschedulable,
        ended=not pod.live,
    )


def observe(pod: Pod, view: View, ledger: Ledger, now: float, *, seen: bool) -> Observation:
    """Returns the ledger after what a view shows of a pod with an offer; `seen`: an earlier view had the pod."""
    current = current_pod(pod, view)
    events: list[ObservedPod | NodeSelected | PodGone] = []
    if current is not None:
        events.append(observed_pod(current))
        selected_node = view.selected_node(current)
        if selected_node:
            events.append(NodeSelected(pod.uid, selected_node))
    elif seen:
        # Before any view had the pod, its watch may be behind. Another pod of its name is its predecessor.
        events.append(PodGone(pod.uid))
    outcomes: tuple[Outcome, ...] = ()
    for event in events:
        ledger, more = step(ledger, event, now)
        outcomes += more
    return Observation(ledger, outcomes, seen or current is not None)


def current_pod(pod: Pod | ObservedPod, view: View) -> Pod | None:
    """Returns the pod as a view has it, None if the view does not have this very pod."""
    current = view.snapshot.pods.get((pod.namespace, pod.name))
    return current if current is not None and current.uid == pod.uid else None


def _newer(pod: Pod, view: View) -> Pod:
    """Returns the newer of the requested and the viewed pod. Either state is older than the offer."""
    current = current_pod(pod, view)
    return pod if current is None or current.version < pod.version else current


def undecided_pods(view: View) -> frozenset[str]:
    """UIDs of the view's pods without a decided node."""
    pods = view.snapshot.pods.values()
    return frozenset(pod.uid for pod in pods if pod.live and pod.volumes and not decided_node(pod, view))


def offer_to_restore(
    recorded: RecordedOffer, view: View, elapsed: float, options: FilterOptions, others: Iterable[PodVolume] = ()
) -> RecordedOffer | None:
    """Returns an offer as the previous leader recorded it, with the pod's volumes, or None if the pod is bound,
    finished or gone, or takes no space. `elapsed`: seconds that have passed at least since the record was made.
    `others`: the volumes of offers that are restored already.

    Raises:
        ResolutionError: the pod cannot be resolved
    """
    offered = recorded.offered
    if recorded.everywhere:
        offered = replace(offered, nodes=frozenset(view.snapshot.longhorn_nodes))
    pod = current_pod(offered.pod, view)
    if pod is None or not pod.live or pod.node_name:
        return None
    resolution = merge_resolutions(resolve_candidates(pod, sorted(offered.nodes), view, options, others))
    on_node = volumes_on_pod_node(resolution)
    volumes = volumes_to_offer(resolution) if offered.nodes else ()
    unplaced_volumes = tuple(volume for volume in resolution.unplaced if volume not in on_node)
    if not volumes and not unplaced_volumes:
        return None
    unchanged = unschedulable_digest(pod.unschedulable) == offered.pod.unschedulable
    offered_pod = replace(offered.pod, unschedulable=pod.unschedulable) if unchanged else offered.pod
    return replace(
        recorded,
        offered=replace(offered, pod=offered_pod, volumes=volumes, unplaced_volumes=unplaced_volumes),
        age=recorded.age + elapsed,
        unschedulable_age=_later(recorded.unschedulable_age, elapsed),
        narrowed_age=_later(recorded.narrowed_age, elapsed),
    )


def offers_on_node(
    recorded: Iterable[RecordedOffer], node: str, view: View, options: FilterOptions, now: float
) -> Ledger:
    """Returns a ledger of those recorded offers of a node that the view does not show as decided."""
    entries: list[RecordedOffer] = []
    volumes: list[Any] = []
    # In this order they were matched with existing PersistentVolumes.
    for entry in sorted(recorded, key=lambda entry: entry.number):
        if entry.everywhere or node in entry.offered.nodes:
            # A pod that names an object that is gone gets no volume.
            with suppress(ResolutionError):
                restored = offer_to_restore(entry, view, 0.0, options, volumes)
                if restored is not None:
                    entries.append(restored)
                    volumes += restored.offered.volumes
    return step(Ledger(), OffersRestored(tuple(entries), len(entries)), now)[0]


def _later(age: float | None, elapsed: float) -> float | None:
    return None if age is None else age + elapsed
