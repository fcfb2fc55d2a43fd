"""The rules for a node and for a disk, one by one and in order."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_core.longhorn.refusal_rules import Refusal, Rule
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.stages import (
    disk_and_space_refusal,
    disk_refusal,
    instance_manager_ready,
    node_refusal,
    one_manager_per_node,
)
from scheduler_core.model import kube, longhorn as lh
from tests.worlds.longhorn import GIB, cluster, conditions, disk, node, replica, volume

Cases = dict[str, tuple[dict[str, Any], Rule | None]]
"""What differs from an open node, disk and volume, and the rule that refuses; by what the case shows."""
TIB16 = 16 * 1024**4


def node_refused(
    fields: dict[str, Any] | None = None, volume_fields: dict[str, Any] | None = None, affinity: str = "", **more: Any
) -> Refusal | None:
    """Why a node with these fields takes no replica of a volume with `volume_fields`."""
    for kind in ("instance_managers", "engine_images", "backing_images"):
        more |= {kind: {entry.name: entry for entry in more[kind]}} if more.get(kind) is not None else {}
    if "labels" in more:
        more["kube_nodes"] = {"n1": kube.Node("n1", more.pop("labels"))}
    entry = node(**fields or {})
    return node_refusal(
        cluster(entry, **more), ReplicaRequest.for_volume(volume(**volume_fields or {}), affinity), entry
    )


def disk_refused(
    fields: dict[str, Any] | None = None, volume_fields: dict[str, Any] | None = None, **more: Any
) -> Refusal | None:
    """The same for a disk."""
    request = ReplicaRequest.for_volume(volume(**volume_fields or {}))
    entry = node("n1", disk(**fields or {}))
    return disk_refusal(cluster(entry, **more), request, entry.disks[0])


NODE_STATES: Cases = {
    "open": ({}, None),
    "deleting": ({"fields": {"deleting": True}}, Rule.NODE_DELETING),
    "not ready": ({"fields": {"conditions": conditions(Ready="False")}}, Rule.NODE_NOT_READY),
    "ready unknown": ({"fields": {"conditions": conditions(Ready="Unknown")}}, Rule.NODE_NOT_READY_YET),
    "no conditions": ({"fields": {"conditions": ()}}, Rule.NODE_NOT_READY_YET),
    "schedulable unknown": ({"fields": {"conditions": conditions(Schedulable="Unknown")}}, Rule.NODE_NOT_READY_YET),
    "closed, but not cordoned": ({"fields": {"conditions": conditions(Schedulable="False")}}, Rule.NODE_NOT_READY),
    "the first condition of a type counts": (
        {"fields": {"conditions": (kube.Condition("Ready", "False"), *conditions())}},
        Rule.NODE_NOT_READY,
    ),
    "scheduling disabled": ({"fields": {"allow_scheduling": False}}, Rule.NODE_SCHEDULING_DISABLED),
    "node eviction is not looked at": ({"fields": {"eviction_requested": True}}, None),
    "deleting first": ({"fields": {"deleting": True, "allow_scheduling": False, "conditions": ()}}, Rule.NODE_DELETING),
    "hard node affinity to it": ({"affinity": "n1"}, None),
    "hard node affinity to another": ({"affinity": "n2"}, Rule.HARD_NODE_AFFINITY),
}

DISABLE_V2 = "node.longhorn.io/disable-v2-data-engine"
V2 = {"data_engine": "v2"}
V2_SWITCHES: Cases = {
    "v2 without the label": ({"volume_fields": V2, "labels": {}}, None),
    "v2 with the label": ({"volume_fields": V2, "labels": {DISABLE_V2: "true"}}, Rule.V2_DISABLED),
    "v2 with a label that is not exactly true": ({"volume_fields": V2, "labels": {DISABLE_V2: "True"}}, None),
    "v2 without Kubernetes node": (
        {"volume_fields": V2, "kube_nodes": {"other": kube.Node("other")}},
        Rule.V2_DISABLED,
    ),
    "v1 without Kubernetes node": ({"kube_nodes": {"other": kube.Node("other")}}, None),
}


def topology(*terms: tuple[str, str]) -> dict[str, Any]:
    required = tuple(lh.TopologyTerm(*term) for term in terms)
    return {"fields": {"zone": "z1", "region": "r1"}, "volume_fields": {"topology_requirement": required}}


TOPOLOGY: Cases = {
    "topology, zone": (topology(("z1", "")), None),
    "topology, region": (topology(("", "r1")), None),
    "topology, both must match": (topology(("z1", "r2")), Rule.TOPOLOGY),
    "topology, any term": (topology(("z2", ""), ("", "r1")), None),
    "topology, an empty term matches all": (topology(("", "")), None),
    "topology, another zone": (topology(("z2", "")), Rule.TOPOLOGY),
    "topology, no requirement": (topology(), None),
}


def manager(
    state: str = "running", *, deleting: bool = False, engine: str = "v1", name: str = "im"
) -> lh.InstanceManager:
    return lh.InstanceManager(name, "n1", engine, "image", state, deleting)


def managed(*managers: lh.InstanceManager, **more: Any) -> dict[str, Any]:
    return {"instance_managers": managers, **more}


def version(number: str) -> dict[str, str]:
    return {"current-longhorn-version": number}


MANAGERS: Cases = {
    "manager runs": (managed(manager()), None),
    "manager stopped": (managed(manager("stopped")), Rule.INSTANCE_MANAGER),
    "manager of v1 terminates": (managed(manager("stopped", deleting=True)), None),
    "no manager": (managed(), Rule.INSTANCE_MANAGER),
    "managers and images are unknown": ({"instance_managers": None, "engine_images": None}, None),
    "manager of the other engine": (managed(manager(engine="v2")), Rule.INSTANCE_MANAGER),
    "manager of v2 runs": (managed(manager(engine="v2"), volume_fields=V2), None),
    "manager of v2 terminates": (managed(manager(engine="v2", deleting=True), volume_fields=V2), Rule.INSTANCE_MANAGER),
    "manager of v2 terminates, up to 1.12": (
        managed(manager(engine="v2", deleting=True), volume_fields=V2, settings=version("v1.12.2")),
        None,
    ),
    "manager of v2 terminates, from 1.13 on": (
        managed(manager(engine="v2", deleting=True), volume_fields=V2, settings=version("v1.13.0")),
        Rule.INSTANCE_MANAGER,
    ),
    "all of several managers": (managed(manager(), manager("error", name="b")), Rule.INSTANCE_MANAGER),
    "manager of another image than the default": (
        managed(manager(), settings={"default-instance-manager-image": "newer"}),
        Rule.INSTANCE_MANAGER,
    ),
}


def selected(number: str, labels: dict[str, str], *managers: lh.InstanceManager) -> dict[str, Any]:
    """The setting selects two labels; without managers, these are unknown."""
    settings = {"system-managed-components-node-selector": "storage:yes; disk : ssd", **version(number)}
    return {"labels": labels, "settings": settings, "instance_managers": managers or None}


MATCHING = {"storage": "yes", "disk": "ssd", "other": "label"}
ENDING = manager("stopped", deleting=True)
SELECTED_NODES: Cases = {
    "node is excluded": (selected("v1.13.0", {"storage": "yes"}), Rule.INSTANCE_MANAGER),
    "node is excluded before the release": (selected("v1.13.0-dev", {"storage": "yes"}), Rule.INSTANCE_MANAGER),
    "node has another value": (selected("v1.14.2", {"storage": "no", "disk": "ssd"}), Rule.INSTANCE_MANAGER),
    "node is excluded, unknown version": (selected("", {}), Rule.INSTANCE_MANAGER),
    "node is excluded, version without numbers": (selected("master-head", {}), Rule.INSTANCE_MANAGER),
    "node is excluded, older version": (selected("v1.12.1", {}), None),
    "node is selected": (selected("v1.13.0", MATCHING), None),
    "node is excluded, but a manager runs still": (selected("v1.13.0", {}, manager()), None),
    "manager without a successor": (selected("v1.13.0", {}, manager(deleting=True)), Rule.INSTANCE_MANAGER),
    "manager with a successor": (selected("v1.13.0", MATCHING, ENDING), None),
    "manager with a successor, older version": (selected("v1.12.1", {}, ENDING), None),
}


def imaged(
    state: str, *nodes: str, image: str = "engine:1", default: str | None = None, **volume_fields: str
) -> dict[str, Any]:
    """An engine image in this state on some nodes, and a volume that uses an image."""
    return {
        "engine_images": [lh.EngineImage("ei", "engine:1", state, frozenset(nodes))],
        "volume_fields": {"image": image, **volume_fields},
        "settings": {} if default is None else {"default-engine-image": default},
    }


ENGINE_IMAGES: Cases = {
    "image deployed": (imaged("deployed", "n1"), None),
    "image being deployed counts where it is": (imaged("deploying", "n1"), None),
    "image on another node": (imaged("deployed", "n2"), Rule.ENGINE_IMAGE),
    "image incompatible": (imaged("incompatible", "n1"), Rule.ENGINE_IMAGE),
    "v2 needs no image": (imaged("error", data_engine="v2"), None),
    "the default image": (imaged("deployed", "n1", image="", default="engine:1"), None),
    "any image if no default is known": (imaged("deployed", "n1", image="", default=""), None),
    "an unknown image": (imaged("deployed", "n1", image="engine:2", default="engine:1"), Rule.ENGINE_IMAGE),
    "a default that is not deployed": (imaged("deployed", "n1", image="", default="engine:2"), Rule.ENGINE_IMAGE),
}


def tagged(
    *tags: str, selects: tuple[str, ...] = (), allow_empty: str = "true", image: str | None = None
) -> dict[str, Any]:
    """A node with these tags, and a volume that selects tags, or whose backing image selects ssd."""
    return {
        "fields": {"tags": tags},
        "volume_fields": {"node_selector": selects, **({} if image is None else {"backing_image": image})},
        "settings": {"allow-empty-node-selector-volume": allow_empty},
        "backing_images": [lh.BackingImage("bi", node_selector=("ssd",))],
    }


NODE_TAGS: Cases = {
    "subset of the tags": (tagged("ssd", "fast", selects=("fast",)), None),
    "every selector must match": (tagged("ssd", selects=("ssd", "fast")), Rule.NODE_TAGS),
    "tag in another case": (tagged("SSD", selects=("ssd",)), Rule.NODE_TAGS),
    "no selector": (tagged("ssd"), None),
    "no selector, not allowed": (tagged("ssd", allow_empty="false"), Rule.NODE_TAGS),
    "untagged nodes always fit": (tagged(allow_empty="false"), None),
    "an empty text is a selector": (tagged(selects=("",)), Rule.NODE_TAGS),
    "backing image selects the tag": (tagged("ssd", image="bi"), None),
    "backing image selects another tag": (tagged(image="bi"), Rule.BACKING_IMAGE_NODE_TAGS),
    "unknown backing image": (tagged(image="gone"), Rule.BACKING_IMAGE_MISSING),
}


def cloned(**source: Any) -> dict[str, Any]:
    """A linked clone of a volume whose only replica is on n1 unless its fields say otherwise."""
    fields = {"clone_mode": "linked-clone", "data_source": "vol://src", "data_engine": "v2"}
    return {"volume_fields": fields, "replicas": [replica("s0", "n1/d1", volume="src", **source)]}


LINKED_CLONES: Cases = {
    "source healthy": (cloned(), None),
    "source failed": (cloned(failed_at="2026-01-01T00:00:00Z"), Rule.LINKED_CLONE),
    "source never healthy": (cloned(healthy_at=""), Rule.LINKED_CLONE),
    "source evicting": (cloned(eviction_requested=True), Rule.LINKED_CLONE),
    "source elsewhere": (cloned(node_id="n2"), Rule.LINKED_CLONE),
}
NODE_CASES: Cases = {
    **NODE_STATES, **V2_SWITCHES, **TOPOLOGY, **MANAGERS, **SELECTED_NODES, **ENGINE_IMAGES, **NODE_TAGS, **LINKED_CLONES
}  # fmt: skip


@pytest.mark.parametrize(("case", "rule"), NODE_CASES.values(), ids=NODE_CASES.keys())
def test_the_first_rule_in_longhorn_s_order_refuses_a_node(case: dict[str, Any], rule: Rule | None) -> None:
    refusal = node_refused(**case)
    assert (None if refusal is None else refusal.rule) is rule


def test_a_named_source_replica_must_exist() -> None:
    entry = node()
    fields = cloned()["volume_fields"]
    ask = ReplicaRequest.for_replica(volume(**fields), replica("r", linked_clone_source="gone", data_engine="v2"))
    refusal = node_refusal(cluster(entry), ask, entry)
    assert refusal is not None
    assert refusal.rule is Rule.LINKED_CLONE_SOURCE_MISSING


def disk_of(*, volume_fields: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"fields": fields, "volume_fields": volume_fields}


DISK_STATES: Cases = {
    "open": ({}, None),
    "no status yet": (disk_of(in_status=False), Rule.DISK_NOT_IN_STATUS),
    "removed from the spec": (disk_of(in_spec=False), Rule.DISK_NOT_IN_SPEC),
    "scheduling disabled": (disk_of(allow_scheduling=False), Rule.DISK_SCHEDULING_DISABLED),
    "evicting": (disk_of(eviction_requested=True), Rule.DISK_EVICTION_REQUESTED),
    "evicting, and therefore without scheduling": (
        disk_of(eviction_requested=True, allow_scheduling=False),
        Rule.DISK_EVICTION_REQUESTED,
    ),
    "not schedulable": (disk_of(conditions=conditions(Schedulable="False")), Rule.DISK_NOT_SCHEDULABLE),
    "no conditions": (disk_of(conditions=()), Rule.DISK_NOT_SCHEDULABLE),
    "Ready is not looked at": (disk_of(conditions=conditions(Ready="False")), None),
    "state before type": (disk_of(allow_scheduling=False, spec_type="block"), Rule.DISK_SCHEDULING_DISABLED),
}


def typed(engine: str, kind: str) -> dict[str, Any]:
    """The type in the spec counts, not the other one in the status."""
    reported = "block" if kind == "filesystem" else "filesystem"
    return disk_of(spec_type=kind, status_type=reported, volume_fields={"data_engine": engine})


def sized(filesystem: str, size: int) -> dict[str, Any]:
    return disk_of(filesystem_type=filesystem, volume_fields={"size": size})


DISK_TYPES: Cases = {
    "v1 on a file system": (typed("v1", "filesystem"), None),
    "v1 on a block disk": (typed("v1", "block"), Rule.DISK_TYPE),
    "v2 on a block disk": (typed("v2", "block"), None),
    "v2 on a file system": (typed("v2", "filesystem"), Rule.DISK_TYPE),
    "no type fits nothing": (typed("v1", ""), Rule.DISK_TYPE),
    "any other engine counts as v1": (typed("v3", "filesystem"), None),
    "ext4 -1": (sized("ext4", TIB16 - 1), None),
    "ext4 at 16 TiB": (sized("ext4", TIB16), Rule.FILESYSTEM_LIMIT),
    "anything that starts with ext": (sized("extfoo", TIB16 + 1), Rule.FILESYSTEM_LIMIT),
    "another case than ext": (sized("Ext4", TIB16), None),
    "xfs -1": (sized("xfs", 2**63 - 2), None),
    "xfs at its limit": (sized("xfs", 2**63 - 1), Rule.FILESYSTEM_LIMIT),
    "unknown file system": (sized("", TIB16), None),
    "v2 has no limit": (disk_of(spec_type="block", volume_fields={"data_engine": "v2", "size": TIB16}), None),
}


def disk_tagged(*tags: str, allow_empty: str = "true", **volume_fields: Any) -> dict[str, Any]:
    """A disk with these tags, and a volume that selects tags, or whose backing image selects ssd."""
    return {
        **disk_of(tags=tags, volume_fields=volume_fields),
        "settings": {"allow-empty-disk-selector-volume": allow_empty},
        "backing_images": {"bi": lh.BackingImage("bi", disk_selector=("ssd",))},
    }


def disk_cloned(place: str) -> dict[str, Any]:
    fields = {"clone_mode": "linked-clone", "data_source": "snap://src/s1", "data_engine": "v2"}
    return {**disk_of(spec_type="block", volume_fields=fields), "replicas": [replica("s", place, volume="src")]}


DISK_TAGS: Cases = {
    "subset of the tags": (disk_tagged("ssd", "nvme", disk_selector=("ssd",)), None),
    "another tag": (disk_tagged("ssd", disk_selector=("hdd",)), Rule.DISK_TAGS),
    "no selector, not allowed": (disk_tagged("ssd", allow_empty="false"), Rule.DISK_TAGS),
    "untagged disks always fit": (disk_tagged(allow_empty="false"), None),
    "backing image selects another tag": (disk_tagged(backing_image="bi"), Rule.BACKING_IMAGE_DISK_TAGS),
    "backing image selects the tag": (disk_tagged("ssd", backing_image="bi"), None),
    "unknown backing image": (disk_tagged(backing_image="gone"), Rule.BACKING_IMAGE_MISSING),
    "on the disk of a linked clone's source": (disk_cloned("n1/d1"), None),
    "on another disk than a linked clone's source": (disk_cloned("n1/d2"), Rule.LINKED_CLONE_DISK),
}
DISK_CASES: Cases = {**DISK_STATES, **DISK_TYPES, **DISK_TAGS}


@pytest.mark.parametrize(("case", "rule"), DISK_CASES.values(), ids=DISK_CASES.keys())
def test_the_first_rule_in_longhorn_s_order_refuses_a_disk(case: dict[str, Any], rule: Rule | None) -> None:
    refusal = disk_refused(**case)
    assert (None if refusal is None else refusal.rule) is rule


def space_refused(fields: dict[str, Any], **settings: str) -> Refusal | None:
    """The same, space included."""
    entry = node("n1", disk(**fields))
    view = cluster(entry, settings={"allow-empty-disk-selector-volume": "false", **settings})
    return disk_and_space_refusal(view, ReplicaRequest.for_volume(volume()), entry.disks[0])


@pytest.mark.parametrize(
    ("fields", "settings", "rule"),
    [
        pytest.param({}, {}, None, id="fits"),
        pytest.param({"storage_scheduled": 90 * GIB + 1}, {}, Rule.SCHEDULING_SPACE, id="no scheduling space"),
        pytest.param({"storage_scheduled": 90 * GIB + 1, "tags": ("x",)}, {}, Rule.DISK_TAGS, id="tags before space"),
        pytest.param({}, {"storage-over-provisioning-percentage": "much"}, Rule.SETTING_FAULT, id="unreadable setting"),
    ],
)
def test_space_is_checked_last(fields: dict[str, Any], settings: dict[str, str], rule: Rule | None) -> None:
    """Only disks that fit otherwise are checked."""
    refusal = space_refused(fields, **settings)
    assert (None if refusal is None else refusal.rule) is rule


NOT_READY = kube.Condition("Ready", "False", "KubernetesNodeNotReady")
CORDONED = (kube.Condition("Ready", "True"), kube.Condition("Schedulable", "False", "KubernetesNodeCordoned"))


@pytest.mark.parametrize(
    ("refused", "case", "detail"),
    [
        pytest.param(
            node_refused,
            {"fields": {"conditions": (NOT_READY,)}},
            "node n1 has condition Ready=False (KubernetesNodeNotReady)",
            id="condition of a node",
        ),
        pytest.param(
            node_refused,
            {"fields": {"conditions": CORDONED}},
            "node n1 is cordoned, and disable-scheduling-on-cordoned-node is true",
            id="cordoned",
        ),
        pytest.param(
            node_refused,
            tagged("fast", allow_empty="false"),
            "node n1 has tags [fast], the volume selects [], and allow-empty-node-selector-volume is false",
            id="no selector for a node",
        ),
        pytest.param(
            disk_refused,
            disk_of(eviction_requested=True, allow_scheduling=False),
            "disk d1 is being evicted (evictionRequested true)",
            id="evicting",
        ),
        pytest.param(
            disk_refused,
            disk_of(volume_fields={"size": 20 * 1024 * GIB}),
            "disk d1: ext4 cannot hold a file of 20Ti, only of less than 16Ti",
            id="too large",
        ),
        pytest.param(
            disk_refused,
            disk_tagged(disk_selector=("",)),
            "disk d1 has tags [], the volume selects ['']",
            id="empty selector",
        ),
        pytest.param(
            disk_refused,
            disk_tagged("ssd", "not fast", disk_selector=("fast", " ssd")),
            "disk d1 has tags ['not fast', ssd], the volume selects [' ssd', fast]",
            id="blanks",
        ),
        pytest.param(
            disk_refused,
            disk_tagged("ssd", allow_empty="false"),
            "disk d1 has tags [ssd], the volume selects [], and allow-empty-disk-selector-volume is false",
            id="no selector for a disk",
        ),
        pytest.param(
            space_refused,
            {"fields": {"storage_scheduled": 95 * GIB}},
            "disk d1: 10Gi + 95Gi scheduled must be at most 100Gi (100 % of 100Gi - 0 reserved)",
            id="space",
        ),
    ],
)
def test_the_detail_of_a_refusal_names_what_decides(
    refused: Callable[..., Refusal], case: dict[str, Any], detail: str
) -> None:
    assert refused(**case).detail == detail


def test_each_of_several_default_managers_may_be_picked() -> None:
    other = lh.InstanceManager("c", "n2", state="running")
    managers = {entry.name: entry for entry in (manager(name="a"), manager("error", name="b"), other)}
    view = cluster(node("n1"), node("n2"), instance_managers=managers)
    ready = [instance_manager_ready(picked, "v1", "n1") for picked in one_manager_per_node(view)]
    assert ready == [True, False]
    assert len(one_manager_per_node(cluster(node()))) == 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [("vol://src", "src"), ("snap://src/snap1", "src"), ("", ""), ("https://src", ""), ("src", "")],
)
def test_the_data_source_names_the_source_volume_of_a_linked_clone(source: str, expected: str) -> None:
    assert ReplicaRequest.for_volume(volume(data_source=source)).linked_clone_source_volume == expected


def test_engine_image_size_and_node_affinity_are_the_replica_s() -> None:
    entry = replica("r", size=5 * GIB, data_engine="v2", image="other", hard_node_affinity="n1")
    request = ReplicaRequest.for_replica(volume(image="own"), entry)
    assert request == ReplicaRequest(volume(image="own"), 5 * GIB, "v2", "other", "n1")
