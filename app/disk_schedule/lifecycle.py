"""When the controllers run: caches, leadership, longhorn-manager and shutdown.

    elected, every required kind listed, longhorn-manager does not allocate here → reconcile every object, then the objects that change
    Lease lost, a watch silent for too long, longhorn-manager appears or takes the DiskSchedules over → no more writes, stop
    SIGTERM → no more writes, stop, release the Lease

`DiskScheduleLifecycle` is the program; `run_controllers` connects it to the cluster and serves its probes.

Two processes that reconcile at the same time do no harm, because every write is against the version that was read. The Lease
keeps them from doing the same work twice. Where longhorn-manager runs, it allocates by itself, and two allocators would promise the same
bytes. Where it owns DiskSchedules, it answers them itself, and a mirror would write what Longhorn decides from.
"""

import asyncio
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from time import monotonic

import msgspec
import structlog

from app.disk_schedule import controller_cache, writer
from app.disk_schedule.controller_base import Controller, ControllerContext, ControllerMetrics
from app.disk_schedule.schedule_controllers import Allocator, Mirror, NodeController, OrphanController
from app.disk_schedule.volume_controllers import ImageController, ReplicaController, VolumeController
from app.kube.client import KubeClient, pages
from app.kube.reflector import Decode, Key, Timing
from app.kube.resources import CRDS, DISK_SCHEDULES, PODS, Resource
from app.kube.store import Store, Watch
from app.runtime import leader_loop, server
from app.runtime.elector import Elector
from app.runtime.event_recorder import EventRecorder
from app.runtime.probes import Health, UnavailableError, probe_application
from scheduler_core import errors
from scheduler_core.convert import disk_schedule, kube, wire_types
from scheduler_core.leadership.election import ElectionTiming
from scheduler_core.model.kube import FINISHED_PHASES
from scheduler_core.structs import Struct

_DEFINITION = DISK_SCHEDULES.label


class Obstacle(Struct, frozen=True):
    """Objects of longhorn-manager that forbid every write."""

    label: str  # the objects' name in problems
    resource: Resource
    selectors: Mapping[str, str]
    decode: Decode[str]  # returns an object's key, and as value its name if it is one of them
    refusal: str  # why nothing is written while there are such objects; {} stands for their names

    def explain(self, names: set[str]) -> str:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return self.refusal.format(min(names) + more) if names else ""


def _decode_pod(raw: bytes | msgspec.Raw) -> tuple[Key, str | None]:
    """Returns a pod's name as key, and as value unless it has ended."""
    # No more is read, because a pod that cannot be read forbids nothing.
    name = wire_types.header(raw).name
    return name, None if kube.POD_PHASE.decode(raw) in FINISHED_PHASES else name


def _decode_definition(raw: bytes | msgspec.Raw) -> tuple[Key, str | None]:
    name, longhorns = disk_schedule.longhorns_definition(raw)
    return name, name if longhorns else None


MANAGER_PODS = Obstacle(
    "pods of longhorn-manager",
    PODS,
    {"labelSelector": "app=longhorn-manager"},
    _decode_pod,
    "longhorn-manager runs here (pod {}) and allocates by itself; use --mirror to observe it",
)
LONGHORNS_DEFINITION = Obstacle(
    f"CustomResourceDefinition {_DEFINITION}",
    CRDS,
    {"fieldSelector": f"metadata.name={_DEFINITION}"},
    _decode_definition,
    "longhorn-manager owns the DiskSchedules here (the CustomResourceDefinition {} is its own) and answers them itself",
)


def obstacles(*, mirror: bool) -> tuple[Obstacle, ...]:
    """Returns what keeps the controllers from writing; a mirror may run where longhorn-manager does."""
    return (LONGHORNS_DEFINITION,) if mirror else (LONGHORNS_DEFINITION, MANAGER_PODS)


class ObstacleWatch(Store):
    """Watches the obstacles in Longhorn's namespace."""

    def __init__(
        self, client: KubeClient, namespace: str, timing: Timing, stale_after: float, obstacles: Sequence[Obstacle]
    ) -> None:
        super().__init__(client, timing, stale_after)
        self._obstacles = obstacles
        for each in obstacles:
            watch = Watch(
                each.resource,
                each.decode,
                namespace=namespace,
                selectors=each.selectors,
                label=each.label,
                required=False,
            )
            self.watch(each.label, watch)

    @property
    def problem(self) -> str:
        """Why nothing may be written, in one sentence, or ""; that the objects are not known is a reason, too."""
        for each in self._obstacles:
            problem = self.problem_of([each.label]) or each.explain(set(self[each.label].values()))
            if problem:
                return problem
        return ""


async def refusal(client: KubeClient, namespace: str, *, mirror: bool) -> str:
    """Returns why the controllers may not start, or "".

    Raises:
        ApiError: the API server refused or did not answer
        ObjectError: an object cannot be read
    """
    for obstacle in obstacles(mirror=mirror):
        names: set[str] = set()
        async for page in pages(client, obstacle.resource.path(namespace), obstacle.selectors):
            names.update(name for _, name in map(obstacle.decode, page.items) if name is not None)
        if problem := obstacle.explain(names):
            return problem
    return ""


log = structlog.get_logger("controllers")

LEASE = "longhorn-disk-schedule"  # and the component that records Events
_ALLOCATING = (NodeController, Allocator, VolumeController, ReplicaController, ImageController, OrphanController)
_OBSERVING = (NodeController, Mirror)


class ControllerOptions(Struct, frozen=True):
    """What an administrator may choose."""

    namespace: str  # Longhorn's namespace
    mirror: bool  # record what Longhorn allocates by itself, and decide nothing
    stale_after: float  # seconds without a message from the API server about some kind after which nothing is decided
    orphans_after: float = 300.0  # see `ControllerContext`


class ProcessOptions(Struct, frozen=True):
    """How to reach the cluster, and the identity of this process there."""

    identity: str
    kubeconfig: str | None
    context: str | None
    # Of the Lease; None: no Lease is needed, and other processes may reconcile at the same time.
    timing: ElectionTiming | None


class DiskScheduleLifecycle(leader_loop.Program):
    """Owner of the decision whether this process reconciles.

    Args:
        random: returns a number in [0, 1)
    """

    def __init__(  # noqa: PLR0913 # every one is a port
        self,
        client: KubeClient,
        options: ControllerOptions,
        election: leader_loop.Election,
        metrics: ControllerMetrics,
        *,
        timing: Timing,
        now: Callable[[], datetime],
        random: Callable[[], float],
    ) -> None:
        super().__init__(election, log)
        self._metrics = metrics
        self._draining = False
        self._logged_refusal = ""
        self._controllers_task: asyncio.Task[None] | None = None
        self.watches = controller_cache.ControllerCache(client, options.namespace, timing, now, options.stale_after)
        self._obstacles = ObstacleWatch(
            client, options.namespace, timing, options.stale_after, obstacles(mirror=options.mirror)
        )
        self._recorder = EventRecorder(client, LEASE, timing.clock, now, lambda: not self.refusal)
        context = ControllerContext(
            options.namespace,
            self.watches,
            writer.ObjectWriter(client, options.namespace, self.watches, lambda: not self.refusal),
            metrics,
            None if options.mirror else self._recorder,
            options.orphans_after,
            timing.clock,
            now,
            random,
        )
        self.controllers: Sequence[Controller] = [
            make(context) for make in (_OBSERVING if options.mirror else _ALLOCATING)
        ]
        metrics.expect(controller.name for controller in self.controllers)
        metrics.watch(self.watches, timing.clock)

    @property
    def problem(self) -> str:
        """Why nothing can be decided now, in one sentence, or "".

        A running longhorn-manager is a reason, unless this is the mirror. That it owns the DiskSchedules is one for
        both.
        """
        return self.watches.problem or self._obstacles.problem

    @property
    def refusal(self) -> str:
        """Why this process must not write now, or ""; the writer checks it before every write."""
        if self._draining:
            return "it is being stopped"
        if not self._election.leading():
            return f"{self._election.holder or 'no process'} holds the Lease {LEASE}"
        return self.problem

    async def run(self) -> None:
        """Watches, competes and reconciles until cancelled. Raises an ExceptionGroup if a task has failed, or the
        elector has ended.
        """
        try:
            await super().run()
        finally:
            await self.stop()

    def log_failure(self, error: BaseException) -> None:
        log.error("the controllers have failed", exc_info=error)

    def log_drain_failure(self, error: BaseException) -> None:
        log.error("the Lease was not given up; it runs out by itself", exc_info=error)

    async def run_tasks(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watches.run(), name="watches")
            tasks.create_task(self._recorder.run(), name="events")
            tasks.create_task(self._obstacles.run(), name="obstacles")

    @property
    def competes(self) -> bool:
        """Always True: a leader that cannot decide leaves the objects as they are."""
        return True

    @property
    def can_start(self) -> bool:
        return not self.problem

    @property
    def must_stop(self) -> bool:
        return bool(self.problem)

    async def before_step(self) -> None:
        """Raises the error of a controller that has failed, which ends this process."""
        if self._controllers_task is not None and self._controllers_task.done():
            self._controllers_task.result()

    async def after_step(self) -> None:
        """Logs when this process begins or stops to reconcile, and counts it in a metric."""
        refusal = self.refusal
        if refusal != self._logged_refusal:
            log.info("does not reconcile" if refusal else "reconciles", because=refusal)
        self._logged_refusal = refusal
        self._metrics.working(now=self._controllers_task is not None)

    def start(self, term: int) -> None:
        """Starts the controllers, which reconcile every object first."""
        del term

        async def run_controllers() -> None:
            async with asyncio.TaskGroup() as tasks:
                for controller in self.controllers:
                    tasks.create_task(controller.run(), name=controller.name)

        self._controllers_task = asyncio.create_task(run_controllers(), name="controllers")

    async def stop(self) -> None:
        """Stops the controllers."""
        task = self._controllers_task
        self._controllers_task = None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.after_step()

    def begin_drain(self) -> None:
        self._draining = True


async def run_controllers(
    options: ControllerOptions, process: ProcessOptions, listener: socket.socket, connected: Callable[[], None]
) -> None:
    """Reconciles until a signal. `connected` is called once the checks have passed, before the first watch. Raises a
    CoreError if there is no cluster, it refuses, or longhorn-manager allocates there.
    """
    connect = partial(KubeClient.connect, process.kubeconfig, process.context)
    async with await connect() as client:
        problem = await refusal(client, options.namespace, mirror=options.mirror)
        if problem:
            raise errors.CoreError(problem)
        metrics = ControllerMetrics()
        election: leader_loop.Election = leader_loop.NoElection()
        if process.timing is not None:
            election = Elector(connect, process.identity, options.namespace, process.timing, lease=LEASE)
        lifecycle = DiskScheduleLifecycle(
            client,
            options,
            election,
            metrics,
            timing=Timing(monotonic, random.uniform),
            now=lambda: datetime.now(UTC),
            random=random.random,
        )

        def readiness() -> Health:
            if lifecycle.problem:
                raise UnavailableError(lifecycle.problem)
            return Health(status="ok")

        connected()
        await server.serve(lifecycle, [server.HttpServer(probe_application(readiness, metrics.registry), listener)])
