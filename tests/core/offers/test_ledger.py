"""Offers one rule at a time: how one begins, narrows and ends, what is late and ignored, and how wide one is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.extender.offer import roomiest
from scheduler_core.offers.ledger import (
    GRACE,
    NEVER,
    OFFER_LIFE,
    WIDE,
    Adopted,
    Became,
    Dropped,
    Event,
    Ledger,
    NodeSelected,
    Offer,
    Offered,
    Outcome,
    PodGone,
    PodSeen,
    TimePassed,
    Withdrawn,
    step,
    width,
)

POD = PodSeen("u", "default", "web-0", version=10)
ABC = frozenset("abc")
MANY = frozenset(f"n{i}" for i in range(WIDE + 1))
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


def summary(outcomes: list[Outcome]) -> list[tuple[str, Became, float, str]]:
    """What became of whose offer, when, and the node."""
    return [(outcome.offer.uid, outcome.became, outcome.at, outcome.node) for outcome in outcomes]


def test_a_new_ledger_is_empty() -> None:
    """Nothing is outstanding, and there is nothing to wake up for."""
    ledger = Ledger()
    assert (ledger.outstanding, ledger.next_end, ledger.on("a"), ledger.of("u")) == (0, NEVER, (), None)


@pytest.mark.parametrize("nodes", [frozenset("a"), ABC, MANY], ids=["one", "some", "wide"])
def test_an_offer_counts_on_all_its_nodes(nodes: frozenset[str]) -> None:
    """And nowhere else."""
    ledger = offered(replace(OFFERED, nodes=nodes))
    offer = only(ledger)
    assert offer == Offer(POD, nodes, ("v",), "", 100, 1, 10)
    assert ledger.of("u") is offer
    assert all(ledger.on(node) == (offer,) for node in nodes)
    assert ledger.on("elsewhere") == ()


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(replace(OFFERED, nodes=frozenset()), id="no nodes"),
        pytest.param(replace(OFFERED, pod=replace(POD, uid="")), id="no uid"),
        pytest.param(replace(OFFERED, pod=replace(POD, node_name="a")), id="bound"),
        pytest.param(replace(OFFERED, pod=replace(POD, over=True)), id="over"),
        pytest.param(Adopted(POD), id="not nominated"),
        pytest.param(Adopted(replace(POD, nominated="a", unschedulable="no")), id="nominated by preemption"),
        pytest.param(Adopted(replace(POD, nominated="a", node_name="a")), id="nominated and bound"),
        pytest.param(Adopted(replace(POD, nominated="a", over=True)), id="nominated and over"),
        pytest.param(NEWER, id="only seen"),
        pytest.param(NodeSelected("u", "a"), id="decided without an offer"),
        pytest.param(PodGone("u"), id="gone without an offer"),
        pytest.param(Withdrawn("u", 1), id="withdrawn without an offer"),
        pytest.param(Dropped(), id="dropped without an offer"),
    ],
)
def test_there_is_no_offer(event: Event) -> None:
    """Nothing but `Offered` and `Adopted` makes one, and not for every pod."""
    assert told((1, event)) == (Ledger(time=1), [])


def test_a_pod_that_asks_again_replaces_its_offer() -> None:
    """Its life begins anew, nothing of the old one is left."""
    ledger, outcomes = told((130, Offered(replace(POD, version=12, nominated="x"), frozenset("cd"))), ledger=offered())
    assert summary(outcomes) == [("u", Became.REPLACED, 130, "")]
    assert outcomes[0].offer == only(offered())
    assert only(ledger) == Offer(replace(POD, version=12, nominated="x"), frozenset("cd"), (), "", 130, 2, 12)
    assert [len(ledger.on(node)) for node in "abcd"] == [0, 0, 1, 1]
    assert ledger.next_end == 130 + OFFER_LIFE


@pytest.mark.parametrize(
    ("event", "became", "node"),
    [
        (replace(OFFERED, nodes=frozenset()), Became.REPLACED, ""),
        (replace(OFFERED, pod=replace(POD, node_name="b")), Became.DECIDED, "b"),
        (replace(OFFERED, pod=replace(POD, over=True)), Became.GONE, ""),
        (replace(NEWER, node_name="b"), Became.DECIDED, "b"),
        (replace(NEWER, node_name="elsewhere"), Became.DECIDED, "elsewhere"),
        (replace(NEWER, node_name="b", over=True), Became.DECIDED, "b"),
        (replace(NEWER, over=True), Became.GONE, ""),
        (NodeSelected("u", "b"), Became.DECIDED, "b"),
        (NodeSelected("u", "elsewhere"), Became.DECIDED, "elsewhere"),
        (PodGone("u"), Became.GONE, ""),
        (Withdrawn("u", 1), Became.WITHDRAWN, ""),
        (Dropped(), Became.DROPPED, ""),
    ],
)
@pytest.mark.parametrize("nodes", [ABC, MANY], ids=["some", "wide"])
def test_an_offer_ends(nodes: frozenset[str], event: Event, became: Became, node: str) -> None:
    """With one outcome, and nothing of it is left."""
    ledger, outcomes = told((101, event), ledger=offered(replace(OFFERED, nodes=nodes)))
    assert summary(outcomes) == [("u", became, 101, node)]
    assert ledger == Ledger(time=101, made=1)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(replace(POD, version=9, node_name="b"), id="bound"),
        pytest.param(replace(POD, version=9, over=True), id="over"),
    ],
)
def test_what_a_uid_never_takes_back_is_believed_however_late(event: Event) -> None:
    """A pod that was bound or deleted at an older version still is."""
    assert told((101, event), ledger=offered())[0].outstanding == 0


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(replace(NEWER, uid="other", node_name="b"), id="another uid under the name is bound"),
        pytest.param(replace(NEWER, uid="other", nominated="b"), id="another uid under the name is nominated"),
        pytest.param(PodGone("other"), id="another uid is gone"),
        pytest.param(NodeSelected("other", "b"), id="a claim of another uid"),
        pytest.param(NodeSelected("u", ""), id="a claim without a selected node"),
        pytest.param(Withdrawn("u", 0), id="an earlier offer is withdrawn"),
        pytest.param(Withdrawn("other", 1), id="another uid's offer is withdrawn"),
        pytest.param(Adopted(replace(NEWER, nominated="b")), id="adopted although known"),
        pytest.param(TimePassed(), id="time"),
        pytest.param(POD, id="seen again"),
        pytest.param(NO_VERSION, id="seen again without version"),
        pytest.param(replace(POD, nominated="b"), id="nominated at the version it was asked about"),
        pytest.param(replace(POD, version=9, nominated="b"), id="nominated before"),
        pytest.param(replace(POD, unschedulable="no"), id="declared at the version it was asked about"),
        pytest.param(replace(POD, version=9, unschedulable="no"), id="declared before"),
    ],
)
def test_an_offer_stays_as_it_is(event: Event) -> None:
    """Late, repeated, or somebody else's."""
    assert told((101, event), ledger=offered()) == (replace(offered(), time=101), [])


def test_a_selected_node_known_before_is_no_news() -> None:
    """Only another one is a decision about this offer."""
    ledger = offered(replace(OFFERED, selected="a"))
    for node in ("a", ""):
        assert told((101, NodeSelected("u", node)), ledger=ledger) == (replace(ledger, time=101), [])
    assert summary(told((101, NodeSelected("u", "b")), ledger=ledger)[1]) == [("u", Became.DECIDED, 101, "b")]


@pytest.mark.parametrize("version", [0, 11], ids=["without version", "with version"])
@pytest.mark.parametrize("nodes", [frozenset("b"), ABC, MANY | {"b"}], ids=["one", "some", "wide"])
def test_a_nomination_narrows_an_offer_to_its_node(nodes: frozenset[str], version: int) -> None:
    """It keeps its age and its end."""
    before = offered(replace(OFFERED, nodes=nodes))
    ledger, outcomes = told((101, replace(POD, version=version, nominated="b")), ledger=before)
    assert outcomes == [Outcome(only(before), Became.NARROWED, 101, "b")]
    expected = replace(only(before), nodes=frozenset("b"), narrowed=True, version=max(10, version))
    assert only(ledger) == expected
    assert ledger.on("b") == (expected,)
    assert all(ledger.on(node) == () for node in nodes - {"b"})
    assert told((102, PodGone("u")), ledger=ledger)[0] == Ledger(time=102, made=1)


@pytest.mark.parametrize(
    ("known", "seen"),
    [
        pytest.param("", replace(NEWER, nominated="elsewhere"), id="a node that was not offered"),
        pytest.param("b", replace(NEWER, nominated="b"), id="the nomination it already had"),
        pytest.param("b", replace(NEWER, nominated=""), id="a nomination taken back"),
        pytest.param("", replace(NEWER, nominated="b", unschedulable="no"), id="preemption"),
    ],
)
def test_a_nomination_does_not_narrow(known: str, seen: PodSeen) -> None:
    """It says nothing about this offer, or comes from preemption."""
    before = offered(replace(OFFERED, pod=replace(POD, nominated=known)))
    ledger, outcomes = told((101, seen), ledger=before)
    assert outcomes == []
    assert (only(ledger).nodes, only(ledger).narrowed, only(ledger).version) == (ABC, False, 11)


def test_a_nomination_beside_a_condition_known_before_does_not_narrow() -> None:
    """Nobody can tell whether it is a decision; it does not end the offer either."""
    before = offered(replace(OFFERED, pod=replace(POD, unschedulable="no")))
    ledger, outcomes = told((101, replace(NEWER, nominated="b", unschedulable="no")), ledger=before)
    assert (outcomes, only(ledger)) == ([], replace(only(before), version=11))


def test_an_offer_is_narrowed_once() -> None:
    """Another nomination names no offered node, and the same one again is not news."""
    narrowed = told((101, replace(NEWER, nominated="b")), ledger=offered())[0]
    for version, node in ((0, "b"), (12, "b"), (12, "a")):
        ledger, outcomes = told((102, replace(POD, version=version, nominated=node)), ledger=narrowed)
        assert outcomes == []
        assert only(ledger) == replace(only(narrowed), version=max(11, version))


def test_events_older_than_the_newest_seen_are_ignored() -> None:
    """The nomination of version 11 comes after version 12, in which it was taken back."""
    ledger = told((101, replace(POD, version=12)), ledger=offered())[0]
    assert told((101, replace(NEWER, nominated="b")), ledger=ledger) == (ledger, [])


@pytest.mark.parametrize("version", [0, 11], ids=["without version", "with version"])
@pytest.mark.parametrize("known", ["", "earlier"])
def test_a_pod_declared_unschedulable_has_a_second_left(known: str, version: int) -> None:
    """The end is when it was due, not when it is noticed."""
    before = offered(replace(OFFERED, pod=replace(POD, unschedulable=known)))
    declared = replace(POD, version=version, unschedulable="no")
    ledger, outcomes = told((105, declared), (105.5, replace(declared, unschedulable="no!")), ledger=before)
    assert (outcomes, only(ledger).declared_at) == ([], 105)
    assert ledger.next_end == 105 + GRACE
    assert told((105.99, TimePassed()), ledger=ledger)[1] == []
    ended, outcomes = told((120, TimePassed()), ledger=ledger)
    assert (summary(outcomes), ended) == ([("u", Became.UNSCHEDULABLE, 106, "")], Ledger(time=120, made=1))


def test_a_condition_known_before_is_no_declaration() -> None:
    """kube-scheduler had written it before it asked again."""
    ledger = offered(replace(OFFERED, pod=replace(POD, unschedulable="no")))
    assert only(told((101, replace(NEWER, unschedulable="no")), ledger=ledger)[0]).declared_at is None


@pytest.mark.parametrize(
    ("event", "became"),
    [
        (NodeSelected("u", "b"), Became.DECIDED),
        (replace(POD, version=12, node_name="b"), Became.DECIDED),
        (PodGone("u"), Became.GONE),
        (Withdrawn("u", 1), Became.WITHDRAWN),
    ],
)
def test_within_the_second_another_end_counts(event: Event, became: Became) -> None:
    """And nothing is left of the declaration."""
    ledger = told((101, replace(NEWER, unschedulable="no")), ledger=offered())[0]
    ended, outcomes = told((101.9, event), ledger=ledger)
    assert [outcome.became for outcome in outcomes] == [became]
    assert ended == Ledger(time=101.9, made=1)
    late = told((102, event), ledger=ledger)[1]
    assert summary(late) == [("u", Became.UNSCHEDULABLE, 102, "")]


def test_asking_again_within_the_second_clears_the_declaration() -> None:
    """The new offer has its whole life before it."""
    ledger = told((101, replace(NEWER, unschedulable="no")), ledger=offered())[0]
    ledger = told((101.5, Offered(replace(NEWER, unschedulable="no"), ABC)), ledger=ledger)[0]
    assert (only(ledger).declared_at, ledger.next_end) == (None, 101.5 + OFFER_LIFE)


def test_an_offer_lives_for_its_life() -> None:
    """And not at its end any more."""
    ledger = offered()
    assert ledger.next_end == 100 + OFFER_LIFE
    assert told((159.99, TimePassed()), ledger=ledger)[1] == []
    assert told((160, TimePassed()), ledger=ledger) == (
        Ledger(time=160, made=1),
        [Outcome(only(ledger), Became.EXPIRED, 160)],
    )


@pytest.mark.parametrize(("declared", "became"), [(158, Became.UNSCHEDULABLE), (159, Became.EXPIRED)])
def test_a_declaration_never_lengthens_a_life(declared: float, became: Became) -> None:
    """Whichever end is due first."""
    ledger = told((declared, replace(NEWER, unschedulable="no")), ledger=offered())[0]
    assert summary(told((200, TimePassed()), ledger=ledger)[1]) == [("u", became, declared + 1, "")]
    late = told((159.5, replace(NEWER, unschedulable="no")), ledger=offered())[0]
    assert late.next_end == 160


def test_whatever_is_due_ends_before_the_event_is_looked_at() -> None:
    """A decision after the end of the life is not this offer's; an offer at that time is a new one."""
    assert summary(told((160, NodeSelected("u", "b")), ledger=offered())[1]) == [("u", Became.EXPIRED, 160, "")]
    ledger, outcomes = told((170, OFFERED), ledger=offered())
    assert (summary(outcomes), only(ledger).made_at) == ([("u", Became.EXPIRED, 160, "")], 170)


def test_the_next_end_may_be_that_of_a_younger_offer() -> None:
    """Declared offers end in the order of their declarations, before older ones that are not."""
    events = [(100 + at, Offered(PodSeen(uid), ABC)) for at, uid in enumerate("uvw")]
    ledger = told(*events, (110, PodSeen("w", unschedulable="no")), (110.5, PodSeen("v", unschedulable="no")))[0]
    assert ledger.next_end == 111
    ledger, outcomes = told((111, TimePassed()), ledger=ledger)
    assert summary(outcomes) == [("w", Became.UNSCHEDULABLE, 111, "")]
    assert ledger.next_end == 111.5
    ledger = told((111.2, PodGone("v")), ledger=ledger)[0]
    assert ledger.next_end == 160


def test_ends_come_in_the_order_they_were_due() -> None:
    """By age and by declaration mixed; ties by UID."""
    events = [(100 + at, Offered(PodSeen(uid), ABC)) for at, uid in ((0, "z"), (0, "y"), (1, "x"), (2, "w"), (58, "v"))]
    ledger = told(*events, (159, PodSeen("v", unschedulable="no")), (159.5, PodSeen("w", unschedulable="no")))[0]
    assert summary(told((300, TimePassed()), ledger=ledger)[1]) == [
        ("v", Became.UNSCHEDULABLE, 160, ""),
        ("y", Became.EXPIRED, 160, ""),
        ("z", Became.EXPIRED, 160, ""),
        ("w", Became.UNSCHEDULABLE, 160.5, ""),
        ("x", Became.EXPIRED, 161, ""),
    ]


def test_a_clock_that_goes_back_counts_as_standing_still() -> None:
    """So nothing lives longer or shorter for it."""
    ledger = told((50, Offered(PodSeen("v"), ABC)), ledger=offered())[0]
    assert [offer.made_at for offer in ledger.oldest_first()] == [100, 100]
    assert ledger.time == 100


def test_a_later_withdrawal_spares_the_newer_offer() -> None:
    """The first call hung up after the pod had asked again."""
    ledger = told((101, OFFERED), ledger=offered())[0]
    assert told((102, Withdrawn("u", 1)), ledger=ledger) == (replace(ledger, time=102), [])
    assert told((102, Withdrawn("u", 2)), ledger=ledger)[0].outstanding == 0


def test_losing_the_lead_drops_everything_and_numbers_go_on() -> None:
    """A withdrawal from before cannot hit an offer made after."""
    ledger, outcomes = told((101, Offered(PodSeen("t"), ABC)), (102, Dropped()), ledger=offered())
    assert summary(outcomes) == [("u", Became.DROPPED, 102, ""), ("t", Became.DROPPED, 102, "")]
    assert only(told((103, OFFERED), ledger=ledger)[0]).number == 3


def test_a_nomination_is_adopted_as_an_offer_of_its_node() -> None:
    """It lives like any other, and ends like any other."""
    pod = replace(POD, nominated="a")
    ledger = told((100, Adopted(pod, ("v",))))[0]
    assert only(ledger) == Offer(pod, frozenset("a"), ("v",), "", 100, 1, 10, narrowed=True)
    assert ledger.on("a") == (only(ledger),)
    assert told((105, Adopted(pod, ("v",))), ledger=ledger) == (replace(ledger, time=105), [])
    assert told((105, replace(NEWER, nominated="")), ledger=ledger)[0].outstanding == 1
    assert summary(told((160, TimePassed()), ledger=ledger)[1]) == [("u", Became.EXPIRED, 160, "")]


def test_offers_on_a_node_come_oldest_first_ties_by_uid() -> None:
    """Wide ones and others mixed."""
    nodes = {"d": ABC, "c": MANY | {"a"}, "b": ABC, "a": frozenset("a"), "e": frozenset("b")}
    events = [
        (now, Offered(PodSeen(uid), nodes[uid])) for now, uid in ((1, "d"), (2, "c"), (2, "b"), (3, "a"), (3, "e"))
    ]
    ledger = told(*events)[0]
    assert [offer.uid for offer in ledger.on("a")] == ["d", "b", "c", "a"]
    assert [offer.uid for offer in ledger.on("b")] == ["d", "b", "e"]
    assert [offer.uid for offer in ledger.on("n0")] == ["c"]
    assert [offer.uid for offer in ledger.oldest_first()] == ["d", "b", "c", "a", "e"]


def test_an_offer_of_exactly_the_limit_is_indexed() -> None:
    """One more is wide; both are found."""
    nodes = MANY - {"n0"}
    ledger = told((1, Offered(PodSeen("i"), nodes)), (1, Offered(PodSeen("w"), MANY)))[0]
    assert (len(ledger.indexed), [uid for uid, _ in ledger.wide]) == (WIDE, ["w"])
    assert [offer.uid for offer in ledger.on("n1")] == ["i", "w"]
    assert [offer.uid for offer in ledger.on("n0")] == ["w"]


def test_wide_offers_of_the_same_nodes_are_told_apart() -> None:
    """The ends of one leave the other."""
    ledger = told((1, Offered(PodSeen("v"), MANY)), (2, Offered(PodSeen("w"), MANY)), (3, PodGone("v")))[0]
    assert [offer.uid for offer in ledger.on("n0")] == ["w"]


def test_competing_offers_are_those_of_other_pods() -> None:
    """A pod does not compete with its own."""
    ledger = told((101, Offered(PodSeen("v"), ABC)), ledger=offered())[0]
    assert (ledger.outstanding, ledger.competing("u"), ledger.competing("new")) == (2, 1, 2)


@pytest.mark.parametrize(
    ("competing", "expected"),
    [(0, "abcdefg"), (1, "bcd"), (2, "bc"), (3, "b"), (6, "b"), (7, "b"), (1000, "b")],
)
def test_an_offer_is_as_wide_as_its_share(competing: int, expected: str) -> None:
    """Rounded down, at least one; the most room first, ties by name."""
    fitting = list(zip((1, 9, 5, 5, 5, 2, 4), "abcdefg", strict=True))
    for order in (fitting, fitting[::-1], fitting[3:] + fitting[:3]):
        assert roomiest(order, width(len(order), competing)) == frozenset(expected)


@pytest.mark.parametrize("competing", [0, 1, 5])
def test_no_fitting_node_makes_no_offer(competing: int) -> None:
    """The pod is refused; `Offered` with no nodes then ends its earlier offer."""
    assert roomiest((), width(0, competing)) == frozenset()


def test_the_page_about_offers_names_every_ending() -> None:
    """docs/reservations.md lists them in the code's order, by the names the metrics have."""
    page = (Path(__file__).parents[3] / "docs/reservations.md").read_text()
    assert re.findall(r"^\| ([a-z]+) \|", page, re.MULTILINE)[1:] == [
        ending.value for ending in Became if ending is not Became.NARROWED
    ]


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), max_size=8), st.integers(1, 4))
def test_of_upper_bounds_the_real_rooms_decide(rooms: list[tuple[int, int]], count: int) -> None:
    """Which are asked for only where they may matter."""
    real = {f"n{number}": room for number, (room, _) in enumerate(rooms)}
    bounds = [(room + more, f"n{number}") for number, (room, more) in enumerate(rooms)]
    found = roomiest(bounds, count, lambda name, _: real[name])
    assert found == roomiest(((room, name) for name, room in real.items()), count)
    asked: list[str] = []

    def told(name: str, room: int) -> int:
        asked.append(name)
        return room

    roomiest([(9, "a"), (8, "b"), (7, "c")], 1, told)
    assert asked == ["a"]
