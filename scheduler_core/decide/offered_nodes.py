"""What is offered of a decision, and what the cluster shows of pods that have offers.

Data flow: a decision → `make_offer` → some of the nodes that fit (`choose_nodes`), for the ledger, and the decision as it is answered.
A view → `observe` → the ledger with the pod's progress. A decision about preemption → `make_hold` → nodes where it may make room.

Without competing offers these are all of them: kube-scheduler's scoring decides. In a burst wide offers would block each other, but only
where room is short. So a node with plenty of room stays in: one that could take this pod, all that is offered there, and as many bytes
again. Of the other nodes, with n competing offers, about 1 of n + 1 is offered (`offers/ledger.py:offer_width`).

An offer of a pod that needs space leaves room for the pods that kube-scheduler has yet to ask about, at least n + 1, and at least as many
as had an offer lately in this burst: each counts as one more pod of this size on these nodes. What they really take is not known here, so
this is an estimate. While there are such pods, `MAX_OF_MANY_NODES` of more than `MANY_NODES` nodes are offered at most, because every node
of an offer is evaluated again for the next pod. The first node of all is always offered. The order is:

1. with a policy file, those with the highest score by its priorities;
2. of these, those that hold most of the pod's data: bytes of its volumes with a kept replica there;
3. of these, those where the fewest bytes must be rebuilt: bytes written to its volumes without a healthy replica there;
4. of these, stale-safe nodes before order-safe ones, and these before all others, where that was examined;
5. of these, those with most room after all demand and offers; ties by name.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heapreplace, nsmallest
from itertools import islice

from scheduler_core import caches, errors
from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import (
    Competing,
    Contenders,
    Decision,
    FilterOptions,
    volumes_on_pod_node,
    volumes_to_offer,
)
from scheduler_core.decide.filter import candidate_volumes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.competing_volumes import Competitors
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from scheduler_core.offers import handover_record, outstanding_offer
from scheduler_core.offers.ledger import Ledger, offer_width, step
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.decided_pods import decided_node
from scheduler_core.volumes.existing_replicas import ReplicaUse, replica_uses
from scheduler_core.volumes.resolve import PodVolume

# kube-scheduler too looks at all of up to 100 nodes, and at a sample of more (minFeasibleNodesToFind).
MANY_NODES = 100
MAX_OF_MANY_NODES = 32
_SAFETY = {None: 0, Reason.STALE_UNSAFE: 1, Reason.ORDER_UNSAFE: 2}


def choose_nodes(decision: Decision, view: View, competing: int, recent: int = 0) -> frozenset[str]:
    """Returns the nodes to offer; `competing` other offers are outstanding, `recent` were made lately in a burst."""
    fitting = decision.fitting_nodes
    to_come = _pods_to_come(view, competing, recent) if decision.takes_space else 0
    if offer_width(len(fitting), max(competing, to_come)) == len(fitting):
        return frozenset(fitting)
    room = _Room(decision, view, fitting)
    spare = len(fitting)
    if to_come:
        # Every node of an offer is evaluated again for the next pod.
        most = MAX_OF_MANY_NODES if len(fitting) > MANY_NODES else len(fitting)
        spare = max(1, min(room.count_pods(to_come + len(fitting)) - to_come, most))
    # At the end of a burst every node of an undecided offer turns another pod away: room stays for those that are still to come.
    width = min(offer_width(len(fitting), competing), spare)
    if width == len(fitting):
        return frozenset(fitting)
    limit = min(max(MANY_NODES, width), spare)
    # The last place is for the first node of all.
    nodes = room.nodes_with_plenty(limit - 1 if room.has_favourites and limit < len(fitting) else limit)
    if len(nodes) < limit:
        scarce = [name for name in fitting if name not in nodes] if nodes else fitting
        nodes |= room.best_nodes(scarce, min(len(scarce) // (competing + 1), limit - len(nodes)))
    if nodes and not room.has_favourites:
        return nodes
    # It may have little room.
    return nodes | room.best_nodes(fitting, 1)


def _pods_to_come(view: View, competing: int, recent: int) -> int:
    """Returns how many pods kube-scheduler will ask about before it decides about this one."""
    # Pods with an outstanding offer are among those to schedule, and so is this one.
    in_cluster = view.indexes.pods_to_schedule - competing - 1
    # At least as many again as have offers, or had one lately in this burst: most of its pods may not be created yet.
    return max(in_cluster, competing + 1 if competing else 0, recent)


def may_narrow(view: View, outstanding: int) -> bool:
    return outstanding > 0 or view.indexes.pods_to_schedule > 1


def choose_one_node(decision: Decision, view: View) -> frozenset[str]:
    """Returns the node to offer if only one may be; none if none fits."""
    fitting = decision.fitting_nodes
    return _Room(decision, view, fitting).best_nodes(fitting, 1)


class _Room:
    def __init__(self, decision: Decision, view: View, fitting: Sequence[str]) -> None:
        self._decision = decision
        self._volumes = volumes_on_pod_node(decision.resolution)
        self._data = _data_on_nodes(self._volumes, view)
        self._competitors: Mapping[str, Competitors] = decision.competitors
        # By identity, because comparing classes would take time for each node.
        self._own_classes: dict[int, bool] = {}
        space_of = view.indexes.free_space.get
        # Upper bounds: free bytes of disks that are not open to the pod count too.
        self._bounds = {name: space.free if (space := space_of(name)) is not None else 0 for name in fitting}
        for name, on_node in self._competitors.items():
            if name in self._bounds:
                self._bounds[name] -= on_node.total

    @property
    def has_favourites(self) -> bool:
        """Whether more than safety and room distinguishes the nodes: the pod's data, or scores."""
        return bool(self._data or self._decision.scores)

    def count_pods(self, limit: int) -> int:
        size = _total_size(self._volumes)
        count = 0
        for bound in self._bounds.values():
            count += max(0, bound) // size if size else limit
            if count >= limit:
                return limit
        return count

    def nodes_with_plenty(self, limit: int) -> frozenset[str]:
        """Returns at most `limit` nodes where an offer leaves room for others, by score, safety and room."""
        # As much again is for the pods that come next: where so much is free, the offer turns none of them away.
        twice = 2 * _total_size(self._volumes)
        names: set[str] = set()
        for tier in self._tiers(self._bounds):
            for usable, name in self._most_free_first(tier):
                if usable < twice or len(names) == limit:
                    break
                on_node = self._competitors.get(name)
                if on_node is None or usable >= twice + on_node.offered_total:
                    names.add(name)
        return frozenset(names)

    def _most_free_first(self, names: Collection[str]) -> Iterator[tuple[int, str]]:
        return most_free_first(zip(map(self._bounds.__getitem__, names), names, strict=True), self._usable)

    def _tiers(self, names: Collection[str]) -> Iterable[Collection[str]]:
        """Returns the nodes by score, and those with equal scores by `_SAFETY`, the best first."""
        unsafe = self._decision.unsafe
        scores = self._decision.scores
        if not unsafe and not scores:
            return (names,)
        tiers: dict[tuple[int, int], list[str]] = {}
        for name in names:
            tiers.setdefault((-scores.get(name, 0), _SAFETY[unsafe.get(name)]), []).append(name)
        return [tiers[rank] for rank in sorted(tiers)]

    def best_nodes(self, names: Sequence[str], count: int) -> frozenset[str]:
        if not count:
            return frozenset()
        if self._decision.scores:
            return frozenset(nsmallest(count, names, key=self._rank))
        with_data = [name for name in names if name in self._data]
        best = set(nsmallest(count, with_data, key=self._rank))
        for tier in self._tiers([name for name in names if name not in self._data]):
            best |= {name for _, name in islice(self._most_free_first(tier), count - len(best))}
        return frozenset(best)

    def _rank(self, name: str) -> tuple[int, int, int, int, int, str]:
        decision = self._decision
        kept, rebuilt = self._data.get(name, (0, 0))
        safety = _SAFETY[decision.unsafe.get(name)]
        return -decision.scores.get(name, 0), kept, rebuilt, safety, -self._usable(name, self._bounds[name]), name

    def _usable(self, name: str, bound: int) -> int:
        profile = self._decision.profiles.get(name)
        if profile is None:
            return bound
        free = sum(profile.free)
        on_node = self._competitors.get(name)
        for volume_class, size in on_node.bytes_by_class if on_node is not None else ():
            # The disks of competitors of other classes are unknown, so their bytes reduce only what is left in sum, and
            # not what is free on the disks that are open to the pod.
            if id(volume_class) not in self._own_classes:
                self._own_classes[id(volume_class)] = volume_class in self._decision.volume_classes
            if self._own_classes[id(volume_class)]:
                free -= size
        return min(free, bound)


def _total_size(volumes: Iterable[PodVolume]) -> int:
    sizes: dict[str, int] = {}
    for volume in volumes:
        # Of several volumes that a claim may become, the largest counts.
        sizes[volume.claim] = max(sizes.get(volume.claim, 0), volume.volume.size)
    return sum(sizes.values())


def _data_on_nodes(volumes: Iterable[PodVolume], view: View) -> Mapping[str, tuple[int, int]]:
    """Returns the rank of each node with a kept replica, the least first."""
    # It is the negative bytes of volumes with a kept replica, then the bytes that must be rebuilt.
    existing = [volume for volume in volumes if volume.replicas]
    written = sum(volume.volume.actual_size for volume in existing)
    data: dict[str, tuple[int, int]] = {}
    for volume in existing:
        for name, use in replica_uses(volume, view.cluster).items():
            if use is not ReplicaUse.NONE and (volume.nodes is None or name in volume.nodes):
                kept, rebuilt = data.get(name, (0, written))
                healthy = volume.volume.actual_size if use is ReplicaUse.HEALTHY else 0
                data[name] = (kept - volume.volume.size, rebuilt - healthy)
    return data


def most_free_first(bounds: Iterable[tuple[int, str]], usable: Callable[[str, int], int]) -> Iterator[tuple[int, str]]:
    """Returns nodes with their free bytes, those with most first, ties by name. `bounds` are pairs of an upper bound of the bytes and a
    name; `usable` returns the exact bytes of a node, and is called for few.
    """
    heap = [(-bound, name) for bound, name in bounds]
    heapify(heap)
    exact: dict[str, int] = {}
    while heap:
        bound, name = heap[0]
        if name not in exact:
            exact[name] = -usable(name, -bound)
        if exact[name] == bound:
            heappop(heap)
            yield -bound, name
        else:
            heapreplace(heap, (exact[name], name))


Moment = tuple[ClusterState, Contenders]  # what a decision was made from


class Observation(Struct, frozen=True):
    """The ledger after a look at one pod."""

    ledger: Ledger
    outcomes: tuple[outstanding_offer.Outcome, ...]
    seen: bool  # whether some view so far had the pod


def make_offer(pod: Pod, decision: Decision, view: View, ledger: Ledger) -> tuple[outstanding_offer.Offered, Decision]:
    """Returns a pod's offer, which leaves room for those of the ledger, and the decision as answered."""
    volumes = volumes_to_offer(decision.resolution)
    on_pod_node = volumes_on_pod_node(decision.resolution)
    offered = outstanding_offer.Offered(
        pod=observed_pod(_newer(pod, view)),
        nodes=frozenset(),
        selected_node=view.selected_node(pod),
        unplaced_volumes=tuple(volume for volume in decision.unplaced_volumes if volume not in on_pod_node),
    )
    if not decision.needs_nodes:
        return offered, decision
    fitting = decision.fitting_nodes
    takes_space = decision.takes_space or decision.prefers_space
    nodes = frozenset(fitting)
    if takes_space:
        recent = ledger.recent.count(ledger.time)
        nodes = choose_nodes(decision, view, ledger.competing_offers(pod.uid), recent)
    offered = replace(offered, nodes=nodes, volumes=volumes)
    if len(nodes) == len(fitting):
        return offered, decision
    return offered, exclude(decision, frozenset(fitting) - nodes, Reason.NOT_OFFERED)


def make_hold(pod: Pod, decision: Decision, view: View) -> outstanding_offer.Offered:
    """Returns the hold of a pod for which preemption may make room."""
    return outstanding_offer.Offered(
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
    logs: list[list[caches.ChangeLog]] = []
    # By node, what a decision was made from; an unchanged value is the same object in the next view.
    facts: list[list[Mapping[str, object]]] = []
    for state, contenders in (before, after):
        snapshot = state.view.snapshot
        logs.append([state.profiles.changelog])
        facts.append([state.view.indexes.free_space, snapshot.longhorn_nodes, snapshot.nodes or {}])
        if isinstance(contenders, Competing):
            logs[-1].append(contenders.demand.changelog)
            facts[-1].append(contenders.demand.by_node)
    changed = caches.nodes_changed_since(*logs)
    return frozenset(
        name
        for name in decision.fitting_nodes
        if (changed is None or name in changed)
        and any(first.get(name) is not second.get(name) for first, second in zip(*facts, strict=True))
    )


def exclude(decision: Decision, names: frozenset[str], reason: Reason = Reason.WAITING) -> Decision:
    """Returns the decision without these nodes, by default because it no longer holds for them."""
    if not names:
        return decision
    pairs = zip(decision.candidates, decision.reasons, strict=True)
    return replace(decision, reasons=[reason if name in names else before for name, before in pairs])


def observed_pod(pod: Pod) -> outstanding_offer.ObservedPod:
    """Returns a pod as the ledger reads it."""
    return outstanding_offer.ObservedPod(
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
    events: list[outstanding_offer.ObservedPod | outstanding_offer.NodeSelected | outstanding_offer.PodGone] = []
    if current is not None:
        events.append(observed_pod(current))
        selected_node = view.selected_node(current)
        if selected_node:
            events.append(outstanding_offer.NodeSelected(pod.uid, selected_node))
    elif seen:
        # Before any view had the pod, its watch may be behind. Another pod of its name is its predecessor.
        events.append(outstanding_offer.PodGone(pod.uid))
    outcomes: tuple[outstanding_offer.Outcome, ...] = ()
    for event in events:
        ledger, more = step(ledger, event, now)
        outcomes += more
    return Observation(ledger, outcomes, seen or current is not None)


def current_pod(pod: Pod | outstanding_offer.ObservedPod, view: View) -> Pod | None:
    current = view.snapshot.pods.get((pod.namespace, pod.name))
    return current if current is not None and current.uid == pod.uid else None


def _newer(pod: Pod, view: View) -> Pod:
    """Returns the newer of the requested and the viewed pod. Either state is older than the offer."""
    current = current_pod(pod, view)
    return pod if current is None or current.version < pod.version else current


def undecided_pods(view: View) -> frozenset[str]:
    pods = view.snapshot.pods.values()
    return frozenset(pod.uid for pod in pods if pod.live and pod.volumes and not decided_node(pod, view))


def offer_to_restore(
    recorded: outstanding_offer.RecordedOffer,
    view: View,
    elapsed: float,
    options: FilterOptions,
    others: Iterable[PodVolume] = (),
) -> outstanding_offer.Offer | None:
    """Returns an offer as the previous leader recorded it, with the pod's volumes, or None if the pod is bound,
    finished or gone, or takes no space. `elapsed`: seconds that have passed at least since the record was made.
    `others`: the volumes of offers that are restored already.
    """
    offered = recorded.offered
    if recorded.everywhere:
        offered = replace(offered, nodes=frozenset(view.snapshot.longhorn_nodes))
    pod = current_pod(offered.pod, view)
    if pod is None or not pod.live or pod.node_name:
        return None
    resolution = candidate_volumes(pod, sorted(offered.nodes), view, options, others).resolution
    on_node = volumes_on_pod_node(resolution)
    volumes = volumes_to_offer(resolution) if offered.nodes else ()
    unplaced_volumes = tuple(volume for volume in resolution.unplaced if volume not in on_node)
    if not volumes and not unplaced_volumes:
        return None
    unchanged = handover_record.unschedulable_digest(pod.unschedulable) == offered.pod.unschedulable
    offered_pod = replace(offered.pod, unschedulable=pod.unschedulable) if unchanged else offered.pod
    restored = replace(offered, pod=offered_pod, volumes=volumes, unplaced_volumes=unplaced_volumes)
    return restored.later(-elapsed)


def offers_on_node(
    recorded: Iterable[outstanding_offer.RecordedOffer], node: str, view: View, options: FilterOptions, now: float
) -> Ledger:
    """Returns a ledger of those recorded offers of a node that the view does not show as decided."""
    entries: list[outstanding_offer.Offer] = []
    volumes: list[PodVolume] = []
    # In this order they were matched with existing PersistentVolumes.
    for entry in sorted(recorded, key=lambda entry: entry.offered.number):
        if entry.everywhere or node in entry.offered.nodes:
            # A pod that names an object that is gone gets no volume.
            with suppress(errors.ResolutionError):
                restored = offer_to_restore(entry, view, 0.0, options, volumes)
                if restored is not None:
                    entries.append(restored)
                    volumes += restored.volumes
    return step(Ledger(), outstanding_offer.OffersRestored(tuple(entries), len(entries)), now)[0]
