"""Reads workloads whose pods a prediction creates, from a file, from the cluster, or from one of their pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from app.cli.explain_subject import (
    DEFAULT_NAMESPACE,
    POD_PREFIXES,
    WORKLOADS,
    ClusterSource,
    pod_by_name,
    read_workload,
)
from app.kube.resources import Resource
from app.kube.snapshot_file import is_file, pod_in_file, read_from
from scheduler_core.convert.applied_objects import creates_in_order
from scheduler_core.convert.pod_template import read_pod
from scheduler_core.errors import CoreError
from scheduler_core.model import kube
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.predict.cluster_additions import MEMBER_NAMES, Workload, workload_members
from scheduler_core.predict.predicted_cluster import DAEMON_SET, STATEFUL_SET

_POD: Final = "Pod"
_REPLICA_SET: Final = "ReplicaSet"


def workload_of(kind: str, raw: Any) -> Workload:
    """Returns a workload from its undecoded object, or raises an ObjectError if it cannot be read."""
    pod = read_pod(kind, raw)
    in_order = kind == STATEFUL_SET and creates_in_order(kind, raw)
    name = pod.name.removesuffix("-0")
    return Workload(kind, pod.namespace, name, pod, in_order=in_order)


def named_workload(resource: Resource, name: str, namespace: str, source: ClusterSource) -> Workload:
    """Returns a workload of the cluster; one that a snapshot file lacks is read from one of its pods.

    Raises:
        CoreError: there is no such workload
    """
    kind = resource.kind
    if source.file is not None and (kind, namespace, name) not in source.objects.workloads and kind in MEMBER_NAMES:
        members = workload_members(kind, (namespace, name), source.snapshot.pods)
        if members:
            pod = source.snapshot.pods[members[0]]
            return _workload_of_member(kind, name, pod, source.snapshot)
    return workload_of(kind, read_workload(resource, name, namespace, source))


def _workload_of_member(kind: str, name: str, member: kube.Pod, snapshot: Snapshot) -> Workload:
    mounts = []
    for mount in member.volumes:
        claim = snapshot.claims.get((member.namespace, mount.claim))
        spec = claim.spec if claim is not None else None
        # Claims that bear the name of a StatefulSet's pod are its own.
        named = kind == STATEFUL_SET and mount.claim.endswith(f"-{member.name}")
        if spec is not None and kind == _POD and not mount.ephemeral and not _allows_several_nodes(spec):
            # A pod without a controller has its claims for itself, unless they may be mounted on several nodes.
            own_claim = f"{mount.claim}-{member.name}"
            mounts.append(replace(mount, claim=own_claim, template=replace(spec, volume_name="")))
        else:
            template = replace(spec, volume_name="") if named and spec is not None else mount.template
            mounts.append(replace(mount, template=template))
    pod = replace(member, node_name="", phase="Pending", unschedulable="", volumes=tuple(mounts))
    return Workload(kind, member.namespace, name, pod, in_order=kind == STATEFUL_SET)


def _allows_several_nodes(spec: kube.ClaimSpec) -> bool:
    return any(mode in ("ReadWriteMany", "ReadOnlyMany") for mode in spec.access_modes)


def pod_template(text: str, namespace: str | None, source: ClusterSource) -> tuple[Workload, Snapshot]:
    """Returns the template that an argument names, and its cluster, with the other objects of the argument's file. The
    argument is what `explain` takes: a file, a workload such as ``sts/NAME``, or the name of a pod.

    Raises:
        CoreError: there is none, or it is of a DaemonSet, whose pods no scheduler distributes
    """
    if is_file(text):
        pod, snapshot, (kind, raw) = pod_in_file(text, source.snapshot)
        if kind != _POD:
            return read_from(text, lambda: _require_no_daemon_set(text, workload_of(kind, raw))), snapshot
        return _workload_of_member(_POD, pod.name, pod, snapshot), snapshot
    prefix, _, name = text.partition("/")
    if not text or text.endswith("/"):
        raise CoreError(f"'{text}': the name of a pod or workload is missing; see --help")
    resource = WORKLOADS.get(prefix.lower())
    if name and resource is not None:
        template = named_workload(resource, name, namespace or DEFAULT_NAMESPACE, source)
        return _require_no_daemon_set(text, template), source.snapshot
    own = name if name and prefix.lower() in POD_PREFIXES else text
    pod = pod_by_name(text, own, namespace, source)
    own_name = pod.name.rpartition("-")[0] if pod.owner in (STATEFUL_SET, _REPLICA_SET) else pod.name
    kind = pod.owner if pod.owner in (STATEFUL_SET, _REPLICA_SET, DAEMON_SET) else _POD
    template = _workload_of_member(kind, own_name, pod, source.snapshot)
    return _require_no_daemon_set(text, template), source.snapshot


def _require_no_daemon_set(text: str, workload: Workload) -> Workload:
    if workload.kind == DAEMON_SET:
        raise CoreError(f"{text}: is a DaemonSet, which has one pod on every node")
    return workload
