"""`longhorn-extender schedule`: what if the pending pods of a snapshot were scheduled; or a scheduler for pods of a live cluster."""

from __future__ import annotations

import os
import random
import re
import socket
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.explain import Output, show
from app.cli.options import (
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    PackingOption,
    now,
    options_of,
)
from app.cli.serve import check_level, listen
from app.runtime.logs import LogFormat, configure
from app.settings import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_STALE_AFTER, BestEffort
from scheduler_core.errors import CoreError
from scheduler_core.extender.filter import Options, Packing
from scheduler_core.generic.policy import DEFAULT_POLICY, Policy
from scheduler_core.leadership.election import ElectionTiming

if TYPE_CHECKING:
    from rich.console import Console

    from app.policy.file import PolicyFile
    from app.scheduler.process import ProcessOptions
    from app.scheduler.scheduler import Setup
    from app.scheduler.whatif import Report

NOT_ALL_PLACED: Final = 1
_SNAPSHOT_SEED: Final = 0
_LEASE: Final = "longhorn-generic-scheduler"  # service.LEASE, without what importing that takes
# What Kubernetes takes as an object's name (DNS-1123 subdomain).
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253


def schedule(  # one parameter per flag
    snapshot: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Schedule the pending pods of this file, and print what becomes of them: what `kubectl get nodes,pods,services "
            "-A -o yaml` prints, with Longhorn's objects if the policy has rules of Longhorn's; - for standard input.",
        ),
    ] = None,
    watch: Annotated[  # noqa: FBT002 # a switch
        bool, typer.Option("--watch", help="Schedule pods of a live cluster until told to stop.")
    ] = False,
    scheduler_name: Annotated[
        str,
        typer.Option(
            envvar="LONGHORN_SCHEDULER_NAME",
            metavar="NAME",
            help="Only pods with this spec.schedulerName; required with --watch.",
        ),
    ] = "",
    policy: Annotated[
        str | None,
        typer.Option(
            envvar="LONGHORN_SCHEDULER_POLICY",
            metavar="FILE",
            help="Policy file, JSON, with --watch read again when it changes; without one the classic default is in force.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Of the choice among equally good nodes; default: 0 with --snapshot, chance with --watch."
        ),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print; with --snapshot.")] = Output.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = DEFAULT_NAMESPACE,
    lease_name: Annotated[
        str,
        typer.Option(
            envvar="LONGHORN_SCHEDULER_LEASE",
            metavar="NAME",
            help="The Lease by which processes of one --scheduler-name agree who schedules; another for each scheduler name.",
        ),
    ] = _LEASE,
    identity: Annotated[
        str, typer.Option(envvar="POD_NAME", help="Who this process is in the Lease; default: host name and process.")
    ] = "",
    host: Annotated[
        str, typer.Option(envvar="LONGHORN_SCHEDULER_HOST", help="Address of /healthz, /readyz and /metrics.")
    ] = DEFAULT_HOST,
    port: Annotated[
        int | None,
        typer.Option(
            envvar="LONGHORN_SCHEDULER_PORT", min=0, max=65535, help="TCP port of these; without it there are none."
        ),
    ] = None,
    stale_after: Annotated[
        float,
        typer.Option(min=1, help="Seconds without a word from the API server, after which nothing is scheduled."),
    ] = DEFAULT_STALE_AFTER,
    lease_duration: Annotated[float, typer.Option(help="Seconds until others may take the Lease.")] = 15.0,
    renew_deadline: Annotated[float, typer.Option(help="Seconds after which a leader gives up.")] = 10.0,
    retry_period: Annotated[float, typer.Option(help="Seconds between renewals.")] = 2.0,
    log_format: Annotated[LogFormat, typer.Option(help="auto: readable on a terminal, else JSON.")] = "auto",
    log_level: Annotated[str, typer.Option(help="debug, info, ...")] = "info",
) -> None:
    """Schedule pods by predicates, priorities and a policy file: those of a snapshot as a what-if, or those of a live cluster.

    Exit code with --snapshot 0: every pod has found a node. 1: some have not. 2: bad input.
    """
    if (snapshot is not None) == watch:
        raise CoreError("schedule needs either --snapshot or --watch; see --help")
    file, options = _policy_file(policy), options_of(best_effort, packing)
    if snapshot is not None:
        rules = DEFAULT_POLICY if file is None else file.policy
        report = _what_if(snapshot, scheduler_name, rules, _SNAPSHOT_SEED if seed is None else seed, options)
        show(report.data(), output, lambda console: _table(report, console))
        if report.unplaced:
            raise typer.Exit(NOT_ALL_PLACED)
        return
    if not scheduler_name:
        raise CoreError("schedule --watch needs --scheduler-name: whose pods it shall schedule; see --help")
    if not _NAME.fullmatch(lease_name) or len(lease_name) > _LONGEST_NAME:
        raise CoreError(
            f"--lease-name {lease_name!r}: a Lease's name has lower-case letters, digits, '-' and '.', begins and ends each part "
            f"with a letter or digit, and has {_LONGEST_NAME} characters at most"
        )
    check_level(log_level)
    from app.scheduler.process import ProcessOptions
    from app.scheduler.scheduler import Setup

    choose = random.Random(seed).choice  # noqa: S311 # which of equals is no secret
    setup = Setup(scheduler_name, DEFAULT_POLICY, choose, stale_after, file)
    process = ProcessOptions(
        identity=identity or f"{socket.gethostname()}-{os.getpid()}",
        namespace=namespace,
        kubeconfig=kubeconfig,
        context=context,
        timing=ElectionTiming(lease_duration, renew_deadline, retry_period),
        options=options,
        lease=lease_name,
    )
    _watch(setup, process, None if port is None else listen(host, port), log_format, log_level)


def _policy_file(path: str | None) -> PolicyFile | None:
    if path is None:
        return None
    from app.policy.file import PolicyFile

    file = PolicyFile(path)
    for warning in file.policy.warnings:
        typer.echo(f"warning: {path}: {warning}", err=True)
    return file


def _what_if(source: str, scheduler: str, policy: Policy, seed: int, options: Options) -> Report:
    from app.kube.snapshot_generic import load_cluster
    from app.scheduler.whatif import what_if

    loaded = load_cluster(source, policy, longhorn=policy.reads_longhorn)
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    longhorn = None
    if policy.reads_longhorn:
        from app.scheduler.longhorn_cache import SnapshotLonghorn

        longhorn = SnapshotLonghorn(loaded.snapshot, options, now())
    waiting = [entry for entry in loaded.pods.values() if entry.waits and scheduler in ("", entry.scheduler)]
    if not waiting:
        whose = f" with spec.schedulerName {scheduler!r}" if scheduler else ""
        typer.echo(f"warning: {source}: no pod{whose} waits for a node, so there is nothing to schedule", err=True)
    return what_if(waiting, loaded.state, policy, random.Random(seed).choice, longhorn)  # noqa: S311


def _table(report: Report, console: Console) -> None:
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
    setup: Setup, options: ProcessOptions, listener: socket.socket | None, log_format: LogFormat, log_level: str
) -> None:
    from app.scheduler.process import run_scheduler

    configure(log_format, log_level)
    where = "" if listener is None else " (http://{}:{}/metrics)".format(*listener.getsockname()[:2])
    welcome = f"Scheduling pods of {setup.name} as {options.identity}{where}; Ctrl-C hands over and stops"
    run_scheduler(setup, options, listener, lambda: typer.echo(welcome, err=True))
