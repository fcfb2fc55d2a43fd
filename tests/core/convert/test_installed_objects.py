"""What a diagnosis reads of pods, Services, Events and CSI drivers, and what it creates."""

import json
from typing import Any

import pytest

from scheduler_core.convert.installed_objects import (
    TAG,
    access_review,
    csi_driver_tracks_capacity,
    installed_pod,
    is_allowed,
    pod_progress,
    probe_class,
    probe_pod,
    scheduling_failure,
    selected_node,
    service_address,
)
from scheduler_core.model.installation import Permission
from tests.manifests.ask_policy import OPT_OUT

RESOURCE = {"longhorn.io/scheduler-extender": "1"}


def raw(spec: dict[str, Any], status: dict[str, Any] | None = None) -> bytes:
    return json.dumps({"metadata": {"name": "a", "namespace": "shop"}, "spec": spec, "status": status or {}}).encode()


@pytest.mark.parametrize("key", ["requests", "limits"])
@pytest.mark.parametrize("containers", ["containers", "initContainers"])
def test_a_pod_requests_the_resource_in_any_container(key: str, containers: str) -> None:
    assert installed_pod(raw({containers: [{"resources": {key: RESOURCE}}]})).requests_extender
    assert not installed_pod(raw({containers: [{"resources": {key: {"cpu": "1"}}}]})).requests_extender


def test_a_pods_port_is_the_one_for_http_wherever_it_is() -> None:
    names = {"https": 9507, "http": 9504, "probes": 9508}
    ports = [{"name": name, "containerPort": port} for name, port in names.items()]
    pod = installed_pod(raw({"containers": [{"ports": ports}]}))
    assert (pod.port, pod.probe_port, pod.guard_port) == (9504, 9508, 9507)


@pytest.mark.parametrize(("name", "tls"), [("http", False), ("https", True), (None, False)])
def test_a_service_has_an_address_and_a_port_that_may_take_tls(name: str | None, tls: bool) -> None:
    address = service_address(raw({"clusterIP": "10.43.0.9", "ports": [{"name": name, "port": 9504}]}))
    assert (address.cluster_ip, address.port, address.tls) == ("10.43.0.9", 9504, tls)


def test_a_pod_has_its_address_port_account_and_claims() -> None:
    volumes = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "cache", "ephemeral": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    spec = {"serviceAccountName": "me", "containers": [{"ports": [{"containerPort": 9504}]}], "volumes": volumes}
    pod = installed_pod(raw(spec, {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}))
    assert (pod.key, pod.ready, pod.address, pod.port) == ("shop/a", True, "10.0.0.1", 9504)
    assert (pod.account, pod.claims) == ("me", ("data", "a-cache"))


@pytest.mark.parametrize(
    ("spec", "scheduler", "asks"),
    [
        ({}, "default-scheduler", False),
        ({}, "second", False),
        ({"schedulerName": "second"}, "second", True),
        ({"schedulerName": "second"}, "default-scheduler", False),
        ({"containers": [{"resources": {"limits": RESOURCE}}]}, "default-scheduler", True),
    ],
)
def test_a_pod_asks_by_the_resource_or_by_a_second_scheduler(spec: dict[str, Any], scheduler: str, asks: bool) -> None:
    assert installed_pod(raw(spec)).asks(scheduler) is asks


@pytest.mark.parametrize(
    ("phase", "deleted", "live"),
    [
        ("Running", None, True),
        ("Pending", None, True),
        ("Failed", None, False),
        ("Succeeded", None, False),
        ("Running", "2026-01-01T00:00:00Z", False),
    ],
)
def test_a_pod_that_is_finished_or_being_deleted_is_not_live(phase: str, deleted: str | None, live: bool) -> None:
    body = {"metadata": {"name": "a", "deletionTimestamp": deleted}, "status": {"phase": phase}}
    assert installed_pod(json.dumps(body).encode()).live is live


@pytest.mark.parametrize(
    ("times", "last"),
    [
        ({"eventTime": "1", "series": {"lastObservedTime": "3"}}, "3"),
        ({"lastTimestamp": "2", "eventTime": "1"}, "2"),
        ({"eventTime": "1", "lastTimestamp": None}, "1"),
        ({}, ""),
    ],
)
def test_an_event_counts_when_it_happened_last(times: dict[str, Any], last: str) -> None:
    body = {"involvedObject": {"namespace": "shop", "name": "db-0"}, "message": "no", **times}
    failure = scheduling_failure(json.dumps(body).encode())
    assert (failure.pod, failure.message, failure.last) == ("shop/db-0", "no", last)


@pytest.mark.parametrize("value", [True, False, None])
def test_a_review_may_allow_and_a_driver_may_track_capacity(value: bool | None) -> None:
    assert csi_driver_tracks_capacity(raw({"storageCapacity": value})) is bool(value)
    assert is_allowed(raw({}, {"allowed": value})) is bool(value)


def test_a_review_asks_for_a_service_account() -> None:
    review = access_review(Permission("get", "", "pods/proxy", "x"), "longhorn-system", "me")
    attributes = review["spec"]["resourceAttributes"]
    assert review["spec"]["user"] == "system:serviceaccount:longhorn-system:me"
    assert (attributes["resource"], attributes["subresource"], attributes["name"]) == ("pods", "proxy", "x")
    assert attributes["namespace"] == "longhorn-system"
    everywhere = access_review(Permission("list", "", "pods", everywhere=True), "longhorn-system", "me")
    assert everywhere["spec"]["resourceAttributes"]["namespace"] == ""


def test_a_probe_pod_fits_nowhere_and_never_starts() -> None:
    assert probe_class("x", "driver.longhorn.io")["parameters"]["nodeSelector"] == TAG
    pod = probe_pod("x", "default-scheduler")
    assert installed_pod(json.dumps(pod).encode()).requests_extender
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.parametrize("opts_out", [True, False])
def test_policies_leave_a_probe_pod_as_it_is_unless_their_effect_is_asked_for(opts_out: bool) -> None:
    """By the annotation of the policies; otherwise one would replace the scheduler that is probed."""
    pod = probe_pod("x", "default-scheduler", opts_out=opts_out)
    assert pod["metadata"]["annotations"] == ({OPT_OUT: "false"} if opts_out else {})


def test_kube_schedulers_progress_with_a_pod_is_read() -> None:
    waiting = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}
    assert pod_progress(raw({}, {"conditions": [waiting]})).message == "0/1 nodes"
    progress = pod_progress(raw({"nodeName": "n"}, {"conditions": [{**waiting, "status": "True"}]}))
    assert (progress.message, progress.node) == ("", "n")


def test_a_selected_node_is_read_from_the_claim() -> None:
    annotations = {"volume.kubernetes.io/selected-node": "n"}
    assert selected_node(json.dumps({"metadata": {"name": "a", "annotations": annotations}}).encode()) == "n"
    assert selected_node(json.dumps({"metadata": {"name": "a"}}).encode()) == ""
