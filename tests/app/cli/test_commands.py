"""How commands are found: what the help shows, what is imported for which command, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grimp
import pytest

from app.cli.commands import COMMANDS, LOGGING, completions, load_command
from tests.worlds.command_line import Run

ROOT = Path(__file__).parents[3]
EXAMPLE = "examples/mixed-cluster/snapshot.yaml"
NAMES = [name for group in COMMANDS.values() for name in group]
SERVING = {"serve", "disk-schedule"}
# What is slow to import.
SLOW = ("fastapi", "kubernetes", "aiohttp", "uvicorn", "structlog", "cryptography", "jinja2", "prometheus_client")
_IMPORTED = """
import sys
from app.cli.main import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


_STARTED = """
from app.cli.main import main
print("started", flush=True)
main()
"""


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_the_programs_own_options_import_no_command(option: str) -> None:
    modules = imported(option)
    assert modules & {*SLOW, "pydantic", "rich", "yaml", "msgspec", "asyncio"} == set()
    assert {name for name in modules if name.startswith("app.cli.")} == {
        "app.cli.main",
        "app.cli.commands",
        "app.cli.render",
    }
    assert {name for name in modules if name.startswith("scheduler_core.")} == {"scheduler_core.errors"}


def test_the_completion_of_a_commands_name_imports_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_LONGHORN_EXTENDER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "longhorn-extender wa")
    monkeypatch.setenv("COMP_CWORD", "1")
    done = subprocess.run([sys.executable, "-c", _IMPORTED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["waiting"]
    assert "app.cli.waiting_and_decisions" not in done.stderr.split()


def call_as(name: str, folder: Path, entry: str, *arguments: str) -> str:
    """What a program of this name prints."""
    script = folder / name
    script.write_text(f"from app.cli.main import {entry}\n{entry}()\n")
    done = subprocess.run([sys.executable, script, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_plugin_of_kubectl_is_named_as_it_is_called(tmp_path: Path) -> None:
    """It offers no script for completion, which would be one for all of kubectl."""
    page = call_as("kubectl-longhorn_extender", tmp_path, "main", "--help")
    assert page.startswith("Usage: kubectl longhorn-extender [OPTIONS] COMMAND")
    assert "completion" not in page
    page = call_as("kubectl-longhorn_extender", tmp_path, "main", "explain", "--help")
    assert page.startswith("Usage: kubectl longhorn-extender explain ")
    error = call_as("kubectl-longhorn_extender", tmp_path, "main", "explian")
    assert error == "kubectl longhorn-extender: No such command 'explian'. Did you mean 'explain'?; see --help\n"


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        pytest.param(["wai"], f"waiting\t{COMMANDS['Ask']['waiting']}\n:4\n", id="command"),
        pytest.param(["top", "-o", "y"], "yaml\t\n:4\n", id="value"),
        pytest.param(["explain", "--snapshot", ""], ":0\n", id="file"),
        pytest.param(["explain", "--nothing"], ":0\n", id="nothing"),
    ],
)
def test_kubectl_is_given_what_completes_a_word(tmp_path: Path, words: list[str], printed: str) -> None:
    assert call_as("kubectl_complete-longhorn_extender", tmp_path, "complete", *words) == printed


def test_kubectl_completes_without_words() -> None:
    assert completions([]).startswith("serve\t")


@pytest.mark.parametrize(
    ("line", "word"), [("longhorn-extender wai", "waiting"), ("longhorn-extender top --gro", "--group-by")]
)
def test_bash_completes_words(line: str, word: str) -> None:
    """By the script that docs/installation.md puts into ~/.bashrc."""
    script = (
        'eval "$(_LONGHORN_EXTENDER_COMPLETE=source_bash longhorn-extender)"\n'
        "COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _longhorn_extender_completion longhorn-extender\n"
        'echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script, "bash", line], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{word}\n"


def test_explain_imports_what_it_shows() -> None:
    modules = imported("explain", "--snapshot", EXAMPLE)
    assert modules & {*SLOW, "asyncio"} == set()
    assert not any(name.startswith("scheduler_core.predict") for name in modules)
    assert not any(name.startswith("app.cli.") and "explain" not in name for name in modules - _SHARED)


_SHARED = {
    f"app.cli.{name}" for name in ("main", "commands", "options", "cluster_source", "render", "escaping_console")
}


def test_commands_that_log_say_so() -> None:
    """Unconfigured, their log would be on standard output, among the result."""
    graph = grimp.build_graph("app", include_external_packages=True, cache_dir=None)
    modules = {name: load_command(name).callback.__module__ for name in NAMES if " " not in name}
    modules["policy"] = "app.cli.schedule_and_policy_check"
    # Where a live cluster is read, logs are configured first.
    graph.remove_import(importer="app.cli.cluster_source", imported="app.kube.cluster_cache")
    graph.remove_import(importer="app.cli.cluster_source", imported="app.runtime.logs")
    logging = {name for name, module in modules.items() if graph.chain_exists(module, "structlog")}
    assert logging - SERVING == LOGGING


@pytest.mark.parametrize(("name", "text"), [pair for group in COMMANDS.values() for pair in group.items()])
def test_a_commands_row_is_its_own_summary(name: str, text: str) -> None:
    command = load_command(name.partition(" ")[0])
    if " " in name:
        command = command.commands[name.partition(" ")[2]]
    summary = set(command.help.partition("\n\n")[0].lower().replace(",", "").split())
    assert set(text.lower().rstrip(".").replace(",", "").split()) <= {word.rstrip(".:") for word in summary} | {"a"}


@pytest.mark.parametrize("name", ["serve", "schedule", "disk-schedule", "snapshot"])
def test_the_old_name_of_longhorns_namespace_is_taken_and_hidden(run: Run, name: str) -> None:
    command = load_command(name)
    page = run(name, "--help").out
    assert "--longhorn-namespace" in page
    assert " --namespace" not in page
    for option in ("--namespace", "--longhorn-namespace"):
        with command.make_context(name, [option, "storage"]) as context:
            assert context.params["longhorn_namespace"] == "storage"


@pytest.mark.parametrize("name", [name for name in NAMES if " " not in name])
def test_n_is_the_namespace_of_workloads(name: str) -> None:
    options = {option: parameter for parameter in load_command(name).params for option in parameter.opts}
    assert options.get("-n") is options.get("--namespace")
    assert "--namespace" not in options or "--longhorn-namespace" in options


@pytest.mark.e2e
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["what-if", "--snapshot", EXAMPLE, "--orders", "10000"], id="what-if"),
        pytest.param(["explain", "--snapshot", "-"], id="explain"),
        pytest.param(["serve", "--snapshot", "-"], id="serve"),
    ],
)
@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.2, 0.4, 0.8])
def test_ctrl_c_is_one_line(arguments: list[str], seconds: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STARTED, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    ends = [(130, "", "longhorn-extender: interrupted\n")]
    if "serve" in arguments:
        ends.append((0, "", ""))  # it was serving already
    assert (process.returncode, out, err) in ends


def test_an_interruption_that_python_drops_ends_the_program() -> None:
    code = "import sys, weakref; from app.cli import main, commands\n"
    code += "class Held: pass\n"
    code += "def interrupt(_): raise KeyboardInterrupt\n"
    code += "def run():\n    held = Held(); reference = weakref.ref(held, interrupt); del held; return 0\n"
    code += "commands.run = run; main.main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "longhorn-extender: interrupted\n")
