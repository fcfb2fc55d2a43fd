"""Order safety: Longhorn places volumes one by one, in any order, on a disk of its own choice. Stale safety: it does so on outdated status,
so that several may meet on one disk.
"""

import pytest

from scheduler_core.decide.decision import Decision, FilterOptions, Packing
from scheduler_core.decide.explain import explain_nodes
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.model.verdict import Meeting, Reason
from scheduler_core.offers.ledger import Ledger
from tests.builders import (
    GI,
    Object,
    as_pod,
    bound,
    claim,
    competing,
    disk,
    explained,
    fitting,
    longhorn_node,
    pod,
    reasons,
    replica,
    state,
    storage_class,
)
from tests.worlds.offers import with_offer

STALE_SAFE = FilterOptions(packing=Packing.STALE_SAFE)
CLAIMS = [storage_class(), claim("x", 60), claim("y", 60)]
REQUESTED = pod("x", "y")


def node(name: str, *sizes: float) -> Object:
    """A node with a disk of each size in Gi."""
    return longhorn_node(name, {f"disk-{index}": disk(size) for index, size in enumerate(sizes, start=1)})


UNEVEN = [storage_class(), claim("small", 50), claim("large", 100)]


def test_a_node_may_fit_though_an_unlucky_order_fails() -> None:
    """Disks of 100Gi and 60Gi: if 50Gi take the large disk first, none is left for 100Gi. Each volume alone is safe."""
    disks = node("n1", 100, 60)
    (verdict,) = explained(pod("small", "large"), disks, UNEVEN).verdicts
    assert (verdict.fits, verdict.order_safe) == (True, False)
    assert verdict.plan == {"large": "n1-disk-1", "small": "n1-disk-2"}
    assert verdict.counter_example == (("small", "n1-disk-1"), ("large", ""))
    assert "small on disk disk-1, then no disk is left for large" in verdict.detail
    assert all(explained(pod(name), disks, UNEVEN).verdicts[0].order_safe for name in ("small", "large"))


@pytest.mark.parametrize(
    ("claims", "disks", "order_safe", "stale_safe"),
    [
        pytest.param("x", "a", True, True, id="alone"),
        pytest.param("xy", "a", False, False, id="together"),
        pytest.param("xy", "ab", True, False, id="apart, or together on outdated status"),
    ],
)
def test_a_rebuild_leaves_less_available_space_for_the_next(
    claims: str, disks: str, order_safe: bool, stale_safe: bool
) -> None:
    """Each volume passes the actual-space rule alone, but maybe not after the other's 30Gi were written."""
    tight = longhorn_node("n1", {name: disk(400, available=150) for name in disks})
    volumes = [bound("x", 50, actual=30), bound("y", 50, actual=30)]
    (verdict,) = explained(pod(*claims), tight, *volumes).verdicts
    assert (verdict.fits, verdict.order_safe, verdict.stale_safe) == (True, order_safe, stale_safe)
    assert verdict.meeting == (None if stale_safe else Meeting("n1-a", ("vol-x", "vol-y")))


@pytest.mark.parametrize(
    ("sizes", "disks", "order_safe", "stale_safe"),
    [
        ((60, 60), (139, 139), None, False),
        ((60, 60), (140, 140), True, True),
        ((50, 30), (100, 100), True, True),
        ((50, 30), (90, 60), False, False),
    ],
)
def test_a_missing_backing_image_takes_its_space_once_on_every_disk(
    sizes: tuple[float, ...], disks: tuple[float, ...], order_safe: bool | None, stale_safe: bool
) -> None:
    """The image has 20Gi. With space for copies on all disks the node is order-safe; otherwise that is not proven."""
    image = {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "BackingImage",
        "metadata": {"name": "bi"},
        "status": {"realSize": 20 * GI},
    }
    claims = [claim(name, size) for name, size in zip("xy", sizes, strict=True)]
    (verdict,) = explained(REQUESTED, node("n1", *disks), storage_class(backingImage="bi"), image, claims).verdicts
    assert (verdict.fits, verdict.stale_safe) == (True, stale_safe)
    assert order_safe in (verdict.order_safe, None)
    assert ("not proven" in verdict.detail) is not verdict.order_safe


def test_a_kept_replica_takes_no_part_in_order_safety() -> None:
    kept_replica = replica("r", "vol-a", "n1", disk="disk-2", size=50)
    disks = longhorn_node("n1", {"disk-1": disk(100), "disk-2": disk(60, listed={"r": 50})})
    options = FilterOptions(packing=Packing.ORDER_SAFE)
    (verdict,) = explained(pod("a", "large"), disks, bound("a", 50), UNEVEN, kept_replica, options=options).verdicts
    assert (verdict.fits, verdict.order_safe, verdict.plan) == (True, True, {"large": "n1-disk-1"})


@pytest.mark.parametrize("packing", [Packing.ORDER_SAFE, Packing.STALE_SAFE])
@pytest.mark.parametrize(
    ("requested", "objects"),
    [
        pytest.param(pod("a"), [*bound("a"), replica("r", "vol-a", "n1")], id="home"),
        pytest.param(pod(), [], id="without volumes"),
        pytest.param(pod("b"), bound("b", 10, locality="disabled"), id="remote"),
    ],
)
def test_nodes_where_nothing_is_placed_are_safe(requested: Object, objects: list[Object], packing: Packing) -> None:
    (verdict,) = explained(requested, node("n1", 100), objects, options=FilterOptions(packing=packing)).verdicts
    assert (verdict.fits, verdict.order_safe, verdict.stale_safe) == (True, True, True)


def test_volumes_that_fit_in_every_order_may_still_meet_on_one_disk() -> None:
    """Disks of 100Gi each: both volumes of 60Gi find room on either, by a status that lacks the other."""
    (verdict,) = explained(REQUESTED, node("n1", 100, 100), CLAIMS).verdicts
    assert (verdict.fits, verdict.order_safe, verdict.stale_safe) == (True, True, False)
    assert verdict.meeting == Meeting("n1-disk-1", ("x", "y"))
    assert verdict.counter_example == ()
    assert "on outdated status all of these may go to disk disk-1: x, y" in verdict.detail


@pytest.mark.parametrize(
    ("packing", "count", "expected"),
    [
        pytest.param(Packing.AUTO, 1, ["n1"], id="auto: if no other fits, any"),
        pytest.param(Packing.AUTO, 2, ["n2"], id="auto: rather order-safe ones"),
        pytest.param(Packing.AUTO, 3, ["n3"], id="auto: rather stale-safe ones"),
        pytest.param(Packing.STALE_SAFE, 3, ["n3"], id="stale-safe"),
        pytest.param(Packing.ORDER_SAFE, 3, ["n2", "n3"], id="order-safe: stale-safe ones included"),
        pytest.param(Packing.EXACT, 3, ["n1", "n2", "n3"], id="exact"),
    ],
)
def test_the_packing_modes_offer_what_they_are_named_after(packing: Packing, count: int, expected: list[str]) -> None:
    nodes = [node("n1", 100, 60), node("n2", 149, 149), node("n3", 150)][:count]
    explanation = explained(pod("small", "large"), nodes, UNEVEN, options=FilterOptions(packing=packing))
    assert fitting(explanation) == expected
    if packing is Packing.AUTO:
        refused = {"n1": "ORDER_UNSAFE", "n2": "STALE_UNSAFE", "n3": ""}
        assert reasons(explanation) == {f"n{n}": refused[f"n{n}"] for n in range(1, count)} | {f"n{count}": "ROOM"}


@pytest.mark.parametrize(
    ("disks", "sizes", "order_safe", "stale_safe"),
    [
        pytest.param((120,), (60, 60), True, True, id="one disk, exactly full"),
        pytest.param((120, 59), (60, 60), True, True, id="the other disk takes none"),
        pytest.param((120, 60), (60, 60), True, False, id="the other disk takes either"),
        pytest.param((120, 120), (60, 60), True, True, id="each disk takes both"),
        pytest.param((100, 40), (60, 40), True, True, id="the small disk takes the small volume only"),
        pytest.param(
            (120, 40), (60, 40, 20), True, False, id="the small disk takes the two small volumes, one at a time"
        ),
        pytest.param((10, 10), (10, 5, 5), False, False, id="two small volumes on two disks block the large one"),
        pytest.param((20, 10), (10, 10, 10), True, False, id="equal volumes never block each other"),
    ],
)
def test_every_order_succeeds_and_a_disk_takes_all_volumes_that_it_could_take_alone(
    disks: tuple[float, ...], sizes: tuple[float, ...], order_safe: bool, stale_safe: bool
) -> None:
    names = [f"c{index}" for index in range(len(sizes))]
    claims = [claim(name, size) for name, size in zip(names, sizes, strict=True)]
    (verdict,) = explained(pod(*names), node("n1", *disks), storage_class(), claims).verdicts
    assert (verdict.fits, verdict.order_safe, verdict.stale_safe) == (True, order_safe, stale_safe)
    (verdict,) = explained(pod(*names), node("n1", *disks), storage_class(), claims, options=STALE_SAFE).verdicts
    assert verdict.fits is stale_safe


def test_a_placement_that_the_status_does_not_list_leaves_the_disk_open_to_longhorn() -> None:
    """A replica of 60Gi is placed and not listed: by its status disk-1 still takes x, in truth only disk-2 does."""
    in_flight = replica("r", "vol-other", "n1", disk="disk-1", size=60)
    objects = [node("n1", 100, 100), in_flight, *bound("other", 60)]
    (verdict,) = explained(pod("x"), objects, CLAIMS).verdicts
    assert (verdict.fits, verdict.order_safe, verdict.stale_safe) == (True, True, False)
    assert verdict.meeting == Meeting("n1-disk-1", ("x",))
    # Once the replica is listed, x fits on disk-2 alone, so the node is not refused for ever.
    (verdict,) = explained(pod("x"), objects, CLAIMS, options=STALE_SAFE).verdicts
    assert verdict.reason is Reason.STALE_UNSAFE
    listed = longhorn_node("n1", {"disk-1": disk(100, listed={"r": 60}), "disk-2": disk(100)})
    (verdict,) = explained(pod("x"), listed, in_flight, bound("other", 60), CLAIMS).verdicts
    assert verdict.stale_safe


def decided(objects: list[Object], ledger: Ledger | None = None, options: FilterOptions = STALE_SAFE) -> Decision:
    current = state(objects)
    return filter_nodes(as_pod(pod("x")), ["n1"], current, options, competing(current, ledger or Ledger()))


@pytest.mark.parametrize(("size", "reason"), [(100, Reason.STALE_UNSAFE), (120, Reason.ROOM)])
def test_the_volumes_of_other_pods_meet_those_of_the_pod(size: int, reason: Reason) -> None:
    other = [claim("other", 60), pod("other", name="other", uid="o", node="n1")]
    assert list(decided([node("n1", size, size), *CLAIMS, *other]).reasons) == [reason]


def test_a_node_that_only_an_offer_makes_unsafe_is_waited_for() -> None:
    objects = [node("n1", 100, 100), *CLAIMS, claim("other", 60), pod("other", name="other", uid="o")]
    ledger = with_offer(Ledger(), state(objects).view, "other", ["n1"], 0.0)
    assert list(decided(objects, ledger).reasons) == [Reason.WAITING]
    order_safe = FilterOptions(packing=Packing.ORDER_SAFE)
    decision = decided(objects, ledger, order_safe)
    assert (list(decision.reasons), decision.unsafe) == ([Reason.ROOM], {"n1": Reason.STALE_UNSAFE})


def created(raw: Object, day: int) -> Object:
    return {**raw, "metadata": {**raw["metadata"], "creationTimestamp": f"2026-01-{day:02}T00:00:00Z"}}


def test_a_hopeless_volume_may_still_meet_the_pods_volume() -> None:
    def objects(hopeless_size: int) -> list[Object]:
        return [
            node("n1", 100, 20),
            storage_class(),
            claim("x", 5),
            created(claim("older", 60), 1),
            created(claim("hopeless", hopeless_size), 2),
            pod("older", name="p", uid="p", node="n1"),
            pod("hopeless", name="q", uid="q", node="n1"),
        ]

    assert list(decided(objects(101)).reasons) == [Reason.ROOM]
    assert list(decided(objects(50)).reasons) == [Reason.STALE_UNSAFE]
    current = state(objects(50))
    (verdict,) = explain_nodes(as_pod(pod("x")), ["n1"], current, STALE_SAFE, competing(current)).verdicts
    assert verdict.meeting == Meeting("n1-disk-1", ("older", "hopeless", "x"))


def test_a_node_with_a_replica_of_the_pod_is_examined_too() -> None:
    kept = replica("r", "vol-a", "n1", disk="disk-1", size=10)
    disks = longhorn_node("n1", {"disk-1": disk(110, listed={"r": 10}), "disk-2": disk(100)})
    (verdict,) = explained(pod("a", "x", "y"), disks, bound("a", 10), kept, CLAIMS, options=STALE_SAFE).verdicts
    assert (verdict.reason, verdict.order_safe, verdict.stale_safe) == (Reason.NEVER_SAFE, True, False)


def test_waiting_for_ever_is_said_with_what_would_end_it() -> None:
    """Goal 2 of the proposal: four claims of 100Gi, nodes of one to four disks of 100Gi, without the guard."""
    names = ["a", "b", "c", "d"]
    nodes = [node(f"n{count}", *[100] * count) for count in (1, 2, 3, 4)]
    claims = [claim(name, 100) for name in names]
    explanation = explained(pod(*names), nodes, storage_class(), claims, options=STALE_SAFE)
    assert reasons(explanation) == {
        "n1": "NOT_TOGETHER",
        "n2": "NOT_TOGETHER",
        "n3": "NOT_TOGETHER",
        "n4": "NEVER_SAFE",
    }
    verdict = explanation.verdicts[3]
    assert not verdict.fits
    for words in ("placement guard", "add space", "auto"):
        assert words in verdict.reason.text
    assert (
        "--packing stale-safe never offers the node to these volumes; what would end that: --packing auto, best with "
        "the placement guard, which keeps Longhorn to the plan, or 1200Gi more space: 300Gi on disk disk-1, "
        "300Gi on disk disk-2, 300Gi on disk disk-3"
    ) in verdict.detail
    larger = explained(pod(*names), node("n4", 400, 400, 400, 400), storage_class(), claims, options=STALE_SAFE)
    assert fitting(larger) == ["n4"]
    assert fitting(explained(pod(*names), nodes, storage_class(), claims)) == ["n4"]


@pytest.mark.parametrize(
    ("packing", "disks", "expected"),
    [
        pytest.param(Packing.ORDER_SAFE, (100, 60), Reason.NEVER_SAFE, id="an order fails"),
        pytest.param(Packing.ORDER_SAFE, (149, 149), Reason.ROOM, id="only outdated status fails"),
        pytest.param(Packing.STALE_SAFE, (149, 149), Reason.NEVER_SAFE, id="outdated status fails"),
        pytest.param(Packing.AUTO, (100, 60), Reason.ROOM, id="auto offers what there is"),
    ],
)
def test_a_mode_says_never_of_what_it_always_refuses(
    packing: Packing, disks: tuple[float, ...], expected: Reason
) -> None:
    """Volumes of 50 and 100Gi."""
    options = FilterOptions(packing=packing)
    (verdict,) = explained(pod("small", "large"), node("n1", *disks), UNEVEN, options=options).verdicts
    assert verdict.reason is expected
