"""What the tokens of the generic scheduler and of the DiskSchedule controllers can change, on a real API server."""

import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from app.disk_schedule.lifecycle import LEASE as DISK_SCHEDULE
from app.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from app.kube.resources import (
    CLAIMS,
    LEASES,
    LONGHORN_BACKING_IMAGES,
    LONGHORN_REPLICAS,
    LONGHORN_VOLUMES,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    Resource,
)
from app.scheduler.lifecycle import LEASE as GENERIC
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from scheduler_core.convert import disk_schedule as convert
from scheduler_core.convert.generic import binding, not_scheduled_patch, selected_node_patch
from scheduler_core.convert.leadership import new_lease, update_lease
from scheduler_core.leadership.election import MAX_LEASE_DURATION, LeaseRecord
from scheduler_core.model.kube import SELECTED_NODE_ANNOTATION, Condition, Pod
from tests import builders
from tests.builders import Object
from tests.e2e import disk_schedule
from tests.manifests.clusters import assert_types_checked, client_of, refused, wait_for_policy
from tests.manifests.load import MANIFESTS, NAMESPACE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
ACCOUNTS = (GENERIC, DISK_SCHEDULE)
ZONE = "topology.kubernetes.io/zone"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster with both programs' access, whose policies are in force."""
    with DevCluster(tmp_path_factory.mktemp("tokens"), ClusterOptions(audit=False)) as running:
        running.create_node("one", labels={ZONE: "a"})
        disk_schedule.install(running)
        running.apply(MANIFESTS / "generic-scheduler/access")
        for account in ACCOUNTS:
            wait_for_policy(running, account, "no Lease but", "create", "-f", "-", body=json.dumps(lease("other")))
        yield running


@pytest.fixture
async def scheduler(cluster: DevCluster) -> AsyncIterator[KubeClient]:
    async with client_of(cluster, GENERIC) as client:
        yield client


@pytest.fixture
async def controllers(cluster: DevCluster) -> AsyncIterator[KubeClient]:
    async with client_of(cluster, DISK_SCHEDULE) as client:
        yield client


def lease(name: str, seconds: int = int(MAX_LEASE_DURATION)) -> Object:
    return new_lease(NAMESPACE, name, LeaseRecord("a", seconds, "", "", 0))


def renewed_lease(raw: bytes, seconds: int) -> Object:
    version = json.loads(raw)["metadata"]["resourceVersion"]
    return update_lease(raw, LeaseRecord("a", seconds, "", "", 1, version))


@pytest.mark.parametrize("account", ACCOUNTS)
async def test_its_own_lease_can_be_created_and_renewed(cluster: DevCluster, account: str) -> None:
    path = LEASES.path(NAMESPACE, account)
    async with client_of(cluster, account) as client:
        raw = await client.create(LEASES.path(NAMESPACE), lease(account))
        try:
            for seconds in (int(MAX_LEASE_DURATION), 3600):
                raw = await client.replace(path, renewed_lease(raw, seconds))
            with refused("an hour at most"):
                await client.replace(path, renewed_lease(raw, 2**31 - 1))
        finally:
            cluster.api.delete(path)


@pytest.mark.parametrize("account", ACCOUNTS)
async def test_no_other_lease_can_be_created_and_none_for_more_than_an_hour(cluster: DevCluster, account: str) -> None:
    """RBAC allows it, because it ignores names; longhorn-manager would wait for such a Lease."""
    forbidden = [
        (lease("longhorn-manager-upgrade-lock"), "no Lease but"),
        ({**lease(""), "metadata": {"generateName": account}}, "no Lease but"),
        (lease(account, 3601), "an hour at most"),
    ]
    async with client_of(cluster, account) as client:
        for body, message in forbidden:
            with refused(message):
                await client.create(LEASES.path(NAMESPACE), body)
            cluster.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(body))


def pending_pod(cluster: DevCluster) -> Object:
    """A new pod of the scheduler, with a label, an annotation and a condition of others."""
    container = {"name": "main", "image": "none"}
    name = f"pod-{next(_numbers)}"
    metadata = {"name": name, "labels": {"mine": "1"}, "annotations": {"mine": "1"}}
    spec = {"schedulerName": GENERIC, "containers": [container]}
    cluster.api.create(PODS.path("default"), {"metadata": metadata, "spec": spec})
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    pod: Object = cluster.api.patch(PODS.path("default", name, "status"), {"status": {"conditions": [ready]}})
    return pod


def pending_claim(cluster: DevCluster) -> Object:
    """A new claim that waits for its first consumer, with a label and an annotation of others."""
    metadata = {"name": f"claim-{next(_numbers)}", "labels": {"mine": "1"}, "annotations": {"mine": "1"}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "none"}
    claim: Object = cluster.api.create(CLAIMS.path("default"), {"metadata": metadata, "spec": spec})
    return claim


def bound_claim(cluster: DevCluster) -> Object:
    """A new claim that may grow."""
    name = f"bound-{next(_numbers)}"
    class_body = {"metadata": {"name": name}, "provisioner": "example.com/none", "allowVolumeExpansion": True}
    cluster.api.create(STORAGE_CLASSES.path(), class_body)
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": name}
    volume_spec = {**spec, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/none"}}
    cluster.api.create(PERSISTENT_VOLUMES.path(), {"metadata": {"name": name}, "spec": volume_spec})
    claim_spec = {**spec, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
    cluster.api.create(CLAIMS.path("default"), {"metadata": {"name": name}, "spec": claim_spec})
    path = CLAIMS.path("default", name)
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", f"persistentvolumeclaim/{name}", "--timeout=60s")
    claim: Object = cluster.api.get(path)
    return claim


def decoded_pod(raw: Mapping[str, Any]) -> Pod:
    metadata = raw["metadata"]
    return Pod(metadata["namespace"], metadata["name"], uid=metadata["uid"])


async def test_the_scheduler_writes_a_pods_condition_and_binds_it(cluster: DevCluster, scheduler: KubeClient) -> None:
    pod = decoded_pod(pending_pod(cluster))
    path = PODS.path("default", pod.name)
    for message in ("first", "second"):
        raw = await scheduler.get(path)
        patch = not_scheduled_patch(raw, pod.uid, "Unschedulable", message, "2026-01-01T00:00:01Z")
        assert patch is not None
        await scheduler.patch(f"{path}/status", patch, STRATEGIC_MERGE_PATCH)
    await scheduler.patch(f"{path}/status", {"status": {"nominatedNodeName": "one"}})
    await scheduler.create(f"{path}/binding", binding(pod, "one"))
    bound = cluster.api.get(path)
    assert bound["spec"]["nodeName"] == "one"
    assert bound["metadata"]["annotations"] == {"mine": "1"}


async def test_the_scheduler_selects_a_claims_node_again(cluster: DevCluster, scheduler: KubeClient) -> None:
    path = CLAIMS.path("default", pending_claim(cluster)["metadata"]["name"])
    for node in ("one", "two"):
        changed = json.loads(await scheduler.patch(path, selected_node_patch(node)))
        assert changed["metadata"]["annotations"] == {"mine": "1", SELECTED_NODE_ANNOTATION: node}


Change = tuple[Mapping[str, Any], str]
"""A merge patch, and what the refusal says."""

POD_STATUS: dict[str, Change] = {
    "label": ({"metadata": {"labels": {"mine": "2"}}}, "no label"),
    "all labels": ({"metadata": {"labels": None}}, "no label"),
    "new annotation": ({"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: "one"}}}, "no annotation"),
    "annotations removed": ({"metadata": {"annotations": None}}, "no annotation"),
    "finalizer": ({"metadata": {"finalizers": ["example.com/kept"]}}, "finalizer"),
    "phase": ({"status": {"phase": "Failed"}}, "nothing of a pod's status"),
    "address": ({"status": {"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}]}}, "nothing of a pod's status"),
    "phase with a condition": (
        {"status": {"phase": "Failed", "conditions": [{"type": "PodScheduled", "status": "False"}]}},
        "nothing of a pod's status",
    ),
    "readiness": ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "no condition of a pod but"),
    "no conditions": ({"status": {"conditions": None}}, "no condition of a pod but"),
}
CLAIM: dict[str, Change] = {
    "label": ({"metadata": {"labels": {"mine": "2"}}}, "no label"),
    "annotation": ({"metadata": {"annotations": {"mine": "2"}}}, "no annotation"),
    "annotation with a node": (
        {"metadata": {"annotations": {"mine": None, SELECTED_NODE_ANNOTATION: "one"}}},
        "no annotation",
    ),
    "long annotation": ({"metadata": {"annotations": {SELECTED_NODE_ANNOTATION: "x" * 254}}}, "253 characters"),
    "finalizers removed": ({"metadata": {"finalizers": None}}, "finalizer"),
    "volume": ({"spec": {"volumeName": "of-another-claim"}}, "a claim's spec"),
    "growth": ({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}, "a claim's spec"),
}


async def assert_refused(cluster: DevCluster, client: KubeClient, path: str, change: Change) -> None:
    """The token's patch is refused with a reason, and the administrator's is accepted."""
    body, message = change
    with refused(f"the generic scheduler may .*{message}|holds a node.*{message}"):
        await client.patch(path, body)
    cluster.api.patch(path, body)


@pytest.mark.parametrize("what", POD_STATUS)
async def test_the_scheduler_changes_nothing_else_of_a_pod(
    cluster: DevCluster, scheduler: KubeClient, what: str
) -> None:
    """RBAC allows every field of pods/status, and the metadata."""
    path = PODS.path("default", pending_pod(cluster)["metadata"]["name"], "status")
    await assert_refused(cluster, scheduler, path, POD_STATUS[what])


@pytest.mark.parametrize("what", CLAIM)
async def test_the_scheduler_changes_nothing_else_of_a_claim(
    cluster: DevCluster, scheduler: KubeClient, what: str
) -> None:
    """RBAC allows every field."""
    claim = (bound_claim if what == "growth" else pending_claim)(cluster)
    await assert_refused(cluster, scheduler, CLAIMS.path("default", claim["metadata"]["name"]), CLAIM[what])


@pytest.mark.parametrize("field", ["labels", "annotations"])
async def test_a_binding_gives_a_pod_no_label_and_no_annotation(
    cluster: DevCluster, scheduler: KubeClient, field: str
) -> None:
    """The API server copies them to the pod."""
    pod = decoded_pod(pending_pod(cluster))
    body = binding(pod, "one")
    body["metadata"][field] = {"app": "of-another-service"}
    with refused("no label and no annotation"):
        await scheduler.create(PODS.path("default", pod.name, "binding"), body)
    assert "nodeName" not in cluster.api.get(PODS.path("default", pod.name))["spec"]


def longhorn_objects(cluster: DevCluster) -> dict[Resource, str]:
    """New objects of Longhorn, by kind, with what the controllers must leave alone."""
    name = f"object-{next(_numbers)}"
    bodies = {
        LONGHORN_REPLICAS: disk_schedule.replica(name, name, 1),
        LONGHORN_BACKING_IMAGES: disk_schedule.image(name, 1),
        LONGHORN_VOLUMES: builders.volume(name, 1),
    }
    for resource, body in bodies.items():
        metadata = {**body["metadata"], "namespace": NAMESPACE, "annotations": {"mine": "1"}}
        cluster.api.create(resource.path(NAMESPACE), {**body, "metadata": metadata})
    conditions = [{"type": "Scheduled", "status": "True"}]
    status = {"state": "attached", "robustness": "healthy", "conditions": conditions}
    cluster.api.patch(LONGHORN_VOLUMES.path(NAMESPACE, name, "status"), {"status": status})
    return dict.fromkeys(bodies, name)


async def test_the_controllers_write_what_they_decide(cluster: DevCluster, controllers: KubeClient) -> None:
    condition = Condition("DiskAllocation", "False", "NoSpace", "too small", "2026-01-01T00:00:00Z")
    writes: list[tuple[Resource, str, Callable[[bytes], Object]]] = [
        (LONGHORN_REPLICAS, "", lambda raw: convert.with_replica_fields(raw, place=("one", "disk", "/disk"), size=2)),
        (LONGHORN_REPLICAS, "", lambda raw: convert.with_replica_fields(raw, place=("", "", ""))),
        (LONGHORN_REPLICAS, "", partial(convert.set_finalizer, present=False)),
        (LONGHORN_BACKING_IMAGES, "", lambda raw: convert.with_copies(raw, ("disk", "other"), ())),
        (LONGHORN_BACKING_IMAGES, "", lambda raw: convert.with_copies(raw, (), ("disk",))),
        (LONGHORN_BACKING_IMAGES, "", partial(convert.set_finalizer, present=False)),
        (LONGHORN_VOLUMES, "status", lambda raw: convert.with_volume_condition(raw, condition)),
        (
            LONGHORN_VOLUMES,
            "status",
            lambda raw: convert.with_volume_condition(raw, Condition("DiskAllocation", "True")),
        ),
    ]
    names = longhorn_objects(cluster)
    for resource, subresource, change in writes:
        body = change(await controllers.get(resource.path(NAMESPACE, names[resource])))
        await controllers.replace(resource.path(NAMESPACE, names[resource], subresource), body)
    volume = cluster.api.get(LONGHORN_VOLUMES.path(NAMESPACE, names[LONGHORN_VOLUMES]))
    assert [entry["type"] for entry in volume["status"]["conditions"]] == ["Scheduled", "DiskAllocation"]


METADATA: dict[str, Change] = {
    "label": ({"metadata": {"labels": {"mine": "2"}}}, "no label"),
    "annotation": ({"metadata": {"annotations": {"mine": "2"}}}, "no annotation"),
    "finalizer": ({"metadata": {"finalizers": ["example.com/kept", "longhorn.io"]}}, "finalizer but longhorn.io"),
}
LONGHORN: dict[str, tuple[Resource, str, Change]] = {
    **{
        f"{what} of {resource.plural}": (resource, "", change)
        for what, change in METADATA.items()
        for resource in (LONGHORN_REPLICAS, LONGHORN_BACKING_IMAGES)
    },
    "volume of a replica": (LONGHORN_REPLICAS, "", ({"spec": {"volumeName": "other"}}, "its place and size")),
    "failure of a replica": (LONGHORN_REPLICAS, "", ({"spec": {"failedAt": "now"}}, "its place and size")),
    "copies of an image": (LONGHORN_BACKING_IMAGES, "", ({"spec": {"minNumberOfCopies": 9}}, "its disks")),
    "state of a volume": (LONGHORN_VOLUMES, "status", ({"status": {"state": "detached"}}, "its condition")),
    "new field of a volume": (LONGHORN_VOLUMES, "status", ({"status": {"ownerID": "one"}}, "its condition")),
    "condition of a volume": (
        LONGHORN_VOLUMES,
        "status",
        ({"status": {"conditions": [{"type": "Scheduled", "status": "False"}]}}, "its condition"),
    ),
}


def merged(body: Mapping[str, Any], change: Mapping[str, Any]) -> Object:
    result = dict(body)
    for key, value in change.items():
        result[key] = merged(result.get(key) or {}, value) if isinstance(value, dict) else value
    return result


@pytest.mark.parametrize("what", LONGHORN)
async def test_the_controllers_change_nothing_else_of_longhorns_objects(
    cluster: DevCluster, controllers: KubeClient, what: str
) -> None:
    """RBAC allows every field."""
    resource, subresource, (change, message) = LONGHORN[what]
    name = longhorn_objects(cluster)[resource]
    path = resource.path(NAMESPACE, name, subresource)
    body = merged(json.loads(await controllers.get(resource.path(NAMESPACE, name))), change)
    with refused(f"the DiskSchedule controllers may .*{message}"):
        await controllers.replace(path, body)
    cluster.api.patch(path, change)


@pytest.mark.parametrize("account", ACCOUNTS)
def test_the_policies_pass_the_type_check(cluster: DevCluster, account: str) -> None:
    assert_types_checked(cluster, account)
