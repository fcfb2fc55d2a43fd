"""200 pods with two claims each at once, at kube-scheduler's default speed."""

from __future__ import annotations

import pytest

from tests.e2e.burst import APP, EXACT, PODS, Burst, uids
from tests.e2e.journal import Journal
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("burst"), pytest.mark.timeout(900)]


def test_every_pod_of_a_burst_that_fits_is_offered_a_node_at_its_first_question(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """There is room for exactly these, and nobody is refused because of what others may take; all of them run, beside their volumes."""
    with Rig(tmp_path_factory.mktemp("burst"), config=RECOMMENDED_MANAGED) as rig:
        burst = Burst(disk=EXACT)
        burst.add_nodes(rig)
        result = burst.once(rig, asks=True, must=True)
        first = Journal(rig.cluster.logs, rig.candidates).first()
        names = uids(rig.pods(APP))
    assert len(names) == PODS
    assert [name for uid, name in names.items() if uid not in first] == [], "every one was asked about"
    assert {names[uid]: question.reasons for uid, question in first.items() if not question.fits} == {}
    assert (result.misplaced, result.mended, result.overfull, result.stuck) == ([], 0, [], [])
