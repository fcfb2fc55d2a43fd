"""Every command by what it is for, and the exit code of each. Exit code 0: it fits, or the command succeeded. 1: it
does not fit. 2: bad input, with one clear line on standard error.

A command's module is imported when the command is called, so `--help` and `--version` need none. A parameter that is a
struct, such as the `Query` of `app/cli/cluster_source.py`, stands for a group of options that commands share.
"""

import gc
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, cast, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from app.cli.main import IS_PLUGIN, NAME
from app.cli.render import CommandInterruptedError, print_line, print_lines
from scheduler_core.errors import CoreError

BAD_INPUT = 2
INTERRUPTED = 130

COMMANDS = {
    "Run": {
        "serve": "Answer kube-scheduler for a cluster, or for a snapshot.",
        "schedule": "Schedule pods by predicates, priorities and a policy file.",
        "disk-schedule": "Allocate room on Longhorn's disks through DiskSchedules.",
    },
    "Ask": {
        "explain": "Tell on which nodes a pod can run, and why not elsewhere.",
        "waiting": "Show the pods with claims that wait for a node.",
        "top": "Show how full nodes or disks are, the worst first.",
        "decisions": "Show what the extender decided lately.",
    },
    "Plan": {
        "what-if": "Predict what changes of the cluster lead to.",
        "headroom": "Say how many more pods of a template fit.",
        "maintenance": "Find an order of nodes in which every drain fits.",
        "remedies": "Find the cheapest changes that make a pod fit.",
        "rebalance": "Find the fewest replica moves after which more fits.",
    },
    "Install": {
        "doctor": "Tell whether the extender protects a cluster.",
        "scheduler-config": "Print the file that registers the extender.",
        "snapshot": "Write what decisions read of the cluster.",
        "policy check": "Check a policy file.",
    },
}
_WIDTH = max(len(name) for commands in COMMANDS.values() for name in commands)
# Before `-n` was the workload's namespace everywhere, these commands had Longhorn's as --namespace.
_WITH_OLD_NAMESPACE = frozenset({"serve", "schedule", "disk-schedule", "snapshot"})
# They print a result, and import modules that log, whatever they read; `cluster_objects` has the logs of the others.
LOGGING = frozenset({"schedule", "doctor", "policy"})
# The others are named as their command.
_MODULES = {
    "decisions": "waiting_and_decisions",
    "headroom": "headroom_and_maintenance",
    "maintenance": "headroom_and_maintenance",
    "policy": "schedule_and_policy_check",
    "rebalance": "remedies_and_rebalance",
    "remedies": "remedies_and_rebalance",
    "schedule": "schedule_and_policy_check",
    "scheduler-config": "scheduler_registration",
    "snapshot": "cluster_source",
    "waiting": "waiting_and_decisions",
}
_OLD_NAMES = {"namespace": "longhorn-namespace"}


class CommandGroup(TyperGroup):
    """Commands, without one of which the help is shown."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the options before a command; prints the help and ends the program if there is nothing to parse."""
        if not args and not ctx.resilient_parsing:
            print_lines(ctx.get_help(), err=True)
            raise typer.Exit(BAD_INPUT)
        return super().parse_args(ctx, args)


class _Program(CommandGroup):
    """The program's own options, and its commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names = (name.partition(" ")[0] for commands in COMMANDS.values() for name in commands)
        self.commands = dict.fromkeys(names)  # type: ignore[assignment] # which `get_command` fills

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        command = load_command(cmd_name) if cmd_name in self.commands else None
        gc.freeze()
        gc.enable()
        if cmd_name in LOGGING:
            from app.runtime.logs import configure_for_results

            configure_for_results()
        return command

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Returns what completes a word; the names of commands are known without their modules."""
        from typer._click.shell_completion import CompletionItem

        texts = {name.partition(" ")[0]: text for commands in COMMANDS.values() for name, text in commands.items()}
        names = [CompletionItem(name, help=text) for name, text in texts.items() if name.startswith(incomplete)]
        return [*names, *super(TyperGroup, self).shell_complete(ctx, incomplete)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        del ctx
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(_WIDTH), text) for name, text in commands.items()])


@cache
def load_command(name: str) -> Any:
    """Returns a command. Its module has a function of its name, and may have a class for it."""
    function = name.replace("-", "_")
    module = import_module(f"app.cli.{_MODULES.get(name, function)}")
    command = getattr(module, function)
    if isinstance(command, typer.Typer):
        return typer.main.get_command(command)
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    settings = {"token_normalize_func": lambda text: _OLD_NAMES.get(text, text)} if name in _WITH_OLD_NAMESPACE else {}
    single.command(name, cls=getattr(module, "COMMAND_CLASS", TyperCommand), context_settings=settings)(
        _with_single_options(command)
    )
    return typer.main.get_command(single)


def _with_single_options(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command with an option for each field of its groups of options."""
    groups: dict[str, Any] = {}
    options: list[tuple[int, Parameter]] = []
    for parameter in signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if not hasattr(group, "__match_args__"):  # no struct and no dataclass
            options.append((0, parameter))
            continue
        groups[parameter.name] = group
        types = get_type_hints(group, include_extras=True)
        for entry in signature(group).parameters.values():
            # A command may have defaults of its own.
            default = entry.default if parameter.default is Parameter.empty else getattr(parameter.default, entry.name)
            option = Parameter(entry.name, Parameter.KEYWORD_ONLY, default=default, annotation=types[entry.name])
            options.append((getattr(group, "PLACES", {}).get(entry.name, 0), option))
    if not groups:
        return command
    options.sort(key=lambda option: option[0])

    @wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in group.__match_args__})
        command(**values)

    single = [option.replace(kind=Parameter.KEYWORD_ONLY) for _, option in options]
    call.__signature__ = Signature(single)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in single}
    return call


def _print_version(asked: bool) -> None:  # noqa: FBT001 # the value of --version
    if asked:
        from importlib.metadata import version

        from app import DISTRIBUTION

        print_line(version(DISTRIBUTION))
        raise typer.Exit


_program = typer.Typer(
    name=NAME,
    help="Offers a pod only the nodes whose Longhorn disks can hold all of its volumes.",
    cls=_Program,
    # The boxes of rich mark-up cut long words, such as the list of kinds that a snapshot takes.
    rich_markup_mode=None,
    # A plugin's script would replace the completion of all of kubectl.
    add_completion=not IS_PLUGIN,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@_program.callback()
def _options(
    version: Annotated[  # noqa: FBT002 # --version
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""
    del version


cli = cast("TyperGroup", typer.main.get_command(_program))


def run() -> int:
    """Runs the command of the command line, and returns its exit code; an error becomes one line. Raises a
    KeyboardInterrupt if Ctrl-C ended the command.
    """
    try:
        code: int = cli(standalone_mode=False, prog_name=NAME) or 0
    except typer.TyperException as error:
        if isinstance(error, typer.BadParameter) and error.__cause__ is not None:
            from app.schemas.decision import problem_of

            error.message = problem_of(error.__cause__, error.message)
        return _fail(f"{error.format_message().rstrip('.')}; see --help")
    except CoreError as error:
        return _fail(str(error), INTERRUPTED if isinstance(error, CommandInterruptedError) else BAD_INPUT)
    # typer makes an exit code of it.
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


def completions(words: list[str]) -> str:
    """Returns what completes the last word, in lines as kubectl reads them: the text, a tab, and its help.

    The last line says whether the shell proposes files, too: cobra's ShellCompDirectiveDefault or ...NoFileComp.
    """
    from typer._completion_classes import BashComplete

    *before, last = words or [""]
    items = [item for item in BashComplete(cli, {}, NAME, "").get_completions(before, last) if item.type == "plain"]
    return "".join([*(f"{item.value}\t{item.help or ''}\n" for item in items), ":4\n" if items else ":0\n"])


def _fail(problem: str, code: int = BAD_INPUT) -> int:
    print_line(f"{NAME}: {' '.join(problem.split())}", err=True)
    return code
