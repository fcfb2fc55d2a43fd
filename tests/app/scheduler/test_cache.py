"""What the stand-alone scheduler knows of a cluster: assumptions, late news, and a state that is kept current."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from app.kube.client import KubeClient
from app.kube.generic_cache import _MAX_PENDING
from app.kube.reflector import Timing
from app.scheduler.cache import SchedulerCache
from scheduler_core.convert.binding import PendingPod
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.extender_policy import SERVICES
from scheduler_core.model.generic import Node, Pod, PodKey, Service

KEY = ("shop", "web")


class Heard:
    """What a listener was told last about each pod, and how often something helped."""

    def __init__(self) -> None:
        self.wanting: dict[PodKey, PendingPod] = {}
        self.helps = 0

    def enqueue(self, pending: PendingPod) -> None:
        """Called by the cluster."""
        self.wanting[pending.pod.key] = pending

    def dequeue(self, key: PodKey) -> None:
        """Called by the cluster."""
        self.wanting.pop(key, None)

    def retry_unschedulable(self) -> None:
        """Called by the cluster."""
        self.helps += 1


class Landed:
    """A witness that remembers where pods landed that have not left since."""

    def __init__(self) -> None:
        self.pods: dict[PodKey, tuple[PendingPod, str]] = {}

    def on_bound(self, pending: PendingPod, node: str) -> None:
        """Called by the cluster."""
        self.pods[pending.pod.key] = pending, node

    def on_gone(self, key: PodKey) -> None:
        """Called by the cluster."""
        self.pods.pop(key, None)


def cluster(*nodes: str) -> tuple[SchedulerCache, Heard]:
    """A cluster that nobody watches; what reflectors would tell is told by hand."""
    heard = Heard()
    timing = Timing(monotonic, random.uniform)
    made = SchedulerCache(cast("KubeClient", None), "mine", heard, timing, stale_after=60)
    for kind in SERVICES:
        made._cache.replaced(kind, {})
    for name in nodes:
        made._cache.changed("nodes", name, Node(name, cpu=4000, memory=8 << 30, pods=10))
    return made, heard


def waiting(name: str = "web", uid: str = "1", **fields: Any) -> PendingPod:
    """A pod that wants a node of this scheduler."""
    return PendingPod(Pod("shop", name, cpu=1000, uid=uid, **fields), scheduler_name="mine", needs_node=True)


def bound(found: PendingPod, node: str) -> PendingPod:
    """The same with a node."""
    return PendingPod(replace(found.pod, node_name=node))


def on(state: GenericClusterState, node: str) -> list[str]:
    """The pods on a node."""
    return sorted(pod.name for pod in state.nodes[node].pods)


def test_an_assumed_pod_counts_before_it_is_seen_there_and_once() -> None:
    """From the decision on, and not twice when the watch brings it."""
    known, _ = cluster("a")
    known._cache.changed("pods", KEY, waiting())
    known.assume(waiting(), "a")
    assert (on(known.state, "a"), known.state.nodes["a"].requested_cpu) == (["web"], 1000)
    known._cache.changed("pods", KEY, bound(waiting(), "a"))
    assert (on(known.state, "a"), known.state.nodes["a"].requested_cpu, known.assumed_nodes) == (["web"], 1000, {})


def test_a_witness_hears_where_an_assumed_pod_lands_and_that_it_leaves() -> None:
    """As it was when it waited, with its claims; wherever it is now. Of pods that others bound it hears nothing."""
    known, _ = cluster("a")
    witness = Landed()
    known.subscribe(witness)
    known._cache.changed("pods", KEY, waiting())
    known._cache.changed("pods", ("shop", "other"), bound(waiting("other"), "a"))
    known.assume(waiting(), "a")
    assert witness.pods == {}
    known._cache.changed("pods", KEY, bound(waiting(), "b"))
    assert witness.pods == {KEY: (waiting(), "b")}
    known._cache.replaced("pods", {})
    assert witness.pods == {}


def test_late_news_without_a_node_ends_no_assumption() -> None:
    """The watch may still bring what happened before the Binding; the pod is not offered for scheduling again."""
    known, heard = cluster("a")
    known._cache.changed("pods", KEY, waiting())
    known.assume(waiting(), "a")
    heard.wanting.clear()
    known._cache.changed("pods", KEY, waiting(labels=frozenset({("late", "news")})))
    assert (on(known.state, "a"), heard.wanting) == (["web"], {})


def test_a_forgotten_assumption_frees_its_room() -> None:
    """And may help others."""
    known, heard = cluster("a")
    known._cache.changed("pods", KEY, waiting())
    known.assume(waiting(), "a")
    helps = heard.helps
    known.forget(waiting())
    assert (on(known.state, "a"), known.assumed_nodes, heard.helps > helps) == ([], {}, True)


def test_forgetting_one_pod_leaves_another_of_its_name_alone() -> None:
    """The Binding of the first fails when the second has long been bound."""
    known, heard = cluster("a", "b")
    known._cache.changed("pods", KEY, waiting())
    known.assume(waiting(), "a")
    second = waiting(uid="2")
    known._cache.changed("pods", KEY, second)
    assert (on(known.state, "a"), heard.wanting) == ([], {KEY: second})
    known.assume(second, "b")
    known.forget(waiting())
    assert (on(known.state, "b"), dict(known.assumed_nodes)) == (["web"], {KEY: "b"})


def test_a_pod_that_is_gone_counts_no_more() -> None:
    """Also if it was only assumed, and if a whole list shows it."""
    known, heard = cluster("a")
    known._cache.changed("pods", KEY, waiting())
    known.assume(waiting(), "a")
    known._cache.replaced("pods", {})
    assert (on(known.state, "a"), known.assumed_nodes, heard.wanting) == ([], {}, {})


def test_a_whole_list_keeps_what_is_assumed() -> None:
    """It may be older than the Binding."""
    known, _ = cluster("a")
    known._cache.changed("pods", KEY, waiting())
    known.assume(waiting(), "a")
    known._cache.replaced("pods", {KEY: waiting()})
    assert on(known.state, "a") == ["web"]


def test_what_may_help_is_told_and_what_cannot_is_not() -> None:
    """A node or a service that changes, a bound pod that goes; not a pod that wants a node."""
    known, heard = cluster()
    counts = []
    steps: tuple[Callable[[], None], ...] = (
        lambda: known._cache.changed("nodes", "a", Node("a")),
        lambda: known._cache.changed("nodes", "a", Node("a")),
        lambda: known._cache.changed("services", ("shop", "web"), Service("shop", "web")),
        lambda: known._cache.changed("pods", KEY, waiting()),
        lambda: known._cache.changed("pods", KEY, bound(waiting(), "a")),
        lambda: known._cache.changed("pods", KEY, None),
        lambda: known._cache.changed("nodes", "a", None),
    )
    for tell in steps:
        before = heard.helps
        tell()
        counts.append(heard.helps - before)
    assert counts == [1, 0, 1, 0, 0, 1, 0]


def test_changes_that_nobody_asks_about_do_not_pile_up() -> None:
    """A follower hears of pods for weeks and is never asked; what it answers then is right."""
    known, _ = cluster("a")
    assert on(known.state, "a") == []
    for number in range(2 * _MAX_PENDING):
        known._cache.changed("pods", ("shop", f"p{number}"), bound(waiting(f"p{number}"), "a"))
        known._cache.changed("pods", ("shop", f"p{number - 1}"), None)
    assert len(known._cache._pending) <= _MAX_PENDING
    assert on(known.state, "a") == [f"p{number}"]


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
def test_a_state_that_is_kept_current_is_the_one_made_anew(steps: list[tuple[str, str, str, str]]) -> None:
    """Whatever happens in whatever order; every waiting pod that is not assumed wants a node; and of pods that have landed none is gone."""
    known, heard = cluster("a")
    witness = Landed()
    known.subscribe(witness)
    for what, name, uid, node in steps:
        key, seen = ("shop", name), known.pod(("shop", name))
        _ = known.state
        if what == "wait":
            known._cache.changed("pods", key, waiting(name, uid))
        elif what == "bind":
            known._cache.changed("pods", key, bound(waiting(name, uid), node))
        elif what == "finish":
            known._cache.changed(
                "pods", key, PendingPod(replace(waiting(name, uid).pod, node_name=node, finished=True))
            )
        elif what == "gone":
            known._cache.changed("pods", key, None)
        elif what == "assume" and known.needs_scheduling(seen) and key not in known.assumed_nodes:
            known.assume(cast("PendingPod", seen), node)
            heard.dequeue(key)
        elif what == "forget" and key in known.assumed_nodes:
            known.forget(PendingPod(known._assumed[key].pod))
            heard.enqueue(cast("PendingPod", seen))
        elif what == "node":
            known._cache.changed("nodes", node, Node(node, cpu=int(uid)))
        elif what == "no node":
            known._cache.changed("nodes", node, None)
        else:
            known._cache.replaced("pods", dict(known._cache._objects["pods"]))
        current = known.state
        known._cache._state = None
        assert _told(current) == _told(known.state)
        for landed, (found, _) in witness.pods.items():
            there = known.pod(landed)
            assert there is not None
            assert (there.pod.uid, there.pod.finished) == (found.pod.uid, False)
        assert heard.wanting.keys() == {
            key
            for key, entry in known._cache._objects["pods"].items()
            if entry.needs_node and key not in known.assumed_nodes
        }


def _told(state: GenericClusterState) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    nodes = {
        name: (entry.node, sorted(entry.pods, key=lambda pod: pod.name), entry.pod_count, entry.requested_cpu)
        for name, entry in state.nodes.items()
    }
    return nodes, {name: sorted(pods, key=lambda pod: pod.name) for name, pods in state.orphaned_pods.items()}
