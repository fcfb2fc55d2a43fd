"""Bursts of pods, until they run or no longer change, and what came of them, counted from API objects and watches alone."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum

from app.kube.resources import PODS as PODS_RESOURCE
from tests.e2e.objects import Object, Volume, Workload, condition_of, name_of, node_of, runs
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.report import spread
from tests.e2e.rig import Rig

READY_SECONDS = 480.0
# Without the extender pods may be stuck for ever; pods that do not run by then are counted.
SETTLE_SECONDS = 45.0
_GIBIBYTE = 2**30
_SETTLED_SECONDS = 10.0
# After the moment at which Longhorn tries a replica again.
_RETRY_SECONDS = 5.0
_MAX_SECONDS = 180.0
_POLL = 0.2


@dataclass(frozen=True)
class Result:
    """Where pods and replicas are in the end.

    Attributes:
        seconds: from creation until every pod runs; None if not every pod came to run
        nodes: the node of each pod
        misplaced: pods with a local volume without a replica on their node
        mended: replicas placed elsewhere than where their volume was, also if a local one was created later
        overbooked: disks that held more than Longhorn allows, because two volumes were placed before its status followed, also if a
            volume left later; each with the volumes that met, and the milliseconds between them
        stuck: pods that did not come to run
    """

    seconds: float | None
    nodes: dict[str, str]
    misplaced: list[str]
    mended: int
    overbooked: list[str]
    stuck: list[str]

    @property
    def per_node(self) -> dict[str, int]:
        return dict(sorted(Counter(node for node in self.nodes.values() if node).items()))

    @property
    def wrong(self) -> dict[str, object]:
        """What went wrong, by the name of the attribute; {} if nothing did."""
        faults = {each: getattr(self, each) for each in ("misplaced", "mended", "overbooked", "stuck")}
        return {name: value for name, value in faults.items() if value}


def wait_for_result(
    rig: Rig, app: str, count: int, audit: PlacementAudit, *, must: bool, settle: float = SETTLE_SECONDS
) -> Result:
    """Waits for an app's pods, and returns where pods and replicas are.

    Args:
        rig: where the app runs
        app: the app
        count: the number of its pods
        audit: began when they were created
        must: whether all pods have to come to run
        settle: after how many seconds the wait ends without `must`
    """
    seconds: float | None = None
    deadline = audit.started + (READY_SECONDS if must else settle)
    while time.monotonic() < deadline:
        if rig.ready(app, count):
            seconds = time.monotonic() - audit.started
            break
        time.sleep(0.1)
    if must and seconds is None:
        raise AssertionError(f"{app} is not ready after {READY_SECONDS:g} s: {rig.nodes_of(app)} {rig.status()}")
    stuck = sorted(name_of(pod) for pod in rig.pods(app) if not runs(pod))
    return Result(seconds, rig.nodes_of(app), rig.misplaced_pods(app), audit.misplacements, audit.overbooked, stuck)


def columns(results: Sequence[Result]) -> dict[str, object]:
    """What went wrong in some repetitions, and their times, as columns of a table."""
    return {
        "misplaced": sum(len(result.misplaced) for result in results),
        "mended": sum(result.mended for result in results),
        "overbooked disks": sum(len(result.overbooked) for result in results),
        "stuck": sum(len(result.stuck) for result in results),
        "s to ready: median (range)": spread(result.seconds for result in results),
    }


@dataclass(frozen=True, slots=True)
class Burst:
    """Pods with two claims each, on nodes with a single disk. A second disk could take what does not fit on the first, and so hide it."""

    pods: int = 200  # the number of pods
    nodes: int = 20  # the number of nodes
    disk: str = "400Gi"  # the size of each node's disk; the default one fits eleven pods

    def add_nodes(self, rig: Rig) -> None:
        rig.add_nodes(BURST, {f"burst-{number:02d}": [self.disk] for number in range(1, self.nodes + 1)})

    def run(self, rig: Rig, *, asks: bool, must: bool) -> Result:
        """Creates all claims, then all pods; returns the result when they run. So kube-scheduler has all pods at the same time."""
        workload = Workload(app=BURST, group=BURST, volumes=[Volume(SIZE)] * 2, asks=asks)
        claims, pods = split(entry for number in range(self.pods) for entry in workload.loose(number))
        rig.post(claims)
        with PlacementAudit(rig) as audit:
            rig.post(pods)
            return wait_for_result(rig, BURST, self.pods, audit, must=must, settle=_BURST_SECONDS)


BURST = "burst"
SIZE = "18Gi"
# Exactly for two volumes each of ten pods. It is a multiple of 100Mi, because Longhorn rounds a disk's free space down to that, and a
# DiskSchedule grants no more than what is free: of 360Gi, nine pods' bytes and not ten's.
EXACT = "368700Mi"
# Without the extender some pods may never run. The attacher's ten workers need 80 to 160 s for 400 volumes.
_BURST_SECONDS = 240.0


class PodState(StrEnum):
    """How far a pod has come."""

    RUNNING = "running"
    BOUND = "bound"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Settled:
    """The last states of an app's pods."""

    states: dict[str, PodState]  # the state of each pod by its name
    seconds: float  # when the last pod changed, from the beginning

    def names(self, *states: PodState) -> set[str]:
        return {name for name, state in self.states.items() if state in states}

    @property
    def bound(self) -> set[str]:
        """The pods that have a node."""
        return self.names(PodState.RUNNING, PodState.BOUND)

    @property
    def waiting(self) -> set[str]:
        return self.names(PodState.WAITING)


def wait_until_quiet(rig: Rig, app: str, started: float) -> Settled:
    """Waits until the pods of an app no longer change.

    A machine that is busy may bind no pod for a while. So the quiet begins with the first pod that has a node, and only once
    kube-scheduler has decided about each.

    Args:
        rig: where the app runs
        app: the app
        started: when its pods were created, in monotonic seconds
    """
    states: dict[str, PodState] = {}
    changed = started
    retried = rig.replica_retry + _RETRY_SECONDS
    while (now := time.monotonic()) - started < _MAX_SECONDS:
        pods = rig.pods(app)
        current = {name_of(pod): _state(pod) for pod in pods}
        if current != states or not all(map(is_decided, pods)) or set(current.values()) == {PodState.WAITING}:
            states = current
            changed = now
        if set(states.values()) == {PodState.RUNNING}:
            break
        # A pod whose replica waits for space may still come to run.
        quiet = retried if PodState.BOUND in states.values() else _SETTLED_SECONDS
        if now - changed > quiet:
            break
        time.sleep(_POLL)
    settled = Settled(states, changed - started)
    assert settled.bound, f"invalid run: no pod of {app} got a node within {_MAX_SECONDS:g} s"
    return settled


def is_decided(pod: Object) -> bool:
    """Whether kube-scheduler has found a node for a pod, or has refused it."""
    return bool(node_of(pod) or condition_of(pod, "PodScheduled"))


def _state(pod: Object) -> PodState:
    if runs(pod):
        return PodState.RUNNING
    return PodState.BOUND if node_of(pod) else PodState.WAITING


def split(objects: Iterable[Object]) -> tuple[list[Object], list[Object]]:
    """The claims, and the pods."""
    objects = list(objects)
    pods = [entry for entry in objects if entry["kind"] == PODS_RESOURCE.kind]
    return [entry for entry in objects if entry["kind"] != PODS_RESOURCE.kind], pods


@contextmanager
def settled_burst(
    rig: Rig,
    app: str,
    objects: Iterable[Object],
    nodes: Iterable[str] = (),
    during: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[tuple[PlacementAudit, Settled]]:
    """Creates the claims, then the pods of an app; provides what came of them once they no longer change. `during` is entered meanwhile.
    The app and these nodes are removed at the end.
    """
    claims, pods = split(objects)
    rig.post(claims)
    try:
        with PlacementAudit(rig) as audit:
            rig.post(pods)
            with during():
                settled = wait_until_quiet(rig, app, audit.started)
            yield audit, settled
    finally:
        rig.remove(app)
        rig.remove_nodes(*nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of the pods of one burst."""

    seed: int  # draws the burst
    pods: int
    bound: int  # pods that got a node
    misplaced: int  # bound pods with a local volume whose replicas are on other nodes
    mended: int  # replicas placed elsewhere than where their volume was, also if a local one was created later
    disks: int  # disks that held more than Longhorn allows, also if a volume left later
    overbooked: float  # Gi that were too many on these disks, each at its worst
    stuck: int  # bound pods that did not come to run
    seconds: float | None  # until every pod ran, None if not every pod did

    @classmethod
    def of(
        cls, rig: Rig, app: str, seed: int, audit: PlacementAudit, settled: Settled, *, placed: bool = True
    ) -> "Outcome":
        """Reads it from a burst that no longer changes. Without `placed`, volumes without a replica count as misplaced, too."""
        all_run = settled.names(PodState.RUNNING) == settled.states.keys()
        return cls(
            seed=seed,
            pods=len(settled.states),
            bound=len(settled.bound),
            misplaced=len(settled.bound.intersection(rig.misplaced_pods(app, placed=placed))),
            mended=audit.misplacements,
            disks=len(audit.overbooked),
            overbooked=audit.bytes_overbooked / _GIBIBYTE,
            stuck=len(settled.names(PodState.BOUND)),
            seconds=settled.seconds if all_run else None,
        )

    @property
    def waiting(self) -> int:
        """Pods that got no node."""
        return self.pods - self.bound

    @property
    def faulty(self) -> bool:
        """Whether a pod with a node or a disk came out wrong."""
        return bool(self.misplaced or self.mended or self.disks or self.overbooked or self.stuck)
