"""What counts beside a pod on a node: shared claims once, nothing that was only guessed, no node that is gone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from scheduler_core.cluster.view import View
from scheduler_core.cooperative import finish
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Joint, Own
from scheduler_core.evaluation.equivalence_cache import Standing
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Decision, Options, Others, filter_nodes
from scheduler_core.offers.ledger import Ledger, Offered, PodSeen, step
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import NOW, Object

NOBODY = Own("", frozenset())


def offered(view: View, *names: str, nodes: frozenset[str] = frozenset("a")) -> Ledger:
    """Offers to some pods, one after the other."""
    ledger = Ledger()
    for number, name in enumerate(names):
        pod = view.snapshot.pods["default", name]
        event = Offered(PodSeen(pod.uid, pod.namespace, pod.name), nodes, resolve(pod, view).local)
        ledger, _ = step(ledger, event, float(number))
    return ledger


def pod(name: str, *claims: str, node: str = "") -> Object:
    """A pod that mounts claims."""
    return make.pod(*claims, name=name, uid=f"uid-{name}", node=node)


def asked(name: str, view: View, others: Others) -> Decision:
    """What a pod is told about node a."""
    return finish(filter_nodes(view.snapshot.pods["default", name], ("a",), Memory(view), Options(), others))


SHARING = [make.storage_class(), make.longhorn_node("a", 10), pod("p", "c"), pod("q", "c")]


@pytest.mark.parametrize("standing", [None, Standing()], ids=["anew", "kept"])
def test_a_claim_that_another_pod_was_offered_room_for_counts_once(standing: Standing | None) -> None:
    """Two pods of one ReadWriteOnce claim may share a node."""
    view = make.view(SHARING, make.claim("c", 8))
    others = Others(demands=Demands.of(view), ledger=offered(view, "p"), joint=Joint(), standing=standing)
    assert [reason.name for reason in asked("q", view, others).reasons] == ["ROOM"]


def test_a_shared_claim_counts_once_when_it_has_become_a_volume() -> None:
    """The other pod was offered room for the claim; nothing on the node has changed since."""
    before = make.view(SHARING, make.claim("c", 8), make.claim("d", 1), pod("r", "d"))
    after = make.view(SHARING, make.bound("c", 8), make.claim("d", 1), pod("r", "d"))
    ledger, joint = offered(before, "p"), Joint()
    assert asked("r", before, Others(demands=Demands.of(before), ledger=ledger, joint=joint)).reasons[0].fits
    others = Others(demands=Demands.of(after), ledger=ledger, joint=joint)
    assert [reason.name for reason in asked("q", after, others).reasons] == ["ROOM"]


def test_what_is_decided_for_a_pod_that_shares_a_claim_is_not_kept_for_others() -> None:
    """No watch has brought the other pod yet, so nothing but its offer tells that it mounts the claim."""
    objects = [make.storage_class(), make.longhorn_node("a", 10), pod("q", "c"), pod("r", "d")]
    view = make.view(objects, make.claim("c", 8), make.claim("d", 8))
    volumes = resolve(view.snapshot.pods["default", "q"], view).local
    ledger, _ = step(Ledger(), Offered(PodSeen("uid-unseen"), frozenset("a"), volumes), 0.0)
    others = Others(demands=Demands.of(view), ledger=ledger, joint=Joint(), standing=Standing())
    assert [asked(name, view, others).reasons[0].name for name in "qr"] == ["ROOM", "WAITING"]


def hard() -> View:
    """A node whose demands are hard to pack: nine, of which eight have room."""
    sizes = (16, 15, 14, 14, 14, 13, 11, 7, 7)
    disks = {f"disk-{number}": make.disk(size) for number, size in enumerate((20, 21, 35, 35), start=1)}
    names = [f"c{number}" for number in range(len(sizes))]
    claims = [make.claim(name, size) for name, size in zip(names, sizes, strict=True)]
    return make.view(make.storage_class(), make.longhorn_node("a", disks), claims, pod("p", *names, node="a"))


def demanded(view: View, joint: Joint, steps: int) -> int:
    """How many demands have room, found out in so many steps."""
    found = finish(joint.besides(Memory(view), Demands.of(view), Ledger(), ("a",), NOBODY, Budget(steps)))
    return len(found["a"].demanded)


def test_what_no_steps_were_left_for_is_found_out_when_there_are_some() -> None:
    """Nothing on the node changes, so that nothing else would make anybody look again."""
    view, joint = hard(), Joint()
    demands, memory, counts = Demands.of(view), Memory(view), list[int]()
    for steps in (0, 150_000):
        found = finish(joint.besides(memory, demands, Ledger(), ("a",), NOBODY, Budget(steps)))
        counts.append(len(found["a"].demanded))
    assert counts == [9, 8]
    assert demanded(view, Joint(), 150_000) == 8


def test_a_node_that_is_too_hard_is_not_tried_with_every_question() -> None:
    """It would leave nothing of the budget for the others."""
    view, joint = hard(), Joint()
    demands, memory, spent = Demands.of(view), Memory(view), list[bool]()
    for _ in range(2):
        budget = Budget(10)
        finish(joint.besides(memory, demands, Ledger(), ("a",), NOBODY, budget))
        spent.append(budget.gave_up > 0)
    assert spent == [True, False]


def test_nodes_that_are_gone_are_forgotten() -> None:
    """An autoscaler gives each new node a new name."""
    joint = Joint()
    for number in range(300):
        name = f"node-{number}"
        objects = [make.storage_class(), make.longhorn_node(name, 10), make.claim("c", 8), pod("p", "c", node=name)]
        view = View.of(make.snapshot(objects), NOW + timedelta(seconds=number))
        finish(joint.besides(Memory(view), Demands.of(view), Ledger(), (name,), NOBODY, Budget()))
    assert len(joint._seen) < 100


def test_a_volume_that_only_prefers_its_node_does_not_keep_the_others_from_counting() -> None:
    """It goes elsewhere where it has no room; what must be there still comes."""
    classes = [make.storage_class(), make.storage_class("strict", dataLocality="strict-local")]
    claims = [
        make.claim("c", 8, storage_class="strict"),
        make.claim("d", 8),
        make.claim("e", 8, storage_class="strict"),
    ]
    view = make.view(classes, make.longhorn_node("a", 15), claims, pod("p", "c", "d"), pod("q", "e"))
    prefers = resolve(view.snapshot.pods["default", "p"], view, require_best_effort=False).volumes
    ledger, _ = step(Ledger(), Offered(PodSeen("uid-p"), frozenset("a"), prefers), 0.0)
    others = Others(demands=Demands.of(view), ledger=ledger, joint=Joint())
    assert asked("q", view, others).reasons[0].name == "WAITING"
