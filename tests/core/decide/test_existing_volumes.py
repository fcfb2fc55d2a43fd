"""A pod whose unbound claims kube-scheduler will bind to existing PersistentVolumes."""

from collections.abc import Sequence
from typing import Any

import pytest

from scheduler_core.decide.decision import Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.decide.nudge_limits import equivalence_key
from scheduler_core.decide.offered_nodes import make_offer, observed_pod, offer_to_restore
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import Offer, RecordedOffer
from scheduler_core.volumes.free_volume_matching import MAX_MATCHES
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import Object, explained, fitting, kept, longhorn_node, reasons

NODES = ("a", "b", "c")


def nodes(*sizes: float) -> list[Object]:
    """Nodes a, b, c with one disk of each size in Gi, and the label that PersistentVolumes may require."""
    pairs = list(zip(NODES, sizes, strict=False))
    return [longhorn_node(name, size) for name, size in pairs] + [make.kube_node(name, node=name) for name, _ in pairs]


CLASS = [make.storage_class()]
DATA = [*CLASS, make.claim("data", 50)]
POD = make.pod("data")


class Requests:
    """Requests of pods that come one after the other, each with the offers made before."""

    def __init__(self, *objects: Object | list[Object]) -> None:
        self.objects = objects
        self.state: ClusterState = make.state(*objects)
        self.ledger = Ledger()

    def filter(self, *claims: str, name: str, candidates: Sequence[str] = NODES) -> Decision:
        """Decides about a pod and makes its offer."""
        pod = make.as_pod(make.pod(*claims, name=name, uid=f"uid-{name}"))
        contenders = make.competing(self.state, self.ledger)
        decision = filter_nodes(pod, candidates, self.state, FilterOptions(), contenders)
        if decision.needs_offer:
            offered, _ = make_offer(pod, decision, self.state.view, Ledger())
            self.ledger, _ = step(self.ledger, offered, 0.0)
        return decision


def matched(decision: Decision) -> list[str]:
    return [volume.persistent_volume for volume in decision.resolution.volumes]


STATIC = [
    make.storage_class("static", provisioner="kubernetes.io/no-provisioner"),
    make.claim("data", 50, storage_class="static"),
]
MANY = [kept(f"pv-{index}", 50, "b", locality="disabled") for index in range(MAX_MATCHES + 1)]
BY_NODE = [kept("pv-a", 50, "a", node="a"), kept("pv-b", 50, "b", node="b")]
FOREIGN = make.available_volume("pv", 50, driver="nfs.csi.k8s.io")
# The claim of 50Gi and its class, Gi free on a, b and c, volumes -> the reason of each node.
MATCHES: dict[str, tuple[list[Object], tuple[float, ...], list[Any], str]] = {
    "a kept strict-local volume binds the pod to its node": (
        DATA, (500, 500, 500), kept("pv", 50, "b", locality="strict-local"), "STRICT_LOCAL_ELSEWHERE HOME STRICT_LOCAL_ELSEWHERE",
    ),
    "a claim of 50Gi that matches 100Gi needs 100Gi": (
        DATA, (60, 120, 99), kept("pv", 100), "INSUFFICIENT_STORAGE ROOM INSUFFICIENT_STORAGE",
    ),
    "a kept best-effort volume makes its node a home": (
        DATA, (500, 500, 500), kept("pv", 50, "c"), "HOME_ELSEWHERE HOME_ELSEWHERE HOME",
    ),
    "a class without provisioner is served by existing volumes": (
        STATIC, (500, 500), kept("pv", 50, "b", storage_class="static"), "HOME_ELSEWHERE HOME",
    ),
    "another driver's volume takes no Longhorn space": (DATA, (10,), [FOREIGN], "NO_VOLUMES"),
    "a capacity beyond 64 bits is read as the largest size": (
        DATA, (500,), [make.available_volume("pv", "16Ei"), make.volume("vol-pv", 50)], "ROOM",
    ),
    "each node is judged with its own match: 100Gi on b, a new volume elsewhere": (
        DATA, (60, 60, 40), kept("pv", 100, node="b"), "ROOM INSUFFICIENT_STORAGE INSUFFICIENT_STORAGE",
    ),
    "homes of different volumes are homes, all other nodes are not": (
        DATA, (500, 500, 500), BY_NODE, "HOME HOME HOME_ELSEWHERE",
    ),
    "equal strict-local volumes on one node bind the pod to it": (
        DATA, (500, 500, 500), [kept(f"pv-{index}", 50, "b", locality="strict-local") for index in range(3)],
        "STRICT_LOCAL_ELSEWHERE HOME STRICT_LOCAL_ELSEWHERE",
    ),
    "equal best-effort volumes need room for whichever is taken": (
        DATA, (90, 110, 60), [kept(f"pv-{name}", 50, name) for name in "ab"], "UNCERTAIN_VOLUME ROOM ROOM",
    ),
    "many equal volumes that need no local space do not matter": (DATA, (500, 500), MANY, "ATTACHABLE ATTACHABLE"),
}  # fmt: skip


@pytest.mark.parametrize(("claim", "sizes", "volumes", "expected"), MATCHES.values(), ids=MATCHES)
def test_a_node_is_judged_with_the_volume_that_the_claim_will_be_bound_to(
    claim: list[Object], sizes: tuple[float, ...], volumes: list[Any], expected: str
) -> None:
    assert " ".join(reasons(explained(POD, claim, nodes(*sizes), *volumes)).values()) == expected


def test_homes_that_are_no_candidates_do_not_count() -> None:
    assert reasons(explained(POD, DATA, nodes(500, 500, 500), *BY_NODE, nodes=["c"])) == {"c": "ROOM"}


# --- Which claims are matched ----------------------------------------------------------------------------------------


SELECTED = make.claim("data", 50)
SELECTED["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}


@pytest.mark.parametrize(
    ("claim", "matches"),
    [
        pytest.param([make.storage_class(binding="Immediate"), DATA[1]], True, id="its class binds at once"),
        pytest.param([*CLASS, SELECTED], True, id="a node is selected for it"),
        pytest.param(DATA, False, id="the scheduler binds no existing volumes"),
    ],
)
def test_a_claim_that_gets_a_new_volume_is_not_matched(claim: list[Object], matches: bool) -> None:
    options = FilterOptions(match_volumes=matches)
    assert matched(explained(POD, claim, nodes(500), kept("pv", 100, "a"), options=options).decision) == [""]


def test_a_selector_that_cannot_be_read_refuses_the_pod() -> None:
    claim = make.claim("data", 50)
    claim["spec"]["selector"] = {"matchExpressions": [{"key": "tier", "operator": "Near", "values": ["x"]}]}
    with pytest.raises(ResolutionError, match="default/data has a selector that cannot be read"):
        explained(POD, CLASS, claim, nodes(500), kept("pv", 50, "a"))


@pytest.mark.parametrize(
    ("bounds", "admitted"),
    [
        pytest.param(["-1"], "", id="alone it admits no node"),
        pytest.param(["-1", "1"], "c", id="beside a valid term that one decides"),
    ],
)
def test_a_term_whose_number_is_no_label_value_admits_no_node(bounds: Sequence[str], admitted: str) -> None:
    """labels.NewRequirement checks the number of Gt as a label value, too, and a label value starts with no sign. Where
    the volume is admitted, the claim of 50Gi needs 100Gi.
    """
    terms = [{"matchExpressions": [{"key": "rank", "operator": "Gt", "values": [bound]}]} for bound in bounds]
    volume = kept("pv", 100, nodeAffinity={"required": {"nodeSelectorTerms": terms}})
    ranked = [make.kube_node(name, rank=str(rank)) for rank, name in enumerate(NODES)]
    disks = [longhorn_node(name, 60) for name in NODES]
    explanation = explained(POD, DATA, ranked, disks, volume)
    assert fitting(explanation) == [name for name in NODES if name != admitted]


def test_an_offer_counts_for_the_volume_that_is_bound_on_each_node() -> None:
    """100Gi on b, 50Gi elsewhere."""
    requests = Requests(DATA, nodes(110, 110), kept("pv", 100, node="b"), make.claim("other", 55))
    requests.filter("data", name="first", candidates=("a", "b"))
    second = requests.filter("other", name="second", candidates=("a", "b"))
    assert [reason.name for reason in second.reasons] == ["ROOM", "SPOKEN_FOR"]


# --- Equal volumes ---------------------------------------------------------------------------------------------------


def test_equal_strict_local_volumes_on_different_nodes_refuse_every_node() -> None:
    """kube-scheduler would take one at random, and the pod would be stuck on any node but that volume's."""
    volumes = [kept(f"pv-{name}", 50, name, locality="strict-local") for name in NODES]
    explanation = explained(POD, DATA, nodes(500, 500, 500), *volumes)
    assert set(reasons(explanation).values()) == {"UNCERTAIN_VOLUME"}
    assert "may be bound to pv-a or pv-b or pv-c" in explanation.verdicts[0].detail


def test_the_worst_possible_match_of_a_node_counts() -> None:
    """Another driver's volume would take no space, the equal one of Longhorn does."""
    foreign = make.available_volume("pv-1", 50, driver="nfs.csi.k8s.io")
    explanation = explained(POD, DATA, nodes(60), foreign, kept("pv-2", 50))
    assert reasons(explanation) == {"a": "ROOM"}
    assert explanation.decision.needs_offer


@pytest.mark.parametrize("names", [("x", "y"), ("y", "x")])
def test_which_of_two_refusals_is_returned_does_not_depend_on_claim_names(names: tuple[str, str]) -> None:
    """One claim may be bound to a volume that needs another type of disk, the other to one that needs a tagged disk."""
    claims = [make.claim(name, 50) for name in names]
    for raw, label in zip(claims, ("first", "second"), strict=True):
        raw["spec"]["selector"] = {"matchLabels": {label: "yes"}}
    free = [
        *kept("pv-1", 50, labels={"first": "yes", "second": "yes"}),
        *kept("pv-2", 50, labels={"first": "yes"}),
        *kept("pv-3", 50, labels={"second": "yes"}),
    ]
    free[3]["spec"]["diskSelector"] = ["ssd"]
    free[5]["spec"]["dataEngine"] = "v2"
    explanation = explained(make.pod(*names), CLASS, claims, nodes(500), free)
    assert reasons(explanation) == {"a": "DISK_TYPE"}


def test_many_equal_volumes_refuse_the_pod_with_a_reason() -> None:
    """Each possible match would have to be evaluated."""
    volumes = [kept(f"pv-{index}", 50, "b") for index in range(MAX_MATCHES + 1)]
    with pytest.raises(ResolutionError, match="too many equal PersistentVolumes"):
        explained(POD, DATA, nodes(500, 500), *volumes)


# --- Other pods ------------------------------------------------------------------------------------------------------


def test_a_volume_that_another_pod_was_offered_nodes_for_is_taken() -> None:
    """Also by a pod that takes no space, because it returns to its data."""
    claims = [make.claim("first", 50), make.claim("second", 50)]
    requests = Requests(CLASS, claims, nodes(500, 500, 500), kept("pv-1", 50, "a"), kept("pv-2", 60, "b"))
    assert matched(requests.filter("first", name="first")) == ["pv-1"]
    assert matched(requests.filter("second", name="second")) == ["pv-2"]


def test_a_volume_that_needs_no_local_space_is_taken_too() -> None:
    claims = [make.claim("first", 50), make.claim("second", 50)]
    requests = Requests(CLASS, claims, nodes(100, 1000), kept("pv", 60, "b", locality="disabled"))
    assert matched(requests.filter("first", name="first", candidates=("a",))) == ["pv"]
    second = requests.filter("second", name="second", candidates=("a",))
    assert matched(second) == [""]
    assert second.fits


def test_a_pods_own_offer_does_not_take_its_volume() -> None:
    requests = Requests(DATA, nodes(500, 500, 500), kept("pv", 50, "a"))
    for _ in range(2):
        assert matched(requests.filter("data", name="first")) == ["pv"]


def test_of_two_equal_volumes_one_is_left_for_the_second_pod_and_none_for_the_third() -> None:
    claims = [make.claim(name, 50) for name in ("first", "second", "third")]
    requests = Requests(CLASS, claims, nodes(500, 500, 500), kept("pv-1", 50, "a"), kept("pv-2", 50, "a"))
    assert matched(requests.filter("first", name="first")) == ["pv-1", "pv-2"]
    assert matched(requests.filter("second", name="second")) == ["pv-1", "pv-2"]
    assert matched(requests.filter("third", name="third")) == [""]


def test_a_volume_that_an_offer_may_take_may_be_left() -> None:
    claims = [make.claim("first", 50), make.claim("second", 50)]
    volumes = [kept(f"pv-{name}", 50, name, node=name) for name in "ab"]
    requests = Requests(CLASS, claims, nodes(90, 110), *volumes)
    requests.filter("first", name="first", candidates=("a", "b"))
    second = requests.filter("second", name="second", candidates=("a", "b"))
    assert [reason.name for reason in second.reasons] == ["UNCERTAIN_VOLUME", "ROOM"]


def test_the_claim_of_a_decided_pod_counts_as_the_volume_it_was_matched_with() -> None:
    """Derived demand knows a new volume of 50Gi, the offer the existing one of 100Gi without a replica on the node."""
    first = make.pod("data", "log", name="first", uid="uid-first")
    log = make.claim("log", 1, storage_class="other")
    objects: list[Object | list[Object]] = [
        DATA,
        nodes(160),
        kept("pv", 100),
        first,
        make.storage_class("other", provisioner="x"),
        make.claim("second", 20),
    ]
    requests = Requests(*objects, log)
    requests.filter("data", name="first", candidates=("a",))
    log["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "a"}
    requests.state = make.state(*objects, log)
    assert [demand.volume.volume.size for demand in requests.state.demand.all] == [50 * make.GI]
    decision = requests.filter("second", name="second", candidates=("a",))
    (competitors,) = decision.competitors.values()
    assert [volume.volume.size for volume in competitors.volumes] == [100 * make.GI]


def test_a_nomination_is_adopted_with_the_volume_matched_on_its_node() -> None:
    """A new leader must not offer it to another pod."""
    pod = make.pod("data", name="first", uid="uid-first")
    pod["status"]["nominatedNodeName"] = "b"
    volumes = [kept("pv-b", 50, "b", node="b"), kept("pv-a", 50, "a", node="a")]
    view = make.view(DATA, nodes(500, 500, 500), *volumes, pod)
    offer = Offer(observed_pod(make.as_pod(pod)), frozenset("b"), made_at=-1.0, number=1, version=0)
    restored = offer_to_restore(RecordedOffer(offer), view, 0.0, FilterOptions())
    assert restored is not None
    assert [getattr(volume, "persistent_volume", "") for volume in restored.volumes] == ["pv-b"]


def test_pods_that_may_match_existing_volumes_are_not_equivalent_to_others() -> None:
    view = make.view(DATA, nodes(500), kept("pv", 50, "a"))
    pod = make.as_pod(POD)
    assert equivalence_key(pod, resolve(pod, view), view) is None
