"""Which nodes can hold all of a pod's volumes: node rules, disk rules, and everything packed together."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from scheduler_core.decide.decision import NO_CONTENDERS, FilterOptions, Packing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation.cluster_state import ClusterState, ProfileCache
from scheduler_core.model.verdict import Reason
from tests.builders import (
    GI,
    Object,
    as_pod,
    bound,
    claim,
    competing,
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
    state,
    storage_class,
)

BYTE = 1 / GI
# These fill seven disks of 1000 and one of 1002 to the last; finding out how takes a search.
HARD = (
    339, 363, 299, 361, 308, 331, 360, 266, 374, 280, 467, 253, 409, 317, 274, 298, 303, 399, 368, 279, 353, 257, 414, 329,
)  # fmt: skip


def node_of(*sizes: float, name: str = "n1") -> Object:
    """A node with a disk of each size in Gi."""
    return longhorn_node(name, {f"disk-{index}": disk(size) for index, size in enumerate(sizes, start=1)})


def _node_filled_by(sizes: Sequence[int], random: Random, name: str) -> Object:
    """A node with eight disks that volumes of these sizes fill to the last."""
    disks = [0] * 8
    while not min(disks):
        disks = [0] * 8
        for size in sizes:
            disks[random.randrange(8)] += size
    return node_of(*disks, name=name)


def claims_of(*sizes: float) -> tuple[Object, list[Object]]:
    """A pod with an unbound claim of each size in Gi, and the claims with their StorageClass."""
    names = [f"claim-{index}" for index in range(len(sizes))]
    claims = [claim(name, size) for name, size in zip(names, sizes, strict=True)]
    return pod(*names), [storage_class(), *claims]


def reason_of_n1(node: Object, raw_pod: Object | None = None, *objects: Object | list[Object]) -> str:
    """The reason of node n1 for a pod with an unbound claim of 10 Gi, or for another pod."""
    requested, extra = (raw_pod, list(objects)) if raw_pod is not None else claims_of(10)
    (reason,) = reasons(explained(requested, node, *extra, nodes=["n1"])).values()
    return reason


def test_a_pod_without_longhorn_volumes_may_go_anywhere() -> None:
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
def test_longhorns_rules_decide_about_a_node(node: Object, reason: str) -> None:
    """One volume of 10Gi, default settings: 25 % minimal available, 100 % over-provisioning."""
    assert reason_of_n1(node) == reason


@pytest.mark.parametrize(
    ("parameters", "node", "reason"),
    [
        pytest.param({"nodeSelector": "fast"}, longhorn_node("n1"), "NODE_TAGS", id="node tag missing"),
        pytest.param({"nodeSelector": "fast"}, longhorn_node("n1", tags=["x", "fast"]), "ROOM", id="node tag present"),
        pytest.param(
            {"diskSelector": "ssd"}, longhorn_node("n1", {"d": disk(tags=["hdd"])}), "DISK_TAGS", id="disk tag"
        ),
        pytest.param(
            {"diskSelector": "ssd"}, longhorn_node("n1", {"d": disk(tags=["ssd"])}), "ROOM", id="disk tag present"
        ),
        pytest.param({"dataEngine": "v2"}, longhorn_node("n1"), "ENGINE_NOT_READY", id="v2 without a Kubernetes node"),
        pytest.param({"backingImage": "none"}, longhorn_node("n1"), "NO_BACKING_IMAGE", id="backing image missing"),
    ],
)
def test_a_storage_class_decides_which_disks_are_open(parameters: dict[str, Any], node: Object, reason: str) -> None:
    assert reason_of_n1(node, pod("a"), claim("a", 10), storage_class(**parameters)) == reason


@pytest.mark.parametrize("names", [("x", "y"), ("y", "x")])
@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        pytest.param({"diskSelector": "ssd"}, {"nodeSelector": "fast"}, "DISK_TAGS", id="node and disk tags"),
        pytest.param({"diskSelector": "ssd"}, {"dataEngine": "v2"}, "ENGINE_NOT_READY", id="tags and engine"),
        pytest.param({"backingImage": "none"}, {"diskSelector": "ssd"}, "NO_BACKING_IMAGE", id="image and tags"),
    ],
)
def test_which_of_two_volumes_gives_the_reason_does_not_depend_on_claim_names(
    names: tuple[str, str], first: dict[str, Any], second: dict[str, Any], reason: str
) -> None:
    classes = [storage_class("class-1", **first), storage_class("class-2", **second)]
    claims = [claim(name, 10, storage_class=f"class-{index}") for index, name in enumerate(names, start=1)]
    assert reason_of_n1(longhorn_node("n1"), pod(*names), claims, classes) == reason


@pytest.mark.parametrize(
    ("tags", "allow_empty", "reason"),
    [(["ssd"], "true", "ROOM"), (["ssd"], "false", "DISK_TAGS"), ([], "false", "ROOM")],
)
def test_tagged_disks_can_be_reserved_for_volumes_with_a_disk_selector(
    tags: list[str], allow_empty: str, reason: str
) -> None:
    requested, extra = claims_of(10)
    node = longhorn_node("n1", {"d": disk(tags=tags)})
    assert reason_of_n1(node, requested, extra, setting("allow-empty-disk-selector-volume", allow_empty)) == reason


@pytest.mark.parametrize(
    ("percentage", "claims", "reason"),
    [
        ("100", 100, "ROOM"),
        ("100", 101, "INSUFFICIENT_STORAGE"),
        ("200", 200, "ROOM"),
        ("0", 1, "INSUFFICIENT_STORAGE"),
    ],
)
def test_over_provisioning_scales_what_may_be_scheduled(percentage: str, claims: float, reason: str) -> None:
    """storage-over-provisioning-percentage, on one disk of 100Gi."""
    requested, extra = claims_of(claims)
    over_provisioning = setting("storage-over-provisioning-percentage", percentage)
    assert reason_of_n1(node_of(100), requested, extra, over_provisioning) == reason


class TestPacking:
    """All local volumes of a pod go onto the disks of one node together."""

    @pytest.mark.parametrize(
        ("sizes", "disks", "fits"),
        [
            pytest.param((60, 60), (100,), False, id="60+60 never on one disk of 100"),
            pytest.param((60, 60), (60, 60), True, id="60+60 on 60+60, exactly full"),
            pytest.param((60, 60 + 2**-9), (60, 60), False, id="one step of 2Mi more does not"),
            pytest.param((50, 50, 50), (100, 60), True, id="two share a disk"),
            pytest.param((60, 50, 50), (100, 59), False, id="enough in total, not packable"),
            pytest.param((40, 40, 30, 30, 30), (100, 70), True, id="first-fit would fail"),
        ],
    )
    def test_a_node_fits_exactly_if_some_assignment_fits(
        self, sizes: tuple[float, ...], disks: tuple[float, ...], fits: bool
    ) -> None:
        requested, extra = claims_of(*sizes)
        explanation = explained(requested, node_of(*disks), extra)
        assert (fitting(explanation) == ["n1"]) is fits

    def test_exactly_full_fits_and_one_byte_more_does_not(self) -> None:
        exact = explained(pod("a", "b"), node_of(100), bound("a", 50), bound("b", 50))
        over = explained(pod("a", "b"), node_of(100), bound("a", 50), bound("b", 50 + BYTE))
        assert (reasons(exact), reasons(over)) == ({"n1": "ROOM"}, {"n1": "NOT_TOGETHER"})

    def test_the_plan_names_a_disk_for_each_volume(self) -> None:
        explanation = explained(pod("a", "b"), node_of(60, 100), bound("a", 100), claim("b", 50), storage_class())
        assert explanation.verdicts[0].plan == {"b": "n1-disk-1", "vol-a": "n1-disk-2"}

    def test_only_the_node_with_enough_disks_fits(self) -> None:
        """The proposal's goal 2: nodes with 1, 2, 3 and 4 disks of 100Gi, four claims of 100Gi."""
        requested, extra = claims_of(100, 100, 100, 100)
        nodes = [node_of(*[100] * count, name=f"node-{count}") for count in (1, 2, 3, 4)]
        explanation = explained(requested, nodes, extra)
        assert fitting(explanation) == ["node-4"]
        assert [verdict.missing // GI for verdict in explanation.verdicts] == [300, 200, 100, 0]

    def test_an_ephemeral_volume_is_packed_like_any_other(self) -> None:
        requested = pod("a", ephemeral={"scratch": ephemeral_spec(50)})
        assert reasons(explained(requested, node_of(100), claim("a", 60), storage_class())) == {"n1": "NOT_TOGETHER"}

    def test_each_volume_keeps_to_its_own_disks(self) -> None:
        node = longhorn_node("n1", {"a": disk(100, tags=["ssd"]), "b": disk(50)})
        classes = [storage_class("ssd", diskSelector="ssd"), storage_class()]
        small = explained(pod("x", "y"), node, classes, claim("x", 60, storage_class="ssd"), claim("y", 50))
        large = explained(pod("x", "y"), node, classes, claim("x", 60, storage_class="ssd"), claim("y", 51))
        assert small.verdicts[0].plan == {"x": "n1-a", "y": "n1-b"}
        assert reasons(large) == {"n1": "NOT_TOGETHER"}

    def test_a_volume_s_data_must_fit_in_the_available_bytes(self) -> None:
        """40Gi of data need a disk with more than that above its minimum."""
        node = longhorn_node("n1", {"a": disk(100, available=60), "b": disk(100, available=90)})
        explanation = explained(pod("a", "b"), node, bound("a", 50, actual=40), bound("b", 100))
        assert explanation.verdicts[0].plan == {"vol-a": "n1-b", "vol-b": "n1-a"}
        full = explained(pod("a"), longhorn_node("n1", {"a": disk(100, available=65)}), bound("a", 50, actual=40))
        assert reasons(full) == {"n1": "LOW_AVAILABLE"}

    def test_a_node_whose_search_exceeds_the_budget_is_refused(self) -> None:
        requested, extra = claims_of(*HARD)
        node = node_of(*[1000] * 7, 1002)
        decision = explained(requested, node, extra, options=FilterOptions(steps=0)).decision
        assert (list(decision.reasons), decision.gave_up) == ([Reason.UNDECIDED], 1)
        assert fitting(explained(requested, node, extra)) == ["n1"]


REMOTE = storage_class("remote", dataLocality="disabled")


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        pytest.param(
            [longhorn_node("compute", {}), longhorn_node("storage"), REMOTE, claim("a", 10, storage_class="remote")],
            {"compute": "ATTACHABLE", "storage": "ATTACHABLE"},
            id="a node without disks is usable",
        ),
        pytest.param(
            # Longhorn could not place the volume, so the pod would be stuck on every node.
            [longhorn_node("compute", {}), longhorn_node("storage", 5), REMOTE, claim("a", 10, storage_class="remote")],
            {"compute": "NO_ROOM_IN_CLUSTER", "storage": "NO_ROOM_IN_CLUSTER"},
            id="without space on any node no node fits",
        ),
        pytest.param(
            [longhorn_node("n1", 5), *bound("a", 10, locality="disabled"), replica("r", "vol-a", "n1", size=10)],
            {"n1": "ATTACHABLE"},
            id="a placed volume needs no more space",
        ),
        pytest.param(
            [
                *(longhorn_node("broken", ready=False), longhorn_node("fine")),
                *(*bound("a", locality="disabled"), replica("r", "vol-a", "fine")),
            ],
            {"broken": "NODE_NOT_READY", "fine": "ATTACHABLE", "other": "NOT_A_LONGHORN_NODE"},
            id="it must be attachable on the pod's node",
        ),
    ],
)
def test_a_volume_without_locality_needs_an_attachable_node_and_space_somewhere(
    objects: list[Object], expected: dict[str, str]
) -> None:
    assert reasons(explained(pod("a"), objects, nodes=list(expected))) == expected


def test_no_space_in_the_cluster_is_the_reason_even_where_all_candidates_are_excluded() -> None:
    nodes = [longhorn_node("n1"), longhorn_node("n2")]
    volume = bound("a", locality="strict-local")
    far = claim("b", 5000, storage_class="remote")
    explanation = explained(pod("a", "b"), nodes, REMOTE, volume, replica("r1", "vol-a", "n1"), far, nodes=["n2"])
    assert reasons(explanation) == {"n2": "NO_ROOM_IN_CLUSTER"}


def test_a_remote_volume_is_not_packed_on_the_node() -> None:
    nodes = [longhorn_node("n1", 50), longhorn_node("n2", 200)]
    claims = [storage_class(), REMOTE, claim("a", 50), claim("b", 150, storage_class="remote")]
    assert reasons(explained(pod("a", "b"), nodes, claims)) == {"n1": "ROOM", "n2": "ROOM"}


def test_a_best_effort_volume_counts_as_remote_unless_local_space_is_required() -> None:
    """The node may be full as long as some disk in the cluster is not."""
    requested, extra = claims_of(10)
    nodes = [longhorn_node("n1", 5), longhorn_node("n2", 50)]
    explanation = explained(requested, nodes, extra, options=FilterOptions(require_best_effort=False))
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
            pytest.param((100,), (), (81,), False, id="no space for the copy"),
            pytest.param((100,), ("n1-disk-1",), (100,), True, id="the disk has the image"),
            pytest.param((100,), (), (40, 40), True, id="two volumes share one copy"),
            pytest.param((100, 100), ("n1-disk-2",), (90,), True, id="the disk that has it is chosen"),
            pytest.param((70, 70), (), (50, 50), True, id="a copy on each disk"),
            pytest.param((70, 69), (), (50, 50), False, id="no space for the second copy"),
        ],
    )
    def test_the_copy_of_a_backing_image_takes_space(
        self, disks: tuple[float, ...], on: tuple[str, ...], sizes: tuple[float, ...], fits: bool
    ) -> None:
        names = [f"c{index}" for index in range(len(sizes))]
        claims = [claim(name, size) for name, size in zip(names, sizes, strict=True)]
        explanation = explained(pod(*names), node_of(*disks), self.image(*on), storage_class(backingImage="bi"), claims)
        assert (fitting(explanation) == ["n1"]) is fits

    def test_an_image_that_comes_with_the_volume_need_not_exist(self) -> None:
        """The CSI driver creates it with the first volume; refusing that one would be a deadlock."""
        created = storage_class(backingImage="new", backingImageDataSourceType="download")
        assert reasons(explained(pod("a"), node_of(100), created, claim("a", 50))) == {"n1": "ROOM"}

    @pytest.mark.parametrize(
        ("volumes", "disks", "steps"),
        [
            pytest.param(8, [122] * 7, 100, id="each choice of disks costs steps"),
            pytest.param(10, [122] * 8 + [60] * 14, FilterOptions().steps, id="not all choices are listed"),
        ],
    )
    def test_many_choices_of_disks_are_bounded(self, volumes: int, disks: list[float], steps: int) -> None:
        """So that a request ends; an undecided node does not fit."""
        names = [f"c{index}" for index in range(volumes)]
        claims = [claim(name, 61) for name in names]
        objects = [node_of(*disks), self.image(size=60), storage_class(backingImage="bi"), *claims]
        decision = explained(pod(*names), objects, options=FilterOptions(steps=steps)).decision
        assert list(decision.reasons) == [Reason.UNDECIDED]


def test_a_pod_with_more_volumes_than_a_node_can_attach_fits_nowhere() -> None:
    explanation = explained(
        pod(*[f"claim-{index}" for index in range(4_095)]), longhorn_node("n1"), longhorn_node("n2")
    )
    assert reasons(explanation) == dict.fromkeys(("n1", "n2"), "TOO_MANY_VOLUMES")
    assert "4094" in explanation.verdicts[0].detail


def test_a_volume_that_longhorn_cannot_read_fits_on_no_node() -> None:
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
def test_extreme_times_and_intervals_are_accepted(interval: str, since: str) -> None:
    degraded = bound("a", 10)
    degraded[2]["status"] |= {"robustness": "degraded", "lastDegradedAt": since}
    explanation = explained(
        pod("a"), longhorn_node("n1", {"disk-1": disk(), "disk-2": disk()}), degraded,
        replica("r", "vol-a", "n1", size=10, evictionRequested=True), setting("replica-replenishment-wait-interval", interval),
    )  # fmt: skip
    assert fitting(explanation) == ["n1"]


def test_no_missing_bytes_are_named_where_no_amount_on_one_disk_would_help() -> None:
    node = longhorn_node("n1", {"a": disk(60, tags=["ssd"]), "b": disk(60, tags=["hdd"])})
    classes = [storage_class(kind, diskSelector=kind) for kind in ("ssd", "hdd")]
    claims = [claim(f"{kind}{index}", 60, storage_class=kind) for kind in ("ssd", "hdd") for index in (1, 2)]
    (verdict,) = explained(pod("ssd1", "ssd2", "hdd1", "hdd2"), node, classes, claims).verdicts
    assert (verdict.reason, verdict.missing) == (Reason.NOT_TOGETHER, 0)
    assert "more space on a single disk is not enough" in verdict.detail


@pytest.mark.parametrize(
    ("steps", "missing", "at_least"),
    [pytest.param(100, 1, True, id="few steps"), pytest.param(FilterOptions().steps, 2, False, id="a whole budget")],
)
def test_missing_bytes_that_a_search_does_not_find_are_a_lower_bound(steps: int, missing: int, at_least: bool) -> None:
    """The disks hold 1Gi less than the volumes need; that 1Gi more does not suffice takes a search."""
    requested, extra = claims_of(*HARD)
    (verdict,) = explained(requested, node_of(*[1000] * 7, 999), extra, options=FilterOptions(steps=steps)).verdicts
    assert (verdict.reason, verdict.missing) == (Reason.NOT_TOGETHER, missing * GI)
    assert ("at least 1Gi more are needed on one disk" in verdict.detail) is at_least


@pytest.mark.parametrize(
    ("size", "listed", "unlisted", "reason"),
    [
        pytest.param(60, {}, replica("r", "other", "n1", size=50), "INSUFFICIENT_STORAGE", id="placed, not listed"),
        pytest.param(60, {}, replica("r", "other", "", size=50, diskID="n1-disk-1"), "ROOM", id="without a node"),
        pytest.param(50, {"r": 50}, replica("r", "other", "n1", size=50), "ROOM", id="listed: it counts once"),
    ],
)
def test_a_replica_counts_on_its_disk_from_the_moment_it_is_placed_there(
    size: float, listed: dict[str, float], unlisted: Object, reason: str
) -> None:
    """Longhorn's node status lags behind."""
    requested, extra = claims_of(size)
    assert reason_of_n1(longhorn_node("n1", {"disk-1": disk(100, listed=listed)}), requested, extra, unlisted) == reason


class TestProfileCache:
    """Cached results never change a decision."""

    def test_undecided_results_are_not_cached(self) -> None:
        requested, extra = claims_of(*HARD)
        current = state(node_of(*[1000] * 7, 1002), extra)
        reasons = [
            list(filter_nodes(as_pod(requested), ["n1"], current, FilterOptions(steps=steps)).reasons)
            for steps in (0, FilterOptions().steps)
        ]
        assert reasons == [[Reason.UNDECIDED], [Reason.ROOM]]

    @pytest.mark.parametrize("competes", [False, True], ids=["alone", "with competing pods"])
    def test_requests_of_equal_needs_go_on_with_undecided_nodes(self, competes: bool) -> None:
        requested, extra = claims_of(*HARD)
        names = [f"d{number:02}" for number in range(12)]
        nodes = {name: _node_filled_by(HARD, Random(name), name) for name in names}  # noqa: S311
        options = FilterOptions(packing=Packing.EXACT, steps=60_000)

        def undecided(candidates: list[str], current: ClusterState) -> set[str]:
            contenders = competing(current) if competes else NO_CONTENDERS
            decision = filter_nodes(as_pod(requested), candidates, current, options, contenders)
            pairs = zip(candidates, decision.reasons, strict=True)
            return {name for name, reason in pairs if reason is Reason.UNDECIDED}

        alone = {name for name in names if undecided([name], state(nodes[name], extra))}
        current = state(list(nodes.values()), extra)
        repeated = [undecided(names, current) for _ in range(8)]
        assert len(alone) < 3
        assert len(repeated[0]) > len(repeated[2]) > len(alone)
        assert repeated[-1] == alone

    def test_results_of_exact_packing_do_not_count_as_order_safe(self) -> None:
        requested, extra = claims_of(50, 100)
        current = state(node_of(100, 60), extra)
        reasons = [
            list(filter_nodes(as_pod(requested), ["n1"], current, FilterOptions(packing=packing)).reasons)
            for packing in (Packing.EXACT, Packing.ORDER_SAFE, Packing.EXACT)
        ]
        assert reasons == [[Reason.ROOM], [Reason.NEVER_SAFE], [Reason.ROOM]]


def test_no_volume_is_attached_to_a_longhorn_node_that_is_being_deleted() -> None:
    deleting = longhorn_node("n1", 200)
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    explanation = explained(pod("remote"), deleting, longhorn_node("n2"), bound("remote", 10, locality="disabled"))
    assert reasons(explanation) == {"n1": "NODE_NOT_READY", "n2": "ATTACHABLE"}


def test_a_volume_with_a_topology_requirement_stays_in_its_zones() -> None:
    nodes = [longhorn_node("n1", zone="east"), longhorn_node("n2", zone="west")]
    explanation = explained(pod("a"), nodes, bound("a", 10, topologyRequirement=[{"zone": "west"}]))
    assert reasons(explanation) == {"n1": "TOPOLOGY", "n2": "ROOM"}


@pytest.mark.parametrize(
    ("size", "filesystem", "reason"),
    [(16 * 1024, "ext4", "VOLUME_TOO_LARGE"), (16 * 1024 - 1, "ext4", "ROOM"), (16 * 1024, "xfs", "ROOM")],
)
def test_a_file_system_holds_files_up_to_its_limit(size: float, filesystem: str, reason: str) -> None:
    node = longhorn_node("n1", {"d": disk(20 * 1024, filesystem=filesystem)})
    assert reasons(explained(pod("a"), node, bound("a", size))) == {"n1": reason}


def refusals() -> list[Any]:
    """Refusals, the words that their detail must have, and the missing bytes."""
    requested, extra = claims_of(60, 60)
    return [
        pytest.param(node_of(100), requested, extra, ["120Gi", "disk disk-1", "100Gi"], 20 * GI, id="together"),
        pytest.param(node_of(70, 50), requested, extra, ["disk disk-2", "50Gi"], 10 * GI, id="least missing"),
        pytest.param(node_of(40), *claims_of(60), ["60Gi", "40Gi"], 20 * GI, id="alone"),
        pytest.param(node_of(50), requested, extra, ["60Gi", "120Gi"], 70 * GI, id="alone and together"),
        pytest.param(node_of(50, 50), requested, extra, ["60Gi", "120Gi"], 70 * GI, id="one disk for both"),
        pytest.param(
            longhorn_node("n1", {"d": disk(tags=["x"], available=10)}), *claims_of(1), ["disk d"], 0, id="low"
        ),
        pytest.param(
            node_of(50),
            pod("a"),
            [TestBackingImages.image(size=20), storage_class(backingImage="bi"), claim("a", 60)],
            ["60Gi", "50Gi"],
            30 * GI,
            id="with the copy of a backing image",
        ),
    ]


@pytest.mark.parametrize(("node", "requested", "extra", "words", "missing"), refusals())
def test_a_refusal_says_what_is_missing(
    node: Object, requested: Object, extra: list[Object], words: list[str], missing: int
) -> None:
    """The detail names disks and numbers, and `missing` is the least that would help on one disk."""
    (verdict,) = explained(requested, node, extra).verdicts
    assert all(word in verdict.detail for word in words), verdict.detail
    assert verdict.missing == missing


def test_a_pod_that_returns_home_counts_no_competitors() -> None:
    chosen = claim("c")
    chosen["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "n2"}
    objects = [*bound("a"), replica("r1", "vol-a", "n1"), claim("b"), chosen, storage_class(), pod("c", name="other")]
    current = state(longhorn_node("n1"), longhorn_node("n2"), objects)
    contenders = competing(current)
    new = filter_nodes(as_pod(pod("b")), ["n1", "n2"], current, FilterOptions(), contenders)
    returning = filter_nodes(as_pod(pod("a")), ["n1", "n2"], current, FilterOptions(), contenders)
    assert list(new.competitors) == ["n2"]
    assert [reason.name for reason in returning.reasons] == ["HOME", "HOME_ELSEWHERE"]
    assert list(returning.competitors) == []


def test_equal_volumes_that_any_node_may_hold_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod may have thousands of them."""
    calls: list[object] = []
    evaluate = ProfileCache.evaluate

    def counted_evaluate(self: ProfileCache, *args: Any, **options: Any) -> Any:
        calls.append(args)
        return evaluate(self, *args, **options)

    monkeypatch.setattr(ProfileCache, "evaluate", counted_evaluate)
    names = [f"c{number}" for number in range(20)]
    claims = [claim(name, 10, storage_class="remote") for name in names]
    classes = storage_class("remote", dataLocality="disabled")
    explained(pod(*names), longhorn_node("n1", 500), claims, classes)
    assert len(calls) == 2  # once for them, and once for the pod's node
