"""The classic rules against a second implementation, which reads the documentation naively, on random clusters.

`make soak` decides about many more pods than `make check`: FUZZ_EXAMPLES says how many clusters there are.
"""

import json
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from scheduler_core import caches
from scheduler_core.convert.generic import SCHEDULED_POD
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import Policy, parse_policy
from scheduler_core.generic.scheduler import prioritize_names, schedule
from tests.e2e.objects import Object
from tests.worlds.classic_clusters import GONE, NODES, STATIC_PRIORITIES, ClassicCluster, ClassicGenerator
from tests.worlds.documented_classic_rules import DEFAULT, DocumentedClassicScheduler

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
PODS_PER_CLUSTER = 4
STEPS = 10
SEEDS = st.integers(0, 2**64 - 1)
GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "generic").glob("*.jsonl"))

fuzz = settings(max_examples=EXAMPLES, deadline=None)
pytestmark = pytest.mark.timeout(3600)


@lru_cache(maxsize=8)
def parse(policy: bytes) -> Policy:
    return parse_policy(policy)


def decide(state: GenericClusterState, pod: Object, policy: Object, names: list[str] | None) -> Object:
    """The product's decision, with everything that leads to it."""
    parsed = parse(msgspec.json.encode(policy))
    result = schedule(SCHEDULED_POD.read(pod), names, state, parsed, min)
    assert result.node == min(result.best, default="")
    return {
        "unavailable": dict(result.unavailable),
        "failures": {
            name: [(failure.predicate, failure.text) for failure in failures]
            for name, failures in result.failures.items()
        },
        "feasible": list(result.feasible),
        "scores": {priority: dict(scores) for priority, scores in result.ranking.scores.items()},
        "totals": dict(result.ranking.totals),
        "best": list(result.best),
        "error": result.error,
        "reasons": list(result.count_by_reason().items()),
    }


def check_decision(
    state: GenericClusterState, documented: DocumentedClassicScheduler, pod: Object, policy: Object
) -> Object:
    """Compares both decisions about a pod; returns them."""
    decision = documented.decide(pod, policy, sorted(node["metadata"]["name"] for node in documented.nodes))
    assert decide(state, pod, policy, None) == decision
    return decision


def check_named_nodes(
    state: GenericClusterState, documented: DocumentedClassicScheduler, pod: Object, policy: Object, names: list[str]
) -> None:
    """Compares what the extender answers kube-scheduler about nodes of these names, which need not exist."""
    assert decide(state, pod, policy, names) == documented.decide(pod, policy, names)
    parsed = parse(msgspec.json.encode(policy))
    scores = prioritize_names(SCHEDULED_POD.read(pod), names, state, parsed)
    assert scores == documented.prioritize(pod, policy, names)


@fuzz
@given(SEEDS)
def test_a_decision_is_the_documented_one(seed: int) -> None:
    """Which nodes fit, why others do not, all scores, totals and best nodes. kube-scheduler asks the extender about some nodes, in any
    order; one may be unknown.
    """
    generator = ClassicGenerator(seed)
    cluster = ClassicCluster(generator)
    for _ in range(PODS_PER_CLUSTER):
        pod = generator.pending_pod()
        policy = generator.policy()
        check_decision(cluster.state, cluster.documented, pod, policy)
        names = generator.random.sample([*NODES, GONE], generator.random.randint(0, 5))
        check_named_nodes(cluster.state, cluster.documented, pod, policy, names)


@pytest.fixture(params=["usual limits", "small limits"], scope="module")
def _cache_limits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small clusters reach only small limits of what is cached about nodes."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "small limits":
            patch.setattr(caches, "MAX_STEPS", 2)
            patch.setattr(caches, "MAX_RESULTS", 8)
        yield


@pytest.mark.usefixtures("_cache_limits")
@fuzz
@given(SEEDS)
def test_decisions_on_a_changing_cluster_are_the_documented_ones(seed: int) -> None:
    """Similar pods are bound, and objects change in between; sometimes an earlier state is read again."""
    generator = ClassicGenerator(seed)
    cluster = ClassicCluster(generator)
    spec = generator.pending_pod()["spec"]
    kinds = [spec, *(generator.similar_spec(spec) for _ in range(3))]
    policies = [generator.policy() for _ in range(2)]
    earlier = []
    for _ in range(STEPS):
        if generator.chance(0.6):
            cluster.change(generator)
        earlier.append((cluster.state, cluster.documented))
        pod = generator.pod(generator.random.choice(kinds))
        policy = generator.random.choice(policies)
        if generator.chance(0.15):
            check_decision(*generator.random.choice(earlier), pod, policy)
            continue
        best = check_decision(cluster.state, cluster.documented, pod, policy)["best"]
        check_named_nodes(cluster.state, cluster.documented, pod, policy, [*NODES])
        if best:
            cluster.bind(pod, generator.random.choice(best))


def test_the_random_decisions_reach_every_reason_and_score() -> None:
    """Otherwise the comparisons would say little."""
    texts: set[str] = set()
    scores: dict[str, set[int]] = {}
    for seed in range(800):
        generator = ClassicGenerator(seed)
        cluster = ClassicCluster(generator)
        names = [node["metadata"]["name"] for node in cluster.documented.nodes]
        decision = cluster.documented.decide(generator.pending_pod(), generator.policy(), [*names, GONE])
        # Without the names of node and pod.
        texts |= {re.sub("^node '.*,", "", text) for text in [*dict(decision["reasons"]), decision["error"]]}
        for priority, by_node in decision["scores"].items():
            scores.setdefault(priority, set()).update(by_node.values())
    assert texts == {
        "",
        "a required node label is missing",
        "an unwanted node label is present",
        "cloud disk is in use",
        "host port is in use",
        "insufficient CPU",
        "insufficient CPU and memory",
        "insufficient memory",
        "no nodes available to schedule pods",
        "node does not exist",
        "node is not ready",
        "node is unschedulable",
        "node selector does not match",
        "pod names another node",
        "service affinity does not match",
        "too many pods",
        " is cordoned",
        " is not known",
    }
    assert [priority for priority in (*STATIC_PRIORITIES, "Custom0") if len(scores[priority]) < 3] == []


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_second_implementation_reproduces_recorded_decisions(path: Path) -> None:
    """So it says what Kubernetes 1.1 does, and not just what this project believes."""
    vectors = [json.loads(line) for line in path.read_text().splitlines()]
    for vector in vectors:
        scenario, expected = vector["scenario"], vector["expect"]
        if "policy_error" in expected:
            continue
        policy = DEFAULT if scenario["policy"] is None else scenario["policy"]
        policy = json.loads(policy) if isinstance(policy, str) else policy
        documented = DocumentedClassicScheduler(scenario["nodes"], scenario["pods"], scenario["services"])
        names = sorted(node["metadata"]["name"] for node in scenario["nodes"])
        decision = documented.decide(scenario["pod"], policy, names)
        failures = {node: sorted(name for name, _ in texts) for node, texts in decision["failures"].items()}
        assert failures == {node: sorted(predicates) for node, predicates in expected["fails"].items()}, vector["id"]
        assert {key: sorted(decision[key]) for key in ("feasible", "best")} == {
            key: sorted(expected[key]) for key in ("feasible", "best")
        }, vector["id"]
        assert {key: decision[key] for key in ("scores", "totals")} == {
            key: expected[key] for key in ("scores", "totals")
        }, vector["id"]
        assert bool(decision["error"]) == ("error" in expected), vector["id"]
