"""Carries actions out: the only place that writes to the API server."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.resources import Resource
from simulator.actions import Action, Create, Delete, Later, Patch, Replace, Wake, is_write
from simulator.objects import Json, Obj
from simulator.store import Store

log = structlog.get_logger("simulator")

_EXISTS: Final = "AlreadyExists"


class Performer:
    """Carries out what decisions ask for, and keeps the time of what they put off.

    Attributes:
        counters: how often what was done, since this process started
    """

    def __init__(self, client: KubeClient, store: Store, rng: random.Random) -> None:
        self.counters: Counter[str] = Counter()
        self._client = client
        self._tables = {table.resource: table for table in store.tables}
        self._rng = rng
        self._due: dict[str, dict[str, float]] = {}

    async def perform(self, owner: str, actions: Sequence[Action]) -> float | None:
        """Does what can be done now, in order; the seconds until the next thing that was put off is due.

        `owner` names who decided: what it put off before and no longer asks for is forgotten, unless this time something
        is written, because then it will decide again.

        Raises:
            ApiError: the API server refused a write; what came before it is done
        """
        versions: dict[str, int] = {}
        waits: list[float] = []
        wanted: set[str] = set()
        for action in actions:
            if isinstance(action, Wake):
                waits.append(action.seconds)
            elif isinstance(action, Later):
                wanted.add(action.name)
                left = self._left(owner, action)
                if left > 0:
                    waits.append(left)
                    continue
                for inner in action.actions:
                    await self._write(inner, versions)
                self._due.get(owner, {}).pop(action.name, None)
            else:
                await self._write(action, versions)
        if not any(is_write(action) for action in actions):
            self._forget(owner, wanted)
        return min(waits, default=None)

    def _left(self, owner: str, action: Later) -> float:
        now = asyncio.get_running_loop().time()
        due = self._due.setdefault(owner, {})
        if action.name not in due:
            due[action.name] = now + self._rng.uniform(*action.span)
        return due[action.name] - now

    def _forget(self, owner: str, wanted: set[str]) -> None:
        due = {name: when for name, when in self._due.get(owner, {}).items() if name in wanted}
        if due:
            self._due[owner] = due
        else:
            self._due.pop(owner, None)

    async def _write(self, action: Action, versions: dict[str, int]) -> None:
        if isinstance(action, Create):
            await self._create(action)
        elif isinstance(action, Patch):
            await self._patch(action, versions)
        elif isinstance(action, Replace):
            await self._replace(action, versions)
        elif isinstance(action, Delete):
            await self._delete(action)

    async def _create(self, action: Create) -> None:
        resource, body = action.resource, action.body
        namespace = body["metadata"].get("namespace", "")
        full = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        try:
            answer = await self._client.create(resource.path(namespace), full)
        except ApiError as error:
            if error.reason == _EXISTS:
                return
            raise
        self._wrote(resource, answer)
        self._log(action.why, resource, body["metadata"]["name"], action.counts)

    async def _patch(self, action: Patch, versions: dict[str, int]) -> None:
        target = action.target
        version = str(versions.get(target.uid, target.version))
        metadata = {**action.body.get("metadata", {}), "resourceVersion": version}
        path = action.resource.path(target.namespace, target.name, "status" if action.status else "")
        try:
            answer = await self._client.patch(path, {**action.body, "metadata": metadata})
        except ApiError as error:
            if error.not_found:
                return
            raise
        versions[target.uid] = self._wrote(action.resource, answer)
        self._log(action.why, action.resource, target.name, action.counts)

    async def _replace(self, action: Replace, versions: dict[str, int]) -> None:
        target = action.target
        version = str(versions.get(target.uid, target.version))
        metadata = {**target.metadata, "resourceVersion": version}
        body = {**target.raw, "metadata": metadata, "status": action.status}
        body.setdefault("apiVersion", action.resource.api_version)
        body.setdefault("kind", action.resource.kind)
        try:
            path = action.resource.path(target.namespace, target.name, "status")
            answer = await self._client.replace(path, body)
        except ApiError as error:
            if error.not_found:
                return
            raise
        versions[target.uid] = self._wrote(action.resource, answer)
        log.debug(action.why, kind=action.resource.label, name=target.name)

    async def _delete(self, action: Delete) -> None:
        target = action.target
        try:
            body = {"preconditions": {"uid": target.uid}}
            answer = await self._client.delete(action.resource.path(target.namespace, target.name), body)
        except ApiError as error:
            if error.not_found or error.conflict:
                return
            raise
        left: Json = msgspec.json.decode(answer)
        if left.get("kind") == action.resource.kind and left["metadata"].get("deletionTimestamp"):
            self._wrote(action.resource, answer)
        self._log(action.why, action.resource, target.name, action.counts)

    def _wrote(self, resource: Resource, answer: bytes) -> int:
        body: Json = msgspec.json.decode(answer)
        table = self._tables.get(resource)
        written: Obj[Any] = Obj(body, None) if table is None else table.wrote(body)
        return written.version

    def _log(self, why: str, resource: Resource, name: str, counts: str) -> None:
        if counts:
            self.counters[counts] += 1
        log.info(why, kind=resource.label, name=name)
