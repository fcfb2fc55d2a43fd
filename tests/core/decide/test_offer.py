"""What is offered of a decision."""

from collections.abc import Mapping

from hypothesis import given, settings, strategies as st

from scheduler_core.decide.decision import Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.offered_nodes import make_offer, offers_on_node
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offer, Offered, RecordedOffer
from tests import builders as make
from tests.builders import Object

NODES = ("a", "b", "c")


def nodes_of_size(sizes: Mapping[str, int]) -> list[Object]:
    return [make.longhorn_node(name, size) for name, size in sizes.items()]


def ledger_with(offers: int) -> Ledger:
    """A ledger with offers to other pods."""
    ledger = Ledger()
    for number in range(offers):
        ledger, _ = step(ledger, Offered(ObservedPod(f"other-{number}"), frozenset("x")), 0.0)
    return ledger


def test_a_node_deleted_since_the_decision_ranks_last() -> None:
    claims = [make.storage_class(), make.claim("data", 10)]
    before = make.state(claims, nodes_of_size(dict.fromkeys(NODES, 100)))
    after = make.view(claims, nodes_of_size({"b": 15, "c": 19}))
    pod = make.as_pod(make.pod("data"))
    decision = filter_nodes(pod, NODES, before, FilterOptions())
    offered, answer = make_offer(pod, decision, after, ledger_with(2))
    assert offered.nodes == {"c"}
    assert [reason.name for reason in answer.reasons] == ["NOT_OFFERED", "NOT_OFFERED", "ROOM"]


def test_without_competing_offers_every_fitting_node_is_offered() -> None:
    nodes = nodes_of_size({"a": 70, "b": 50, "c": 80})
    state = make.state(make.storage_class(), make.claim("data", 60), nodes)
    pod = make.as_pod(make.pod("data"))
    decision = filter_nodes(pod, NODES, state, FilterOptions())
    offered, answer = make_offer(pod, decision, state.view, Ledger())
    assert offered.nodes == {"a", "c"}
    assert answer.reasons == decision.reasons


def test_of_a_record_the_undecided_offers_of_a_node_count() -> None:
    names = ("here", "elsewhere", "bound", "broken")
    pods = [
        make.pod(name, name=f"pod-{name}", uid=f"uid-{name}", node="a" if name == "bound" else "") for name in names
    ]
    claims = [make.claim(name, 10) for name in names if name != "broken"]
    view = make.view(make.storage_class(), claims, pods, nodes_of_size(dict.fromkeys(NODES, 100)))
    recorded = [
        RecordedOffer(
            Offer(
                ObservedPod(f"uid-{name}", "default", f"pod-{name}"),
                frozenset("b" if name == "elsewhere" else "a"),
                made_at=-1.0,
                number=number,
                version=0,
            )
        )
        for number, name in enumerate(names)
    ]
    ledger = offers_on_node(recorded, "a", view, FilterOptions(), now=5.0)
    assert [(offer.uid, offer.nodes, len(offer.volumes)) for offer in ledger.offers_on("a")] == [
        ("uid-here", frozenset("a"), 1)
    ]
    assert ledger.outstanding == 1


def test_an_offer_without_names_of_nodes_counts_on_every_node() -> None:
    claims = [make.storage_class(), make.claim("data", 10)]
    view = make.view(claims, make.pod("data", uid="u"), nodes_of_size(dict.fromkeys(NODES, 100)))
    offer = Offer(ObservedPod("u", "default", "pod"), frozenset(), made_at=-1.0, number=1, version=0)
    recorded = RecordedOffer(offer, everywhere=True)
    for node in NODES:
        [offer] = offers_on_node([recorded], node, view, FilterOptions(), now=5.0).offers_on(node)
        assert (offer.nodes, len(offer.volumes)) == (frozenset(NODES), 1)


def nodes_offered_to_data(*objects: Object | list[Object]) -> frozenset[str]:
    """The nodes offered to a pod with claim data while two other offers count."""
    state = make.state(*objects)
    pod = make.as_pod(make.pod("data"))
    decision = filter_nodes(pod, NODES, state, FilterOptions(), make.competing(state))
    offered, _ = make_offer(pod, decision, state.view, ledger_with(2))
    return offered.nodes


def tagged_node(name: str, ssd: int, hdd: int = 1) -> Object:
    return make.longhorn_node(name, {"ssd": make.disk(ssd, tags=("ssd",)), "hdd": make.disk(hdd, tags=("hdd",))})


CLASSES = [make.storage_class("ssd", diskSelector="ssd"), make.storage_class("hdd", diskSelector="hdd")]
SSD_CLAIM = make.claim("data", 90, storage_class="ssd")


def demand_on_b(size: int, storage_class: str) -> list[Object]:
    return [
        make.claim("other", size, storage_class=storage_class),
        make.pod("other", name="other", uid="uid-other", node="b"),
    ]


def test_nodes_are_ranked_by_the_space_that_the_pod_can_use() -> None:
    nodes = [tagged_node("a", 100, 9_000), tagged_node("b", 150), tagged_node("c", 120)]
    assert nodes_offered_to_data(CLASSES, nodes, SSD_CLAIM) == {"b"}
    assert nodes_offered_to_data(CLASSES, nodes, SSD_CLAIM, demand_on_b(50, "ssd")) == {"c"}
    nodes = [tagged_node("a", 100), tagged_node("b", 150, 300), tagged_node("c", 120)]
    assert nodes_offered_to_data(CLASSES, nodes, SSD_CLAIM, demand_on_b(250, "hdd")) == {"b"}


def test_volumes_that_only_prefer_their_node_count_on_the_offered_nodes() -> None:
    """Two of 8Gi and a third do not fit on 20Gi."""
    names = tuple("abcdefghij")
    nodes = [make.longhorn_node(name, 20 if name == "a" else 4) for name in names]
    claims = [make.claim("x", 8), make.claim("y", 8), make.claim("z", 8, storage_class="strict")]
    classes = [make.storage_class(), make.storage_class("strict", dataLocality="strict-local")]
    pods = [make.pod(name, name=name, uid=f"uid-{name}") for name in "xyz"]
    state = make.state(classes, nodes, claims, pods)
    options = FilterOptions(require_best_effort=False)
    contenders = make.competing(state)
    ledger = Ledger()
    decisions: dict[str, Decision] = {}
    for name in "xyz":
        pod = state.view.snapshot.pods["default", name]
        contenders = make.competing(state, ledger, contenders.contention)
        decisions[name] = filter_nodes(pod, names, state, options, contenders)
        offered, _ = make_offer(pod, decisions[name], state.view, ledger)
        ledger, _ = step(ledger, offered, 0.0)
    assert all(reason.fits for name in "xy" for reason in decisions[name].reasons)
    assert ledger.offer_of("uid-x") is not None
    assert [len(offer.nodes) for offer in ledger.oldest_first()] == [10, 5]
    assert not ledger.with_unplaced_volumes
    assert decisions["z"].reasons[0].name == "WAITING"


@given(slots=st.lists(st.integers(0, 5), min_size=2, max_size=6), slack=st.integers(0, 3))
@settings(max_examples=40)
def test_every_pod_of_a_burst_that_fits_is_offered_a_node_before_any_decision(slots: list[int], slack: int) -> None:
    names = tuple(f"n{number}" for number in range(len(slots)))
    nodes = [make.longhorn_node(name, 10 * count) for name, count in zip(names, slots, strict=True)]
    pods = [f"p{number}" for number in range(sum(slots) - slack)]
    objects = [(make.claim(name, 10), make.pod(name, name=name, uid=f"uid-{name}")) for name in pods]
    state = make.state(make.storage_class(), nodes, *objects)
    contenders = make.competing(state)
    ledger = Ledger()
    for name in pods:
        pod = state.view.snapshot.pods["default", name]
        contenders = make.competing(state, ledger, contenders.contention)
        decision = filter_nodes(pod, names, state, FilterOptions(), contenders)
        assert decision.fits, (name, decision.reasons)
        offered, _ = make_offer(pod, decision, state.view, ledger)
        ledger, _ = step(ledger, offered, 0.0)


@given(
    slots=st.lists(st.integers(1, 5), min_size=2, max_size=6).filter(lambda slots: sum(slots) > 3),
    late_share=st.floats(0, 0.45),
)
@settings(max_examples=40)
def test_pods_that_a_burst_creates_late_are_each_offered_a_node(slots: list[int], late_share: float) -> None:
    names = tuple(f"n{number}" for number in range(len(slots)))
    nodes = [make.longhorn_node(name, 10 * count) for name, count in zip(names, slots, strict=True)]
    pods = [f"p{number}" for number in range(sum(slots))]
    claims = [make.claim(name, 10) for name in pods]
    ledger = Ledger()
    bound: dict[str, str] = {}
    first_wave = len(pods) - int(late_share * len(pods))
    for number, name in enumerate(pods):
        if number == first_wave:
            bound |= {uid: min(offer.nodes) for uid, offer in ledger.offers.items()}
            for uid, node in bound.items():
                ledger, _ = step(ledger, ObservedPod(uid, node_name=node), 1.0)
        created = [
            make.pod(pod, name=pod, uid=f"uid-{pod}", node=bound.get(f"uid-{pod}", ""))
            for pod in pods[: max(first_wave, number + 1)]
        ]
        state = make.state(make.storage_class(), nodes, claims, created)
        contenders = make.competing(state, ledger)
        pod = state.view.snapshot.pods["default", name]
        decision = filter_nodes(pod, names, state, FilterOptions(), contenders)
        assert decision.fits, (name, decision.reasons)
        offered, _ = make_offer(pod, decision, state.view, ledger)
        ledger, _ = step(ledger, offered, 1.0)
