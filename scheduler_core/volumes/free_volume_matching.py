"""Which existing PersistentVolumes kube-scheduler binds a pod's unbound claims to, node by node.

Source: kube-scheduler's plugin VolumeBinding (binder.go: GetPodVolumeClaims, FindPodVolumes, findMatchingVolumes) and
k8s.io/component-helpers/storage/volume (FindMatchingVolume), v1.36.3. A claim whose class waits for its consumer, and that has no selected node, is
first matched with the free volumes of its class. The smallest that fits is taken: capacity, access modes, volume mode, VolumeAttributesClass,
the claim's selector, and the volume's node affinity. Claims with small requests choose first, and no volume is taken twice. Only a claim
without a match is provisioned. A claim of a class that binds at once is not matched here: the PersistentVolume controller binds it, and
kube-scheduler waits for that.

Data flow: a pod and candidates, over a view → claims whose class has free volumes (mostly none) → nodes grouped by the volumes that their labels
admit → the possible matches of each group (`resolve_on_nodes` resolves the volumes of each).

Among volumes of equal capacity kube-scheduler takes the first of a list whose order is random. So there may be several possible matches, and the
caller must count with each. The same holds for volumes that other pods' offers may take.

`resolve_on_nodes` groups the nodes on which a pod's claims come to the same volumes: by the PersistentVolumes that are matched there, and by
zone and region.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, groupby, product
from typing import NamedTuple

from scheduler_core.cluster.view import View, by_capacity
from scheduler_core.errors import ResolutionError
from scheduler_core.longhorn.csi_driver import ANYWHERE, DRIVER
from scheduler_core.model import constraints, kube, longhorn
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.resolve import (
    PodVolume,
    Resolution,
    domain_of_node,
    has_tied_volume,
    is_local,
    resolve,
    storage_class_of,
)

# Each match costs an evaluation of every node. More come about only where many volumes are equal and none is reserved.
MAX_MATCHES = 64

Match = Mapping[str, str]
"""PersistentVolumes by the name of the pod's claim; a claim without one is provisioned."""

_Pairs = tuple[tuple[str, str], ...]
"""A match as sorted pairs."""

_Affinity = tuple[tuple[constraints.Requirement, ...], ...]


class NodeMatches(Struct, frozen=True):
    """The possible matches on equal nodes."""

    nodes: frozenset[str] | None  # their names, None for all
    matches: tuple[Match, ...]


class _Taken(NamedTuple):
    certain: frozenset[str]  # volumes that one of them takes
    choices: tuple[frozenset[str], ...]  # for other claims the volumes of which each takes one


class _UnboundClaim(NamedTuple):
    """A claim with free volumes of its class, smallest first; each has `available`."""

    name: str
    spec: kube.ClaimSpec
    volumes: tuple[kube.PersistentVolume, ...]


def may_match(pod: kube.Pod, view: View) -> bool:
    """Whether there are free volumes for one of the pod's claims, matching or not."""
    return bool(_claims_with_volumes(pod, view))


def match_volumes(
    pod: kube.Pod, names: Collection[str], view: View, offered: Iterable[PodVolume] = ()
) -> tuple[NodeMatches, ...]:
    """Returns the possible matches by groups of nodes. No group means that no claim is matched on any node. Volumes of
    other drivers are matched too where Longhorn's compete with them.

    Raises:
        ResolutionError: a claim's selector is invalid, or too many volumes are equal
    """
    claims = _claims_with_volumes(pod, view)
    if not claims:
        return ()
    taken = _volumes_of_offers(offered)
    by_affinity: list[dict[_Affinity | None, list[kube.PersistentVolume]]] = []
    # sort.Sort keeps the order of equal requests in slices of up to 12 elements.
    claims.sort(key=lambda claim: claim.spec.request or 0)
    for claim in claims:
        if claim.spec.selector is None:
            text = f"PersistentVolumeClaim {pod.namespace}/{claim.name} has a selector that cannot be read"
            raise ResolutionError(text)
        # There may be as many affinities as nodes, and a node meets few of them.
        groups: dict[_Affinity | None, list[kube.PersistentVolume]] = {}
        for volume in claim.volumes:
            available = volume.available
            if available is not None and volume.name not in taken.certain and _fits(claim.spec, available):
                groups.setdefault(available.node_affinity, []).append(volume)
        by_affinity.append(groups)
    if not any(by_affinity):
        return ()
    affinities = frozenset(affinity for groups in by_affinity for affinity in groups if affinity is not None)
    by_matches: dict[tuple[_Pairs, ...], set[str]] = {}
    for admitted, members in _nodes_by_affinity(affinities, names, view).items():
        usable: list[_UnboundClaim] = []
        for claim, groups in zip(claims, by_affinity, strict=True):
            volumes = chain.from_iterable(groups.get(affinity, ()) for affinity in (None, *admitted))
            usable.append(claim._replace(volumes=tuple(sorted(volumes, key=by_capacity))))
        by_matches.setdefault(_possible_matches(pod, usable, taken, view), set()).update(members)
    if list(by_matches) == [((),)]:
        return ()
    single = len(by_matches) == 1
    return tuple(
        NodeMatches(None if single else frozenset(group), tuple(dict(match) for match in matches))
        for matches, group in by_matches.items()
    )


def _claims_with_volumes(pod: kube.Pod, view: View) -> list[_UnboundClaim]:
    # A class without free volumes, or with those of other drivers only, leaves nothing to match.
    available = view.indexes.available_volumes
    claims: list[_UnboundClaim] = []
    for mount in pod.volumes if available else ():
        claim = view.snapshot.claims.get((pod.namespace, mount.claim))
        spec = claim.spec if claim is not None else mount.template
        if spec is None or spec.volume_name:
            continue
        storage_class = storage_class_of(spec, view)
        if storage_class is None or not storage_class.waits_for_consumer or storage_class.name not in available:
            continue
        if claim is not None and (claim.selected_node or view.pre_bound_volume(claim)):
            continue
        volumes = available[storage_class.name]
        if storage_class.provisioner == DRIVER or any(volume.driver == DRIVER for volume in volumes):
            claims.append(_UnboundClaim(mount.claim, spec, volumes))
    return claims


def _fits(spec: kube.ClaimSpec, available: kube.AvailableVolume) -> bool:
    return (
        available.capacity >= (spec.request or 0)
        and available.volume_mode == spec.volume_mode
        and available.attributes_class == spec.attributes_class
        and all(mode in available.access_modes for mode in spec.access_modes)
        and spec.selector is not None
        and spec.selector.matches(frozenset(available.labels.items()))
    )


def _volumes_of_offers(offered: Iterable[PodVolume]) -> _Taken:
    by_claim: dict[str, set[str]] = {}
    for volume in offered:
        if volume.persistent_volume:
            by_claim.setdefault(volume.claim, set()).add(volume.persistent_volume)
    choices = [frozenset(volumes) for volumes in by_claim.values()]
    claims_by_choice = Counter(choices)
    # Where as many claims as volumes share a choice, all are taken.
    certain = frozenset(name for choice, claims in claims_by_choice.items() if claims >= len(choice) for name in choice)
    return _Taken(certain, tuple(choice - certain for choice in choices if not choice <= certain))


def _nodes_by_affinity(
    affinities: Collection[_Affinity], names: Collection[str], view: View
) -> dict[frozenset[_Affinity], list[str]]:
    """Returns nodes by the affinities that they meet. Most affinities name one node or zone (one requirement, In). They are found by
    the label's value, because there may be as many as nodes.
    """
    by_label: dict[tuple[str, str], set[_Affinity]] = {}
    others: list[_Affinity] = []
    for affinity in affinities:
        if len(affinity) == 1 and len(affinity[0]) == 1 and affinity[0][0].operator is constraints.Operator.IN:
            [[requirement]] = affinity
            for value in requirement.values:
                by_label.setdefault((requirement.key, value), set()).add(affinity)
        else:
            others.append(affinity)
    groups: dict[frozenset[_Affinity], list[str]] = {}
    for name in names:
        node = view.snapshot.nodes.get(name)
        labels = node.labels if node is not None else {}
        # One of the terms must be met (component-helpers, LazyErrorNodeSelector).
        met = {
            affinity
            for affinity in others
            if any(all(requirement.matches(labels) for requirement in term) for term in affinity)
        }
        met.update(*(by_label[label] for label in labels.items() if label in by_label))
        groups.setdefault(frozenset(met), []).append(name)
    # Without candidates (an object is only to be fetched) the volumes that every node admits count.
    return groups or {frozenset(): []}


def _possible_matches(pod: kube.Pod, claims: Sequence[_UnboundClaim], taken: _Taken, view: View) -> tuple[_Pairs, ...]:
    """Returns every match that kube-scheduler may choose. The claims have the volumes that the node admits."""
    states: set[tuple[_Pairs, frozenset[str]]] = {((), frozenset())}
    for claim in claims:
        extended: set[tuple[_Pairs, frozenset[str]]] = set()
        for match, used in states:
            volumes_of = dict(match)
            for volume in _choices([entry for entry in claim.volumes if entry.name not in used], taken, view):
                after = used if volume is None else used | {volume.name}
                # A claim that the pod mounts twice is matched twice, and bound to either volume.
                if volume is None or claim.name in volumes_of:
                    extended.add((match, after))
                if volume is not None:
                    extended.add((tuple(sorted({**volumes_of, claim.name: volume.name}.items())), after))
        states = extended
        if len(states) > MAX_MATCHES:
            raise ResolutionError(
                f"the claims of pod {pod.key} match too many equal PersistentVolumes to tell which are bound: "
                f"name one in spec.volumeName of each claim"
            )
    return tuple(sorted({match for match, _ in states}))


def _choices(volumes: Sequence[kube.PersistentVolume], taken: _Taken, view: View) -> list[kube.PersistentVolume | None]:
    # They are the smallest, and the first of those that are judged alike.
    choices: list[kube.PersistentVolume | None] = []
    for _, group in groupby(volumes, key=lambda volume: by_capacity(volume)[0]):
        equal = list(group)
        choices += {_kind(volume, view): volume for volume in reversed(equal)}.values()
        # If other pods may take all of these, the next larger ones may be taken too, and in the end none.
        names = {volume.name for volume in equal}
        if len(equal) > sum(not choice.isdisjoint(names) for choice in taken.choices):
            return choices
    return [*choices, None]


def _kind(volume: kube.PersistentVolume, view: View) -> object:
    """Returns a key that volumes share if it does not matter which is bound."""
    available = volume.available
    if available is None:
        return volume.name
    common = (tuple(sorted(available.labels.items())), available.node_affinity, available.access_modes)
    if volume.driver != DRIVER:
        return common
    longhorn_volume = view.snapshot.volumes.get(volume.handle)
    if longhorn_volume is None or is_local(longhorn_volume):
        return volume.name
    placed = longhorn_volume.has_shards or any(replica.node_id for replica in view.replicas_of(longhorn_volume.name))
    # A volume without a place takes space somewhere, according to its size and its selectors.
    return (*common, longhorn_volume.data_engine, longhorn_volume.image) if placed else volume.name


class NodeResolution(Struct, frozen=True):
    """The volumes of a pod on some nodes."""

    resolution: Resolution
    nodes: frozenset[str] | None = None  # their names, None for all


class CandidateVolumes(Struct, frozen=True):
    """The volumes of a pod on the candidates."""

    resolution: Resolution  # all volumes that it may have, each with its nodes
    parts: tuple[NodeResolution, ...]  # its volumes for each possible match


def resolve_on_nodes(
    pod: kube.Pod,
    names: Collection[str],
    view: View,
    offered: Iterable[PodVolume] | None = (),
    *,
    require_best_effort: bool = True,
) -> CandidateVolumes:
    """Returns the pod's volumes for each possible match, and for each zone and region that new volumes are tied to. One
    result for all nodes, if neither differs. Otherwise a node is in the results of all its possible matches. `offered`
    are volumes that other pods may take. With None every claim without a volume gets a new one.
    """
    nodes: dict[_Pairs, frozenset[str] | None] = {}
    for group in () if offered is None else match_volumes(pod, names, view, offered):
        for match in group.matches:
            key = tuple(sorted(match.items()))
            nodes[key] = None if group.nodes is None else (nodes.get(key) or frozenset()) | group.nodes
    domains: Mapping[longhorn.TopologyTerm, frozenset[str] | None] = {ANYWHERE: None}
    if has_tied_volume(pod, view):
        members: dict[longhorn.TopologyTerm, set[str]] = {}
        for name in names:
            members.setdefault(domain_of_node(name, view), set()).add(name)
        # One domain is that of all nodes.
        one = len(members) <= 1
        domains = {domain: None if one else frozenset(group) for domain, group in members.items()} or domains
    parts: list[NodeResolution] = []
    for (key, matching), (domain, within) in product((nodes or {(): None}).items(), domains.items()):
        on_nodes = matching if within is None else within if matching is None else matching & within
        if on_nodes is None or on_nodes:
            resolved = resolve(pod, view, dict(key), domain, require_best_effort=require_best_effort)
            parts.append(NodeResolution(resolved, on_nodes))
    return CandidateVolumes(_merge(parts), tuple(parts))


def _merge(parts: Sequence[NodeResolution]) -> Resolution:
    """Returns all volumes that a pod may have, each with its nodes. A new volume that is tied to a different zone or
    region on each of them is there once, without it.
    """
    if len(parts) == 1 and parts[0].nodes is None:
        return parts[0].resolution
    merged: dict[tuple[str, str], PodVolume] = {}
    everywhere = frozenset().union(*(part.nodes or () for part in parts))
    for part in parts:
        for volume in part.resolution.volumes:
            key = (volume.claim, volume.volume.name if volume.bound else "")
            earlier = merged.get(key)
            nodes = part.nodes
            if earlier is not None:
                nodes = None if nodes is None or earlier.nodes is None else nodes | earlier.nodes
            free = volume.volume if volume.bound else replace(volume.volume, topology_requirement=())
            merged[key] = replace(volume, volume=free, nodes=nodes)
    volumes = (merged[key] for key in sorted(merged))
    return Resolution(tuple(replace(entry, nodes=None) if entry.nodes == everywhere else entry for entry in volumes))
