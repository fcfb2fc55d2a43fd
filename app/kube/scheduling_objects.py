"""Reads what kube-scheduler's own filters need from the objects of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler_core.convert.generic import NAMESPACE, NODE, OWNED_POD, POD, VOLUME_NODE_AFFINITY
from scheduler_core.convert.pod_template import template_pod
from scheduler_core.convert.snapshot_kinds import WORKLOADS
from scheduler_core.extender.kube_scheduler_filters import VolumeAffinity
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.model.generic import Namespace, Node, Pod, PodKey

_WORKLOAD_GROUPS: Final = frozenset({"apps", "batch"})
SCHEDULING_KINDS: Final = frozenset(
    {("Namespace", "")} | {(kind, group) for kind in WORKLOADS - {"Pod"} for group in _WORKLOAD_GROUPS}
)
"""Kinds by API group that this module reads, and decisions do not."""


@dataclass(frozen=True, slots=True)
class SchedulingObjects:
    """A cluster as kube-scheduler's filters read it."""

    state: GenericClusterState
    pods: Mapping[PodKey, Pod]
    affinities: Mapping[str, VolumeAffinity]  # the required node affinity of PersistentVolumes, by name
    # Undecoded Deployments, StatefulSets and the like, by kind, namespace and name.
    workloads: Mapping[tuple[str, str, str], Any]
    owners: Mapping[PodKey, str]  # the kind of each pod's controller; pods without one are left out
    # Pods whose condition Ready is not True; a running pod without conditions counts as ready.
    unready: frozenset[PodKey] = frozenset()

    @classmethod
    def of(cls, objects: Iterable[tuple[str, str, Any]]) -> SchedulingObjects:
        """Reads the objects of a snapshot. Each is (kind, API group, undecoded object); other kinds are left out.

        Raises:
            ObjectError: an object cannot be read
        """
        nodes: list[Node] = []
        pods: dict[PodKey, Pod] = {}
        namespaces: list[Namespace] = []
        affinities: dict[str, VolumeAffinity] = {}
        workloads: dict[tuple[str, str, str], Any] = {}
        owners: dict[PodKey, str] = {}
        unready: set[PodKey] = set()
        for kind, group, raw in objects:
            if (kind, group) == ("Node", ""):
                nodes.append(NODE.read(raw))
            elif (kind, group) == ("Pod", ""):
                owned = OWNED_POD.read(raw)
                key = owned.pod.key
                pods[key] = owned.pod
                if not owned.ready:
                    unready.add(key)
                if owned.owner:
                    owners[key] = owned.owner
            elif (kind, group) == ("Namespace", ""):
                namespaces.append(NAMESPACE.read(raw))
            elif (kind, group) == ("PersistentVolume", ""):
                affinity = VOLUME_NODE_AFFINITY.read(raw)
                if affinity.terms is not None:
                    affinities[affinity.volume] = affinity.terms
            elif (kind, group) in SCHEDULING_KINDS:
                metadata = raw.get("metadata") or {}
                workloads[kind, metadata.get("namespace") or "default", metadata.get("name", "")] = raw
        state = GenericClusterState.of(nodes, pods.values(), [])
        for namespace in namespaces:
            state = state.with_namespace(namespace)
        return cls(state, pods, affinities, workloads, owners, frozenset(unready))


def read_pod(kind: str, raw: Any) -> Pod:
    """Returns a pod, or a workload's first pod.

    Raises:
        ObjectError: it cannot be read
    """
    return POD.read(template_pod(kind, raw))
