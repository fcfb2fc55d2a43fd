"""Reads snapshot files for the generic scheduler.

It reads nodes with their capacity, all pods, services, and Longhorn's objects on request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.kube.snapshot_file import SnapshotFileError, read_objects, snapshot_of
from scheduler_core.convert.binding import PendingPod, read_pending_pod
from scheduler_core.convert.generic import GenericNode, GenericService, generic_node, generic_service
from scheduler_core.convert.meta import decode_object
from scheduler_core.errors import ObjectError
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import Policy
from scheduler_core.model.generic import Node, PodKey, Service
from scheduler_core.model.snapshot import Snapshot

# This predicate also limits the number of pods on a node.
_POD_COUNT_RULE: Final = "PodFitsResources"


@dataclass(frozen=True, slots=True)
class LoadedCluster:
    """The content of a snapshot file.

    Attributes:
        pods: all pods, by namespace and name
        snapshot: what Longhorn's rules read; empty unless requested
        warnings: what was ignored or looks wrong, as sentences for the administrator
    """

    state: GenericClusterState
    pods: Mapping[PodKey, PendingPod]
    snapshot: Snapshot
    warnings: tuple[str, ...]


def load_cluster(source: str, policy: Policy, *, longhorn: bool) -> LoadedCluster:
    """Reads a snapshot file ("-" for standard input) for a policy.

    With `longhorn` the objects that Longhorn's rules read are included.

    Raises:
        SnapshotFileError: the file is missing, is neither YAML nor JSON, or holds an object that cannot be read
    """
    objects = list(read_objects(source))
    nodes: dict[str, Node] = {}
    pods: dict[PodKey, PendingPod] = {}
    services: dict[tuple[str, str], Service] = {}
    try:
        for kind, group, raw in objects:
            if (kind, group) == ("Node", ""):
                node = generic_node(decode_object(kind, raw, GenericNode))
                nodes[node.name] = node
            elif (kind, group) == ("Pod", ""):
                key, pod = read_pending_pod(raw)
                pods[key] = pod
            elif (kind, group) == ("Service", ""):
                service = generic_service(decode_object(kind, raw, GenericService))
                services[service.namespace, service.name] = service
    except ObjectError as error:
        raise SnapshotFileError(f"{source}: {error}") from error
    state = GenericClusterState.of(nodes.values(), (entry.pod for entry in pods.values()), services.values())
    warnings = tuple(f"{source}: {problem}" for problem in _policy_warnings(nodes, policy))
    if not longhorn:
        return LoadedCluster(state, pods, Snapshot(), warnings)
    loaded = snapshot_of(source, objects, skipped_core_kinds=frozenset({"Service"}))
    return LoadedCluster(state, pods, loaded.snapshot, warnings + loaded.warnings)


def _policy_warnings(nodes: Mapping[str, Node], policy: Policy) -> list[str]:
    if not nodes:
        return ["no nodes: no pod can go anywhere"]
    counts_pods = any(entry.rule == _POD_COUNT_RULE for entry in policy.predicates)
    if counts_pods and not any(node.pods for node in nodes.values()):
        return [f"no node says how many pods it takes (status.capacity), so {_POD_COUNT_RULE} lets none on any"]
    return []
