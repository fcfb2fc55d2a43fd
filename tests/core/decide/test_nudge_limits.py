"""When a refused pod may be nudged, which pods are equivalent, and what a pending nudge takes."""

import math
from typing import Any

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.nudge_limits import (
    BACKOFF,
    BURST,
    NUDGE_LIMIT,
    NUDGES_PER_SECOND,
    PENDING_NUDGE_LIFETIME,
    NudgeBackoff,
    PendingNudges,
    equivalence_key,
    previously_refused_pods,
)
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered, Tick
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import Object

NODES = ("a", "b")
ROUNDING = 1e-9


def test_the_pauses_between_nudges_double_up_to_a_minute() -> None:
    backoff = NudgeBackoff()
    assert backoff.ready_at == -math.inf
    pauses = []
    for _ in range(9):
        now = max(1000.0, backoff.ready_at)
        backoff = backoff.after(now)
        pauses.append(backoff.ready_at - now)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_the_back_off_starts_again_after_twice_the_longest_pause() -> None:
    backoff = NudgeBackoff(attempts=9, last=0.0)
    assert backoff.after(2 * BACKOFF.longest - 0.1).attempts == 10
    restarted = backoff.after(2 * BACKOFF.longest)
    assert (restarted.attempts, restarted.ready_at) == (1, 2 * BACKOFF.longest + BACKOFF.shortest)


def test_a_burst_may_be_sent_at_once_and_no_more() -> None:
    """The next nudge may be sent a twentieth of a second later, and the next burst after a while."""
    bucket = NUDGE_LIMIT
    for now in (1000.0, 1000.0 + BURST / NUDGES_PER_SECOND):
        for _ in range(BURST):
            assert bucket.ready_at <= now + ROUNDING
            bucket = bucket.after(now)
        assert bucket.ready_at == pytest.approx(now + 1 / NUDGES_PER_SECOND)


def claims(*names: str, size: float = 10) -> list[Object]:
    return [make.claim(name, size) for name in names]


def claim_with_selected_node(name: str) -> Object:
    raw = make.claim(name, 10)
    raw["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    return raw


def key_of(view: View, name: str) -> Any:
    requested = view.snapshot.pods["default", name]
    return equivalence_key(requested, resolve(requested, view), view)


def pod(name: str, *claims: str, **fields: Any) -> Object:
    return make.pod(*claims, name=name, uid=f"uid-{name}", **fields)


def test_pods_with_equal_unbound_claims_are_equivalent() -> None:
    view = make.view(
        make.storage_class(), claims("x", "y"), claims("z", size=11), pod("x", "x"), pod("y", "y"), pod("z", "z")
    )
    assert key_of(view, "x") is not None
    assert key_of(view, "x") == key_of(view, "y")
    assert key_of(view, "x") != key_of(view, "z")


def test_pods_with_other_numbers_of_replicas_are_not_equivalent_if_all_need_a_place() -> None:
    classes = [make.storage_class(), make.storage_class("two", numberOfReplicas="2")]
    pods = [make.claim("x", 10), make.claim("y", 10, storage_class="two"), pod("x", "x"), pod("y", "y")]
    view = make.view(classes, pods)
    assert key_of(view, "x") == key_of(view, "y")
    strict = make.view(classes, pods, make.setting("allow-volume-creation-with-degraded-availability", "false"))
    assert key_of(strict, "x") != key_of(strict, "y")


def test_pods_with_equal_remote_volumes_are_equivalent() -> None:
    view = make.view(
        make.storage_class(),
        make.storage_class("remote", dataLocality="disabled"),
        *(make.claim(name, size, storage_class="remote") for name, size in (("x", 10), ("y", 10), ("z", 11))),
        *(pod(name, name) for name in ("x", "y", "z")),
    )
    assert key_of(view, "x") == key_of(view, "y")
    assert key_of(view, "x") != key_of(view, "z")


DISTINCT: dict[str, list[Object]] = {
    "a volume that exists": [*make.bound("x", 10), pod("x", "x")],
    "a replica to return to": [*make.bound("x", 10), make.replica("r", "vol-x", "a", size=10), pod("x", "x")],
    "a selected node": [claim_with_selected_node("x"), pod("x", "x")],
    "a claim that another pod mounts": [*claims("x"), pod("x", "x"), pod("other", "x")],
    "a claim in use": [*claims("x"), pod("x", "x"), pod("other", "x", node="a", phase="Running")],
}


@pytest.mark.parametrize("difference", DISTINCT)
def test_a_pod_that_objects_of_its_own_distinguish_is_equivalent_to_no_other(difference: str) -> None:
    assert key_of(make.view(make.storage_class(), *DISTINCT[difference]), "x") is None


def unschedulable_pod(name: str, message: str, **fields: Any) -> Object:
    """A pod whose PodScheduled condition is False with kube-scheduler's message."""
    raw = pod(name, "x", **fields)
    raw["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]
    return raw


@pytest.mark.parametrize("reason", [reason for reason in Reason if not reason.fits], ids=lambda reason: reason.name)
def test_a_new_leader_recognises_a_refusal_by_the_text_of_any_reason(reason: Reason) -> None:
    message = f"0/9 nodes are available: 1 Insufficient cpu, 8 {reason.text}. preemption: no"
    view = make.view(unschedulable_pod("x", message))
    assert [refused.name for refused in previously_refused_pods(view)] == ["x"]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(pod("x", "x"), id="not tried yet"),
        pytest.param(unschedulable_pod("x", "0/9 nodes are available: 9 Insufficient cpu."), id="refused by others"),
        pytest.param(unschedulable_pod("x", Reason.WAITING.text, node="a"), id="bound"),
        pytest.param(unschedulable_pod("x", Reason.WAITING.text, phase="Failed"), id="finished"),
        pytest.param(unschedulable_pod("x", Reason.WAITING.text, deleting=True), id="being deleted"),
    ],
)
def test_a_new_leader_ignores_pods_that_do_not_wait_for_longhorn_space(raw: Object) -> None:
    assert list(previously_refused_pods(make.view(raw))) == []


def test_a_new_leader_ignores_refused_pods_with_a_selected_node() -> None:
    view = make.view(claim_with_selected_node("x"), unschedulable_pod("x", Reason.WAITING.text))
    assert list(previously_refused_pods(view)) == []


class Cluster:
    """Two nodes of 100Gi, and pods x0, x1... that take 60Gi each."""

    def __init__(self, pods: int) -> None:
        self.state = make.state(
            make.storage_class(),
            [make.longhorn_node(name) for name in NODES],
            [make.claim(f"x{number}", 60) for number in range(pods)],
            [pod(f"x{number}", f"x{number}") for number in range(pods)],
        )

    def decide(self, number: int, ledger: Ledger) -> Decision:
        requested = self.state.view.snapshot.pods["default", f"x{number}"]
        contenders = make.competing(self.state, ledger)
        return filter_nodes(requested, NODES, self.state, FilterOptions(), contenders)

    def nudge(self, pending: PendingNudges, number: int, ledger: Ledger, now: float = 0.0) -> None:
        decision = self.decide(number, pending.add_to(ledger))
        pending.add(self.state.view.snapshot.pods["default", f"x{number}"], decision, self.state.view, now)


def nodes_by_uid(ledger: Ledger) -> dict[str, list[str]]:
    return {offer.uid: sorted(offer.nodes) for offer in ledger.oldest_first()}


def test_a_pending_nudge_counts_as_an_offer_of_one_node_in_a_copy_of_the_ledger() -> None:
    cluster = Cluster(pods=3)
    pending = PendingNudges()
    ledger = Ledger()
    cluster.nudge(pending, 0, ledger)
    cluster.nudge(pending, 1, ledger)
    assert nodes_by_uid(pending.add_to(ledger)) == {"uid-x0": ["a"], "uid-x1": ["b"]}
    assert ledger.outstanding == 0
    assert not cluster.decide(2, pending.add_to(ledger)).fits


def test_a_pod_does_not_compete_with_its_own_pending_nudge() -> None:
    cluster = Cluster(pods=2)
    pending = PendingNudges()
    ledger = Ledger()
    cluster.nudge(pending, 0, ledger)
    cluster.nudge(pending, 1, ledger)
    assert cluster.decide(0, pending.add_to(ledger)).fits


def test_a_pending_nudge_ends_by_age_or_explicitly() -> None:
    cluster = Cluster(pods=2)
    pending = PendingNudges()
    ledger = Ledger()
    cluster.nudge(pending, 0, ledger, now=10.0)
    cluster.nudge(pending, 1, ledger, now=11.0)
    pending.expire(9.9 + PENDING_NUDGE_LIFETIME)
    assert (len(pending), pending.ended) == (2, 0)
    pending.expire(10.0 + PENDING_NUDGE_LIFETIME)
    assert (nodes_by_uid(pending.add_to(ledger)), pending.ended) == ({"uid-x1": ["b"]}, 1)
    pending.end("uid-x1")
    pending.end("uid-x1")
    assert (nodes_by_uid(pending.add_to(ledger)), pending.ended) == ({}, 2)


def test_an_offer_replaces_the_pending_nudge_of_its_pod() -> None:
    pending = PendingNudges()
    Cluster(pods=1).nudge(pending, 0, Ledger())
    ledger, _ = step(Ledger(), Offered(ObservedPod("uid-x0"), frozenset(NODES), ("volume",)), 1.0)
    assert nodes_by_uid(pending.add_to(ledger)) == {"uid-x0": ["a", "b"]}


def test_pending_nudges_are_added_to_every_later_ledger() -> None:
    pending = PendingNudges()
    ledger = Ledger()
    Cluster(pods=1).nudge(pending, 0, ledger)
    later, _ = step(ledger, Offered(ObservedPod("uid-y"), frozenset("b"), ("volume",)), 1.0)
    assert nodes_by_uid(pending.add_to(later)) == {"uid-x0": ["a"], "uid-y": ["b"]}
    expired, _ = step(later, Tick(), 100.0)
    assert nodes_by_uid(pending.add_to(expired)) == {"uid-x0": ["a"]}


def test_a_pending_nudge_of_a_pod_that_returns_to_its_replicas_takes_no_space() -> None:
    state = make.state(
        make.storage_class(),
        [make.longhorn_node(name) for name in NODES],
        make.bound("x", 60),
        make.replica("r", "vol-x", "a", size=60),
        pod("x", "x"),
    )
    pending = PendingNudges()
    requested = state.view.snapshot.pods["default", "x"]
    decision = filter_nodes(requested, NODES, state, FilterOptions())
    assert [reason.name for reason in decision.reasons] == ["HOME", "HOME_ELSEWHERE"]
    pending.add(requested, decision, state.view, 0.0)
    assert nodes_by_uid(pending.add_to(Ledger())) == {}
