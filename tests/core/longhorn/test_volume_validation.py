"""What Longhorn's admission refuses is an error that names it."""

from typing import Any

import pytest

from scheduler_core.errors import ResolutionError
from tests import builders as make
from tests.builders import explained

NODE = make.longhorn_node("a")
REFUSED_CLASSES: dict[str, tuple[dict[str, str], str]] = {
    "data engine": ({"dataEngine": "V2"}, "dataEngine 'V2' is not one of v1, v2"),
    "strict-local replicas": (
        {"dataLocality": "strict-local", "numberOfReplicas": "2"},
        "dataLocality strict-local needs numberOfReplicas 1, not 2",
    ),
    "strict-local, shared": ({"dataLocality": "strict-local", "share": "true"}, "needs a volume that is not shared"),
    "too many replicas": ({"numberOfReplicas": "21"}, "numberOfReplicas '21' is not between 1 and 20"),
    "negative replicas": ({"numberOfReplicas": "-1"}, "numberOfReplicas '-1' is not between 1 and 20"),
    "strict-local with the default number of replicas": (
        {"dataLocality": "strict-local", "numberOfReplicas": "0"},
        "dataLocality strict-local needs numberOfReplicas 1, not 3",
    ),
    "replicas, empty text": ({"numberOfReplicas": ""}, "numberOfReplicas '' is not a whole number"),
    "locality, empty text": ({"dataLocality": ""}, "dataLocality '' is not one of disabled"),
    "auto-balance, empty text": ({"replicaAutoBalance": ""}, "replicaAutoBalance '' is not one of"),
    "node anti-affinity, empty text": ({"replicaSoftAntiAffinity": ""}, "replicaSoftAntiAffinity '' is not one of"),
    "share, empty text": ({"share": ""}, "share '' is not a boolean"),
    "queues": ({"ublkNumberOfQueue": "two"}, "ublkNumberOfQueue 'two' is not a whole number"),
    "queue depth": ({"ublkQueueDepth": ""}, "ublkQueueDepth '' is not a whole number"),
    "unmap": ({"unmapMarkSnapChainRemoved": "true"}, "unmapMarkSnapChainRemoved 'true' is not one of ignored"),
    "freeze": ({"freezeFilesystemForSnapshot": ""}, "freezeFilesystemForSnapshot '' is not one of ignored"),
    "block size": ({"backupBlockSize": "2 MiB"}, "backupBlockSize '2 MiB' is not a quantity"),
    "recurring jobs": ({"recurringJobSelector": ""}, "recurringJobSelector '' is not a JSON list of jobs"),
    "recurring jobs, no list": ({"recurringJobSelector": '{"name":"x"}'}, "is not a JSON list of jobs"),
    "recurring jobs, wrong type": ({"recurringJobSelector": '[{"isGroup":"true"}]'}, "is not a JSON list of jobs"),
    "topology": ({"volumeTopology": "zone"}, "volumeTopology 'zone' is not one of any, zonal, regional"),
    "shared and exclusive": (
        {"share": "true", "exclusive": "true"},
        "share true does not go with a volume for one pod",
    ),
    "empty tag": ({"nodeSelector": ""}, "nodeSelector '' has the tag '', which no node or disk can have"),
    "tag with a blank": ({"diskSelector": "ssd, fast"}, "has the tag ' fast', which no node or disk can have"),
    "auto-balance": ({"replicaAutoBalance": "best"}, "replicaAutoBalance 'best' is not one of ignored"),
    "node anti-affinity": ({"replicaSoftAntiAffinity": "true"}, "replicaSoftAntiAffinity 'true' is not one of"),
    "zone anti-affinity": ({"replicaZoneSoftAntiAffinity": "no"}, "replicaZoneSoftAntiAffinity 'no' is not one of"),
    "disk anti-affinity": ({"replicaDiskSoftAntiAffinity": "x"}, "replicaDiskSoftAntiAffinity 'x' is not one of"),
    "clone mode": ({"cloneMode": "copy", "dataSource": "vol://y"}, "cloneMode 'copy' is not one of full-copy"),
    "linked clone of v1": (
        {"cloneMode": "linked-clone", "dataSource": "vol://y"},
        "cloneMode linked-clone needs dataEngine v2",
    ),
}


@pytest.mark.parametrize(("parameters", "message"), REFUSED_CLASSES.values(), ids=REFUSED_CLASSES.keys())
def test_a_class_whose_volumes_longhorn_refuses_is_an_error(parameters: dict[str, Any], message: str) -> None:
    """The claim would stay unbound for ever."""
    with pytest.raises(ResolutionError, match=message):
        explained(make.pod("x"), NODE, make.claim("x", 10), make.storage_class(**parameters))


ADMITTED_CLASSES: dict[str, dict[str, str]] = {
    "strict-local, shared and migratable": {"dataLocality": "strict-local", "share": "true", "migratable": "true"},
    "zero replicas are the default number": {"numberOfReplicas": "0"},
    "empty data engine": {"dataEngine": ""},
    "tags": {"nodeSelector": "storage", "diskSelector": "ssd,example.com/fast_2.x"},
    "empty block size": {"backupBlockSize": ""},
    "other parameters": {
        "backupBlockSize": "16Mi",
        "freezeFilesystemForSnapshot": "enabled",
        "recurringJobSelector": '[{"name":"daily","isGroup":true,"more":1},null]',
        "ublkQueueDepth": "128",
        "unmapMarkSnapChainRemoved": "ignored",
        "volumeTopology": "",
    },
    "every value": {"replicaAutoBalance": "least-effort", "replicaDiskSoftAntiAffinity": "disabled"},
}


@pytest.mark.parametrize("parameters", ADMITTED_CLASSES.values(), ids=ADMITTED_CLASSES.keys())
def test_a_class_whose_volumes_longhorn_admits_is_decided(parameters: dict[str, Any]) -> None:
    node = make.longhorn_node("a", {"d": make.disk(tags=["ssd", "example.com/fast_2.x"])}, tags=["storage"])
    explanation = explained(make.pod("x"), node, make.claim("x", 10), make.storage_class(**parameters))
    assert explanation.verdicts[0].fits


def test_share_does_not_go_with_a_claim_for_one_pod() -> None:
    claim = make.claim("x", 10, access="ReadWriteOncePod")
    with pytest.raises(ResolutionError, match=r"share true does not go with .* \(ReadWriteOncePod"):
        explained(make.pod("x"), NODE, claim, make.storage_class(share="true"))


XFS: dict[str, Any] = {"csi.storage.k8s.io/fstype": "xfs"}


def test_a_new_volume_on_xfs_has_at_least_300_mib() -> None:
    with pytest.raises(ResolutionError, match="100Mi are less than the 300Mi that xfs needs"):
        explained(make.pod("x"), NODE, make.claim("x", "100Mi"), make.storage_class(**XFS))
    assert explained(make.pod("x"), NODE, make.claim("x", "300Mi"), make.storage_class(**XFS)).verdicts[0].fits


def test_a_block_volume_needs_no_file_system() -> None:
    claim = make.claim("x", "100Mi")
    claim["spec"]["volumeMode"] = "Block"
    assert explained(make.pod("x"), NODE, claim, make.storage_class(**XFS)).verdicts[0].fits


@pytest.mark.parametrize("engine", ["v1", "v2"])
def test_a_data_engine_that_is_switched_off_is_an_error(engine: str) -> None:
    objects = [NODE, make.claim("x", 10), make.storage_class(dataEngine=engine)]
    with pytest.raises(
        ResolutionError, match=f"dataEngine {engine} is switched off by the setting {engine}-data-engine"
    ):
        explained(make.pod("x"), *objects, make.setting(f"{engine}-data-engine", "false"))
    explained(make.pod("x"), *objects, make.setting(f"{engine}-data-engine", "true"))
    explained(make.pod("x"), *objects)


REFUSED_VOLUMES: dict[str, tuple[dict[str, Any], str]] = {
    "data engine": ({"dataEngine": "V2"}, "Longhorn volume vol-x: dataEngine 'V2' is not one of v1, v2"),
    "strict-local replicas": ({"locality": "strict-local", "numberOfReplicas": 2}, "needs numberOfReplicas 1, not 2"),
    "locality": ({"locality": "near"}, "dataLocality 'near' is not one of"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED_VOLUMES.values(), ids=REFUSED_VOLUMES.keys())
def test_a_volume_that_admits_no_change_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ResolutionError, match=message):
        explained(make.pod("x"), NODE, make.bound("x", 10, **fields))


def test_the_demand_of_a_pod_does_not_depend_on_what_longhorn_admits() -> None:
    claim, _, volume = make.bound("x", 10, numberOfReplicas=2, locality="strict-local")
    bound = [claim, make.persistent_volume("x", uid="uid-x"), volume]
    state = make.state(NODE, make.storage_class(), bound, make.pod("x", node="a"))
    assert [demand.node for demand in state.demand.all] == ["a"]
