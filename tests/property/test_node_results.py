"""Results that are kept for later pods change no decision."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import NO_FACTS
from scheduler_core.generic.policy import Policy
from scheduler_core.model.generic import Node, Service
from scheduler_core.model.kube import Pod
from scheduler_core.values import replace
from tests.examples import examples
from tests.property import test_generic as worlds


@examples(150)
@given(
    worlds.listed_nodes,
    worlds.listed_services,
    worlds.policies,
    st.lists(worlds.new_pods, min_size=1, max_size=3),
    st.lists(st.one_of(st.integers(0, 2), worlds.nodes), min_size=2, max_size=12),
)
def test_a_decision_is_the_same_with_an_empty_cache(
    nodes: list[Node], services: list[Service], policy: Policy, kinds: list[Pod], steps: list[int | Node]
) -> None:
    """Pods of a few kinds are bound one after the other, and nodes change and go in between."""
    state = GenericClusterState.of(nodes, [], services)
    for number, step in enumerate(steps):
        if isinstance(step, Node):
            state = state.without_node(step.name) if step in nodes else state.with_node(step)
            continue
        pod = replace(kinds[step % len(kinds)], name=f"pod-{number}", uid=str(number))
        decision = worlds.decide(pod, state, policy, NO_FACTS)
        fresh = replace(state, index=type(state.index)(), results=type(state.results)())
        assert decision == worlds.decide(pod, fresh, policy, NO_FACTS)
        if decision.node:
            state = state.with_binding(pod, decision.node)
        else:
            state = state.with_node(Node(f"n{number}", {}, 100, 100, 10))


@examples(100)
@given(worlds.listed_nodes, st.lists(st.one_of(worlds.nodes, st.sampled_from(worlds.NAMES)), max_size=20), st.data())
def test_every_state_reads_its_own_nodes(nodes: list[Node], changes: list[Node | str], data: st.DataObject) -> None:
    """Also an earlier state, after later ones were read."""
    states = [GenericClusterState.of(nodes, [], [])]
    for change in changes:
        latest = states[-1]
        states.append(latest.without_node(change) if isinstance(change, str) else latest.with_node(change))
    for _ in range(5):
        state = data.draw(st.sampled_from(states))
        expected = [state.nodes.get(name) for name in state.node_names]
        assert [entry is other for entry, other in zip(state.node_infos(), expected, strict=True)] == [True] * len(
            expected
        )
        assert state.node_infos(["none"]) == [None]
