"""A leader that ends in a burst hands its offers over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import hand_over
from tests.e2e.hand_over import UNEVEN
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("hand-over"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates, and nodes with space for exactly the burst's pods."""
    with Rig(tmp_path_factory.mktemp("hand-over"), candidates=2, config=RECOMMENDED_MANAGED) as started:
        UNEVEN.add_nodes(started)
        yield started


def test_a_terminated_leader_hands_its_open_offers_over(rig: Rig) -> None:
    """Decisions are still under way; its successor answers within 2 s and knows what was offered."""
    outcome = hand_over.run(rig, UNEVEN, lambda rig: [hand_over.terminate_leader(rig, offers=30)])
    print(outcome)
    assert (outcome.result.misplaced, outcome.result.mended, outcome.result.stuck) == ([], 0, [])
    assert outcome.result.per_node == dict(UNEVEN.nodes)
    assert outcome.two_leaders == 0
    assert outcome.longest_silence < 2
