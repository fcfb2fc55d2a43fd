"""The claims of a pod that are no Longhorn volumes, and what they are."""

import pytest

from tests.builders import (
    Object,
    available_volume,
    bound,
    claim,
    ephemeral_spec,
    explained,
    longhorn_node,
    persistent_volume,
    pod,
    storage_class,
)


def skipped(raw_pod: Object, *objects: Object | list[Object]) -> list[tuple[str, str]]:
    return [(entry.claim, entry.cause) for entry in explained(raw_pod, longhorn_node("n1"), *objects).skipped]


@pytest.mark.parametrize(
    ("objects", "cause"),
    [
        pytest.param(
            [claim("a", storage_class="gone")], "StorageClass gone does not exist", id="missing StorageClass"
        ),
        pytest.param(
            [claim("a", storage_class=None)],
            "the claim names no StorageClass, and none is the default",
            id="no default StorageClass",
        ),
        pytest.param(
            [claim("a", storage_class="")],
            "the claim waits for an existing PersistentVolume without StorageClass",
            id="no StorageClass on purpose",
        ),
        pytest.param(
            [claim("a"), storage_class(provisioner="nfs.csi.k8s.io")],
            "StorageClass longhorn is of provisioner nfs.csi.k8s.io",
            id="another provisioner",
        ),
        pytest.param(
            [claim("a", bound=True), persistent_volume("a", driver="nfs.csi.k8s.io")],
            "PersistentVolume pv-a is of driver nfs.csi.k8s.io",
            id="another driver",
        ),
        pytest.param(
            [claim("a", 50), storage_class(), available_volume("free", 50, driver="nfs.csi.k8s.io"),
             *bound("b"), available_volume("longhorns", 90)],
            "the claim will be bound to an existing PersistentVolume of another driver",
            id="matched with another driver's volume",
        ),
    ],
)  # fmt: skip
def test_a_claim_that_is_no_longhorn_volume_is_listed_as_what_it_is(objects: list[Object], cause: str) -> None:
    assert skipped(pod("a"), objects) == [("default/a", cause)]


def test_longhorn_volumes_are_not_skipped() -> None:
    assert skipped(pod("a", "b"), bound("a"), claim("b", 10), storage_class()) == []


def test_a_volume_with_two_claims_is_not_skipped() -> None:
    second = [claim("b", bound=True), persistent_volume("b", handle="vol-a")]
    assert skipped(pod("a", "b"), bound("a"), second) == []


def test_an_ephemeral_volume_with_a_missing_storage_class_is_listed() -> None:
    raw_pod = pod("a", ephemeral={"scratch": ephemeral_spec(10, "gone")})
    assert skipped(raw_pod, bound("a")) == [("default/pod-scratch", "StorageClass gone does not exist")]
