"""A leader that ends in a burst hands its offers over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import hand_over
from tests.e2e.hand_over import MAX_SILENCE, SHORT
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("hand-over"), pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def restore(rig: Rig) -> Iterator[None]:
    """Removes the pods after each test, and starts the missing candidate."""
    yield
    hand_over.remove(rig)
    for number in (1, 2):
        if f"extender-{number}" not in rig.candidates:
            rig.start_candidate(f"extender-{number}")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates, and nodes with space for exactly the burst's pods."""
    with Rig(tmp_path_factory.mktemp("hand-over"), candidates=2, config=RECOMMENDED_MANAGED) as started:
        SHORT.add_nodes(started)
        yield started


def test_a_terminated_leader_hands_its_open_offers_over(rig: Rig) -> None:
    """Decisions are still under way; its successor answers within 2 s and knows what was offered."""
    outcome = hand_over.run(rig, SHORT, lambda rig: hand_over.terminate_leader(rig, offers=37))
    assert outcome.wrong == 0, outcome
    assert outcome.longest_silence < MAX_SILENCE


def test_a_killed_leaders_open_offers_are_known(rig: Rig) -> None:
    """They were recorded as they were made; those of the last moment are visible before the Lease runs out."""
    outcome = hand_over.run(rig, SHORT, lambda rig: hand_over.kill_leader(rig, offers=37))
    assert outcome.wrong == 0, outcome
