"""The Longhorn volumes of a pod, and the volume that an unbound claim will become."""

import sys
from types import FrameType
from typing import Any

import pytest

from scheduler_core.errors import MissingObjectError, ResolutionError
from scheduler_core.model.kube import ClaimVolume, Pod
from scheduler_core.volumes.resolve import PodVolume, exceeds_attach_limit, resolve
from tests.builders import (
    GI,
    Object,
    as_pod,
    bound,
    claim,
    ephemeral_spec,
    persistent_volume,
    pod,
    replica,
    setting,
    storage_class,
    view,
    volume,
)


def volumes(raw_pod: Object, *objects: Object | list[Object], require_best_effort: bool = True) -> list[PodVolume]:
    return list(resolve(as_pod(raw_pod), view(*objects), require_best_effort=require_best_effort).volumes)


def test_a_bound_claim_leads_to_its_longhorn_volume_and_replicas() -> None:
    (pod_volume,) = volumes(
        pod("a"), bound("a", 10), replica("r2", "vol-a", "n1", size=10), replica("r1", "vol-a", "n2", size=10)
    )
    assert (pod_volume.name, pod_volume.claim, pod_volume.bound, pod_volume.volume.size) == (
        "vol-a",
        "default/a",
        True,
        10 * GI,
    )
    assert [entry.name for entry in pod_volume.replicas] == ["r1", "r2"]


def test_spec_volume_name_decides_whether_a_claim_is_bound() -> None:
    """The phase lags: right after binding it is still Pending, or missing."""
    (pod_volume,) = volumes(
        pod("a"), claim("a", 10, bound=True, phase="Pending"), persistent_volume("a"), volume("vol-a", 10)
    )
    assert pod_volume.bound


def test_the_phase_bound_without_a_volume_name_is_ignored() -> None:
    (pod_volume,) = volumes(pod("a"), claim("a", 10, phase="Bound"), storage_class())
    assert not pod_volume.bound


def test_a_claim_named_twice_counts_once() -> None:
    assert [entry.name for entry in volumes(pod("a", "a"), bound("a"))] == ["vol-a"]


def test_two_claims_of_one_longhorn_volume_count_once() -> None:
    second = [claim("b", bound=True), persistent_volume("b", handle="vol-a")]
    assert [entry.name for entry in volumes(pod("a", "b"), bound("a"), second)] == ["vol-a"]


def test_a_claim_named_like_another_volume_is_named_in_full() -> None:
    """Plans name volumes, so two volumes of one name would hide each other."""
    pod_volumes = volumes(pod("a", "vol-a"), bound("a"), claim("vol-a"), storage_class())
    assert [entry.name for entry in pod_volumes] == ["vol-a", "default/vol-a"]


def test_a_pod_without_claims_has_no_volumes() -> None:
    """So there is nothing to decide."""
    assert volumes(pod()) == []


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param([claim("a", bound=True), persistent_volume("a", driver="ebs.csi.aws.com")], id="other driver"),
        pytest.param([claim("a"), storage_class(provisioner="rancher.io/local-path")], id="other provisioner"),
        pytest.param([claim("a", storage_class="gone")], id="missing StorageClass"),
        pytest.param([claim("a", storage_class=""), storage_class(default=True)], id="the empty StorageClass"),
        pytest.param([claim("a", storage_class=None), storage_class()], id="no default StorageClass"),
    ],
)
def test_a_claim_of_another_driver_is_skipped(objects: list[Object]) -> None:
    """Claims of other drivers and classes must not cost the pod its nodes."""
    assert volumes(pod("a"), objects) == []


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        pytest.param([], r"PersistentVolumeClaim default/a does not exist \(named by pod default/pod\)", id="claim"),
        pytest.param(
            [claim("a", bound=True)], r"PersistentVolume pv-a does not exist \(named by .*default/a\)", id="PV"
        ),
        pytest.param(
            [claim("a", bound=True), persistent_volume("a")],
            r"Longhorn volume vol-a does not exist \(named by PersistentVolume pv-a\)",
            id="Longhorn volume",
        ),
    ],
)
def test_the_error_about_a_missing_object_names_what_refers_to_it(objects: list[Object], message: str) -> None:
    with pytest.raises(MissingObjectError, match=message):
        volumes(pod("a"), objects)


def test_a_claim_without_a_class_has_the_default_storage_class() -> None:
    """The newest default class counts, as in Kubernetes; of equally old ones the first by name."""
    (pod_volume,) = volumes(
        pod("a"),
        claim("a", storage_class=None),
        storage_class("old", default=True, created="2025-01-01T00:00:00Z", dataLocality="disabled"),
        storage_class("new", default=True, created="2026-01-01T00:00:00Z", dataLocality="strict-local"),
    )
    assert pod_volume.volume.data_locality == "strict-local"


class TestEphemeral:
    """Generic ephemeral volumes: the claim is named after pod and volume and belongs to the pod."""

    POD = pod(ephemeral={"scratch": ephemeral_spec(5)})

    def test_the_claim_need_not_exist_yet(self) -> None:
        (pod_volume,) = volumes(self.POD, storage_class())
        assert (pod_volume.name, pod_volume.claim, pod_volume.volume.size) == (
            "pod-scratch",
            "default/pod-scratch",
            5 * GI,
        )

    def test_an_existing_claim_of_the_pod_counts(self) -> None:
        owner = {"kind": "Pod", "name": "pod", "uid": "uid-pod"}
        (pod_volume,) = volumes(self.POD, claim("pod-scratch", 7, owners=[owner]), storage_class())
        assert pod_volume.volume.size == 7 * GI

    @pytest.mark.parametrize(
        "owners",
        [[], [{"kind": "Pod", "name": "pod", "uid": "uid-older"}], [{"kind": "Job", "name": "pod", "uid": "uid-pod"}]],
    )
    def test_a_claim_of_that_name_with_another_owner_is_an_error(self, owners: list[Object]) -> None:
        """Kubernetes would not start the pod either; the error says what to do."""
        with pytest.raises(ResolutionError, match="does not belong to pod default/pod"):
            volumes(self.POD, claim("pod-scratch", owners=owners), storage_class())


class TestUnbound:
    """An unbound claim is the volume that Longhorn would create: parameters count before the settings' defaults."""

    @pytest.mark.parametrize(
        ("request_", "parameters", "size"),
        [
            pytest.param("1", {}, 10 * 2**20, id="at least 10 MiB"),
            pytest.param("10Mi", {}, 10 * 2**20, id="exactly 10 MiB"),
            pytest.param("10485761", {}, 12 * 2**20, id="rounded up to 2 MiB"),
            pytest.param("100Gi", {}, 100 * 2**30, id="a multiple stays"),
            pytest.param("300Mi", {"csi.storage.k8s.io/fstype": "xfs"}, 300 * 2**20, id="xfs by the CSI name"),
            pytest.param("301Mi", {"fsType": "xfs"}, 302 * 2**20, id="xfs rounded up"),
        ],
    )
    def test_the_size_is_rounded_as_by_the_csi_driver(
        self, request_: str, parameters: dict[str, Any], size: int
    ) -> None:
        (pod_volume,) = volumes(pod("a"), claim("a", request_), storage_class(**parameters))
        assert pod_volume.volume.size == size

    def test_parameters_become_fields(self) -> None:
        (pod_volume,) = volumes(
            pod("a"),
            claim("a"),
            storage_class(
                numberOfReplicas="2",
                dataLocality="disabled",
                dataEngine="v2",
                nodeSelector="storage,fast",
                diskSelector="ssd",
                share="true",
                migratable="true",
            ),
        )
        created = pod_volume.volume
        assert (created.number_of_replicas, created.data_locality) == (2, "disabled")
        assert (created.data_engine, created.migratable) == ("v2", True)
        assert (created.node_selector, created.disk_selector) == (("storage", "fast"), ("ssd",))

    def test_settings_are_the_defaults_of_missing_parameters(self) -> None:
        (pod_volume,) = volumes(
            pod("a"),
            claim("a"),
            {**storage_class(), "parameters": {}},
            setting("default-replica-count", '{"v1":"2","v2":"1"}'),
            setting("default-data-locality", "best-effort"),
        )
        assert (pod_volume.volume.number_of_replicas, pod_volume.local) == (2, True)

    @pytest.mark.parametrize(
        ("image", "message"),
        [
            pytest.param({"spec": {"dataEngine": "v2"}}, "is for dataEngine v2, not v1", id="data engine"),
            pytest.param(
                {"status": {"virtualSize": 11 * GI}}, "10Gi are less than the 11Gi of backing image bi", id="size"
            ),
        ],
    )
    def test_a_backing_image_that_does_not_suit_the_volume_is_an_error(self, image: Object, message: str) -> None:
        raw = {"apiVersion": "longhorn.io/v1beta2", "kind": "BackingImage", "metadata": {"name": "bi"}, **image}
        with pytest.raises(ResolutionError, match=message):
            volumes(pod("a"), claim("a", 10), storage_class(backingImage="bi"), raw)

    def test_a_volume_shared_by_parameter_is_served_over_the_network(self) -> None:
        (pod_volume,) = volumes(pod("a"), claim("a"), storage_class(share="true"))
        assert (pod_volume.volume.access_mode, pod_volume.local) == ("rwx", False)

    @pytest.mark.parametrize(
        "objects",
        [
            pytest.param([claim("a"), volume("vol-b", dataEngine="v2")], id="by parameter"),
            pytest.param([claim("a", source="b"), *bound("b", dataEngine="v2")], id="by the claim"),
        ],
    )
    def test_a_linked_clone_names_its_source(self, objects: list[Object]) -> None:
        clone_class = storage_class(dataEngine="v2", cloneMode="linked-clone", dataSource="vol://vol-b")
        (pod_volume,) = volumes(pod("a"), objects, clone_class)
        assert (pod_volume.volume.clone_mode, pod_volume.volume.data_source) == ("linked-clone", "vol://vol-b")

    def test_a_linked_clone_of_an_unbound_claim_is_an_error(self) -> None:
        with pytest.raises(MissingObjectError, match="bound PersistentVolumeClaim default/b"):
            volumes(pod("a"), claim("a", source="b"), claim("b"), storage_class(cloneMode="linked-clone"))

    @pytest.mark.parametrize("uid", ["", "uid-a"], ids=["by hand", "for this claim"])
    def test_a_persistent_volume_reserved_for_the_claim_counts_as_its_volume(self, uid: str) -> None:
        (pod_volume,) = volumes(
            pod("a"), claim("a"), persistent_volume("a", uid=uid), volume("vol-a", 7), storage_class()
        )
        assert (pod_volume.name, pod_volume.volume.size) == ("vol-a", 7 * GI)

    def test_a_volume_reserved_for_an_earlier_claim_of_that_name_does_not_count(self) -> None:
        (pod_volume,) = volumes(
            pod("a"), claim("a", 5), persistent_volume("a", uid="uid-older"), volume("vol-a", 7), storage_class()
        )
        assert (pod_volume.bound, pod_volume.volume.size) == (False, 5 * GI)

    @pytest.mark.parametrize(
        ("objects", "message"),
        [
            pytest.param([claim("a", None), storage_class()], "asks for no storage", id="no request"),
            pytest.param(
                [claim("a"), storage_class(numberOfReplicas="many")], "'many' is not a whole number", id="replicas"
            ),
            pytest.param(
                [claim("a"), storage_class(numberOfReplicas="1" * 5000)], "is not a whole number", id="too long"
            ),
            pytest.param(
                [claim("a"), storage_class(dataLocality="best_effort")], "is not one of disabled", id="locality"
            ),
            pytest.param([claim("a"), storage_class(migratable="maybe")], "'maybe' is not a boolean", id="migratable"),
        ],
    )
    def test_a_claim_that_cannot_become_a_volume_is_an_error(self, objects: list[Object], message: str) -> None:
        """The error names the claim, so that it can be corrected."""
        with pytest.raises(ResolutionError, match=f"default/a.*{message}"):
            volumes(pod("a"), objects)


@pytest.mark.parametrize(
    ("fields", "access", "local"),
    [
        pytest.param({"locality": "best-effort"}, "ReadWriteOnce", True, id="best-effort"),
        pytest.param({"locality": "strict-local"}, "ReadWriteOnce", True, id="strict-local"),
        pytest.param({"locality": "disabled"}, "ReadWriteOnce", False, id="disabled"),
        pytest.param({"locality": "best-effort", "accessMode": "rwx"}, "ReadWriteMany", False, id="share-manager"),
        pytest.param(
            {"locality": "best-effort", "accessMode": "rwx", "migratable": True}, "ReadWriteMany", True, id="migratable"
        ),
    ],
)
def test_only_volumes_with_data_locality_need_local_space(fields: dict[str, Any], access: str, local: bool) -> None:
    (pod_volume,) = volumes(pod("a"), bound("a", access=access, **fields))
    assert pod_volume.local is local


def test_best_effort_can_be_relaxed_to_a_preference() -> None:
    pod_volumes = volumes(pod("a", "b"), bound("a"), bound("b", locality="strict-local"), require_best_effort=False)
    assert [entry.local for entry in pod_volumes] == [False, True]


class TestClaimInUse:
    """A pod that shares an exclusive claim with a live pod must run on the same node."""

    @pytest.mark.parametrize(
        ("other_pod", "nodes"),
        [
            pytest.param(pod("a", name="other", uid="2", node="n1", phase="Running"), {"n1"}, id="running"),
            pytest.param(pod("a", name="other", uid="2", node="n1"), {"n1"}, id="just bound"),
            pytest.param(pod("a", name="other", uid="2"), set(), id="not bound yet"),
            pytest.param(pod("a", name="other", uid="2", node="n1", phase="Succeeded"), set(), id="finished"),
            pytest.param(pod("a", name="other", uid="2", node="n1", deleting=True), set(), id="being deleted"),
            pytest.param(pod("a", name="other", uid="2", node="n1", namespace="x"), set(), id="other namespace"),
            pytest.param(pod("a", node="n1", phase="Running"), set(), id="the pod itself"),
        ],
    )
    def test_an_exclusive_claim_is_in_use_on_the_node_of_a_live_pod(self, other_pod: Object, nodes: set[str]) -> None:
        (pod_volume,) = volumes(pod("a"), bound("a"), other_pod)
        assert pod_volume.in_use_on == nodes

    def test_every_claim_of_a_volume_counts(self) -> None:
        second = [claim("b", bound=True), persistent_volume("b", handle="vol-a")]
        (pod_volume,) = volumes(
            pod("a", "b"), bound("a"), second, pod("b", name="other", uid="2", node="n1", phase="Running")
        )
        assert pod_volume.in_use_on == {"n1"}

    def test_a_shared_claim_is_in_use_on_no_node(self) -> None:
        """ReadWriteMany claims may be used on any node, as by live migration."""
        (pod_volume,) = volumes(
            pod("a"), bound("a", access="ReadWriteMany"), pod("a", name="other", uid="2", node="n1", phase="Running")
        )
        assert pod_volume.in_use_on == frozenset()


def _calls_to_resolve(count: int) -> int:
    """Number of Python calls that resolving so many ephemeral volumes takes."""
    names = [f"scratch-{index}" for index in range(count)]
    requested = as_pod(pod(ephemeral={name: ephemeral_spec(1) for name in names}))
    current = view(storage_class())
    calls = 0

    def record(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(record)
    try:
        resolve(requested, current)
    finally:
        sys.setprofile(None)
    return calls


def test_resolving_twice_as_many_volumes_takes_twice_the_work() -> None:
    """A pod of thousands of volumes must not stop the event loop."""
    assert _calls_to_resolve(400) < 2.2 * _calls_to_resolve(200)


@pytest.mark.parametrize(("count", "exceeds"), [(4_094, False), (4_095, True)])
def test_a_node_attaches_as_many_volumes_as_longhorn_numbers_iscsi_targets(count: int, exceeds: bool) -> None:
    assert exceeds_attach_limit(as_pod(pod(*[f"claim-{index}" for index in range(count)]))) is exceeds


def test_a_claim_that_a_pod_mounts_often_is_attached_once() -> None:
    assert not exceeds_attach_limit(Pod("default", "p", volumes=tuple(ClaimVolume(f"v{i}", "a") for i in range(5_000))))
