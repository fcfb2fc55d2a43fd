"""A short burst with more pods than room, on unequal nodes, with kube-scheduler's default client limits.

`python -m tests.e2e --section backlog` has the long ones, in which the writes are more than a minute behind.
"""

import pytest

from tests.e2e import backlog


@pytest.mark.campaign
@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_a_burst_larger_than_the_room_fills_unequal_nodes_exactly(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No replica was ever on another node than its pod, and no room is left while pods wait."""
    outcome = backlog.run(tmp_path_factory.mktemp("backlog"), backlog.Backlog(pods=100, quiet=12))
    print(outcome.text())
    assert outcome.problems == []
