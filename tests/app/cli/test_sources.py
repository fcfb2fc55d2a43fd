"""What every command says of a snapshot file that it cannot use."""

import json
from pathlib import Path

import pytest

from tests.builders import storage_class
from tests.worlds.command_line import Run

PREDICTIONS = (("what-if",), ("headroom", "sts/db"), ("maintenance",), ("remedies", "db-0"), ("rebalance",))
FILE = "examples/mixed-cluster/snapshot.yaml"
COMMANDS = (*PREDICTIONS, ("top",), ("waiting",), ("explain",))


def _outcome(run: Run, command: tuple[str, ...], file: Path | str) -> tuple[int, str, str]:
    result = run(*command, "--snapshot", str(file))
    return result.code, result.out, result.err


def _refusal(file: Path | str, problem: str) -> tuple[int, str, str]:
    return 2, "", f"longhorn-extender: {file}: {problem}\n"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "has no objects", id="empty"),
        pytest.param('{"apiVersion":"v1","kind":"List","items":[]}', "has no objects", id="empty list"),
        pytest.param(
            "kind: [", "is not YAML: did not find expected node content at line 2, column 1", id="broken YAML"
        ),
        pytest.param("just text", "is no Kubernetes object", id="text"),
    ],
)
def test_a_file_without_objects_is_bad_input(
    run: Run, tmp_path: Path, command: tuple[str, ...], text: str, problem: str
) -> None:
    """An empty file is what a failed `kubectl get` leaves. Nothing in it waits, which would look well."""
    file = tmp_path / "snapshot"
    file.write_text(text)
    assert _outcome(run, command, file) == _refusal(file, problem)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_file_that_cannot_be_read_is_bad_input(run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
    assert _outcome(run, command, "/no/such/file") == _refusal(
        "/no/such/file", "cannot be read: No such file or directory"
    )
    assert _outcome(run, command, tmp_path) == _refusal(tmp_path, "cannot be read: Is a directory")


@pytest.mark.parametrize("command", PREDICTIONS, ids=lambda command: command[0])
def test_a_cluster_without_longhorn_nodes_cannot_be_predicted(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Every drain would finish, and every node would be safe to lose."""
    file = tmp_path / "snapshot"
    file.write_text(json.dumps(storage_class()))
    assert _outcome(run, command, file) == _refusal(file, "has no nodes.longhorn.io, so that nothing can be predicted")


@pytest.mark.parametrize(
    "arguments",
    [
        ("what-if", "--apply", "-"),
        ("what-if", "--snapshot", FILE, "--apply", "-", "--apply", "-"),
        ("headroom", "-"),
        ("remedies", "-"),
        ("explain", "-"),
    ],
    ids=" ".join,
)
def test_standard_input_is_read_once(run: Run, arguments: tuple[str, ...]) -> None:
    """A second reader would have an empty file."""
    source = () if "--snapshot" in arguments else ("--snapshot", "-")
    result = run(*arguments, *source)
    assert (result.code, result.out) == (2, "")
    assert result.err == "longhorn-extender: standard input (-) can be read only once\n"
