"""The longest turn of the event loop at every entry point: `python -m tests.bench longest-turn`.

The process of a leader, without its connections: kube-scheduler's verbs, explanations, the status page and the placement guard, in a cluster with
demand, unplaced and roaming volumes, offers and holds (`tests/bench/offers_cluster.py`). A turn is CPU time of the loop's thread
(`tests/worlds/turn_probe.py`) without the garbage collector, whose longest collection is the last figure. *cold*: nothing is cached but the
demand. *new*: sizes that no earlier request had. *warm*: the same request again. The budget is 20 ms, whatever the input.
"""

import asyncio
import gc
import json
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from time import monotonic, thread_time
from typing import Any

import structlog
import uvloop
from fastapi import FastAPI

from app.api.app_state import AppState
from app.api.placement_review import AdmissionState, guard_application
from app.bootstrap import application
from app.evaluator import Evaluator
from app.extender.guard import PlacementGuard
from app.extender.metrics import Metrics
from app.extender.node_loss_prediction import NodeLosses
from app.extender.offers import Offers
from app.extender.status_page_results import StatusReporter, StatusSources
from app.extender.verbs import Verbs
from app.memory_budget import MemoryBudget
from app.policy import PolicyInForce
from app.runtime.decision_thread import DecisionThread
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.decide.extender_settings import ExtenderSettings, GuardMode
from scheduler_core.evaluation.cluster_state import ClusterState, ProfileCache
from scheduler_core.model.longhorn import Placement, Replica
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered
from scheduler_core.volumes.resolve import resolve
from tests.bench import cluster
from tests.bench.offers_cluster import PendingObjects, make_ledger, make_view, new_pod
from tests.worlds.placements import leader_context, placement_review
from tests.worlds.state_source import FakeStateSource
from tests.worlds.turn_probe import time_turns

SIZES = (100, 1_000, 5_000)
DEMANDS_PER_NODE = 2
OFFERS = 100
HOLDS = 20
UNPLACED = 1_000
ROAMING = 10
BUDGET = 0.020
_SETTINGS = ExtenderSettings(enabled=True, pod_scheduling_timeout=0, placement_guard=GuardMode.ENFORCE)


@dataclass(frozen=True, slots=True)
class _Call:
    """A request to one of the applications."""

    app: FastAPI
    method: str
    path: str
    body: bytes = b""

    async def send(self, expected: int = 200) -> None:
        """Runs the application to the end of its answer."""
        messages = [{"type": "http.request", "body": self.body}]
        statuses = []

        async def receive() -> dict[str, Any]:
            return messages.pop() if messages else await asyncio.Future()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        path, _, query = self.path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 9504),
            "root_path": "",
            "extensions": {},
        }
        await self.app(scope, receive, send)
        if statuses != [expected]:
            raise RuntimeError(f"{self.path} answered {statuses}")


async def _nothing_written(_node: str) -> Sequence[Replica]:
    return ()


class _Leader:
    """The applications of a process that leads, over one state."""

    def __init__(self, objects: PendingObjects, state: ClusterState, ledger: Ledger) -> None:
        self.objects = objects
        source = FakeStateSource()
        # Nothing is cached but the demand.
        source.current = ClusterState(state.view, ProfileCache(state.view), state.demand)
        evaluator = Evaluator(source, FilterOptions(), DecisionThread())
        metrics = Metrics()
        # Its clock stands still, so that no offer expires.
        offers = Offers(source, evaluator, lambda: _SETTINGS, metrics, lambda: ledger.time)
        offers._ledger = ledger  # noqa: SLF001 # requests would take minutes to make these offers
        losses = NodeLosses(evaluator, source.state)
        settings = ExtenderSettings(placement_guard=GuardMode.ENFORCE)
        context = leader_context(lambda: settings, offers.contenders, _nothing_written)
        guard = PlacementGuard(source, evaluator, context, metrics, monotonic)
        guard.adopt()
        memory = MemoryBudget(1 << 30)
        self._source = source
        self.app = application(
            AppState(
                evaluator,
                Verbs(evaluator, PolicyInForce(), decider=offers),
                metrics,
                256 << 20,
                memory,
                node_losses=losses,
                status=StatusSources(StatusReporter(evaluator, source.state, offers.contenders), losses),
            )
        )
        self.guard_app = guard_application(AdmissionState(guard, lambda: "", lambda: True, metrics, memory))

    def verb(self, path: str, number: int) -> _Call:
        """A call of a verb about a pod of two claims."""
        name = f"asks-{number}"
        pod = cluster.pod(name, [(10 + number) * cluster.GI, 5 * cluster.GI])
        pod["metadata"]["uid"] = f"uid-{name}"
        for volume in pod["spec"]["volumes"]:
            volume["ephemeral"]["volumeClaimTemplate"]["spec"]["storageClassName"] = "storage-0"
        self._source.elsewhere[f"{pod['metadata']['namespace']}/{name}"] = pod | {"apiVersion": "v1", "kind": "Pod"}
        names = [cluster.name_of(index) for index in range(self.objects.nodes)]
        nodes: dict[str, Any] = {"NodeNames": names}
        if path == "/preempt":
            nodes = {"NodeNameToMetaVictims": {node: {"Pods": []} for node in names}}
        return _Call(self.app, "POST", path, json.dumps({"Pod": pod, **nodes}).encode())

    def page(self, path: str) -> _Call:
        return _Call(self.app, "GET", path)

    def placement(self, number: int) -> _Call:
        """An API server's call about the replica of a demanded volume."""
        [volume] = [raw for field, raw in self.objects.bound_claim(2 * number + 1) if field == "volumes"]
        replica = self.objects.replica_on_demanded_node(2 * number + 1)
        placement = Placement(
            replica=replica["metadata"]["name"],
            volume=volume["metadata"]["name"],
            size=int(volume["spec"]["size"]),
            node=replica["spec"]["nodeID"],
            disk=replica["spec"]["diskID"],
            disk_path=replica["spec"]["diskPath"],
        )
        return _Call(self.guard_app, "POST", "/review", json.dumps(placement_review(placement)).encode())


def _raise_failure(_logger: object, method: str, event: MutableMapping[str, Any]) -> Any:
    if method in ("error", "exception"):
        raise RuntimeError(event["event"])
    return str(event)


class _Collector:
    """The CPU time of the garbage collector, which may begin in any turn."""

    def __init__(self) -> None:
        self.longest = 0.0  # of one collection, in seconds, while a call was measured
        self.measures = False
        self._started = 0.0
        self._seconds = 0.0
        gc.callbacks.append(self._note)

    def take(self) -> float:
        """Returns the time since it was asked last."""
        seconds = self._seconds
        self._seconds = 0.0
        return seconds

    def _note(self, phase: str, _info: object) -> None:
        if phase == "start":
            self._started = thread_time()
            return
        seconds = thread_time() - self._started
        self._seconds += seconds
        if self.measures:
            self.longest = max(self.longest, seconds)


def _calls(leader: _Leader) -> Iterator[tuple[str, Callable[[int], _Call]]]:
    for path in ("/filter", "/prioritize", "/preempt", "/explain"):
        yield path, lambda number, path=path: leader.verb(path, number)  # type: ignore[misc]
    for path in (
        "/",
        "/pods",
        "/pods/team-0/new-0",
        f"/nodes/{cluster.name_of(7)}",
        f"/nodes/{cluster.name_of(7)}/drain",
    ):
        yield f"page {path}", lambda _, path=path: leader.page(path)  # type: ignore[misc]
    yield "webhook", leader.placement


def run() -> str:
    """Measures every entry point and returns the table, in ms."""
    # A review that fails is answered, too; its turn would be that of the traceback.
    structlog.configure(processors=[_raise_failure], logger_factory=structlog.ReturnLoggerFactory())
    # What is imported at the first call is no turn of it.
    collector = _Collector()
    uvloop.run(_measure(10, collector))
    results = [uvloop.run(_measure(nodes, collector)) for nodes in SIZES]
    head = f"{f'longest turn, ms (budget {BUDGET * 1e3:.0f})':<32}" + "".join(
        f"{f'{nodes} nodes':>30}" for nodes in SIZES
    )
    columns = " " * 32 + "".join(f"{'cold':>10}{'new':>10}{'warm':>10}" for _ in SIZES)
    rows = (
        f"{name:<32}" + "".join(f"{seconds * 1e3:>10.1f}" for times in results for seconds in times[name])
        for name in results[0]
    )
    longest = max(seconds for times in results for turns in times.values() for seconds in turns)
    summary = f"The longest turn took {longest * 1e3:.1f} ms, and the longest garbage collection {collector.longest * 1e3:.1f} ms."
    return "\n".join(["", head, columns, *rows, summary])


def _crowded_leader(nodes: int) -> tuple[PendingObjects, ClusterState, Ledger]:
    """Returns the objects of a cluster with demand, offers, holds, and volumes without a place, its state, and the ledger."""
    objects = PendingObjects(nodes)
    view = make_view(objects, DEMANDS_PER_NODE * nodes, 0, UNPLACED, ROAMING)
    state = ClusterState.of(view)
    ledger = make_ledger(view, state.demand, OFFERS)
    for number in range(HOLDS):
        pod = new_pod(f"held-{number}")
        held = Offered(ObservedPod(uid=pod.uid), frozenset(view.cluster.nodes), resolve(pod, view).local, priority=1)
        ledger, _ = step(ledger, held, ledger.time)
    return objects, state, ledger


async def _measure(nodes: int, collector: _Collector) -> dict[str, tuple[float, ...]]:
    objects, state, ledger = _crowded_leader(nodes)
    turns: list[float] = []
    time_turns(asyncio.get_running_loop(), lambda seconds: turns.append(seconds - collector.take()))
    results = {}
    names = [name for name, _ in _calls(_Leader(objects, state, ledger))]
    for index, name in enumerate(names):
        leader = _Leader(objects, state, ledger)
        make = list(_calls(leader))[index][1]
        # The first call of an application makes its middleware.
        await leader.page("/healthz").send()
        await _Call(leader.guard_app, "POST", "/review", b"{}").send(400)
        gc.collect()
        gc.freeze()  # as the live server
        longest = []
        for number in (1, 2, 2):
            call = make(number)
            # What was made for the call is no turn of it.
            await asyncio.sleep(0.01)
            turns.clear()
            collector.measures = True
            await call.send()
            await asyncio.sleep(0.01)
            collector.measures = False
            longest.append(max(turns))
        results[name] = tuple(longest)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        gc.unfreeze()
    return results
