"""The policy today.json lets pods run on exactly the nodes that a real kube-scheduler does."""

from pathlib import Path

import pytest

from tests.e2e import todays_rules

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]


def test_random_pods_fit_on_the_nodes_that_kube_scheduler_finds(tmp_path: Path) -> None:
    """Taints, affinity, spread, ports and all resources, mixed at random."""
    comparison = todays_rules.run(tmp_path, range(1, 100), seconds=20)
    assert comparison.wrong == []
    assert comparison.pods >= 50
    assert 0 < comparison.fitting < comparison.pods
    assert comparison.refused < comparison.pods / 10
