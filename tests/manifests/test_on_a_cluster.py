"""The manifests and kube-scheduler configurations on a real API server and a real kube-scheduler."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.extender.nudger import NudgePatch
from app.kube.client import ApiError, KubeClient
from app.kube.resources import CONFIG_MAPS, ENDPOINT_SLICES, LEASES, NODES, PODS
from devcluster import ClusterOptions, DevCluster
from devcluster.scheduler_config import DEFAULT
from scheduler_core.convert.pod_patch import NUDGE_ANNOTATION
from scheduler_core.model.kube import Pod
from tests.manifests.kustomize import BASES, build, shown
from tests.manifests.load import (
    CLUSTER_PERMISSIONS,
    CONFIGS,
    MANIFESTS,
    NAME,
    NAMESPACE,
    NAMESPACE_PERMISSIONS,
    ROOT,
    Permission,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.xdist_group("manifests")]
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}"
EVERY_VERB = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
# What a widened rule would most likely let in, beside the other verbs of the kinds that may be read.
FOREIGN: list[Permission] = [
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
PODS_OF_MINE = f"--selector=app.kubernetes.io/name={NAME}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster with the namespace, held to the restricted Pod Security Standard, and the extender's access."""
    with DevCluster(tmp_path_factory.mktemp("cluster"), ClusterOptions(nodes=2)) as running:
        running.kubectl("apply", "--server-side", "-k", str(MANIFESTS / "test-cluster"))
        running.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        yield running


@pytest.fixture
def register(cluster: DevCluster, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Gives kube-scheduler one of our files, with an address where nobody listens; afterwards it has none again."""
    plain = tmp_path / "plain.yaml"
    plain.write_text(DEFAULT)
    yield lambda name: cluster.use_scheduler_config(CONFIGS / name, f"127.0.0.1:{cluster.free_port()}")
    cluster.use_scheduler_config(plain)


def allowed(cluster: DevCluster, permission: Permission, namespace: str) -> bool:
    """Whether the API server lets the ServiceAccount do this; what `kubectl auth can-i` asks."""
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


def eventually(what: str, done: Callable[[], bool], seconds: float = 60) -> None:
    """Returns once it is so; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        time.sleep(0.2)


def test_everything_the_extender_needs_is_allowed(cluster: DevCluster) -> None:
    """Cluster-wide reads in any namespace, Longhorn's objects and its own in its namespace."""
    wanted = [(entry, "default") for entry in CLUSTER_PERMISSIONS]
    wanted += [(entry, NAMESPACE) for entry in NAMESPACE_PERMISSIONS]
    assert [entry for entry in wanted if not allowed(cluster, *entry)] == []


def test_nothing_else_is_allowed(cluster: DevCluster) -> None:
    """Neither a further verb on what may be read, nor another name, namespace or kind."""
    known = {(group, resource) for _, group, resource, _ in CLUSTER_PERMISSIONS | NAMESPACE_PERMISSIONS}
    beyond = {(verb, group, resource, "") for group, resource in known for verb in EVERY_VERB}
    beyond -= CLUSTER_PERMISSIONS | NAMESPACE_PERMISSIONS
    others = {(verb, group, resource, "other") for verb, group, resource, name in NAMESPACE_PERMISSIONS if name}
    asked = [(entry, NAMESPACE) for entry in sorted({*beyond, *others, *FOREIGN})]
    asked += [(entry, "default") for entry in sorted(NAMESPACE_PERMISSIONS)]
    assert [entry for entry in asked if allowed(cluster, *entry)] == []


async def test_the_config_map_can_be_watched_by_its_name_only(cluster: DevCluster) -> None:
    """A list is allowed exactly when its field selector names the one object."""
    kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, NAME)
    client = await KubeClient.connect(str(kubeconfig))
    try:
        path = CONFIG_MAPS.path(NAMESPACE)
        listed = json.loads(await client.get(path, {"fieldSelector": f"metadata.name={NAME}"}))
        assert [entry["metadata"]["name"] for entry in listed["items"]] == [NAME]
        with pytest.raises(ApiError) as refused:
            await client.get(path)
        assert refused.value.forbidden
    finally:
        await client.close()


@pytest.mark.parametrize("resource", [LEASES, ENDPOINT_SLICES], ids=lambda resource: resource.plural)
async def test_its_own_objects_can_be_created_and_replaced(cluster: DevCluster, resource: Any) -> None:
    """By this name; another can be created, as RBAC cannot tell, but not changed."""
    client = await KubeClient.connect(str(cluster.service_account_kubeconfig(NAMESPACE, NAME)))
    extra = {"addressType": "IPv4", "endpoints": []} if resource is ENDPOINT_SLICES else {}
    try:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": NAME}, **extra}
        made = json.loads(await client.create(resource.path(NAMESPACE), body))
        await client.replace(resource.path(NAMESPACE, NAME), made)
        other = json.loads(await client.create(resource.path(NAMESPACE), {**body, "metadata": {"name": "other"}}))
        with pytest.raises(ApiError) as refused:
            await client.replace(resource.path(NAMESPACE, "other"), other)
        assert refused.value.forbidden
    finally:
        await client.close()
        cluster.kubectl("-n", NAMESPACE, "delete", resource.plural, NAME, "other", "--ignore-not-found")


def test_the_base_rolls_out_under_the_restricted_standard(cluster: DevCluster) -> None:
    """Two pods on two nodes, scheduled without an extender, admitted by the strictest Pod Security level."""
    cluster.kubectl("apply", "--server-side", "-k", str(MANIFESTS / "base"))
    try:
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{NAME}", "--timeout=90s")
        pods = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pods", PODS_OF_MINE, "-o", "json"))["items"]
        assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["node-1", "node-2"]
    finally:
        cluster.kubectl("-n", NAMESPACE, "delete", "deployment,poddisruptionbudget", NAME, "--wait=true")


def test_applying_the_base_again_changes_nothing(cluster: DevCluster) -> None:
    """No field is defaulted to something else than what is written."""
    cluster.kubectl("apply", "--server-side", "-k", str(MANIFESTS / "base"))
    try:
        # Controllers write to what was just applied, until all pods are ready and counted; between kubectl's two reads that looks
        # like a difference.
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{NAME}", "--timeout=90s")
        budget = (f"poddisruptionbudget/{NAME}", "--for=jsonpath={.status.currentHealthy}=2", "--timeout=60s")
        cluster.kubectl("-n", NAMESPACE, "wait", *budget)
        assert cluster.kubectl("diff", "--server-side", "-k", str(MANIFESTS / "base"), check=False) == ""
    finally:
        cluster.kubectl("-n", NAMESPACE, "delete", "deployment,poddisruptionbudget", NAME, "--wait=true")


@pytest.mark.parametrize("way", ["--server-side", "--server-side=false"])
def test_the_base_can_be_applied_in_either_way(cluster: DevCluster, way: str) -> None:
    """A kustomization writes its namespace into objects that have none, such as the admission policy; the API server does not mind."""
    said = cluster.kubectl("apply", way, "--dry-run=server", "-k", str(MANIFESTS / "base"))
    assert {f"validatingadmissionpolic{end}.admissionregistration.k8s.io/{NAME}" for end in ("y", "ybinding")} <= set(
        said.split()
    )


def test_the_host_network_overlay_moves_the_probes_too(cluster: DevCluster) -> None:
    """One pod on loopback, beside the control plane; the API server accepts it."""
    built = cluster.kubectl("kustomize", str(MANIFESTS / "overlays/host-network"))
    cluster.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", input=built)
    (deployment,) = (entry for entry in yaml.safe_load_all(built) if entry["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert deployment["spec"]["replicas"] == 1
    assert pod["hostNetwork"] is True
    assert container["args"] == ["serve", "--host", "127.0.0.1", "--port", "9504"]
    # Nobody listens on the pod's address: the Service must not lead there.
    assert [entry["name"] for entry in container["env"]] == ["POD_NAME", "NODE_NAME", "POD_NAMESPACE"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"host": "127.0.0.1", "path": "/healthz", "port": "http"}


@pytest.mark.parametrize("base", BASES)
def test_a_policy_can_be_mounted_into_the_base_and_the_overlay(cluster: DevCluster, tmp_path: Path, base: str) -> None:
    """The API server accepts every object that is built."""
    built = build(tmp_path, shown(base))
    said = cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "-f", "-", input=yaml.safe_dump_all(built.values())
    )
    assert f"clusterrole.rbac.authorization.k8s.io/{NAME}-policy" in said
    assert len(said.splitlines()) == len(built)


def test_the_kustomization_of_the_installation_guide_works(cluster: DevCluster, tmp_path: Path) -> None:
    """Image, setting and address reach the objects."""
    shutil.copytree(MANIFESTS, tmp_path / "manifests")
    (shown,) = re.findall(r"```yaml\n# my-cluster/(.*?)```", (ROOT / "docs/installation.md").read_text(), re.S)
    (tmp_path / "my-cluster").mkdir()
    (tmp_path / "my-cluster/kustomization.yaml").write_text(shown.partition("\n")[2])
    built = list(yaml.safe_load_all(cluster.kubectl("kustomize", str(tmp_path / "my-cluster"))))
    kinds = {entry["kind"]: entry for entry in built}
    (container,) = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/longhorn-scheduler-extender:0.1.0"
    assert kinds["Service"]["spec"]["clusterIP"] == "10.43.95.4"
    assert kinds["ConfigMap"]["data"]["scheduler-extender-pod-scheduling-timeout"] == "2"


def pod(name: str, namespace: str, resource: bool = False) -> dict[str, Any]:
    """A pod any node can take."""
    requests = {"longhorn.io/scheduler-extender": "1"} if resource else {}
    container = {"name": "main", "image": "none", "resources": {"requests": requests, "limits": requests}}
    container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    metadata = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], "securityContext": context},
    }


def node_of(cluster: DevCluster, name: str, namespace: str) -> str:
    """Where the pod was bound to; "" while it waits."""
    return str(cluster.api.get(PODS.path(namespace, name))["spec"].get("nodeName", ""))


def complaint(cluster: DevCluster, name: str, namespace: str) -> str:
    """What kube-scheduler says about a waiting pod."""
    conditions = cluster.api.get(PODS.path(namespace, name))["status"].get("conditions", [])
    return " ".join(entry.get("message", "") for entry in conditions if entry["type"] == "PodScheduled")


@asynccontextmanager
async def as_the_extender(cluster: DevCluster) -> AsyncIterator[KubeClient]:
    """A client with the ServiceAccount's token."""
    client = await KubeClient.connect(str(cluster.service_account_kubeconfig(NAMESPACE, NAME)))
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(scope="module")
def guarded(cluster: DevCluster) -> DevCluster:
    """The cluster once the API server has taken the admission policy in, which it does some time after it was created."""
    account = ("--as", ACCOUNT, "--as-group", "system:serviceaccounts", "--as-group", "system:authenticated")
    raw = waiting_pod("guarded")
    cluster.api.create(PODS.path("default"), raw)
    try:
        eventually(
            "the admission policy",
            lambda: (
                "may change no pod's labels" in cluster.kubectl("label", "pod", "guarded", "a=b", *account, check=False)
                or cluster.kubectl("label", "pod", "guarded", "a-") == ""
            ),
        )
    finally:
        cluster.api.delete(PODS.path("default", "guarded"))
    return cluster


def waiting_pod(name: str) -> dict[str, Any]:
    """A pod that no node can take, with something of everything that belongs to others."""
    raw = pod(name, "default")
    raw["metadata"] |= {"labels": {"mine": "1"}, "annotations": {"mine": "1"}}
    raw["spec"]["nodeSelector"] = {"there": "is-none"}
    return raw


@pytest.fixture
def waiting(guarded: DevCluster, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """A pod of its own for each test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:60].strip("-")
    yield guarded.api.create(PODS.path("default"), waiting_pod(name))
    guarded.api.patch(PODS.path("default", name), {"metadata": {"finalizers": None}})
    guarded.kubectl("delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found")


def annotated(cluster: DevCluster, name: str) -> dict[str, str]:
    """What the pod bears now."""
    found: dict[str, str] = cluster.api.get(PODS.path("default", name))["metadata"]["annotations"]
    return found


async def test_the_extender_may_write_its_annotation_again_and_again(
    guarded: DevCluster, waiting: dict[str, Any]
) -> None:
    """By the program's own code; what others wrote stays."""
    name = waiting["metadata"]["name"]
    found = Pod("default", name, waiting["metadata"]["uid"])
    async with as_the_extender(guarded) as client:
        for at in ("2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:01.000000Z"):
            assert await NudgePatch(client)(found, at)
            assert annotated(guarded, name) == {"mine": "1", NUDGE_ANNOTATION: at}


async def test_a_nudge_means_one_pod_and_not_another_of_its_name(guarded: DevCluster, waiting: dict[str, Any]) -> None:
    """A StatefulSet's pod bears its predecessor's name."""
    name = waiting["metadata"]["name"]
    async with as_the_extender(guarded) as client:
        assert not await NudgePatch(client)(Pod("default", name, "00000000-0000-0000-0000-000000000000"), "now")
        assert not await NudgePatch(client)(Pod("default", "not-there", waiting["metadata"]["uid"]), "now")
    assert annotated(guarded, name) == {"mine": "1"}


def forbidden_changes(raw: dict[str, Any], node_uid: str) -> dict[str, dict[str, Any]]:
    """Merge patches of a pod that the API server would take from others, by what they change."""
    image = {"spec": {"containers": [{**raw["spec"]["containers"][0], "image": "other"}]}}
    tolerations = [*raw["spec"].get("tolerations", []), {"key": "all", "operator": "Exists"}]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": node_uid}
    return {
        "label": {"metadata": {"labels": {"mine": "2"}}},
        "new label": {"metadata": {"labels": {NUDGE_ANNOTATION: "now"}}},
        "annotation": {"metadata": {"annotations": {"mine": "2"}}},
        "annotation beside a nudge": {"metadata": {"annotations": {NUDGE_ANNOTATION: "now", "other": "1"}}},
        "annotation removed": {"metadata": {"annotations": {"mine": None}}},
        "all annotations removed": {"metadata": {"annotations": None}},
        "image": image,
        "image beside a nudge": {**image, "metadata": {"annotations": {NUDGE_ANNOTATION: "now"}}},
        "toleration": {"spec": {"tolerations": tolerations}},
        "deadline": {"spec": {"activeDeadlineSeconds": 1000}},
        "finalizer": {"metadata": {"finalizers": ["example.com/kept"]}},
        "owner": {"metadata": {"ownerReferences": [owner]}},
    }


FORBIDDEN = {
    "label": "labels",
    "new label": "labels",
    "annotation": "write no annotation",
    "annotation beside a nudge": "write no annotation",
    "annotation removed": "remove no annotation",
    "all annotations removed": "remove no annotation",
    "image": "spec",
    "image beside a nudge": "spec",
    "toleration": "spec",
    "deadline": "spec",
    "finalizer": "finalizers",
    "owner": "owners",
}


@pytest.mark.parametrize("what", FORBIDDEN)
async def test_the_extender_may_change_nothing_else_of_a_pod_but_others_may(
    guarded: DevCluster, waiting: dict[str, Any], what: str
) -> None:
    """The same patch is refused, with a sentence that says why, and taken from the administrator."""
    path = PODS.path("default", waiting["metadata"]["name"])
    body = forbidden_changes(waiting, guarded.api.get(NODES.path(name="node-1"))["metadata"]["uid"])[what]
    async with as_the_extender(guarded) as client:
        with pytest.raises(ApiError, match=f"the scheduler extender may .*{FORBIDDEN[what]}") as refused:
            await client.patch(path, body)
    assert refused.value.forbidden
    guarded.api.patch(path, body)


async def test_the_annotation_holds_64_characters_at_most(guarded: DevCluster, waiting: dict[str, Any]) -> None:
    """A time is shorter; nothing can be stored there."""
    path = PODS.path("default", waiting["metadata"]["name"])
    async with as_the_extender(guarded) as client:
        await client.patch(path, {"metadata": {"annotations": {NUDGE_ANNOTATION: "x" * 64}}})
        with pytest.raises(ApiError, match="64 characters at most") as refused:
            await client.patch(path, {"metadata": {"annotations": {NUDGE_ANNOTATION: "x" * 65}}})
        assert refused.value.forbidden
    guarded.api.patch(path, {"metadata": {"annotations": {NUDGE_ANNOTATION: "x" * 65}}})


def test_the_admission_policy_is_understood_by_the_api_server(guarded: DevCluster) -> None:
    """Every expression is checked against the types of a pod; a warning would mean a field that is not there."""
    path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{NAME}"
    eventually("the types to be checked", lambda: "typeChecking" in guarded.api.get(path).get("status", {}))
    assert guarded.api.get(path)["status"]["typeChecking"] == {}


@pytest.mark.parametrize("config", ["proposal.yaml", "recommended-managed.yaml"])
def test_without_an_extender_only_pods_that_ask_for_it_wait(
    cluster: DevCluster, register: Callable[[str], None], config: str
) -> None:
    """The extender's own pods do not ask, and so come back by themselves."""
    register(config)
    asking, free = (f"{name}-{config.partition('.')[0]}" for name in ("asking", "free"))
    cluster.api.create(PODS.path("default"), pod(asking, "default", resource=True))
    cluster.api.create(PODS.path("default"), pod(free, "default"))
    eventually("the pod that asks for nothing", lambda: bool(node_of(cluster, free, "default")))
    eventually("the event", lambda: "connection refused" in complaint(cluster, asking, "default"))
    assert node_of(cluster, asking, "default") == ""


def test_with_every_pod_sent_all_wait_and_one_can_be_bound_by_hand(
    cluster: DevCluster, register: Callable[[str], None]
) -> None:
    """The way out that docs/kube-scheduler.md tells of: the command there binds the extender's own pod."""
    register("recommended.yaml")
    cluster.api.create(PODS.path(NAMESPACE), pod("own", NAMESPACE))
    eventually("the event", lambda: "connection refused" in complaint(cluster, "own", NAMESPACE))
    guide = (ROOT / "docs/kube-scheduler.md").read_text()
    ((path, body),) = re.findall(r"kubectl create --raw (\S+) -f - <<'END'\n(.*?)\nEND", guide, re.S)
    cluster.kubectl("create", "--raw", path.replace("POD", "own"), "-f", "-",
                    input=body.replace("POD", "own").replace('"NODE"', '"node-1"'))  # fmt: skip
    assert node_of(cluster, "own", NAMESPACE) == "node-1"
