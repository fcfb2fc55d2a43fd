"""The generic scheduler holds to these rules for every cluster, pod and policy."""

import msgspec
from hypothesis import given, strategies as st

from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.cycle_state import Argument, DiskFacts, LonghornFacts, NodeFacts
from scheduler_core.generic.policy import Policy, PolicyError, PolicyPredicate, PolicyPriority, parse_policy
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES
from scheduler_core.generic.scheduler import ScheduleResult, schedule
from scheduler_core.model.constraints import NO_CONSTRAINTS, Cloud, CloudDisk, Labels, PodScheduling
from scheduler_core.model.generic import Node, Service
from scheduler_core.model.kube import Pod
from scheduler_core.model.verdict import Reason
from scheduler_core.structs import replace
from tests.examples import examples

NAMES = ("a", "b", "c", "d", "e")
KEYS = ("zone", "rack")
VALUES = ("", "1", "2")
amounts = st.integers(min_value=0, max_value=20)

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
pod_labels: st.SearchStrategy[Labels] = st.dictionaries(
    st.sampled_from(("app", "tier")), st.sampled_from(("x", "y"))
).map(lambda labels: frozenset(labels.items()))
namespaces = st.sampled_from(("shop", "other"))

nodes = st.builds(
    Node,
    st.sampled_from(NAMES),
    labels,
    amounts,
    amounts,
    st.integers(0, 6),
    st.booleans(),
    st.sampled_from([False, False, True]),
)
cloud_disks = st.builds(CloudDisk, st.sampled_from(Cloud), st.sampled_from(("d", "e")), st.booleans())
scheduling = st.builds(
    PodScheduling,
    labels=pod_labels,
    node_selector=st.just(frozenset()),
    cpu=amounts,
    memory=amounts,
    nonzero_cpu=amounts,
    nonzero_memory=amounts,
    ports=st.frozensets(st.sampled_from((80, 81))),
    disks=st.lists(cloud_disks, max_size=2).map(tuple),
    constraints=st.just(NO_CONSTRAINTS),
)
pods = st.builds(
    Pod,
    namespace=namespaces,
    name=st.sampled_from("klmnopqrst"),
    node_name=st.sampled_from(("", *NAMES, "gone")),
    phase=st.sampled_from(("Running", "Failed")),
    scheduling=scheduling,
)
new_pods = st.builds(
    lambda scheduling, selector, node_name: Pod(
        "shop", "new", node_name=node_name, scheduling=replace(scheduling, node_selector=selector)
    ),
    scheduling,
    st.one_of(st.just(frozenset()), pod_labels),
    st.sampled_from(("", "", "", "a")),
)
services = st.builds(Service, namespaces, st.sampled_from(("s", "t")), pod_labels)

arguments = st.builds(Argument, st.lists(st.sampled_from(KEYS), min_size=1, max_size=2).map(tuple), st.booleans())
# They decide what is left out before any predicate otherwise: nodes that are cordoned or not ready.
AVAILABILITY_RULES = {"PodToleratesNodeTaints", "CheckNodeUnschedulable"}
predicates = st.builds(
    PolicyPredicate,
    st.sampled_from(("P1", "P2", "P3", "P4")),
    st.sampled_from(sorted({*PREDICATES.static, *PREDICATES.configurable} - AVAILABILITY_RULES)),
    arguments,
)
priorities = st.builds(
    PolicyPriority,
    st.sampled_from(("Q1", "Q2", "Q3", "Q4")),
    st.sampled_from([*PRIORITIES.static, *PRIORITIES.configurable]),
    st.integers(1, 5),
    arguments,
)


def name_of(entry: PolicyPredicate | PolicyPriority) -> str:
    """The name, which is unique in a policy."""
    return entry.name


policies = st.builds(
    Policy,
    st.lists(predicates, max_size=4, unique_by=name_of).map(tuple),
    st.lists(priorities, max_size=4, unique_by=name_of).map(tuple),
)
disks = st.builds(DiskFacts, st.integers(0, 50), st.integers(-20, 60))
node_facts = st.builds(
    NodeFacts,
    st.sampled_from((Reason.ROOM, Reason.HOME, Reason.INSUFFICIENT_STORAGE)),
    st.booleans(),
    amounts,
    st.lists(disks, max_size=3).map(tuple),
)
facts = st.builds(LonghornFacts, st.dictionaries(st.sampled_from(NAMES), node_facts), amounts)

states = st.builds(
    GenericClusterState.of,
    st.lists(nodes, max_size=5, unique_by=lambda node: node.name),
    st.lists(pods, max_size=8, unique_by=lambda pod: pod.namespaced_name),
    st.lists(services, max_size=3, unique_by=lambda service: (service.namespace, service.name)),
)


def decide(pod: Pod, state: GenericClusterState, policy: Policy, longhorn_facts: LonghornFacts) -> ScheduleResult:
    """Decides; of equally good nodes the first by name is chosen."""
    return schedule(pod, None, state, policy, min, lambda _: longhorn_facts)


@examples(50)
@given(new_pods, states, policies, facts)
def test_a_node_fits_if_it_fits_each_predicate_alone(
    pod: Pod, state: GenericClusterState, policy: Policy, longhorn_facts: LonghornFacts
) -> None:
    """It fails exactly the predicates that refuse it alone; Longhorn's are asked only where all others fit."""
    longhorn = {entry.name for entry in policy.predicates if entry.rule == "LonghornVolumeFit"}
    decision = decide(pod, state, policy, longhorn_facts)
    alone = {entry.name: decide(pod, state, Policy((entry,)), longhorn_facts) for entry in policy.predicates}
    for name in (*decision.feasible, *decision.failures):
        failing = {predicate for predicate, decision_alone in alone.items() if name in decision_alone.failures}
        assert {failure.predicate for failure in decision.failures.get(name, ())} == (failing - longhorn or failing)


json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=3)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=6,
)
argument_keys = st.sampled_from(("serviceAffinity", "labelsPresence", "serviceAntiAffinity", "labelPreference"))
near_entries = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(st.sampled_from([*PREDICATES.static, *PRIORITIES.static, "Mine"]), json_values),
        "weight": st.one_of(st.integers(-1, 3), json_values),
        "argument": st.one_of(
            json_values,
            st.dictionaries(
                argument_keys,
                st.one_of(
                    json_values,
                    st.fixed_dictionaries(
                        {},
                        optional={
                            "label": st.one_of(st.just("a"), json_values),
                            "labels": st.one_of(st.just(["a"]), json_values),
                            "presence": st.one_of(st.booleans(), json_values),
                        },
                    ),
                ),
                max_size=2,
            ),
        ),
    },
)
near_policies = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.one_of(st.just("Policy"), json_values),
        "apiVersion": st.one_of(st.just("v1"), json_values),
        "version": json_values,
        "predicates": st.one_of(st.lists(near_entries, max_size=3), json_values),
        "priorities": st.one_of(st.lists(near_entries, max_size=3), json_values),
    },
)


def read(text: bytes) -> Policy | str:
    try:
        return parse_policy(text)
    except PolicyError as error:
        return str(error)


@examples(50)
@given(st.one_of(near_policies, json_values), new_pods, states)
def test_a_policy_is_refused_or_decides(raw: object, pod: Pod, state: GenericClusterState) -> None:
    """No text that is nearly a policy causes an exception, then or later."""
    policy = read(msgspec.json.encode(raw))
    if isinstance(policy, str):
        assert policy.startswith("policy: ")
        assert "\n" not in policy
        return
    decision = decide(pod, state, policy, LonghornFacts())
    assert all(entry.weight > 0 for entry in policy.priorities)
    assert set(decision.ranking.scores) <= {entry.name for entry in policy.priorities}


@examples(50)
@given(st.binary(max_size=40))
def test_any_bytes_are_refused_or_read(text: bytes) -> None:
    result = read(text)
    assert isinstance(result, Policy) or "\n" not in result
