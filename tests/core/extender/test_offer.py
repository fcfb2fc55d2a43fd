"""What is offered of a decision."""

from __future__ import annotations

from scheduler_core.cooperative import finish
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Joint
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Options, Others, filter_nodes
from scheduler_core.extender.offer import adoptions, offer_of
from scheduler_core.offers.ledger import Ledger, step
from tests import builders as make
from tests.builders import Object

NODES = ("a", "b", "c")


def test_a_node_that_is_gone_since_the_decision_has_no_room() -> None:
    """The cluster may change while a decision is worked out; the offer is made on the newest view."""
    claims = [make.storage_class(), make.claim("data", 10)]
    before = make.view(claims, *(make.longhorn_node(name) for name in NODES))
    after = make.view(claims, *(make.longhorn_node(name, size) for name, size in (("b", 50), ("c", 90))))
    pod = make.as_pod(make.pod("data"))
    decision = finish(filter_nodes(pod, NODES, Memory(before), Options()))
    event, answered = offer_of(pod, decision, after, competing=2)
    assert event.nodes == {"c"}
    assert [reason.name for reason in answered.reasons] == ["NOT_OFFERED", "NOT_OFFERED", "ROOM"]


def test_alone_a_pod_is_offered_all_that_fits_and_nothing_else() -> None:
    """Refusals keep their reasons."""
    view = make.view(
        make.storage_class(),
        make.claim("data", 60),
        *(make.longhorn_node(n, s) for n, s in zip(NODES, (70, 50, 80), strict=True)),
    )
    pod = make.as_pod(make.pod("data"))
    decision = finish(filter_nodes(pod, NODES, Memory(view), Options()))
    event, answered = offer_of(pod, decision, view, competing=0)
    assert event.nodes == {"a", "c"}
    assert answered.reasons == decision.reasons


def ranked(*objects: Object | list[Object], raw: Object, competing: int) -> frozenset[str]:
    """The nodes that are offered to a pod beside so many others."""
    view = make.view(*objects)
    others = Others(demands=Demands.of(view), joint=Joint())
    decision = finish(filter_nodes(make.as_pod(raw), NODES, Memory(view), Options(), others))
    return offer_of(make.as_pod(raw), decision, view, competing)[0].nodes


def disks(ssd: int, hdd: int = 1) -> dict[str, Object]:
    """A node's disks, by what they are."""
    return {"ssd": make.disk(ssd, tags=("ssd",)), "hdd": make.disk(hdd, tags=("hdd",))}


SSD = make.storage_class("ssd", diskSelector="ssd")
HDD = make.storage_class("hdd", diskSelector="hdd")
TAGGED = [
    SSD,
    HDD,
    make.longhorn_node("a", disks(100, 9_000)),
    make.longhorn_node("b", disks(300)),
    make.longhorn_node("c", disks(200)),
]


def test_nodes_are_ranked_by_the_room_that_the_pod_can_use() -> None:
    """Not by disks with other tags, nor by what is bound for those."""
    asks = make.pod("data")
    claim = make.claim("data", 10, storage_class="ssd")
    assert ranked(TAGGED, claim, raw=asks, competing=2) == {"b"}
    taken = [make.claim("taken", 150, storage_class="ssd"), make.pod("taken", name="other", uid="o", node="b")]
    assert ranked(TAGGED, claim, taken, raw=asks, competing=2) == {"c"}
    elsewhere = [make.claim("hdd", 250, storage_class="hdd"), make.pod("hdd", name="other", uid="o", node="b")]
    nodes = [
        SSD,
        HDD,
        make.longhorn_node("a", disks(100)),
        make.longhorn_node("b", disks(300, 300)),
        make.longhorn_node("c", disks(200)),
    ]
    assert ranked(nodes, claim, elsewhere, raw=asks, competing=2) == {"b"}


def test_volumes_that_only_prefer_their_node_count_where_the_pod_is_offered_room() -> None:
    """Admission is relaxed, accounting is not: two of 8Gi and a third do not fit on 20Gi."""
    names = tuple("abcdefghij")
    nodes = [make.longhorn_node(name, 20 if name == "a" else 4) for name in names]
    claims = [make.claim("x", 8), make.claim("y", 8), make.claim("z", 8, storage_class="strict")]
    classes = [make.storage_class(), make.storage_class("strict", dataLocality="strict-local")]
    pods = [make.pod(name, name=name, uid=f"uid-{name}") for name in "xyz"]
    view, options = make.view(classes, nodes, claims, pods), Options(require_best_effort=False)
    demands, joint, ledger, told = Demands.of(view), Joint(), Ledger(), {}
    for name in "xyz":
        pod = view.snapshot.pods["default", name]
        others = Others(demands=demands, ledger=ledger, joint=joint)
        told[name] = finish(filter_nodes(pod, names, Memory(view), options, others))
        event, _ = offer_of(pod, told[name], view, ledger.competing(pod.uid))
        ledger, _ = step(ledger, event, 0.0)
    assert all(reason.fits for name in "xy" for reason in told[name].reasons), "they may go anywhere"
    assert ledger.of("uid-x") is not None
    assert [len(offer.nodes) for offer in ledger.oldest_first()] == [10, 5]
    assert not ledger.roaming
    assert [told["z"].reasons[0].name] == ["WAITING"]


def test_only_pods_that_take_something_are_adopted() -> None:
    """One with another driver's claims alone would narrow what others are offered."""
    pods = [make.pod(name, name=name, uid=f"uid-{name}") for name in ("ours", "far", "theirs")]
    for raw in pods:
        raw["status"]["nominatedNodeName"] = "a"
    classes = [
        make.storage_class("ours"),
        make.storage_class("far", dataLocality="disabled"),
        make.storage_class("theirs", provisioner="somebody.else"),
    ]
    claims = [make.claim(name, 10, storage_class=name) for name in ("ours", "far", "theirs")]
    view = make.view(classes, claims, pods, make.longhorn_node("a"))
    assert sorted(pod.name for pod, _ in adoptions(view)) == ["far", "ours"]
