"""The rules around the ledger: what is offered of a decision, and what the cluster says of the pods that have offers.

Data flow: a decision → `offer_of` → some of the nodes that fit, for the ledger, and the decision as it is answered; a view → `news` →
events for the ledger; after a take-over a view → `adoptions` → what a predecessor's answers left behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from scheduler_core.awaited import chosen_node
from scheduler_core.errors import ResolutionError
from scheduler_core.ledger import Adopted, Event, NodeSelected, Offered, PodGone, PodSeen, roomiest, width
from scheduler_core.model.kube import Pod
from scheduler_core.resolve import resolve
from scheduler_core.verbs import Decision, Others
from scheduler_core.verdict import Reason
from scheduler_core.view import View


def offer_of(pod: Pod, decision: Decision, view: View, competing: int) -> tuple[Offered, Decision]:
    """What is offered to a pod beside so many other offers, and the answer that says so.

    `view` may be newer than the decision's: a node that is gone meanwhile has no room.
    """
    told, selected = seen(_newer(pod, view)), view.selected_node(pod)
    if not decision.takes_space:
        return Offered(told, frozenset(), selected=selected, roaming=decision.roaming), decision
    pairs = list(zip(decision.candidates, decision.reasons, strict=True))
    fitting = [name for name, reason in pairs if reason.fits]
    if width(len(fitting), competing) == len(fitting):
        return Offered(told, frozenset(fitting), decision.resolution.local, selected, decision.roaming), decision
    offered = roomiest([(_room(view, decision, name), name) for name in fitting], width(len(fitting), competing))
    answered = [Reason.NOT_OFFERED if reason.fits and name not in offered else reason for name, reason in pairs]
    event = Offered(told, offered, decision.resolution.local, selected, decision.roaming)
    return event, replace(decision, reasons=answered)


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

    A pod that cannot be resolved is left out: nobody knows what it would take, and Longhorn cannot place it either.
    """
    for pod in view.snapshot.pods.values():
        if pod.live and not pod.node_name and pod.nominated_node and not pod.unschedulable:
            try:
                resolution = resolve(pod, view)
            except ResolutionError:
                continue
            yield pod, Adopted(seen(pod), resolution.local, resolution.unplaced)


def _room(view: View, decision: Decision, name: str) -> int:
    """Bytes left on a node after everything that is bound for it."""
    rooms, beside = view.indexes.rooms.get(name), decision.besides.get(name)
    return (rooms.free if rooms is not None else 0) - (beside.total if beside is not None else 0)
