"""The first replica of a best-effort volume: a look at the local node alone finds what a look at all nodes finds."""

from hypothesis import given, strategies as st

from scheduler_core.longhorn.placement import find_candidates, possible_choices, preferred_disks, schedule_replica
from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.model.longhorn import BEST_EFFORT, Replica, Volume
from tests.builders import GI
from tests.examples import examples
from tests.worlds.remedies import World, full_worlds, worlds


@examples(100)
@given(worlds() | full_worlds(), st.sampled_from((5, 25, 60)), st.booleans(), st.booleans())
def test_the_local_node_alone_gives_the_same_choices(
    world: World, size: int, select_disks: bool, select_nodes: bool
) -> None:
    """Longhorn finds the candidates among all nodes first, and then prefers those of the node that the volume is attached to."""
    cluster = world.cluster.state.view.cluster
    for name in (*cluster.nodes, "unknown"):
        volume = Volume(
            name="v",
            size=size * GI,
            number_of_replicas=1,
            data_locality=BEST_EFFORT,
            node_id=name,
            disk_selector=("ssd",) if select_disks else (),
            node_selector=("storage",) if select_nodes else (),
        )
        replica = Replica(name="v-r", volume="v", size=size * GI)
        candidates = find_candidates(cluster, ReplicaRequest.for_replica(volume, replica), ())
        disks = preferred_disks(volume, candidates.disks, ())
        result = schedule_replica(cluster, volume, replica, ())
        assert result.choices == (possible_choices(disks, size * GI) if disks else ())
        assert result.reasons == (frozenset() if disks else candidates.reasons)
