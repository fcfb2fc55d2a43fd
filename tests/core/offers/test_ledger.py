"""Offers, rule by rule: how they begin, narrow and end, which events are ignored, and how wide they are."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.decide.offered_nodes import nodes_with_most_free_space
from scheduler_core.offers.ledger import MAX_INDEXED_NODES, Ledger, offer_width, step
from scheduler_core.offers.outstanding_offer import (
    HOLD_LIFETIME,
    NEVER,
    OFFER_LIFETIME,
    UNSCHEDULABLE_GRACE_PERIOD,
    Event,
    LeadershipLost,
    NodeSelected,
    ObservedPod,
    Offer,
    Offered,
    OffersRestored,
    Outcome,
    OutcomeKind,
    PodGone,
    RecordedOffer,
    Tick,
    Withdrawn,
)
from scheduler_core.values import replace

POD = ObservedPod("u", "default", "web-0", version=10)
ABC = frozenset("abc")
MANY = frozenset(f"n{i}" for i in range(MAX_INDEXED_NODES + 1))
OFFERED = Offered(POD, ABC, volumes=("v",))
NEWER = replace(POD, version=11)
NO_VERSION = replace(POD, version=0)


def apply(*events: tuple[float, Event], ledger: Ledger | None = None) -> tuple[Ledger, list[Outcome]]:
    """Applies events at these times, and returns the ledger and all outcomes."""
    ledger = ledger or Ledger()
    outcomes: list[Outcome] = []
    for now, event in events:
        ledger, outcomes_of_event = step(ledger, event, now)
        outcomes += outcomes_of_event
    return ledger, outcomes


def ledger_with_offer(event: Offered = OFFERED) -> Ledger:
    return apply((100, event))[0]


def single_offer(ledger: Ledger) -> Offer:
    (offer,) = ledger.oldest_first()
    return offer


def summarize(outcomes: list[Outcome]) -> list[tuple[str, OutcomeKind, float, str]]:
    return [(outcome.offer.uid, outcome.kind, outcome.at, outcome.node) for outcome in outcomes]


def test_a_new_ledger_is_empty() -> None:
    ledger = Ledger()
    assert (ledger.outstanding, ledger.next_end, ledger.offers_on("a"), ledger.offer_of("u")) == (0, NEVER, (), None)


@pytest.mark.parametrize("nodes", [frozenset("a"), ABC, MANY], ids=["one", "some", "wide"])
def test_an_offer_counts_on_all_its_nodes(nodes: frozenset[str]) -> None:
    ledger = ledger_with_offer(replace(OFFERED, nodes=nodes))
    offer = single_offer(ledger)
    assert offer == Offer(POD, nodes, ("v",), made_at=100, number=1, version=10)
    assert ledger.offer_of("u") is offer
    assert all(ledger.offers_on(node) == (offer,) for node in nodes)
    assert ledger.offers_on("elsewhere") == ()


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(replace(OFFERED, nodes=frozenset()), id="no nodes"),
        pytest.param(replace(OFFERED, pod=replace(POD, uid="")), id="no uid"),
        pytest.param(replace(OFFERED, pod=replace(POD, node_name="a")), id="bound"),
        pytest.param(replace(OFFERED, pod=replace(POD, ended=True)), id="finished"),
        pytest.param(NEWER, id="observed without an offer"),
        pytest.param(NodeSelected("u", "a"), id="decided without an offer"),
        pytest.param(PodGone("u"), id="gone without an offer"),
        pytest.param(Withdrawn("u", 1), id="withdrawn without an offer"),
        pytest.param(LeadershipLost(), id="dropped without an offer"),
    ],
)
def test_an_event_makes_no_offer(event: Event) -> None:
    assert apply((1, event)) == (Ledger(time=1), [])


def test_a_new_offer_replaces_the_earlier_offer_of_its_pod() -> None:
    ledger, outcomes = apply(
        (130, Offered(replace(POD, version=12, nominated_node="x"), frozenset("cd"))), ledger=ledger_with_offer()
    )
    assert summarize(outcomes) == [("u", OutcomeKind.REPLACED, 130, "")]
    assert outcomes[0].offer == single_offer(ledger_with_offer())
    assert single_offer(ledger) == Offer(
        replace(POD, version=12, nominated_node="x"), frozenset("cd"), made_at=130, number=2, version=12
    )
    assert [len(ledger.offers_on(node)) for node in "abcd"] == [0, 0, 1, 1]
    assert ledger.next_end == 130 + OFFER_LIFETIME


@pytest.mark.parametrize(
    ("event", "kind", "node"),
    [
        (replace(OFFERED, nodes=frozenset()), OutcomeKind.REPLACED, ""),
        (replace(OFFERED, pod=replace(POD, node_name="b")), OutcomeKind.DECIDED, "b"),
        (replace(OFFERED, pod=replace(POD, ended=True)), OutcomeKind.GONE, ""),
        (replace(NEWER, node_name="b"), OutcomeKind.DECIDED, "b"),
        (replace(NEWER, node_name="elsewhere"), OutcomeKind.DECIDED, "elsewhere"),
        (replace(NEWER, node_name="b", ended=True), OutcomeKind.DECIDED, "b"),
        (replace(NEWER, ended=True), OutcomeKind.GONE, ""),
        (NodeSelected("u", "b"), OutcomeKind.DECIDED, "b"),
        (NodeSelected("u", "elsewhere"), OutcomeKind.DECIDED, "elsewhere"),
        (PodGone("u"), OutcomeKind.GONE, ""),
        (Withdrawn("u", 1), OutcomeKind.WITHDRAWN, ""),
        (LeadershipLost(), OutcomeKind.DROPPED, ""),
    ],
)
@pytest.mark.parametrize("nodes", [ABC, MANY], ids=["some", "wide"])
def test_an_event_ends_an_offer(nodes: frozenset[str], event: Event, kind: OutcomeKind, node: str) -> None:
    ledger, outcomes = apply((101, event), ledger=ledger_with_offer(replace(OFFERED, nodes=nodes)))
    assert summarize(outcomes) == [("u", kind, 101, node)]
    assert ledger == Ledger(time=101, offers_made=1)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(replace(POD, version=9, node_name="b"), id="bound"),
        pytest.param(replace(POD, version=9, ended=True), id="finished"),
    ],
)
def test_a_late_binding_or_deletion_ends_the_offer(event: Event) -> None:
    assert apply((101, event), ledger=ledger_with_offer())[0].outstanding == 0


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(replace(NEWER, uid="other", node_name="b"), id="another uid under the name is bound"),
        pytest.param(replace(NEWER, uid="other", nominated_node="b"), id="another uid under the name is nominated"),
        pytest.param(PodGone("other"), id="another uid is gone"),
        pytest.param(NodeSelected("other", "b"), id="a claim of another uid"),
        pytest.param(NodeSelected("u", ""), id="a claim without a selected node"),
        pytest.param(Withdrawn("u", 0), id="an earlier offer is withdrawn"),
        pytest.param(Withdrawn("other", 1), id="another uid's offer is withdrawn"),
        pytest.param(Tick(), id="time"),
        pytest.param(POD, id="observed again"),
        pytest.param(NO_VERSION, id="observed again without version"),
        pytest.param(replace(POD, nominated_node="b"), id="nominated at the offer's version"),
        pytest.param(replace(POD, version=9, nominated_node="b"), id="nominated before"),
        pytest.param(replace(POD, unschedulable="no"), id="declared at the offer's version"),
        pytest.param(replace(POD, version=9, unschedulable="no"), id="declared before"),
    ],
)
def test_an_event_leaves_an_offer_unchanged(event: Event) -> None:
    assert apply((101, event), ledger=ledger_with_offer()) == (replace(ledger_with_offer(), time=101), [])


def test_the_node_selected_before_the_offer_does_not_end_it() -> None:
    ledger = ledger_with_offer(replace(OFFERED, selected_node="a"))
    for node in ("a", ""):
        assert apply((101, NodeSelected("u", node)), ledger=ledger) == (replace(ledger, time=101), [])
    assert summarize(apply((101, NodeSelected("u", "b")), ledger=ledger)[1]) == [("u", OutcomeKind.DECIDED, 101, "b")]


@pytest.mark.parametrize("version", [0, 11], ids=["without version", "with version"])
@pytest.mark.parametrize("nodes", [frozenset("b"), ABC, MANY | {"b"}], ids=["one", "some", "wide"])
def test_a_nomination_narrows_an_offer_to_its_node(nodes: frozenset[str], version: int) -> None:
    before = ledger_with_offer(replace(OFFERED, nodes=nodes))
    ledger, outcomes = apply((101, replace(POD, version=version, nominated_node="b")), ledger=before)
    assert outcomes == [Outcome(single_offer(before), OutcomeKind.NARROWED, 101, "b")]
    expected = replace(single_offer(before), nodes=frozenset("b"), narrowed_at=101, version=max(10, version))
    assert single_offer(ledger) == expected
    assert ledger.offers_on("b") == (expected,)
    assert all(ledger.offers_on(node) == () for node in nodes - {"b"})
    assert apply((102, PodGone("u")), ledger=ledger)[0] == Ledger(time=102, offers_made=1)


@pytest.mark.parametrize(
    ("nominated", "observed"),
    [
        pytest.param("", replace(NEWER, nominated_node="elsewhere"), id="a node that was not offered"),
        pytest.param("b", replace(NEWER, nominated_node="b"), id="the nomination it already had"),
        pytest.param("b", replace(NEWER, nominated_node=""), id="a nomination taken back"),
        pytest.param("", replace(NEWER, nominated_node="b", unschedulable="no"), id="preemption"),
    ],
)
def test_a_nomination_does_not_narrow(nominated: str, observed: ObservedPod) -> None:
    before = ledger_with_offer(replace(OFFERED, pod=replace(POD, nominated_node=nominated)))
    ledger, outcomes = apply((101, observed), ledger=before)
    assert outcomes == []
    assert (single_offer(ledger).nodes, single_offer(ledger).narrowed, single_offer(ledger).version) == (ABC, False, 11)


def test_a_nomination_of_a_pod_that_was_unschedulable_before_narrows() -> None:
    before = ledger_with_offer(replace(OFFERED, pod=replace(POD, unschedulable="no")))
    ledger, outcomes = apply((101, replace(NEWER, nominated_node="b", unschedulable="no")), ledger=before)
    assert summarize(outcomes) == [("u", OutcomeKind.NARROWED, 101, "b")]
    assert single_offer(ledger).nodes == frozenset("b")


def test_a_narrowed_offer_stands_for_as_long_as_its_nomination() -> None:
    """kube-scheduler's other writes may be minutes behind."""
    ledger = apply((101, replace(NEWER, nominated_node="b")), ledger=ledger_with_offer())[0]
    assert ledger.next_end == NEVER
    assert apply((9000, Tick()), ledger=ledger)[0].offers_on("b") == (single_offer(ledger),)


def test_a_request_about_the_nominated_node_alone_makes_a_narrowed_offer() -> None:
    for condition, end in (("", NEVER), ("preempting", 100 + HOLD_LIFETIME)):
        nominated = replace(POD, nominated_node="b", unschedulable=condition)
        ledger = ledger_with_offer(replace(OFFERED, pod=nominated, nodes=frozenset("b")))
        assert (single_offer(ledger).narrowed, ledger.next_end) == (True, end)


@pytest.mark.parametrize("node", ["", "a", "elsewhere"])
def test_a_narrowed_offer_ends_after_the_grace_period_once_its_nomination_is_withdrawn(node: str) -> None:
    ledger = apply(
        (101, replace(NEWER, nominated_node="b")),
        (200, replace(POD, version=12, nominated_node=node)),
        ledger=ledger_with_offer(),
    )[0]
    assert summarize(apply((300, Tick()), ledger=ledger)[1]) == [("u", OutcomeKind.UNSCHEDULABLE, 201, "")]


def test_an_offer_is_narrowed_once() -> None:
    narrowed = apply((101, replace(NEWER, nominated_node="b")), ledger=ledger_with_offer())[0]
    for version, node in ((0, "b"), (12, "b")):
        ledger, outcomes = apply((102, replace(POD, version=version, nominated_node=node)), ledger=narrowed)
        assert outcomes == []
        assert single_offer(ledger) == replace(single_offer(narrowed), version=max(11, version))


def test_observations_older_than_the_newest_are_ignored() -> None:
    ledger = apply((101, replace(POD, version=12)), ledger=ledger_with_offer())[0]
    assert apply((101, replace(NEWER, nominated_node="b")), ledger=ledger) == (ledger, [])


@pytest.mark.parametrize("version", [0, 11], ids=["without version", "with version"])
@pytest.mark.parametrize("earlier", ["", "earlier"])
def test_the_offer_of_an_unschedulable_pod_ends_after_the_grace_period(earlier: str, version: int) -> None:
    before = ledger_with_offer(replace(OFFERED, pod=replace(POD, unschedulable=earlier)))
    declared = replace(POD, version=version, unschedulable="no")
    ledger, outcomes = apply((105, declared), (105.5, replace(declared, unschedulable="no!")), ledger=before)
    assert (outcomes, single_offer(ledger).unschedulable_since) == ([], 105)
    assert ledger.next_end == 105 + UNSCHEDULABLE_GRACE_PERIOD
    assert apply((105.99, Tick()), ledger=ledger)[1] == []
    ended, outcomes = apply((120, Tick()), ledger=ledger)
    assert (summarize(outcomes), ended) == (
        [("u", OutcomeKind.UNSCHEDULABLE, 106, "")],
        Ledger(time=120, offers_made=1),
    )


def test_a_condition_from_before_the_offer_does_not_end_it() -> None:
    ledger = ledger_with_offer(replace(OFFERED, pod=replace(POD, unschedulable="no")))
    assert single_offer(apply((101, replace(NEWER, unschedulable="no")), ledger=ledger)[0]).unschedulable_since is None


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (NodeSelected("u", "b"), OutcomeKind.DECIDED),
        (replace(POD, version=12, node_name="b"), OutcomeKind.DECIDED),
        (PodGone("u"), OutcomeKind.GONE),
        (Withdrawn("u", 1), OutcomeKind.WITHDRAWN),
    ],
)
def test_a_different_end_within_the_grace_period_counts(event: Event, kind: OutcomeKind) -> None:
    ledger = apply((101, replace(NEWER, unschedulable="no")), ledger=ledger_with_offer())[0]
    ended, outcomes = apply((101.9, event), ledger=ledger)
    assert [outcome.kind for outcome in outcomes] == [kind]
    assert ended == Ledger(time=101.9, offers_made=1)
    after_late_event = apply((102, event), ledger=ledger)[1]
    assert summarize(after_late_event) == [("u", OutcomeKind.UNSCHEDULABLE, 102, "")]


def test_a_new_offer_within_the_grace_period_clears_the_declaration() -> None:
    ledger = apply((101, replace(NEWER, unschedulable="no")), ledger=ledger_with_offer())[0]
    ledger = apply((101.5, Offered(replace(NEWER, unschedulable="no"), ABC)), ledger=ledger)[0]
    assert (single_offer(ledger).unschedulable_since, ledger.next_end) == (None, 101.5 + OFFER_LIFETIME)


def test_an_offer_expires_at_the_end_of_its_lifetime() -> None:
    ledger = ledger_with_offer()
    assert ledger.next_end == 100 + OFFER_LIFETIME
    assert apply((159.99, Tick()), ledger=ledger)[1] == []
    assert apply((160, Tick()), ledger=ledger) == (
        Ledger(time=160, offers_made=1),
        [Outcome(single_offer(ledger), OutcomeKind.EXPIRED, 160)],
    )


@pytest.mark.parametrize(("declared", "kind"), [(158, OutcomeKind.UNSCHEDULABLE), (159, OutcomeKind.EXPIRED)])
def test_a_declaration_never_lengthens_a_lifetime(declared: float, kind: OutcomeKind) -> None:
    ledger = apply((declared, replace(NEWER, unschedulable="no")), ledger=ledger_with_offer())[0]
    assert summarize(apply((200, Tick()), ledger=ledger)[1]) == [("u", kind, declared + 1, "")]
    after_late_event = apply((159.5, replace(NEWER, unschedulable="no")), ledger=ledger_with_offer())[0]
    assert after_late_event.next_end == 160


def test_offers_that_are_due_end_before_the_event_is_applied() -> None:
    assert summarize(apply((160, NodeSelected("u", "b")), ledger=ledger_with_offer())[1]) == [
        ("u", OutcomeKind.EXPIRED, 160, "")
    ]
    ledger, outcomes = apply((170, OFFERED), ledger=ledger_with_offer())
    assert (summarize(outcomes), single_offer(ledger).made_at) == ([("u", OutcomeKind.EXPIRED, 160, "")], 170)


def test_the_next_end_may_be_that_of_a_younger_offer() -> None:
    events: list[tuple[float, Event]] = [(100 + at, Offered(ObservedPod(uid), ABC)) for at, uid in enumerate("uvw")]
    events += [(110, ObservedPod("w", unschedulable="no")), (110.5, ObservedPod("v", unschedulable="no"))]
    ledger = apply(*events)[0]
    assert ledger.next_end == 111
    ledger, outcomes = apply((111, Tick()), ledger=ledger)
    assert summarize(outcomes) == [("w", OutcomeKind.UNSCHEDULABLE, 111, "")]
    assert ledger.next_end == 111.5
    ledger = apply((111.2, PodGone("v")), ledger=ledger)[0]
    assert ledger.next_end == 160


def test_outcomes_are_in_the_order_in_which_they_were_due() -> None:
    events: list[tuple[float, Event]] = [
        (100 + at, Offered(ObservedPod(uid), ABC)) for at, uid in ((0, "z"), (0, "y"), (1, "x"), (2, "w"), (58, "v"))
    ]
    events += [(159, ObservedPod("v", unschedulable="no")), (159.5, ObservedPod("w", unschedulable="no"))]
    ledger = apply(*events)[0]
    assert summarize(apply((300, Tick()), ledger=ledger)[1]) == [
        ("v", OutcomeKind.UNSCHEDULABLE, 160, ""),
        ("y", OutcomeKind.EXPIRED, 160, ""),
        ("z", OutcomeKind.EXPIRED, 160, ""),
        ("w", OutcomeKind.UNSCHEDULABLE, 160.5, ""),
        ("x", OutcomeKind.EXPIRED, 161, ""),
    ]


def test_a_clock_that_goes_back_counts_as_standing_still() -> None:
    """So it neither lengthens nor shortens a lifetime."""
    ledger = apply((50, Offered(ObservedPod("v"), ABC)), ledger=ledger_with_offer())[0]
    assert [offer.made_at for offer in ledger.oldest_first()] == [100, 100]
    assert ledger.time == 100


def test_a_late_withdrawal_does_not_end_the_next_offer() -> None:
    ledger = apply((101, OFFERED), ledger=ledger_with_offer())[0]
    assert apply((102, Withdrawn("u", 1)), ledger=ledger) == (replace(ledger, time=102), [])
    assert apply((102, Withdrawn("u", 2)), ledger=ledger)[0].outstanding == 0


def test_losing_the_lead_drops_all_offers_and_no_number_is_used_twice() -> None:
    ledger, outcomes = apply((101, Offered(ObservedPod("t"), ABC)), (102, LeadershipLost()), ledger=ledger_with_offer())
    assert summarize(outcomes) == [("u", OutcomeKind.DROPPED, 102, ""), ("t", OutcomeKind.DROPPED, 102, "")]
    assert single_offer(apply((103, OFFERED), ledger=ledger)[0]).number == 3


PREEMPTING = replace(NEWER, nominated_node="b", unschedulable="preempting")
HOLD = replace(OFFERED, priority=7)


def test_a_hold_counts_against_pods_of_at_most_its_priority() -> None:
    hold = single_offer(ledger_with_offer(HOLD))
    assert [hold.counts_against(priority) for priority in (-1, 7, 8)] == [True, True, False]
    assert single_offer(ledger_with_offer()).counts_against(2_000_000_000)


def test_the_nomination_of_preemption_narrows_a_hold() -> None:
    ledger, outcomes = apply((101, PREEMPTING), ledger=ledger_with_offer(HOLD))
    assert summarize(outcomes) == [("u", OutcomeKind.NARROWED, 101, "b")]
    assert (ledger.offers_on("a"), single_offer(ledger).narrowed) == ((), True)
    assert apply((500, Tick()), ledger=ledger)[0].offers_on("b") == (single_offer(ledger),)


def test_a_narrowed_hold_outlives_a_new_condition() -> None:
    again = replace(PREEMPTING, version=12, unschedulable="still preempting")
    ledger = apply((101, PREEMPTING), (110, again), (200, Tick()), ledger=ledger_with_offer(HOLD))[0]
    assert single_offer(ledger).nodes == frozenset("b")


def test_a_narrowed_hold_ends_after_its_lifetime() -> None:
    """A nomination that leads nowhere must not keep room for ever."""
    ledger = apply((101, PREEMPTING), ledger=ledger_with_offer(HOLD))[0]
    assert summarize(apply((9000, Tick()), ledger=ledger)[1]) == [("u", OutcomeKind.EXPIRED, 101 + HOLD_LIFETIME, "")]


def test_a_hold_ends_after_the_grace_period_if_preemption_nominates_no_node() -> None:
    declared = replace(PREEMPTING, nominated_node="")
    ledger = apply((101, declared), ledger=ledger_with_offer(HOLD))[0]
    assert summarize(apply((300, Tick()), ledger=ledger)[1]) == [("u", OutcomeKind.UNSCHEDULABLE, 102, "")]


def test_a_nomination_after_the_condition_of_an_earlier_attempt_keeps_a_hold() -> None:
    earlier = replace(PREEMPTING, nominated_node="", unschedulable="no claim yet")
    nomination = replace(PREEMPTING, version=12)
    ledger = apply((101, earlier), (101.5, nomination), (200, Tick()), ledger=ledger_with_offer(HOLD))[0]
    assert (single_offer(ledger).nodes, ledger.next_end) == (frozenset("b"), 101.5 + HOLD_LIFETIME)
    withdrawn = replace(nomination, version=13, nominated_node="")
    renewed = replace(nomination, version=14)
    ledger, outcomes = apply((201, withdrawn), (201.5, renewed), (300, Tick()), ledger=ledger)
    assert (outcomes, single_offer(ledger).nodes) == ([], frozenset("b"))
    withdrawn = replace(withdrawn, version=15)
    assert summarize(apply((301, withdrawn), (400, Tick()), ledger=ledger)[1]) == [
        ("u", OutcomeKind.UNSCHEDULABLE, 302, "")
    ]


def test_a_hold_for_a_nominated_pod_stands_from_the_beginning() -> None:
    ledger = ledger_with_offer(replace(HOLD, pod=replace(PREEMPTING, version=10)))
    assert (single_offer(ledger).nodes, ledger.next_end) == (ABC, 100 + HOLD_LIFETIME)
    ledger = apply((101, replace(PREEMPTING, nominated_node="a")), ledger=ledger)[0]
    assert (single_offer(ledger).nodes, ledger.next_end) == (frozenset("a"), 100 + HOLD_LIFETIME)


def test_offers_on_a_node_are_sorted_by_age_and_uid() -> None:
    nodes = {"d": ABC, "c": MANY | {"a"}, "b": ABC, "a": frozenset("a"), "e": frozenset("b")}
    events = [
        (now, Offered(ObservedPod(uid), nodes[uid])) for now, uid in ((1, "d"), (2, "c"), (2, "b"), (3, "a"), (3, "e"))
    ]
    ledger = apply(*events)[0]
    assert [offer.uid for offer in ledger.offers_on("a")] == ["d", "b", "c", "a"]
    assert [offer.uid for offer in ledger.offers_on("b")] == ["d", "b", "e"]
    assert [offer.uid for offer in ledger.offers_on("n0")] == ["c"]
    assert [offer.uid for offer in ledger.oldest_first()] == ["d", "b", "c", "a", "e"]


def test_an_offer_of_exactly_the_limit_is_indexed() -> None:
    nodes = MANY - {"n0"}
    ledger = apply((1, Offered(ObservedPod("i"), nodes)), (1, Offered(ObservedPod("w"), MANY)))[0]
    assert (len(ledger.uids_by_node), [uid for uid, _ in ledger.wide_offers]) == (MAX_INDEXED_NODES, ["w"])
    assert [offer.uid for offer in ledger.offers_on("n1")] == ["i", "w"]
    assert [offer.uid for offer in ledger.offers_on("n0")] == ["w"]


def test_the_end_of_a_wide_offer_leaves_another_of_the_same_nodes() -> None:
    ledger = apply((1, Offered(ObservedPod("v"), MANY)), (2, Offered(ObservedPod("w"), MANY)), (3, PodGone("v")))[0]
    assert [offer.uid for offer in ledger.offers_on("n0")] == ["w"]


def test_competing_offers_are_those_of_other_pods() -> None:
    ledger = apply((101, Offered(ObservedPod("v"), ABC)), ledger=ledger_with_offer())[0]
    assert (ledger.outstanding, ledger.competing_offers("u"), ledger.competing_offers("new")) == (2, 1, 2)
    decided = apply((102, ObservedPod("v", nominated_node="a")), ledger=ledger)[0]
    assert (decided.competing_offers("u"), decided.competing_offers("v"), decided.competing_offers("new")) == (0, 1, 1)


@pytest.mark.parametrize(
    ("competing", "expected"), [(0, "abcdefg"), (1, "bcd"), (2, "bc"), (3, "b"), (6, "b"), (7, "b"), (1000, "b")]
)
def test_an_offer_has_its_share_of_the_nodes(competing: int, expected: str) -> None:
    fitting = list(zip((1, 9, 5, 5, 5, 2, 4), "abcdefg", strict=True))
    for order in (fitting, fitting[::-1], fitting[3:] + fitting[:3]):
        assert nodes_with_most_free_space(order, offer_width(len(order), competing)) == frozenset(expected)


@pytest.mark.parametrize("competing", [0, 1, 5])
def test_without_a_fitting_node_no_node_is_offered(competing: int) -> None:
    assert nodes_with_most_free_space((), offer_width(0, competing)) == frozenset()


def test_the_page_about_offers_names_every_ending() -> None:
    page = (Path(__file__).parents[3] / "docs/reservations.md").read_text()
    assert re.findall(r"^\| ([a-z]+) \|", page, re.MULTILINE)[1:] == [
        ending.value for ending in OutcomeKind if ending is not OutcomeKind.NARROWED
    ]


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), max_size=8), st.integers(1, 4))
def test_bounds_do_not_change_which_nodes_have_most_free_space(sizes: list[tuple[int, int]], count: int) -> None:
    free = {f"n{number}": size for number, (size, _) in enumerate(sizes)}
    bounds = [(size + excess, f"n{number}") for number, (size, excess) in enumerate(sizes)]
    offered = nodes_with_most_free_space(bounds, count, lambda name, _: free[name])
    assert offered == nodes_with_most_free_space(((size, name) for name, size in free.items()), count)
    computed: list[str] = []

    def compute(name: str, bound: int) -> int:
        computed.append(name)
        return bound

    nodes_with_most_free_space([(9, "a"), (8, "b"), (7, "c")], 1, compute)
    assert computed == ["a"]


def recorded(uid: str, age: float, **changes: Any) -> RecordedOffer:
    return RecordedOffer(replace(OFFERED, pod=replace(POD, uid=uid)), age, **changes)


def test_restored_offers_keep_their_age() -> None:
    """The oldest one is first, in whatever order they are recorded, and ends 60 s after it was made."""
    restored = OffersRestored((recorded("young", 5.0, number=9), recorded("old", 30.0, number=8)), offers_made=9)
    ledger, _ = apply((1000, restored))
    assert [(offer.uid, offer.made_at) for offer in ledger.oldest_first()] == [("old", 970), ("young", 995)]
    assert ledger.next_end == 1030
    ledger, outcomes = apply((1030, Tick()), ledger=ledger)
    assert [(outcome.offer.uid, outcome.kind) for outcome in outcomes] == [("old", OutcomeKind.EXPIRED)]


def test_a_restored_offer_keeps_what_was_observed() -> None:
    entry = recorded("u", 5.0, number=3, version=12, narrowed_age=2.0, unschedulable_age=0.25)
    ledger, _ = apply((1000, OffersRestored((entry,), offers_made=7)))
    offer = ledger.offers["u"]
    assert (offer.narrowed_at, offer.version, offer.number, offer.unschedulable_since) == (998, 12, 3, 999.75)
    assert ledger.next_end == 1000.75
    assert ledger.offers_made == 7


def test_offers_are_restored_into_an_empty_ledger_only() -> None:
    ledger, _ = apply((101, OffersRestored((recorded("other", 5.0),))), ledger=ledger_with_offer())
    assert set(ledger.offers) == {"u"}


def test_an_expired_offer_is_not_restored_for_long() -> None:
    ledger, _ = apply((1000, OffersRestored((recorded("u", 61.0),))), (1000, Tick()))
    assert ledger.outstanding == 0
