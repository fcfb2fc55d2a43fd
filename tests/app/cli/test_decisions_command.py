"""`longhorn-extender decisions`: from a served snapshot, and through an API server's proxy."""

import json
import os
import pty
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from rich.text import Text

from app.cli.render import refresh
from scheduler_core.errors import CoreError
from tests.app.cli.test_explain_live import run_in_thread
from tests.builders import pod
from tests.worlds.command_line import Run
from tests.worlds.fake_api import FakeApi, failing, serve
from tests.worlds.service import EXTENDER, SnapshotProcess, by_names, db_pod, serve_snapshot

NAMESPACE = "longhorn-system"
NAME = "longhorn-scheduler-extender"
HOSTILE = "\x1b[2J\x1b]0;title\x07\u202e"
EMPTY = {"apiVersion": "longhorn-extender/v1", "kind": "DecisionList", "recorded": 0, "nextBefore": None, "items": []}


@pytest.fixture(scope="module")
def extender_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a process that has decided four times."""
    with serve_snapshot(tmp_path_factory.mktemp("extender_url")) as process:
        ask(process, by_names(db_pod()))
        ask(process, by_names(db_pod(), ["node-2"]))
        ask(process, by_names(pod("gone", name="web-0", namespace="shop")))
        ask(process, by_names(pod(name=HOSTILE, namespace="shop"), [HOSTILE]))
        yield f"http://127.0.0.1:{process.port}"


def ask(process: SnapshotProcess, request: Any) -> None:
    connection = process.connect()
    connection.request("POST", "/filter", json.dumps(request))
    assert connection.getresponse().status == 200
    connection.close()


def lines(text: str) -> list[str]:
    """The lines of a table, without times and durations. Spaces are single."""
    rows = [line.split() for line in text.splitlines()]
    return [" ".join(row[1:-1] if row and row[0][0].isdigit() else row) for row in rows]


def test_the_table_has_the_latest_first(extender_url: str, run: Run) -> None:
    result = run("decisions", "--url", extender_url)
    name = r"\x1b[2J\x1b]0;title\x07\u202e"
    assert (result.code, result.err) == (0, "")
    assert lines(result.out) == [
        "TIME POD VERB RESULT FITS OFFERED, OR WHY NOT MS",
        f"shop/{name} filter fits 1 of 1 {name}",
        "shop/web-0 filter error 0 of 4 PersistentVolumeClaim shop/gone does not exist (named by pod shop/web-0)",
        "default/db-0 filter refused 0 of 1 insufficient Longhorn storage (1)",
        "default/db-0 filter fits 2 of 4 node-1, node-3",
    ]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["db-0"], ["pod/db-0"]),
        (["default/db-0"], ["pod/db-0"]),
        (["pod/db-0", "-n", "default"], ["pod/db-0"]),
        (["db-0", "-n", "shop"], []),
        (["-n", "shop", "--outcome", "error"], ["pod/web-0"]),
        (["--limit", "3"], [r"pod/\x1b[2J\x1b]0;title\x07\u202e", "pod/web-0", "pod/db-0"]),
    ],
)
def test_decisions_are_selected(extender_url: str, run: Run, arguments: list[str], names: list[str]) -> None:
    result = run("decisions", "--url", extender_url, "-o", "name", *arguments)
    assert (result.code, result.out.splitlines(), result.err) == (0, names, "")


@pytest.mark.parametrize("name", ["a&limit=1", "a b", "a%2Fb", "ä", "#", HOSTILE])
def test_every_name_can_be_asked_for(extender_url: str, run: Run, name: str) -> None:
    result = run("decisions", "--url", extender_url, f"pod/{name}", "-o", "json")
    assert result.code == 0
    assert [entry["pod"] for entry in result.answer["items"]] == ([f"shop/{name}"] if name == HOSTILE else [])


def test_json_is_the_answer_of_the_leader(extender_url: str, run: Run) -> None:
    answer = run("decisions", "--url", extender_url, "-o", "json", "--limit", "1").answer
    assert (answer["apiVersion"], answer["kind"], answer["recorded"]) == ("longhorn-extender/v1", "DecisionList", 4)
    assert answer["nextBefore"] == answer["items"][0]["number"]
    assert "older decisions; see --limit" in run("decisions", "--url", extender_url, "--limit", "1").out


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<html>", "the answer is not the extender's: "),
        (b"[]", "the answer is not the extender's: "),
        (b'{"kind": "DecisionList"}', "`recorded`"),
        (b"x" * 1001, "the answer has more than 1000 bytes"),
    ],
)
async def test_another_server_is_named_as_such(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, body: bytes, problem: str
) -> None:
    monkeypatch.setattr("app.extender.process_calls._MAX_BODY", 1000)

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    async with serve(handle, tmp_path) as kubeconfig:
        url = next(line for line in kubeconfig.read_text().splitlines() if "server:" in line).split()[-1]
        result = await run_in_thread(run, "decisions", "--url", url)
    assert (result.code, result.out) == (2, "")
    assert problem in result.err


class Api(FakeApi):
    """A cluster with two pods of the extender. Its proxy answers with no decisions."""

    def __init__(self, port: str = "http", holder: str = "two_1234") -> None:
        super().__init__()
        self.proxied: list[tuple[str, dict[str, str]]] = []  # the requests that the proxy got, as path and query
        for name in ("one", "two"):
            metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": NAME}}
            spec: Any = {"containers": [{"ports": [{"name": "http", "containerPort": 9504}]}]}
            self.add(
                f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": metadata, "spec": spec, "status": {"podIP": "::1"}}
            )
        meta = {"name": NAME, "namespace": NAMESPACE}
        spec = {"clusterIP": "10.43.0.9", "ports": [{"name": port, "port": 9504}]}
        self.add(f"/api/v1/namespaces/{NAMESPACE}/services", {"metadata": meta, "spec": spec})
        self.add(
            f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases",
            {"metadata": meta, "spec": {"holderIdentity": holder}},
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if "/proxy/" not in request.path:
            return await super().handle(request)
        self.proxied.append((request.path, dict(request.query)))
        return web.json_response(EMPTY)


async def decide(api: Api, folder: Path, run: Run, *arguments: str) -> Any:
    async with serve(api.handle, folder) as kubeconfig:
        return await run_in_thread(run, "decisions", "--kubeconfig", str(kubeconfig), *arguments)


async def test_the_leader_is_called_through_the_api_server(tmp_path: Path, run: Run) -> None:
    api = Api()
    result = await decide(api, tmp_path, run, "pod/a&b%2F c", "-n", "shop")
    assert (result.code, result.out, result.err) == (0, "nothing is decided yet\n", "")
    parameters = {"limit": "50", "namespace": "shop", "pod": "a&b%2F c"}
    assert api.proxied == [(f"/api/v1/namespaces/{NAMESPACE}/pods/http:two:9504/proxy/decisions", parameters)]


async def test_without_a_leader_there_are_no_decisions(tmp_path: Path, run: Run) -> None:
    result = await decide(Api(holder="three"), tmp_path, run)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "longhorn-extender: no pod in namespace longhorn-system leads the extender; see --longhorn-namespace, --url and "
        "`longhorn-extender doctor`\n"
    )


async def test_an_extender_with_tls_is_not_called(tmp_path: Path, run: Run) -> None:
    api = Api(port="https")
    result = await decide(api, tmp_path, run)
    assert (result.code, api.proxied) == (2, [])
    assert "requires TLS, and the API server has no certificate to show; see --url, --ca-file" in result.err


async def test_a_refusal_by_the_api_server_is_one_line(tmp_path: Path, run: Run) -> None:
    api = Api()
    api.always["list"] = failing(403, "pods is forbidden", "Forbidden")
    result = await decide(api, tmp_path, run)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "pods is forbidden" in result.err


def test_watching_ends_with_a_signal(extender_url: str, tmp_path: Path) -> None:
    main, terminal = pty.openpty()
    command = [EXTENDER, "decisions", "--watch", "--interval", "0.5", "--url", extender_url]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, env=environment, start_new_session=True
    )
    os.close(terminal)
    screen = b""
    deadline = time.monotonic() + 30
    while screen.count(b"web-0") < 2 and time.monotonic() < deadline:
        screen += os.read(main, 65536)
    process.send_signal(2)
    try:
        _, errors = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    finally:
        os.close(main)
    assert (process.returncode, errors) == (0, b"")
    assert screen.count(b"web-0") >= 2


def test_what_cannot_be_read_later_is_said_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    steps: Iterator[Any] = iter(["first", CoreError("no pod leads"), "third"])

    def draw() -> Any:
        step = next(steps)
        if isinstance(step, CoreError):
            raise step
        return lambda console: console.print(Text(step))

    waits = iter([None, None, KeyboardInterrupt()])

    def sleep(seconds: float) -> None:
        assert seconds == 2
        interruption = next(waits)
        if interruption is not None:
            raise interruption

    refresh(draw, 2, sleep)
    screens = capsys.readouterr().out.split("\x1b[H\x1b[2J")
    assert [screen.strip() for screen in screens] == ["", "first", "no pod leads", "third"]


def test_what_cannot_be_read_at_first_is_an_error() -> None:
    def draw() -> Any:
        raise CoreError("no pod leads")

    with pytest.raises(CoreError, match="no pod leads"):
        refresh(draw, 2)


def test_a_screen_takes_as_many_lines_as_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rest would scroll the head away."""
    monkeypatch.setenv("LINES", "5")
    monkeypatch.setenv("COLUMNS", "80")

    def draw() -> Any:
        return lambda console: [console.print(Text(str(number))) for number in range(100)]

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    refresh(draw, 2, stop)
    assert capsys.readouterr().out.split() == ["\x1b[H\x1b[2J0", "1", "2", "3"]
