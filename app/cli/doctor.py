"""`longhorn-extender doctor`: whether the extender protects a cluster, and what to mend.

Data flow: the facts are read from the cluster (`app.extender.doctor_reader`) → each check turns facts into findings
(`scheduler_core.installation.diagnosis`) → one line for each finding, with the command that mends it.
"""

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import ContextOption, KubeconfigOption, LeaderUrlOption, LonghornNamespaceOption, check_url
from app.cli.render import CommandInterruptedError, Console, Output, document, show, warn
from app.settings import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.cli.render import Cell
    from app.extender.doctor_reader import ReadOptions
    from scheduler_core.installation.facts import Finding, Installation

FINDINGS = 1
_PROBE_SECONDS = 30.0
_KEYS = ("check", "severity", "what", "where", "command")
_STYLES = {"ok": "green", "skipped": "dim", "warning": "yellow", "error": "red"}


def doctor(
    probe: Annotated[  # noqa: FBT002 # --no-probe
        bool,
        typer.Option(
            "--probe/--no-probe",
            help="Whether to create a pod that fits on no node, to see whether kube-scheduler calls the extender. It is "
            "removed afterwards.",
        ),
    ] = True,
    probe_namespace: Annotated[
        str, typer.Option(metavar="NAME", help="An existing namespace for that pod; default: one of its own.")
    ] = "",
    probe_timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for kube-scheduler.")] = _PROBE_SECONDS,
    scheduler_name: Annotated[
        str, typer.Option(metavar="NAME", help="The scheduler of the pod; default: that of new pods with claims.")
    ] = "",
    uninstall: Annotated[  # noqa: FBT002 # --uninstall
        bool, typer.Option("--uninstall", help="Ask only whether the extender can be removed.")
    ] = False,
    strict: Annotated[  # noqa: FBT002 # --strict
        bool, typer.Option("--strict", help="Exit code 1 for warnings, too.")
    ] = False,
    url: LeaderUrlOption = "",
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Tell whether the extender protects this cluster, and what to mend.

    Asks the API server, the extender's processes and, by a pod that fits on no node, kube-scheduler. Needs an
    administrator's credentials; what they may not read is a finding.

    Exit code 0: there is no error. 1: there is one, or with --strict a warning. 2: bad input, or no cluster.
    """
    from app.extender.doctor_reader import ReadOptions
    from app.extender.process_calls import ProbeOptions
    from scheduler_core.installation.diagnosis import INSTALLED, UNINSTALLED, diagnose, is_well
    from scheduler_core.installation.facts import Severity

    check_url(url)
    options = ProbeOptions(probe_namespace, scheduler_name, probe_timeout, warn)
    facts = asyncio.run(
        _read(kubeconfig, context, ReadOptions(longhorn_namespace, options if probe else None, url.rstrip("/")))
    )
    findings = diagnose(facts, UNINSTALLED if uninstall else INSTALLED)
    well = is_well(findings)
    data = [{key: getattr(entry, key) for key in _KEYS} for entry in findings]
    answer = document("Diagnosis", {"well": well, "findings": data})
    show(answer, output, lambda console: _print(findings, console))
    severities = {entry.severity for entry in findings}
    if Severity.ERROR in severities or (strict and not well):
        raise typer.Exit(FINDINGS)


async def _read(kubeconfig: str | None, context: str | None, options: "ReadOptions") -> "Installation":
    from app.extender.doctor_reader import InstallationReader
    from app.kube.client import KubeClient

    async with await KubeClient.connect(kubeconfig, context) as client:
        task = asyncio.current_task()
        if task is not None:
            # What the probe has created is removed first. Only the main thread has signals.
            with suppress(RuntimeError, ValueError, NotImplementedError):
                for number in (signal.SIGINT, signal.SIGTERM):
                    asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            return await InstallationReader(client, options).read()
        except asyncio.CancelledError as error:
            raise CommandInterruptedError("interrupted; the probe pod is removed") from error


def _print(findings: "Sequence[Finding]", console: Console) -> None:
    rows: list[Sequence[Cell]] = []
    for entry in findings:
        finding = f"{entry.where}: {entry.what}" if entry.where else entry.what
        rows.append((entry.check, (entry.severity, _STYLES[entry.severity]), finding))
        if entry.command:
            rows.append(("", "", (f"to mend: {entry.command}", "bold")))
    table = console.table_of(("CHECK", "RESULT", "FINDING"), rows)
    table.columns[0].no_wrap = True
    console.print(table)
    problems = sum(entry.severity in {"warning", "error"} for entry in findings)
    console.print()
    console.write(f"{problems} to mend" if problems else "all is well", "bold")
