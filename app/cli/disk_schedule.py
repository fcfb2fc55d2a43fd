"""`longhorn-extender disk-schedule`: the DiskSchedule controllers."""

from typing import Annotated

import typer

from app.cli import options as flags
from app.cli.render import print_line
from app.runtime.logs import configure
from app.settings import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_STALE_AFTER
from scheduler_core.leadership.election import ElectionTiming

DEFAULT_PORT = 9505


def disk_schedule(  # one parameter per flag
    kubeconfig: flags.KubeconfigOption = None,
    context: flags.ContextOption = None,
    longhorn_namespace: flags.NamespaceOption = DEFAULT_NAMESPACE,
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
        float, typer.Option(min=1, help="Seconds without a word from the API server, after which nothing is decided.")
    ] = DEFAULT_STALE_AFTER,
    lease_duration: flags.LeaseDurationOption = 15.0,
    renew_deadline: flags.RenewDeadlineOption = 10.0,
    retry_period: flags.RetryPeriodOption = 2.0,
    log_format: flags.LogFormatOption = "auto",
    log_level: flags.LogLevelOption = "info",
) -> None:
    """Allocate room on Longhorn's disks through DiskSchedules, or with --mirror observe who allocates it.

    Several of these may run; the one that holds the Lease works.
    """
    # The Kubernetes client takes a second to import, and --help needs none.
    from app.disk_schedule.lifecycle import ControllerOptions, ProcessOptions, run_controllers
    from app.runtime.server import exit_quietly, run_process

    timing = ElectionTiming(lease_duration, renew_deadline, retry_period)
    flags.check_log_level(log_level)
    exit_quietly()
    name = flags.holder_identity(identity)
    does = "Mirrors Longhorn's allocations into DiskSchedules" if mirror else "Allocates through DiskSchedules"
    with flags.listen(host, port) as listener:
        configure(log_format, log_level)
        address = flags.url(host, listener.getsockname()[1])
        welcome = f"{does} as {name} (readiness: {address}/readyz, metrics: {address}/metrics, Ctrl-C stops)"
        options = ControllerOptions(longhorn_namespace, mirror, stale_after, release_orphans_after)
        process = ProcessOptions(name, kubeconfig, context, timing if leader_elect else None)
        run_process(run_controllers(options, process, listener, lambda: print_line(welcome, err=True)))
