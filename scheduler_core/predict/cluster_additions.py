"""Changes that add pods, nodes, disks, and objects of a file."""

import re
from collections.abc import Iterable, Mapping

from scheduler_core.model import generic, kube, longhorn
from scheduler_core.model.generic import PodKey
from scheduler_core.model.kube import Condition
from scheduler_core.model.snapshot import NamespacedName
from scheduler_core.predict.disruption_budgets import without_expected_pods
from scheduler_core.predict.pod_decision import detach_volumes
from scheduler_core.predict.predicted_cluster import (
    NODE_BOUND_OWNERS,
    STATEFUL_SET,
    ChangesByObject,
    PredictedCluster,
    WhatIfError,
    with_conditions,
    with_disk,
)
from scheduler_core.predict.prediction_input import Situation
from scheduler_core.structs import Struct, replace

HOST_NAME_LABEL = "kubernetes.io/hostname"
# How Kubernetes names the pods of each kind.
MEMBER_NAMES = {STATEFUL_SET: "[0-9]+", "Deployment": "[a-z0-9]+-[a-z0-9]{5}", "ReplicaSet": "[a-z0-9]{5}"}
# The kind of a pod's controller; a workload of kind Pod has copies of a pod without one.
_POD_OWNERS = {
    STATEFUL_SET: STATEFUL_SET,
    "Deployment": "ReplicaSet",
    "ReplicaSet": "ReplicaSet",
    "Job": "Job",
    "CronJob": "Job",
    "Pod": "",
}


class Workload(Struct, frozen=True):
    """A workload that can be scaled."""

    kind: str
    namespace: str
    name: str
    pod: kube.Pod  # its template, named as the workload's pod 0
    in_order: bool = False  # whether a pod is created only when the one before it runs

    def pod_name(self, number: int) -> str:
        return f"{self.name}-{number}"

    def new_pod(self, number: int) -> kube.Pod:
        """Returns a pod of a StatefulSet or another workload, by its number."""
        name = self.pod_name(number)

        def claim_name(mount: kube.ClaimVolume) -> str:
            # Claims without a template are shared.
            if mount.ephemeral:
                return f"{name}-{mount.name}"
            own = mount.template is not None and mount.claim.endswith(self.pod.name)
            return mount.claim.removesuffix(self.pod.name) + name if own else mount.claim

        mounts = tuple(replace(mount, claim=claim_name(mount)) for mount in self.pod.volumes)
        return replace(
            self.pod,
            name=name,
            uid=_new_uid(self.namespace, name),
            node_name="",
            volumes=mounts,
            owner=_POD_OWNERS[self.kind],
            scheduling=replace(self.pod.scheduling, ready=True),
        )


def _new_uid(namespace: str, name: str) -> str:
    return f"what-if-{namespace}-{name}"


def workload_members(kind: str, workload: NamespacedName, pods: Mapping[PodKey, kube.Pod]) -> list[PodKey]:
    """Returns the live pods of a workload, those of earlier changes included, by their names, of which the last are
    removed first.
    """
    namespace, name = workload
    created = re.compile(f"{re.escape(name)}-{MEMBER_NAMES[kind]}")
    predicted = re.compile(f"{re.escape(name)}-[0-9]+")
    members = [
        key
        for key, pod in pods.items()
        if pod.live
        and key[0] == namespace
        and (predicted if pod.uid == _new_uid(*key) else created).fullmatch(key[1])
        and pod.owner in ("", _POD_OWNERS[kind])
    ]
    # Of a StatefulSet the highest numbers go first, of other kinds the pods without a node.
    if kind == STATEFUL_SET:
        return sorted(members, key=lambda key: int(key[1].rpartition("-")[2]))
    return sorted(members, key=lambda key: (not pods[key].node_name, key[1]))


def scale(situation: Situation, workload: Workload, count: int | None) -> Situation:
    """Adds pods of a workload, or removes the last ones, until it has `count`; None for as many as it has, or one if it has
    none.
    """
    own_key = (workload.namespace, workload.name)
    pods = situation.cluster.snapshot.pods
    members = workload_members(workload.kind, own_key, pods)
    count = (len(members) or 1) if count is None else count
    removed = dict.fromkeys(members[count:])
    cluster = situation.cluster
    for key in removed:
        cluster = detach_volumes(cluster, cluster.snapshot.pods[key]).without_pod(key)
    taken = set(cluster.snapshot.pods)
    entries = {key: entry for key, entry in situation.pods.items() if key not in removed}
    situation = replace(situation, cluster=without_expected_pods(cluster, workload.pod), pods=entries)
    if workload.kind == STATEFUL_SET:
        parallel = situation.parallel - {own_key} if workload.in_order else situation.parallel | {own_key}
        situation = replace(situation, parallel=parallel)
    number = 0
    for _ in range(count - len(members)):
        while (workload.namespace, workload.pod_name(number)) in taken:
            number += 1
        pod = workload.new_pod(number)
        situation = situation.with_new_pod(pod)
        taken.add(pod.namespaced_name)
    return situation


def add_nodes(situation: Situation, like: str, count: int = 1, disks: tuple[int, ...] = ()) -> Situation:
    """New nodes, each with the pods of DaemonSets, and with empty disks of these sizes in bytes; by default of the sizes of
    the node that they are like.
    """
    cluster = situation.cluster
    if like not in cluster.snapshot.longhorn_nodes:
        raise WhatIfError(f"there is no Longhorn node {like}")
    for _ in range(count):
        taken = {*cluster.snapshot.nodes, *cluster.snapshot.longhorn_nodes}
        name = next(each for index in range(len(taken) + 1) if (each := f"new-node-{index + 1}") not in taken)
        cluster = _add_node(cluster, like, name, disks)
    return replace(situation, cluster=cluster)


def _add_node(cluster: PredictedCluster, like: str, name: str, sizes: tuple[int, ...]) -> PredictedCluster:
    snapshot = cluster.snapshot
    template = snapshot.longhorn_nodes[like]
    disks = tuple(_empty_disk(disk, f"{name}-{disk.name}", disk.storage_maximum) for disk in template.disks)
    if sizes and disks:
        disks = tuple(
            replace(_empty_disk(disks[0], f"{name}-disk-{number}", size), name=f"disk-{number}", storage_reserved=0)
            for number, size in enumerate(sizes, start=1)
        )
    open_node = tuple(Condition(kind, "True") for kind in ("Ready", "Schedulable"))
    node = replace(
        template, name=name, allow_scheduling=True, eviction_requested=False, conditions=open_node, disks=disks
    )
    changes: ChangesByObject = {("longhorn_nodes", name): node}
    kube_node = snapshot.nodes.get(like)
    if kube_node is not None:
        labels = {**kube_node.labels, HOST_NAME_LABEL: name}
        changes["nodes", name] = replace(kube_node, name=name, labels=labels, unschedulable=False)
    if snapshot.csi_nodes is not None:
        changes["csi_nodes", name] = snapshot.csi_nodes.get(like)
    for manager in (snapshot.instance_managers or {}).values():
        if manager.node == like:
            changes["instance_managers", f"{manager.name}-{name}"] = replace(
                manager, name=f"{manager.name}-{name}", node=name
            )
    for image in (snapshot.engine_images or {}).values():
        if like in image.nodes:
            changes["engine_images", image.name] = replace(image, nodes=image.nodes | {name})
    cluster = cluster.update(changes)
    if like not in cluster.scheduling.nodes:
        return cluster
    node_info = cluster.scheduling.nodes[like]
    labels = {**node_info.node.labels, HOST_NAME_LABEL: name}
    scheduling = cluster.scheduling.with_node(
        replace(node_info.node, name=name, labels=labels, unschedulable=False, ready=True)
    )
    for pod in node_info.pods:
        if pod.owner in NODE_BOUND_OWNERS:
            scheduling = scheduling.with_pod(replace(pod, name=f"{pod.name}-{name}", node_name=name))
    return cluster.with_scheduling(scheduling)


def _empty_disk(disk: longhorn.Disk, uuid: str, size: int) -> longhorn.Disk:
    empty = replace(
        disk,
        uuid=uuid,
        allow_scheduling=True,
        eviction_requested=False,
        storage_maximum=size,
        storage_available=size,
        storage_scheduled=0,
        scheduled_replicas={},
        scheduled_backing_images={},
    )
    return with_conditions(empty, (Condition("Ready", "True"), Condition("Schedulable", "True")))


def add_disk(situation: Situation, node_name: str, size: int) -> Situation:
    """A new empty disk of a Longhorn node, with type and tags of the node's first disk, and nothing reserved."""
    cluster = situation.cluster
    node = cluster.snapshot.longhorn_nodes.get(node_name)
    if node is None:
        raise WhatIfError(f"there is no Longhorn node {node_name}")
    if not node.disks:
        raise WhatIfError(f"node {node_name} has no disk whose type and tags a new one could take")
    taken = {disk.name for disk in node.disks}
    name = next(each for index in range(len(taken) + 1) if (each := f"new-disk-{index + 1}") not in taken)
    disk = replace(_empty_disk(node.disks[0], f"{node.name}-{name}", size), name=name, storage_reserved=0)
    return replace(situation, cluster=cluster.update({("longhorn_nodes", node.name): with_disk(node, disk)}))


def apply_objects(
    situation: Situation,
    objects: Mapping[tuple[str, str | tuple[str, str]], object | None],
    nodes: Iterable[generic.Node] = (),
    pods: Iterable[kube.Pod] = (),
) -> Situation:
    """Replaces or adds objects of a file, as `kubectl apply` would write them: `objects` by the snapshot's field and by key,
    `nodes` are the Kubernetes nodes among them, as kube-scheduler's filters read them, and `pods` those that are new where
    they do not exist.
    """
    cluster = situation.cluster.update(objects)
    scheduling = cluster.scheduling
    for node in nodes:
        scheduling = scheduling.with_node(node)
    situation = replace(situation, cluster=cluster.with_scheduling(scheduling))
    for pod in pods:
        stored = situation.cluster.snapshot.pods.get(pod.namespaced_name)
        if stored is None or not stored.live:
            situation = situation.with_new_pod(pod)
    return situation
