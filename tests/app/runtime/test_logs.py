"""What is logged: one JSON object a line, with the pod and the decision, and no secret of the pod."""

import json
import logging
import os
import threading
from typing import Any

import pytest
import structlog

from app.evaluator import Evaluator, SnapshotState, no_contenders
from app.extender.verbs import Verbs
from app.policy import PolicyInForce
from app.runtime import logs
from app.runtime.logs import QueuedLogHandler, configure, flush
from app.settings import LogFormat, Settings
from scheduler_core.cluster.view import View
from scheduler_core.structs import replace
from tests.builders import NOW, Object, pod, snapshot
from tests.worlds.service import application, by_names, db_pod, http_client

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("process_state")]

SENSITIVE = "hunter2"


def _with_secrets(raw_pod: Object) -> Object:
    """The pod with a secret wherever a pod may have one."""
    raw_pod["metadata"]["annotations"] = {"token": SENSITIVE}
    raw_pod["spec"]["containers"] = [
        {"name": "db", "env": [{"name": "PASSWORD", "value": SENSITIVE}], "args": [SENSITIVE]}
    ]
    return raw_pod


class _BrokenEvaluator(Evaluator):
    """An evaluator with a defect."""

    async def decide(self, pod: Any, candidates: Any, contenders: Any = no_contenders) -> Any:
        raise RuntimeError(f"{type(pod)}, {len(candidates)} nodes, {contenders}")


async def _log_of_filter(request: Object, capsys: pytest.CaptureFixture[str], *, broken: bool = False) -> str:
    app = application()
    if broken:
        state = app.state.services
        evaluator = _BrokenEvaluator(SnapshotState(View.of(snapshot(), NOW)), Settings().options)
        app.state.services = replace(state, evaluator=evaluator, verbs=Verbs(evaluator, PolicyInForce()))
    async with http_client(app, raise_app_exceptions=False) as client:
        response = await client.post("/filter", json=request)
    if broken:
        assert (response.status_code, response.json()) == (500, {"error": "internal error, see the server's log"})
    flush()
    return capsys.readouterr().out


async def test_a_decision_is_one_line_with_the_pod_and_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    (line,) = (await _log_of_filter(by_names(db_pod()), capsys)).splitlines()
    assert (
        json.loads(line).items()
        >= {
            "event": "filter",
            "level": "info",
            "pod": "default/db-0",
            "uid": "uid-db-0",
            "volumes": 1,
            "nodes": 4,
            "fits": 2,
            "reasons": {"has room for all local volumes": 2, "insufficient Longhorn storage": 2},
        }.items()
    )


@pytest.mark.parametrize(
    ("body", "event"),
    [
        pytest.param(by_names(pod("gone")), "filter refused", id="missing claim"),
        pytest.param({"Pod": db_pod()}, "refused request", id="malformed"),
    ],
)
async def test_a_problem_is_one_line_too(body: Object, event: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    (line,) = (await _log_of_filter(body, capsys)).splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"]) == (event, "warning")
    assert entry["error"]


async def test_names_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    (line,) = (await _log_of_filter(by_names(db_pod(name='x\n{"event": "forged"}')), capsys)).splitlines()
    assert json.loads(line)["pod"] == 'default/x\n{"event": "forged"}'


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("broken", [pytest.param(False, id="decided"), pytest.param(True, id="failed")])
async def test_secrets_of_a_pod_are_not_logged(
    log_format: LogFormat, broken: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(log_format)
    logged = await _log_of_filter(by_names(_with_secrets(db_pod())), capsys, broken=broken)
    assert ("RuntimeError" in logged) is broken
    assert logged
    assert SENSITIVE not in logged


async def test_a_quiet_level_leaves_decisions_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json", "warning")
    assert await _log_of_filter(by_names(db_pod()), capsys) == ""


async def test_readable_lines_in_a_file_have_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    configure("console")
    log = await _log_of_filter(by_names(db_pod()), capsys)
    assert "pod=default/db-0" in log
    assert "\x1b" not in log


async def test_readable_lines_leave_the_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    configure("console")
    log = structlog.get_logger("test")
    log.warning("refused \x1b[2J", pod="a\u202eb\n")
    log.error("failed", exc_info=RuntimeError("\x1b]0;pwn\x07"))
    flush()
    text = capsys.readouterr().out
    assert {letter for letter in text if not letter.isprintable()} == {"\n"}
    assert "pwn" in text


class _Pipe:
    """A handler that writes into a pipe which nothing has read yet."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        self.stream = os.fdopen(writer, "w")
        self.handler = QueuedLogHandler(self.stream)

    def write(self, *lines: str) -> None:
        for line in lines:
            self.handler.emit(logging.makeLogRecord({"msg": line}))

    def lines(self) -> list[str]:
        """Everything that was written."""
        with os.fdopen(self.reader) as reader:
            # At the end of the log the reader sees the end of the pipe.
            threading.Thread(target=self._end).start()
            return reader.read().splitlines()

    def _end(self) -> None:
        self.handler.flush()
        self.handler.close()
        self.stream.close()


def test_a_line_is_written_when_the_call_returns() -> None:
    """A process that is killed then has lost none."""
    pipe = _Pipe()
    pipe.write("decided")
    os.set_blocking(pipe.reader, False)
    assert os.read(pipe.reader, 100) == b"decided\n"
    os.set_blocking(pipe.reader, True)
    assert pipe.lines() == []


def test_a_reader_that_stalls_delays_lines_and_loses_none() -> None:
    pipe = _Pipe()
    lines = [f"{number} {'x' * (9000 if number == 58 else 1000)}" for number in range(200)]
    pipe.write(*lines)
    assert pipe.lines() == lines
    assert pipe.handler.dropped == 0


def test_lines_beyond_the_queue_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_QUEUED_BYTES", 50_000)
    pipe = _Pipe()
    lines = [f"{number} {'x' * 1000}" for number in range(200)]
    pipe.write(*lines)
    written = pipe.lines()
    assert written == [line for line in lines if line in written]
    assert 0 < pipe.handler.dropped == len(lines) - len(written)
