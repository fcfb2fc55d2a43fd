"""Which nodes can hold all of a pod's volumes: node rules, disk rules, and everything packed together."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.cooperative import finish
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Options, Packing, filter_nodes
from scheduler_core.model.verdict import Reason
from tests.builders import (
    GI,
    Object,
    as_pod,
    bound,
    claim,
    disk,
    ephemeral_spec,
    explained,
    fitting,
    kube_node,
    longhorn_node,
    pod,
    reasons,
    replica,
    setting,
    storage_class,
    view,
)

BYTE = 1 / GI
# These fill seven disks of 1000 and one of 1002 to the last; finding out how takes a search.
HARD = (
    339, 363, 299, 361, 308, 331, 360, 266, 374, 280, 467, 253, 409, 317, 274, 298, 303, 399, 368, 279, 353, 257, 414, 329,
)  # fmt: skip


def node_of(*sizes: float, name: str = "n1") -> Object:
    """A node with a disk of each size in Gi."""
    return longhorn_node(name, {f"disk-{index}": disk(size) for index, size in enumerate(sizes, start=1)})


def claims_of(*sizes: float) -> tuple[Object, list[Object]]:
    """A pod with an unbound claim of each size in Gi, and those claims."""
    names = [f"claim-{index}" for index in range(len(sizes))]
    made = [claim(name, size) for name, size in zip(names, sizes, strict=True)]
    return pod(*names), [storage_class(), *made]


def one_reason(node: Object, raw_pod: Object | None = None, *objects: Object | list[Object]) -> str:
    """The reason for node n1, for a pod with one unbound claim of 10 Gi unless another is given."""
    asked, extra = (raw_pod, list(objects)) if raw_pod is not None else claims_of(10)
    (reason,) = reasons(explained(asked, node, *extra, nodes=["n1"])).values()
    return reason


def test_a_pod_without_longhorn_volumes_may_go_anywhere() -> None:
    """Nodes Longhorn does not know, and ones it knows to be broken, are all the same to it."""
    explanation = explained(pod(), longhorn_node("n1", ready=False), nodes=["n1", "elsewhere"])
    assert reasons(explanation) == {"elsewhere": "NO_VOLUMES", "n1": "NO_VOLUMES"}


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        pytest.param(kube_node("n1"), "NOT_A_LONGHORN_NODE", id="no Longhorn node"),
        pytest.param(longhorn_node("n1", ready=False), "NODE_NOT_READY", id="not ready"),
        pytest.param(longhorn_node("n1", evict=True), "NODE_EVICTING", id="eviction requested"),
        pytest.param(longhorn_node("n1", schedulable=False), "NODE_CORDONED", id="cordoned"),
        pytest.param(longhorn_node("n1", allow=False), "NODE_SCHEDULING_DISABLED", id="allowScheduling false"),
        pytest.param(longhorn_node("n1", {}), "NO_DISK", id="compute-only"),
        pytest.param(longhorn_node("n1", {"d": disk(allow=False)}), "NO_DISK", id="disk closed"),
        pytest.param(longhorn_node("n1", {"d": disk(evict=True)}), "NO_DISK", id="disk evicting"),
        pytest.param(longhorn_node("n1", {"d": disk(schedulable=False)}), "NO_DISK", id="disk not schedulable"),
        pytest.param(longhorn_node("n1", {"d": disk(pressure=True)}), "DISK_PRESSURE", id="disk pressure"),
        pytest.param(longhorn_node("n1", {"d": disk(kind="block")}), "DISK_TYPE", id="block disk, v1 volume"),
        pytest.param(longhorn_node("n1", {"d": disk(available=25)}), "LOW_AVAILABLE", id="minimal available, equal"),
        pytest.param(
            longhorn_node("n1", {"d": disk(available=25 + BYTE)}), "ROOM", id="minimal available, a byte more"
        ),
        pytest.param(longhorn_node("n1", {"d": disk(scheduled=90)}), "ROOM", id="over-provisioning, equal"),
        pytest.param(
            longhorn_node("n1", {"d": disk(scheduled=90 + BYTE)}),
            "INSUFFICIENT_STORAGE",
            id="over-provisioning, a byte more",
        ),
        pytest.param(longhorn_node("n1", {"d": disk(reserved=90)}), "ROOM", id="reserve, equal"),
        pytest.param(longhorn_node("n1", {"d": disk(reserved=91)}), "INSUFFICIENT_STORAGE", id="reserve, too much"),
        pytest.param(longhorn_node("n1", tags=["fast"]), "ROOM", id="tagged node, no selector"),
    ],
)
def test_a_node_is_judged_by_longhorns_rules(node: Object, reason: str) -> None:
    """One volume of 10Gi, default settings: 25 % minimal available, 100 % over-provisioning."""
    assert one_reason(node) == reason


@pytest.mark.parametrize(
    ("parameters", "node", "reason"),
    [
        pytest.param({"nodeSelector": "fast"}, longhorn_node("n1"), "NODE_TAGS", id="node tag missing"),
        pytest.param({"nodeSelector": "fast"}, longhorn_node("n1", tags=["x", "fast"]), "ROOM", id="node tag there"),
        pytest.param(
            {"diskSelector": "ssd"}, longhorn_node("n1", {"d": disk(tags=["hdd"])}), "DISK_TAGS", id="disk tag"
        ),
        pytest.param(
            {"diskSelector": "ssd"}, longhorn_node("n1", {"d": disk(tags=["ssd"])}), "ROOM", id="disk tag there"
        ),
        pytest.param({"diskSelector": ""}, longhorn_node("n1"), "DISK_TAGS", id="empty selector parameter"),
        pytest.param({"dataEngine": "v2"}, longhorn_node("n1"), "ENGINE_NOT_READY", id="v2 without a Kubernetes node"),
        pytest.param({"backingImage": "none"}, longhorn_node("n1"), "NO_BACKING_IMAGE", id="backing image missing"),
    ],
)
def test_a_storage_class_decides_which_disks_are_open(parameters: dict[str, Any], node: Object, reason: str) -> None:
    """Its parameters become the fields Longhorn's rules read."""
    assert one_reason(node, pod("a"), claim("a", 10), storage_class(**parameters)) == reason


@pytest.mark.parametrize(
    ("tags", "allow_empty", "reason"),
    [(["ssd"], "true", "ROOM"), (["ssd"], "false", "DISK_TAGS"), ([], "false", "ROOM")],
)
def test_tagged_disks_can_be_kept_for_volumes_that_ask(tags: list[str], allow_empty: str, reason: str) -> None:
    """allow-empty-disk-selector-volume."""
    asked, extra = claims_of(10)
    found = one_reason(
        longhorn_node("n1", {"d": disk(tags=tags)}),
        asked,
        extra,
        setting("allow-empty-disk-selector-volume", allow_empty),
    )
    assert found == reason


@pytest.mark.parametrize(
    ("percentage", "claims", "reason"),
    [
        ("100", 100, "ROOM"),
        ("100", 101, "INSUFFICIENT_STORAGE"),
        ("200", 200, "ROOM"),
        ("0", 1, "INSUFFICIENT_STORAGE"),
    ],
)
def test_over_provisioning_scales_what_may_be_promised(percentage: str, claims: float, reason: str) -> None:
    """storage-over-provisioning-percentage, on one disk of 100Gi."""
    asked, extra = claims_of(claims)
    found = one_reason(node_of(100), asked, extra, setting("storage-over-provisioning-percentage", percentage))
    assert found == reason


class TestPacking:
    """All local volumes of a pod go onto the disks of one node together."""

    @pytest.mark.parametrize(
        ("sizes", "disks", "fits"),
        [
            pytest.param((60, 60), (100,), False, id="60+60 never on one disk of 100"),
            pytest.param((60, 60), (60, 60), True, id="60+60 on 60+60, exactly full"),
            pytest.param((60, 60 + 2**-9), (60, 60), False, id="one step of 2Mi more does not"),
            pytest.param((50, 100), (60, 100), True, id="50+100 on 60+100"),
            pytest.param((50, 100), (100, 60), True, id="the order of disks does not matter"),
            pytest.param((100, 50), (60, 100), True, id="nor that of volumes"),
            pytest.param((50, 50, 50), (100, 60), True, id="two share a disk"),
            pytest.param((60, 50, 50), (100, 59), False, id="enough in total, not packable"),
            pytest.param((40, 40, 30, 30, 30), (100, 70), True, id="first-fit would fail"),
            pytest.param((100, 100, 100, 100), (100, 100, 100), False, id="one disk too few"),
            pytest.param((100, 100, 100, 100), (100, 100, 100, 100), True, id="one disk each"),
        ],
    )
    def test_an_assignment_exists_or_not(self, sizes: tuple[float, ...], disks: tuple[float, ...], fits: bool) -> None:
        """No disk is promised more than it has; where an assignment exists it is found."""
        asked, extra = claims_of(*sizes)
        explanation = explained(asked, node_of(*disks), extra)
        assert (fitting(explanation) == ["n1"]) is fits

    def test_exactly_full_fits_and_one_byte_more_does_not(self) -> None:
        """At the byte, with volumes that exist already."""
        exact = explained(pod("a", "b"), node_of(100), bound("a", 50), bound("b", 50))
        over = explained(pod("a", "b"), node_of(100), bound("a", 50), bound("b", 50 + BYTE))
        assert (reasons(exact), reasons(over)) == ({"n1": "ROOM"}, {"n1": "NOT_TOGETHER"})

    def test_the_plan_names_a_disk_for_each_volume(self) -> None:
        """By Longhorn volume, or by claim while it is unbound."""
        explanation = explained(pod("a", "b"), node_of(60, 100), bound("a", 100), claim("b", 50), storage_class())
        assert explanation.verdicts[0].plan == {"b": "n1-disk-1", "vol-a": "n1-disk-2"}

    def test_only_the_node_with_enough_disks_fits(self) -> None:
        """The proposal's goal 2: nodes with 1, 2, 3 and 4 disks of 100Gi, four claims of 100Gi."""
        asked, extra = claims_of(100, 100, 100, 100)
        nodes = [node_of(*[100] * count, name=f"node-{count}") for count in (1, 2, 3, 4)]
        explanation = explained(asked, nodes, extra)
        assert fitting(explanation) == ["node-4"]
        assert [verdict.missing // GI for verdict in explanation.verdicts] == [300, 200, 100, 0]

    def test_each_volume_keeps_to_its_own_disks(self) -> None:
        """The ssd volume takes the ssd disk, so the other must do with the rest."""
        node = longhorn_node("n1", {"a": disk(100, tags=["ssd"]), "b": disk(50)})
        classes = [storage_class("ssd", diskSelector="ssd"), storage_class()]
        small = explained(pod("x", "y"), node, classes, claim("x", 60, storage_class="ssd"), claim("y", 50))
        large = explained(pod("x", "y"), node, classes, claim("x", 60, storage_class="ssd"), claim("y", 51))
        assert small.verdicts[0].plan == {"x": "n1-a", "y": "n1-b"}
        assert reasons(large) == {"n1": "NOT_TOGETHER"}

    def test_what_a_volume_brings_along_must_be_available(self) -> None:
        """A volume with 40Gi of data needs a disk with more than that above its minimum, whatever was promised there."""
        node = longhorn_node("n1", {"a": disk(100, available=60), "b": disk(100, available=90)})
        explanation = explained(pod("a", "b"), node, bound("a", 50, actual=40), bound("b", 100))
        assert explanation.verdicts[0].plan == {"vol-a": "n1-b", "vol-b": "n1-a"}
        full = explained(pod("a"), longhorn_node("n1", {"a": disk(100, available=65)}), bound("a", 50, actual=40))
        assert reasons(full) == {"n1": "LOW_AVAILABLE"}

    def test_a_search_that_gives_up_is_no_fit(self) -> None:
        """With no steps to spend a node that needs a search is refused, and counted."""
        asked, extra = claims_of(*HARD)
        node = node_of(*[1000] * 7, 1002)
        decision = explained(asked, node, extra, options=Options(steps=0)).decision
        assert (list(decision.reasons), decision.gave_up) == ([Reason.UNDECIDED], 1)
        assert fitting(explained(asked, node, extra)) == ["n1"]


class TestRemoteVolumes:
    """Volumes that need no local room ask only to be attachable, and for a place somewhere while they have none."""

    FAR = storage_class("far", dataLocality="disabled")

    def test_a_node_without_disks_is_usable(self) -> None:
        """Compute-only nodes are for exactly this."""
        nodes = [longhorn_node("compute", {}), longhorn_node("storage")]
        explanation = explained(pod("a"), nodes, self.FAR, claim("a", 10, storage_class="far"))
        assert reasons(explanation) == {"compute": "ATTACHABLE", "storage": "ATTACHABLE"}

    def test_without_room_anywhere_no_node_fits(self) -> None:
        """Longhorn could not create it, so the pod would be stuck wherever it went."""
        nodes = [longhorn_node("compute", {}), longhorn_node("storage", 5)]
        explanation = explained(pod("a"), nodes, self.FAR, claim("a", 10, storage_class="far"))
        assert reasons(explanation) == dict.fromkeys(("compute", "storage"), "NO_ROOM_IN_CLUSTER")

    def test_a_placed_one_needs_no_more_room(self) -> None:
        """Its replica is somewhere already."""
        explanation = explained(
            pod("a"), longhorn_node("n1", 5), bound("a", 10, locality="disabled"), replica("r", "vol-a", "n1", size=10)
        )
        assert reasons(explanation) == {"n1": "ATTACHABLE"}

    def test_it_must_be_attachable_where_the_pod_runs(self) -> None:
        """A ready Longhorn node; without one Longhorn cannot attach anything."""
        nodes = [longhorn_node("broken", ready=False), longhorn_node("fine")]
        explanation = explained(
            pod("a"),
            nodes,
            bound("a", locality="disabled"),
            replica("r", "vol-a", "fine"),
            nodes=["broken", "fine", "other"],
        )
        assert reasons(explanation) == {
            "broken": "NODE_NOT_READY",
            "fine": "ATTACHABLE",
            "other": "NOT_A_LONGHORN_NODE",
        }

    def test_it_takes_no_part_in_packing(self) -> None:
        """Only the local volume needs the node's disks."""
        explanation = explained(
            pod("a", "b"), longhorn_node("n1", 50), longhorn_node("n2", 200), storage_class(), self.FAR,
            claim("a", 50), claim("b", 150, storage_class="far"),
        )  # fmt: skip
        assert reasons(explanation) == {"n1": "ROOM", "n2": "ROOM"}

    def test_best_effort_relaxed_counts_as_remote(self) -> None:
        """The node may be full as long as some disk in the cluster is not."""
        nodes = [longhorn_node("n1", 5), longhorn_node("n2", 50)]
        asked, extra = claims_of(10)
        explanation = explained(asked, nodes, extra, options=Options(require_best_effort=False))
        assert reasons(explanation) == {"n1": "ATTACHABLE", "n2": "ATTACHABLE"}


class TestBackingImages:
    """A volume's backing image takes its real size on every disk that lacks it, once."""

    @staticmethod
    def image(*disks: str, size: float = 20) -> Object:
        """A backing image that is on some disks (UUIDs)."""
        return {
            "apiVersion": "longhorn.io/v1beta2",
            "kind": "BackingImage",
            "metadata": {"name": "bi"},
            "spec": {"diskFileSpecMap": {uuid: {} for uuid in disks}},
            "status": {"realSize": int(size * GI)},
        }

    @pytest.mark.parametrize(
        ("disks", "on", "sizes", "fits"),
        [
            pytest.param((100,), (), (80,), True, id="volume and copy fit exactly"),
            pytest.param((100,), (), (81,), False, id="not the copy beside it"),
            pytest.param((100,), ("n1-disk-1",), (100,), True, id="the image is there already"),
            pytest.param((100,), (), (40, 40), True, id="two volumes share one copy"),
            pytest.param((100, 100), ("n1-disk-2",), (90,), True, id="the disk that has it is chosen"),
            pytest.param((70, 70), (), (50, 50), True, id="a copy on each disk"),
            pytest.param((70, 69), (), (50, 50), False, id="no room for the second copy"),
        ],
    )
    def test_the_copy_counts(
        self, disks: tuple[float, ...], on: tuple[str, ...], sizes: tuple[float, ...], fits: bool
    ) -> None:
        """Every choice of disks to copy it to is tried."""
        names = [f"c{index}" for index in range(len(sizes))]
        made = [claim(name, size) for name, size in zip(names, sizes, strict=True)]
        explanation = explained(pod(*names), node_of(*disks), self.image(*on), storage_class(backingImage="bi"), made)
        assert (fitting(explanation) == ["n1"]) is fits

    def test_an_image_that_comes_with_the_volume_need_not_exist(self) -> None:
        """The CSI driver creates it with the first volume; refusing that one would be a deadlock."""
        made = storage_class(backingImage="new", backingImageDataSourceType="download")
        assert reasons(explained(pod("a"), node_of(100), made, claim("a", 50))) == {"n1": "ROOM"}

    def test_many_choices_of_disks_are_bounded(self) -> None:
        """Each choice of disks to copy to costs steps, so that a request ends; what is open then does not fit."""
        names = [f"c{index}" for index in range(8)]
        made = [claim(name, 61) for name in names]
        decision = explained(
            pod(*names), node_of(*[122] * 7), self.image(size=60), storage_class(backingImage="bi"), made,
            options=Options(steps=100),
        ).decision  # fmt: skip
        assert list(decision.reasons) == [Reason.UNDECIDED]


def test_many_disks_have_more_choices_than_anyone_can_list() -> None:
    """Ten volumes of one image on twenty-two disks: the choices are cut off before they are listed."""
    names = [f"c{index}" for index in range(10)]
    made = [claim(name, 61) for name in names]
    asked = node_of(*[122] * 8, *[60] * 14)
    image = TestBackingImages.image(size=60)
    decision = explained(pod(*names), asked, image, storage_class(backingImage="bi"), made).decision
    assert list(decision.reasons) == [Reason.UNDECIDED]


def test_a_volume_longhorn_cannot_read_fits_nowhere() -> None:
    """A degraded volume whose lastDegradedAt is no time stops Longhorn's scheduler on every node."""
    broken = bound("a", 10)
    broken[2]["status"] |= {"robustness": "degraded", "lastDegradedAt": "yesterday"}
    explanation = explained(
        pod("a"),
        longhorn_node("n1"),
        longhorn_node("n2"),
        broken,
        replica("r", "vol-a", "n1", failed=True, rebuildRetryCount=5, healthy=False),
    )
    assert reasons(explanation) == dict.fromkeys(("n1", "n2"), "BAD_VOLUME")
    assert "yesterday" in explanation.verdicts[0].detail


@pytest.mark.parametrize(
    ("interval", "since"),
    [
        ("999999999999", "2025-12-31T00:00:00Z"),
        (str(2**63 - 1), "2025-12-31T00:00:00Z"),
        (str(-(2**63)), "2025-12-31T00:00:00Z"),
        ("600", "9999-12-31T23:59:59Z"),
        ("600", "0001-01-01T00:00:00Z"),
    ],
)
def test_no_time_is_too_far_away(interval: str, since: str) -> None:
    """Settings and times of millennia are computed with, not stumbled over."""
    degraded = bound("a", 10)
    degraded[2]["status"] |= {"robustness": "degraded", "lastDegradedAt": since}
    explanation = explained(
        pod("a"), longhorn_node("n1", {"disk-1": disk(), "disk-2": disk()}), degraded,
        replica("r", "vol-a", "n1", size=10, evictionRequested=True), setting("replica-replenishment-wait-interval", interval),
    )  # fmt: skip
    assert fitting(explanation) == ["n1"]


def test_nothing_is_missing_where_no_amount_would_help() -> None:
    """Two volumes short on two different disks: no single disk can make up for both."""
    node = longhorn_node("n1", {"a": disk(60, tags=["ssd"]), "b": disk(60, tags=["hdd"])})
    classes = [storage_class(kind, diskSelector=kind) for kind in ("ssd", "hdd")]
    made = [claim(f"{kind}{index}", 60, storage_class=kind) for kind in ("ssd", "hdd") for index in (1, 2)]
    (verdict,) = explained(pod("ssd1", "ssd2", "hdd1", "hdd2"), node, classes, made).verdicts
    assert (verdict.reason, verdict.missing) == (Reason.NOT_TOGETHER, 0)


class TestFreshReplicas:
    """A replica counts on its disk from the moment it is placed there."""

    def test_one_that_the_status_does_not_list_yet_takes_room(self) -> None:
        """Longhorn's node status lags behind."""
        asked, extra = claims_of(60)
        assert one_reason(node_of(100), asked, extra, replica("r", "other", "n1", size=50)) == "INSUFFICIENT_STORAGE"

    def test_one_without_a_node_does_not(self) -> None:
        """It has no place yet, whatever disk it names."""
        asked, extra = claims_of(60)
        homeless = replica("r", "other", "", size=50, diskID="n1-disk-1")
        assert one_reason(node_of(100), asked, extra, homeless) == "ROOM"

    def test_one_that_the_status_lists_counts_once(self) -> None:
        """Never twice."""
        asked, extra = claims_of(50)
        node = longhorn_node("n1", {"disk-1": disk(100, listed={"r": 50})})
        assert one_reason(node, asked, extra, replica("r", "other", "n1", size=50)) == "ROOM"


class TestMemory:
    """What is remembered never changes an answer."""

    @pytest.mark.parametrize("sizes", [(10,), (60, 60), (34, 33, 33, 26, 25, 25, 24, 51, 49)])
    def test_asking_again_gives_the_same_answer(self, sizes: tuple[float, ...]) -> None:
        """Also in another order and for fewer nodes."""
        asked, extra = claims_of(*sizes)
        nodes = [node_of(*[size] * 3, name=f"n{size}") for size in (50, 99, 100, 120)]
        memory = Memory(view(nodes, extra))
        names = ["n50", "n99", "n100", "n120"]

        def ask(candidates: list[str]) -> dict[str, Reason]:
            decision = finish(filter_nodes(as_pod(asked), candidates, memory, Options()))
            return dict(zip(decision.candidates, decision.reasons, strict=True))

        first = ask(names)
        assert ask(names) == first
        assert ask(names[::-1]) == first
        assert ask(["n99"]) == {"n99": first["n99"]}

    def test_giving_up_is_not_remembered(self) -> None:
        """A later request that may search longer gets its answer."""
        asked, extra = claims_of(*HARD)
        memory = Memory(view(node_of(*[1000] * 7, 1002), extra))
        answers = [
            list(finish(filter_nodes(as_pod(asked), ["n1"], memory, Options(steps=steps))).reasons)
            for steps in (0, Options().steps)
        ]
        assert answers == [[Reason.UNDECIDED], [Reason.ROOM]]

    def test_what_exact_packing_found_is_not_taken_for_order_safe(self) -> None:
        """Nobody examined that when only a packing was asked for."""
        asked, extra = claims_of(50, 100)
        memory = Memory(view(node_of(100, 60), extra))
        answers = [
            list(finish(filter_nodes(as_pod(asked), ["n1"], memory, Options(packing=packing))).reasons)
            for packing in (Packing.EXACT, Packing.ORDER_SAFE, Packing.EXACT)
        ]
        assert answers == [[Reason.ROOM], [Reason.ORDER_UNSAFE], [Reason.ROOM]]

    def test_a_long_question_pauses(self) -> None:
        """So that the event loop can serve others; the more nodes, the more pauses."""
        asked, extra = claims_of(10)
        names = [f"n{index}" for index in range(300)]
        memory = Memory(view([longhorn_node(name) for name in names], extra))
        assert sum(1 for _ in filter_nodes(as_pod(asked), names, memory, Options())) >= 4


def test_a_deleting_longhorn_node_attaches_nothing() -> None:
    """Not even a volume that needs no room there."""
    leaving = longhorn_node("n1", 200)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    explanation = explained(pod("far"), leaving, longhorn_node("n2"), bound("far", 10, locality="disabled"))
    assert reasons(explanation) == {"n1": "NODE_NOT_READY", "n2": "ATTACHABLE"}


def test_a_volume_pinned_to_zones_stays_in_them() -> None:
    """volume.spec.topologyRequirement."""
    nodes = [longhorn_node("n1", zone="east"), longhorn_node("n2", zone="west")]
    explanation = explained(pod("a"), nodes, bound("a", 10, topologyRequirement=[{"zone": "west"}]))
    assert reasons(explanation) == {"n1": "TOPOLOGY", "n2": "ROOM"}


@pytest.mark.parametrize(
    ("size", "filesystem", "reason"),
    [
        (16 * 1024, "ext4", "VOLUME_TOO_LARGE"),
        (16 * 1024 - 1, "ext4", "ROOM"),
        (16 * 1024, "xfs", "ROOM"),
    ],
)
def test_a_file_system_holds_files_up_to_its_limit(size: float, filesystem: str, reason: str) -> None:
    """ext4 below 16 TiB."""
    node = longhorn_node("n1", {"d": disk(20 * 1024, filesystem=filesystem)})
    assert reasons(explained(pod("a"), node, bound("a", size))) == {"n1": reason}


def test_an_ephemeral_volume_is_packed_like_any_other() -> None:
    """Its claim need not exist."""
    explanation = explained(
        pod("a", ephemeral={"scratch": ephemeral_spec(50)}), node_of(100), claim("a", 60), storage_class()
    )
    assert reasons(explanation) == {"n1": "NOT_TOGETHER"}


def details() -> list[Any]:
    """Refusals with the words their detail must have."""
    asked, extra = claims_of(60, 60)
    return [
        pytest.param(node_of(100), asked, extra, ["120Gi", "disk disk-1", "100Gi"], 20 * GI, id="together"),
        pytest.param(node_of(70, 50), asked, extra, ["disk disk-2", "50Gi"], 10 * GI, id="the least that would help"),
        pytest.param(node_of(40), *claims_of(60), ["60Gi", "40Gi"], 20 * GI, id="alone"),
        pytest.param(
            longhorn_node("n1", {"d": disk(tags=["x"], available=10)}), *claims_of(1), ["disk d"], 0, id="low"
        ),
    ]


@pytest.mark.parametrize(("node", "asked", "extra", "words", "missing"), details())
def test_a_refusal_says_what_is_missing(
    node: Object, asked: Object, extra: list[Object], words: list[str], missing: int
) -> None:
    """The detail names disks and numbers, and `missing` is the least that would help on one disk."""
    (verdict,) = explained(asked, node, extra).verdicts
    assert all(word in verdict.detail for word in words), verdict.detail
    assert verdict.missing == missing
