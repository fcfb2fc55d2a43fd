"""The harsh bursts: what their generator promises, and one burst without the placement guard."""

import random
from collections import Counter
from functools import cache

import pytest

from scheduler_core.decide.decision import Packing
from tests.e2e import harsh_burst
from tests.e2e.harsh_burst import MIN_FAILING_SHARE, STRICT, WITHOUT, HarshBurst
from tests.e2e.objects import LOCAL
from tests.e2e.rig import Rig

SEEDS = range(1, 6)


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
