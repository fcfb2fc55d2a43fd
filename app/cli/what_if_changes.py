"""Reads what a prediction changes: the verbs of `longhorn-extender what-if`, and the workloads whose pods are created."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from app.cli import cluster_source, options
from app.kube import resources, snapshot_file
from scheduler_core.convert import kubectl, snapshot_kinds
from scheduler_core.convert.generic import NODE, SCHEDULED_POD
from scheduler_core.convert.snapshot_kinds import WORKLOADS as WORKLOAD_KINDS
from scheduler_core.errors import CoreError
from scheduler_core.model import generic, kube
from scheduler_core.model.snapshot import NamespacedName, Snapshot
from scheduler_core.predict import cluster_additions, cluster_changes
from scheduler_core.predict.predicted_cluster import DAEMON_SET, STATEFUL_SET
from scheduler_core.predict.prediction_input import Change
from scheduler_core.structs import replace

_MAX_COUNT = 10_000
_POD = "Pod"
_NAMESPACED = frozenset({"PersistentVolumeClaim", "PodDisruptionBudget", *WORKLOAD_KINDS})


class ChangeReader:
    """Makes a change of the text of a verb.

    Args:
        namespace: that of claims and workloads without one
    """

    def __init__(self, source: cluster_source.ClusterSource, namespace: str | None) -> None:
        self._source = source
        self._namespace = namespace or cluster_source.DEFAULT_POD_NAMESPACE
        self._applied: dict[tuple[str, str, str], cluster_additions.Workload] = {}
        self.skipped: dict[str, None] = {}  # what the files of `--apply` have and no decision reads

    def read(self, verb: str, text: str) -> Sequence[Change]:
        """Returns the changes of a verb, or raises a CoreError if its text cannot be read."""
        match verb:
            case "drain":
                return [partial(cluster_changes.drain, nodes=_names(text, "--drain"))]
            case "lose":
                return [_loss(text)]
            case "scale":
                return [self._scale(text)]
            case "setting":
                name, value = _assignment(text, "--set", "SETTING=VALUE")
                return [partial(cluster_changes.set_setting, name=name, value=value)]
            case "expand":
                name, value = _assignment(text, "--expand", "CLAIM=SIZE")
                size = options.positive_bytes(value, f"--expand {text}")
                return [partial(cluster_changes.expand, key=self._key(name), size=size)]
            case "add_node":
                return [self._add_node(text)]
            case "add_disk":
                name, value = _assignment(text, "--add-disk", "NODE=SIZE")
                size = options.positive_bytes(value, f"--add-disk {text}")
                return [partial(cluster_additions.add_disk, node_name=name, size=size)]
            case _:
                return self._apply(text)

    def _key(self, name: str) -> NamespacedName:
        namespace, slash, own = name.partition("/")
        return (namespace, own) if slash else (self._namespace, name)

    def _add_node(self, text: str) -> Change:
        values: dict[str, list[str]] = {}
        key = ""
        for part in text.split(","):
            head, separator, tail = part.partition("=")
            key = head if separator else key
            values.setdefault(key, []).append(tail if separator else part)
        counts = values.pop("count", ["1"])
        like = values.pop("like", [])
        if not like:
            nodes = self._source.snapshot.longhorn_nodes.values()
            like = sorted(node.name for node in nodes if node.ready and node.schedulable and node.disks)[:1]
            if not like:
                raise CoreError(f"--add-node {text}: no Longhorn node is ready; name one with like=NODE")
        sizes = tuple(options.positive_bytes(size, f"--add-node {text}") for size in values.pop("disks", []))
        if values or len(like) != 1 or len(counts) != 1:
            raise CoreError(f"--add-node {text}: expected like=NODE, count=N and disks=SIZE,SIZE")
        count = _count(counts[0], f"--add-node {text}")
        return partial(cluster_additions.add_nodes, like=like[0], count=count, disks=sizes)

    def _scale(self, text: str) -> Change:
        subject, number = _assignment(text, "--scale", "sts/NAME=N or deploy/NAME=N")
        prefix, _, name = subject.partition("/")
        resource = cluster_source.WORKLOADS.get(prefix.lower())
        if resource is None or resource.kind not in cluster_additions.MEMBER_NAMES or not name:
            raise CoreError(f"--scale {text}: expected sts/NAME=N, deploy/NAME=N or rs/NAME=N")
        namespace, own_name = self._key(name)
        count = _count(number, f"--scale {text}")
        key = (resource.kind, namespace, own_name)
        workload = self._applied.get(key)
        if workload is None:
            workload = named_workload(resource, own_name, namespace, self._source)
        return partial(cluster_additions.scale, workload=workload, count=count)

    def _apply(self, text: str) -> Sequence[Change]:
        objects: dict[tuple[str, Any], object | None] = {}
        nodes: list[generic.Node] = []
        pods: list[kube.Pod] = []
        scales: list[Change] = []
        for kind, group, listed in snapshot_file.read_objects(text):
            entry = snapshot_kinds.KINDS.get((group, kind))
            raw = kubectl.with_namespace(listed, self._namespace) if kind in _NAMESPACED else listed
            if kind in cluster_additions.MEMBER_NAMES:
                scales.append(snapshot_file.read_from(text, partial(self._apply_workload, kind, raw)))
            elif kind == "Pod":
                pods.append(snapshot_file.read_from(text, partial(_pod, raw)))
            elif kind in WORKLOAD_KINDS:
                raise CoreError(f"--apply {text}: objects of kind {kind} cannot be predicted")
            elif entry is None:
                self.skipped[f"--apply {text}: objects of kind {kind} are not read"] = None
            else:
                key, value = snapshot_file.read_from(text, partial(entry.read, raw))
                objects[entry.field, key] = value
            if (kind, group) == ("Node", ""):
                nodes.append(snapshot_file.read_from(text, partial(NODE.read, raw)))
        return [partial(cluster_additions.apply_objects, objects=objects, nodes=nodes, pods=pods), *scales]

    def _apply_workload(self, kind: str, raw: Any) -> Change:
        workload = workload_of(kind, raw)
        self._applied[kind, workload.namespace, workload.name] = workload
        replicas = kubectl.workload_spec(kind, raw).replicas
        count = None if replicas is None else _count(str(replicas), f"{kind} {workload.name}: spec.replicas")
        return partial(cluster_additions.scale, workload=workload, count=count)


def _loss(text: str) -> Change:
    key, separator, zone = text.partition("=")
    if separator:
        if key != "zone" or not zone:
            raise CoreError(f"--lose {text}: expected NODE, NODE/DISK or zone=NAME")
        return partial(cluster_changes.lose_zone, zone=zone)
    node, slash, disk = text.partition("/")
    if slash:
        return partial(cluster_changes.lose_disk, node_name=node, disk_name=disk)
    return partial(cluster_changes.lose_nodes, nodes=_names(text, "--lose"))


def _pod(raw: object) -> kube.Pod:
    pod = SCHEDULED_POD.read(raw)
    if pod.node_name:
        raise CoreError(f"Pod {pod.key}: spec.nodeName is set, so that no scheduler decides about it")
    # Its status is not applied, and no controller creates it again.
    return replace(pod, owner="", scheduling=replace(pod.scheduling, ready=True))


def _names(text: str, option: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if not names:
        raise CoreError(f"{option}: the name of a node is missing")
    return names


def _assignment(text: str, option: str, expected: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise CoreError(f"{option} {text}: expected {expected}")
    return name, value


def _count(text: str, subject: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_COUNT:
        raise CoreError(f"{subject}: expected a number from 0 to {_MAX_COUNT}")
    return int(text)


def workload_of(kind: str, raw: Any) -> cluster_additions.Workload:
    """Returns a workload from its undecoded object, or raises an ObjectError if it cannot be read."""
    pod = kubectl.read_pod(kind, raw)
    in_order = kind == STATEFUL_SET and kubectl.workload_spec(kind, raw).creates_in_order
    name = pod.name.removesuffix("-0")
    return cluster_additions.Workload(kind, pod.namespace, name, pod, in_order=in_order)


def named_workload(
    resource: resources.Resource, name: str, namespace: str, source: cluster_source.ClusterSource
) -> cluster_additions.Workload:
    """Returns a workload of the cluster; one that a snapshot file lacks is read from one of its pods. Raises a
    CoreError if there is no such workload.
    """
    kind = resource.kind
    pods = source.snapshot.pods
    listed = source.query.snapshot is None or (kind, namespace, name) in source.objects.workloads
    if not listed and kind in cluster_additions.MEMBER_NAMES:
        members = cluster_additions.workload_members(kind, (namespace, name), pods)
        if members:
            return _workload_of_member(kind, name, pods[members[0]], source.snapshot)
    return workload_of(kind, cluster_source.read_workload(resource, name, namespace, source))


def _workload_of_member(kind: str, name: str, member: kube.Pod, snapshot: Snapshot) -> cluster_additions.Workload:
    mounts = []
    for mount in member.volumes:
        claim = snapshot.claims.get((member.namespace, mount.claim))
        spec = claim.spec if claim is not None else None
        # Claims that bear the name of a StatefulSet's pod are its own.
        named = kind == STATEFUL_SET and mount.claim.endswith(f"-{member.name}")
        shared = spec is not None and {"ReadWriteMany", "ReadOnlyMany"}.intersection(spec.access_modes)
        if spec is not None and kind == _POD and not mount.ephemeral and not shared:
            # A pod without a controller has its claims for itself, unless they may be mounted on several nodes.
            own_claim = f"{mount.claim}-{member.name}"
            mounts.append(replace(mount, claim=own_claim, template=replace(spec, volume_name="")))
        else:
            template = replace(spec, volume_name="") if named and spec is not None else mount.template
            mounts.append(replace(mount, template=template))
    pod = replace(member, node_name="", phase="Pending", unschedulable="", volumes=tuple(mounts))
    return cluster_additions.Workload(kind, member.namespace, name, pod, in_order=kind == STATEFUL_SET)


def pod_template(
    text: str, namespace: str | None, source: cluster_source.ClusterSource
) -> tuple[cluster_additions.Workload, Snapshot]:
    """Returns the template that an argument names, and its cluster, with the other objects of the argument's file. The
    argument is what `explain` takes: a file, a workload such as ``sts/NAME``, or the name of a pod. Raises a CoreError
    if there is none, or it is of a DaemonSet, whose pods no scheduler distributes.
    """
    if snapshot_file.is_file(text):
        pod, snapshot, (kind, raw) = snapshot_file.pod_in_file(text, source.snapshot)
        if kind != _POD:
            return snapshot_file.read_from(text, lambda: _require_no_daemon_set(text, workload_of(kind, raw))), snapshot
        return _workload_of_member(_POD, pod.name, pod, snapshot), snapshot
    prefix, _, name = text.partition("/")
    if not text or text.endswith("/"):
        raise CoreError(f"'{text}': the name of a pod or workload is missing; see --help")
    resource = cluster_source.WORKLOADS.get(prefix.lower())
    if name and resource is not None:
        template = named_workload(resource, name, namespace or cluster_source.DEFAULT_POD_NAMESPACE, source)
        return _require_no_daemon_set(text, template), source.snapshot
    own = name if name and prefix.lower() in cluster_source.POD_PREFIXES else text
    pod = cluster_source.pod_by_name(text, own, namespace, source)
    own_name = pod.name.rpartition("-")[0] if pod.owner in (STATEFUL_SET, "ReplicaSet") else pod.name
    kind = pod.owner if pod.owner in (STATEFUL_SET, "ReplicaSet", DAEMON_SET) else _POD
    template = _workload_of_member(kind, own_name, pod, source.snapshot)
    return _require_no_daemon_set(text, template), source.snapshot


def _require_no_daemon_set(text: str, workload: cluster_additions.Workload) -> cluster_additions.Workload:
    if workload.kind == DAEMON_SET:
        raise CoreError(f"{text}: is a DaemonSet, which has one pod on every node")
    return workload
