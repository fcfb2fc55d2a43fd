"""manifests/overlays/ask-policy and scheduler-name-policy on a real API server. With DEVCLUSTER_KUBERNETES_VERSION=1.35.4 it is the variant
for v1beta1.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from app.kube.client import ApiError
from app.kube.resources import PODS, Resource
from devcluster.build import API_SERVER
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.polling import wait_until
from tests.manifests.ask_policy import (
    ASK,
    BETA_ARGUMENTS,
    CLAIM,
    EPHEMERAL,
    OPT_OUT,
    OVERLAYS,
    RESOURCE,
    SCHEDULER_NAME,
    api_server_arguments,
    asking,
    asking_containers,
    container,
    overlay_for_this_version,
    pod,
    without_the_resource,
)
from tests.manifests.load import NAMESPACE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
NAMESPACES = "/api/v1/namespaces"
OPTED_OUT = pod({"annotations": {OPT_OUT: "false"}})
BROKEN = "object.spec.volumes[99].name != ''"
CPU = {"cpu": "1"}
BOTH = {"cpu": "1", "memory": "1Gi"}


def admit(cluster: DevCluster, raw: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
    created: dict[str, Any] = cluster.api.create(f"{PODS.path(namespace)}?dryRun=All", raw)
    return created


def refusal(cluster: DevCluster, raw: dict[str, Any], namespace: str = "default") -> str:
    with pytest.raises(ApiError) as error:
        admit(cluster, raw, namespace)
    return str(error.value)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster in which the policy is in effect, with a namespace that has opted out."""
    options = ClusterOptions(nodes=2, extra_args={API_SERVER: api_server_arguments()})
    with DevCluster(tmp_path_factory.mktemp("cluster"), options) as running:
        for name, labels in {NAMESPACE: {}, "apart": {OPT_OUT: "false"}}.items():
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            running.api.create(NAMESPACES, body)
        running.kubectl("apply", "--server-side", "-k", overlay_for_this_version(ASK))
        wait_until("the policy", lambda: asking_containers(admit(running, pod())) == ["main"])
        yield running


# Of most the first container asks.
PODS_THAT_ASK: dict[str, dict[str, Any]] = {
    "a claim": pod(),
    "an ephemeral volume": pod(volumes=[EPHEMERAL]),
    "a claim among others": pod(volumes=[{"name": "tmp", "emptyDir": {}}, CLAIM, EPHEMERAL]),
    "several containers": pod(containers=[container("main"), container("sidecar")]),
    "init containers": pod(initContainers=[container("init")]),
    "a sidecar": pod(initContainers=[container("init", restartPolicy="Always")]),
    "empty resources": pod(containers=[container(resources={})]),
    "empty lists": pod(containers=[container(resources={"limits": {}, "requests": {}})]),
    "requests only": pod(containers=[container(resources={"requests": CPU})]),
    "limits only": pod(containers=[container(resources={"limits": CPU})]),
    "both": pod(containers=[container(resources={"limits": BOTH, "requests": CPU})]),
    "another extended resource": pod(containers=[container(resources={"limits": {"gpu.com/a": "2"}})]),
    "a device's claim": pod(
        containers=[container(resources={"claims": [{"name": "gpu"}]})],
        resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}],
    ),
    "resources of the pod": pod(resources={"limits": BOTH}),
    "a variable twice": pod(containers=[container(env=[{"name": "A", "value": value} for value in "12"])]),
    "a scheduling gate": pod(schedulingGates=[{"name": "example.com/later"}]),
    "another annotation": pod({"annotations": {OPT_OUT: "true", "other": "false"}}),
    "asks already": pod(containers=[asking("main")]),
    "asks already, as a limit": pod(containers=[asking("main", "limits")]),
    "another container asks": pod(containers=[container("main"), asking("sidecar")]),
    "an init container asks": pod(initContainers=[asking("init")]),
    "asks without a claim": pod(volumes=[], containers=[asking("main")]),
}
OTHERS_THAT_ASK = {"another container asks": ["sidecar"], "an init container asks": ["init"]}
PODS_THAT_DO_NOT: dict[str, dict[str, Any]] = {
    "no volumes": pod(volumes=[]),
    "other volumes": pod(volumes=[{"name": "tmp", "emptyDir": {}}, {"name": "host", "hostPath": {"path": "/srv"}}]),
    "an inline volume of a driver": pod(volumes=[{"name": "inline", "csi": {"driver": "example.com"}}]),
    "a node": pod(nodeName="node-1"),
    "a static pod's mirror": pod({"annotations": {"kubernetes.io/config.mirror": "1"}}, nodeName="node-1"),
    "another scheduler": pod(schedulerName="volcano"),
    "an opt-out": OPTED_OUT,
}


@pytest.fixture(scope="module")
def admitted(cluster: DevCluster) -> dict[str, dict[str, Any]]:
    return {what: admit(cluster, raw) for what, raw in (PODS_THAT_ASK | PODS_THAT_DO_NOT).items()}


def test_pods_with_claims_ask_once_and_other_pods_do_not(admitted: dict[str, dict[str, Any]]) -> None:
    expected = {key: ["main"] for key in PODS_THAT_ASK} | OTHERS_THAT_ASK | {what: [] for what in PODS_THAT_DO_NOT}
    assert {what: asking_containers(raw) for what, raw in admitted.items()} == expected


def test_nothing_else_of_a_pod_changes(cluster: DevCluster, admitted: dict[str, dict[str, Any]]) -> None:
    def rest(raw: dict[str, Any]) -> tuple[dict[str, Any], str]:
        return without_the_resource(raw), raw["status"]["qosClass"]

    left_alone = {}
    for what, raw in PODS_THAT_ASK.items():
        annotations = {**raw["metadata"].get("annotations", {}), OPT_OUT: "false"}
        left_alone[what] = rest(admit(cluster, raw | {"metadata": {"name": "db", "annotations": annotations}}))
    assert {what: rest(admitted[what]) for what in PODS_THAT_ASK} == left_alone


def test_pods_of_excluded_namespaces_do_not_ask(cluster: DevCluster) -> None:
    for namespace in ("kube-system", NAMESPACE, "apart"):
        assert asking_containers(admit(cluster, pod(), namespace)) == [], namespace


QOS_CLASSES: dict[str, dict[str, Any]] = {
    "BestEffort": {},
    "Burstable": {"requests": CPU},
    "Guaranteed": {"limits": BOTH, "requests": BOTH},
}


def test_the_qos_class_stays(cluster: DevCluster) -> None:
    for qos, resources in QOS_CLASSES.items():
        raw = admit(cluster, pod(containers=[container(resources=resources)]))
        assert (asking_containers(raw), raw["status"]["qosClass"]) == (["main"], qos)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"containers": []}, "spec.containers: Required value"),
        ({"containers": [asking("main", "requests")]}, "Limit must be set for non overcommitable resources"),
    ],
    ids=["no containers", "a request without a limit"],
)
def test_what_kubernetes_refuses_is_refused_in_its_words(
    cluster: DevCluster, spec: dict[str, Any], message: str
) -> None:
    text = refusal(cluster, pod(**spec))
    assert message in text
    assert "policy" not in text.lower()


def test_a_pod_that_exists_is_left_as_it_is(cluster: DevCluster) -> None:
    """A container's resources cannot change afterwards."""
    path = PODS.path("default", "existing")
    cluster.api.create(PODS.path("default"), OPTED_OUT | {"metadata": {**OPTED_OUT["metadata"], "name": "existing"}})
    try:
        cluster.api.patch(path, {"metadata": {"annotations": {OPT_OUT: None}}})
        assert asking_containers(cluster.api.get(path)) == []
    finally:
        cluster.kubectl("delete", "pod", "existing", "--force", "--grace-period=0")


def template(name: str) -> dict[str, Any]:
    labels = {"app": name}
    return {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod()["spec"]}}


CONTROLLERS: dict[str, dict[str, Any]] = {
    "Deployment": {"replicas": 2},
    "StatefulSet": {"replicas": 2, "serviceName": "db", "podManagementPolicy": "Parallel"},
    "DaemonSet": {},
}


def observes_newest(cluster: DevCluster, path: str) -> bool:
    stored = cluster.api.get(path)
    return bool(stored["status"].get("observedGeneration") == stored["metadata"]["generation"])


@pytest.mark.parametrize("kind", CONTROLLERS)
def test_pods_of_controllers_ask_and_templates_stay(cluster: DevCluster, kind: str) -> None:
    resource = Resource("apps", "v1", f"{kind.lower()}s", kind, namespaced=True)
    name = kind.lower()
    spec = {**CONTROLLERS[kind], **template(name)}
    body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    path = f"{PODS.path('default')}?labelSelector=app%3D{name}"
    cluster.api.create(resource.path("default"), body)
    try:
        wait_until("two pods", lambda: len(cluster.api.get(path)["items"]) == 2)
        pods = cluster.api.get(path)["items"]
        assert [asking_containers(raw) for raw in pods] == [["main"], ["main"]]
        stored = cluster.api.get(resource.path("default", name))
        assert RESOURCE not in str(stored["spec"]["template"])
        wait_until("the controller", lambda: observes_newest(cluster, resource.path("default", name)))
        assert {raw["metadata"]["uid"] for raw in cluster.api.get(path)["items"]} == {
            raw["metadata"]["uid"] for raw in pods
        }
    finally:
        cluster.kubectl("delete", name, name, "--cascade=foreground", "--wait=false")


def test_a_quota_that_names_the_resource_counts_the_pods(cluster: DevCluster) -> None:
    for namespace, hard in {"rationed": {f"requests.{RESOURCE}": "0"}, "roomy": {"pods": "5"}}.items():
        cluster.kubectl("create", "namespace", namespace)
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
        path = f"{NAMESPACES}/{namespace}/resourcequotas"
        cluster.api.create(path, quota)
        wait_until("the quota", lambda path=path, hard=hard: cluster.api.get(f"{path}/q")["status"].get("hard") == hard)  # type: ignore[misc]
        wait_until("the account", lambda namespace=namespace: has_account(cluster, namespace))  # type: ignore[misc]
    assert f"requests.{RESOURCE}=1" in refusal(cluster, pod(), "rationed")
    assert asking_containers(admit(cluster, pod(), "roomy")) == ["main"]
    assert asking_containers(admit(cluster, OPTED_OUT, "rationed")) == []


def has_account(cluster: DevCluster, namespace: str) -> bool:
    return bool(cluster.kubectl("-n", namespace, "get", "serviceaccount", "default", "--ignore-not-found"))


def test_defaults_of_a_limit_range_stay(cluster: DevCluster) -> None:
    cluster.kubectl("create", "namespace", "ranged")
    limits = [{"type": "Container", "default": BOTH, "defaultRequest": CPU}]
    body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "range"}, "spec": {"limits": limits}}
    cluster.api.create(f"{NAMESPACES}/ranged/limitranges", body)
    wait_until("the account", lambda: has_account(cluster, "ranged"))
    wait_until(
        "the range", lambda: "limits" in admit(cluster, OPTED_OUT, "ranged")["spec"]["containers"][0]["resources"]
    )
    resources = admit(cluster, pod(), "ranged")["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {**BOTH, RESOURCE: "1"}
    assert resources["requests"]["cpu"] == "1"


def policy_objects(cluster: DevCluster, overlay: str) -> list[dict[str, Any]]:
    built = yaml.safe_load_all(cluster.kubectl("kustomize", overlay_for_this_version(overlay)))
    return sorted(built, key=lambda entry: len(entry["kind"]))


def apply(cluster: DevCluster, *objects: dict[str, Any]) -> None:
    cluster.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(objects))


@pytest.fixture
def injector(cluster: DevCluster) -> Iterator[None]:
    """A policy that runs after the one under test, and adds a claim to pods with a label."""
    policy, binding = policy_objects(cluster, ASK)
    for entry in (policy, binding):
        entry["metadata"]["name"] = "z-injector"
    binding["spec"]["policyName"] = "z-injector"
    has_label = "'inject' in object.metadata.?labels.orValue({}) && !has(object.spec.volumes)"
    policy["spec"]["matchConditions"] = [{"name": "label", "expression": has_label}]
    claim = "Object.spec.volumes.persistentVolumeClaim{claimName: 'data'}"
    volume = f"Object.spec.volumes{{name: 'data', persistentVolumeClaim: {claim}}}"
    empty_list = "JSONPatch{op: 'add', path: '/spec/volumes', value: []}"
    patch = f"[{empty_list}, JSONPatch{{op: 'add', path: '/spec/volumes/-', value: {volume}}}]"
    policy["spec"]["mutations"] = [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}]
    apply(cluster, policy, binding)
    yield
    cluster.kubectl("delete", policy["kind"], "z-injector")
    cluster.kubectl("delete", binding["kind"], "z-injector")


@pytest.mark.usefixtures("injector")
def test_a_pod_whose_claim_is_injected_afterwards_asks(cluster: DevCluster) -> None:
    raw = pod({"labels": {"inject": "yes"}}, volumes=[])
    wait_until("the injector", lambda: bool(admit(cluster, raw)["spec"].get("volumes")))
    assert asking_containers(admit(cluster, raw)) == ["main"]


BREAKAGES: dict[str, dict[str, Any]] = {
    "a condition": {"matchConditions": [{"name": "broken", "expression": BROKEN}]},
    "the expression": {
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": f"{BROKEN} ? [] : [JSONPatch{{}}]"}}]
    },
    "the patch": {
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/spec/none'}]"}}
        ]
    },
}


@pytest.mark.parametrize("what", BREAKAGES)
def test_it_fails_open(cluster: DevCluster, what: str) -> None:
    """A pod for which the policy cannot be evaluated is created as it is; never is one refused."""
    policy, _ = policy_objects(cluster, ASK)
    apply(cluster, {**policy, "spec": {**policy["spec"], **BREAKAGES[what]}})
    try:
        wait_until("the broken policy", lambda: asking_containers(admit(cluster, pod())) == [])
        assert admit(cluster, pod())["spec"]["schedulerName"] == "default-scheduler"
    finally:
        apply(cluster, policy)
        wait_until("the policy", lambda: asking_containers(admit(cluster, pod())) == ["main"])


@pytest.mark.parametrize("overlay", [ASK, SCHEDULER_NAME])
def test_applying_a_policy_again_changes_nothing(cluster: DevCluster, overlay: str) -> None:
    """No default of the API server differs from the manifests."""
    path = overlay_for_this_version(overlay)
    cluster.kubectl("apply", "--server-side", "-k", path)
    try:
        output = cluster.kubectl("diff", "--server-side", "-k", path, check=False)
        # v1beta1 is deprecated.
        assert [line for line in output.splitlines() if not line.startswith("Warning:")] == []
    finally:
        if overlay != ASK:
            delete_the_other_policy(cluster)


def delete_the_other_policy(cluster: DevCluster) -> None:
    cluster.kubectl("delete", "-k", overlay_for_this_version(SCHEDULER_NAME))
    wait_until("its end", lambda: admit(cluster, pod())["spec"]["schedulerName"] == "default-scheduler")


@pytest.fixture
def renaming_cluster(cluster: DevCluster) -> Iterator[DevCluster]:
    """The cluster with the policy that names the second scheduler, instead of the other one."""
    cluster.kubectl("delete", "-k", overlay_for_this_version(ASK))
    cluster.kubectl("apply", "--server-side", "-k", overlay_for_this_version(SCHEDULER_NAME))
    wait_until("the one policy", lambda: admit(cluster, pod())["spec"]["schedulerName"] != "default-scheduler")
    wait_until("the end of the other", lambda: asking_containers(admit(cluster, pod())) == [])
    yield cluster
    delete_the_other_policy(cluster)
    cluster.kubectl("apply", "--server-side", "-k", overlay_for_this_version(ASK))
    wait_until("the policy", lambda: asking_containers(admit(cluster, pod())) == ["main"])


def test_the_other_policy_names_the_second_scheduler_for_the_same_pods(renaming_cluster: DevCluster) -> None:
    schedulers = {what: admit(renaming_cluster, raw)["spec"]["schedulerName"] for what, raw in PODS_THAT_ASK.items()}
    assert schedulers.pop("asks without a claim") == "default-scheduler"
    assert set(schedulers.values()) == {"longhorn-scheduler"}
    assert {what: admit(renaming_cluster, raw)["spec"]["schedulerName"] for what, raw in PODS_THAT_DO_NOT.items()} == {
        what: raw["spec"].get("schedulerName", "default-scheduler") for what, raw in PODS_THAT_DO_NOT.items()
    }
    for namespace in ("kube-system", NAMESPACE, "apart"):
        assert admit(renaming_cluster, pod(), namespace)["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("overlay", [ASK, SCHEDULER_NAME])
def test_the_variant_for_older_clusters_is_accepted(tmp_path_factory: pytest.TempPathFactory, overlay: str) -> None:
    options = ClusterOptions(nodes=0, extra_args={API_SERVER: BETA_ARGUMENTS})
    with DevCluster(tmp_path_factory.mktemp("beta"), options) as beta:
        output = beta.kubectl("apply", "--server-side", "-k", str(OVERLAYS / f"{overlay}-v1beta1"))
    assert "mutatingadmissionpolicybinding" in output
