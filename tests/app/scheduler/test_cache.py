"""The cache of the stand-alone scheduler: assumed pods, late watch events, and a state that follows every change."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from hypothesis import given, strategies as st

from app.kube.generic_cache import _MAX_PENDING
from app.scheduler.cache import LonghornCache, SchedulerCache
from scheduler_core.convert.generic import PendingPod, pod_on_node
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.rule_registry import SERVICES
from scheduler_core.model.constraints import PodScheduling
from scheduler_core.model.generic import Node, PodKey, Service
from scheduler_core.model.kube import Pod
from scheduler_core.structs import replace
from tests.worlds.scheduler import RecordingQueue, unwatched_cache
from tests.worlds.scheduling_api import SCHEDULER_NAME

KEY = ("shop", "web")


class RecordingLonghornCache:
    """Longhorn's cache, which records the pods that were bound and are not gone."""

    def __init__(self) -> None:
        self.bound_pods: dict[PodKey, tuple[PendingPod, str]] = {}

    def on_bound(self, pending: PendingPod, node: str) -> None:
        self.bound_pods[pending.pod.namespaced_name] = pending, node

    def on_gone(self, key: PodKey) -> None:
        self.bound_pods.pop(key, None)


def cache_of(*nodes: str) -> tuple[SchedulerCache, RecordingQueue]:
    """A cache of these nodes, without pods and services."""
    handler = RecordingQueue()
    cache = unwatched_cache(handler)
    for kind in SERVICES:
        cache.objects[kind].replace({})
    for name in nodes:
        cache.objects["nodes"].change(name, Node(name, cpu=4000, memory=8 << 30, pods=10))
    return cache, handler


def pending_pod(name: str = "web", uid: str = "1", **fields: Any) -> PendingPod:
    scheduling = PodScheduling(cpu=1000, **fields)
    return PendingPod(Pod("shop", name, uid, scheduling=scheduling), scheduler_name=SCHEDULER_NAME)


def on_node(pending: PendingPod, node: str) -> PendingPod:
    return PendingPod(pod_on_node(pending.pod, node))


def pods_on(state: GenericClusterState, node: str) -> list[str]:
    return sorted(pod.name for pod in state.nodes[node].pods)


def test_an_assumed_pod_counts_once_on_its_node() -> None:
    cache, _ = cache_of("a")
    cache.objects["pods"].change(KEY, pending_pod())
    cache.assume(pending_pod(), "a")
    assert (pods_on(cache.state(), "a"), cache.state().nodes["a"].requested_cpu) == (["web"], 1000)
    cache.objects["pods"].change(KEY, on_node(pending_pod(), "a"))
    assert (pods_on(cache.state(), "a"), cache.state().nodes["a"].requested_cpu) == (["web"], 1000)
    assert cache.assumed_nodes == {}


def test_bound_pods_of_one_template_share_what_rules_read_of_them() -> None:
    """There may be 100,000 pods."""
    first = on_node(pending_pod("first", "1", labels=frozenset({("app", "web")})), "a")
    second = on_node(pending_pod("second", "2", labels=frozenset({("app", "web")})), "b")
    assert first.pod.scheduling is second.pod.scheduling


def test_a_late_event_without_a_node_does_not_end_an_assumption() -> None:
    """The event may be older than the Binding."""
    cache, handler = cache_of("a")
    cache.objects["pods"].change(KEY, pending_pod())
    cache.assume(pending_pod(), "a")
    handler.pending.clear()
    cache.objects["pods"].change(KEY, pending_pod(labels=frozenset({("late", "event")})))
    assert (pods_on(cache.state(), "a"), handler.pending) == (["web"], {})


def test_a_forgotten_pod_frees_its_node() -> None:
    """Unschedulable pods are retried, because they may fit now."""
    cache, handler = cache_of("a")
    cache.objects["pods"].change(KEY, pending_pod())
    cache.assume(pending_pod(), "a")
    retries = handler.retries
    cache.forget(pending_pod())
    assert (pods_on(cache.state(), "a"), cache.assumed_nodes, handler.retries > retries) == ([], {}, True)


def test_forgetting_a_pod_keeps_the_assumption_of_its_namesake() -> None:
    cache, handler = cache_of("a", "b")
    cache.objects["pods"].change(KEY, pending_pod())
    cache.assume(pending_pod(), "a")
    second = pending_pod(uid="2")
    cache.objects["pods"].change(KEY, second)
    assert (pods_on(cache.state(), "a"), handler.pending) == ([], {KEY: second})
    cache.assume(second, "b")
    cache.forget(pending_pod())
    assert (pods_on(cache.state(), "b"), dict(cache.assumed_nodes)) == (["web"], {KEY: "b"})


def test_a_deleted_pod_does_not_count() -> None:
    cache, handler = cache_of("a")
    cache.objects["pods"].change(KEY, pending_pod())
    cache.assume(pending_pod(), "a")
    cache.objects["pods"].replace({})
    assert (pods_on(cache.state(), "a"), cache.assumed_nodes, handler.pending) == ([], {}, {})


def test_a_new_list_keeps_assumed_pods() -> None:
    """The list may be older than the Binding."""
    cache, _ = cache_of("a")
    cache.objects["pods"].change(KEY, pending_pod())
    cache.assume(pending_pod(), "a")
    cache.objects["pods"].replace({KEY: pending_pod()})
    assert pods_on(cache.state(), "a") == ["web"]


def test_only_changes_that_may_help_cause_a_retry() -> None:
    cache, handler = cache_of()
    counts = []
    changes: tuple[Callable[[], None], ...] = (
        lambda: cache.objects["nodes"].change("a", Node("a")),
        lambda: cache.objects["nodes"].change("a", Node("a")),
        lambda: cache.objects["services"].change(("shop", "web"), Service("shop", "web")),
        lambda: cache.objects["pods"].change(KEY, pending_pod()),
        lambda: cache.objects["pods"].change(KEY, on_node(pending_pod(), "a")),
        lambda: cache.objects["pods"].change(KEY, None),
        lambda: cache.objects["nodes"].change("a", None),
    )
    for apply_change in changes:
        before = handler.retries
        apply_change()
        counts.append(handler.retries - before)
    assert counts == [1, 0, 1, 0, 0, 1, 0]


def test_changes_do_not_pile_up_while_the_state_is_not_read() -> None:
    cache, _ = cache_of("a")
    assert pods_on(cache.state(), "a") == []
    for number in range(2 * _MAX_PENDING):
        cache.objects["pods"].change(("shop", f"p{number}"), on_node(pending_pod(f"p{number}"), "a"))
        cache.objects["pods"].change(("shop", f"p{number - 1}"), None)
    assert len(cache.objects._pending) <= _MAX_PENDING  # noqa: SLF001 # nothing else shows what is kept
    assert pods_on(cache.state(), "a") == [f"p{number}"]


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["wait", "bind", "gone", "assume", "forget", "finish", "node", "no node", "relist"]),
        st.sampled_from(["p", "q", "r"]),
        st.sampled_from(["1", "2"]),
        st.sampled_from(["a", "b"]),
    ),
    max_size=30,
)


@given(_STEPS)
def test_an_updated_state_equals_one_built_from_the_objects(steps: list[tuple[str, str, str, str]]) -> None:
    cache, handler = cache_of("a")
    observer = RecordingLonghornCache()
    cache.longhorn = cast("LonghornCache", observer)
    objects: dict[str, dict[Any, Any]] = {"nodes": {"a": cache.state().nodes["a"].node}, "pods": {}}
    assumed: dict[PodKey, PendingPod] = {}

    def change(kind: str, key: Any, value: Any) -> None:
        cache.objects[kind].change(key, value)
        objects[kind].pop(key, None)
        if value is not None:
            objects[kind][key] = value

    for step, name, uid, node in steps:
        key = ("shop", name)
        seen = cache.pod(key)
        _ = cache.state()
        if step == "wait":
            change("pods", key, pending_pod(name, uid))
        elif step == "bind":
            change("pods", key, on_node(pending_pod(name, uid), node))
        elif step == "finish":
            finished = pod_on_node(replace(pending_pod(name, uid).pod, phase="Failed"), node)
            change("pods", key, PendingPod(finished))
        elif step == "gone":
            change("pods", key, None)
        elif step == "assume" and cache.needs_scheduling(seen) and key not in cache.assumed_nodes:
            assumed[key] = cast("PendingPod", seen)
            cache.assume(assumed[key], node)
            handler.take_pod(key, None)
        elif step == "forget" and key in cache.assumed_nodes:
            cache.forget(PendingPod(assumed[key].pod))
            handler.take_pod(key, cast("PendingPod", seen))
        elif step == "node":
            change("nodes", node, Node(node, cpu=int(uid)))
        elif step == "no node":
            change("nodes", node, None)
        else:
            cache.objects["pods"].replace(dict(objects["pods"]))
        still_assumed = [(assumed[entry], on) for entry, on in cache.assumed_nodes.items()]
        assert _contents(cache.state()) == _contents(_fresh_state(objects, still_assumed))
        for bound_key, (bound_pod, _) in observer.bound_pods.items():
            current = cache.pod(bound_key)
            assert current is not None
            assert (current.pod.uid, current.pod.finished) == (bound_pod.pod.uid, False)
        assert handler.pending.keys() == {
            key for key, entry in objects["pods"].items() if entry.needs_node and key not in cache.assumed_nodes
        }


def _fresh_state(
    objects: Mapping[str, Mapping[Any, Any]], assumed: Iterable[tuple[PendingPod, str]]
) -> GenericClusterState:
    cache, _ = cache_of()
    for kind, entries in objects.items():
        cache.objects[kind].replace(dict(entries))
    for pending, node in assumed:
        cache.assume(pending, node)
    return cache.state()


def _contents(state: GenericClusterState) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    nodes = {
        name: (info.node, sorted(info.pods, key=lambda pod: pod.name), info.pod_count, info.requested_cpu)
        for name, info in state.nodes.items()
    }
    return nodes, {name: sorted(pods, key=lambda pod: pod.name) for name, pods in state.orphaned_pods.items()}
