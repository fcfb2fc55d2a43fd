"""Order safety: Longhorn places volumes one by one, in any order, on a disk of its own choice."""

import pytest

from scheduler_core.decide.decision import FilterOptions, Packing
from tests.builders import (
    Object,
    bound,
    claim,
    disk,
    explained,
    fitting,
    longhorn_node,
    pod,
    reasons,
    replica,
    storage_class,
)


def node(name: str, *sizes: float) -> Object:
    """A node with a disk of each size in Gi."""
    return longhorn_node(name, {f"disk-{index}": disk(size) for index, size in enumerate(sizes, start=1)})


CLAIMS = [storage_class(), claim("small", 50), claim("large", 100)]
REQUESTED = pod("small", "large")
EXACT = FilterOptions(packing=Packing.EXACT)
ORDER_SAFE = FilterOptions(packing=Packing.ORDER_SAFE)


def test_a_node_may_fit_though_an_unlucky_order_fails() -> None:
    """Disks of 100Gi and 60Gi: if 50Gi take the large disk first, none is left for 100Gi."""
    (verdict,) = explained(REQUESTED, node("n1", 100, 60), CLAIMS).verdicts
    assert (verdict.fits, verdict.order_safe) == (True, False)
    assert verdict.plan == {"large": "n1-disk-1", "small": "n1-disk-2"}
    assert verdict.counter_example == (("small", "n1-disk-1"), ("large", ""))
    assert "small on disk disk-1, then no disk is left for large" in verdict.detail


def test_packing_auto_returns_only_order_safe_nodes_if_there_are_any() -> None:
    explanation = explained(REQUESTED, node("n1", 100, 60), node("n2", 150), CLAIMS)
    assert reasons(explanation) == {"n1": "ORDER_UNSAFE", "n2": "ROOM"}
    assert [verdict.order_safe for verdict in explanation.verdicts] == [False, True]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(FilterOptions(), {"n1": "ROOM"}, id="auto: returned"),
        pytest.param(ORDER_SAFE, {"n1": "NEVER_SAFE"}, id="order-safe: refused"),
        pytest.param(EXACT, {"n1": "ROOM"}, id="exact: not examined"),
    ],
)
def test_the_packing_option_decides_where_no_node_is_order_safe(
    options: FilterOptions, expected: dict[str, str]
) -> None:
    assert reasons(explained(REQUESTED, node("n1", 100, 60), CLAIMS, options=options)) == expected


def test_exact_packing_returns_order_unsafe_nodes_too() -> None:
    assert fitting(explained(REQUESTED, node("n1", 100, 60), node("n2", 150), CLAIMS, options=EXACT)) == ["n1", "n2"]


def test_volumes_that_are_order_safe_alone_need_not_be_together() -> None:
    """Two pods, of 100Gi and of 50Gi, are each order-safe on these disks."""
    disks = node("n1", 100, 60)
    alone = [explained(pod(name), disks, CLAIMS).verdicts[0].order_safe for name in ("small", "large")]
    assert (alone, explained(REQUESTED, disks, CLAIMS).verdicts[0].order_safe) == ([True, True], False)


@pytest.mark.parametrize(
    ("disks", "sizes", "safe"),
    [
        pytest.param((100,), (50, 50), True, id="one disk, exactly full"),
        pytest.param((100, 100), (100, 100), True, id="equal sizes on equal disks"),
        pytest.param((100, 100, 100, 100), (100, 100, 100, 100), True, id="one disk each"),
        pytest.param((10, 10), (10, 5, 5), False, id="two small volumes on two disks block the large one"),
        pytest.param((20, 10), (10, 10, 10), True, id="equal volumes never block each other"),
        pytest.param((14, 10), (10, 5, 5), False, id="enough space, not in every order"),
        pytest.param((30, 30), (10, 10, 10, 10), True, id="much space"),
    ],
)
def test_a_node_is_order_safe_if_every_order_and_choice_succeeds(
    disks: tuple[float, ...], sizes: tuple[float, ...], safe: bool
) -> None:
    names = [f"c{index}" for index in range(len(sizes))]
    claims = [claim(name, size) for name, size in zip(names, sizes, strict=True)]
    (verdict,) = explained(pod(*names), node("n1", *disks), storage_class(), claims).verdicts
    assert (verdict.fits, verdict.order_safe) == (True, safe)


def test_a_rebuild_leaves_less_available_space_for_the_next() -> None:
    """Each volume passes the actual-space rule alone, but maybe not after the other's 30Gi were written."""
    one_disk = longhorn_node("n1", {"a": disk(400, available=150)})
    two_disks = longhorn_node("n1", {"a": disk(400, available=150), "b": disk(400, available=150)})
    volumes = [bound("x", 50, actual=30), bound("y", 50, actual=30)]
    alone, together, apart = (
        explained(requested, raw_node, *volumes).verdicts[0]
        for requested, raw_node in ((pod("x"), one_disk), (pod("x", "y"), one_disk), (pod("x", "y"), two_disks))
    )
    assert [verdict.fits for verdict in (alone, together, apart)] == [True, True, True]
    assert [verdict.order_safe for verdict in (alone, together, apart)] == [True, False, True]


def test_a_kept_replica_takes_no_part_in_order_safety() -> None:
    kept_replica = replica("r", "vol-a", "n1", disk="disk-2", size=50)
    disks = longhorn_node("n1", {"disk-1": disk(100), "disk-2": disk(60, listed={"r": 50})})
    (verdict,) = explained(pod("a", "large"), disks, bound("a", 50), CLAIMS, kept_replica, options=ORDER_SAFE).verdicts
    assert (verdict.fits, verdict.order_safe, verdict.plan) == (True, True, {"large": "n1-disk-1"})


def test_nodes_where_nothing_is_placed_are_order_safe() -> None:
    home = explained(pod("a"), node("n1", 10), bound("a"), replica("r", "vol-a", "n1"), options=ORDER_SAFE)
    without_volumes = explained(pod(), node("n1", 10), options=ORDER_SAFE)
    remote = explained(pod("b"), node("n1", 100), bound("b", 10, locality="disabled"), options=ORDER_SAFE)
    assert [entry.verdicts[0].order_safe for entry in (home, without_volumes, remote)] == [True, True, True]


def test_a_missing_backing_image_is_subtracted_from_every_disk() -> None:
    """With space for copies on all disks the node is order-safe; otherwise that is not proven."""
    image = {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "BackingImage",
        "metadata": {"name": "bi"},
        "status": {"realSize": 20 * 1024**3},
    }
    objects = [storage_class(backingImage="bi"), claim("a", 50), claim("b", 30)]
    spacious = explained(pod("a", "b"), node("n1", 100, 100), image, objects).verdicts[0]
    tight = explained(pod("a", "b"), node("n1", 90, 60), image, objects).verdicts[0]
    assert (spacious.fits, spacious.order_safe) == (True, True)
    assert (tight.fits, tight.order_safe) == (True, False)
    assert "not proven" in tight.detail
