"""The rules around the ledger: what is offered of a decision, and what the cluster says of the pods that have offers.

Data flow: a decision → `offer_of` → some of the nodes that fit, for the ledger, and the decision as it is answered; a view → `news` →
events for the ledger; after a take-over a view → `adoptions` → what a predecessor's answers left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heapreplace, nsmallest

from scheduler_core.cluster.view import Rooms, View
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.contention import Beside
from scheduler_core.extender.filter import Decision, Others, settling
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import Adopted, Event, NodeSelected, Offered, PodGone, PodSeen, width
from scheduler_core.volumes.pending_replicas import chosen_node
from scheduler_core.volumes.resolve import resolve


def offer_of(pod: Pod, decision: Decision, view: View, competing: int) -> tuple[Offered, Decision]:
    """What is offered to a pod beside so many other offers, and the answer that says so.

    `view` may be newer than the decision's: a node that is gone meanwhile has no room.
    """
    told, selected = seen(_newer(pod, view)), view.selected_node(pod)
    volumes = settling(decision.resolution)
    roaming = tuple(volume for volume in decision.roaming if volume not in volumes)
    if not decision.takes_space and not decision.prefers_space:
        return Offered(told, frozenset(), selected=selected, roaming=roaming), decision
    names, reasons = decision.candidates, list(decision.reasons)
    fitting = [place for place, reason in enumerate(reasons) if reason.fits]
    count = width(len(fitting), competing)
    if count == len(fitting):
        return Offered(told, frozenset(names[place] for place in fitting), volumes, selected, roaming), decision
    rooms, there = view.indexes.rooms, {names[place]: decision.besides.get(names[place]) for place in fitting}
    left = [(_left(rooms.get(name), beside), name) for name, beside in there.items()]
    offered = roomiest(left, count, _usable(decision, there))
    for place in fitting:
        if names[place] not in offered:
            reasons[place] = Reason.NOT_OFFERED
    return Offered(told, offered, volumes, selected, roaming), replace(decision, reasons=reasons)


Moment = tuple[View, Others]


def overtaken(decision: Decision, before: Moment, after: Moment) -> frozenset[str]:
    """The fitting nodes of a decision about which something has changed since what it was made from."""
    (old, _), (new, _) = before, after
    if old.version == new.version:
        return frozenset()
    then, now = (_facts(*moment) for moment in (before, after))
    fitting = (name for name, reason in zip(decision.candidates, decision.reasons, strict=True) if reason.fits)
    return frozenset(
        name
        for name in fitting
        if any(one.get(name) is not other.get(name) for one, other in zip(then, now, strict=True))
    )


def _facts(view: View, others: Others) -> tuple[Mapping[str, object], ...]:
    """What is known of nodes, by name; what has not changed is the same object in the next view."""
    demands = (others.demands.by_node,) if others.demands is not None else ()
    return view.indexes.rooms, view.snapshot.longhorn_nodes, view.snapshot.nodes or {}, *demands


def without(decision: Decision, names: frozenset[str]) -> Decision:
    """A decision that offers none of these nodes, because what was decided of them no longer holds."""
    if not names:
        return decision
    pairs = zip(decision.candidates, decision.reasons, strict=True)
    return replace(decision, reasons=[Reason.WAITING if name in names else reason for name, reason in pairs])


def seen(pod: Pod) -> PodSeen:
    """A pod as the ledger wants to know it."""
    return PodSeen(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        version=pod.version,
        node_name=pod.node_name,
        nominated=pod.nominated_node,
        unschedulable=pod.unschedulable,
        over=not pod.live,
    )


def news(pod: Pod, view: View, *, known: bool) -> Iterator[Event]:
    """What a view says of a pod that has an offer; `known` tells whether an earlier view had it already.

    A pod that no watch has brought yet is not gone: another one of its name is its predecessor.
    """
    current = current_of(pod, view)
    if current is None:
        if known:
            yield PodGone(pod.uid)
        return
    yield seen(current)
    selected = view.selected_node(current)
    if selected:
        yield NodeSelected(pod.uid, selected)


def current_of(pod: Pod, view: View) -> Pod | None:
    """The pod as a view has it, None if it does not have this very one."""
    current = view.snapshot.pods.get((pod.namespace, pod.name))
    return current if current is not None and current.uid == pod.uid else None


def _newer(pod: Pod, view: View) -> Pod:
    """Of the pod as it was asked about and as the view has it, the later one; what it shows is no news about the offer."""
    current = current_of(pod, view)
    return pod if current is None or current.version < pod.version else current


def undecided(view: View) -> frozenset[str]:
    """UIDs of the pods no node is chosen for, as far as the view shows."""
    pods = view.snapshot.pods.values()
    return frozenset(pod.uid for pod in pods if pod.live and pod.volumes and not chosen_node(pod, view))


def adoptions(view: View) -> Iterator[tuple[Pod, Adopted]]:
    """The pods that a predecessor's answers left nominated, each with the event that makes it an offer of that node.

    A pod that cannot be resolved is left out: nobody knows what it would take, and Longhorn cannot place it either. So is one that
    takes nothing of Longhorn's, which would only narrow what others are offered.
    """
    for pod in view.snapshot.pods.values():
        if pod.live and not pod.node_name and pod.nominated_node and not pod.unschedulable:
            try:
                resolution = resolve(pod, view)
            except ResolutionError:
                continue
            if resolution.local or resolution.unplaced:
                yield pod, Adopted(seen(pod), resolution.local, resolution.unplaced)


def roomiest(
    fitting: Iterable[tuple[int, str]], count: int, exactly: Callable[[str, int], int] | None = None
) -> frozenset[str]:
    """So many of the nodes given as (room in bytes after all demand and offers, name): those with the most room, ties by name.

    With `exactly` the rooms given are upper bounds, of which it tells the real ones; it is asked about few.
    """
    if exactly is None:
        return frozenset(name for _, name in nsmallest(count, ((-room, name) for room, name in fitting)))
    heap = [(-room, name) for room, name in fitting]
    heapify(heap)
    known: dict[str, int] = {}
    found: list[str] = []
    while heap and len(found) < count:
        bound, name = heap[0]
        if name not in known:
            known[name] = -exactly(name, -bound)
        if known[name] == bound:
            found.append(name)
            heappop(heap)
        else:
            heapreplace(heap, (known[name], name))
    return frozenset(found)


def _left(room: Rooms | None, beside: Beside | None) -> int:
    """Bytes left on all disks of a node after everything that is bound for it."""
    free = room.free if room is not None else 0
    return free if beside is None else free - beside.total


def _usable(decision: Decision, besides: Mapping[str, Beside | None]) -> Callable[[str, int], int]:
    """Which of the bytes left on a node the pod can use.

    On which disks volumes of other kinds will be nobody knows; they count against what is left, not against the disks open to the pod.
    """
    profiles, kinds = decision.profiles, decision.kinds

    def usable(name: str, left: int) -> int:
        profile, beside = profiles.get(name), besides[name]
        if profile is None:
            return left
        free = sum(profile.free)
        for kind, size in beside.loads if beside is not None else ():
            if kind in kinds:
                free -= size
        return min(free, left)

    return usable
