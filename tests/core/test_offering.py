"""What is offered of a decision."""

from __future__ import annotations

from scheduler_core.memory import Memory
from scheduler_core.offering import offer_of
from scheduler_core.steps import finish
from scheduler_core.verbs import Options, filter_nodes
from tests import builders as make

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
