"""Standard output has a command's result alone; warnings and logs are on standard error."""

import functools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from app.cli.commands import COMMANDS, LOGGING, load_command
from tests.app.cli.test_doctor import Api, run_doctor
from tests.app.cli.test_explain_live import live_cluster, run_in_thread
from tests.builders import claim, storage_class
from tests.worlds.command_line import Result, Run
from tests.worlds.predicted_clusters import stateful_set
from tests.worlds.service import EXTENDER, serve_snapshot
from tests.worlds.two_nodes import database_pod, two_nodes

ROOT = Path(__file__).parents[3]
CLUSTER = "examples/policies/cluster.yaml"
POLICY = {"predicates": [{"name": "PodFitsResources"}], "priorities": [], "odd": 1}
# By command; SNAPSHOT and POLICY are files that cause warnings.
FILE_COMMANDS: dict[str, tuple[str, ...]] = {
    "explain": ("--snapshot", "SNAPSHOT"),
    "top": ("--snapshot", "SNAPSHOT"),
    "waiting": ("--snapshot", "SNAPSHOT"),
    "what-if": ("--snapshot", "SNAPSHOT"),
    "headroom": ("sts/web", "--snapshot", "SNAPSHOT"),
    "maintenance": ("--snapshot", "SNAPSHOT"),
    "remedies": ("db-0", "--snapshot", "SNAPSHOT"),
    "rebalance": ("--snapshot", "SNAPSHOT"),
    "schedule": ("--snapshot", "SNAPSHOT", "--policy", "POLICY"),
    "policy check": ("POLICY",),
}
OTHER_COMMANDS = {"scheduler-config", "snapshot", "doctor", "decisions"}
# They print no result, and their log is on standard output.
SERVING = {"serve", "disk-schedule"}


def commands() -> dict[str, Any]:
    names = [name for commands in COMMANDS.values() for name in commands]
    return {name: _command(*name.split()) for name in names}


def _command(name: str, subcommand: str = "") -> Any:
    command = load_command(name)
    return command.commands[subcommand] if subcommand else command


def warn_first(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a command that logs a warning before it runs."""

    @functools.wraps(callback)
    def run(*arguments: Any, **options: Any) -> Any:
        structlog.get_logger("test").warning("something is odd")
        return callback(*arguments, **options)

    return run


@pytest.fixture(autouse=True)
def _warning_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, command in commands().items():
        if may_log(name):
            monkeypatch.setattr(command, "callback", warn_first(command.callback))


def may_log(command: str) -> bool:
    return command.partition(" ")[0] in LOGGING


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A snapshot and a policy that cause warnings, by their names in `FILE_COMMANDS`."""
    odd = {"apiVersion": "example.com/v1", "kind": "Odd", "metadata": {"name": "odd"}}
    objects = [*two_nodes(), claim("data-0", 10), database_pod(0), stateful_set("web", 1), odd]
    snapshot = tmp_path / "snapshot.yaml"
    snapshot.write_text(yaml.safe_dump_all(objects))
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(POLICY))
    return {"SNAPSHOT": str(snapshot), "POLICY": str(file)}


def assert_streams(result: Result, parse: Callable[[str], Any] = json.loads, *, logged: bool = False) -> None:
    assert result.code in {0, 1}, result.err
    assert parse(result.out)
    assert ("something is odd" in result.err) == logged


def test_every_command_is_tried() -> None:
    assert set(commands()) == FILE_COMMANDS.keys() | OTHER_COMMANDS | SERVING


@pytest.mark.parametrize("command", FILE_COMMANDS)
def test_a_command_that_reads_files_prints_its_result_alone(run: Run, files: dict[str, str], command: str) -> None:
    arguments = [files.get(argument, argument) for argument in FILE_COMMANDS[command]]
    result = run(*command.split(), *arguments, "-o", "json")
    assert_streams(result, logged=may_log(command))
    assert re.search("^warning: ", result.err, re.MULTILINE)


def test_the_file_for_kube_scheduler_is_alone(run: Run) -> None:
    result = run("scheduler-config", "--platform", "kubeadm", "--url-prefix", "http://10.0.0.1:9504")
    assert_streams(result, yaml.safe_load)


async def test_a_written_snapshot_is_alone(run: Run, tmp_path: Path) -> None:
    async with live_cluster(tmp_path, [storage_class()]) as kubeconfig:
        # Another test of this process may have configured it.
        structlog.reset_defaults()
        assert_streams(await run_in_thread(run, "snapshot", "--kubeconfig", kubeconfig, "-o", "json"))
        assert structlog.is_configured()


async def test_a_diagnosis_is_alone(run: Run, tmp_path: Path) -> None:
    assert_streams(await run_doctor(Api().handle, tmp_path, run, "--no-probe", "-o", "json"), logged=True)


def test_the_decisions_are_alone(run: Run, tmp_path: Path) -> None:
    with serve_snapshot(tmp_path) as process:
        assert_streams(run("decisions", "--url", f"http://127.0.0.1:{process.port}", "-o", "json"))


def test_what_a_plugin_prints_is_no_result(tmp_path: Path) -> None:
    plugin = tmp_path / "noisy.py"
    plugin.write_text(
        "from scheduler_core.generic.plugin_rules import PredicatePlugin\n"
        "print('printed at import')\n"
        "def fail(state, argument):\n"
        "    print('printed in a call')\n"
        "    raise ValueError('boom')\n"
        "PREDICATES = [PredicatePlugin('Noisy', fail)]\n"
    )
    file = tmp_path / "policy.json"
    file.write_text('{"predicates": [{"name": "Noisy"}]}')
    options = ["--snapshot", CLUSTER, "--plugin", str(plugin), "--policy", str(file), "-o", "json"]
    result = subprocess.run([EXTENDER, "schedule", *options], capture_output=True, text=True, check=False, cwd=ROOT)
    answer = json.loads(result.stdout)
    assert {pod["message"] for pod in answer["unschedulable"]} == {"plugin rule Noisy failed: ValueError: boom"}
    assert len(answer["unschedulable"]) == 6
    assert result.stderr.count("printed in a call") == 6
    assert "printed at import" in result.stderr


def test_a_variable_that_cannot_be_read_is_refused_in_the_programs_words(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHORN_EXTENDER_STATUS_PAGE", "maybe")
    assert "'LONGHORN_EXTENDER_STATUS_PAGE'): expected true or false; see" in run("serve").err
