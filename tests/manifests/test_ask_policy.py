"""manifests/overlays/ask-policy and scheduler-name-policy: they change the same pods, and fit what manages these."""

import re
from typing import Any

import pytest

from tests.manifests.ask_policy import ASK, OPT_OUT, OVERLAYS, RESOURCE, SCHEDULER_NAME
from tests.manifests.load import CONFIGS, MANIFESTS, ROOT, documents, objects

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


@pytest.mark.parametrize("overlay", BOTH)
def test_the_guides_name_the_overlay_and_its_variant(overlay: str) -> None:
    general = (ROOT / "docs/kube-scheduler.md").read_text()
    assert OPT_OUT in general
    guide = general if overlay == ASK else (ROOT / "docs/platforms/managed.md").read_text()
    assert f"kubectl apply -k manifests/overlays/{overlay}\n" in guide
    assert f"{overlay}-v1beta1" in guide
