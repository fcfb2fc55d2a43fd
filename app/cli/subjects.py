"""The pods and workloads that an argument names: in a file, in the cluster, or through a workload or claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from app.cli.query import ClusterSource
from app.kube.resources import Resource
from app.kube.snapshot_file import is_file, named_pod, pod_in_file
from scheduler_core.convert.kubectl import read_pod
from scheduler_core.errors import CoreError
from scheduler_core.model import kube
from scheduler_core.model.listing import natural_key
from scheduler_core.model.snapshot import NamespacedName, Snapshot

DEFAULT_NAMESPACE: Final = "default"
POD_PREFIXES: Final = frozenset({"po", "pod", "pods"})
_APPS: Final = ("apps", "v1")
_BATCH: Final = ("batch", "v1")
WORKLOADS: Final = {
    prefix: Resource(*group, plural, kind, namespaced=True)
    for group, plural, kind, *short in (
        (_APPS, "deployments", "Deployment", "deploy"),
        (_APPS, "statefulsets", "StatefulSet", "sts"),
        (_APPS, "daemonsets", "DaemonSet", "ds"),
        (_APPS, "replicasets", "ReplicaSet", "rs"),
        (_BATCH, "jobs", "Job"),
        (_BATCH, "cronjobs", "CronJob", "cj"),
    )
    for prefix in (plural, kind.lower(), *short)
}
"""Kinds with a pod template by the names that kubectl takes."""


@dataclass(frozen=True, slots=True)
class ExplainedPod:
    """A pod that is asked about."""

    pod: kube.Pod
    snapshot: Snapshot  # the cluster with the other objects of the pod's file
    selection: str = ""  # why it is this pod, where something else was named; otherwise ""


def select_pod(text: str, namespace: str | None, source: ClusterSource) -> ExplainedPod:
    """Returns the pod that an argument names: `pod/NAME`, `deploy/NAME`, `sts/NAME` and the like, a file with a pod or
    a workload, or a pod's name or namespace/name.

    Raises:
        CoreError: there is no such pod, or there are several
    """
    prefix, _, name = text.partition("/")
    if not text or text.endswith("/"):
        raise CoreError(f"'{text}': the name of a pod is missing; see --help")
    if is_file(text):
        pod, snapshot, (kind, raw) = pod_in_file(text, source.snapshot)
        selection = "" if kind == "Pod" else _first_pod(kind, raw)
        return ExplainedPod(pod, snapshot, selection)
    if name and prefix.lower() in POD_PREFIXES:
        return ExplainedPod(pod_by_name(text, name, namespace, source), source.snapshot)
    if name and prefix.lower() in WORKLOADS:
        return _pod_of_workload(WORKLOADS[prefix.lower()], (namespace or DEFAULT_NAMESPACE, name), source)
    return ExplainedPod(pod_by_name(text, text, namespace, source), source.snapshot)


def pod_by_name(text: str, name: str, namespace: str | None, source: ClusterSource) -> kube.Pod:
    """Returns the pod of a name or namespace/name; `text` is how the user wrote it."""
    named_namespace, slash, _ = name.partition("/")
    if slash and namespace is not None and namespace != named_namespace:
        raise CoreError(f"{text}: contradicts --namespace {namespace}")
    return named_pod(name, source.snapshot, namespace)


def _pod_of_workload(resource: Resource, key: NamespacedName, source: ClusterSource) -> ExplainedPod:
    """Returns a workload's first pod that waits, its first pod, or the one that it would create."""
    # Its import brings what `what-if` changes in a cluster.
    from scheduler_core.predict.cluster_additions import MEMBER_NAMES, workload_members

    kind = resource.kind
    pods = source.snapshot.pods
    members = workload_members(kind, key, pods) if kind in MEMBER_NAMES else []
    if members:
        first = next((member for member in members if not pods[member].node_name), members[0])
        waits = "none of its pods waits" if pods[first].node_name else "of those that wait"
        return ExplainedPod(pods[first], source.snapshot, f"the first of {kind} {key[1]}, {waits}")
    raw = read_workload(resource, key[1], key[0], source)
    return ExplainedPod(read_pod(kind, raw), source.snapshot, _first_pod(kind, raw))


def _first_pod(kind: str, raw: Any) -> str:
    # Only a StatefulSet's pods have names that are known before.
    name = "" if kind == "StatefulSet" else ", under a name of its own"
    return f"the first that {kind} {raw['metadata']['name']} creates{name}"


def read_workload(resource: Resource, name: str, namespace: str, source: ClusterSource) -> Any:
    """Returns a workload, undecoded, from its cluster."""
    raw = source.objects.workloads.get((resource.kind, namespace, name))
    if raw is None and source.query.snapshot is None:
        import asyncio

        return asyncio.run(_get(resource.path(namespace, name), source.query.kubeconfig, source.query.context))
    if raw is None:
        raise CoreError(
            f"{source.query.snapshot}: has no {resource.kind} {namespace}/{name}; give a file with it, or add the output of "
            f"`kubectl get {resource.plural} -A -o yaml`"
        )
    return raw


async def _get(path: str, kubeconfig: str | None, context: str | None) -> Any:
    from app.kube.client import KubeClient

    client = await KubeClient.connect(kubeconfig, context)
    try:
        return msgspec.json.decode(await client.get(path))
    finally:
        await client.close()


def claim_pod(text: str, namespace: str | None, source: ClusterSource) -> ExplainedPod:
    """Returns the pod that uses a claim or, without one, a pod that would mount the claim alone.

    Raises:
        CoreError: there is no such claim
    """
    head, slash, tail = text.partition("/")
    if slash and namespace is not None and namespace != head:
        raise CoreError(f"--claim {text}: contradicts --namespace {namespace}")
    key = (head, tail) if slash else (namespace or DEFAULT_NAMESPACE, text)
    if key not in source.snapshot.claims:
        raise CoreError(f"--claim {text}: there is no PersistentVolumeClaim {'/'.join(key)}")
    users = [
        pod
        for pod in source.snapshot.pods.values()
        if pod.live and pod.namespace == key[0] and any(volume.claim == key[1] for volume in pod.volumes)
    ]
    if users:
        # One that waits comes first.
        user = min(users, key=lambda pod: (bool(pod.node_name), pod.key))
        return ExplainedPod(user, source.snapshot, f"which uses claim {key[1]}")
    pod = kube.Pod(key[0], key[1], volumes=(kube.ClaimVolume("claim", key[1]),))
    selection = f"no pod uses claim {key[1]}; one that mounts it alone"
    return ExplainedPod(pod, source.snapshot, selection)


def waiting_pods(namespace: str | None, source: ClusterSource) -> list[ExplainedPod]:
    pods: Iterable[kube.Pod] = source.snapshot.pods.values()
    waiting = [pod for pod in pods if pod.live and not pod.node_name and namespace in (None, pod.namespace)]
    return [ExplainedPod(pod, source.snapshot) for pod in sorted(waiting, key=lambda pod: natural_key(pod.key))]
