"""Many pods, many nodes, and leaders that die in the middle.

Nothing is misplaced, nothing is stuck, and no pod is left pending that has a safe node. The report has 1,000 pods (`make e2e-report`), which
take eight minutes on two cores; the API server takes a third of the processor time. `LONGHORN_E2E_PODS` sets another number of pods,
`SOAK_SEED` draws others.
"""

import os

import pytest

from tests.e2e import size

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(5400)]


@pytest.mark.campaign
def test_bursts_with_three_dead_leaders_misplace_nothing_and_leave_no_pod_behind(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Each wave depends on the one before, so a single run has all. `size.py` has the checks."""
    pods = int(os.environ.get("LONGHORN_E2E_PODS", "200"))
    seed = int(os.environ.get("SOAK_SEED", "1"))
    outcome = size.run(tmp_path_factory.mktemp("size"), size.Size(pods=pods, seed=seed))
    print(outcome.text())
    assert outcome.problems == []
