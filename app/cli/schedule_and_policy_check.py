"""`longhorn-extender schedule`: schedules a snapshot's pending pods as a what-if, or the pods of a live cluster."""

import random
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import options as flags
from app.cli.commands import CommandGroup
from app.cli.render import Console, Output, OutputOption, print_line, show, show_progress, warn
from app.policy import PolicyFile, load_plugins
from app.runtime.logs import configure
from app.settings import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_STALE_AFTER, BestEffort
from scheduler_core import errors
from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.generic.policy import (
    DEFAULT_POLICY,
    Policy,
    PolicyPredicate,
    PolicyPriority,
    UnsupportedMode,
    kinds_read,
    unsupported_message,
)
from scheduler_core.generic.rule_registry import rule_inputs
from scheduler_core.leadership.election import ElectionTiming
from scheduler_core.structs import Struct, replace

if TYPE_CHECKING:
    from app.scheduler.decision import WhatIfReport


NOT_ALL_PLACED = 1
_SNAPSHOT_SEED = 0
# Equal to app.scheduler.lifecycle.LEASE, whose import takes a second.
_LEASE = "longhorn-generic-scheduler"
# The form of an object's name in Kubernetes (DNS-1123 subdomain).
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_NAME_LENGTH = 253


class _Flags(Struct, frozen=True):
    """The flags of `schedule`."""

    snapshot: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Schedule the pending pods of this file, and print what becomes of them: what `kubectl get nodes,pods,services "
            "-A -o yaml` prints, with Longhorn's objects if the policy has rules of Longhorn's; - for standard input.",
        ),
    ] = None
    watch: Annotated[bool, typer.Option("--watch", help="Schedule pods of a live cluster until a signal ends it.")] = (
        False
    )
    scheduler_name: Annotated[
        str,
        typer.Option(
            envvar="LONGHORN_SCHEDULER_NAME",
            metavar="NAME",
            help="Only pods with this spec.schedulerName; required with --watch.",
        ),
    ] = ""
    policy: Annotated[
        str | None,
        typer.Option(
            envvar="LONGHORN_SCHEDULER_POLICY",
            metavar="FILE",
            help="Policy file, JSON, with --watch read again when it changes; without one the classic default is in force.",
        ),
    ] = None
    unsupported_constraints: Annotated[
        UnsupportedMode | None,
        typer.Option(
            envvar="LONGHORN_SCHEDULER_UNSUPPORTED_CONSTRAINTS",
            help="What becomes of a pod with constraints that no rule of the policy reads, such as required node affinity, and of "
            "nodes with taints: refuse = the pod is not scheduled, and its Event names them; warn = it is, and they are listed; ignore. "
            "Default: refuse with --watch, warn with --snapshot.",
        ),
    ] = None
    plugin: flags.PluginOption = None
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Of the choice among equally good nodes; default: 0 with --snapshot, chance with --watch."
        ),
    ] = None
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print; with --snapshot.")] = Output.TABLE
    best_effort: flags.BestEffortOption = BestEffort.REQUIRE
    packing: flags.PackingOption = Packing.AUTO
    kubeconfig: flags.KubeconfigOption = None
    context: flags.ContextOption = None
    longhorn_namespace: flags.NamespaceOption = DEFAULT_NAMESPACE
    lease_name: Annotated[
        str,
        typer.Option(
            envvar="LONGHORN_SCHEDULER_LEASE",
            metavar="NAME",
            help="The Lease by which processes of one --scheduler-name agree who schedules; another for each scheduler name.",
        ),
    ] = _LEASE
    identity: Annotated[
        str, typer.Option(envvar="POD_NAME", help="Who this process is in the Lease; default: host name and process.")
    ] = ""
    host: Annotated[
        str, typer.Option(envvar="LONGHORN_SCHEDULER_HOST", help="Address of /healthz, /readyz and /metrics.")
    ] = DEFAULT_HOST
    port: Annotated[
        int | None,
        typer.Option(
            envvar="LONGHORN_SCHEDULER_PORT", min=0, max=65535, help="TCP port of these; without it there are none."
        ),
    ] = None
    stale_after: Annotated[
        float, typer.Option(min=1, help="Seconds without a word from the API server, after which nothing is scheduled.")
    ] = DEFAULT_STALE_AFTER
    lease_duration: flags.LeaseDurationOption = 15.0
    renew_deadline: flags.RenewDeadlineOption = 10.0
    retry_period: flags.RetryPeriodOption = 2.0
    kube_api_qps: Annotated[
        float, typer.Option(min=1, help="Calls per second in the long run, of Events on their own.")
    ] = 50.0
    kube_api_burst: Annotated[int, typer.Option(min=1, help="Calls at once after a pause, of Events on their own.")] = (
        100
    )
    log_format: flags.LogFormatOption = "auto"
    log_level: flags.LogLevelOption = "info"


def schedule(given: _Flags) -> None:
    """Schedule pods by predicates, priorities and a policy file.

    The pods are those of a snapshot as a what-if, or those of a live cluster.

    Exit code with --snapshot 0: every pod has found a node. 1: some have not. 2: bad input.
    """
    if (given.snapshot is not None) == given.watch:
        raise errors.CoreError("schedule needs either --snapshot or --watch; see --help")
    file = None if given.policy is None else read_policy(given.policy, given.plugin)
    # This scheduler binds no claim to an existing PersistentVolume: it selects a node, and a volume is provisioned.
    options = replace(flags.filter_options(given.best_effort, given.packing), match_volumes=False)
    if given.snapshot is not None:
        report = _what_if(given, DEFAULT_POLICY if file is None else file.policy, options)
        show(report.data(), given.output, lambda console: _print_table(report, console))
        if report.unplaced:
            raise typer.Exit(NOT_ALL_PLACED)
        return
    if not given.scheduler_name:
        raise errors.CoreError("schedule --watch needs --scheduler-name: whose pods it shall schedule; see --help")
    if not _NAME.fullmatch(given.lease_name) or len(given.lease_name) > _MAX_NAME_LENGTH:
        raise errors.CoreError(
            f"--lease-name {given.lease_name!r}: a Lease's name has lower-case letters, digits, '-' and '.', begins and ends each part "
            f"with a letter or digit, and has {_MAX_NAME_LENGTH} characters at most"
        )
    flags.check_log_level(given.log_level)
    from app.kube.client import CallLimits
    from app.runtime.server import run_process
    from app.scheduler.lifecycle import SchedulerOptions, run_scheduler
    from app.scheduler.scheduler import SchedulerConfig

    choose = random.Random(given.seed).choice  # noqa: S311 # which of equals is no secret
    mode = given.unsupported_constraints or UnsupportedMode.REFUSE
    config = SchedulerConfig(given.scheduler_name, DEFAULT_POLICY, choose, given.stale_after, file, mode)
    process_options = SchedulerOptions(
        identity=flags.holder_identity(given.identity),
        namespace=given.longhorn_namespace,
        kubeconfig=given.kubeconfig,
        context=given.context,
        timing=ElectionTiming(given.lease_duration, given.renew_deadline, given.retry_period),
        options=options,
        lease=given.lease_name,
        limits=CallLimits(given.kube_api_qps, given.kube_api_burst),
    )
    listener = None if given.port is None else flags.listen(given.host, given.port)
    configure(given.log_format, given.log_level)
    address = "" if listener is None else " (http://{}:{}/metrics)".format(*listener.getsockname()[:2])
    start_message = (
        f"Scheduling pods of {given.scheduler_name} as {process_options.identity}{address}; Ctrl-C hands over and stops"
    )
    run_process(run_scheduler(config, process_options, listener, lambda: print_line(start_message, err=True)))


def _what_if(given: _Flags, policy: Policy, options: FilterOptions) -> "WhatIfReport":
    from app.kube.snapshot_file import load_cluster
    from app.scheduler.decision import what_if

    source = str(given.snapshot)
    loaded = load_cluster(source, policy, longhorn=policy.reads_longhorn)
    for warning in loaded.warnings:
        warn(warning)
    scheduler = given.scheduler_name
    pending = [entry for entry in loaded.pods.values() if entry.needs_node and scheduler in ("", entry.scheduler_name)]
    if not pending:
        selected = f" with spec.schedulerName {scheduler!r}" if scheduler else ""
        warn(f"{source}: no pod{selected} waits for a node, so there is nothing to schedule")
    longhorn = None
    if policy.reads_longhorn:
        from app.scheduler.cache import LonghornSnapshot

        longhorn = LonghornSnapshot(loaded.snapshot, options, flags.now())
    choose = random.Random(_SNAPSHOT_SEED if given.seed is None else given.seed).choice  # noqa: S311 # which of equals is no secret
    unsupported = given.unsupported_constraints or UnsupportedMode.WARN
    # What a plugin prints is no result.
    with redirect_stdout(sys.stderr):
        shown = show_progress(sorted(pending, key=lambda pod: pod.queue_key), "Scheduling pods")
        report = what_if(shown, loaded.state, policy, choose, longhorn, unsupported)
    for placed in report.placed:
        if placed.unsupported:
            warn(f"{placed.pod}: {unsupported_message(placed.unsupported)}")
    return report


def _print_table(report: "WhatIfReport", console: Console) -> None:
    table = console.table_of(("POD", "NODE", "SCORE", "EQUALLY GOOD", "WHY NOT"))
    for placed in report.placed:
        table.add_row(placed.pod, placed.node, str(placed.score), str(placed.best), "")
    for unplaced in report.unplaced:
        table.add_row(unplaced.pod, "-", "", "", unplaced.message)
    console.print(table)
    console.print(f"{len(report.placed)} scheduled, {len(report.unplaced)} not")


policy = typer.Typer(cls=CommandGroup, rich_markup_mode=None, add_completion=False)


@policy.callback()
def _policy_files() -> None:
    """Work with policy files of the generic scheduler."""


@policy.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Policy file, JSON.")],
    plugin: flags.PluginOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a policy file, and list what each of its rules reads.

    Exit code 0: the file can be used, perhaps with warnings. 2: it cannot.
    """
    content = read_policy(file, plugin).policy
    # Stable, and documented in docs/generic-scheduler.md.
    data = {
        "file": file,
        "predicates": [_rule_data(entry) for entry in content.predicates],
        "priorities": [{**_rule_data(entry), "weight": entry.weight} for entry in content.priorities],
        "kinds": sorted(kinds_read(content)),
        "longhorn": content.reads_longhorn,
        "warnings": list(content.warnings),
    }
    show(data, output, lambda console: _print_rules(data, console))


def read_policy(path: str, plugins: Sequence[str] | None) -> PolicyFile:
    """Returns a policy file that may name the rules of plugins; warnings go to standard error. Raises a CoreError if
    the file or a plugin cannot be used.
    """
    # What a plugin prints is no result.
    with redirect_stdout(sys.stderr):
        file = PolicyFile(path, load_plugins(plugins or ()))
    for warning in file.policy.warnings:
        warn(f"{path}: {warning}")
    return file


def _rule_data(entry: PolicyPredicate | PolicyPriority) -> dict[str, Any]:
    inputs = rule_inputs(entry.rule)
    return {"name": entry.name, "rule": entry.rule, "reads": list(inputs.fields), "kinds": sorted(inputs.kinds)}


def _print_rules(data: dict[str, Any], console: Console) -> None:
    rows = (
        (section, rule["name"], rule["rule"], str(rule.get("weight", "")), ", ".join(rule["reads"]) or "nothing")
        for section, rules in (("predicate", data["predicates"]), ("priority", data["priorities"]))
        for rule in rules
    )
    console.print(console.table_of(("SECTION", "NAME", "RULE", "WEIGHT", "READS"), rows))
    kinds = [*data["kinds"], *(["Longhorn's objects"] if data["longhorn"] else [])]
    console.write(f"needs {', '.join(kinds) or 'no objects'}")
