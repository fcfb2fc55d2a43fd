"""Order safety: Longhorn places volumes one by one, in an order nobody controls, on a disk of its own choice."""

from __future__ import annotations

import pytest

from scheduler_core.extender.filter import Options, Packing
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
ASKED = pod("small", "large")
EXACT = Options(packing=Packing.EXACT)
ORDER_SAFE = Options(packing=Packing.ORDER_SAFE)


def test_a_packing_may_exist_that_an_unlucky_order_misses() -> None:
    """Disks of 100Gi and 60Gi, claims of 50Gi and 100Gi: 50 first, on the large disk, leaves none for 100."""
    (verdict,) = explained(ASKED, node("n1", 100, 60), CLAIMS).verdicts
    assert (verdict.fits, verdict.order_safe) == (True, False)
    assert verdict.plan == {"large": "n1-disk-1", "small": "n1-disk-2"}
    assert verdict.counter_example == (("small", "n1-disk-1"), ("large", ""))
    assert "small on disk disk-1, then no disk is left for large" in verdict.detail


def test_with_an_order_safe_node_beside_it_only_that_one_is_returned() -> None:
    """packing: auto prefers nodes where nothing can go wrong."""
    explanation = explained(ASKED, node("n1", 100, 60), node("n2", 150), CLAIMS)
    assert reasons(explanation) == {"n1": "ORDER_UNSAFE", "n2": "ROOM"}
    assert [verdict.order_safe for verdict in explanation.verdicts] == [False, True]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(Options(), {"n1": "ROOM"}, id="auto: better than nothing"),
        pytest.param(ORDER_SAFE, {"n1": "ORDER_UNSAFE"}, id="order-safe: refused"),
        pytest.param(EXACT, {"n1": "ROOM"}, id="exact: not asked"),
    ],
)
def test_what_happens_where_no_node_is_safe_is_configured(options: Options, expected: dict[str, str]) -> None:
    """`packing` decides."""
    assert reasons(explained(ASKED, node("n1", 100, 60), CLAIMS, options=options)) == expected


def test_exact_packing_offers_unsafe_nodes_beside_safe_ones() -> None:
    """As Longhorn's proposal has it."""
    assert fitting(explained(ASKED, node("n1", 100, 60), node("n2", 150), CLAIMS, options=EXACT)) == ["n1", "n2"]


def test_safe_alone_is_not_safe_together() -> None:
    """Two pods, of 100Gi and of 50Gi, each safe on these disks; their volumes together are not."""
    disks = node("n1", 100, 60)
    alone = [explained(pod(name), disks, CLAIMS).verdicts[0].order_safe for name in ("small", "large")]
    assert (alone, explained(ASKED, disks, CLAIMS).verdicts[0].order_safe) == ([True, True], False)


@pytest.mark.parametrize(
    ("disks", "sizes", "safe"),
    [
        pytest.param((100,), (50, 50), True, id="one disk, exactly full"),
        pytest.param((100, 100), (100, 100), True, id="equal sizes on equal disks"),
        pytest.param((100, 100, 100, 100), (100, 100, 100, 100), True, id="one disk each"),
        pytest.param((10, 10), (10, 5, 5), False, id="two small ones on two disks shut out the large one"),
        pytest.param((20, 10), (10, 10, 10), True, id="equal volumes never block each other"),
        pytest.param((14, 10), (10, 5, 5), False, id="room in all, not in every order"),
        pytest.param((30, 30), (10, 10, 10, 10), True, id="much room"),
    ],
)
def test_a_node_is_safe_when_every_order_and_choice_succeeds(
    disks: tuple[float, ...], sizes: tuple[float, ...], safe: bool
) -> None:
    """Sizes in Gi."""
    names = [f"c{index}" for index in range(len(sizes))]
    made = [claim(name, size) for name, size in zip(names, sizes, strict=True)]
    (verdict,) = explained(pod(*names), node("n1", *disks), storage_class(), made).verdicts
    assert (verdict.fits, verdict.order_safe) == (True, safe)


def test_what_an_earlier_rebuild_writes_is_gone_for_the_later() -> None:
    """Each volume passes the actual-space rule alone; after the other's 30Gi of data have arrived it may not."""
    one = longhorn_node("n1", {"a": disk(400, available=150)})
    two = longhorn_node("n1", {"a": disk(400, available=150), "b": disk(400, available=150)})
    volumes = [bound("x", 50, actual=30), bound("y", 50, actual=30)]
    alone, together, apart = (
        explained(asked, made, *volumes).verdicts[0]
        for asked, made in ((pod("x"), one), (pod("x", "y"), one), (pod("x", "y"), two))
    )
    assert [verdict.fits for verdict in (alone, together, apart)] == [True, True, True]
    assert [verdict.order_safe for verdict in (alone, together, apart)] == [True, False, True]


def test_a_kept_replica_makes_a_node_safer() -> None:
    """Only what is still to be placed can go wrong."""
    kept = replica("r", "vol-a", "n1", disk="disk-2", size=50)
    disks = longhorn_node("n1", {"disk-1": disk(100), "disk-2": disk(60, listed={"r": 50})})
    (verdict,) = explained(pod("a", "large"), disks, bound("a", 50), CLAIMS, kept, options=ORDER_SAFE).verdicts
    assert (verdict.fits, verdict.order_safe, verdict.plan) == (True, True, {"large": "n1-disk-1"})


def test_nodes_that_need_no_new_space_are_safe() -> None:
    """There is nothing to place: a home, a pod without volumes, volumes that may be anywhere."""
    home = explained(pod("a"), node("n1", 10), bound("a"), replica("r", "vol-a", "n1"), options=ORDER_SAFE)
    none = explained(pod(), node("n1", 10), options=ORDER_SAFE)
    far = explained(pod("b"), node("n1", 100), bound("b", 10, locality="disabled"), options=ORDER_SAFE)
    assert [entry.verdicts[0].order_safe for entry in (home, none, far)] == [True, True, True]


def test_a_missing_backing_image_is_taken_off_before_safety_is_claimed() -> None:
    """With room for copies everywhere it is safe; where that is too tight nothing is claimed."""
    image = {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "BackingImage",
        "metadata": {"name": "bi"},
        "status": {"realSize": 20 * 1024**3},
    }
    made = [storage_class(backingImage="bi"), claim("a", 50), claim("b", 30)]
    roomy = explained(pod("a", "b"), node("n1", 100, 100), image, made).verdicts[0]
    tight = explained(pod("a", "b"), node("n1", 90, 60), image, made).verdicts[0]
    assert (roomy.fits, roomy.order_safe) == (True, True)
    assert (tight.fits, tight.order_safe) == (True, False)
    assert "not proven" in tight.detail
