"""Reviews of replicas' placements: which updates have the shape of one, and what is answered."""

import json
from base64 import b64decode
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from scheduler_core.convert import admission
from scheduler_core.convert.installed_objects import is_answered, probe_replica
from scheduler_core.errors import ObjectError
from scheduler_core.model.longhorn import REVIEWED, Placement
from scheduler_core.structs import replace
from tests import builders as make
from tests.builders import GI, Object
from tests.worlds.placements import placement_review

PLACEMENT = Placement("r1", "vol-a", 10 * GI, "n", "n-disk-1", "/disk-1/", image="longhornio/engine:v1")


def _review() -> Object:
    return placement_review(PLACEMENT)


def _placement(review: Object) -> Placement | str:
    return admission.admission_request(review).placement


def test_an_update_that_gives_a_replica_its_place_is_a_placement() -> None:
    """Of a dry run nothing may be remembered."""
    review = _review()
    assert admission.admission_request(review) == admission.AdmissionRequest("review-1", False, PLACEMENT)
    review["request"]["dryRun"] = True
    assert admission.admission_request(review).dry_run
    strict_local = replace(PLACEMENT, hard_node_affinity="n", linked_clone_source="r0", data_engine="v2")
    assert _placement(placement_review(strict_local)) == strict_local


def _trial(**changes: Any) -> Object:
    request = {"uid": "u", "operation": "CREATE", "dryRun": True, "object": probe_replica("longhorn.io/v1beta2")}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**request, **changes}}


def test_a_diagnosis_asks_by_a_dry_run_that_creates_its_replica() -> None:
    review = _trial()
    assert admission.admission_request(review).is_trial
    created = review["request"]["object"]
    assert not is_answered(json.dumps(created).encode())
    (operation,) = admission.TRIAL_PATCH
    *path, key = operation["path"].strip("/").split("/")
    target = created
    for name in path:
        target = target[name]
    target[key.replace("~1", "/")] = operation["value"]
    assert is_answered(json.dumps(created).encode())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"dryRun": False}, id="no dry run"),
        pytest.param({"operation": "UPDATE"}, id="an update"),
        pytest.param({"object": {"metadata": {"name": "pvc-1-r-1"}}}, id="another replica"),
        pytest.param({"object": None}, id="no object"),
    ],
)
def test_nothing_else_is_taken_for_a_diagnosis(changes: Object) -> None:
    assert not admission.admission_request(_trial(**changes)).is_trial


def _set(*path: str, value: Any) -> Callable[[Object], None]:
    def change(review: Object) -> None:
        target = review["request"]
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


def _remove_label(name: str) -> Callable[[Object], None]:
    return lambda review: review["request"]["object"]["metadata"]["labels"].pop(name)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_set("operation", value="CREATE"), "the operation is 'CREATE', not 'UPDATE'"),
        (_set("operation", value="DELETE"), "the operation is 'DELETE', not 'UPDATE'"),
        (
            _set("kind", value={"group": "longhorn.io", "kind": "Engine"}),
            "the object is no replica but a 'Engine' of group 'longhorn.io'",
        ),
        (_set("kind", value=None), "the object is no replica but a '' of group ''"),
        (
            _set("oldObject", "spec", "diskID", value="n-disk-1"),
            "the replica had a place already: node '', disk 'n-disk-1'",
        ),
        (_set("oldObject", "spec", "nodeID", value="m"), "the replica had a place already: node 'm', disk ''"),
        (_set("object", "metadata", "deletionTimestamp", value="2026-01-01T00:00:00Z"), "the replica is being deleted"),
        (_set("object", "spec", "active", value=False), "the replica is not active"),
        (_set("object", "spec", "migrationEngineName", value="e-1"), "the replica belongs to a migration"),
        (_set("object", "metadata", "name", value=""), "metadata.name is empty"),
        (_set("object", "spec", "volumeName", value=""), "spec.volumeName is empty"),
        (_set("object", "spec", "nodeID", value=""), "spec.nodeID is empty"),
        (_set("object", "spec", "diskID", value=""), "spec.diskID is empty"),
        (_set("object", "spec", "diskPath", value=None), "spec.diskPath is empty"),
        (_remove_label("longhornnode"), "label longhornnode is '', not 'n'"),
        (_remove_label("longhorndiskuuid"), "label longhorndiskuuid is '', not 'n-disk-1'"),
        (_set("object", "metadata", "labels", "longhornnode", value="m"), "label longhornnode is 'm', not 'n'"),
        (_set("object", "metadata", "labels", value=None), "label longhornnode is '', not 'n'"),
        (_set("object", "spec", "volumeSize", value="ten"), "spec.volumeSize"),
        (_set("object", value=None), "Replica.longhorn.io"),
        (_set("oldObject", value=None), "Replica.longhorn.io"),
        (_set("oldObject", value="text"), "Replica.longhorn.io"),
    ],
)
def test_an_update_of_another_shape_is_refused_with_a_sentence(change: Callable[[Object], Any], sentence: str) -> None:
    review = _review()
    change(review)
    placement = _placement(review)
    assert isinstance(placement, str)
    assert sentence in placement


@pytest.mark.parametrize(
    "review",
    [
        None,
        [],
        {},
        {"apiVersion": "admission.k8s.io/v1"},
        {"apiVersion": "admission.k8s.io/v1", "request": {}},
        {"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "1"}},
        {"request": {"uid": "1"}},
    ],
)
def test_what_is_no_review_is_an_error(review: object) -> None:
    with pytest.raises(ObjectError, match="AdmissionReview"):
        admission.admission_request(review)


def _apply(patch: list[dict[str, Any]], raw: Object) -> Object:
    """Applies the operations of RFC 6902 that the guard uses; a map that a patch adds is new."""
    result = deepcopy(raw)
    for operation in patch:
        *parents, key = operation["path"].lstrip("/").split("/")
        target = result
        for parent in parents:
            target = target[parent]
        key = key.replace("~1", "/")
        assert (key in target) is (operation["op"] != "add")
        if operation["op"] == "test":
            assert target[key] == operation["value"]
        else:
            target[key] = operation["value"]
    return result


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        ({"disk": "n-disk-2", "disk_path": "/disk-2/"}, ["spec/diskID", "spec/diskPath", "metadata/labels/longhorndiskuuid"]),
        ({"disk": "n-disk-2"}, ["spec/diskID", "metadata/labels/longhorndiskuuid"]),
        ({"node": "m", "disk": "m-disk-1"},
         ["spec/nodeID", "spec/diskID", "metadata/labels/longhornnode", "metadata/labels/longhorndiskuuid"]),
    ],
    ids=["another disk", "a disk of the same path", "another node"],
)  # fmt: skip
def test_a_patch_makes_what_longhorn_would_have_written(change: dict[str, Any], replaced: list[str]) -> None:
    """It tests every old value first, and replaces no other field."""
    after = replace(PLACEMENT, **change)
    patch = admission.placement_patch(PLACEMENT, after, has_annotations=False)
    assert [operation["op"] for operation in patch] == ["test"] * 5 + ["replace"] * len(replaced) + ["add"]
    assert [operation["path"][1:] for operation in patch if operation["op"] == "replace"] == replaced
    expected = placement_review(after)["request"]["object"]
    expected["metadata"]["annotations"] = {REVIEWED: after.place}
    assert _apply(patch, _review()["request"]["object"]) == expected


@pytest.mark.parametrize("annotations", [{}, {"other": "value"}])
def test_a_placement_that_stays_is_noted_as_reviewed(annotations: dict[str, str]) -> None:
    """So that another process, and the next API server's call, see it; other annotations stay."""
    review = _review()
    review["request"]["object"]["metadata"]["annotations"] = annotations
    request = admission.admission_request(review)
    before = deepcopy(review["request"]["object"])
    if not annotations:
        del before["metadata"]["annotations"]
    patched = _apply(admission.placement_patch(PLACEMENT, PLACEMENT, has_annotations=request.has_annotations), before)
    assert patched["metadata"].pop("annotations") == {**annotations, REVIEWED: "n/n-disk-1/disk-1/"}
    before["metadata"].pop("annotations", None)
    assert patched == before


def test_every_answer_allows_the_update() -> None:
    patch = [{"op": "replace", "path": "/spec/diskID", "value": "n-disk-2"}]
    review = admission.admission_response("review-1", patch)
    response = review["response"]
    assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert (response["uid"], response["allowed"], response["patchType"]) == ("review-1", True, "JSONPatch")
    assert json.loads(b64decode(response["patch"])) == patch
    assert admission.admission_response("review-1", [])["response"] == {"uid": "review-1", "allowed": True}


def test_a_replica_is_read_with_its_labels_and_generation() -> None:
    raw = make.replica("r1", "vol-a", "n")
    raw["metadata"] |= {"labels": {"longhornnode": "n", "longhorndiskuuid": "n-disk-1"}, "generation": 2}
    replica = make.snapshot(raw).replicas["r1"]
    assert (replica.node_label, replica.disk_label, replica.spec_is_original) == ("n", "n-disk-1", False)
