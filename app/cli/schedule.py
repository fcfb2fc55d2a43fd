"""`longhorn-extender schedule`: schedules a snapshot's pending pods as a what-if, or the pods of a live cluster."""

from __future__ import annotations

import random
import re
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.explain import Output, show
from app.cli.options import (
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    LeaseDurationOption,
    LogFormatOption,
    LogLevelOption,
    NamespaceOption,
    PackingOption,
    RenewDeadlineOption,
    RetryPeriodOption,
    check_log_level,
    filter_options,
    holder_identity,
    listen,
    now,
)
from app.runtime.logs import LogFormat, configure
from app.settings import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_STALE_AFTER, BestEffort
from scheduler_core.errors import CoreError
from scheduler_core.extender.decision import FilterOptions, Packing
from scheduler_core.generic.policy import DEFAULT_POLICY, Policy
from scheduler_core.leadership.election import ElectionTiming

if TYPE_CHECKING:
    from rich.console import Console

    from app.policy.file import PolicyFile
    from app.scheduler.lifecycle import SchedulerOptions
    from app.scheduler.scheduler import SchedulerConfig
    from app.scheduler.whatif import WhatIfReport

NOT_ALL_PLACED: Final = 1
_SNAPSHOT_SEED: Final = 0
# Equal to app.scheduler.lifecycle.LEASE, whose import takes a second.
_LEASE: Final = "longhorn-generic-scheduler"
# The form of an object's name in Kubernetes (DNS-1123 subdomain).
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_NAME_LENGTH: Final = 253


_Snapshot = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Schedule the pending pods of this file, and print what becomes of them: what `kubectl get nodes,pods,services "
        "-A -o yaml` prints, with Longhorn's objects if the policy has rules of Longhorn's; - for standard input.",
    ),
]
_Watch = Annotated[bool, typer.Option("--watch", help="Schedule pods of a live cluster until a signal ends it.")]
_SchedulerName = Annotated[
    str,
    typer.Option(
        envvar="LONGHORN_SCHEDULER_NAME",
        metavar="NAME",
        help="Only pods with this spec.schedulerName; required with --watch.",
    ),
]
_Policy = Annotated[
    str | None,
    typer.Option(
        envvar="LONGHORN_SCHEDULER_POLICY",
        metavar="FILE",
        help="Policy file, JSON, with --watch read again when it changes; without one the classic default is in force.",
    ),
]
_Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Of the choice among equally good nodes; default: 0 with --snapshot, chance with --watch."
    ),
]
_Output = Annotated[Output, typer.Option("--output", "-o", help="How to print; with --snapshot.")]
_LeaseName = Annotated[
    str,
    typer.Option(
        envvar="LONGHORN_SCHEDULER_LEASE",
        metavar="NAME",
        help="The Lease by which processes of one --scheduler-name agree who schedules; another for each scheduler name.",
    ),
]
_Identity = Annotated[
    str, typer.Option(envvar="POD_NAME", help="Who this process is in the Lease; default: host name and process.")
]
_Host = Annotated[
    str, typer.Option(envvar="LONGHORN_SCHEDULER_HOST", help="Address of /healthz, /readyz and /metrics.")
]
_Port = Annotated[
    int | None,
    typer.Option(
        envvar="LONGHORN_SCHEDULER_PORT", min=0, max=65535, help="TCP port of these; without it there are none."
    ),
]
_StaleAfter = Annotated[
    float,
    typer.Option(min=1, help="Seconds without a word from the API server, after which nothing is scheduled."),
]


def schedule(  # one parameter per flag
    snapshot: _Snapshot = None,
    watch: _Watch = False,  # noqa: FBT002 # a switch
    scheduler_name: _SchedulerName = "",
    policy: _Policy = None,
    seed: _Seed = None,
    output: _Output = Output.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = DEFAULT_NAMESPACE,
    lease_name: _LeaseName = _LEASE,
    identity: _Identity = "",
    host: _Host = DEFAULT_HOST,
    port: _Port = None,
    stale_after: _StaleAfter = DEFAULT_STALE_AFTER,
    lease_duration: LeaseDurationOption = 15.0,
    renew_deadline: RenewDeadlineOption = 10.0,
    retry_period: RetryPeriodOption = 2.0,
    log_format: LogFormatOption = "auto",
    log_level: LogLevelOption = "info",
) -> None:
    """Schedule pods by predicates, priorities and a policy file.

    The pods are those of a snapshot as a what-if, or those of a live cluster.

    Exit code with --snapshot 0: every pod has found a node. 1: some have not. 2: bad input.
    """
    if (snapshot is not None) == watch:
        raise CoreError("schedule needs either --snapshot or --watch; see --help")
    file = _read_policy_file(policy)
    # This scheduler binds no claim to an existing PersistentVolume: it selects a node, and a volume is provisioned.
    options = replace(filter_options(best_effort, packing), match_volumes=False)
    if snapshot is not None:
        in_force = DEFAULT_POLICY if file is None else file.policy
        report = _what_if(snapshot, scheduler_name, in_force, _SNAPSHOT_SEED if seed is None else seed, options)
        show(report.data(), output, lambda console: _print_table(report, console))
        if report.unplaced:
            raise typer.Exit(NOT_ALL_PLACED)
        return
    if not scheduler_name:
        raise CoreError("schedule --watch needs --scheduler-name: whose pods it shall schedule; see --help")
    if not _NAME.fullmatch(lease_name) or len(lease_name) > _MAX_NAME_LENGTH:
        raise CoreError(
            f"--lease-name {lease_name!r}: a Lease's name has lower-case letters, digits, '-' and '.', begins and ends each part "
            f"with a letter or digit, and has {_MAX_NAME_LENGTH} characters at most"
        )
    check_log_level(log_level)
    from app.scheduler.lifecycle import SchedulerOptions
    from app.scheduler.scheduler import SchedulerConfig

    choose = random.Random(seed).choice  # noqa: S311 # which of equals is no secret
    config = SchedulerConfig(scheduler_name, DEFAULT_POLICY, choose, stale_after, file)
    process_options = SchedulerOptions(
        identity=holder_identity(identity),
        namespace=namespace,
        kubeconfig=kubeconfig,
        context=context,
        timing=ElectionTiming(lease_duration, renew_deadline, retry_period),
        options=options,
        lease=lease_name,
    )
    _watch(config, process_options, None if port is None else listen(host, port), log_format, log_level)


def _read_policy_file(path: str | None) -> PolicyFile | None:
    if path is None:
        return None
    from app.policy.file import PolicyFile

    file = PolicyFile(path)
    for warning in file.policy.warnings:
        typer.echo(f"warning: {path}: {warning}", err=True)
    return file


def _what_if(source: str, scheduler: str, policy: Policy, seed: int, options: FilterOptions) -> WhatIfReport:
    from app.kube.snapshot_generic import load_cluster
    from app.scheduler.whatif import what_if

    loaded = load_cluster(source, policy, longhorn=policy.reads_longhorn)
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    longhorn = None
    if policy.reads_longhorn:
        from app.scheduler.longhorn_cache import LonghornSnapshot

        longhorn = LonghornSnapshot(loaded.snapshot, options, now())
    pending = [entry for entry in loaded.pods.values() if entry.needs_node and scheduler in ("", entry.scheduler_name)]
    if not pending:
        selected = f" with spec.schedulerName {scheduler!r}" if scheduler else ""
        typer.echo(f"warning: {source}: no pod{selected} waits for a node, so there is nothing to schedule", err=True)
    return what_if(pending, loaded.state, policy, random.Random(seed).choice, longhorn)  # noqa: S311


def _print_table(report: WhatIfReport, console: Console) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("POD", "NODE", "SCORE", "EQUALLY GOOD", "WHY NOT"):
        table.add_column(column)
    for placed in report.placed:
        table.add_row(placed.pod, placed.node, str(placed.score), str(placed.best), "")
    for unplaced in report.unplaced:
        table.add_row(unplaced.pod, "-", "", "", unplaced.message)
    console.print(table)
    console.print(f"{len(report.placed)} scheduled, {len(report.unplaced)} not")


def _watch(
    config: SchedulerConfig,
    options: SchedulerOptions,
    listener: socket.socket | None,
    log_format: LogFormat,
    log_level: str,
) -> None:
    from app.scheduler.lifecycle import run_scheduler

    configure(log_format, log_level)
    address = "" if listener is None else " (http://{}:{}/metrics)".format(*listener.getsockname()[:2])
    start_message = f"Scheduling pods of {config.name} as {options.identity}{address}; Ctrl-C hands over and stops"
    run_scheduler(config, options, listener, lambda: typer.echo(start_message, err=True))
