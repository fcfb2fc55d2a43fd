"""An API server that takes Bindings, Events and annotations of claims, and misbehaves on demand; and a scheduler beside it."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from aiohttp import web

from app.kube.reflector import Timing
from app.scheduler.event_recorder import EventRecorder
from app.scheduler.metrics import SchedulerMetrics
from app.scheduler.scheduler import GenericScheduler, SchedulerConfig, SchedulerParts
from scheduler_core.generic.policy import DEFAULT_POLICY, Policy
from tests.worlds.fake_api import Behaviour, FakeApi, Object, connected, failing

NODES, PODS, SERVICES = "/api/v1/nodes", "/api/v1/pods", "/api/v1/services"
CLAIMS, CLASSES = "/api/v1/persistentvolumeclaims", "/apis/storage.k8s.io/v1/storageclasses"
NAME = "mine"


def node(name: str, cpu: str = "4", **labels: str) -> Object:
    """A ready node."""
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": {"cpu": cpu, "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, cpu: str = "1", **spec: Any) -> Object:
    """A pod that wants a node of this scheduler."""
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"namespace": "shop", "name": name, "uid": uuid.uuid4().hex},
        "spec": {"schedulerName": NAME, "containers": [container], **spec},
    }


class SchedulingApi(FakeApi):
    """`plans["bind"]` and `plans["status"]` hold what to do with the next Bindings and patches of status instead of the right thing.

    Attributes:
        statuses: how many patches of pods' status were asked for
        bindings: the pods and nodes of every Binding that was accepted, in order
        posted: how many Bindings were asked for
        events: by name
        written: writes of Events
        told: claims and the nodes they were told, in order; Bindings of pods among them
    """

    def __init__(self, *objects: Object) -> None:
        super().__init__()
        for path in (NODES, PODS, SERVICES, CLAIMS, CLASSES):
            self.add(path)
        self.bindings: list[tuple[str, str]] = []
        self.posted = 0
        self.statuses = 0
        self.events: dict[str, Object] = {}
        self.written = 0
        self.told: list[tuple[str, str]] = []
        for raw in objects:
            self.add(NODES if "namespace" not in raw["metadata"] else PODS, raw)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Writes are done here, the rest as ever."""
        parts = request.path.split("/")
        if request.method == "POST" and parts[-1] == "binding":
            self.posted += 1
            plan = self.plans["bind"]
            return await (plan.pop(0) if plan else self.bind)(request)
        if request.method in ("POST", "PATCH") and "events" in parts:
            return await self._event(request)
        if request.method == "PATCH" and parts[-1] == "status":
            self.statuses += 1
            plan = self.plans["status"]
            return await (plan.pop(0) if plan else self.always.get("status", self.patch_status))(request)
        if request.method == "PATCH":
            return await self._annotate(request)
        if request.method == "GET" and parts[-3:-2] == ["namespaces"] and parts[-1] == "pods":
            return self._pods_of(parts[-2])
        return await super().handle(request)

    async def bind(self, request: web.Request) -> web.StreamResponse:
        """As the API server: one node per pod, the pod that was meant, none that is gone."""
        namespace, _, name = request.path.split("/")[-4:-1]
        raw, body = self.collections[PODS].objects.get(f"{namespace}/{name}"), await request.json()
        if raw is None:
            return await failing(404, "no such pod", "NotFound")(request)
        if raw["spec"].get("nodeName") or raw["metadata"]["uid"] != body["metadata"]["uid"]:
            return await failing(409, "is assigned already, or another pod", "Conflict")(request)
        self.bindings.append((name, body["target"]["name"]))
        self.told.append((name, body["target"]["name"]))
        await self.put(PODS, {**raw, "spec": {**raw["spec"], "nodeName": body["target"]["name"]}})
        return web.json_response({"kind": "Status"}, status=201)

    async def bind_and_break(self, request: web.Request) -> web.StreamResponse:
        """Binds, and the answer is lost."""
        await self.bind(request)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _event(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.written += 1
        name = body["metadata"]["name"] if request.method == "POST" else request.path.rpartition("/")[2]
        if (name in self.events) == (request.method == "POST"):
            return await failing(409 if request.method == "POST" else 404)(request)
        self.events[name] = {**self.events.get(name, {}), **body}
        return web.json_response(self.events[name])

    async def _annotate(self, request: web.Request) -> web.StreamResponse:
        body, (namespace, _, name) = await request.json(), request.path.split("/")[-3:]
        ((annotation, told),) = body["metadata"]["annotations"].items()
        self.told.append((name, told))
        raw = self.collections[CLAIMS].objects[f"{namespace}/{name}"]
        annotations = {**raw["metadata"].get("annotations", {}), annotation: told}
        await self.put(CLAIMS, {**raw, "metadata": {**raw["metadata"], "annotations": annotations}})
        return web.json_response({})

    def _pods_of(self, namespace: str) -> web.StreamResponse:
        pods = [raw for raw in self.collections[PODS].objects.values() if raw["metadata"]["namespace"] == namespace]
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": pods})

    async def patch_status(self, request: web.Request) -> web.StreamResponse:
        """As the API server: conditions are merged by their types, a version that is not the newest is a conflict."""
        assert request.content_type == "application/strategic-merge-patch+json"
        namespace, _, name = request.path.split("/")[-4:-1]
        raw, body = self.collections[PODS].objects.get(f"{namespace}/{name}"), await request.json()
        if raw is None:
            return await failing(404, "no such pod", "NotFound")(request)
        if raw["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            return await failing(409, "the pod has changed", "Conflict")(request)
        assert body.keys() == {"metadata", "status"}
        assert body["status"].keys() == {"conditions"}
        status = raw.get("status", {})
        merged = {entry["type"]: entry for entry in status.get("conditions", [])}
        for entry in body["status"]["conditions"]:
            merged[entry["type"]] = {**merged.get(entry["type"], {}), **entry}
        changed = {**raw, "metadata": dict(raw["metadata"]), "status": {**status, "conditions": list(merged.values())}}
        await self.put(PODS, changed)
        return web.json_response(changed)

    def condition(self, name: str, kind: str = "PodScheduled") -> Any:
        """A condition of a pod; None if it has none of this type."""
        found = self.collections[PODS].objects[f"shop/{name}"].get("status", {}).get("conditions", [])
        return next((entry for entry in found if entry["type"] == kind), None)

    def happened(self, reason: str) -> list[Object]:
        """The Events of a reason."""
        return [event for event in self.events.values() if event["reason"] == reason]

    def nodes_of(self) -> dict[str, str]:
        """The node of each pod, "" for none."""
        pods = self.collections[PODS].objects.values()
        return {raw["metadata"]["name"]: raw["spec"].get("nodeName", "") for raw in pods}


def plan(behaviour: Behaviour, api: SchedulingApi, times: int = 1) -> None:
    """What happens to the next Bindings."""
    api.plans["bind"] += [behaviour] * times


@asynccontextmanager
async def scheduling(
    api: SchedulingApi,
    folder: Path,
    policy: Policy = DEFAULT_POLICY,
    may: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = monotonic,
) -> AsyncIterator[GenericScheduler]:
    """A scheduler that is active; of equally good nodes it takes the first by name."""
    async with connected(api, folder) as client:
        recorder = EventRecorder(client, NAME, "test", monotonic, lambda: datetime.now(UTC))
        timing = Timing(clock, random.uniform)
        parts = SchedulerParts(client, timing, may, recorder, SchedulerMetrics())
        scheduler = GenericScheduler(SchedulerConfig(NAME, policy, min, 60), parts)
        scheduler.activate()
        running = asyncio.create_task(scheduler.run())
        try:
            yield scheduler
        finally:
            assert not running.done() or running.exception() is None
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
