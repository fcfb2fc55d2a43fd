"""Small clusters that were once decided wrongly, each with the pod `default/p`: `explain` gives the right answer and its reason."""

from pathlib import Path
from typing import Any

import pytest

from tests.worlds.command_line import Run

FOLDER = Path(__file__).parents[2] / "golden/decision"
ANSWERS: dict[str, dict[str, str]] = {
    "backing-download-existing-room": {"n2": "room for backing image img where the disk lacks it"},
    "backing-download-existing-selector": {"n1": "backing image img selects [ssd]", "n2": "fits"},
    "clone-awaiting-healthy": {"n1": "fits"},
    "node-new-no-condition": {"n1": "Longhorn node is not ready yet"},
    "own-remote": {"n0": "volumes may not fit in every order", "n1": "fits"},
    "remote-no-room-zone-hard": {"n1": "a needs 2 zones for its replicas", "n2": "a needs 2 zones for its replicas"},
    "remote-node-hard": {"n1": "a needs 3 nodes for its replicas"},
    "sched-disk-uuid-empty": {"n1": "disk d1 has no UUID yet"},
    "standby": {"n1": "only its activation ends that"},
    "two-volumes-tag-detail": {"n1": "the volume selects [nvme] (for b)"},
    "volume-topology-zonal": {"n1": "no disk of zone a can take a (10Gi)", "n2": "fits"},
}
"""By node: "fits", or a part of the reason or the detail why it does not."""

REFUSALS = {
    "backing-download-existing-virtualsize": "10Gi are less than the 20Gi of backing image img",
    "clone-pvc-missing-source": "bound PersistentVolumeClaim default/gone does not exist",
    "clone-pvc-other-size": "it asks for 20Gi, while PersistentVolumeClaim default/src has 10Gi",
    "frombackup-size-overridden": "the size of backup backup-1 is not known",
    "linked-clone-snapshot": "bound VolumeSnapshot default/snap1 does not exist",
    "locality-empty": "dataLocality '' is not one of",
    "replicas-empty-text": "numberOfReplicas '' is not a whole number",
    "share-strict": "dataLocality strict-local needs a volume that is not shared",
    "strict-local-2-replicas-existing": "dataLocality strict-local needs numberOfReplicas 1, not 2",
    "xfs-small": "100Mi are less than the 300Mi that xfs needs",
}
"""Why Longhorn creates or changes no such volume, whatever the node."""


def explain(run: Run, case: str) -> tuple[int, dict[str, Any]]:
    result = run("explain", "--snapshot", str(FOLDER / f"{case}.json"), "--pod", "default/p", "-o", "json")
    return result.code, result.answer


@pytest.mark.parametrize(("case", "nodes"), ANSWERS.items(), ids=ANSWERS.keys())
def test_each_node_has_the_right_answer(run: Run, case: str, nodes: dict[str, str]) -> None:
    code, answer = explain(run, case)
    assert answer["nodes"].keys() == nodes.keys()
    for name, expected in nodes.items():
        entry = answer["nodes"][name]
        assert entry["fits"] == (expected == "fits")
        assert entry["fits"] or expected in f"{entry['reason']}: {entry['detail']}"
    assert code == ("fits" not in nodes.values())


@pytest.mark.parametrize(("case", "reason"), REFUSALS.items(), ids=REFUSALS.keys())
def test_a_volume_that_longhorn_refuses_is_a_reason(run: Run, case: str, reason: str) -> None:
    code, answer = explain(run, case)
    assert (code, answer["nodes"]) == (1, {})
    assert reason in answer["error"]


def test_the_reason_is_printed_instead_of_a_table(run: Run) -> None:
    result = run("explain", "--snapshot", str(FOLDER / "xfs-small.json"), "--pod", "default/p")
    assert result.err == ""
    assert result.out.splitlines()[0] == "pod default/p"
    assert "fits nowhere: StorageClass of PersistentVolumeClaim default/a: 100Mi" in result.out


def test_every_case_has_an_answer() -> None:
    cases = {path.stem for path in FOLDER.glob("*.json")}
    assert {case for case in cases if not case.startswith("sharded-")} == ANSWERS.keys() | REFUSALS.keys()
