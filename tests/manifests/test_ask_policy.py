"""manifests/overlays/ask-policy and scheduler-name-policy: which pods they change, and that they fail open."""

import re
from typing import Any

import pytest

from tests.manifests.ask_policy import ASK, OPT_OUT, OVERLAYS, RESOURCE, SCHEDULER_NAME
from tests.manifests.kustomize import build
from tests.manifests.load import CONFIGS, MANIFESTS, NAME, NAMESPACE, ROOT, documents, objects

POLICY = "MutatingAdmissionPolicy"
BOTH = [ASK, SCHEDULER_NAME]


def spec_of(overlay: str, kind: str = POLICY) -> dict[str, Any]:
    (entry,) = (entry for entry in objects(OVERLAYS / overlay) if entry["kind"] == kind)
    return dict(entry["spec"])


def variables(overlay: str) -> dict[str, str]:
    return {entry["name"]: entry["expression"] for entry in spec_of(overlay)["variables"]}


def expression(overlay: str) -> str:
    (mutation,) = spec_of(overlay)["mutations"]
    return str(mutation["jsonPatch"]["expression"])


@pytest.mark.parametrize("overlay", BOTH)
def test_a_policy_fails_open_for_new_pods_outside_of_the_clusters_and_longhorns_namespaces(overlay: str) -> None:
    spec = spec_of(overlay)
    # It must never keep a pod from being created, and runs again after other changes.
    assert (spec["failurePolicy"], spec["reinvocationPolicy"]) == ("Ignore", "IfNeeded")
    assert spec["matchConstraints"] == {
        # What may be changed of a pod that exists is not enough.
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        # The extender's pods are in Longhorn's namespace: they must never wait for themselves.
        "namespaceSelector": {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]},
                {"key": OPT_OUT, "operator": "NotIn", "values": ["false"]},
            ]
        },
    }
    # The policy itself excludes namespaces, its binding nothing.
    (name,) = {entry["metadata"]["name"] for entry in objects(OVERLAYS / overlay)}
    assert spec_of(overlay, f"{POLICY}Binding") == {"policyName": name}
    assert name.startswith(f"{NAME}-")


def test_both_policies_change_the_same_pods() -> None:
    ask, rename = variables(ASK), variables(SCHEDULER_NAME)
    assert RESOURCE in ask.pop("asks")
    assert ask == rename
    for part in ("matchConditions", "matchConstraints"):
        assert spec_of(ASK)[part] == spec_of(SCHEDULER_NAME)[part]


def test_pods_ask_for_the_resource_that_kube_scheduler_manages() -> None:
    (config,) = documents(CONFIGS / "recommended-managed.yaml")
    (extender,) = config["extenders"]
    (managed,) = extender["managedResources"]
    quoted = set(re.findall(r"'(longhorn\.io/[^']*)'", expression(ASK) + variables(ASK)["asks"]))
    assert quoted == {managed["name"]} == {RESOURCE}


def test_pods_are_sent_to_the_profile_of_the_second_scheduler() -> None:
    (config,) = documents(OVERLAYS / "second-scheduler/config/kube-scheduler.yaml")
    (profile,) = config["profiles"]
    assert re.findall(r"value: '([^']*)'", expression(SCHEDULER_NAME)) == [profile["schedulerName"]]


@pytest.mark.parametrize("overlay", BOTH)
def test_no_other_overlay_contains_a_policy(overlay: str) -> None:
    """A policy comes after kube-scheduler's configuration, and goes before it."""
    others = [path for path in sorted(MANIFESTS.rglob("kustomization.yaml")) if overlay in path.read_text()]
    assert {path.parent.name for path in others} == {overlay, f"{overlay}-v1beta1"}


@pytest.mark.e2e  # it needs kubectl
@pytest.mark.parametrize("overlay", BOTH)
def test_the_variant_for_older_clusters_differs_in_its_api_version_only(overlay: str) -> None:
    current, beta = (build(f"overlays/{name}") for name in (overlay, f"{overlay}-v1beta1"))
    assert {entry["apiVersion"] for entry in current} == {"admissionregistration.k8s.io/v1"}
    assert beta == [{**entry, "apiVersion": "admissionregistration.k8s.io/v1beta1"} for entry in current]


@pytest.mark.parametrize("overlay", BOTH)
def test_the_guides_name_the_overlay_and_its_variant(overlay: str) -> None:
    general = (ROOT / "docs/kube-scheduler.md").read_text()
    assert OPT_OUT in general
    guide = general if overlay == ASK else (ROOT / "docs/platforms/managed.md").read_text()
    assert f"kubectl apply -k manifests/overlays/{overlay}\n" in guide
    assert f"{overlay}-v1beta1" in guide
