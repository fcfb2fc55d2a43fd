"""Alike pods are answered alike, and no schedule of wishes exceeds the rates."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cluster.view import View
from scheduler_core.cooperative import finish
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Joint
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Options, Others, Packing, filter_nodes
from scheduler_core.extender.nudge import BURST, FIRST_WAIT, LONGEST_WAIT, PER_SECOND, Pace, Rate, likeness
from scheduler_core.model.kube import Pod
from scheduler_core.offers.ledger import Ledger, Offered, PodSeen, step
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import NOW, Object

NODES = ("a", "b")
CLASSES = ("longhorn", "strict", "free", "tagged")
gaps = st.lists(st.one_of(st.floats(0, 0.2), st.floats(0, 200)), max_size=400)
disks = st.lists(st.integers(3, 12), min_size=1, max_size=2)
volumes = st.lists(st.tuples(st.integers(1, 4), st.sampled_from(CLASSES)), min_size=1, max_size=2)
# How a pod's first volume stands, or which pod's claim it mounts.
states = st.sampled_from(("new", "new", "new", "bound", "placed", "selected", "shared"))
pods = st.lists(st.tuples(volumes, states, st.sampled_from(("", "", "", *NODES))), min_size=2, max_size=5)


@settings(max_examples=300, deadline=None)
@given(gaps)
def test_in_no_stretch_of_time_are_more_nudges_sent_than_the_burst_and_the_rate_allow(gaps: list[float]) -> None:
    """Somebody wishes to nudge at every moment given, and waits for nothing."""
    rate, now, sent = Rate(), 0.0, []
    for gap in gaps:
        now += gap
        if rate.ready_at <= now:
            rate = rate.after(now)
            sent.append(now)
    for first, begin in enumerate(sent):
        for last in range(first, len(sent)):
            assert last - first + 1 <= BURST + PER_SECOND * (sent[last] - begin) + 1e-6


@settings(max_examples=300, deadline=None)
@given(gaps)
def test_a_wish_is_granted_when_the_rate_says_it_is_ready(gaps: list[float]) -> None:
    """Nobody is kept waiting longer than the time between two nudges, however much was sent."""
    rate, now = Rate(), 0.0
    for gap in gaps:
        now += gap
        now = max(now, rate.ready_at)
        assert rate.ready_at <= now
        rate = rate.after(now)
        assert rate.ready_at - now <= 1 / PER_SECOND + 1e-9


@settings(max_examples=300, deadline=None)
@given(gaps)
def test_one_pod_waits_at_least_a_second_and_at_most_a_minute(gaps: list[float]) -> None:
    """And never less than before, unless it was left alone for long."""
    pace, now, wait = Pace(), 0.0, 0.0
    for gap in gaps:
        now += gap
        if pace.ready_at > now:
            continue
        anew = now - pace.last >= 2 * LONGEST_WAIT
        pace = pace.after(now)
        later = pace.ready_at - now
        assert FIRST_WAIT - 1e-6 <= later <= LONGEST_WAIT + 1e-6
        assert anew or later >= wait - 1e-6
        wait = later


def _cluster(layout: list[list[int]], found: list[tuple[list[tuple[int, str]], str, str]]) -> list[Object]:
    parameters = {"strict": "strict-local", "free": "disabled"}
    objects: list[Object] = [
        make.storage_class("longhorn"),
        *(make.storage_class(name, dataLocality=locality) for name, locality in parameters.items()),
        make.storage_class("tagged", diskSelector="ssd"),
    ]
    for name, sizes in zip(NODES, layout, strict=True):
        disks = {f"disk-{number}": make.disk(size, tags=["ssd"] if number else []) for number, size in enumerate(sizes)}
        objects.append(make.longhorn_node(name, disks))
    for number, (wanted, state, node) in enumerate(found):
        names = [f"x{number}-{index}" for index in range(len(wanted))]
        claims = [make.claim(name, size, storage_class=kind) for name, (size, kind) in zip(names, wanted, strict=True)]
        first, size = names[0], wanted[0][0]
        if state in ("bound", "placed"):
            claims[0], *existing = make.bound(first, size)
            objects += existing
        if state == "placed":
            objects.append(make.replica(f"r{number}", f"vol-{first}", "a", size=size, disk="disk-0"))
        if state == "selected":
            claims[0]["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "b"}
        if state == "shared":
            names[0] = "x0-0"
        objects += claims
        objects.append(make.pod(*names, name=f"x{number}", uid=f"uid-{number}", node=node))
    return objects


@settings(max_examples=400, deadline=None)
@given(st.lists(disks, min_size=2, max_size=2), pods, volumes, st.sets(st.sampled_from(NODES), min_size=1))
def test_pods_that_are_alike_fit_on_the_same_nodes_in_whatever_company(
    layout: list[list[int]],
    found: list[tuple[list[tuple[int, str]], str, str]],
    alike: list[tuple[int, str]],
    offered: set[str],
) -> None:
    """Two pods with equal new claims are always among them, beside bound pods, pods that exist in part, and an offer."""
    found = [*found, (alike, "new", ""), (alike, "new", "")]
    view = View.of(make.snapshot(_cluster(layout, found)), NOW)
    other = view.snapshot.pods["default", "x0"]
    event = Offered(PodSeen("uid-offered"), frozenset(offered), resolve(other, view).local)
    ledger, _ = step(Ledger(), event, 0.0)
    answers: dict[object, list[bool]] = {}
    shared = 0
    for pod in view.snapshot.pods.values():
        key = None if pod.node_name or pod.uid == other.uid else likeness(pod, resolve(pod, view), view)
        if key is None:
            continue
        fits = _fits(pod, view, ledger)
        shared += key in answers
        assert answers.setdefault(key, fits) == fits
    assert shared


def _fits(pod: Pod, view: View, ledger: Ledger) -> list[bool]:
    """Of a fresh memory, so that no earlier question helps."""
    others = Others(demands=Demands.of(view), ledger=ledger, joint=Joint())
    decision = finish(filter_nodes(pod, NODES, Memory(view), Options(packing=Packing.ORDER_SAFE), others))
    return [reason.fits for reason in decision.reasons]
