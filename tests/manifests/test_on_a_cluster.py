"""The manifests and kube-scheduler configurations on a real API server and a real kube-scheduler."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.extender.nudger import write_nudge
from app.extender.offer_store import KEY
from app.kube.resources import CONFIG_MAPS, ENDPOINT_SLICES, LEASES, NODES, PODS
from devcluster.dev_cluster import DevCluster
from devcluster.polling import wait_until
from devcluster.scheduler_config import DEFAULT
from scheduler_core.convert.generic import NUDGE_ANNOTATION
from scheduler_core.model.kube import Pod
from tests.control_plane import ControlPlane
from tests.manifests.clusters import assert_types_checked, client_of, node_of, pod, refused, wait_for_policy
from tests.manifests.kustomize import (
    BASES,
    build_own,
    build_with_policy,
    documented_kustomization,
    policy_kustomization,
)
from tests.manifests.load import (
    CLUSTER_PERMISSIONS,
    CONFIGS,
    MANIFESTS,
    NAME,
    NAMESPACE,
    NAMESPACE_PERMISSIONS,
    OFFERS,
    ROOT,
    Object,
    Permission,
    by_name,
)
from tests.manifests.platform_pages import page

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}"
EVERY_VERB = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
# What a widened rule would most likely allow, in addition to other verbs on the kinds that may be read.
FORBIDDEN_PERMISSIONS: list[Permission] = [
    (verb, group, resource, "")
    for group, resource in [
        ("", "secrets"),
        ("", "serviceaccounts/token"),
        ("", "pods/exec"),
        ("", "pods/binding"),
        ("", "pods/status"),
        ("", "nodes/proxy"),
        ("", "endpoints"),
        ("", "services"),
        ("", "events"),
        ("apps", "deployments"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
    ]
    for verb in EVERY_VERB
]
EXTENDER_PODS = f"--selector=app.kubernetes.io/name={NAME}"


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[DevCluster]:
    """A cluster with the extender's access and a namespace under the restricted Pod Security Standard."""
    with control_plane.borrow(nodes=2) as running:
        running.kubectl("apply", "--server-side", "-k", str(MANIFESTS / "test-cluster"))
        running.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        yield running


@pytest.fixture
def use_scheduler_config(cluster: DevCluster, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Restarts kube-scheduler with a configuration whose extender is down; restores the default afterwards."""
    plain = tmp_path / "plain.yaml"
    plain.write_text(DEFAULT)
    yield lambda name: cluster.use_scheduler_config(CONFIGS / name, f"127.0.0.1:{cluster.free_port()}")
    cluster.use_scheduler_config(plain)


def is_allowed(cluster: DevCluster, permission: Permission, namespace: str) -> bool:
    """Whether the ServiceAccount may do this, as `kubectl auth can-i` would say."""
    verb, group, resource, name = permission
    plural, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "name": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": ACCOUNT,
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
            "resourceAttributes": {**attributes, "namespace": namespace},
        },
    }
    answer = cluster.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


@pytest.mark.smoke
def test_everything_the_extender_needs_is_allowed(cluster: DevCluster) -> None:
    required = [(entry, "default") for entry in CLUSTER_PERMISSIONS]
    required += [(entry, NAMESPACE) for entry in NAMESPACE_PERMISSIONS]
    assert [entry for entry in required if not is_allowed(cluster, *entry)] == []


@pytest.mark.smoke
def test_nothing_else_is_allowed(cluster: DevCluster) -> None:
    kinds = {(group, resource) for _, group, resource, _ in CLUSTER_PERMISSIONS | NAMESPACE_PERMISSIONS}
    other_verbs = {(verb, group, resource, "") for group, resource in kinds for verb in EVERY_VERB}
    other_verbs -= CLUSTER_PERMISSIONS | NAMESPACE_PERMISSIONS
    other_names = {(verb, group, resource, "other") for verb, group, resource, name in NAMESPACE_PERMISSIONS if name}
    forbidden = [(entry, NAMESPACE) for entry in sorted({*other_verbs, *other_names, *FORBIDDEN_PERMISSIONS})]
    forbidden += [(entry, "default") for entry in sorted(NAMESPACE_PERMISSIONS)]
    assert [entry for entry in forbidden if is_allowed(cluster, *entry)] == []


async def test_the_config_map_can_be_watched_by_its_name_only(cluster: DevCluster) -> None:
    """A list is allowed only if its field selector has this name."""
    path = CONFIG_MAPS.path(NAMESPACE)
    async with client_of(cluster) as client:
        config_maps = json.loads(await client.get(path, {"fieldSelector": f"metadata.name={NAME}"}))
        assert [entry["metadata"]["name"] for entry in config_maps["items"]] == [NAME]
        with refused():
            await client.get(path)


def own_object(resource: Any) -> dict[str, Any]:
    """The extender's Lease or EndpointSlice."""
    metadata: dict[str, Any] = {"name": NAME}
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    if resource is LEASES:
        return {**body, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    metadata["labels"] = {"kubernetes.io/service-name": NAME}
    return {**body, "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.2"]}]}


@pytest.mark.parametrize("resource", [LEASES, ENDPOINT_SLICES], ids=lambda resource: resource.plural)
async def test_its_own_objects_can_be_created_and_replaced(guarded_cluster: DevCluster, resource: Any) -> None:
    async with client_of(guarded_cluster) as client:
        try:
            created = json.loads(await client.create(resource.path(NAMESPACE), own_object(resource)))
            replaced = json.loads(await client.replace(resource.path(NAMESPACE, NAME), created))
            assert replaced["metadata"]["uid"] == created["metadata"]["uid"]
        finally:
            guarded_cluster.kubectl("-n", NAMESPACE, "delete", resource.plural, NAME, "--ignore-not-found")


FORBIDDEN_OBJECTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "other lease": (LEASES, {"metadata": {"name": "other"}}, "no Lease and no EndpointSlice but"),
    "endless lease": (LEASES, {"spec": {"leaseDurationSeconds": 3601}}, "an hour at most"),
    "other slice": (ENDPOINT_SLICES, {"metadata": {"name": "other"}}, "no Lease and no EndpointSlice but"),
    "slice of another service": (
        ENDPOINT_SLICES,
        {"metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": "longhorn-admission-webhook"}}},
        "EndpointSlices of the Service",
    ),
    "slice without a service": (ENDPOINT_SLICES, {"metadata": {"name": NAME}}, "EndpointSlices of the Service"),
    "two endpoints": (
        ENDPOINT_SLICES,
        {"endpoints": [{"addresses": ["192.0.2.2"]}, {"addresses": ["192.0.2.3"]}]},
        "one endpoint only",
    ),
    "two addresses": (ENDPOINT_SLICES, {"endpoints": [{"addresses": ["192.0.2.2", "192.0.2.3"]}]}, "one endpoint only"),
}


@pytest.mark.parametrize("what", FORBIDDEN_OBJECTS)
async def test_no_other_object_can_be_created(guarded_cluster: DevCluster, what: str) -> None:
    """RBAC allows it, because it ignores names; the admission policy does not."""
    resource, fields, message = FORBIDDEN_OBJECTS[what]
    async with client_of(guarded_cluster) as client:
        with refused(f"the scheduler extender may .*{message}"):
            await client.create(resource.path(NAMESPACE), own_object(resource) | fields)


async def test_the_recorded_offers_survive_another_apply(cluster: DevCluster) -> None:
    """The manifests do not have the key that the leader writes."""
    path = CONFIG_MAPS.path(NAMESPACE, OFFERS)
    async with client_of(cluster) as client:
        await client.patch(path, {"binaryData": {KEY: "AAAA"}})
        for way in ("--server-side", "--server-side=false"):
            cluster.kubectl("apply", way, "-k", str(MANIFESTS / "access"))
            assert json.loads(await client.get(path))["binaryData"] == {KEY: "AAAA"}


def test_the_base_rolls_out_under_the_restricted_standard_and_applying_it_again_changes_nothing(
    cluster: DevCluster,
) -> None:
    """Each pod is on its own node, without an extender, and no default of the API server differs from the manifests."""
    base = str(MANIFESTS / "base")
    cluster.kubectl("apply", "--server-side", "-k", base)
    try:
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{NAME}", "--timeout=90s")
        pods = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pods", EXTENDER_PODS, "-o", "json"))["items"]
        assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["node-1", "node-2"]
        # Controllers write to the applied objects until all pods are counted. Between the two reads of kubectl diff that looks like a
        # difference.
        budget = (f"poddisruptionbudget/{NAME}", "--for=jsonpath={.status.currentHealthy}=2", "--timeout=60s")
        cluster.kubectl("-n", NAMESPACE, "wait", *budget)
        assert cluster.kubectl("diff", "--server-side", "-k", base, check=False) == ""
    finally:
        cluster.kubectl("-n", NAMESPACE, "delete", "deployment,poddisruptionbudget", NAME, "--wait=true")


@pytest.mark.parametrize("way", ["--server-side", "--server-side=false"])
def test_the_base_can_be_applied_by_server_and_by_client(cluster: DevCluster, way: str) -> None:
    """The API server ignores the namespace that kustomize adds to cluster-wide objects."""
    output = cluster.kubectl("apply", way, "--dry-run=server", "-k", str(MANIFESTS / "base"))
    assert {f"validatingadmissionpolic{end}.admissionregistration.k8s.io/{NAME}" for end in ("y", "ybinding")} <= set(
        output.split()
    )


def test_the_api_server_accepts_the_host_network_overlay(cluster: DevCluster) -> None:
    built = cluster.kubectl("kustomize", str(MANIFESTS / "overlays/host-network"))
    cluster.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", input=built)


@pytest.mark.parametrize("base", BASES)
def test_a_policy_can_be_mounted_into_the_base_and_the_overlay(cluster: DevCluster, tmp_path: Path, base: str) -> None:
    built = build_with_policy(tmp_path, policy_kustomization(base))
    output = cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "-f", "-", input=yaml.safe_dump_all(built.values())
    )
    assert f"clusterrole.rbac.authorization.k8s.io/{NAME}-policy" in output
    assert len(output.splitlines()) == len(built)


@pytest.mark.parametrize("document", ["docs/installation.md", "docs/platforms/managed.md"])
def test_the_api_server_accepts_the_documented_kustomizations(
    cluster: DevCluster, tmp_path: Path, document: str
) -> None:
    built = build_own(tmp_path, documented_kustomization(document))
    images = {
        container["image"]
        for entry in built
        if entry["kind"] == "Deployment"
        for container in entry["spec"]["template"]["spec"]["containers"]
    }
    assert "registry.example.com/longhorn-scheduler-extender:0.1.0" in images
    # No address of one distribution's range.
    assert all("clusterIP" not in entry["spec"] for entry in built if entry["kind"] == "Service")
    if document == "docs/installation.md":
        settings = by_name(built)["ConfigMap", NAME]["data"]
        assert settings["scheduler-extender-pod-scheduling-timeout"] == "2"
    apply = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
    cluster.kubectl(*apply, input=yaml.safe_dump_all(built))


TLS_OVERLAYS = ["overlays/tls", "overlays/tls-cert-manager"]


@pytest.mark.parametrize("overlay", TLS_OVERLAYS)
def test_the_api_server_accepts_the_overlays_for_tls(cluster: DevCluster, overlay: str) -> None:
    built = yaml.safe_load_all(cluster.kubectl("kustomize", str(MANIFESTS / overlay)))
    known = [entry for entry in built if not entry["apiVersion"].startswith("cert-manager.io/")]
    cluster.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", input=yaml.safe_dump_all(known))
    (template,) = [entry["spec"]["template"] for entry in known if entry["kind"] == "Deployment"]
    raw = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "with-tls"}}
    admitted = cluster.api.create(f"{PODS.path(NAMESPACE)}?dryRun=All", raw)
    assert [volume["secret"]["secretName"] for volume in admitted["spec"]["volumes"] if "secret" in volume] == [
        f"{NAME}-tls"
    ]


def test_a_network_policy_without_the_control_planes_network_is_refused(cluster: DevCluster) -> None:
    text = cluster.kubectl("kustomize", str(MANIFESTS / "overlays/network-policy"))
    apply = ("apply", "--server-side", "--dry-run=server", "-f", "-")
    assert "spec.ingress[0].from[0].ipBlock.cidr" in cluster.kubectl(*apply, input=text, check=False)
    cluster.kubectl(*apply, input=text.replace("CONTROL-PLANE-NETWORK", "192.168.10.0/24"))


def scheduling_problem(cluster: DevCluster, name: str, namespace: str) -> str:
    conditions = cluster.api.get(PODS.path(namespace, name))["status"].get("conditions", [])
    return " ".join(entry.get("message", "") for entry in conditions if entry["type"] == "PodScheduled")


@pytest.fixture(scope="module")
def guarded_cluster(cluster: DevCluster) -> DevCluster:
    """The cluster once the API server enforces the admission policy."""
    cluster.api.create(PODS.path("default"), unschedulable_pod("guarded"))
    wait_for_policy(cluster, NAME, "may change no pod's labels", "label", "pod", "guarded", "a=b")
    cluster.api.delete(PODS.path("default", "guarded"))
    return cluster


def unschedulable_pod(name: str) -> dict[str, Any]:
    raw = pod(name, nodeSelector={"no": "node"})
    raw["metadata"] |= {"labels": {"mine": "1"}, "annotations": {"mine": "1"}}
    return raw


@pytest.fixture
def pending_pod(guarded_cluster: DevCluster, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60].strip("-")
    yield guarded_cluster.api.create(PODS.path("default"), unschedulable_pod(name))
    guarded_cluster.api.patch(PODS.path("default", name), {"metadata": {"finalizers": None}})
    guarded_cluster.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found")


def annotations_of(cluster: DevCluster, name: str) -> dict[str, str]:
    annotations: dict[str, str] = cluster.api.get(PODS.path("default", name))["metadata"]["annotations"]
    return annotations


async def test_the_extender_may_write_its_annotation_repeatedly(
    guarded_cluster: DevCluster, pending_pod: dict[str, Any]
) -> None:
    name = pending_pod["metadata"]["name"]
    pod_to_nudge = Pod("default", name, pending_pod["metadata"]["uid"])
    async with client_of(guarded_cluster) as client:
        for at in ("2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:01.000000Z"):
            assert await write_nudge(client, pod_to_nudge, at)
            assert annotations_of(guarded_cluster, name) == {"mine": "1", NUDGE_ANNOTATION: at}


async def test_a_nudge_does_not_patch_another_pod_of_the_same_name(
    guarded_cluster: DevCluster, pending_pod: dict[str, Any]
) -> None:
    name = pending_pod["metadata"]["name"]
    async with client_of(guarded_cluster) as client:
        assert not await write_nudge(client, Pod("default", name, "00000000-0000-0000-0000-000000000000"), "now")
        assert not await write_nudge(client, Pod("default", "not-there", pending_pod["metadata"]["uid"]), "now")
    assert annotations_of(guarded_cluster, name) == {"mine": "1"}


def forbidden_changes(raw: Object, node_uid: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Merge patches that only the extender may not apply, by what they change, and what the refusal says."""
    image = {"spec": {"containers": [{**raw["spec"]["containers"][0], "image": "other"}]}}
    tolerations = [*raw["spec"].get("tolerations", []), {"key": "all", "operator": "Exists"}]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": node_uid}
    nudge = {NUDGE_ANNOTATION: "now"}
    return {
        "label": ({"metadata": {"labels": {"mine": "2"}}}, "labels"),
        "new label": ({"metadata": {"labels": nudge}}, "labels"),
        "annotation": ({"metadata": {"annotations": {"mine": "2"}}}, "write no annotation"),
        "annotation with a nudge": ({"metadata": {"annotations": {**nudge, "other": "1"}}}, "write no annotation"),
        "annotation removed": ({"metadata": {"annotations": {"mine": None}}}, "remove no annotation"),
        "all annotations removed": ({"metadata": {"annotations": None}}, "remove no annotation"),
        "image": (image, "spec"),
        "image with a nudge": ({**image, "metadata": {"annotations": nudge}}, "spec"),
        "toleration": ({"spec": {"tolerations": tolerations}}, "spec"),
        "deadline": ({"spec": {"activeDeadlineSeconds": 1000}}, "spec"),
        "finalizer": ({"metadata": {"finalizers": ["example.com/kept"]}}, "finalizers"),
        "owner": ({"metadata": {"ownerReferences": [owner]}}, "owners"),
    }


@pytest.mark.parametrize("what", forbidden_changes(unschedulable_pod("any"), ""))
async def test_only_the_extender_may_change_nothing_else_of_a_pod(
    guarded_cluster: DevCluster, pending_pod: dict[str, Any], what: str
) -> None:
    path = PODS.path("default", pending_pod["metadata"]["name"])
    node_uid = guarded_cluster.api.get(NODES.path(name="node-1"))["metadata"]["uid"]
    body, message = forbidden_changes(pending_pod, node_uid)[what]
    async with client_of(guarded_cluster) as client:
        with refused(f"the scheduler extender may .*{message}"):
            await client.patch(path, body)
    guarded_cluster.api.patch(path, body)


async def test_the_annotation_holds_64_characters_at_most(
    guarded_cluster: DevCluster, pending_pod: dict[str, Any]
) -> None:
    """A timestamp is shorter, and the annotation cannot store anything large."""
    path = PODS.path("default", pending_pod["metadata"]["name"])
    async with client_of(guarded_cluster) as client:
        await client.patch(path, {"metadata": {"annotations": {NUDGE_ANNOTATION: "x" * 64}}})
        with refused("64 characters at most"):
            await client.patch(path, {"metadata": {"annotations": {NUDGE_ANNOTATION: "x" * 65}}})
    guarded_cluster.api.patch(path, {"metadata": {"annotations": {NUDGE_ANNOTATION: "x" * 65}}})


def test_the_admission_policy_passes_the_type_check(guarded_cluster: DevCluster) -> None:
    assert_types_checked(guarded_cluster, NAME)


@pytest.mark.parametrize("config", ["proposal.yaml", "recommended-managed.yaml"])
def test_without_an_extender_only_pods_that_request_its_resource_stay_pending(
    cluster: DevCluster, use_scheduler_config: Callable[[str], None], config: str
) -> None:
    use_scheduler_config(config)
    requesting, plain = (f"{name}-{config.partition('.')[0]}" for name in ("requesting", "plain"))
    cluster.api.create(PODS.path("default"), pod(requesting, resource=True))
    cluster.api.create(PODS.path("default"), pod(plain))
    wait_until("the plain pod", lambda: bool(node_of(cluster, plain)))
    wait_until("the event", lambda: "connection refused" in scheduling_problem(cluster, requesting, "default"))
    assert node_of(cluster, requesting) == ""


def test_a_pod_of_the_extender_can_be_bound_by_hand_while_every_pod_waits_for_the_extender(
    cluster: DevCluster, use_scheduler_config: Callable[[str], None]
) -> None:
    """The command is the one in docs/kube-scheduler.md."""
    use_scheduler_config("recommended.yaml")
    cluster.api.create(PODS.path(NAMESPACE), pod("own", NAMESPACE))
    wait_until("the event", lambda: "connection refused" in scheduling_problem(cluster, "own", NAMESPACE))
    guide = (ROOT / "docs/kube-scheduler.md").read_text()
    ((path, body),) = re.findall(r"kubectl create --raw (\S+) -f - <<'END'\n(.*?)\nEND", guide, re.S)
    cluster.kubectl("create", "--raw", path.replace("POD", "own"), "-f", "-",
                    input=body.replace("POD", "own").replace('"NODE"', '"node-1"'))  # fmt: skip
    assert node_of(cluster, "own", NAMESPACE) == "node-1"


def test_kubeadms_static_pod_with_the_pages_lines_is_a_valid_pod(cluster: DevCluster) -> None:
    """The API server reads it as the kubelet would; kubeadm's own lines stay."""
    added = page("kubeadm").file("/etc/kubernetes/manifests/kube-scheduler.yaml")["spec"]
    (container,) = added["containers"]
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
        "spec": {**added, "hostNetwork": True, "containers": [{**container, "image": "none"}]},
    }
    stored = cluster.api.create(f"{PODS.path('kube-system')}?dryRun=All&fieldValidation=Strict", body)
    assert stored["spec"]["containers"][0]["volumeMounts"][0] == container["volumeMounts"][0]
