"""Offers one rule at a time: how one begins, narrows and ends, what is late and ignored, and how wide one is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.extender.offer import nodes_with_most_free_space
from scheduler_core.offers.events import (
    Event,
    LeadershipLost,
    NodeSelected,
    NominationAdopted,
    ObservedPod,
    Offered,
    PodGone,
    Tick,
    Withdrawn,
)
from scheduler_core.offers.ledger import (
    MAX_INDEXED_NODES,
    NEVER,
    OFFER_LIFETIME,
    UNSCHEDULABLE_GRACE_PERIOD,
    Ledger,
    Offer,
    Outcome,
    OutcomeKind,
    offer_width,
    step,
)

POD = ObservedPod("u", "default", "web-0", version=10)
ABC = frozenset("abc")
MANY = frozenset(f"n{i}" for i in range(MAX_INDEXED_NODES + 1))
OFFERED = Offered(POD, ABC, volumes=("v",))
NEWER = replace(POD, version=11)
NO_VERSION = replace(POD, version=0)


def told(*events: tuple[float, Event], ledger: Ledger | None = None) -> tuple[Ledger, list[Outcome]]:
    """A ledger to which all of this happened, at these times, and what came of it."""
    ledger = ledger or Ledger()
    outcomes: list[Outcome] = []
    for now, event in events:
        ledger, came = step(ledger, event, now)
        outcomes += came
    return ledger, outcomes


def offered(event: Offered = OFFERED) -> Ledger:
    """A ledger with one offer, made at 100."""
    return told((100, event))[0]


def only(ledger: Ledger) -> Offer:
    """The one offer there is."""
    (offer,) = ledger.oldest_first()
    return offer


def summary(outcomes: list[Outcome]) -> list[tuple[str, OutcomeKind, float, str]]:
    """What became of whose offer, when, and the node."""
    return [(outcome.offer.uid, outcome.kind, outcome.at, outcome.node) for outcome in outcomes]


def test_a_new_ledger_is_empty() -> None:
    """Nothing is outstanding, and there is nothing to wake up for."""
    ledger = Ledger()
    assert (ledger.outstanding, ledger.next_end, ledger.offers_on("a"), ledger.offer_of("u")) == (0, NEVER, (), None)


@pytest.mark.parametrize("nodes", [frozenset("a"), ABC, MANY], ids=["one", "some", "wide"])
def test_an_offer_counts_on_all_its_nodes(nodes: frozenset[str]) -> None:
    """And nowhere else."""
    ledger = offered(replace(OFFERED, nodes=nodes))
    offer = only(ledger)
    assert offer == Offer(POD, nodes, ("v",), "", 100, 1, 10)
    assert ledger.offer_of("u") is offer
    assert all(ledger.offers_on(node) == (offer,) for node in nodes)
    assert ledger.offers_on("elsewhere") == ()


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(replace(OFFERED, nodes=frozenset()), id="no nodes"),
        pytest.param(replace(OFFERED, pod=replace(POD, uid="")), id="no uid"),
        pytest.param(replace(OFFERED, pod=replace(POD, node_name="a")), id="bound"),
        pytest.param(replace(OFFERED, pod=replace(POD, ended=True)), id="over"),
        pytest.param(NominationAdopted(POD), id="not nominated"),
        pytest.param(
            NominationAdopted(replace(POD, nominated_node="a", unschedulable="no")), id="nominated by preemption"
        ),
        pytest.param(NominationAdopted(replace(POD, nominated_node="a", node_name="a")), id="nominated and bound"),
        pytest.param(NominationAdopted(replace(POD, nominated_node="a", ended=True)), id="nominated and over"),
        pytest.param(NEWER, id="only seen"),
        pytest.param(NodeSelected("u", "a"), id="decided without an offer"),
        pytest.param(PodGone("u"), id="gone without an offer"),
        pytest.param(Withdrawn("u", 1), id="withdrawn without an offer"),
        pytest.param(LeadershipLost(), id="dropped without an offer"),
    ],
)
def test_there_is_no_offer(event: Event) -> None:
    """Nothing but `Offered` and `NominationAdopted` makes one, and not for every pod."""
    assert told((1, event)) == (Ledger(time=1), [])


def test_a_pod_that_asks_again_replaces_its_offer() -> None:
    """Its life begins anew, nothing of the old one is left."""
    ledger, outcomes = told(
        (130, Offered(replace(POD, version=12, nominated_node="x"), frozenset("cd"))), ledger=offered()
    )
    assert summary(outcomes) == [("u", OutcomeKind.REPLACED, 130, "")]
    assert outcomes[0].offer == only(offered())
    assert only(ledger) == Offer(replace(POD, version=12, nominated_node="x"), frozenset("cd"), (), "", 130, 2, 12)
    assert [len(ledger.offers_on(node)) for node in "abcd"] == [0, 0, 1, 1]
    assert ledger.next_end == 130 + OFFER_LIFETIME


@pytest.mark.parametrize(
    ("event", "became", "node"),
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
def test_an_offer_ends(nodes: frozenset[str], event: Event, became: OutcomeKind, node: str) -> None:
    """With one outcome, and nothing of it is left."""
    ledger, outcomes = told((101, event), ledger=offered(replace(OFFERED, nodes=nodes)))
    assert summary(outcomes) == [("u", became, 101, node)]
    assert ledger == Ledger(time=101, offers_made=1)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(replace(POD, version=9, node_name="b"), id="bound"),
        pytest.param(replace(POD, version=9, ended=True), id="over"),
    ],
)
def test_what_a_uid_never_takes_back_is_believed_however_late(event: Event) -> None:
    """A pod that was bound or deleted at an older version still is."""
    assert told((101, event), ledger=offered())[0].outstanding == 0


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
        pytest.param(NominationAdopted(replace(NEWER, nominated_node="b")), id="adopted although known"),
        pytest.param(Tick(), id="time"),
        pytest.param(POD, id="seen again"),
        pytest.param(NO_VERSION, id="seen again without version"),
        pytest.param(replace(POD, nominated_node="b"), id="nominated at the version it was asked about"),
        pytest.param(replace(POD, version=9, nominated_node="b"), id="nominated before"),
        pytest.param(replace(POD, unschedulable="no"), id="declared at the version it was asked about"),
        pytest.param(replace(POD, version=9, unschedulable="no"), id="declared before"),
    ],
)
def test_an_offer_stays_as_it_is(event: Event) -> None:
    """Late, repeated, or somebody else's."""
    assert told((101, event), ledger=offered()) == (replace(offered(), time=101), [])


def test_a_selected_node_known_before_is_no_news() -> None:
    """Only another one is a decision about this offer."""
    ledger = offered(replace(OFFERED, selected_node="a"))
    for node in ("a", ""):
        assert told((101, NodeSelected("u", node)), ledger=ledger) == (replace(ledger, time=101), [])
    assert summary(told((101, NodeSelected("u", "b")), ledger=ledger)[1]) == [("u", OutcomeKind.DECIDED, 101, "b")]


@pytest.mark.parametrize("version", [0, 11], ids=["without version", "with version"])
@pytest.mark.parametrize("nodes", [frozenset("b"), ABC, MANY | {"b"}], ids=["one", "some", "wide"])
def test_a_nomination_narrows_an_offer_to_its_node(nodes: frozenset[str], version: int) -> None:
    """It keeps its age and its end."""
    before = offered(replace(OFFERED, nodes=nodes))
    ledger, outcomes = told((101, replace(POD, version=version, nominated_node="b")), ledger=before)
    assert outcomes == [Outcome(only(before), OutcomeKind.NARROWED, 101, "b")]
    expected = replace(only(before), nodes=frozenset("b"), narrowed=True, version=max(10, version))
    assert only(ledger) == expected
    assert ledger.offers_on("b") == (expected,)
    assert all(ledger.offers_on(node) == () for node in nodes - {"b"})
    assert told((102, PodGone("u")), ledger=ledger)[0] == Ledger(time=102, offers_made=1)


@pytest.mark.parametrize(
    ("known", "seen"),
    [
        pytest.param("", replace(NEWER, nominated_node="elsewhere"), id="a node that was not offered"),
        pytest.param("b", replace(NEWER, nominated_node="b"), id="the nomination it already had"),
        pytest.param("b", replace(NEWER, nominated_node=""), id="a nomination taken back"),
        pytest.param("", replace(NEWER, nominated_node="b", unschedulable="no"), id="preemption"),
    ],
)
def test_a_nomination_does_not_narrow(known: str, seen: ObservedPod) -> None:
    """It says nothing about this offer, or comes from preemption."""
    before = offered(replace(OFFERED, pod=replace(POD, nominated_node=known)))
    ledger, outcomes = told((101, seen), ledger=before)
    assert outcomes == []
    assert (only(ledger).nodes, only(ledger).narrowed, only(ledger).version) == (ABC, False, 11)


def test_a_nomination_beside_a_condition_known_before_does_not_narrow() -> None:
    """Nobody can tell whether it is a decision; it does not end the offer either."""
    before = offered(replace(OFFERED, pod=replace(POD, unschedulable="no")))
    ledger, outcomes = told((101, replace(NEWER, nominated_node="b", unschedulable="no")), ledger=before)
    assert (outcomes, only(ledger)) == ([], replace(only(before), version=11))


def test_an_offer_is_narrowed_once() -> None:
    """Another nomination names no offered node, and the same one again is not news."""
    narrowed = told((101, replace(NEWER, nominated_node="b")), ledger=offered())[0]
    for version, node in ((0, "b"), (12, "b"), (12, "a")):
        ledger, outcomes = told((102, replace(POD, version=version, nominated_node=node)), ledger=narrowed)
        assert outcomes == []
        assert only(ledger) == replace(only(narrowed), version=max(11, version))


def test_events_older_than_the_newest_seen_are_ignored() -> None:
    """The nomination of version 11 comes after version 12, in which it was taken back."""
    ledger = told((101, replace(POD, version=12)), ledger=offered())[0]
    assert told((101, replace(NEWER, nominated_node="b")), ledger=ledger) == (ledger, [])


@pytest.mark.parametrize("version", [0, 11], ids=["without version", "with version"])
@pytest.mark.parametrize("known", ["", "earlier"])
def test_a_pod_declared_unschedulable_has_a_second_left(known: str, version: int) -> None:
    """The end is when it was due, not when it is noticed."""
    before = offered(replace(OFFERED, pod=replace(POD, unschedulable=known)))
    declared = replace(POD, version=version, unschedulable="no")
    ledger, outcomes = told((105, declared), (105.5, replace(declared, unschedulable="no!")), ledger=before)
    assert (outcomes, only(ledger).unschedulable_since) == ([], 105)
    assert ledger.next_end == 105 + UNSCHEDULABLE_GRACE_PERIOD
    assert told((105.99, Tick()), ledger=ledger)[1] == []
    ended, outcomes = told((120, Tick()), ledger=ledger)
    assert (summary(outcomes), ended) == ([("u", OutcomeKind.UNSCHEDULABLE, 106, "")], Ledger(time=120, offers_made=1))


def test_a_condition_known_before_is_no_declaration() -> None:
    """kube-scheduler had written it before it asked again."""
    ledger = offered(replace(OFFERED, pod=replace(POD, unschedulable="no")))
    assert only(told((101, replace(NEWER, unschedulable="no")), ledger=ledger)[0]).unschedulable_since is None


@pytest.mark.parametrize(
    ("event", "became"),
    [
        (NodeSelected("u", "b"), OutcomeKind.DECIDED),
        (replace(POD, version=12, node_name="b"), OutcomeKind.DECIDED),
        (PodGone("u"), OutcomeKind.GONE),
        (Withdrawn("u", 1), OutcomeKind.WITHDRAWN),
    ],
)
def test_within_the_second_another_end_counts(event: Event, became: OutcomeKind) -> None:
    """And nothing is left of the declaration."""
    ledger = told((101, replace(NEWER, unschedulable="no")), ledger=offered())[0]
    ended, outcomes = told((101.9, event), ledger=ledger)
    assert [outcome.kind for outcome in outcomes] == [became]
    assert ended == Ledger(time=101.9, offers_made=1)
    late = told((102, event), ledger=ledger)[1]
    assert summary(late) == [("u", OutcomeKind.UNSCHEDULABLE, 102, "")]


def test_asking_again_within_the_second_clears_the_declaration() -> None:
    """The new offer has its whole life before it."""
    ledger = told((101, replace(NEWER, unschedulable="no")), ledger=offered())[0]
    ledger = told((101.5, Offered(replace(NEWER, unschedulable="no"), ABC)), ledger=ledger)[0]
    assert (only(ledger).unschedulable_since, ledger.next_end) == (None, 101.5 + OFFER_LIFETIME)


def test_an_offer_lives_for_its_life() -> None:
    """And not at its end any more."""
    ledger = offered()
    assert ledger.next_end == 100 + OFFER_LIFETIME
    assert told((159.99, Tick()), ledger=ledger)[1] == []
    assert told((160, Tick()), ledger=ledger) == (
        Ledger(time=160, offers_made=1),
        [Outcome(only(ledger), OutcomeKind.EXPIRED, 160)],
    )


@pytest.mark.parametrize(("declared", "became"), [(158, OutcomeKind.UNSCHEDULABLE), (159, OutcomeKind.EXPIRED)])
def test_a_declaration_never_lengthens_a_life(declared: float, became: OutcomeKind) -> None:
    """Whichever end is due first."""
    ledger = told((declared, replace(NEWER, unschedulable="no")), ledger=offered())[0]
    assert summary(told((200, Tick()), ledger=ledger)[1]) == [("u", became, declared + 1, "")]
    late = told((159.5, replace(NEWER, unschedulable="no")), ledger=offered())[0]
    assert late.next_end == 160


def test_whatever_is_due_ends_before_the_event_is_looked_at() -> None:
    """A decision after the end of the life is not this offer's; an offer at that time is a new one."""
    assert summary(told((160, NodeSelected("u", "b")), ledger=offered())[1]) == [("u", OutcomeKind.EXPIRED, 160, "")]
    ledger, outcomes = told((170, OFFERED), ledger=offered())
    assert (summary(outcomes), only(ledger).made_at) == ([("u", OutcomeKind.EXPIRED, 160, "")], 170)


def test_the_next_end_may_be_that_of_a_younger_offer() -> None:
    """Declared offers end in the order of their declarations, before older ones that are not."""
    events = [(100 + at, Offered(ObservedPod(uid), ABC)) for at, uid in enumerate("uvw")]
    ledger = told(*events, (110, ObservedPod("w", unschedulable="no")), (110.5, ObservedPod("v", unschedulable="no")))[
        0
    ]
    assert ledger.next_end == 111
    ledger, outcomes = told((111, Tick()), ledger=ledger)
    assert summary(outcomes) == [("w", OutcomeKind.UNSCHEDULABLE, 111, "")]
    assert ledger.next_end == 111.5
    ledger = told((111.2, PodGone("v")), ledger=ledger)[0]
    assert ledger.next_end == 160


def test_ends_come_in_the_order_they_were_due() -> None:
    """By age and by declaration mixed; ties by UID."""
    events = [
        (100 + at, Offered(ObservedPod(uid), ABC)) for at, uid in ((0, "z"), (0, "y"), (1, "x"), (2, "w"), (58, "v"))
    ]
    ledger = told(*events, (159, ObservedPod("v", unschedulable="no")), (159.5, ObservedPod("w", unschedulable="no")))[
        0
    ]
    assert summary(told((300, Tick()), ledger=ledger)[1]) == [
        ("v", OutcomeKind.UNSCHEDULABLE, 160, ""),
        ("y", OutcomeKind.EXPIRED, 160, ""),
        ("z", OutcomeKind.EXPIRED, 160, ""),
        ("w", OutcomeKind.UNSCHEDULABLE, 160.5, ""),
        ("x", OutcomeKind.EXPIRED, 161, ""),
    ]


def test_a_clock_that_goes_back_counts_as_standing_still() -> None:
    """So nothing lives longer or shorter for it."""
    ledger = told((50, Offered(ObservedPod("v"), ABC)), ledger=offered())[0]
    assert [offer.made_at for offer in ledger.oldest_first()] == [100, 100]
    assert ledger.time == 100


def test_a_later_withdrawal_spares_the_newer_offer() -> None:
    """The first call hung up after the pod had asked again."""
    ledger = told((101, OFFERED), ledger=offered())[0]
    assert told((102, Withdrawn("u", 1)), ledger=ledger) == (replace(ledger, time=102), [])
    assert told((102, Withdrawn("u", 2)), ledger=ledger)[0].outstanding == 0


def test_losing_the_lead_drops_everything_and_numbers_go_on() -> None:
    """A withdrawal from before cannot hit an offer made after."""
    ledger, outcomes = told((101, Offered(ObservedPod("t"), ABC)), (102, LeadershipLost()), ledger=offered())
    assert summary(outcomes) == [("u", OutcomeKind.DROPPED, 102, ""), ("t", OutcomeKind.DROPPED, 102, "")]
    assert only(told((103, OFFERED), ledger=ledger)[0]).number == 3


def test_a_nomination_is_adopted_as_an_offer_of_its_node() -> None:
    """It lives like any other, and ends like any other."""
    pod = replace(POD, nominated_node="a")
    ledger = told((100, NominationAdopted(pod, ("v",))))[0]
    assert only(ledger) == Offer(pod, frozenset("a"), ("v",), "", 100, 1, 10, narrowed=True)
    assert ledger.offers_on("a") == (only(ledger),)
    assert told((105, NominationAdopted(pod, ("v",))), ledger=ledger) == (replace(ledger, time=105), [])
    assert told((105, replace(NEWER, nominated_node="")), ledger=ledger)[0].outstanding == 1
    assert summary(told((160, Tick()), ledger=ledger)[1]) == [("u", OutcomeKind.EXPIRED, 160, "")]


def test_offers_on_a_node_come_oldest_first_ties_by_uid() -> None:
    """Wide ones and others mixed."""
    nodes = {"d": ABC, "c": MANY | {"a"}, "b": ABC, "a": frozenset("a"), "e": frozenset("b")}
    events = [
        (now, Offered(ObservedPod(uid), nodes[uid])) for now, uid in ((1, "d"), (2, "c"), (2, "b"), (3, "a"), (3, "e"))
    ]
    ledger = told(*events)[0]
    assert [offer.uid for offer in ledger.offers_on("a")] == ["d", "b", "c", "a"]
    assert [offer.uid for offer in ledger.offers_on("b")] == ["d", "b", "e"]
    assert [offer.uid for offer in ledger.offers_on("n0")] == ["c"]
    assert [offer.uid for offer in ledger.oldest_first()] == ["d", "b", "c", "a", "e"]


def test_an_offer_of_exactly_the_limit_is_indexed() -> None:
    """One more is wide; both are found."""
    nodes = MANY - {"n0"}
    ledger = told((1, Offered(ObservedPod("i"), nodes)), (1, Offered(ObservedPod("w"), MANY)))[0]
    assert (len(ledger.uids_by_node), [uid for uid, _ in ledger.wide_offers]) == (MAX_INDEXED_NODES, ["w"])
    assert [offer.uid for offer in ledger.offers_on("n1")] == ["i", "w"]
    assert [offer.uid for offer in ledger.offers_on("n0")] == ["w"]


def test_wide_offers_of_the_same_nodes_are_told_apart() -> None:
    """The ends of one leave the other."""
    ledger = told((1, Offered(ObservedPod("v"), MANY)), (2, Offered(ObservedPod("w"), MANY)), (3, PodGone("v")))[0]
    assert [offer.uid for offer in ledger.offers_on("n0")] == ["w"]


def test_competing_offers_are_those_of_other_pods() -> None:
    """A pod does not compete with its own."""
    ledger = told((101, Offered(ObservedPod("v"), ABC)), ledger=offered())[0]
    assert (ledger.outstanding, ledger.competing_offers("u"), ledger.competing_offers("new")) == (2, 1, 2)


@pytest.mark.parametrize(
    ("competing", "expected"),
    [(0, "abcdefg"), (1, "bcd"), (2, "bc"), (3, "b"), (6, "b"), (7, "b"), (1000, "b")],
)
def test_an_offer_is_as_wide_as_its_share(competing: int, expected: str) -> None:
    """Rounded down, at least one; the most room first, ties by name."""
    fitting = list(zip((1, 9, 5, 5, 5, 2, 4), "abcdefg", strict=True))
    for order in (fitting, fitting[::-1], fitting[3:] + fitting[:3]):
        assert nodes_with_most_free_space(order, offer_width(len(order), competing)) == frozenset(expected)


@pytest.mark.parametrize("competing", [0, 1, 5])
def test_no_fitting_node_makes_no_offer(competing: int) -> None:
    """The pod is refused; `Offered` with no nodes then ends its earlier offer."""
    assert nodes_with_most_free_space((), offer_width(0, competing)) == frozenset()


def test_the_page_about_offers_names_every_ending() -> None:
    """docs/reservations.md lists them in the code's order, by the names the metrics have."""
    page = (Path(__file__).parents[3] / "docs/reservations.md").read_text()
    assert re.findall(r"^\| ([a-z]+) \|", page, re.MULTILINE)[1:] == [
        ending.value for ending in OutcomeKind if ending is not OutcomeKind.NARROWED
    ]


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), max_size=8), st.integers(1, 4))
def test_of_upper_bounds_the_real_rooms_decide(rooms: list[tuple[int, int]], count: int) -> None:
    """Which are asked for only where they may matter."""
    real = {f"n{number}": room for number, (room, _) in enumerate(rooms)}
    bounds = [(room + more, f"n{number}") for number, (room, more) in enumerate(rooms)]
    found = nodes_with_most_free_space(bounds, count, lambda name, _: real[name])
    assert found == nodes_with_most_free_space(((room, name) for name, room in real.items()), count)
    asked: list[str] = []

    def told(name: str, room: int) -> int:
        asked.append(name)
        return room

    nodes_with_most_free_space([(9, "a"), (8, "b"), (7, "c")], 1, told)
    assert asked == ["a"]
