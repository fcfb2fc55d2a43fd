"""When a refused pod may be nudged, which pods are alike, and what a nudge promises."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.cooperative import finish
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Joint
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Decision, Options, Others, filter_nodes
from scheduler_core.extender.nudge import (
    BURST,
    FIRST_WAIT,
    LONGEST_WAIT,
    PER_SECOND,
    PROMISE_LIFE,
    Pace,
    Promises,
    Rate,
    likeness,
    refused_before,
)
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import Ledger, Offered, PodSeen, TimePassed, step
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import NOW, Object

NODES = ("a", "b")
ROUNDING = 1e-9


def test_a_pod_that_was_never_nudged_may_be_at_once() -> None:
    """Whatever the clock's origin."""
    assert Pace().ready_at == -math.inf


def test_the_waits_between_nudges_double_up_to_a_minute() -> None:
    """Each counted from the nudge before."""
    pace, waits = Pace(), []
    for _ in range(9):
        now = max(1000.0, pace.ready_at)
        pace = pace.after(now)
        waits.append(pace.ready_at - now)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_pod_that_was_left_alone_for_long_begins_anew() -> None:
    """Twice the longest wait after its last nudge."""
    slow = Pace(attempts=9, last=0.0)
    assert slow.after(2 * LONGEST_WAIT - 0.1).attempts == 10
    anew = slow.after(2 * LONGEST_WAIT)
    assert (anew.attempts, anew.ready_at) == (1, 2 * LONGEST_WAIT + FIRST_WAIT)


def test_a_burst_may_be_sent_at_once_and_no_more() -> None:
    """The next one a twentieth of a second later."""
    rate, now = Rate(), 1000.0
    for _ in range(BURST):
        assert rate.ready_at <= now + ROUNDING
        rate = rate.after(now)
    assert rate.ready_at == pytest.approx(now + 1 / PER_SECOND)


def test_after_a_while_a_burst_may_be_sent_again() -> None:
    """Five seconds after one."""
    rate = Rate()
    for _ in range(BURST):
        rate = rate.after(0.0)
    now = BURST / PER_SECOND
    for _ in range(BURST):
        assert rate.ready_at <= now + ROUNDING
        rate = rate.after(now)


def claims(*names: str, size: float = 10) -> list[Object]:
    """Unbound claims."""
    return [make.claim(name, size) for name in names]


def selected(name: str) -> Object:
    """An unbound claim for which kube-scheduler has selected a node."""
    raw = make.claim(name, 10)
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    return raw


def key_of(view: View, name: str) -> Any:
    """A pod's likeness."""
    pod = view.snapshot.pods["default", name]
    return likeness(pod, resolve(pod, view), view)


def pod(name: str, *claims: str, **fields: Any) -> Object:
    """A pod with a UID of its own."""
    return make.pod(*claims, name=name, uid=f"uid-{name}", **fields)


def test_pods_with_equal_claims_to_be_created_are_alike() -> None:
    """Whatever the claims are called; sizes tell them apart."""
    view = make.view(
        make.storage_class(), claims("x", "y"), claims("z", size=11), pod("x", "x"), pod("y", "y"), pod("z", "z")
    )
    assert key_of(view, "x") is not None
    assert key_of(view, "x") == key_of(view, "y")
    assert key_of(view, "x") != key_of(view, "z")


def test_pods_whose_volumes_need_no_local_room_are_alike_by_these_too() -> None:
    """A volume that may go anywhere has to find some room in the cluster."""
    view = make.view(
        make.storage_class(),
        make.storage_class("free", dataLocality="disabled"),
        *(make.claim(name, size, storage_class="free") for name, size in (("x", 10), ("y", 10), ("z", 11))),
        *(pod(name, name) for name in ("x", "y", "z")),
    )
    assert key_of(view, "x") == key_of(view, "y")
    assert key_of(view, "x") != key_of(view, "z")


UNLIKE: dict[str, list[Object]] = {
    "a volume that exists": [*make.bound("x", 10), pod("x", "x")],
    "a replica to return to": [*make.bound("x", 10), make.replica("r", "vol-x", "a", size=10), pod("x", "x")],
    "a selected node": [selected("x"), pod("x", "x")],
    "a claim that another pod mounts": [*claims("x"), pod("x", "x"), pod("other", "x")],
    "a claim in use": [*claims("x"), pod("x", "x"), pod("other", "x", node="a", phase="Running")],
}


@pytest.mark.parametrize("what", UNLIKE)
def test_a_pod_of_which_the_cluster_knows_more_is_unlike_all_others(what: str) -> None:
    """What is its own counts for it, and not against it."""
    assert key_of(make.view(make.storage_class(), *UNLIKE[what]), "x") is None


def waiting(name: str, message: str, **fields: Any) -> Object:
    """A pod of whose last attempt kube-scheduler wrote this."""
    raw = pod(name, "x", **fields)
    raw["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]
    return raw


@pytest.mark.parametrize("reason", [reason for reason in Reason if not reason.fits], ids=lambda reason: reason.name)
def test_a_new_leader_knows_a_refusal_by_any_of_its_texts(reason: Reason) -> None:
    """Beside kube-scheduler's own."""
    view = make.view(waiting("x", f"0/9 nodes are available: 1 Insufficient cpu, 8 {reason.text}. preemption: no"))
    assert [found.name for found in refused_before(view)] == ["x"]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(pod("x", "x"), id="not tried yet"),
        pytest.param(waiting("x", "0/9 nodes are available: 9 Insufficient cpu."), id="refused by others"),
        pytest.param(waiting("x", Reason.WAITING.text, node="a"), id="bound"),
        pytest.param(waiting("x", Reason.WAITING.text, phase="Failed"), id="finished"),
        pytest.param(waiting("x", Reason.WAITING.text, deleting=True), id="being deleted"),
    ],
)
def test_a_new_leader_leaves_other_pods_alone(raw: Object) -> None:
    """They are not its business, or nobody's."""
    assert list(refused_before(make.view(raw))) == []


class Cluster:
    """Two nodes of 100Gi and pods that take 60Gi."""

    def __init__(self, *numbers: int) -> None:
        self.view = View.of(
            make.snapshot(
                make.storage_class(),
                *(make.longhorn_node(name) for name in NODES),
                *(make.claim(f"x{number}", 60) for number in numbers),
                *(pod(f"x{number}", f"x{number}") for number in numbers),
            ),
            NOW,
        )

    def decide(self, number: int, ledger: Ledger) -> Decision:
        """About a pod, beside a ledger."""
        beside = Others(demands=Demands.of(self.view), ledger=ledger, joint=Joint())
        found = self.view.snapshot.pods["default", f"x{number}"]
        return finish(filter_nodes(found, NODES, Memory(self.view), Options(), beside))

    def promise(self, promises: Promises, number: int, ledger: Ledger, now: float = 0.0) -> None:
        """What the pod is promised of what is left."""
        decision = self.decide(number, promises.beside(ledger))
        promises.promise(self.view.snapshot.pods["default", f"x{number}"], decision, self.view, now)


def nodes(ledger: Ledger) -> dict[str, list[str]]:
    """The nodes of all offers, by UID."""
    return {offer.uid: sorted(offer.nodes) for offer in ledger.oldest_first()}


def test_promises_count_as_offers_of_one_node_each_in_a_copy_of_the_ledger() -> None:
    """That with most room; the ledger itself is as it was."""
    cluster, promises, ledger = Cluster(0, 1, 2), Promises(), Ledger()
    cluster.promise(promises, 0, ledger)
    cluster.promise(promises, 1, ledger)
    assert nodes(promises.beside(ledger)) == {"uid-x0": ["a"], "uid-x1": ["b"]}
    assert ledger.outstanding == 0
    assert not any(reason.fits for reason in cluster.decide(2, promises.beside(ledger)).reasons)


def test_a_promise_does_not_stand_in_its_own_pod_s_way() -> None:
    """As with offers."""
    cluster, promises, ledger = Cluster(0, 1), Promises(), Ledger()
    cluster.promise(promises, 0, ledger)
    cluster.promise(promises, 1, ledger)
    assert any(reason.fits for reason in cluster.decide(0, promises.beside(ledger)).reasons)


def test_a_promise_ends_by_age_or_when_it_is_ended() -> None:
    """Each end may have made room for others, and is counted."""
    cluster, promises, ledger = Cluster(0, 1), Promises(), Ledger()
    cluster.promise(promises, 0, ledger, now=10.0)
    cluster.promise(promises, 1, ledger, now=11.0)
    promises.lapse(9.9 + PROMISE_LIFE)
    assert (len(promises), promises.ended) == (2, 0)
    promises.lapse(10.0 + PROMISE_LIFE)
    assert (nodes(promises.beside(ledger)), promises.ended) == ({"uid-x1": ["b"]}, 1)
    promises.end("uid-x1")
    promises.end("uid-x1")
    assert (nodes(promises.beside(ledger)), promises.ended) == ({}, 2)


def test_a_real_offer_counts_instead_of_a_promise_to_the_same_pod() -> None:
    """It is newer."""
    cluster, promises = Cluster(0), Promises()
    cluster.promise(promises, 0, Ledger())
    ledger, _ = step(Ledger(), Offered(PodSeen("uid-x0"), frozenset(NODES), ("volume",)), 1.0)
    assert nodes(promises.beside(ledger)) == {"uid-x0": ["a", "b"]}


def test_promises_are_beside_whatever_the_ledger_has_become() -> None:
    """An offer that came after them, and one that ended."""
    cluster, promises, ledger = Cluster(0), Promises(), Ledger()
    cluster.promise(promises, 0, ledger)
    later, _ = step(ledger, Offered(PodSeen("uid-y"), frozenset("b"), ("volume",)), 1.0)
    assert nodes(promises.beside(later)) == {"uid-x0": ["a"], "uid-y": ["b"]}
    ended, _ = step(later, TimePassed(), 100.0)
    assert nodes(promises.beside(ended)) == {"uid-x0": ["a"]}


def test_a_pod_that_returns_to_its_replicas_is_promised_no_room() -> None:
    """It takes none."""
    view = View.of(
        make.snapshot(
            make.storage_class(),
            *(make.longhorn_node(name) for name in NODES),
            *make.bound("x", 60),
            make.replica("r", "vol-x", "a", size=60),
            pod("x", "x"),
        ),
        NOW,
    )
    promises, found = Promises(), view.snapshot.pods["default", "x"]
    decision = finish(filter_nodes(found, NODES, Memory(view), Options()))
    assert [reason.name for reason in decision.reasons] == ["HOME", "HOME_ELSEWHERE"]
    promises.promise(found, decision, view, 0.0)
    assert nodes(promises.beside(Ledger())) == {}
