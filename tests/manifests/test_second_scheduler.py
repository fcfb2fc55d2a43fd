"""manifests/overlays/second-scheduler: a second kube-scheduler with its own name, its own Lease, and what it may read."""

import re
from typing import Any

import yaml

from tests.manifests.kustomize import documented_kustomization
from tests.manifests.load import CONFIGS, MANIFESTS, NAMESPACE, documents, objects, only, permissions

FOLDER = MANIFESTS / "overlays/second-scheduler"
SCHEDULER = "longhorn-scheduler"
AUTHENTICATION_READER = "extension-apiserver-authentication-reader"


def configuration() -> dict[str, Any]:
    (document,) = documents(FOLDER / "config/kube-scheduler.yaml")
    assert isinstance(document, dict)
    return document


def pod_spec() -> dict[str, Any]:
    spec: dict[str, Any] = only("Deployment", FOLDER, name=SCHEDULER)["spec"]["template"]["spec"]
    return spec


def test_its_configuration_is_the_recommended_one_with_a_lease_and_a_name_of_its_own() -> None:
    (recommended,) = documents(CONFIGS / "recommended.yaml")
    config = configuration()
    assert config.pop("profiles") == [{"schedulerName": SCHEDULER}]
    lease = {"resourceName": SCHEDULER, "resourceNamespace": NAMESPACE}
    assert config["leaderElection"] == {**recommended["leaderElection"], **lease}
    connection = {key: value for key, value in recommended["clientConnection"].items() if key != "kubeconfig"}
    assert config == {**recommended, "clientConnection": connection, "leaderElection": config["leaderElection"]}


def test_its_role_is_for_its_own_lease_alone() -> None:
    """RBAC cannot restrict create to a name; the cluster's own role is for a Lease named kube-scheduler only."""
    role = only("Role", FOLDER / "access")
    lease = configuration()["leaderElection"]
    assert role["metadata"]["namespace"] == lease["resourceNamespace"]
    assert sorted(permissions(role)) == [
        ("create", "coordination.k8s.io", "leases", ""),
        ("get", "coordination.k8s.io", "leases", lease["resourceName"]),
        ("update", "coordination.k8s.io", "leases", lease["resourceName"]),
    ]


def test_its_lease_is_deleted_with_it() -> None:
    """kube-scheduler would create it, and no uninstallation would remove it. Applying it again must not take it from its holder."""
    lease = only("Lease", FOLDER / "access")
    assert lease.keys() == {"apiVersion", "kind", "metadata"}
    election = configuration()["leaderElection"]
    wanted = (election["resourceName"], election["resourceNamespace"])
    assert (lease["metadata"]["name"], lease["metadata"]["namespace"]) == wanted


def test_it_may_read_how_the_api_server_authenticates() -> None:
    """Without this binding, which is in kube-system, kube-scheduler logs "forbidden" for ever."""
    binding = only("RoleBinding", FOLDER / "access", name=f"{SCHEDULER}-authentication-reader")
    assert binding["metadata"]["namespace"] == "kube-system"
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", AUTHENTICATION_READER)


def test_every_role_is_bound_to_its_account_and_no_other() -> None:
    bindings = [entry for entry in objects(FOLDER / "access") if entry["kind"].endswith("RoleBinding")]
    assert {(entry["roleRef"]["kind"], entry["roleRef"]["name"]) for entry in bindings} == {
        ("ClusterRole", "system:kube-scheduler"),
        ("ClusterRole", "system:volume-scheduler"),
        ("Role", AUTHENTICATION_READER),
        ("Role", SCHEDULER),
    }
    account = [{"kind": "ServiceAccount", "name": SCHEDULER, "namespace": NAMESPACE}]
    assert [entry["subjects"] for entry in bindings] == [account] * len(bindings)
    assert only("ServiceAccount", FOLDER / "access")["metadata"]["name"] == SCHEDULER


def test_its_own_pods_do_not_wait_for_themselves() -> None:
    assert pod_spec()["schedulerName"] == "default-scheduler" != configuration()["profiles"][0]["schedulerName"]
    assert pod_spec()["serviceAccountName"] == SCHEDULER


def test_it_reads_the_configuration_that_is_mounted() -> None:
    """The ConfigMap is generated, so that a change is rolled out."""
    (kustomization,) = documents(FOLDER / "kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]
    (container,) = pod_spec()["containers"]
    (volume,) = pod_spec()["volumes"]
    (mount,) = container["volumeMounts"]
    assert volume["configMap"]["name"] == generated["name"]
    assert generated["files"] == ["config/kube-scheduler.yaml"]
    assert container["args"] == [f"--config={mount['mountPath']}/kube-scheduler.yaml"]
    assert generated["namespace"] == NAMESPACE


def test_the_image_is_the_official_one_with_a_version_to_set() -> None:
    (kustomization,) = documents(FOLDER / "kustomization.yaml")
    (image,) = kustomization["images"]
    (container,) = pod_spec()["containers"]
    assert image["name"] == container["image"] == "registry.k8s.io/kube-scheduler"
    assert re.fullmatch(r"v1\.\d+\.\d+", image["newTag"])


def test_the_guides_kustomization_names_the_overlay_and_sets_the_version() -> None:
    kustomization = yaml.safe_load(documented_kustomization("docs/platforms/managed.md"))
    assert kustomization["resources"] == ["../manifests/overlays/second-scheduler"]
    assert "registry.k8s.io/kube-scheduler" in {entry["name"] for entry in kustomization["images"]}
