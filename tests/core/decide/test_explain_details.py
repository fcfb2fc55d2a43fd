"""What an explanation says about nodes that do not fit: the nearest disk, closed disks, exact sizes."""

from typing import Any

import pytest

from scheduler_core.decide import volume_sentences
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.evaluation.replicas_to_place import replica_needs
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.builders import (
    LONGHORN,
    Object,
    bound,
    claim,
    disk,
    explained,
    longhorn_node,
    pod,
    replica,
    setting,
    storage_class,
)

ANYWHERE = storage_class("longhorn", dataLocality="disabled")


def detail_of_n1(*objects: Object | list[Object], claims: tuple[str, ...] = ("a",)) -> str:
    return explained(pod(*claims), *objects, nodes=["n1"]).verdicts[0].detail


@pytest.mark.parametrize(
    ("parameters", "nodes", "nearest"),
    [
        pytest.param(
            {},
            [longhorn_node("n1", {"d1": disk(40), "d2": disk(55)}), longhorn_node("n2", {"d1": disk(50)})],
            "on node n1, disk d2: 60Gi + 0 scheduled must be at most 55Gi (100 % of 55Gi - 0 reserved)",
            id="the disk that lacks the fewest bytes",
        ),
        pytest.param(
            {"diskSelector": "ssd"},
            [longhorn_node("n1", {"d1": disk(500), "d2": disk(40, tags=["ssd"])})],
            "on node n1, disk d2: 60Gi + 0 scheduled must be at most 40Gi (100 % of 40Gi - 0 reserved)",
            id="space is checked after tags",
        ),
        pytest.param(
            {"diskSelector": "ssd"},
            [longhorn_node("n1", {"d1": disk(500)}), longhorn_node("n2", allow=False)],
            "on node n1, disk d1 has tags [], the volume selects [ssd]",
            id="disks are checked after nodes",
        ),
        pytest.param(
            {},
            [longhorn_node("n1", evict=True, allow=False), longhorn_node("n2", ready=False)],
            "eviction of Longhorn node n1 is requested",
            id="only nodes are refused",
        ),
        pytest.param({}, [longhorn_node("n1", {})], "the cluster has no Longhorn disk", id="no disk"),
        pytest.param(
            {"backingImage": "debian"},
            [longhorn_node("n1", 62)],
            "on node n1, disk disk-1: 65Gi + 0 scheduled must be at most 62Gi (100 % of 62Gi - 0 reserved), "
            "with 5Gi for a copy of backing image debian",
            id="a backing image would have to be copied",
        ),
    ],
)
def test_a_volume_without_room_in_the_cluster_has_its_nearest_disk_named(
    parameters: dict[str, Any], nodes: list[Object], nearest: str
) -> None:
    image = {
        "apiVersion": LONGHORN,
        "kind": "BackingImage",
        "metadata": {"name": "debian", "namespace": "longhorn-system"},
        "spec": {"diskFileSpecMap": {}},
        "status": {"realSize": 5 * 1024**3},
    }
    parameters = {"dataLocality": "disabled", **parameters}
    detail = detail_of_n1(nodes, claim("a", 60), storage_class(**parameters), image)
    assert detail == f"no disk can take a (60Gi); nearest: {nearest}"


def test_only_the_volumes_that_no_disk_takes_are_named() -> None:
    detail = detail_of_n1(longhorn_node("n1", 100), claim("a", 60), claim("b", 200), ANYWHERE, claims=("a", "b"))
    assert detail.startswith("no disk can take b (200Gi); nearest: on node n1, disk disk-1")
    assert " a (" not in detail


TAGGED = {"fast": disk(50, tags=["ssd"]), "slow": disk(500, tags=["hdd"])}
FOR_SSD = storage_class(diskSelector="ssd")
CLAIM = claim("a", 60)
EVICTING = {"d1": disk(50), "d2": disk(500, evict=True, allow=False)}
TWO = [CLAIM, claim("b", 10, storage_class="other"), FOR_SSD, storage_class("other")]
NVME = [claim("a", 1), claim("b", 1, storage_class="nv"), storage_class(), storage_class("nv", diskSelector="nvme")]
PRESSED = {"d": disk(100, available=20, scheduled=60, reserved=10, pressure=True)}
# Disks of n1, other objects, the pod's claims, the detail.
DETAILS: dict[str, tuple[dict[str, Object] | float, list[Object], str, str]] = {
    "disks without the tags are named where those with the tags lack space": (
        TAGGED, [CLAIM, FOR_SSD], "a",
        "a needs 60Gi; disk fast has 50Gi left to schedule; disk slow has tags [hdd], the volume selects [ssd]",
    ),
    "a disk that is closed to some volumes names them": (
        TAGGED, TWO, "ab",
        ("a needs 60Gi; 2 volumes need 70Gi together; disk slow has 500Gi left to schedule; disk fast has 50Gi left to schedule; "
        "disk slow has tags [hdd], the volume selects [ssd] (for a)"),
    ),
    "an evicting disk is named among the closed ones": (
        EVICTING, [CLAIM, storage_class()], "a",
        "a needs 60Gi; disk d1 has 50Gi left to schedule; disk d2 is being evicted (evictionRequested true)",
    ),
    "a volume that is too large for a file system has its own size": (
        50 * 1024, bound("a", 20 * 1024), "a", "disk disk-1: ext4 cannot hold a file of 20Ti, only of less than 16Ti",
    ),
    "an empty selector is told from none": (
        100, bound("a", 10, diskSelector=[""]), "a", "disk disk-1 has tags [], the volume selects ['']",
    ),
    "of several volumes the one that selects other tags is named": (
        {"d": disk(100, tags=["hdd"])}, NVME, "ab", "disk d has tags [hdd], the volume selects [nvme] (for b)",
    ),
    "both rules of disk pressure are shown with their bytes": (
        PRESSED, [CLAIM, storage_class()], "a",
        ("disk d has condition Schedulable=False (DiskPressure): 20Gi available must be more than 25Gi (25 % of 100Gi), and "
        "60Gi scheduled must be at most 90Gi (100 % of 100Gi - 10Gi reserved)"),
    ),
    "a disk with too much scheduled has nothing left": (
        {"d": disk(100, scheduled=150)}, [CLAIM, storage_class()], "a",
        "a needs 60Gi; disk d has nothing left to schedule (50Gi too much is scheduled)",
    ),
    "the setting that keeps volumes off tagged disks is named": (
        {"d": disk(tags=["ssd"])}, [CLAIM, storage_class(), setting("allow-empty-disk-selector-volume", "false")], "a",
        "disk d has tags [ssd], the volume selects [], and allow-empty-disk-selector-volume is false",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("disks", "objects", "claims", "detail"), DETAILS.values(), ids=DETAILS)
def test_the_detail_names_disks_rules_and_bytes(
    disks: dict[str, Object] | float, objects: list[Object], claims: str, detail: str
) -> None:
    assert detail_of_n1(longhorn_node("n1", disks), *objects, claims=tuple(claims)) == detail


def test_a_disk_without_a_uuid_is_not_offered() -> None:
    """A replica on it would have no place."""
    node = longhorn_node("n1")
    node["status"]["diskStatus"]["disk-1"]["diskUUID"] = ""
    explanation = explained(make.pod("a"), node, claim("a", 1), storage_class())
    assert [(verdict.reason.name, verdict.detail) for verdict in explanation.verdicts] == [
        ("NO_DISK", "disk disk-1 has no UUID yet")
    ]


@pytest.mark.parametrize("kind", ["Ready", "Schedulable"])
@pytest.mark.parametrize("status", ["Unknown", None])
def test_a_node_without_a_condition_is_not_ready_yet(kind: str, status: str | None) -> None:
    node = longhorn_node("n1")
    others = [entry for entry in node["status"]["conditions"] if entry["type"] != kind]
    node["status"]["conditions"] = others + ([make.condition(kind, status)] if status else [])
    explanation = explained(make.pod("a"), node, claim("a", 1), storage_class())
    assert [verdict.reason.name for verdict in explanation.verdicts] == ["NODE_NOT_READY_YET"]


class TestManyVolumes:
    """A sentence names a few of a pod's volumes and says how many more there are."""

    NAMES = tuple(f"c{number:02}" for number in range(12))
    NEEDS = "c00 (60Gi): 1 on any node; c01 (60Gi): 1 on any node; c02 (60Gi): 1 on any node"

    def placed(self, *nodes: str) -> list[Object]:
        """Volumes with a replica on each of some nodes."""
        return [
            entry
            for name in self.NAMES
            for entry in (*bound(name, 1), *(replica(f"{name}-{node}", f"vol-{name}", node, size=1) for node in nodes))
        ]

    def test_replicas_without_room_together(self) -> None:
        claims = [claim(name, 60) for name in self.NAMES]
        detail = detail_of_n1(ANYWHERE, longhorn_node("n1", 100), *claims, claims=self.NAMES)
        assert detail == (
            f"these replicas find no room together: {self.NEEDS}; "
            "c03 (60Gi): 1 on any node; c04 (60Gi): 1 on any node; and 7 more"
        )

    def test_kept_replicas(self) -> None:
        detail = detail_of_n1(longhorn_node("n1", 100), *self.placed("n1"), claims=self.NAMES)
        assert detail.endswith("vol-c04 keeps its healthy replica; and 7 more")

    def test_replicas_elsewhere(self) -> None:
        nodes = longhorn_node("n1", 100), longhorn_node("n2", 100)
        verdict = explained(pod(*self.NAMES), *nodes, *self.placed("n2"), nodes=["n1", "n2"]).verdicts[0]
        assert verdict.detail.endswith("vol-c04 has replicas on n2; and 7 more")

    def test_volumes_that_no_disk_takes(self) -> None:
        """Every further one would take a look at all disks."""
        claims = [claim(name, 200) for name in self.NAMES]
        detail = detail_of_n1(ANYWHERE, longhorn_node("n1", 100), *claims, claims=self.NAMES)
        assert detail.count("nearest:") == 5
        assert detail.endswith("; volumes that are not examined: 7")

    def test_volumes_that_a_disk_is_closed_to(self) -> None:
        tagged = storage_class("tagged", diskSelector="ssd")
        claims = [claim(name, 60, storage_class="tagged") for name in self.NAMES]
        objects = storage_class(), tagged, claim("z", 60), *claims
        node = longhorn_node("n1", {"d1": disk(100), "d2": disk(100, tags=["ssd"])})
        detail = detail_of_n1(*objects, node, claims=("z", *self.NAMES))
        assert detail.endswith("(for c00, c01, c02, c03, c04, and 7 more)")


def test_needs_are_computed_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counted_needs(*args: Any) -> Any:
        calls.append(args)
        return replica_needs(*args)

    monkeypatch.setattr(volume_sentences, "replica_needs", counted_needs)
    names = ("a", "b")
    objects = [
        ANYWHERE,
        *(claim(name, 60) for name in names),
        *(longhorn_node(f"n{n}", 60 if n == 1 else 10) for n in (1, 2, 3)),
    ]
    explained(pod(*names), *objects)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("claims", "needs"),
    [
        pytest.param((), "", id="nothing on the node"),
        pytest.param(("a",), "a (1Gi): 1 on node n1; ", id="room on the node"),
    ],
)
def test_what_is_undecided_are_the_replicas_together(claims: tuple[str, ...], needs: str) -> None:
    objects = [
        storage_class(numberOfReplicas="1"),
        storage_class("many", dataLocality="disabled", numberOfReplicas="2"),
        setting("allow-volume-creation-with-degraded-availability", "false"),
        claim("a", 1),
        *(claim(name, size, storage_class="many") for name, size in (("b", 30), ("c", 30), ("d", 50))),
        *(longhorn_node(f"n{number}", size) for number, size in enumerate((61, 61, 51, 51), start=1)),
    ]
    verdict = explained(pod(*claims, "b", "c", "d"), *objects, options=FilterOptions(steps=10)).verdicts[0]
    assert verdict.reason is Reason.UNDECIDED
    assert verdict.detail == (
        f"it is undecided whether these replicas find room together: {needs}"
        "b (30Gi): 2 on any node; c (30Gi): 2 on any node; d (50Gi): 2 on any node"
    )
