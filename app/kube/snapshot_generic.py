"""Reads snapshot files for the generic scheduler: nodes with their capacity, all pods, services, and what single rules
read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from app.kube.snapshot_file import read_from, read_objects, snapshot_of
from scheduler_core.convert import generic
from scheduler_core.convert.meta import object_name
from scheduler_core.convert.snapshot_kinds import WORKLOADS
from scheduler_core.decide.kube_scheduler_filters import VolumeAffinity
from scheduler_core.errors import ObjectError
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import Policy
from scheduler_core.model.generic import Controller, Namespace, Node, PodKey, Service
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot

# This predicate also limits the number of pods on a node.
_POD_COUNT_RULE: Final = "PodFitsResources"
# The same, as kube-scheduler counts today.
_ALLOCATABLE_RULE: Final = "NodeResourcesFit"
_NAMESPACE_RULE: Final = "MatchInterPodAffinity"
_GENERIC_KINDS: Final = frozenset({("Service", ""), ("Namespace", ""), *generic.CONTROLLERS})
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class LoadedCluster:
    """The content of a snapshot file."""

    state: GenericClusterState
    pods: Mapping[PodKey, generic.PendingPod]  # all pods, by namespace and name
    snapshot: Snapshot  # what Longhorn's rules read; empty unless requested
    warnings: tuple[str, ...]  # what was ignored or looks wrong, as sentences for the administrator


def load_cluster(source: str, policy: Policy, *, longhorn: bool) -> LoadedCluster:
    """Reads a snapshot file ("-" for standard input) for a policy. With `longhorn` the objects that Longhorn's rules
    read are included. Raises a SnapshotFileError if the file is missing, is neither YAML nor JSON, or holds an object
    that cannot be read.
    """
    objects = list(read_objects(source))
    reader = _Reader()
    read_from(source, lambda: reader.read(objects))
    warnings = tuple(f"{source}: {problem}" for problem in _policy_warnings(reader, policy))
    if not longhorn:
        return LoadedCluster(reader.state(), reader.pods, Snapshot(), warnings)
    loaded = snapshot_of(source, objects, skipped_kinds=_GENERIC_KINDS)
    return LoadedCluster(reader.state(), reader.pods, loaded.snapshot, warnings + loaded.warnings)


class _Reader:
    """Reads the objects that the generic scheduler reads, and no others."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.pods: dict[PodKey, generic.PendingPod] = {}
        self.namespaces: list[Namespace] = []
        self._services: list[Service] = []
        self._controllers: list[Controller] = []

    def read(self, objects: Iterable[tuple[str, str, object]]) -> None:
        """Reads all objects. Raises an ObjectError if an object cannot be read, or a node or pod is among them twice."""
        for kind, group, raw in objects:
            if (kind, group) == ("Node", ""):
                node = generic.NODE.read(raw)
                _add_object(self.nodes, node.name, node, object_name(kind, raw))
            elif (kind, group) == ("Pod", ""):
                pending = generic.read_pending_pod(raw)
                _add_object(self.pods, pending.pod.namespaced_name, pending, object_name(kind, raw))
            else:
                self._read_other(kind, group, raw)

    def _read_other(self, kind: str, group: str, raw: object) -> None:
        if (kind, group) == ("Service", ""):
            self._services.append(generic.SERVICE.read(raw))
        elif (kind, group) == ("Namespace", ""):
            self.namespaces.append(generic.NAMESPACE.read(raw))
        elif (kind, group) in generic.CONTROLLERS:
            self._controllers.append(generic.CONTROLLERS[kind, group].read(raw))

    def state(self) -> GenericClusterState:
        """Returns the state of all objects."""
        pods = (entry.pod for entry in self.pods.values())
        state = GenericClusterState.of(self.nodes.values(), pods, self._services)
        for controller in self._controllers:
            state = state.with_controller(controller)
        for namespace in self.namespaces:
            state = state.with_namespace(namespace)
        return state


def _add_object(objects: dict[_Key, _Value], key: _Key, value: _Value, name: str) -> None:
    """Adds an object, or raises an ObjectError if there is one of its name already."""
    if key in objects:
        raise ObjectError(name, "", "is in the file twice")
    objects[key] = value


def _policy_warnings(reader: _Reader, policy: Policy) -> list[str]:
    if not reader.nodes:
        return ["no nodes: no pod can go anywhere"]
    nodes = reader.nodes.values()
    rules = {entry.rule for entry in policy.predicates}
    warnings = []
    if _POD_COUNT_RULE in rules and not any(node.pods for node in nodes):
        warnings.append(f"no node says how many pods it takes (status.capacity), so {_POD_COUNT_RULE} lets none on any")
    if _ALLOCATABLE_RULE in rules and not any(node.allocatable.get("pods") for node in nodes):
        warnings.append(
            f"no node says how many pods it takes (status.allocatable), so {_ALLOCATABLE_RULE} lets none on any"
        )
    pods = [entry.pod for entry in reader.pods.values()]
    if _NAMESPACE_RULE in rules and not reader.namespaces and any(map(_selects_namespaces, pods)):
        warnings.append(f"no namespaces, whose labels {_NAMESPACE_RULE} reads for these pods: add them to the file")
    return warnings


def _selects_namespaces(pod: Pod) -> bool:
    terms = (*pod.scheduling.constraints.pod_affinity, *pod.scheduling.constraints.pod_anti_affinity)
    selectors = [term.namespace_selector for term in terms]
    return any(selector is not None and not selector.matches_everything for selector in selectors)


_WORKLOAD_GROUPS: Final = frozenset({"apps", "batch"})
SCHEDULING_KINDS: Final = frozenset(
    {("Namespace", "")} | {(kind, group) for kind in WORKLOADS - {"Pod"} for group in _WORKLOAD_GROUPS}
)
"""Kinds by API group that this module reads, and decisions do not."""


@dataclass(frozen=True, slots=True)
class SchedulingObjects:
    """A cluster as kube-scheduler's filters read it."""

    state: GenericClusterState
    affinities: Mapping[str, VolumeAffinity]  # the required node affinity of PersistentVolumes, by name
    # Undecoded Deployments, StatefulSets and the like, by kind, namespace and name.
    workloads: Mapping[tuple[str, str, str], Any]

    @classmethod
    def of(cls, objects: Iterable[tuple[str, str, Any]], pods: Iterable[Pod]) -> SchedulingObjects:
        """Reads the objects of a snapshot, except for its pods. Each is (kind, API group, undecoded object); other
        kinds are left out. Raises an ObjectError if an object cannot be read.
        """
        nodes: list[Node] = []
        namespaces: list[Namespace] = []
        affinities: dict[str, VolumeAffinity] = {}
        workloads: dict[tuple[str, str, str], Any] = {}
        for kind, group, raw in objects:
            if (kind, group) == ("Node", ""):
                nodes.append(generic.NODE.read(raw))
            elif (kind, group) == ("Namespace", ""):
                namespaces.append(generic.NAMESPACE.read(raw))
            elif (kind, group) == ("PersistentVolume", ""):
                affinity = generic.VOLUME_NODE_AFFINITY.read(raw)
                if affinity.terms is not None:
                    affinities[affinity.volume] = affinity.terms
            elif (kind, group) in SCHEDULING_KINDS:
                metadata = raw.get("metadata") or {}
                workloads[kind, metadata.get("namespace") or "default", metadata.get("name", "")] = raw
        state = GenericClusterState.of(nodes, pods, [])
        for namespace in namespaces:
            state = state.with_namespace(namespace)
        return cls(state, affinities, workloads)
