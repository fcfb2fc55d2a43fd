"""A pod's volumes where they depend on its node: by the PersistentVolumes that are matched there, and by its zone and region."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from scheduler_core.cluster.view import View
from scheduler_core.longhorn.provisioned_volume import ANYWHERE
from scheduler_core.model import kube
from scheduler_core.model.longhorn import TopologyTerm
from scheduler_core.volumes.resolve import (
    PodVolume,
    Resolution,
    domain_of_node,
    has_tied_volume,
    resolve_volumes,
)
from scheduler_core.volumes.volume_binding import match_volumes

_Pairs = tuple[tuple[str, str], ...]
"""A match as sorted pairs."""


@dataclass(frozen=True, slots=True)
class NodeResolution:
    """The volumes of a pod on some nodes."""

    resolution: Resolution
    nodes: frozenset[str] | None = None  # their names, None for all


def resolve_on_nodes(
    pod: kube.Pod,
    names: Collection[str],
    view: View,
    offered: Iterable[PodVolume] | None = (),
    *,
    require_best_effort: bool = True,
) -> tuple[NodeResolution, ...]:
    """Returns the pod's volumes for each possible match, and for each zone and region that new volumes are tied to. One
    result for all nodes, if neither differs. Otherwise a node is in the results of all its possible matches. `offered`
    are volumes that other pods may take. With None every claim without a volume gets a new one.

    Raises:
        ResolutionError: as `resolve` and `match_volumes`
    """
    nodes: dict[_Pairs, frozenset[str] | None] = {}
    for group in () if offered is None else match_volumes(pod, names, view, offered):
        for match in group.matches:
            key = tuple(sorted(match.items()))
            nodes[key] = None if group.nodes is None else (nodes.get(key) or frozenset()) | group.nodes
    domains = _nodes_by_domain(names, view) if has_tied_volume(pod, view) else {ANYWHERE: None}
    parts: list[NodeResolution] = []
    for (key, matching), (domain, members) in product((nodes or {(): None}).items(), domains.items()):
        on_nodes = matching if members is None else members if matching is None else matching & members
        if on_nodes is None or on_nodes:
            resolved = resolve_volumes(pod, view, dict(key), domain, require_best_effort=require_best_effort)
            parts.append(NodeResolution(resolved, on_nodes))
    return tuple(parts)


def _nodes_by_domain(names: Iterable[str], view: View) -> Mapping[TopologyTerm, frozenset[str] | None]:
    """Returns the nodes of each zone and region; None for all, if they are in one."""
    members: dict[TopologyTerm, set[str]] = {}
    for name in names:
        members.setdefault(domain_of_node(name, view), set()).add(name)
    if len(members) <= 1:
        return dict.fromkeys(members or {ANYWHERE}, None)
    return {domain: frozenset(group) for domain, group in members.items()}


def merge_resolutions(parts: Sequence[NodeResolution]) -> Resolution:
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
