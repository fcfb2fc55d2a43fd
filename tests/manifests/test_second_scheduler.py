"""manifests/overlays/second-scheduler: a second kube-scheduler with its own name and its own Lease."""

from typing import Any

import yaml

from tests.manifests.kustomize import documented_kustomization
from tests.manifests.load import CONFIGS, MANIFESTS, NAMESPACE, documents

FOLDER = MANIFESTS / "overlays/second-scheduler"
SCHEDULER = "longhorn-scheduler"


def configuration() -> dict[str, Any]:
    (document,) = documents(FOLDER / "config/kube-scheduler.yaml")
    assert isinstance(document, dict)
    return document


def test_its_configuration_is_the_recommended_one_with_a_lease_and_a_name_of_its_own() -> None:
    (recommended,) = documents(CONFIGS / "recommended.yaml")
    config = configuration()
    assert config.pop("profiles") == [{"schedulerName": SCHEDULER}]
    lease = {"resourceName": SCHEDULER, "resourceNamespace": NAMESPACE}
    assert config["leaderElection"] == {**recommended["leaderElection"], **lease}
    connection = {key: value for key, value in recommended["clientConnection"].items() if key != "kubeconfig"}
    assert config == {**recommended, "clientConnection": connection, "leaderElection": config["leaderElection"]}


def test_the_guides_kustomization_names_the_overlay_and_sets_the_version() -> None:
    kustomization = yaml.safe_load(documented_kustomization("docs/platforms/managed.md"))
    assert kustomization["resources"] == ["../manifests/overlays/second-scheduler"]
    assert "registry.k8s.io/kube-scheduler" in {entry["name"] for entry in kustomization["images"]}
