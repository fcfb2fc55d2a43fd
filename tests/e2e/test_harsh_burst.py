"""The harsh bursts: what their generator promises, and one burst without the placement guard."""

import random
from collections import Counter
from functools import cache

import pytest

from scheduler_core.decide.decision import Packing
from scheduler_core.decide.extender_settings import GuardMode
from scheduler_core.values import replace
from tests.e2e import harsh_burst
from tests.e2e.bursts import Outcome
from tests.e2e.harsh_burst import ENFORCE, MIN_FAILING_SHARE, STRICT, WITHOUT, HarshBurst, HarshNode
from tests.e2e.objects import LOCAL
from tests.e2e.rig import Rig

SEEDS = range(1, 6)
_FINE = Outcome(seed=1, pods=8, bound=8, misplaced=0, mended=0, disks=0, overbooked=0, stuck=0, seconds=12.0)
_WRONG = replace(_FINE, misplaced=1, mended=1, disks=1, overbooked=15)
_WAITING = replace(_FINE, bound=7)


burst_of = cache(HarshBurst.of)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_claims_of_a_burst_fill_its_disks_exactly_and_most_orders_fail(seed: int) -> None:
    """Eight pods of three or four claims; half of the claims are strict-local. Other orders are drawn here than by the generator."""
    burst = burst_of(seed)
    pods = [pod for node in burst.nodes.values() for pod in node.pods]
    classes = Counter(volume.storage_class for _, volumes in burst.volumes for volume in volumes)
    assert (len(pods), {len(pod) for pod in pods}) == (8, {3, 4})
    assert classes[LOCAL] - classes[STRICT] in (0, 1)
    chance = random.Random(seed + 1000)  # noqa: S311 # repeatable, not secret
    for node in burst.nodes.values():
        assert sum(node.disks) == sum(map(sum, node.pods))
        assert _packs(sorted((size for pod in node.pods for size in pod), reverse=True), list(node.disks))
        assert node.failing_share(chance) >= MIN_FAILING_SHARE - 0.05


def _packs(sizes: list[int], free: list[int]) -> bool:
    if not sizes:
        return True
    return any(
        _packs(sizes[1:], [*free[:index], room - sizes[0], *free[index + 1 :]])
        for index, room in enumerate(free)
        if room >= sizes[0]
    )


def test_share_of_failing_orders_is_that_of_longhorn_s_choices() -> None:
    """None fails with a claim for each disk; with smaller claims, some end on the wrong disk."""
    chance = random.Random(1)  # noqa: S311 # repeatable, not secret
    assert HarshNode((60, 60), ((60,), (60,))).failing_share(chance) == 0
    assert HarshNode((60, 60), ((60,), (30, 15), (15,))).failing_share(chance) > 0


def test_seed_gives_the_same_burst_again() -> None:
    assert HarshBurst.of(1) == HarshBurst.of(1) != HarshBurst.of(2)


@pytest.mark.parametrize(
    ("outcomes", "count"),
    [
        pytest.param({WITHOUT: [_FINE, _WRONG]}, 0, id="wrong without the guard"),
        pytest.param({WITHOUT: [_FINE]}, 1, id="nothing wrong without the guard"),
        pytest.param({WITHOUT: [_WRONG], ENFORCE: [_FINE]}, 0, id="fine with the guard"),
        pytest.param({WITHOUT: [_WRONG], ENFORCE: [_FINE, _WRONG]}, 1, id="wrong with the guard"),
        pytest.param({WITHOUT: [_WRONG], ENFORCE: [_WAITING]}, 1, id="a pod waits with the guard"),
    ],
)
def test_report_fails_if_the_guard_makes_no_difference(outcomes: dict[GuardMode, list[Outcome]], count: int) -> None:
    """Without the guard something has to go wrong, and with it nothing."""
    assert len(harsh_burst.failures(outcomes)) == count


@pytest.mark.campaign
@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_a_harsh_burst_overbooks_disks_without_the_placement_guard(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A node with an exact packing is the right one, and Longhorn does not find the packing."""
    folder = tmp_path_factory.mktemp("harsh")
    arguments = ("--packing", Packing.EXACT)
    with Rig(folder, more_arguments=arguments, placement_guard=WITHOUT) as rig:
        outcome = harsh_burst.run_once(rig, seed=1)
    assert outcome.overbooked > 0
