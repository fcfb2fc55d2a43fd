"""No name, key or message of a snapshot, and no argument, reaches the terminal with characters that change it."""

import ast
import json
import os
import re
import sys
import threading
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.commands import cli
from app.cli.main import main

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/mixed-cluster/snapshot.yaml"
# Window title, colour, another line, clear the screen (CSI and C1), backspace, DEL, override and isolate of the direction,
# zero-width space, line separator, soft hyphen, Hangul filler.
HOSTILE = "\x1b]0;pwn\x07\x1b[31m\r\n\x1b[2J\x9b2J\x08\x7f\u202e\u2066\u200b\u2028\u00ad\u3164"
NAMES = {"east-1", "west-3", "shop", "orders-0", "returns-0", "data-orders-0", "longhorn-local", "longhorn-ssd"}
# What rich itself sends: styles, and the lines of a progress bar that it draws again.
OWN_SEQUENCES = re.compile(r"\x1b\[[0-9;]*m|\r?\x1b\[(?:2K|1A|\?25[lh])")
# Control characters, formatting, line and paragraph separators, surrogates, private and unassigned ones.
INVISIBLE = {"Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn"}
Command = list[str]


def with_names(value: Any) -> Any:
    """Names of objects, messages, and whatever refers to them, made hostile."""
    if isinstance(value, dict):
        return {key: f"{item}{HOSTILE}" if key == "message" else with_names(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_names(item) for item in value]
    return value + HOSTILE if isinstance(value, str) and value in NAMES else value


def with_disk_keys(value: Any) -> Any:
    """Keys of disks made hostile."""
    if isinstance(value, dict):
        return {
            key: {f"{disk}{HOSTILE}": entry for disk, entry in item.items()}
            if key in {"disks", "diskStatus"}
            else with_disk_keys(item)
            for key, item in value.items()
        }
    return [with_disk_keys(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module", params=[with_names, with_disk_keys])
def names(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("hostile") / "snapshot.json"
    file.write_text(json.dumps(request.param(yaml.load(EXAMPLE.read_text(), yaml.CSafeLoader))))  # is safe
    suffix = HOSTILE if request.param is with_names else ""
    return {"snapshot": str(file), "pod": f"shop{suffix}/orders-0{suffix}", "node": f"east-1{suffix}"}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, process_state: None) -> Callable[[Command], str]:
    """Runs a command with both outputs on a terminal; returns what the terminal gets."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(command: Command) -> str:
        master, slave = os.openpty()
        received: list[bytes] = []

        def read() -> None:
            try:
                while part := os.read(master, 1 << 16):
                    received.append(part)
            except OSError:
                # Linux reports the end of a terminal so.
                return

        reader = threading.Thread(target=read)
        reader.start()
        with monkeypatch.context() as context, os.fdopen(slave, "w", encoding="utf-8") as stream:
            context.setattr(sys, "argv", ["longhorn-extender", *command])
            context.setattr(sys, "stdout", stream)
            context.setattr(sys, "stderr", stream)
            with pytest.raises(SystemExit):
                main()
        reader.join()
        os.close(master)
        return b"".join(received).decode().replace("\r\n", "\n")

    return run


def assert_plain(output: str) -> None:
    plain = OWN_SEQUENCES.sub("", output)
    assert {letter for letter in plain if unicodedata.category(letter) in INVISIBLE and letter != "\n"} == set()
    assert "\u3164" not in plain


@pytest.mark.parametrize(
    "command",
    [
        ["explain"],
        ["explain", "-o", "wide"],
        ["explain", "-o", "name"],
        ["explain", "-o", "yaml"],
        ["explain", "--pod", "{pod}", "-o", "wide"],
        ["explain", "--pod", "{pod}", "--node", HOSTILE],
        ["explain", "--volume", "pvc-orders-0"],
        ["top", "nodes"],
        ["top", "disks"],
        ["waiting"],
        ["what-if", "--drain", "{node}", "--orders", "2"],
        ["headroom", "{pod}", "--limit", "4", "--orders", "2"],
        ["maintenance", "{node}", "--orders", "2"],
        ["remedies", "{pod}"],
        ["rebalance"],
        ["schedule"],
    ],
    ids=" ".join,
)
def test_answers_about_a_hostile_snapshot_leave_the_terminal_alone(
    command: Command, names: dict[str, str], terminal: Callable[[Command], str]
) -> None:
    output = terminal([part.format(**names) for part in command] + ["--snapshot", names["snapshot"]])
    assert "Traceback" not in output
    assert_plain(output)


COMMANDS: dict[str, Command] = {
    "serve": ["--snapshot", HOSTILE],
    "explain": ["--snapshot", HOSTILE],
    "top": ["--snapshot", HOSTILE],
    "waiting": ["--snapshot", HOSTILE],
    "decisions": ["--url", f"http://127.0.0.1:1/{HOSTILE}"],
    "doctor": ["--kubeconfig", HOSTILE],
    "scheduler-config": ["--platform", "kubeadm", "--url-prefix", HOSTILE],
    "what-if": ["--snapshot", HOSTILE],
    "headroom": [HOSTILE, "--snapshot", str(EXAMPLE)],
    "maintenance": [HOSTILE, "--snapshot", str(EXAMPLE)],
    "remedies": [HOSTILE, "--snapshot", str(EXAMPLE)],
    "rebalance": ["--snapshot", HOSTILE],
    "schedule": ["--snapshot", HOSTILE],
    "snapshot": ["--kubeconfig", HOSTILE],
    "disk-schedule": ["--kubeconfig", HOSTILE],
    "policy": ["check", HOSTILE],
}


def test_every_command_is_tried() -> None:
    assert set(COMMANDS) == set(cli.commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_error_lines_leave_the_terminal_alone(command: str, terminal: Callable[[Command], str]) -> None:
    output = terminal([command, *COMMANDS[command]])
    assert "pwn" in output
    assert_plain(output)


def test_json_has_escapes_of_its_own(names: dict[str, str], terminal: Callable[[Command], str]) -> None:
    output = terminal(["top", "disks", "-o", "json", "--snapshot", names["snapshot"]])
    assert_plain(output)
    assert any(HOSTILE in entry["node"] + entry["disk"] for entry in json.loads(output)["items"])


def test_yaml_has_escapes_of_its_own(names: dict[str, str], terminal: Callable[[Command], str]) -> None:
    output = terminal(["top", "disks", "-o", "yaml", "--snapshot", names["snapshot"]])
    assert any(HOSTILE in entry["node"] + entry["disk"] for entry in yaml.safe_load(output)["items"])


WRITERS = ("typer.echo", "print", "rich.print", "Console", "sys.stdout.write", "sys.stderr.write")


def test_commands_write_in_one_place() -> None:
    """Whatever prints elsewhere would not be escaped."""
    for file in (ROOT / "app/cli").glob("*.py"):
        if file.name in {"render.py", "escaping_console.py", "main.py"}:
            continue
        calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        assert [text for call in calls if (text := ast.unparse(call)) in WRITERS] == [], file.name
