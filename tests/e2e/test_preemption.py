"""Preemption on the real kube-scheduler: no victim dies in vain."""

import pytest

from tests.control_plane import ControlPlane
from tests.e2e import preemption
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.smoke
def test_victims_die_only_where_longhorn_has_room_and_the_room_is_held(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A pod of low priority does not get the room while the victim ends."""
    with (
        control_plane.borrow() as cluster,
        Rig(tmp_path_factory.mktemp("preemption"), config=RECOMMENDED_MANAGED, running=cluster) as rig,
    ):
        assert preemption.run(rig).problems == []
