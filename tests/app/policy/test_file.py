"""`serve --policy FILE`: read at the start, read again when it changes, and kept as it was when it cannot be used."""

from __future__ import annotations

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
from app.extender.metrics import PREFIX
from app.policy.file import LARGEST, PolicyFile, PolicyFileError
from app.settings import Settings
from tests.builders import NOW, snapshot
from tests.worlds.command_line import Run
from tests.worlds.service import NODES, Running, asking, by_names, db_pod, serving, small_cluster

pytestmark = pytest.mark.anyio
EQUAL: dict[str, Any] = {"priorities": [{"name": "EqualPriority", "weight": 1}]}
DATA: dict[str, Any] = {"priorities": [{"name": "LonghornDataLocality", "weight": 1}]}
WEIGHTLESS: dict[str, Any] = {"priorities": [{"name": "EqualPriority"}]}
NO_WEIGHT = "policy: priorities[0] (EqualPriority): weight is missing; a positive whole number is required"


def written(file: Path, policy: Any) -> Path:
    """A policy file; a text is written as it is."""
    file.write_text(policy if isinstance(policy, str) else json.dumps(policy))
    return file


def replaced(file: Path, policy: Any) -> None:
    """Written beside it, and moved over it."""
    written(file.with_suffix(".new"), policy).replace(file)


def mounted(folder: Path, policy: Any) -> Path:
    """As the kubelet mounts a ConfigMap: the file is a link through `..data`, which is a link that is swapped."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    written(version / "policy.json", policy)
    link = folder / "..data.new"
    link.symlink_to(version.name)
    link.replace(folder / "..data")
    file = folder / "policy.json"
    if not file.is_symlink():
        file.symlink_to("..data/policy.json")
    return file


def names(file: PolicyFile) -> list[str]:
    """The priorities of the policy."""
    return [entry.name for entry in file.policy.priorities]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(written, id="written"),
        pytest.param(replaced, id="replaced"),
        pytest.param(lambda file, policy: mounted(file.parent, policy), id="ConfigMap"),
    ],
)
async def test_another_content_is_another_policy(change: Callable[[Path, Any], Any], tmp_path: Path) -> None:
    """However it came about; the same content again is none."""
    path, told = mounted(tmp_path, EQUAL), list[str]()
    file = PolicyFile(str(path))
    file.tell(told.append)
    await file.look()
    assert (names(file), told) == (["EqualPriority"], [])
    change(path, DATA)
    await file.look()
    assert (names(file), told) == (["LonghornDataLocality"], ["loaded"])
    change(path, DATA)
    await file.look()
    assert told == ["loaded"]


async def test_a_change_without_another_time_is_seen(tmp_path: Path) -> None:
    """File systems with coarse times, and copies that keep them."""
    path = written(tmp_path / "policy.json", EQUAL)
    file, times = PolicyFile(str(path)), path.stat()
    written(path, DATA)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    await file.look()
    assert names(file) == ["LonghornDataLocality"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(WEIGHTLESS, NO_WEIGHT, id="no weight"),
        pytest.param("", "policy: is not JSON: Input data was truncated", id="empty"),
        pytest.param('{"priorities": [', "policy: is not JSON: Input data was truncated", id="half written"),
        pytest.param(" " * (LARGEST + 1), f"is larger than {LARGEST} bytes", id="too large"),
    ],
)
async def test_what_cannot_be_used_changes_nothing(content: Any, problem: str, tmp_path: Path) -> None:
    """The policy before stays; it is told once, and over with the next good content, also the old one."""
    path, told = written(tmp_path / "policy.json", EQUAL), list[str]()
    file = PolicyFile(str(path))
    file.tell(told.append)
    written(path, content)
    await file.look()
    await file.look()
    assert (names(file), file.problem, told) == (["EqualPriority"], f"{path}: {problem}", ["refused"])
    written(path, EQUAL)
    await file.look()
    assert (names(file), file.problem, told) == (["EqualPriority"], "", ["refused", "loaded"])


@pytest.mark.parametrize(("odd", "level"), [({}, "info"), ({"odd": 1}, "warning")], ids=["plain", "odd"])
async def test_what_is_odd_in_a_changed_policy_is_a_warning_in_the_log(
    odd: dict[str, Any], level: str, tmp_path: Path
) -> None:
    """A policy with nothing odd is news."""
    path = written(tmp_path / "policy.json", EQUAL)
    file = PolicyFile(str(path))
    written(path, {**DATA, "predicates": [{"name": "HostName"}], **odd})
    with capture_logs() as logs:
        await file.look()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("policy loaded", level)]
    assert logs[0]["warnings"] == list(file.policy.warnings)


async def test_a_file_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """Some editors do that."""
    path = written(tmp_path / "policy.json", EQUAL)
    file = PolicyFile(str(path))
    path.unlink()
    await file.look()
    assert (names(file), file.problem) == (["EqualPriority"], f"{path}: cannot be read: No such file or directory")
    written(path, DATA)
    await file.look()
    assert (names(file), file.problem) == (["LonghornDataLocality"], "")


@pytest.mark.parametrize("path", ["missing.json", ".", "a\0b"], ids=["missing", "folder", "no path"])
def test_a_file_that_cannot_be_read_at_the_start_is_an_error(path: str, tmp_path: Path) -> None:
    """With its name."""
    with pytest.raises(PolicyFileError, match="cannot be read"):
        PolicyFile(str(tmp_path / path))


@pytest.mark.parametrize(
    "where", [("--snapshot", "SNAPSHOT"), ("--kubeconfig", "/nowhere")], ids=["snapshot", "cluster"]
)
def test_a_bad_file_ends_serve_with_one_line(run: Run, where: tuple[str, str], tmp_path: Path) -> None:
    """Before anything else is done."""
    objects = tmp_path / "snapshot.json"
    objects.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": small_cluster()}))
    policy = written(tmp_path / "policy.json", WEIGHTLESS)
    result = run("serve", where[0], where[1].replace("SNAPSHOT", str(objects)), "--policy", str(policy))
    assert (result.code, result.out) == (2, "")
    assert result.err == f"longhorn-extender: {policy}: {NO_WEIGHT}\n"


def test_serve_takes_a_changed_policy(tmp_path: Path) -> None:
    """The whole program: scores before and after, and after a bad file, which /state and the metrics name."""
    fit = {"predicates": [{"name": "LonghornVolumeFit"}]}
    path = written(tmp_path / "policy.json", EQUAL | fit)
    sized = {"status": {"capacity": {"pods": "10"}}}
    objects = [
        entry | sized if (entry["kind"], entry["apiVersion"]) == ("Node", "v1") else entry for entry in small_cluster()
    ]
    with serving(tmp_path, "--policy", str(path), objects=objects) as service:
        assert _scores(service) == [1, 1, 1, 1]
        written(path, DATA | fit)
        _until(lambda: _scores(service) == [0, 0, 0, 0])
        written(path, WEIGHTLESS)
        _until(lambda: _state(service)["problem"] == f"{path}: {NO_WEIGHT}")
        assert _state(service)["priorities"] == {"LonghornDataLocality": 1}
        metrics = _asked(service, "GET", "/metrics").decode()
    assert f'{PREFIX}_policy_reloads_total{{result="loaded"}} 1.0' in metrics
    assert f'{PREFIX}_policy_reloads_total{{result="refused"}} 1.0' in metrics


def _scores(service: Running) -> list[int]:
    answer = json.loads(_asked(service, "POST", "/prioritize", json.dumps(by_names(db_pod()))))
    assert [entry["Host"] for entry in answer] == list(NODES)
    return [entry["Score"] for entry in answer]


def _state(service: Running) -> Any:
    return json.loads(_asked(service, "GET", "/state"))["policy"]


def _asked(service: Running, method: str, path: str, body: str | None = None) -> bytes:
    connection: http.client.HTTPConnection = service.connect()
    connection.request(method, path, body)
    found = connection.getresponse().read()
    connection.close()
    return found


def _until(so: Callable[[], bool]) -> None:
    deadline = monotonic() + 30
    while not so():
        assert monotonic() < deadline
        sleep(0.05)


async def test_state_tells_the_policy(tmp_path: Path) -> None:
    """Null without a file."""
    path = written(tmp_path / "policy.json", {**EQUAL, "predicates": [{"name": "HostName"}], "odd": 1})
    app = create_app(snapshot(small_cluster()), Settings(), NOW, file=PolicyFile(str(path)))
    async with asking(app) as client:
        assert (await client.get("/state")).json()["policy"] == {
            "file": str(path),
            "predicates": ["HostName"],
            "priorities": {"EqualPriority": 1},
            "warnings": ["the file: 'odd' is not known and is ignored"],
            "problem": "",
            "pending": False,
        }
    async with asking(create_app(snapshot(small_cluster()), Settings(), NOW)) as client:
        assert (await client.get("/state")).json()["policy"] is None
