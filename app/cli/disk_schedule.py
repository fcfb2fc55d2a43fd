"""`longhorn-extender disk-schedule`: the DiskSchedule controllers."""

from __future__ import annotations

import asyncio
import os
import random as chance
import socket
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from app.cli.options import ContextOption, KubeconfigOption, NamespaceOption
from app.cli.serve import check_level, listen
from app.runtime.logs import LogFormat, configure
from app.settings import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_STALE_AFTER
from scheduler_core.errors import CoreError
from scheduler_core.leadership.election import ElectionTiming

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; --help needs none
    from app.disk_schedule.lifecycle import ControllerOptions

DEFAULT_PORT = 9505


def disk_schedule(  # one parameter per flag
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = DEFAULT_NAMESPACE,
    mirror: Annotated[  # noqa: FBT002 # a flag
        bool,
        typer.Option(
            "--mirror",
            envvar="LONGHORN_DISK_SCHEDULE_MIRROR",
            help="Observe a Longhorn that allocates by itself: write down what is on each disk, report over-allocations, "
            "change nothing else.",
        ),
    ] = False,
    host: Annotated[
        str, typer.Option(envvar="LONGHORN_DISK_SCHEDULE_HOST", help="Address for /healthz, /readyz and /metrics.")
    ] = DEFAULT_HOST,
    port: Annotated[
        int, typer.Option(envvar="LONGHORN_DISK_SCHEDULE_PORT", min=0, max=65535, help="TCP port; 0 picks a free one.")
    ] = DEFAULT_PORT,
    identity: Annotated[
        str, typer.Option(envvar="POD_NAME", help="Who this candidate is in the Lease; default: host name and process.")
    ] = "",
    leader_elect: Annotated[  # noqa: FBT002 # --leader-elect and --no-leader-elect
        bool,
        typer.Option(
            "--leader-elect/--no-leader-elect",
            help="Whether only the holder of the Lease works. Without, several do everything several times; no harm is done.",
        ),
    ] = True,
    release_orphans_after: Annotated[
        float,
        typer.Option(
            envvar="LONGHORN_DISK_SCHEDULE_RELEASE_ORPHANS_AFTER",
            min=0,
            help="Seconds after which a request is withdrawn whose replica or backing image never was there.",
        ),
    ] = 300.0,
    stale_after: Annotated[
        float,
        typer.Option(min=1, help="Seconds without a word from the API server, after which nothing is decided."),
    ] = DEFAULT_STALE_AFTER,
    lease_duration: Annotated[float, typer.Option(help="Seconds until others may take the Lease.")] = 15.0,
    renew_deadline: Annotated[float, typer.Option(help="Seconds after which a leader gives up.")] = 10.0,
    retry_period: Annotated[float, typer.Option(help="Seconds between renewals.")] = 2.0,
    log_format: Annotated[LogFormat, typer.Option(help="auto: readable on a terminal, else JSON.")] = "auto",
    log_level: Annotated[str, typer.Option(help="debug, info, ...")] = "info",
) -> None:
    """Allocate room on Longhorn's disks through DiskSchedules, or with --mirror observe who allocates it.

    Several of these may run; the one that holds the Lease works.
    """
    from app.disk_schedule.lifecycle import ControllerOptions
    from app.server import exit_quietly

    timing = ElectionTiming(lease_duration, renew_deadline, retry_period)
    check_level(log_level)
    exit_quietly()
    name = identity or f"{socket.gethostname()}-{os.getpid()}"
    does = "Mirrors Longhorn's allocations into DiskSchedules" if mirror else "Allocates through DiskSchedules"
    with listen(host, port) as listener:
        configure(log_format, log_level)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        candidate = _Candidate(
            kubeconfig,
            context,
            ControllerOptions(namespace, mirror, stale_after, release_orphans_after),
            name,
            timing if leader_elect else None,
            f"{does} as {name} (readiness: {address}/readyz, metrics: {address}/metrics, Ctrl-C stops)",
        )
        with asyncio.Runner(loop_factory=_event_loop) as runner:
            runner.run(_run(candidate, listener))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Where the cluster is and who this process is there; `timing` None: no Lease is asked for."""

    kubeconfig: str | None
    context: str | None
    options: ControllerOptions
    identity: str
    timing: ElectionTiming | None
    welcome: str


def _event_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def _run(candidate: _Candidate, listener: socket.socket) -> None:
    """Checks that nobody else allocates, and works until a signal.

    Raises:
        CoreError: there is no cluster, it refuses, or longhorn-manager runs there
    """
    from app.disk_schedule.lifecycle import LEASE, DiskSchedules
    from app.disk_schedule.manager_detection import managers_now, refusal
    from app.disk_schedule.metrics import ControllerMetrics
    from app.disk_schedule.server import application, serve
    from app.kube.client import KubeClient
    from app.kube.reflector import Timing
    from app.runtime.elector import Elector

    async def connect() -> KubeClient:
        return await KubeClient.connect(candidate.kubeconfig, candidate.context)

    options = candidate.options
    client = await connect()
    try:
        problem = "" if options.mirror else refusal(await managers_now(client, options.namespace))
        if problem:
            raise CoreError(problem)
        metrics = ControllerMetrics()
        elector = None
        if candidate.timing is not None:
            elector = Elector(connect, candidate.identity, options.namespace, candidate.timing, lease=LEASE)
        service = DiskSchedules(
            client,
            options,
            elector,
            metrics,
            timing=Timing(monotonic, chance.uniform),
            now=lambda: datetime.now(UTC),
            random=chance.random,
        )
        typer.echo(candidate.welcome, err=True)
        error = await serve(service, application(lambda: service.problem, metrics.registry), listener)
    finally:
        await client.close()
    if error is not None:
        structlog.get_logger("controllers").error("the controllers have failed", exc_info=error)
        sys.exit(1)
