"""Evictions: what PodDisruptionBudgets allow, and how a drain goes on under them."""

from functools import partial
from typing import Any

import pytest

from scheduler_core.predict.cluster_additions import add_nodes, scale
from scheduler_core.predict.cluster_changes import drain, lose_nodes, set_setting
from scheduler_core.predict.disruption_budgets import DisruptionBudgets
from scheduler_core.predict.prediction import Certainty
from scheduler_core.predict.prediction_input import Situation
from tests.builders import Object, pod
from tests.worlds.predicted_clusters import (
    add_labels,
    after,
    disruption_budget,
    node,
    outcome_of,
    owned_pod,
    play,
    prediction,
    running,
    situation,
    workload,
)

KEY = ("default", "web-0")
NEEDS_THREE = "PodDisruptionBudget default/web needs 3 healthy pods and has 3"
NOT_READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}


def web_pods(count: int, ready: int | None = None, owner: str = "StatefulSet", phase: str = "Running") -> list[Object]:
    """Pods of one workload on one node; the last ones are ready."""
    objects: list[Object] = []
    for number in range(count):
        raw = owned_pod(name=f"web-{number}", node="a", owner=owner)
        raw["status"]["phase"] = phase
        objects += add_labels([raw], number >= count - (count if ready is None else ready), app="web", tier="front")
    return objects


def refusal(*objects: Object) -> str:
    """Why web-0 may not be evicted."""
    cluster = situation(node("a"), *objects).cluster
    pods = cluster.snapshot.pods
    return DisruptionBudgets(cluster).refusal(
        pods[KEY], lambda key: bool(pods[key].node_name) and pods[key].scheduling.ready
    )


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        pytest.param({"minAvailable": 2}, True, id="number-of-pods"),
        pytest.param({"minAvailable": 3}, False, id="all-of-them"),
        pytest.param({"minAvailable": 0}, True, id="none"),
        pytest.param({"minAvailable": "50%"}, True, id="half-of-three-is-two"),
        pytest.param({"minAvailable": "67%"}, False, id="percentages-are-rounded-up"),
        pytest.param({"maxUnavailable": 1}, True, id="one-may-be-unavailable"),
        pytest.param({"maxUnavailable": 0}, False, id="none-may-be-unavailable"),
        pytest.param({"maxUnavailable": "1%"}, True, id="one-per-cent-of-three-is-one"),
        pytest.param({"maxUnavailable": "0%"}, False, id="no-per-cent"),
        pytest.param({"maxUnavailable": 9}, True, id="more-than-there-are"),
        pytest.param({}, True, id="no-number-at-all"),
    ],
)
def test_a_budget_needs_healthy_pods(spec: dict[str, Any], allowed: bool) -> None:
    assert refusal(*web_pods(3), disruption_budget(**spec)) == ("" if allowed else NEEDS_THREE)


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        pytest.param({"matchLabels": {"app": "web"}}, True, id="label"),
        pytest.param({"matchLabels": {"app": "web", "tier": "back"}}, False, id="one-label-of-two"),
        pytest.param({}, True, id="empty-selects-all"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]}, True, id="in"),
        pytest.param(
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False, id="not-in"
        ),
        pytest.param({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True, id="exists"),
        pytest.param({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False, id="does-not-exist"),
        pytest.param({"matchExpressions": [{"key": "tier", "operator": "Wrong"}]}, False, id="invalid-selects-none"),
    ],
)
def test_a_selector_says_which_pods_a_budget_is_about(selector: Object, selected: bool) -> None:
    assert bool(refusal(*web_pods(3), disruption_budget(maxUnavailable=0, selector=selector))) is selected


def test_a_budget_without_a_selector_and_one_of_another_namespace_are_about_no_pod() -> None:
    without = disruption_budget("other", maxUnavailable=0)
    without["spec"]["selector"] = None
    elsewhere = disruption_budget(maxUnavailable=0)
    elsewhere["metadata"]["namespace"] = "shop"
    assert refusal(*web_pods(3), without, elsewhere) == ""


def test_a_pod_with_two_budgets_is_never_evicted() -> None:
    budgets = [disruption_budget(), disruption_budget("all", selector={})]
    assert refusal(*web_pods(3), *budgets) == (
        "PodDisruptionBudgets default/all and default/web select it, and the API server evicts no pod with more than one"
    )


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        pytest.param({"expectedPods": 3}, True, id="as-many-as-there-are"),
        pytest.param({"expectedPods": 5}, False, id="two-could-not-be-created"),
        pytest.param({"expectedPods": 5, "observedGeneration": 0}, True, id="of-an-earlier-generation"),
    ],
)
def test_the_controllers_say_how_many_pods_are_expected(status: Object, allowed: bool) -> None:
    """The disruption controller has counted their replicas; pods may be missing."""
    assert bool(refusal(*web_pods(3), disruption_budget(maxUnavailable=2, status=status))) is not allowed


@pytest.mark.parametrize(
    ("spec", "owner", "text"),
    [
        pytest.param({"maxUnavailable": 1}, "DaemonSet", 'found no controllers for pod "web-0"', id="max-unavailable"),
        pytest.param({"minAvailable": "10%"}, "Job", 'found no controllers for pod "web-0"', id="percentage"),
        pytest.param({"minAvailable": 1}, "DaemonSet", "", id="a-number-needs-no-controller"),
    ],
)
def test_a_controller_without_replicas_lets_the_count_fail(spec: Object, owner: str, text: str) -> None:
    answer = refusal(*web_pods(3, owner=owner), disruption_budget(**spec))
    assert answer == (f"PodDisruptionBudget default/web allows no eviction: {text}" if text else "")


def test_the_status_says_that_the_count_fails() -> None:
    failed = {"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no scale"}
    budget = disruption_budget(maxUnavailable=1, status={"conditions": [failed]})
    assert refusal(*web_pods(3), budget) == "PodDisruptionBudget default/web allows no eviction: no scale"


@pytest.mark.parametrize(
    ("ready", "spec", "allowed"),
    [
        pytest.param(2, {"minAvailable": 2}, True, id="enough-healthy-ones"),
        pytest.param(1, {"minAvailable": 2}, False, id="too-few-healthy-ones"),
        pytest.param(1, {"minAvailable": 2, "unhealthyPodEvictionPolicy": "IfHealthyBudget"}, False, id="the-default"),
        pytest.param(1, {"minAvailable": 2, "unhealthyPodEvictionPolicy": "AlwaysAllow"}, True, id="always-allow"),
        pytest.param(0, {"minAvailable": 0}, False, id="none-needed-and-none-healthy"),
    ],
)
def test_a_pod_that_is_not_ready_is_evicted_by_the_policy(ready: int, spec: Object, allowed: bool) -> None:
    assert bool(refusal(*web_pods(3, ready=ready), disruption_budget(**spec))) is not allowed


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_a_pod_that_does_not_run_needs_no_budget(phase: str) -> None:
    assert refusal(*web_pods(3, phase=phase), disruption_budget(maxUnavailable=0)) == ""


def web_cluster(*nodes: list[Object], on: str = "aa", **budget: Any) -> Situation:
    pods = [raw for number, place in enumerate(on) for raw in running(f"web-{number}", place, 10)]
    return situation(*nodes, add_labels(pods, app="web"), disruption_budget(**budget))


def two_nodes(count: int = 2, size: float = 100) -> tuple[list[Object], list[Object]]:
    return node("a", listed={f"web-{number}-a": 10 for number in range(count)}), node("b", size)


def test_a_drain_goes_on_one_pod_at_a_time() -> None:
    cluster = web_cluster(*two_nodes(3), on="aaa", maxUnavailable=1)
    result = prediction(cluster, partial(drain, nodes=("a",)))
    assert {outcome.outcome for outcome in result.pods} == {Certainty.ALWAYS}
    assert [outcome.left for outcome in result.pods] == ["a", "a", "a"]
    assert result.drains[0].outcome is Certainty.ALWAYS
    assert result.succeeds


@pytest.mark.parametrize("spec", [{"maxUnavailable": 0}, {"minAvailable": "100%"}, {"minAvailable": 2}])
def test_a_budget_that_never_allows_holds_up_the_drain(spec: Object) -> None:
    result = prediction(web_cluster(*two_nodes(), **spec), partial(drain, nodes=("a",)))
    refused = "PodDisruptionBudget default/web needs 2 healthy pods and has 2"
    assert list(result.drains[0].blockers) == [f"pod default/web-{number} stays on a: {refused}" for number in (0, 1)]
    assert list(outcome_of(result, "web-0").reasons) == [f"stays on a: {refused}"]
    assert result.drains[0].outcome is Certainty.NEVER
    (end,) = play(after(web_cluster(*two_nodes(), **spec), partial(drain, nodes=("a",))), 1)
    assert {pod.node_name for pod in end.cluster.snapshot.pods.values()} == {"a"}


def test_a_moved_pod_that_never_runs_again_holds_up_the_drain() -> None:
    cluster = web_cluster(*two_nodes(size=15), maxUnavailable=1)
    result = prediction(cluster, partial(drain, nodes=("a",)), orders=20)
    assert result.drains[0].outcome is Certainty.NEVER
    assert all("PodDisruptionBudget" in text or "last healthy" in text for text in result.drains[0].blockers)
    assert sum(outcome.placed for outcome in result.pods) == 20


def test_other_pods_do_not_wait_for_a_budget() -> None:
    free = running("db-0", "a", 10)
    cluster = situation(
        node("a", listed={"web-0-a": 10, "db-0-a": 10}),
        node("b"),
        add_labels(running("web-0", "a", 10), app="web"),
        free,
        disruption_budget(maxUnavailable=0),
    )
    result = prediction(cluster, partial(drain, nodes=("a",)))
    assert outcome_of(result, "db-0").outcome is Certainty.ALWAYS
    assert outcome_of(result, "web-0").outcome is Certainty.NEVER
    assert list(result.drains[0].blockers) == [
        "pod default/web-0 stays on a: PodDisruptionBudget default/web needs 1 healthy pods and has 1"
    ]


def test_pods_of_two_drained_nodes_share_a_budget() -> None:
    cluster = web_cluster(
        node("a", listed={"web-0-a": 10}), node("b", listed={"web-1-b": 10}), node("c"), on="ab", maxUnavailable=1
    )
    result = prediction(cluster, partial(drain, nodes=("a", "b")))
    assert [drain.outcome for drain in result.drains] == [Certainty.ALWAYS, Certainty.ALWAYS]
    assert {name for outcome in result.pods for name in outcome.nodes} == {"c"}


def test_no_budget_protects_a_pod_from_the_loss_of_its_node() -> None:
    cluster = web_cluster(*two_nodes(), maxUnavailable=0)
    result = prediction(cluster, partial(drain, nodes=("a",)), partial(lose_nodes, nodes=("a",)))
    assert [outcome.origin for outcome in result.pods] == ["moved", "moved"]
    assert {text for outcome in result.pods for text in outcome.reasons} & {"stays on a"} == set()


def test_a_pod_that_waits_for_its_eviction_is_created_in_order() -> None:
    cluster = web_cluster(*two_nodes(3, size=5), on="aaa", maxUnavailable=3)
    end = play(after(cluster, partial(drain, nodes=("a",))), 1)[0]
    assert {next(iter(end.refusals["default", f"web-{number}"])) for number in (1, 2)} == {
        "the pod before it does not run"
    }


def test_scaling_changes_how_many_pods_are_expected() -> None:
    """With a third pod one of three may be away.

    What the status counted before does not hold any more.
    """
    template = workload(0, labels=frozenset({("app", "web")}))
    cluster = web_cluster(*two_nodes(), minAvailable="60%", status={"expectedPods": 2})
    assert prediction(cluster, partial(drain, nodes=("a",))).drains[0].outcome is Certainty.NEVER
    assert (
        prediction(cluster, partial(scale, workload=template, count=3), partial(drain, nodes=("a",))).drains[0].outcome
        is Certainty.ALWAYS
    )


def test_a_drain_that_a_rebuild_lets_go_on_finishes() -> None:
    cluster = web_cluster(*two_nodes(), maxUnavailable=1)
    result = prediction(
        cluster,
        partial(add_nodes, like="b"),
        partial(set_setting, name="node-drain-policy", value="always-allow"),
        partial(drain, nodes=("a", "b")),
    )
    assert [drain.outcome for drain in result.drains] == [Certainty.ALWAYS, Certainty.ALWAYS]


def test_a_volume_of_an_evicted_pod_is_not_rebuilt_while_it_is_detached() -> None:
    cluster = web_cluster(node("a", listed={"web-0-a": 10}), node("b"), node("c"), on="a", maxUnavailable=1)
    for end in play(after(cluster, partial(drain, nodes=("a",))), 10):
        place = end.nodes[KEY]
        assert [each.node_id for each in end.cluster.state.view.replicas_of("vol-data-web-0")] == [place]


def test_a_pod_without_controller_is_not_evicted_and_not_refused() -> None:
    bare = add_labels([pod(name="web-9", node="a", phase="Running")], app="web")
    result = prediction(
        situation(node("a"), node("b"), bare, disruption_budget(maxUnavailable=0)), partial(drain, nodes=("a",))
    )
    assert list(result.drains[0].blockers) == ["pod default/web-9 has no controller"]
    assert result.pods == ()
