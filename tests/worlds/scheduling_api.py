"""A fake API server for the stand-alone scheduler: it takes Bindings, Events, conditions and annotations of claims."""

import uuid
from typing import Any

from aiohttp import web

from tests.worlds.cluster_cache import PATHS
from tests.worlds.fake_api import Behaviour, FakeApi, Object, failing

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
SERVICES = "/api/v1/services"
CLAIMS = "/api/v1/persistentvolumeclaims"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
SCHEDULER_NAME = "mine"


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
    """A pod of this scheduler that needs a node."""
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"namespace": "shop", "name": name, "uid": uuid.uuid4().hex},
        "spec": {"schedulerName": SCHEDULER_NAME, "containers": [container], **spec},
    }


class SchedulingApi(FakeApi):
    """Serves nodes, pods, services, claims and storage classes.

    `plans["bind"]`, `plans["status"]` and `plans["event"]` hold behaviours that answer the next Bindings, patches of a pod's status
    and writes of Events in place of the right answer; `always["status"]` answers every patch.
    """

    def __init__(self, *objects: Object) -> None:
        super().__init__()
        for path in (NODES, PODS, SERVICES, CLAIMS, CLASSES):
            self.add(path)
        self.bindings: list[tuple[str, str]] = []  # pod and node of every Binding that was accepted, in order
        self.binding_requests = 0  # how many Bindings were requested
        self.status_requests = 0  # how many patches of a pod's status were requested
        self.events: dict[str, Object] = {}  # the Events by name
        self.event_requests = 0  # how many writes of Events were requested
        # Claims with their selected nodes, and pods with their nodes, in the order of the writes.
        self.assignments: list[tuple[str, str]] = []
        for raw in objects:
            self.add(NODES if "namespace" not in raw["metadata"] else PODS, raw)

    def plan_bindings(self, behaviour: Behaviour, times: int = 1) -> None:
        """Sets how the next Bindings are answered, after those planned already."""
        self.plans["bind"] += [behaviour] * times

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers writes itself, and leaves reads to `FakeApi`."""
        parts = request.path.split("/")
        if request.method == "POST" and parts[-1] == "binding":
            self.binding_requests += 1
            plan = self.plans["bind"]
            return await (plan.pop(0) if plan else self.bind)(request)
        if request.method in ("POST", "PATCH") and "events" in parts:
            plan = self.plans["event"]
            return await (plan.pop(0) if plan else self._write_event)(request)
        if request.method == "PATCH" and parts[-1] == "status":
            self.status_requests += 1
            plan = self.plans["status"]
            return await (plan.pop(0) if plan else self.always.get("status", self.patch_status))(request)
        if request.method == "PATCH":
            return await self._annotate(request)
        if request.method == "GET" and parts[-3:-2] == ["namespaces"] and parts[-1] == "pods":
            return self._list_pods(parts[-2])
        return await super().handle(request)

    async def bind(self, request: web.Request) -> web.StreamResponse:
        """Binds a pod without a node, if the UID matches."""
        namespace, _, name = request.path.split("/")[-4:-1]
        raw = self.collections[PODS].objects.get(f"{namespace}/{name}")
        body = await request.json()
        if raw is None:
            return await failing(404, "no such pod", "NotFound")(request)
        if raw["spec"].get("nodeName") or raw["metadata"]["uid"] != body["metadata"]["uid"]:
            return await failing(409, "is assigned already, or another pod", "Conflict")(request)
        self.bindings.append((name, body["target"]["name"]))
        self.assignments.append((name, body["target"]["name"]))
        await self.put(PODS, {**raw, "spec": {**raw["spec"], "nodeName": body["target"]["name"]}})
        return web.json_response({"kind": "Status"}, status=201)

    async def bind_without_answer(self, request: web.Request) -> web.StreamResponse:
        """Binds, and aborts the connection before the answer."""
        await self.bind(request)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _write_event(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.event_requests += 1
        name = body["metadata"]["name"] if request.method == "POST" else request.path.rpartition("/")[2]
        if (name in self.events) == (request.method == "POST"):
            return await failing(409 if request.method == "POST" else 404)(request)
        self.events[name] = {**self.events.get(name, {}), **body}
        return web.json_response(self.events[name])

    async def _annotate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        namespace, _, name = request.path.split("/")[-3:]
        ((annotation, selected_node),) = body["metadata"]["annotations"].items()
        self.assignments.append((name, selected_node))
        raw = self.collections[CLAIMS].objects[f"{namespace}/{name}"]
        annotations = {**raw["metadata"].get("annotations", {}), annotation: selected_node}
        await self.put(CLAIMS, {**raw, "metadata": {**raw["metadata"], "annotations": annotations}})
        return web.json_response({})

    def _list_pods(self, namespace: str) -> web.StreamResponse:
        pods = [raw for raw in self.collections[PODS].objects.values() if raw["metadata"]["namespace"] == namespace]
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": pods})

    async def patch_status(self, request: web.Request) -> web.StreamResponse:
        """Merges conditions by type, and refuses an outdated version."""
        assert request.content_type == "application/strategic-merge-patch+json"
        namespace, _, name = request.path.split("/")[-4:-1]
        raw = self.collections[PODS].objects.get(f"{namespace}/{name}")
        body = await request.json()
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
        """Returns a condition of a pod, or None."""
        conditions = self.collections[PODS].objects[f"shop/{name}"].get("status", {}).get("conditions", [])
        return next((entry for entry in conditions if entry["type"] == kind), None)

    def events_with(self, reason: str) -> list[Object]:
        return [event for event in self.events.values() if event["reason"] == reason]

    def pod_nodes(self) -> dict[str, str]:
        """Returns the node of each pod, "" for none."""
        pods = self.collections[PODS].objects.values()
        return {raw["metadata"]["name"]: raw["spec"].get("nodeName", "") for raw in pods}


class LonghornApi(SchedulingApi):
    """Serves Longhorn's kinds, too; the collections are empty."""

    def __init__(self, *objects: Any) -> None:
        super().__init__(*objects)
        for path in PATHS.values():
            self.add(path)
