"""Snapshot files as the classic scheduler reads them: nodes with their capacity, all pods, services; and Longhorn's objects on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.kube.snapshot_file import SnapshotFileError, read_objects, snapshot_of_objects
from scheduler_core.convert.binding import Applicant, read_applicant
from scheduler_core.convert.generic import GenericNode, GenericService, generic_node, generic_service
from scheduler_core.convert.wire import shape
from scheduler_core.errors import ObjectError
from scheduler_core.generic.model import Node, PodKey, Service
from scheduler_core.generic.state import State
from scheduler_core.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class LoadedCluster:
    """What a file holds.

    Attributes:
        pods: all of them, by namespace and name
        snapshot: what Longhorn's rules read; None if nobody asked for it
        warnings: what was passed over or looks odd, as sentences for the administrator
    """

    state: State
    pods: Mapping[PodKey, Applicant]
    snapshot: Snapshot | None
    warnings: tuple[str, ...]


def load_cluster(source: str, *, longhorn: bool) -> LoadedCluster:
    """Reads a snapshot file ("-" for standard input); with `longhorn`, what Longhorn's rules read as well.

    Raises:
        SnapshotFileError: the file is missing, is neither YAML nor JSON, or holds an object that cannot be read
    """
    objects = read_objects(source)
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
    warnings = [f"{source}: {problem}" for problem in _oddities(nodes)]
    snapshot = None
    if longhorn:
        loaded = snapshot_of_objects(source, objects)
        snapshot = loaded.snapshot
        warnings += loaded.warnings
    return LoadedCluster(state, pods, snapshot, tuple(warnings))


def _oddities(nodes: Mapping[str, Node]) -> list[str]:
    if not nodes:
        return ["no nodes: no pod can go anywhere"]
    if not any(node.pods for node in nodes.values()):
        return ["no node says how many pods it takes (status.capacity), so PodFitsResources lets none on any"]
    return []
