"""Reads what kube-scheduler's own filters need from the objects of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler_core.convert.generic import NAMESPACE, NODE, VOLUME_NODE_AFFINITY
from scheduler_core.convert.snapshot_kinds import WORKLOADS
from scheduler_core.extender.kube_scheduler_filters import VolumeAffinity
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.model.generic import Namespace, Node
from scheduler_core.model.kube import Pod

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
        """Reads the objects of a snapshot, except for its pods. Each is (kind, API group, undecoded object); other kinds
        are left out.

        Raises:
            ObjectError: an object cannot be read
        """
        nodes: list[Node] = []
        namespaces: list[Namespace] = []
        affinities: dict[str, VolumeAffinity] = {}
        workloads: dict[tuple[str, str, str], Any] = {}
        for kind, group, raw in objects:
            if (kind, group) == ("Node", ""):
                nodes.append(NODE.read(raw))
            elif (kind, group) == ("Namespace", ""):
                namespaces.append(NAMESPACE.read(raw))
            elif (kind, group) == ("PersistentVolume", ""):
                affinity = VOLUME_NODE_AFFINITY.read(raw)
                if affinity.terms is not None:
                    affinities[affinity.volume] = affinity.terms
            elif (kind, group) in SCHEDULING_KINDS:
                metadata = raw.get("metadata") or {}
                workloads[kind, metadata.get("namespace") or "default", metadata.get("name", "")] = raw
        state = GenericClusterState.of(nodes, pods, [])
        for namespace in namespaces:
            state = state.with_namespace(namespace)
        return cls(state, affinities, workloads)
