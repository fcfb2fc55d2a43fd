"""What demands and offers cost: `python -m tests.bench offers`, at 10,000 demands, 1,000 offers and 1,000 roaming volumes, and at a tenth of it.

Only the core, on views made as those of the live caches: an event through the view, the demands and the memory; a pod of two
claims beside everybody else's volumes; the ledger. Times are CPU time, which a busy machine does not lengthen, and for information. x is how many
times the smallest cluster's median a median is: what grows with what changed stays near 1, what grows with the cluster does not.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from statistics import median, quantiles

from scheduler_core.cluster.update import Changes, advance
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.cooperative import finish
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Joint
from scheduler_core.evaluation.equivalence_cache import Standing
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Decision, Options, Others, filter_nodes
from scheduler_core.extender.offer import offer_of
from scheduler_core.offers.ledger import Event, Ledger, Offered, PodSeen, TimePassed, step
from scheduler_core.volumes.resolve import resolve
from tests.bench.offers_cluster import NOW, Outstanding, asking, ledger_of, read, view_of

# Nodes, demands, offers and as many roaming volumes.
SIZES = ((100, 1_000, 100), (1_000, 10_000, 1_000), (5_000, 10_000, 1_000))
EVENTS = 100
REQUESTS = 30
COLD = 3
UNCHANGED = "request, nothing changed, ms"
AFTER_EVENT = "request, after one event, ms"
BOUND = "event: a pod bound, us"

Times = dict[str, list[float]]


def run() -> str:
    """Measures the clusters and returns the table."""
    results = [_measured(*size) for size in SIZES]
    first = {name: median(times) for name, times in results[0].items()}
    heads = (
        f"{'offers':<46}" + "".join(f"{f'{nodes} nodes':>30}" for nodes, _, _ in SIZES),
        " " * 46 + "".join(f"{f'{demands} demands, {offers} offers':>30}" for _, demands, offers in SIZES),
        " " * 46 + f"{'p50':>11}{'p99':>11}{'x':>8}" * len(SIZES),
    )
    rows = (f"{name:<46}" + "".join(_cells(name, found[name], first[name]) for found in results) for name in results[0])
    return "\n".join(["", *heads, *rows, _said(results)])


def _cells(name: str, times: list[float], first: float) -> str:
    """In the unit its name ends with."""
    unit = 1e3 if name.endswith("ms") else 1e6
    p99 = quantiles(times, n=100, method="inclusive")[98]
    return f"{median(times) * unit:>11.1f}{p99 * unit:>11.1f}{median(times) / first:>8.1f}"


def _said(results: list[Times]) -> str:
    small, large = results[0], results[-1]

    def grown(name: str) -> float:
        return median(large[name]) / median(small[name])

    more = SIZES[-1][0] / SIZES[0][0]
    return (
        f"With {more:g} times the nodes a pod that is bound costs {grown(BOUND):.1f} times as much, "
        f"a request after one event {grown(AFTER_EVENT):.0f} times, one with nothing changed {grown(UNCHANGED):.0f} times."
    )


class Leader:
    """What a leader holds, and takes events into."""

    def __init__(self, nodes: int, demands: int, offers: int) -> None:
        self.objects = Outstanding(nodes)
        view = view_of(self.objects, demands, EVENTS + REQUESTS, offers)
        self.memory = Memory(view)
        self.demands = Demands.of(view)
        if len(self.demands.all) != demands:
            raise RuntimeError(f"{len(self.demands.all)} demands instead of {demands}: this measures something else")
        self.ledger: Ledger = ledger_of(view, self.demands, offers)
        self.joint, self.standing = Joint(), Standing()
        self.names = list(view.cluster.nodes)
        if len(self.demands.roaming.young) != offers:
            raise RuntimeError(f"{len(self.demands.roaming.young)} volumes roam instead of {offers}")
        self.spare, self.roaming = demands, offers

    def hears(self, changes: Changes) -> None:
        """One event, as the caches take it in."""
        before = self.memory.view
        advanced = advance(before, changes, NOW)
        self.demands = self.demands.after(before, changes, advanced.view)
        self.memory = self.memory.after(advanced.view, advanced.touched)

    def answers(self, name: str) -> Decision:
        """Whether a pod of two claims fits beside all others."""
        others = Others(demands=self.demands, ledger=self.ledger, joint=self.joint, standing=self.standing)
        return finish(filter_nodes(asking(name), self.names, self.memory, Options(), others))

    def steps(self, event: Event) -> None:
        """The next ledger; the clock stands still, so that no offer is too old."""
        self.ledger, _ = step(self.ledger, event, self.ledger.time)

    def bound(self, number: int) -> Changes:
        """The pod of an unbound claim has its node."""
        return self._change(*list(self.objects.unbound(2 * number, bound_pod=True))[1:])

    def placed(self, number: int) -> Changes:
        """A volume has its replica."""
        return self._change(("replicas", self.objects.placed(2 * number + 1)))

    def selected(self, number: int) -> Changes:
        """A node is selected for a claim."""
        return self._change(next(self.objects.unbound(self.spare + number)))

    def begun(self, number: int) -> Changes:
        """A volume begins to roam."""
        return self._change(("volumes", self.objects.roaming(self.roaming + number)))

    def _change(self, *raws: tuple[str, dict[str, object]]) -> Changes:
        changes: dict[tuple[str, Key], object | None] = {}
        for field, raw in raws:
            key, value = read(field, raw)
            changes[field, key] = value
        return changes


def _measured(nodes: int, demands: int, offers: int) -> Times:
    leader = Leader(nodes, demands, offers)
    gc.collect()
    gc.freeze()  # as the live server
    try:
        found: Times = {}
        found |= _cold(leader)
        found |= _events(leader)
        found |= _requests(leader)
        found |= _ledger(leader)
        return found
    finally:
        gc.unfreeze()


def _times(does: Callable[[], object], repeats: int, before: Callable[[], object] = lambda: None) -> list[float]:
    found = []
    for _ in range(repeats):
        before()
        began = time.thread_time()
        does()
        found.append(time.thread_time() - began)
    return found


def _cold(leader: Leader) -> Times:
    """A leader that has just taken over: the memory and the joint look are new, or only the latter."""

    def forget(*, memory: bool) -> None:
        leader.joint, leader.standing = Joint(), Standing()
        if memory:
            leader.memory = Memory(leader.memory.view)

    derive = _times(lambda: Demands.of(leader.memory.view), COLD)
    cold = _times(lambda: leader.answers("cold"), COLD, lambda: forget(memory=True))
    joint = _times(lambda: leader.answers("cold"), COLD, lambda: forget(memory=False))
    decision = leader.answers("cold")
    if not any(reason.fits for reason in decision.reasons):
        raise RuntimeError(f"no node fits, so this measures something else: {set(decision.reasons)}")
    return {"cold: all demands derived, ms": derive, "cold: request, nothing remembered, ms": cold,
            "cold: request, new joint look only, ms": joint}  # fmt: skip


def _events(leader: Leader) -> Times:
    """Each of another object; none is prepared within the time."""
    found: Times = {}
    for name, make in ((BOUND, leader.bound), ("event: a replica placed, us", leader.placed),
                       ("event: a claim selected, us", leader.selected),
                       ("event: a volume roams, us", leader.begun)):  # fmt: skip
        waiting = iter([make(number) for number in range(EVENTS)])
        found[name] = _times(lambda waiting=waiting: leader.hears(next(waiting)), EVENTS)  # type: ignore[misc]
        leader.answers("settles")
    found["event: nothing, time passed, us"] = _times(lambda: leader.hears({}), EVENTS)
    return found


def _requests(leader: Leader) -> Times:
    makes = islice(cycle((leader.bound, leader.placed, leader.selected)), REQUESTS)
    changes = iter([make(EVENTS + number) for number, make in enumerate(makes)])
    after = _times(lambda: leader.answers("pod"), REQUESTS, lambda: leader.hears(next(changes)))
    same = _times(lambda: leader.answers("pod"), REQUESTS)
    turn = _one_more(leader)
    burst = _times(lambda: leader.answers("pod"), REQUESTS, lambda: next(turn))
    decision = leader.answers("pod")
    view, competing = leader.memory.view, leader.ledger.competing("pod")
    made = _times(lambda: offer_of(asking("pod"), decision, view, competing), REQUESTS)
    return {AFTER_EVENT: after, UNCHANGED: same, "request, after one offer, ms": burst,
            "what is offered of a decision, ms": made}  # fmt: skip


def _one_more(leader: Leader) -> Iterator[None]:
    """One offer after another, of one node each."""
    told = _told(leader)
    for number in range(REQUESTS):
        leader.steps(replace(told, pod=PodSeen(uid=f"burst-{number}"), nodes=frozenset((leader.names[number],))))
        yield


def _told(leader: Leader) -> Offered:
    pod = asking("told")
    return Offered(PodSeen(uid=pod.uid), frozenset(leader.names[:1]), resolve(pod, leader.memory.view).local)


def _ledger(leader: Leader) -> Times:
    told = _told(leader)
    pods = [PodSeen(uid=f"pod-{number}", version=1) for number in range(EVENTS)]
    made = iter([replace(told, pod=pod) for pod in pods])
    decided = iter([replace(pod, version=2, node_name=leader.names[0]) for pod in pods])
    return {
        "ledger: an offer made, us": _times(lambda: leader.steps(next(made)), EVENTS),
        "ledger: an offer decided, us": _times(lambda: leader.steps(next(decided)), EVENTS),
        "ledger: time passed, us": _times(lambda: leader.steps(TimePassed()), EVENTS),
    }


if __name__ == "__main__":
    print(run())
