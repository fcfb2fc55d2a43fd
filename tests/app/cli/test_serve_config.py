"""`serve --config FILE`: keys, what goes before them, and a file that cannot be used."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.commands import load_command
from app.cli.serve import config_key
from scheduler_core.decide import extender_settings
from tests.worlds.command_line import Run

ROOT = Path(__file__).parents[3]
MAX_SHOWN = 14


def parameters(file: Path, *arguments: str) -> dict[str, Any]:
    """The values that `serve` gets."""
    with load_command("serve").make_context("serve", ["--config", str(file), *arguments]) as context:
        return dict(context.params)


def write(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text)
    return file


def test_the_help_shows_few_flags_and_the_others_work(run: Run, tmp_path: Path) -> None:
    shown = re.findall(r"^  (?:-h, )?(--[a-z-]+)", run("serve", "--help").out, re.MULTILINE)
    assert "--config" in shown
    assert len(shown) <= MAX_SHOWN
    hidden = {each.opts[0] for each in load_command("serve").params} - set(shown)
    assert {"--reservation", "--nudge", "--enabled", "--stale-after"} <= hidden
    assert parameters(write(tmp_path, ""), "--reservation", "node")["reservation"] == "node"


def test_values_of_a_file_are_those_of_flags(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "port: 9600\nnudge: false\nstale-after: 30\nplugin: one.py\nallowed-host: [a.example, b.example]\n"
        "packing: exact\nplacement-guard: off\nscheduler-extender-enabled: 'true'\nplacement-guard-other-nodes: true\n",
    )
    values = parameters(file)
    assert (values["port"], values["nudge"], values["stale_after"], values["packing"]) == (9600, False, 30.0, "exact")
    assert (values["plugin"], values["allowed_host"]) == (["one.py"], ["a.example", "b.example"])
    assert (values["placement_guard"], values["enabled"]) == ("off", "true")
    assert values["guard_other_nodes"] == "true"


def test_a_variable_goes_before_the_file_and_a_flag_before_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "port: 9600\nhost: 192.0.2.1\npacking: exact\n")
    monkeypatch.setenv("LONGHORN_EXTENDER_HOST", "192.0.2.2")
    monkeypatch.setenv("LONGHORN_EXTENDER_PORT", "9601")
    values = parameters(file, "--port", "9602")
    assert (values["packing"], values["host"], values["port"]) == ("exact", "192.0.2.2", 9602)


def test_the_data_of_the_installed_config_map_is_such_a_file(tmp_path: Path) -> None:
    data = yaml.safe_load((ROOT / "manifests/access/configmap.yaml").read_text())["data"]
    values = parameters(write(tmp_path, yaml.safe_dump(data)))
    assert data
    assert {key: values[name] for name in values if (key := config_key(name)) in data} == data


def test_every_setting_of_the_config_map_is_a_key() -> None:
    keys = {config_key(each.name) for each in load_command("serve").params}
    names = {value for name, value in vars(extender_settings).items() if name.isupper() and isinstance(value, str)}
    assert {name for name in names if name.startswith(("scheduler-extender-", "placement-guard"))} <= keys


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("prot: 1", "line 1: prot: there is no such key, port is meant?", id="unknown"),
        pytest.param("port: 1\nkind: ConfigMap", "line 2: kind: there is no such key", id="unlike any"),
        pytest.param("enabled: true", "line 1: enabled: there is no such key", id="a flag whose key is the setting's"),
        pytest.param("config: x", "line 1: config: there is no such key", id="another file"),
        pytest.param("port: 1\nport: 2", "line 2: port: is written twice", id="twice"),
        pytest.param("port: [1, 2]", "line 1: port: expected one text", id="several values"),
        pytest.param("plugin: {a: b}", "line 1: plugin: expected one text, or a list of them", id="a mapping"),
        pytest.param("port: http", "port: expected a whole number", id="a word"),
        pytest.param("port: 65536", "port: expected at most 65535", id="too large"),
        pytest.param("nudge: perhaps", "nudge: expected true or false", id="no switch"),
        pytest.param("packing: loose", "packing: 'loose' is not one of", id="no choice"),
        pytest.param("scheduler-extender-enabled: maybe", "scheduler-extender-enabled: 'maybe' is not", id="a setting"),
        pytest.param(
            "advertise: 127.0.0.1", "advertise: --advertise 127.0.0.1: an EndpointSlice takes no", id="an address"
        ),
        pytest.param("max-body: 0", "max-body: --max-body: must be positive", id="a size"),
        pytest.param("- port", "expected lines KEY: VALUE", id="a list"),
        pytest.param("port: [", "line 1: is not YAML: ", id="no YAML"),
        pytest.param("[" * 10_000, "is not YAML: ", id="deep"),
        pytest.param("\x00", "is not YAML: ", id="binary"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(run: Run, tmp_path: Path, text: str, problem: str) -> None:
    file = write(tmp_path, text)
    result = run("serve", "--config", str(file))
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert result.err.startswith(f"longhorn-extender: {file}: {problem}")


def test_a_file_that_cannot_be_read_is_one_line(run: Run, tmp_path: Path) -> None:
    result = run("serve", "--config", str(tmp_path / "none"))
    assert result.err == f"longhorn-extender: {tmp_path}/none: cannot be read: No such file or directory\n"


def test_a_wrong_flag_names_the_flag_although_there_is_a_file(run: Run, tmp_path: Path) -> None:
    result = run("serve", "--config", str(write(tmp_path, json.dumps({"host": "::"}))), "--port", "x")
    assert result.err.startswith("longhorn-extender: Invalid value for '--port'")
