"""An API server that has the placement guard's Secret and webhook configuration, and nothing else."""

import copy
import json
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from app.extender.guard_certificate import NAME, STANDBY_WEBHOOK, WEBHOOK
from app.kube.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH
from app.kube.resources import MUTATING_WEBHOOKS, SECRETS
from tests.worlds.fake_api import Object, failing

NAMESPACE = "longhorn-system"
SECRET = SECRETS.path(NAMESPACE, NAME)
CONFIGURATION = MUTATING_WEBHOOKS.path(name=NAME)


class GuardApi:
    """The two objects, with versions and the patches that the API server would apply to them."""

    def __init__(self) -> None:
        self._version = 0
        self.objects: dict[str, Object] = {}  # by path
        self.writes: list[str] = []  # the paths that were written, in order
        self.requests = 0
        # Called before a write is applied; it may change the objects.
        self.before_write: Callable[[], None] | None = None
        # By method and path, what answers in place of the right answer.
        self.always: dict[tuple[str, str], Callable[[web.Request], Awaitable[web.StreamResponse]]] = {}
        self.put(SECRET, {"kind": "Secret", "metadata": {"name": NAME, "namespace": NAMESPACE}, "type": "Opaque"})
        other: Object = {"name": "other.example.com", "clientConfig": {"caBundle": "b3RoZXI="}}
        own: Object = {"name": WEBHOOK, "clientConfig": {"service": {"name": NAME}}, "failurePolicy": "Ignore"}
        standby = {**copy.deepcopy(own), "name": STANDBY_WEBHOOK}
        webhooks = [other, own, standby]
        self.put(CONFIGURATION, {"kind": MUTATING_WEBHOOKS.kind, "metadata": {"name": NAME}, "webhooks": webhooks})

    def put(self, path: str, raw: Object) -> None:
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = raw

    @property
    def data(self) -> dict[str, bytes]:
        return {key: b64decode(text) for key, text in self.objects[SECRET].get("data", {}).items()}

    @data.setter
    def data(self, content: Mapping[str, bytes]) -> None:
        texts = {key: b64encode(value).decode() for key, value in content.items()}
        self.put(SECRET, {**self.objects[SECRET], "data": texts})

    @property
    def bundle(self) -> bytes:
        """The caBundle of the placement guard's webhook; b"" without one."""
        return b64decode(self.webhook["clientConfig"].get("caBundle", ""))

    @property
    def webhook(self) -> Object:
        (webhook,) = (entry for entry in self.objects[CONFIGURATION]["webhooks"] if entry["name"] == WEBHOOK)
        return dict(webhook)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
        self.requests += 1
        behaviour = self.always.get((request.method, request.path))
        if behaviour is not None:
            return await behaviour(request)
        if request.path not in self.objects:
            return await failing(404, f"{request.path} not found", "NotFound")(request)
        if request.method == "PATCH":
            return await self._patch(request)
        if request.method != "GET":
            return await failing(405)(request)
        return web.json_response(self.objects[request.path])

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        if self.before_write is not None:
            self.before_write()
        path = request.path
        body = json.loads(await request.read())
        current = copy.deepcopy(self.objects[path])
        if body["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
            return await failing(409, "the object has been modified", "Conflict")(request)
        if path == SECRET:
            assert request.content_type == MERGE_PATCH
            current["data"] = {**current.get("data", {}), **body["data"]}
        else:
            assert request.content_type == STRATEGIC_MERGE_PATCH
            _merge_by_name(current["webhooks"], body["webhooks"])
        self.put(path, current)
        self.writes.append(path)
        return web.json_response(current)


def _merge_by_name(webhooks: list[Object], changes: list[dict[str, Any]]) -> None:
    """Merges as the API server does: the webhooks of a configuration are a map by name."""
    by_name = {entry["name"]: entry for entry in webhooks}
    for change in changes:
        by_name[change["name"]]["clientConfig"].update(change["clientConfig"])
