"""`serve --policy FILE`: read at the start and when it changes; an unusable file changes nothing."""

import http.client
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.bootstrap import create_app
from app.policy import PolicyFile, PolicyFileError
from app.runtime.probes import PREFIX
from app.settings import MAX_BYTES, Settings
from tests.builders import NOW, snapshot, write_list
from tests.worlds.command_line import Run
from tests.worlds.service import NODES, SnapshotProcess, by_names, db_pod, http_client, serve_snapshot, small_cluster

EQUAL: dict[str, Any] = {"priorities": [{"name": "EqualPriority", "weight": 1}]}
DATA: dict[str, Any] = {"priorities": [{"name": "LonghornDataLocality", "weight": 1}]}
WEIGHTLESS: dict[str, Any] = {"priorities": [{"name": "EqualPriority"}]}
NO_WEIGHT = "policy: priorities[0] (EqualPriority): weight is missing; a positive whole number is required"


def write_policy(file: Path, policy: Any) -> Path:
    """Writes a policy file; a text is written as it is."""
    file.write_text(policy if isinstance(policy, str) else json.dumps(policy))
    return file


def replace_policy(file: Path, policy: Any) -> None:
    write_policy(file.with_suffix(".new"), policy).replace(file)


def mount_policy(folder: Path, policy: Any) -> Path:
    """Writes a policy as the kubelet mounts a ConfigMap: through the link `..data`, which is replaced."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    write_policy(version / "policy.json", policy)
    link = folder / "..data.new"
    link.symlink_to(version.name)
    link.replace(folder / "..data")
    file = folder / "policy.json"
    if not file.is_symlink():
        file.symlink_to("..data/policy.json")
    return file


def names(file: PolicyFile) -> list[str]:
    return [entry.name for entry in file.policy.priorities]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(write_policy, id="written"),
        pytest.param(replace_policy, id="replaced"),
        pytest.param(lambda file, policy: mount_policy(file.parent, policy), id="ConfigMap"),
    ],
)
async def test_a_changed_file_is_a_new_policy(change: Callable[[Path, Any], Any], tmp_path: Path) -> None:
    path = mount_policy(tmp_path, EQUAL)
    results: list[str] = []
    file = PolicyFile(str(path))
    file.subscribe(results.append)
    await file.reload()
    assert (names(file), results) == (["EqualPriority"], [])
    change(path, DATA)
    await file.reload()
    assert (names(file), results) == (["LonghornDataLocality"], ["loaded"])
    change(path, DATA)
    await file.reload()
    assert results == ["loaded"]


async def test_a_change_that_keeps_the_modification_time_is_noticed(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.json", EQUAL)
    file = PolicyFile(str(path))
    times = path.stat()
    write_policy(path, DATA)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    await file.reload()
    assert names(file) == ["LonghornDataLocality"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(WEIGHTLESS, NO_WEIGHT, id="no weight"),
        pytest.param("", "policy: is not JSON: Input data was truncated", id="empty"),
        pytest.param('{"priorities": [', "policy: is not JSON: Input data was truncated", id="half written"),
        pytest.param(" " * (MAX_BYTES + 1), f"is larger than {MAX_BYTES} bytes", id="too large"),
    ],
)
async def test_an_unusable_file_changes_nothing(content: Any, problem: str, tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.json", EQUAL)
    results: list[str] = []
    file = PolicyFile(str(path))
    file.subscribe(results.append)
    write_policy(path, content)
    await file.reload()
    await file.reload()
    assert (names(file), results) == (["EqualPriority"], ["refused"])
    assert file.problem.startswith(f"{path}: {problem}")
    write_policy(path, EQUAL)
    await file.reload()
    assert (names(file), file.problem, results) == (["EqualPriority"], "", ["refused", "loaded"])


@pytest.mark.parametrize(("odd", "level"), [({}, "info"), ({"odd": 1}, "warning")], ids=["plain", "odd"])
async def test_warnings_about_a_changed_policy_are_logged(odd: dict[str, Any], level: str, tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.json", EQUAL)
    file = PolicyFile(str(path))
    write_policy(path, {**DATA, "predicates": [{"name": "HostName"}], **odd})
    with capture_logs() as logs:
        await file.reload()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("policy loaded", level)]
    assert logs[0]["warnings"] == list(file.policy.warnings)


async def test_a_file_may_be_deleted_and_written_again(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.json", EQUAL)
    file = PolicyFile(str(path))
    path.unlink()
    await file.reload()
    assert (names(file), file.problem) == (["EqualPriority"], f"{path}: cannot be read: No such file or directory")
    write_policy(path, DATA)
    await file.reload()
    assert (names(file), file.problem) == (["LonghornDataLocality"], "")


@pytest.mark.parametrize("path", ["missing.json", ".", "a\0b"], ids=["missing", "folder", "no path"])
def test_a_file_that_cannot_be_read_at_the_start_is_an_error(path: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="cannot be read"):
        PolicyFile(str(tmp_path / path))


@pytest.mark.parametrize(
    "where", [("--snapshot", "SNAPSHOT"), ("--kubeconfig", "/nowhere")], ids=["snapshot", "cluster"]
)
def test_a_bad_file_ends_serve_with_one_line(run: Run, where: tuple[str, str], tmp_path: Path) -> None:
    objects = write_list(tmp_path, small_cluster())
    policy = write_policy(tmp_path / "policy.json", WEIGHTLESS)
    result = run("serve", where[0], where[1].replace("SNAPSHOT", objects), "--policy", str(policy))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"longhorn-extender: {policy}: {NO_WEIGHT} (line ")
    assert result.err.count("\n") == 1


def test_serve_loads_a_changed_policy(tmp_path: Path) -> None:
    fit = {"predicates": [{"name": "LonghornVolumeFit"}]}
    path = write_policy(tmp_path / "policy.json", EQUAL | fit)
    sized = {"status": {"capacity": {"pods": "10"}}}
    objects = [
        entry | sized if (entry["kind"], entry["apiVersion"]) == ("Node", "v1") else entry for entry in small_cluster()
    ]
    with serve_snapshot(tmp_path, "--policy", str(path), objects=objects) as service:
        assert _scores(service) == [1, 1, 1, 1]
        write_policy(path, DATA | fit)
        _until(lambda: _scores(service) == [0, 0, 0, 0])
        assert _state(service)["priorities"] == {"LonghornDataLocality": 1}
        assert f'{PREFIX}_policy_reloads_total{{result="loaded"}} 1.0' in _request(service, "GET", "/metrics").decode()


def _scores(service: SnapshotProcess) -> list[int]:
    answer = json.loads(_request(service, "POST", "/prioritize", json.dumps(by_names(db_pod()))))
    assert [entry["Host"] for entry in answer] == list(NODES)
    return [entry["Score"] for entry in answer]


def _state(service: SnapshotProcess) -> Any:
    return json.loads(_request(service, "GET", "/state"))["policy"]


def _request(service: SnapshotProcess, method: str, path: str, body: str | None = None) -> bytes:
    connection: http.client.HTTPConnection = service.connect()
    connection.request(method, path, body)
    answer = connection.getresponse().read()
    connection.close()
    return answer


def _until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + 30
    while not condition():
        assert monotonic() < deadline
        sleep(0.05)


async def test_state_and_metrics_show_that_a_changed_policy_cannot_be_used(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.json", EQUAL)
    file = PolicyFile(str(path))
    async with http_client(create_app(snapshot(small_cluster()), Settings(), NOW, file=file)) as client:
        write_policy(path, DATA)
        await file.reload()
        write_policy(path, WEIGHTLESS)
        await file.reload()
        policy = (await client.get("/state")).json()["policy"]
        metrics = (await client.get("/metrics")).text
    assert policy["problem"].startswith(f"{path}: {NO_WEIGHT} (line ")
    assert policy["priorities"] == {"LonghornDataLocality": 1}
    assert f'{PREFIX}_policy_reloads_total{{result="loaded"}} 1.0' in metrics
    assert f'{PREFIX}_policy_reloads_total{{result="refused"}} 1.0' in metrics


async def test_state_shows_the_policy(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.json", {**EQUAL, "predicates": [{"name": "HostName"}], "odd": 1})
    app = create_app(snapshot(small_cluster()), Settings(), NOW, file=PolicyFile(str(path)))
    async with http_client(app) as client:
        assert (await client.get("/state")).json()["policy"] == {
            "file": str(path),
            "predicates": ["HostName"],
            "priorities": {"EqualPriority": 1},
            "warnings": ["the file: 'odd' is not known and is ignored"],
            "problem": "",
            "pending": False,
        }
    async with http_client(create_app(snapshot(small_cluster()), Settings(), NOW)) as client:
        assert (await client.get("/state")).json()["policy"] is None
