"""The stand-alone scheduler as a process: when it competes and schedules, how a leader hands over, and what the probes
answer.

    caches filled → compete for the Lease → elected → catch up with everything that happened before → schedule
    Lease lost, or caches stale → no more decisions and Bindings
    SIGTERM → no more decisions → finish Bindings and write Events, both bounded → release the Lease

`SchedulerLifecycle` is the program; `run_scheduler` connects it to the cluster and serves it.
"""

import random
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from time import monotonic

import structlog

from app.kube.client import CallLimits, KubeClient
from app.kube.cluster_cache import ClusterCache
from app.kube.reflector import Timing
from app.runtime import leader_loop, logs, probes, server
from app.runtime.decision_thread import DecisionThread
from app.runtime.elector import Elector
from app.scheduler.api_calls import PodReporter, SchedulerMetrics
from app.scheduler.cache import LonghornCache
from app.scheduler.scheduler import GenericScheduler, SchedulerConfig, SchedulerParts
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.leadership.election import ElectionTiming
from scheduler_core.structs import Struct, field

log = structlog.get_logger("service")
process_log = structlog.get_logger("process")

LEASE = "longhorn-generic-scheduler"


class SchedulerOptions(Struct, frozen=True):
    """How a process finds the cluster, and its identity there."""

    identity: str
    namespace: str  # of the Lease, and of Longhorn's objects
    kubeconfig: str | None
    context: str | None
    timing: ElectionTiming
    options: FilterOptions  # how Longhorn's rules decide
    lease: str = LEASE  # the Lease's name
    limits: CallLimits = field(default_factory=CallLimits)  # of Bindings, conditions and watches, and again of Events


class SchedulerLifecycle(leader_loop.Program):
    """Owner of the decision whether this process schedules."""

    # A successor may start at once: it reads from the cluster which pods are bound, and no pod can be bound twice.
    release_after_crash = True

    def __init__(self, scheduler: GenericScheduler, elector: Elector, metrics: SchedulerMetrics) -> None:
        super().__init__(elector, log)
        self._scheduler = scheduler
        self._trouble = logs.ProblemLog(log, "trouble", "trouble is over")
        metrics.add_gauge("leading", "Whether this process schedules", lambda: float(self.leading))

    def readiness(self) -> probes.LeaderHealth:
        """Returns that the process could schedule, and whether it leads. Raises an UnavailableError if the cluster is
        not known well enough to schedule.
        """
        problem = self._scheduler.problem
        if problem:
            raise probes.UnavailableError(f"not ready: {problem}")
        return probes.LeaderHealth(status="ok", role="leader" if self.leading else "follower")

    def log_failure(self, error: BaseException) -> None:
        process_log.error("the scheduler has failed", exc_info=error)

    def log_drain_failure(self, error: BaseException) -> None:
        process_log.error("handing over failed; the Lease runs out by itself", exc_info=error)

    async def run_tasks(self) -> None:
        await self._scheduler.run()

    @property
    def competes(self) -> bool:
        # A leader whose caches become stale gives up the Lease.
        return not self._scheduler.problem

    async def before_step(self) -> None:
        self._trouble.note(self._scheduler.problem or self._election.problem)

    async def catch_up(self) -> None:
        await self._scheduler.catch_up()

    def start(self, term: int) -> None:
        self._scheduler.activate()
        log.info("scheduling", term=term)

    async def stop(self) -> None:
        self._scheduler.deactivate()

    def log_lead_lost(self, term: int) -> None:
        log.warning("no longer the leader", term=term)

    def begin_drain(self) -> None:
        """Stops scheduling; Bindings in progress go on."""
        process_log.info("handing over")
        self._scheduler.deactivate()

    async def settle(self) -> bool:
        """Returns once no pod is being bound and every Event is written."""
        await self._scheduler.wait_until_settled()
        return True

    def log_unsettled(self) -> None:
        log.warning("a pod is still being bound, or an event written; handing over without it")


async def run_scheduler(
    config: SchedulerConfig, options: SchedulerOptions, listener: socket.socket | None, on_connect: Callable[[], None]
) -> None:
    """Schedules until a signal. Without a listener the probes are not served. `on_connect` is called once there is a
    connection to the cluster. Raises a ConnectError if there is no cluster to talk to.
    """
    async with await KubeClient.connect(options.kubeconfig, options.context, options.limits) as client:
        on_connect()
        metrics = SchedulerMetrics()
        lifecycle = build_lifecycle(client, config, options, metrics)
        app = probes.probe_application(lifecycle.readiness, metrics.registry, probes.LeaderHealth)
        await server.serve(lifecycle, [server.HttpServer(app, listener)] if listener is not None else [])


def build_lifecycle(
    client: KubeClient, config: SchedulerConfig, options: SchedulerOptions, metrics: SchedulerMetrics
) -> SchedulerLifecycle:
    """Builds a scheduler for a live cluster, with its elector."""
    timing = Timing(monotonic, random.uniform)

    connect = partial(KubeClient.connect, options.kubeconfig, options.context)
    now = partial(datetime.now, UTC)

    def new_longhorn_cache() -> LonghornCache:
        cache = ClusterCache(client, options.namespace, timing, now, config.stale_after)
        return LonghornCache(cache, options.options, now)

    elector = Elector(connect, options.identity, options.namespace, options.timing, lease=options.lease)
    reporter = PodReporter(client, config.name, monotonic, now, metrics.write_failures.count)
    parts = SchedulerParts(client, timing, elector.leading, reporter, metrics, new_longhorn_cache, DecisionThread())
    return SchedulerLifecycle(GenericScheduler(config, parts), elector, metrics)
