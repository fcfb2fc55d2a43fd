"""Bursts on 100 nodes with three dead leaders, for `test_campaigns.py` and the report.

    wave 1, everything mixed → the leader is killed → wave 2, while some pods are deleted → killed → nodes are drained, wave 3 → killed
    → what can run runs → what is left pending has no node that is safe

Each kill waits until enough pods are in both states in which only the cluster's objects know of a decision: a node chosen and
claims not bound, and bound with local volumes that have no replica yet.

A wave has StatefulSets and loose pods. The first wave finds an empty cluster and mixes everything: also pods that do not request the
extender, and volumes whose replicas Longhorn may place anywhere. Later waves fill the cluster, and have only pods with local volumes
that request the extender: with little room left, any other pod can take the room between a decision and the replica, and no
extender could prevent that.
"""

import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from app.kube.client import KubeClient
from app.kube.cluster_cache import ClusterCache, as_snapshot, read_cluster
from app.kube.reflector import Timing
from app.kube.resources import CLAIMS, NODES, PODS
from app.schemas.state import MAX_LISTED
from devcluster.build import CONTROLLER_MANAGER, KWOK, SCHEDULER
from devcluster.programs import NAMESPACE
from devcluster.stack import Disk
from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import Packing
from scheduler_core.decide.extender_settings import GuardMode
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.outstanding_demand import Demand, DemandSource
from tests.builders import storage_class
from tests.e2e.journal import FilterCall, Journal, Offer, quantiles
from tests.e2e.leader_monitor import LeaderMonitor
from tests.e2e.objects import LOCAL, RUNNING, Object, Volume, Workload, name_of, node_of, runs
from tests.e2e.report import Figures, Options, Part
from tests.e2e.rig import CANDIDATES, Rig

_GROUP = "size"
_ANYWHERE = "longhorn-anywhere"
_ANYWHERE_AT_ONCE = "longhorn-anywhere-at-once"

_SIZES = ("4Gi", "8Gi", "16Gi", "24Gi")
# For volumes of any place or of pods that do not request the extender: far less than is free on any node during the first wave.
_MIXED_SIZE = "4Gi"
# The shares of a node's disks, and the Gi on each node: on 70 of 100 nodes not enough for 1,000 pods.
_LAYOUTS: Sequence[Sequence[float]] = ((1,), (0.5, 0.5), (0.25, 0.25, 0.25, 0.25), (0.75, 0.25))
_ROOM = 400
# One gibibyte is free: less than any volume needs.
_FULL: Sequence[Disk] = ({"size": "400Gi", "reserved": "399Gi"},)
_FULL_SHARE = 0.3
_REPORT_PODS = 1000
_SET_SHARE = 0.4
_SET_REPLICAS = 20
_BYPASS_SHARE = 0.08
_ANYWHERE_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class _Wave:
    """Objects to create at once, and the number of their pods. `loose` has the apps of the loose pods that request the extender."""

    objects: Sequence[Object]
    pods: int
    loose: Sequence[str]


def _disks(count: int, pods: int, seed: int) -> dict[str, Sequence[Disk]]:
    """Nodes with their disks, in total too small for that many pods. For 1,000 pods, 30 % of them are too full for any
    volume. For fewer pods it is more nodes, not less room on each: otherwise the first wave would fill nodes, and
    volumes of any place take the room of others there.
    """
    rng = random.Random(seed)  # noqa: S311 # chance in a test
    names = [f"size-{number:03d}" for number in range(1, count + 1)]
    roomy = min(count, round(count * (1 - _FULL_SHARE) * pods / _REPORT_PODS))
    full = set(rng.sample(names, count - roomy))
    layouts = {name: [f"{round(_ROOM * share)}Gi" for share in rng.choice(_LAYOUTS)] for name in names}
    return {name: _FULL if name in full else layouts[name] for name in names}


def _storage_classes() -> list[Object]:
    """Two classes like Longhorn's own, without data locality. One waits for its first consumer, the other does not."""
    modes = ((_ANYWHERE, "WaitForFirstConsumer"), (_ANYWHERE_AT_ONCE, "Immediate"))
    return [
        storage_class(name, binding=mode, numberOfReplicas="2", dataLocality="disabled", staleReplicaTimeout="30")
        for name, mode in modes
    ]


def _wave(number: int, pods: int, seed: int, *, mixed: bool) -> _Wave:
    """One wave of some pods. `mixed` adds pods that do not request the extender, and volumes without locality."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 # chance in a test
    replicas = max(1, min(_SET_REPLICAS, round(pods * _SET_SHARE)))
    sets = [
        Workload(app=f"wave-{number}-set-{index}", group=_GROUP, volumes=_volumes(rng, mixed=mixed))
        for index in range(round(pods * _SET_SHARE) // replicas)
    ]
    loose = list(_loose(rng, number, pods - len(sets) * replicas, mixed=mixed))
    objects: list[Object] = [entry for workload in loose for entry in workload.loose()]
    # StatefulSets create their pods while the loose ones are being created.
    objects[:0] = [workload.statefulset(replicas) for workload in sets]
    asking = [workload.app for workload in loose if workload.asks]
    return _Wave(objects, len(sets) * replicas + len(loose), asking)


def _loose(rng: random.Random, number: int, count: int, *, mixed: bool) -> Iterator[Workload]:
    for index in range(count):
        asks = not (mixed and rng.random() < _BYPASS_SHARE / (1 - _SET_SHARE))
        yield Workload(
            app=f"wave-{number}-loose-{index:03d}",
            group=_GROUP,
            volumes=_volumes(rng, mixed=mixed, asks=asks),
            asks=asks,
        )


def _volumes(rng: random.Random, *, mixed: bool, asks: bool = True) -> list[Volume]:
    volumes = []
    for _ in range(rng.randint(1, 4)):
        anywhere = mixed and rng.random() < _ANYWHERE_SHARE
        storage_class = rng.choice((_ANYWHERE, _ANYWHERE_AT_ONCE)) if anywhere else LOCAL
        volumes.append(Volume(_MIXED_SIZE if anywhere or not asks else rng.choice(_SIZES), storage_class))
    return volumes


Line = tuple[str, str, str, str, str, int, str]


class Observer:
    """Watches a cluster on an event loop of its own, while entered."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal: BlockingPortal = stack.enter_context(start_blocking_portal(name="observer"))
            self._client = self._portal.call(KubeClient.connect, str(self._kubeconfig))
            stack.callback(self._portal.call, self._client.close)
            timing = Timing(monotonic, random.uniform)
            self._cache = ClusterCache(self._client, NAMESPACE, timing, _now, stale_after=600)
            watching: Future[None] = self._portal.start_task_soon(self._cache.run)
            stack.callback(watching.cancel)
            self._portal.call(self._cache.wait_for_sync)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def view(self) -> View:
        return self._portal.call(self._cache.state).view

    def demands(self) -> tuple[Demand, ...]:
        return self._portal.call(self._cache.state).demand.all

    def chosen_not_bound(self) -> set[str]:
        """Pods with a chosen node that are not bound yet. Their claims are being provisioned."""
        selected = {demand.pod for demand in self.demands() if demand.source is DemandSource.SELECTED_NODE}
        nominated = {
            pod.key
            for pod in self.view().snapshot.pods.values()
            if pod.live and pod.nominated_node and not pod.node_name and not pod.unschedulable
        }
        return selected | nominated

    def bound_without_replicas(self) -> set[str]:
        """Bound pods with a local volume without a replica on their node."""
        return {demand.pod for demand in self.demands() if demand.source is DemandSource.POD}

    def listed_demands(self) -> set[Line]:
        """The demand derived from a new list of everything, without any watch. `longhorn-extender snapshot` lists in the same way."""
        return self._portal.call(self._list_demands)

    async def _list_demands(self) -> set[Line]:
        objects = await read_cluster(self._client, NAMESPACE, _ignore, _ignore)
        view = View.of(as_snapshot(objects), _now())
        return {line(demand) for demand in DemandIndex.of(view).all}


def line(demand: Demand) -> Line:
    volume = demand.volume
    source = demand.source.name.lower()
    return (volume.name, volume.claim, demand.node, source, demand.pod, volume.volume.size, demand.since)


def _now() -> datetime:
    return datetime.now(UTC)


def _ignore(_: str) -> None:
    return None


_NODES = 100
_SLOW = {
    "provision_seconds": [0.5, 8],
    # Long enough for many pods to be bound and not placed at once, even where only two pods a second are bound.
    "publish_seconds": [20, 40],
    # A busy Longhorn is as slow; every second these would be half of all writes of 100 nodes.
    "status_period": 5,
    "capacity_period": 10,
    "workers": 16,
    # Ten would take an hour for hundreds of publish calls of 20 to 40 s.
    "attach_workers": 10_000,
}
_IN_FLIGHT_SECONDS = 240.0
# The API server is what takes longest here; how soon a successor answers is measured by the report.
_SUCCESSOR_SECONDS = 120.0
_REST_SECONDS = 1800.0
# If no pod changes for this time, the burst is over: it is longer than any delay of the simulator, kube-scheduler's back-off, and the
# period after which the extender evaluates all refused pods again.
_QUIET_SECONDS = 60.0
_OFFER_LIFE = 60.0
# How late a busy process may notice that an offer has expired.
_LATE = 5.0
_OTHER_PROCESSES = (SCHEDULER, CONTROLLER_MANAGER, KWOK, "simulator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a run."""

    pods: int  # the number of pods in all three waves
    seed: int  # chooses the pods, and the simulator's chance
    drained: int = 2  # the number of drained nodes
    # Which nodes with room are offered; only with `ORDER_SAFE` must nothing be misplaced or stuck.
    packing: Packing = Packing.ORDER_SAFE
    placement_guard: GuardMode = GuardMode.OFF  # its mode

    @property
    def in_flight(self) -> int:
        """How many pods of each kind a kill waits for. A wave has to have three times as many."""
        return min(50, self.pods // 12)


def report(folder: Path, options: Options) -> Part:
    size = Size(pods=options.pods, seed=options.seed, packing=options.packing, placement_guard=options.guard)
    outcome = run(folder, size)
    return Part(outcome.problems, asdict(outcome), [outcome.text()])


def run(folder: Path, size: Size) -> Figures:
    """Runs everything on a rig of its own."""
    outcome = Figures()
    started = time.monotonic()
    with Rig(
        folder,
        candidates=2,
        simulator={**_SLOW, "seed": size.seed},
        more_arguments=["--packing", size.packing],
        placement_guard=size.placement_guard,
    ) as rig:
        rig.create(*_storage_classes())
        rig.add_nodes(_GROUP, _disks(_NODES, size.pods, size.seed))
        with Observer(rig.cluster.kubeconfig) as observer, LeaderMonitor(rig) as monitor:
            scenario = _Scenario(rig, observer, size, outcome)
            scenario.run()
            scenario.check()
        outcome.problems += [f"two candidates answered at once: {entry}" for entry in monitor.double_answers]
        outcome.figures.append(("longest time nobody answered", f"{monitor.longest_silence:.1f} s"))
    outcome.figures.append(("whole run", f"{time.monotonic() - started:.0f} s"))
    return outcome


class _Scenario:
    """One run on a started rig."""

    def __init__(self, rig: Rig, observer: Observer, size: Size, outcome: Figures) -> None:
        self._rig = rig
        self._observer = observer
        self._size = size
        self._outcome = outcome
        self._started = time.monotonic()

    def run(self) -> None:
        """Creates, kills, deletes and drains; returns when the cluster is at rest."""
        waves = [
            _wave(number, round(self._size.pods * share), self._size.seed, mixed=number == 1)
            for number, share in enumerate((0.4, 0.3, 0.3), start=1)
        ]
        self._create(waves[0])
        self._kill_leader()
        leaving = self._taint_fullest_nodes()
        self._create(waves[1])
        self._delete_some(waves[0])
        self._kill_leader()
        self._drain(leaving)
        self._create(waves[2])
        self._kill_leader()
        self._settle()

    def check(self) -> None:
        status = self._rig.status()
        misplacements = status["counters"].get("misplacements", 0)
        self._note("misplaced replicas, mended ones included", misplacements)
        self._note("volumes without a replica beside their pod", len(status["misplaced"]))
        pods = self._pods()
        stuck = [name_of(pod) for pod in pods if node_of(pod) and not runs(pod)]
        self._note("bound pods that never ran", len(stuck))
        if self._size.packing is Packing.ORDER_SAFE:
            self._require(
                misplacements == 0, f"{misplacements} replicas were placed elsewhere than where their volume was"
            )
            self._require(
                status["misplaced"] == [], f"volumes without a replica beside their pod: {status['misplaced']}"
            )
            self._require(stuck == [], f"bound pods that never ran: {stuck} {status['stuck'][:3]}")
        pending = [pod for pod in pods if not node_of(pod)]
        self._note("pods that run", sum(map(runs, pods)))
        self._note("pods left without a node", len(pending))
        self._note("overbooked disks, by Longhorn's own race", len(status["overbooked"]))
        self._check_pending(pending)
        self._check_log()

    def _create(self, wave: _Wave) -> None:
        self._rig.post(wave.objects)
        self._note(f"{wave.pods} pods created, after", self._clock())

    def _kill_leader(self) -> None:
        leader = self._rig.wait_for_leader()
        reached = self._wait_until_in_flight()
        self._rig.cluster.processes[leader].kill()
        killed = time.monotonic()
        self._rig.wait_for_leader(_SUCCESSOR_SECONDS)
        silence = time.monotonic() - killed
        self._compare_demands()
        self._rig.start_candidate(leader)
        self._note("leader killed with pods unbound / bound without replica", f"{reached[0]} / {reached[1]}")
        self._note("next one answered after", f"{silence:.1f} s")

    def _wait_until_in_flight(self) -> tuple[int, int]:
        """Returns once enough pods of each kind are decided and not placed."""
        best = (0, 0)
        deadline = time.monotonic() + _IN_FLIGHT_SECONDS
        while time.monotonic() < deadline:
            reached = len(self._observer.chosen_not_bound()), len(self._observer.bound_without_replicas())
            if min(reached) >= self._size.in_flight:
                return reached
            best = max(best, reached, key=min)
            time.sleep(0.3)
        raise AssertionError(f"waited in vain for {self._size.in_flight} pods of each kind in flight: at best {best}")

    def _compare_demands(self) -> None:
        """Waits until the new leader's demand equals that in a full list. All other processes are paused meanwhile."""
        processes = [self._rig.cluster.processes[name] for name in _OTHER_PROCESSES]
        for process in processes:
            process.pause()
        try:
            self._rig.until("the new leader counts what the cluster demands", self._same_demands, 20)
        finally:
            for process in processes:
                process.resume()

    def _same_demands(self) -> bool:
        state = self._rig.service()
        listed = self._observer.listed_demands()
        keys = ("volume", "claim", "node", "source", "pod", "size", "since")
        reported = {tuple(entry[key] for key in keys) for entry in state["demands"]}
        all_reported = len(reported) == min(len(listed), MAX_LISTED) and state["demandCount"] == len(listed)
        same = reported <= listed and all_reported
        if same:
            self._note("demands that were the same after the take-over", len(listed))
        return same

    def _delete_some(self, wave: _Wave) -> None:
        deleted = wave.loose[::5]
        for kind in (PODS, CLAIMS):
            self._rig.delete_all(kind, f"app in ({','.join(deleted)})")
        self._note("loose pods deleted", len(deleted))

    def _taint_fullest_nodes(self) -> list[str]:
        """Taints the nodes with the most pods, before they are drained. Pods on their way there still arrive."""
        counts = Counter(map(node_of, self._pods()))
        del counts[""]
        fullest = sorted(counts, key=lambda node: (-counts[node], node))[: self._size.drained]
        self._rig.cluster.kubectl("taint", "nodes", *fullest, "drain=soon:NoSchedule")
        return fullest

    def _drain(self, nodes: Sequence[str]) -> None:
        """Drains nodes; the pods of StatefulSets come back elsewhere. It waits until all pods decided for these nodes
        run: Longhorn places no replica on a cordoned node.
        """
        self._rig.until("all pods of the nodes to drain run", lambda: not self._arriving(nodes), _REST_SECONDS)
        for node in nodes:
            arguments = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s")
            self._rig.cluster.kubectl("drain", node, *arguments)
        self._note("nodes drained", ", ".join(nodes))

    def _arriving(self, nodes: Sequence[str]) -> list[str]:
        # From the watch: a list of all pods ten times a second would be a good part of the API server's work.
        return [
            pod.key
            for pod in self._observer.view().snapshot.pods.values()
            if pod.phase != RUNNING and (pod.node_name or pod.nominated_node) in nodes
        ]

    def _pods(self) -> list[Object]:
        return self._rig.items(PODS.path("default"))

    def _settle(self) -> None:
        last: tuple[int, int, int, int] | None = None
        since = time.monotonic()
        deadline = time.monotonic() + _REST_SECONDS
        while time.monotonic() - since < _QUIET_SECONDS:
            pods = self._observer.view().snapshot.pods.values()
            running = sum(pod.phase == RUNNING for pod in pods)
            now = (running, len(pods), len(self._observer.demands()), self._moving())
            # A busy machine may decide about no pod for a while.
            is_undecided = any(not pod.node_name and not pod.unschedulable for pod in pods)
            if now != last or self._moving() or is_undecided:
                last = now
                since = time.monotonic()
            if time.monotonic() > deadline:
                self._require(False, f"not at rest after {_REST_SECONDS:g} s: running, pods, demands, moving: {now}")
                return
            time.sleep(1)
        self._note("at rest after", self._clock())

    def _moving(self) -> int:
        return len(self._observer.chosen_not_bound())

    def _check_pending(self, pending: Sequence[Object]) -> None:
        leader = self._rig.wait_for_leader()
        names = list(map(name_of, self._rig.items(NODES.path())))
        for pod in pending:
            status, answer = self._rig.request(leader, "/explain", {"Pod": pod, "NodeNames": names})
            safe = [name for name, node in answer["nodes"].items() if node["order_safe"]] if status == 200 else [answer]
            self._require(not safe, f"{name_of(pod)} is pending, and would be safe on {safe[:5]}")

    def _check_log(self) -> None:
        journal = Journal(self._rig.cluster.logs, CANDIDATES)
        first = journal.first_calls()
        times = sorted(call.milliseconds for call in journal.calls)
        self._note("pods asked about / questions", f"{len(first)} / {len(journal.calls)}")
        self._note("first question had a node", sum(1 for call in first.values() if call.fits))
        self._note("longest wait for others", f"{journal.longest_wait():.1f} s")
        self._note("ms per question: median / p99 / most", quantiles(times))
        self._outcome.problems += [str(problem) for problem in _find_offer_faults(journal)]

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            self._outcome.problems.append(problem)

    def _note(self, name: str, value: object) -> None:
        self._outcome.figures.append((name, str(value)))

    def _clock(self) -> str:
        return f"{time.monotonic() - self._started:.0f} s"


def _find_offer_faults(journal: Journal) -> list[str]:
    """Offers that lived too long, and pods that waited without an outstanding offer. Offers end within their life; and a pod is refused as
    waiting only while another pod's offer began before and had not ended, or was lost with a leader less than an offer's life ago.
    """
    return [
        f"an offer to {offer.uid} lived {offer.end - offer.start:.1f} s"
        for offer in journal.offers
        if _OFFER_LIFE + _LATE < offer.end - offer.start < math.inf
    ] + [
        f"{call.pod} was told to wait, and no offer to another pod was outstanding"
        for call in journal.calls
        if call.waits and not any(_is_outstanding(offer, call) for offer in journal.offers)
    ]


def _is_outstanding(offer: Offer, call: FilterCall) -> bool:
    """Whether another pod's offer may have been outstanding at a call. The call is logged a moment after its decision."""
    end = min(offer.end, offer.start + _OFFER_LIFE)
    return offer.uid != call.uid and offer.start <= call.at <= end + _LATE
