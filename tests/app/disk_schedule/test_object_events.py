"""Events: one per object and reason, which counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from app.disk_schedule.object_events import QUIET_SECONDS, ObjectEventRecorder
from app.kube.client import KubeClient
from scheduler_core.convert.event import MAX_MESSAGE
from tests.builders import Object
from tests.worlds.fake_api import serve

COMPONENT = "longhorn-disk-schedule"
RAW = json.dumps({"metadata": {"name": "v", "uid": "1-2"}}).encode()


def written(
    folder: Path, record: Callable[[ObjectEventRecorder], None], *, exists: bool = False
) -> list[tuple[str, Object]]:
    """What is written, as method and body, after `record` was called and the quiet time is over."""
    calls: list[tuple[str, Object]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json(loads=json.loads)
        calls.append((request.method, body))
        if exists and request.method == "POST":
            return web.json_response({"reason": "AlreadyExists"}, status=409)
        return web.json_response(body)

    async def run() -> None:
        async with serve(handle, folder) as kubeconfig:
            client = await KubeClient.connect(str(kubeconfig))
            loop = asyncio.get_running_loop()
            # A hundred times as fast.
            recorder = ObjectEventRecorder(client, "longhorn-system", lambda: True, lambda: loop.time() * 100, _now)
            task = asyncio.create_task(recorder.run())
            record(recorder)
            await asyncio.sleep(0.2 + QUIET_SECONDS / 100)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()

    asyncio.run(run())
    return calls


def _now() -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC)


def test_an_event_names_its_object_as_kubectl_describe_looks_for_it(tmp_path: Path) -> None:
    """By kind, name, namespace and UID."""
    [(method, body)] = written(tmp_path, lambda recorder: recorder.record("Volume", RAW, "R", "m", normal=False))
    assert (method, body["reason"], body["message"], body["type"], body["count"]) == ("POST", "R", "m", "Warning", 1)
    assert body["involvedObject"] == {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "Volume",
        "name": "v",
        "namespace": "longhorn-system",
        "uid": "1-2",
    }
    assert (body["firstTimestamp"], body["lastTimestamp"]) == ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z")


def test_an_event_names_the_component_that_reports_it(tmp_path: Path) -> None:
    """In both fields, as client-go does."""
    [(_, body)] = written(tmp_path, lambda recorder: recorder.record("Volume", RAW, "R", "m"))
    assert (body["source"], body["reportingComponent"]) == ({"component": COMPONENT}, COMPONENT)


def test_a_message_that_is_too_long_ends_with_dots(tmp_path: Path) -> None:
    """So a reader sees that something is missing."""
    [(_, body)] = written(tmp_path, lambda recorder: recorder.record("Volume", RAW, "R", "m" * 2000))
    assert body["message"] == "m" * (MAX_MESSAGE - 4) + " ..."


def test_events_of_one_reason_are_counted_and_written_together(tmp_path: Path) -> None:
    """Another reason is another Event."""

    def record(recorder: ObjectEventRecorder) -> None:
        for number in range(5):
            recorder.record("Volume", RAW, "R", f"m{number}")
        recorder.record("Volume", RAW, "Other", "m")

    calls = written(tmp_path, record)
    assert [(method, body["message"], body["count"]) for method, body in calls] == [("POST", "m4", 5), ("POST", "m", 1)]


def test_an_event_of_an_earlier_process_is_updated(tmp_path: Path) -> None:
    """Its name follows from object and reason."""
    calls = written(tmp_path, lambda recorder: recorder.record("Volume", RAW, "R", "m"), exists=True)
    assert [(method, body["message"]) for method, body in calls] == [("POST", "m"), ("PATCH", "m")]
