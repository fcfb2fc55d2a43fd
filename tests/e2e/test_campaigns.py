"""The campaigns with bursts: more pods than room, a burst that exactly fits, and many pods while leaders die.

`python -m tests.e2e` has longer ones. `LONGHORN_E2E_PODS` sets another number of pods of the last one, `SOAK_SEED` draws others.
"""

import os

import pytest

from tests.e2e import backlog, size
from tests.e2e.bursts import BURST, EXACT, Burst
from tests.e2e.journal import Journal
from tests.e2e.objects import name_of
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.campaign]


@pytest.mark.timeout(900)
def test_a_burst_larger_than_the_room_fills_unequal_nodes_exactly(tmp_path_factory: pytest.TempPathFactory) -> None:
    """kube-scheduler has its default client limits. No replica was ever on another node than its pod, and no room is left while pods wait."""
    outcome = backlog.run(tmp_path_factory.mktemp("backlog"), backlog.Backlog(pods=100, quiet=12))
    print(outcome.text())
    assert outcome.problems == []


@pytest.mark.timeout(900)
def test_every_pod_of_a_fitting_burst_gets_a_node_at_its_first_request(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """There is room for exactly these pods, and all of them run. No pod is refused because of what others may take, and
    each runs on the node of its volumes.
    """
    with Rig(tmp_path_factory.mktemp("burst")) as rig:
        burst = Burst(disk=EXACT)
        burst.add_nodes(rig)
        result = burst.run(rig, asks=True, must=True)
        first = Journal(rig.cluster.logs, rig.candidates).first_calls()
        names = {pod["metadata"]["uid"]: name_of(pod) for pod in rig.pods(BURST)}
    assert len(names) == burst.pods
    assert [name for uid, name in names.items() if uid not in first] == [], "every pod has a request"
    assert {names[uid]: call.reasons for uid, call in first.items() if not call.fits} == {}
    assert result.wrong == {}


@pytest.mark.timeout(5400)
def test_bursts_with_three_dead_leaders_misplace_nothing_and_leave_no_pod_behind(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Each wave depends on the one before, so a single run has all. The report has 1,000 pods, which take eight minutes on two cores."""
    pods = int(os.environ.get("LONGHORN_E2E_PODS", "200"))
    seed = int(os.environ.get("SOAK_SEED", "1"))
    outcome = size.run(tmp_path_factory.mktemp("size"), size.Size(pods=pods, seed=seed))
    print(outcome.text())
    assert outcome.problems == []
