"""Which of the fitting nodes are offered: those with plenty of room, then a share of the others."""

from collections.abc import Mapping

import pytest

from scheduler_core.decide.decision import NO_SCORES, FilterOptions, Packing
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.offered_nodes import MANY_NODES, MAX_OF_MANY_NODES, choose_nodes, choose_one_node
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import Ledger
from scheduler_core.structs import replace
from tests import builders as make
from tests.builders import Object
from tests.worlds.offers import with_offer

NODES = ("a", "b", "c", "d")


def nodes_of_size(sizes: Mapping[str, int]) -> list[Object]:
    return [make.longhorn_node(name, size) for name, size in sizes.items()]


def chosen(
    *objects: Object | list[Object],
    claims: tuple[str, ...] = ("data",),
    competing: int = 4,
    offer_to: str = "",
    scores: Mapping[str, int] = NO_SCORES,
) -> str:
    """The nodes chosen for a pod with these claims, as letters; another pod has an offer of `offer_to`."""
    state = make.state(
        make.storage_class(), *objects, make.claim("other", 20), make.pod("other", name="other", uid="o")
    )
    ledger = with_offer(Ledger(), state.view, "other", offer_to, 0.0) if offer_to else Ledger()
    pod = make.as_pod(make.pod(*claims))
    decision = filter_nodes(pod, NODES, state, FilterOptions(), make.competing(state, ledger))
    decision = replace(decision, scores=scores)
    nodes = choose_nodes(decision, state.view, competing)
    assert choose_one_node(decision, state.view) <= nodes
    return "".join(sorted(nodes))


@pytest.mark.parametrize(("size", "expected"), [(19, "c"), (20, "bc")])
def test_a_node_that_could_take_the_pod_twice_stays_in(size: int, expected: str) -> None:
    nodes = nodes_of_size({"a": 15, "b": size, "c": 500, "d": 5})
    assert chosen(nodes, make.claim("data", 10)) == expected


@pytest.mark.parametrize(("size", "expected"), [(59, "c"), (60, "bc")])
def test_what_is_offered_to_others_counts_twice_too(size: int, expected: str) -> None:
    """20Gi are offered on b: they, the pod's 10Gi, and as many bytes again."""
    nodes = nodes_of_size({"a": 15, "b": size, "c": 500, "d": 5})
    assert chosen(nodes, make.claim("data", 10), offer_to="b") == expected


@pytest.mark.parametrize(("competing", "expected"), [(5, "abcd"), (6, "abc"), (8, "a"), (20, "a")])
def test_room_is_left_for_as_many_pods_again_as_have_offers(competing: int, expected: str) -> None:
    nodes = nodes_of_size({"a": 49, "b": 29, "c": 29, "d": 29})
    assert chosen(nodes, make.claim("data", 10), competing=competing) == expected


@pytest.mark.parametrize(("pods", "expected"), [(6, "abcd"), (7, "abc"), (9, "a"), (30, "a")])
def test_room_is_left_for_the_pods_that_kube_scheduler_has_yet_to_ask_about(pods: int, expected: str) -> None:
    nodes = nodes_of_size({"a": 49, "b": 29, "c": 29, "d": 29})
    to_schedule = [make.pod("data", name=f"next-{number}", uid=f"next-{number}") for number in range(pods)]
    assert chosen(nodes, make.claim("data", 10), to_schedule, competing=0) == expected


def test_no_room_is_left_for_pods_that_are_decided() -> None:
    nodes = nodes_of_size({"a": 49, "b": 29, "c": 29, "d": 29})
    decided: list[Object] = []
    for number in range(9):
        claim = make.claim(f"decided-{number}", 1)
        claim["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
        decided += [claim, make.pod(f"decided-{number}", name=f"decided-{number}", uid=f"decided-{number}")]
    assert chosen(nodes, make.claim("data", 10), decided, competing=0) == "abcd"


@pytest.mark.parametrize(
    ("pods", "nodes", "expected"),
    [(0, MANY_NODES + 1, MANY_NODES + 1), (1, MANY_NODES, MANY_NODES), (1, MANY_NODES + 1, MAX_OF_MANY_NODES)],
)
def test_while_pods_are_to_come_few_nodes_of_many_are_offered(pods: int, nodes: int, expected: int) -> None:
    names = tuple(f"n{number:03}" for number in range(nodes))
    to_schedule = [make.pod("data", name=f"next-{number}", uid=f"next-{number}") for number in range(pods)]
    longhorn_nodes = nodes_of_size(dict.fromkeys(names, 500))
    state = make.state(make.storage_class(), longhorn_nodes, make.claim("data", 10), make.pod("data"), to_schedule)
    pod = make.as_pod(make.pod("data"))
    decision = filter_nodes(pod, names, state, FilterOptions(), make.competing(state))
    assert len(choose_nodes(decision, state.view, competing=0)) == expected


@pytest.mark.parametrize(("competing", "expected"), [(0, "abcd"), (1, "bc"), (2, "b"), (9, "b")])
def test_of_nodes_with_little_room_a_share_is_offered(competing: int, expected: str) -> None:
    nodes = nodes_of_size({"a": 11, "b": 19, "c": 18, "d": 17})
    assert chosen(nodes, make.claim("data", 10), competing=competing) == expected


@pytest.mark.parametrize(("competing", "expected"), [(0, "abcd"), (1, "ad"), (2, "d"), (9, "d")])
def test_of_nodes_with_little_room_those_with_the_highest_score_are_offered(competing: int, expected: str) -> None:
    """By room b and c would come first."""
    nodes = nodes_of_size({"a": 11, "b": 19, "c": 18, "d": 17})
    scores = {"a": 5, "b": 0, "c": 4, "d": 10}
    assert chosen(nodes, make.claim("data", 10), competing=competing, scores=scores) == expected


def test_scores_narrow_no_offer_where_all_nodes_have_plenty_of_room() -> None:
    nodes = nodes_of_size(dict.fromkeys(NODES, 500))
    assert chosen(nodes, make.claim("data", 10), competing=9, scores={"a": 10}) == "abcd"


def test_a_node_with_the_highest_score_and_little_room_is_offered_next_to_those_with_plenty() -> None:
    nodes = nodes_of_size({"a": 11, "b": 500, "c": 500, "d": 12})
    assert chosen(nodes, make.claim("data", 10), scores={"a": 10}) == "abc"
    assert chosen(nodes, make.claim("data", 10)) == "bc"


@pytest.mark.parametrize(("score", "expected"), [(0, 0), (10, 2)])
def test_of_many_nodes_with_plenty_those_with_the_highest_score_are_offered(score: int, expected: int) -> None:
    names = tuple(f"n{number:03}" for number in range(2 * MANY_NODES))
    gold = ("n100", "n150")
    longhorn_nodes = nodes_of_size({name: 400 if name in gold else 500 for name in names})
    state = make.state(make.storage_class(), longhorn_nodes, make.claim("data", 10), make.pod("data", name="next"))
    pod = make.as_pod(make.pod("data"))
    decision = filter_nodes(pod, names, state, FilterOptions(), make.competing(state))
    nodes = choose_nodes(replace(decision, scores=dict.fromkeys(gold, score)), state.view, competing=1)
    assert (len(nodes), len(nodes.intersection(gold))) == (MAX_OF_MANY_NODES, expected)


def test_next_to_nodes_with_plenty_the_others_may_have_no_share() -> None:
    nodes = nodes_of_size({"a": 11, "b": 19, "c": 18, "d": 30})
    assert (chosen(nodes, make.claim("data", 10)), chosen(nodes, make.claim("data", 10), competing=2)) == ("d", "bd")


def test_stale_safe_nodes_come_before_order_safe_ones_with_more_room() -> None:
    nodes = [
        make.longhorn_node("a", 25),
        make.longhorn_node("b", {"one": make.disk(19), "two": make.disk(19)}),
        make.longhorn_node("c", {"one": make.disk(18), "two": make.disk(18)}),
        make.longhorn_node("d", 21),
    ]
    state = make.state(make.storage_class(), nodes, make.claim("x", 10), make.claim("y", 10))
    options = FilterOptions(packing=Packing.ORDER_SAFE)
    pod = make.as_pod(make.pod("x", "y"))
    decision = filter_nodes(pod, NODES, state, options, make.competing(state))
    assert decision.unsafe == {"b": Reason.STALE_UNSAFE, "c": Reason.STALE_UNSAFE}
    offered = ["".join(sorted(choose_nodes(decision, state.view, competing))) for competing in (0, 1, 3)]
    assert offered == ["abcd", "ad", "a"]


def volume_with_replica(name: str, size: int, written: int, *replicas: Object) -> list[Object]:
    """A bound claim of a volume with replicas, `written` Gi of which are used."""
    objects = make.bound(name, size, actual=written)
    return [*objects, *replicas]


def kept(volume: str, node: str, size: int) -> Object:
    return make.replica(f"{volume}-{node}", f"vol-{volume}", node, size=size)


def test_a_pod_with_a_bound_and_a_new_claim_is_offered_the_home_of_its_data() -> None:
    objects = [*volume_with_replica("data", 10, 5, kept("data", "c", 10)), make.claim("new", 40)]
    nodes = nodes_of_size({"a": 90, "b": 80, "c": 60, "d": 90})
    assert chosen(nodes, objects, claims=("data", "new")) == "c"
    nodes = nodes_of_size({"a": 90, "b": 80, "c": 60, "d": 400})
    assert chosen(nodes, objects, claims=("data", "new")) == "cd"


def test_the_home_of_the_data_takes_no_room_of_the_pods_to_come() -> None:
    objects = [*volume_with_replica("data", 10, 5, kept("data", "c", 10)), make.claim("new", 40)]
    nodes = nodes_of_size({"a": 90, "b": 80, "c": 60, "d": 200})
    pods = [make.pod("new", name=f"next-{number}", uid=f"next-{number}") for number in range(6)]
    assert chosen(nodes, objects, pods, claims=("data", "new"), competing=0) == "c"


@pytest.mark.parametrize(
    ("sizes", "x", "y", "new"),
    [
        pytest.param((100, 90), (10, 5), (30, 5), 50, id="most of the data"),
        pytest.param((150, 140), (30, 5), (30, 25), 40, id="among equals the fewest bytes to rebuild"),
    ],
)
def test_the_node_with_the_data_comes_first(
    sizes: tuple[int, int], x: tuple[int, int], y: tuple[int, int], new: int
) -> None:
    """`x` is on a, `y` on b: their sizes, and the bytes written."""
    nodes = nodes_of_size({"a": sizes[0], "b": sizes[1], "c": sizes[0], "d": sizes[0]})
    volumes = [volume_with_replica("x", *x, kept("x", "a", x[0])), volume_with_replica("y", *y, kept("y", "b", y[0]))]
    assert chosen(nodes, *volumes, make.claim("new", new), claims=("x", "y", "new")) == "b"


def test_without_a_fitting_node_none_is_chosen() -> None:
    assert chosen(nodes_of_size({"a": 5}), make.claim("data", 10)) == ""
