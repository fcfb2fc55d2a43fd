"""A redacted object: it has every field that decides, and no other."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from scheduler_core.convert.generic import NODE, SCHEDULED_POD
from scheduler_core.convert.kubectl import read_pod, workload_spec
from scheduler_core.convert.redact import (
    PROVISIONER,
    STORAGE_CLASS_PARAMETERS,
    keep_selected_labels,
    redact,
    redact_namespace,
    redact_stateful_set,
    selects_namespaces,
)
from scheduler_core.convert.snapshot_kinds import KINDS, group_of
from scheduler_core.errors import ObjectError
from scheduler_core.longhorn.csi_driver import DRIVER, Provisioning, volume_for_claim
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.kube import ClaimSpec, Pod
from scheduler_core.structs import replace
from tests import builders as make
from tests.builders import Object
from tests.worlds.predicted_clusters import disruption_budget, stateful_set
from tests.worlds.scheduling_constraints import Generator


def redact_object(raw: Object) -> Object:
    kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
    return redact(kind, raw["apiVersion"], json.dumps(raw).encode())


EVERY_KIND: list[Object] = [
    make.storage_class(default=True),
    make.kube_node("a", zone="x"),
    make.longhorn_node("a"),
    make.claim("data", 5, owners=[{"kind": "Pod", "name": "p", "uid": "u"}]),
    *make.bound("bound", 5),
    make.replica("r", "vol-bound", "a", deleting=True),
    make.pod("data", ephemeral={"scratch": make.ephemeral_spec(3)}, deleting=True),
    make.setting("replica-soft-anti-affinity", "true"),
    disruption_budget(
        minAvailable="50%",
        unhealthyPodEvictionPolicy="AlwaysAllow",
        status={"expectedPods": 3, "conditions": [{"type": "DisruptionAllowed", "reason": "SyncFailed"}]},
    ),
]


FREE_VOLUME = make.available_volume("free", 5, node="a", labels={"tier": "gold"}, volumeMode="Block")


@pytest.mark.parametrize("raw", [*EVERY_KIND, FREE_VOLUME], ids=lambda raw: raw["kind"])
def test_a_redacted_object_is_read_as_the_same_model(raw: Object) -> None:
    kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
    redacted = redact_object(raw)
    assert kind.read(redacted) == kind.read(raw)
    assert redact_object(redacted) == redacted
    assert "null" not in json.dumps(redacted)
    assert (redacted["apiVersion"], redacted["kind"]) == (raw["apiVersion"], raw["kind"])


@pytest.mark.parametrize("raw", EVERY_KIND, ids=lambda raw: raw["kind"])
@given(
    extra=st.dictionaries(st.sampled_from(["env", "data", "secret", "labels", "managedFields", "x"]), st.just("SECRET"))
)
def test_unknown_fields_are_removed(raw: Object, extra: Mapping[str, str]) -> None:
    metadata = {**raw["metadata"], **{key: value for key, value in extra.items() if key != "labels"}}
    if raw["kind"] != "Node" or raw["apiVersion"] != "v1":
        metadata["labels"] = {"label": "SECRET"}
    metadata["annotations"] = {**metadata.get("annotations", {}), "note": "SECRET"}
    spec = (
        {"spec": {**raw["spec"], **{key: text for key, text in extra.items() if key != "labels"}}}
        if "spec" in raw
        else {}
    )
    redacted = redact_object({**raw, **extra, **spec, "metadata": metadata})
    keep_selected_labels([redacted])
    assert "SECRET" not in json.dumps(redacted)


def test_labels_that_a_selector_of_some_pod_or_budget_names_are_kept() -> None:
    labels = {"app": "web", "version": "2", "team": "x", "tier": "front", "kind": "a", "owner": "me"}
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
    term["namespaceSelector"] = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}
    pod = make.pod()
    pod["metadata"]["labels"] = labels
    pod["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pod["spec"]["topologySpreadConstraints"] = [{"topologyKey": "zone", "matchLabelKeys": ["version"]}]
    namespace = redact_namespace(json.dumps({"metadata": {"name": "n", "labels": labels}}).encode())
    selector = {"matchLabels": {"kind": "a"}, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}
    objects = [redact_object(pod), namespace, redact_object(disruption_budget(selector=selector, maxUnavailable=1))]
    keep_selected_labels(iter(objects))
    del labels["owner"]
    assert [raw["metadata"]["labels"] for raw in objects[:2]] == [labels] * 2


def test_a_stateful_set_keeps_what_its_pods_are_decided_by() -> None:
    raw = stateful_set("db", 2, podManagementPolicy="Parallel", serviceName="SECRET")
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}, "namespaceSelector": {}}
    spec = raw["spec"]["template"]["spec"]
    spec["containers"] = [{"env": [{"name": "A", "value": "SECRET"}], "resources": {"requests": {"cpu": "1"}}}]
    spec |= {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": make.ephemeral_spec(3)}}}],
    }
    raw["spec"]["template"]["metadata"] = {"labels": {"app": "db", "owner": "SECRET"}, "annotations": {"a": "SECRET"}}
    redacted = redact_stateful_set(json.dumps(raw).encode())
    keep_selected_labels([redacted])
    assert ("SECRET" in json.dumps(redacted), selects_namespaces([redacted])) == (False, True)
    assert redacted["spec"]["template"]["metadata"]["labels"] == {"app": "db"}
    assert _template(redacted) == _template(raw)
    assert workload_spec("StatefulSet", redacted) == workload_spec("StatefulSet", raw)


def _template(raw: Object) -> Pod:
    """The first pod without labels."""
    pod = read_pod("StatefulSet", raw)
    return replace(pod, scheduling=replace(pod.scheduling, labels=frozenset()))


def test_a_stateful_set_that_cannot_be_read_is_not_redacted() -> None:
    with pytest.raises(ObjectError, match="StatefulSet default/db"):
        redact_stateful_set(json.dumps(stateful_set("db", 2, "much")).encode())
    with pytest.raises(ObjectError, match="template"):
        redact_stateful_set(json.dumps(stateful_set("db", 2, template=None)).encode())


def test_what_kube_scheduler_filters_is_kept() -> None:
    pod = make.pod()
    requests = {"resources": {"requests": {"cpu": "1"}}}
    pod["spec"] |= {"nodeSelector": {"disk": "fast"}, "tolerations": [{"key": "k"}]}
    pod["spec"]["containers"] = [{"env": [{"name": "A", "value": "SECRET"}], "command": ["SECRET"], **requests}]
    spec = redact_object(pod)["spec"]
    assert (spec["nodeSelector"], spec["tolerations"], spec["containers"]) == (
        {"disk": "fast"}, [{"key": "k"}], [requests],
    )  # fmt: skip
    node = {**make.kube_node("a"), "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}
    node["status"] = {"allocatable": {"cpu": "4"}}
    redacted = redact_object(node)
    assert (redacted["spec"], redacted["status"]) == (node["spec"], node["status"])


@pytest.mark.parametrize(
    ("provisioner", "kept"),
    [
        pytest.param(PROVISIONER, {"numberOfReplicas": "2", "fromBackup": "?backup=b"}, id="what placement needs"),
        pytest.param("example.com/other", None, id="nothing of another driver's"),
    ],
)
def test_parameters_that_decide_nothing_are_left_out(provisioner: str, kept: dict[str, str] | None) -> None:
    """Of a backup's URL only the name stays."""
    secret = {"csi.storage.k8s.io/node-publish-secret-name": "s3cret", "restuserkey": "s3cret"}
    parameters = {"numberOfReplicas": "2", "fromBackup": "s3://s3cret@region/?backup=b&volume=v", **secret}
    redacted = redact_object({**make.storage_class(provisioner=provisioner), "parameters": parameters})
    assert redacted.get("parameters") == kept


class _RecordingParameters(dict[str, str]):
    """Parameters that record which of them are read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> str:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As `dict.get`."""
        self.read.add(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("parameters are read by name, so that the list of those that are kept can be complete")


def test_every_parameter_that_decides_is_kept() -> None:
    read: set[str] = set()
    for class_parameters in (
        {},
        {"dataLocality": "best-effort", "share": "true"},
        {"dataSource": "vol://x", "cloneMode": "full-copy", "volumeTopology": "zonal"},
        {"backingImage": "x", "backingImageDataSourceType": "download"},
        {
            "dataEngine": "v2",
            "dataLayout.type": "sharded",
            "dataLayout.dataChunks": "2",
            "dataLayout.parityChunks": "1",
        },
    ):
        parameters = _RecordingParameters(class_parameters)
        claim = ClaimSpec(request=1)
        volume_for_claim("x", claim, parameters, Provisioning(Settings()), subject="it")
        read |= parameters.read
    assert read - {"cloneMode"} <= STORAGE_CLASS_PARAMETERS
    assert read | {"cloneMode"} == STORAGE_CLASS_PARAMETERS | {"cloneMode"}
    assert PROVISIONER == DRIVER


def test_an_object_that_cannot_be_read_is_not_redacted() -> None:
    """The receiver could not read it either."""
    with pytest.raises(ObjectError, match="storage"):
        redact_object(make.claim("x", "much"))
    with pytest.raises(ObjectError):
        redact_object({**make.claim("x", 1), "spec": 3})


@given(seed=st.integers(0, 10**6))
def test_kube_schedulers_filters_read_redacted_objects_as_the_originals(seed: int) -> None:
    cluster = Generator(seed).cluster(nodes=2, placed=2, pending=4)
    nodes = [{"apiVersion": "v1", "kind": "Node", **raw} for raw in cluster.nodes]
    pods = [{"apiVersion": "v1", "kind": "Pod", **raw} for raw in (*cluster.placed, *cluster.pending)]
    assert [NODE.read(redact_object(raw)) for raw in nodes] == [NODE.read(raw) for raw in nodes]
    assert [SCHEDULED_POD.read(redact_object(raw)) for raw in pods] == [SCHEDULED_POD.read(raw) for raw in pods]
