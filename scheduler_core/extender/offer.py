"""What is offered of a decision, and what the cluster shows of pods that have offers.

Data flow: a decision → `make_offer` → some of the nodes that fit, for the ledger, and the decision as it is answered. A view → `observe` →
the ledger with the pod's progress. After a take-over: a view → `nominations_to_adopt` → what the previous leader's answers left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace, nsmallest

from scheduler_core.cluster.free_space import FreeSpace
from scheduler_core.cluster.view import View
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.competitors import Competitors
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import Competing, Contenders, Decision, volumes_on_pod_node
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.events import (
    NodeSelected,
    NominationAdopted,
    ObservedPod,
    Offered,
    PodGone,
)
from scheduler_core.offers.ledger import Ledger, Outcome, offer_width, step
from scheduler_core.volumes.pending_replicas import decided_node
from scheduler_core.volumes.resolve import resolve

Moment = tuple[ClusterState, Contenders]
"""What a decision was made from."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The ledger after a look at one pod.

    Attributes:
        seen: whether some view so far had the pod
    """

    ledger: Ledger
    outcomes: tuple[Outcome, ...]
    seen: bool


def make_offer(pod: Pod, decision: Decision, view: View, competing: int) -> tuple[Offered, Decision]:
    """Returns a pod's offer, and the decision as answered.

    `competing` other offers are outstanding.
    """
    volumes = volumes_on_pod_node(decision.resolution)
    offered = Offered(
        pod=observed_pod(_newer(pod, view)),
        nodes=frozenset(),
        selected_node=view.selected_node(pod),
        unplaced_volumes=tuple(volume for volume in decision.unplaced_volumes if volume not in volumes),
    )
    if not decision.takes_space and not decision.prefers_space:
        return offered, decision
    names = decision.candidates
    fitting = [position for position, reason in enumerate(decision.reasons) if reason.fits]
    count = offer_width(len(fitting), competing)
    if count == len(fitting):
        nodes = frozenset(names[position] for position in fitting)
        return replace(offered, nodes=nodes, volumes=volumes), decision
    competitors = {names[position]: decision.competitors.get(names[position]) for position in fitting}
    free_space = view.indexes.free_space
    free = [(_free_after_competitors(free_space.get(name), entry), name) for name, entry in competitors.items()]
    nodes = nodes_with_most_free_space(free, count, _usable_bytes(decision, competitors))
    reasons = list(decision.reasons)
    for position in fitting:
        if names[position] not in nodes:
            reasons[position] = Reason.NOT_OFFERED
    return replace(offered, nodes=nodes, volumes=volumes), replace(decision, reasons=reasons)


def stale_nodes(decision: Decision, before: Moment, after: Moment) -> frozenset[str]:
    """Names of fitting nodes that changed since the decision."""
    if before[0].view.version == after[0].view.version:
        return frozenset()
    old = _facts(before)
    new = _facts(after)
    fitting = (name for name, reason in zip(decision.candidates, decision.reasons, strict=True) if reason.fits)
    return frozenset(
        name
        for name in fitting
        if any(first.get(name) is not second.get(name) for first, second in zip(old, new, strict=True))
    )


def _facts(moment: Moment) -> tuple[Mapping[str, object], ...]:
    """Returns the values by node that a decision was made from.

    An unchanged value is the same object in the next view.
    """
    state, contenders = moment
    view = state.view
    demand = (contenders.demand.by_node,) if isinstance(contenders, Competing) else ()
    return view.indexes.free_space, view.snapshot.longhorn_nodes, view.snapshot.nodes or {}, *demand


def exclude(decision: Decision, names: frozenset[str]) -> Decision:
    """Returns the decision with these nodes marked WAITING.

    The decision no longer holds for them.
    """
    if not names:
        return decision
    pairs = zip(decision.candidates, decision.reasons, strict=True)
    return replace(decision, reasons=[Reason.WAITING if name in names else reason for name, reason in pairs])


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
    """Returns the ledger after what a view shows of a pod.

    The pod has an offer. `seen`: an earlier view had the pod. Before that the pod is not gone, because its watch may be behind; another pod
    of its name is its predecessor.
    """
    current = current_pod(pod, view)
    events: list[ObservedPod | NodeSelected | PodGone] = []
    if current is not None:
        events.append(observed_pod(current))
        selected_node = view.selected_node(current)
        if selected_node:
            events.append(NodeSelected(pod.uid, selected_node))
    elif seen:
        events.append(PodGone(pod.uid))
    outcomes: tuple[Outcome, ...] = ()
    for event in events:
        ledger, more = step(ledger, event, now)
        outcomes += more
    return Observation(ledger, outcomes, seen or current is not None)


def current_pod(pod: Pod, view: View) -> Pod | None:
    """Returns the pod as a view has it.

    None if the view does not have this very pod.
    """
    current = view.snapshot.pods.get((pod.namespace, pod.name))
    return current if current is not None and current.uid == pod.uid else None


def _newer(pod: Pod, view: View) -> Pod:
    """Returns the newer of the requested and the viewed pod.

    Either state is older than the offer.
    """
    current = current_pod(pod, view)
    return pod if current is None or current.version < pod.version else current


def undecided_pods(view: View) -> frozenset[str]:
    """UIDs of the view's pods without a decided node."""
    pods = view.snapshot.pods.values()
    return frozenset(pod.uid for pod in pods if pod.live and pod.volumes and not decided_node(pod, view))


def nominations_to_adopt(view: View) -> Iterator[tuple[Pod, NominationAdopted]]:
    """Yields pods that the previous leader's answers left nominated.

    Each comes with the event that adopts it. A pod that cannot be resolved is left out: its volumes are unknown, and Longhorn cannot place
    them either. So is a pod that takes no Longhorn space, which would only narrow other pods' offers.
    """
    for pod in view.snapshot.pods.values():
        if pod.live and not pod.node_name and pod.nominated_node and not pod.unschedulable:
            try:
                resolution = resolve(pod, view)
            except ResolutionError:
                continue
            if resolution.local or resolution.unplaced:
                yield pod, NominationAdopted(observed_pod(pod), resolution.local, resolution.unplaced)


def nodes_with_most_free_space(
    free: Iterable[tuple[int, str]], count: int, usable: Callable[[str, int], int] | None = None
) -> frozenset[str]:
    """Returns the `count` nodes with most free space.

    Nodes are given as (free bytes, name); ties by name. With `usable` the free bytes are upper bounds; `usable` returns the exact bytes of
    a node and is called for few.
    """
    if usable is None:
        return frozenset(name for _, name in nsmallest(count, ((-size, name) for size, name in free)))
    heap = [(-size, name) for size, name in free]
    heapify(heap)
    exact: dict[str, int] = {}
    nodes: list[str] = []
    while heap and len(nodes) < count:
        bound, name = heap[0]
        if name not in exact:
            exact[name] = -usable(name, -bound)
        if exact[name] == bound:
            nodes.append(name)
            heappop(heap)
        else:
            heapreplace(heap, (exact[name], name))
    return frozenset(nodes)


def _free_after_competitors(space: FreeSpace | None, competitors: Competitors | None) -> int:
    """Returns the bytes that competitors leave on a node."""
    free = space.free if space is not None else 0
    return free if competitors is None else free - competitors.total


def _usable_bytes(decision: Decision, competitors: Mapping[str, Competitors | None]) -> Callable[[str, int], int]:
    """Returns a function for the bytes that the pod can use.

    The function takes a node and the bytes that competitors leave there. The disks of competitors of other classes are unknown, so their
    bytes reduce only what is left in sum, and not what is free on the disks that are open to the pod.
    """

    def usable(name: str, left: int) -> int:
        profile = decision.profiles.get(name)
        if profile is None:
            return left
        free = sum(profile.free)
        on_node = competitors[name]
        for volume_class, size in on_node.bytes_by_class if on_node is not None else ():
            if volume_class in decision.volume_classes:
                free -= size
        return min(free, left)

    return usable
