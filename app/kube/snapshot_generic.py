"""Snapshot files as the classic scheduler reads them: nodes with their capacity, all pods, services; and Longhorn's objects on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.kube.snapshot_file import SnapshotFileError, read_objects, snapshot_of
from scheduler_core.convert.binding import Applicant, read_applicant
from scheduler_core.convert.generic import GenericNode, GenericService, generic_node, generic_service
from scheduler_core.convert.meta import shape
from scheduler_core.errors import ObjectError
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.policy import Policy
from scheduler_core.model.generic import Node, PodKey, Service
from scheduler_core.model.snapshot import Snapshot

_COUNTS_PODS: Final = "PodFitsResources"


@dataclass(frozen=True, slots=True)
class LoadedCluster:
    """What a file holds.

    Attributes:
        pods: all of them, by namespace and name
        snapshot: what Longhorn's rules read; empty if nobody asked for it
        warnings: what was passed over or looks odd, as sentences for the administrator
    """

    state: State
    pods: Mapping[PodKey, Applicant]
    snapshot: Snapshot
    warnings: tuple[str, ...]


def load_cluster(source: str, policy: Policy, *, longhorn: bool) -> LoadedCluster:
    """Reads a snapshot file ("-" for standard input) for a policy; with `longhorn`, what Longhorn's rules read as well.

    Raises:
        SnapshotFileError: the file is missing, is neither YAML nor JSON, or holds an object that cannot be read
    """
    objects = list(read_objects(source))
    nodes: dict[str, Node] = {}
    pods: dict[PodKey, Applicant] = {}
    services: dict[tuple[str, str], Service] = {}
    try:
        for kind, group, raw in objects:
            if (kind, group) == ("Node", ""):
                node = generic_node(shape(kind, raw, GenericNode))
                nodes[node.name] = node
            elif (kind, group) == ("Pod", ""):
                key, found = read_applicant(raw)
                pods[key] = found
            elif (kind, group) == ("Service", ""):
                service = generic_service(shape(kind, raw, GenericService))
                services[service.namespace, service.name] = service
    except ObjectError as error:
        raise SnapshotFileError(f"{source}: {error}") from error
    state = State.of(nodes.values(), (entry.pod for entry in pods.values()), services.values())
    warnings = tuple(f"{source}: {problem}" for problem in _oddities(nodes, policy))
    if not longhorn:
        return LoadedCluster(state, pods, Snapshot(), warnings)
    loaded = snapshot_of(source, objects, also_read=frozenset({"Service"}))
    return LoadedCluster(state, pods, loaded.snapshot, warnings + loaded.warnings)


def _oddities(nodes: Mapping[str, Node], policy: Policy) -> list[str]:
    if not nodes:
        return ["no nodes: no pod can go anywhere"]
    counts = any(entry.rule == _COUNTS_PODS for entry in policy.predicates)
    if counts and not any(node.pods for node in nodes.values()):
        return [f"no node says how many pods it takes (status.capacity), so {_COUNTS_PODS} lets none on any"]
    return []
