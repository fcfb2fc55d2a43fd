"""Many pods, many nodes, and leaders that die in the middle.

Nothing is misplaced, stuck or left pending. Six and a half minutes on two cores, ten where others use them too; what bounds it is the
API server, which answers some hundred thousand calls. `LONGHORN_E2E_PODS` sets another number of pods (300 take two and a half
minutes), `LONGHORN_E2E_SEED` other ones.
"""

from __future__ import annotations

import os

import pytest

from tests.e2e import size

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("size"), pytest.mark.timeout(5400)]


def test_bursts_with_three_dead_leaders_misplace_nothing_and_leave_no_pod_behind(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Each wave depends on the one before, so a single run has all.

    `size.py` has the checks.
    """
    pods = int(os.environ.get("LONGHORN_E2E_PODS", "1000"))
    seed = int(os.environ.get("LONGHORN_E2E_SEED", "1"))
    outcome = size.run(tmp_path_factory.mktemp("size"), size.Size(pods=pods, seed=seed))
    print(outcome.text())
    assert outcome.problems == []
