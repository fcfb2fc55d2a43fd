"""`longhorn-extender policy check`: reads a policy file as a scheduler does, and lists what each rule reads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.commands import CommandGroup
from app.cli.options import PluginOption
from app.cli.render import Output, OutputOption, show
from app.cli.terminal import warn
from app.policy.in_force import PolicyFile
from app.policy.plugins import load_plugins
from scheduler_core.generic.policy import Policy, PolicyPredicate, PolicyPriority, kinds_read
from scheduler_core.generic.rule_registry import rule_inputs

if TYPE_CHECKING:
    from app.cli.console import EscapingConsole

_File = Annotated[str, typer.Argument(metavar="FILE", help="Policy file, JSON.")]

policy = typer.Typer(cls=CommandGroup, rich_markup_mode=None, add_completion=False)


@policy.callback()
def _policy_files() -> None:
    """Work with policy files of the generic scheduler."""


@policy.command()
def check(file: _File, plugin: PluginOption = None, output: OutputOption = Output.TABLE) -> None:
    """Check a policy file, and list what each of its rules reads.

    Exit code 0: the file can be used, perhaps with warnings. 2: it cannot.
    """
    content = read_policy(file, plugin).policy
    show(_data(file, content), output, lambda console: _print_table(content, console))


def read_policy(path: str, plugins: Sequence[str] | None) -> PolicyFile:
    """Returns a policy file that may name the rules of plugins; warnings go to standard error.

    Raises:
        CoreError: the file or a plugin cannot be used
    """
    # What a plugin prints is no result.
    with redirect_stdout(sys.stderr):
        file = PolicyFile(path, load_plugins(plugins or ()))
    for warning in file.policy.warnings:
        warn(f"{path}: {warning}")
    return file


def _data(file: str, policy: Policy) -> dict[str, Any]:
    """Returns what is printed; stable, and documented in docs/generic-scheduler.md."""
    return {
        "file": file,
        "predicates": [_entry(entry) for entry in policy.predicates],
        "priorities": [{**_entry(entry), "weight": entry.weight} for entry in policy.priorities],
        "kinds": sorted(kinds_read(policy)),
        "longhorn": policy.reads_longhorn,
        "warnings": list(policy.warnings),
    }


def _entry(entry: PolicyPredicate | PolicyPriority) -> dict[str, Any]:
    inputs = rule_inputs(entry.rule)
    return {"name": entry.name, "rule": entry.rule, "reads": list(inputs.fields), "kinds": sorted(inputs.kinds)}


def _print_table(policy: Policy, console: EscapingConsole) -> None:
    rules: list[tuple[str, PolicyPredicate | PolicyPriority, str]] = [
        *(("predicate", entry, "") for entry in policy.predicates),
        *(("priority", entry, str(entry.weight)) for entry in policy.priorities),
    ]
    rows = (
        (section, entry.name, entry.rule, weight, ", ".join(rule_inputs(entry.rule).fields) or "nothing")
        for section, entry, weight in rules
    )
    console.print(console.table_of(("SECTION", "NAME", "RULE", "WEIGHT", "READS"), rows))
    kinds = [*sorted(kinds_read(policy)), *(["Longhorn's objects"] if policy.reads_longhorn else [])]
    console.write(f"needs {', '.join(kinds) or 'no objects'}")
