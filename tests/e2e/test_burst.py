"""200 pods with two claims each at once, at kube-scheduler's default speed."""

import pytest

from tests.e2e.bursts import BURST, EXACT, Burst
from tests.e2e.journal import Journal
from tests.e2e.objects import name_of
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.campaign
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
