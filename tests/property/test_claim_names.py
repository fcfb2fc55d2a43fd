"""The names of claims do not matter: a decision is the same after its claims have been renamed."""

from hypothesis import example, given, strategies as st

from scheduler_core.structs import replace
from tests.builders import disk
from tests.examples import examples
from tests.worlds.claim_clusters import CLAIM_VALUES, DISK_VALUES, FREE_VALUES, NODE_TAGS, Claim, Cluster

CLAIMS = st.builds(Claim, **{name: st.sampled_from(values) for name, values in CLAIM_VALUES.items()})
DISKS = st.builds(disk, **{name: st.sampled_from(values) for name, values in DISK_VALUES.items()})
NODES = st.tuples(st.lists(DISKS, min_size=1, max_size=3), st.sampled_from(NODE_TAGS))
FREE_VOLUMES = st.tuples(*map(st.sampled_from, FREE_VALUES))
CLUSTERS = st.integers(2, 4).flatmap(
    lambda count: st.builds(
        Cluster,
        st.lists(NODES, min_size=1, max_size=3),
        st.lists(CLAIMS, min_size=count, max_size=count),
        st.lists(FREE_VOLUMES, max_size=2),
        st.integers(1, count),
    )
)


CLONED = Claim(bound=True, clone="linked-clone")
DEMANDED = replace(CLONED, bound=False, clone="", holder="n0")


@examples(150)
@given(CLUSTERS, st.permutations(range(4)))
@example(Cluster([([disk(40)], ())], [CLONED, replace(CLONED, node_selector="db")], [], 2), [1, 0, 2, 3])
@example(Cluster([([disk(40)], ())], [DEMANDED, DEMANDED, replace(DEMANDED, size=40)], [], 1), [0, 2, 1, 3])
@example(
    Cluster(
        [([disk(40, tags=("ssd",))], ()), ([disk(40)], ())],
        [DEMANDED, replace(DEMANDED, size=40), replace(DEMANDED, size=40, disk_selector="ssd")],
        [],
        1,
    ),
    [0, 2, 1, 3],
)
def test_renamed_claims_change_no_answer(cluster: Cluster, order: list[int]) -> None:
    """Ties are broken by sizes, selectors and engines first, and by names last."""
    count = len(cluster.claims)
    names = [f"claim-{index}" for index in range(count)]
    renamed = [names[index] for index in order if index < count]
    assert cluster.answers(renamed) == cluster.answers(names)
