"""Carries out actions against the API server. After the installation, all writes are made here."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.resources import Resource
from simulator.actions import (
    Action,
    AfterDelay,
    CreateObject,
    DeleteObject,
    PatchObject,
    Replacement,
    ReplaceObjects,
    ReplaceStatus,
    RequeueAfter,
    is_write,
)
from simulator.config import draw_seconds
from simulator.objects import Json, KubeObject
from simulator.tables import Store

log = structlog.get_logger("simulator")

_ALREADY_EXISTS = "AlreadyExists"


class ActionRunner:
    """Carries out actions and keeps the due times of delayed ones.

    Attributes:
        counters: how often each counted action was carried out since this process started
    """

    def __init__(self, client: KubeClient, store: Store, rng: random.Random) -> None:
        self.counters: Counter[str] = Counter()
        self._client = client
        self._tables = {table.resource: table for table in store.tables}
        self._rng = rng
        self._due_by_owner: dict[str, dict[str, float]] = {}

    async def run(self, owner: str, actions: Sequence[Action]) -> float | None:
        """Carries out actions in order.

        Returns the seconds until the decision is to be repeated; None: not before an event.

        Args:
            owner: names the object of the decision. A delayed action that its decision no longer returns is dropped, unless the
                decision writes something now: the write causes another decision.
            actions: what the decision returned

        Raises:
            ApiError: the API server refused a write; the actions before it are done
        """
        versions: dict[str, int] = {}
        waits: list[float] = []
        wanted: set[str] = set()
        for action in actions:
            if isinstance(action, RequeueAfter):
                waits.append(action.seconds)
            elif isinstance(action, AfterDelay):
                wanted.add(action.name)
                remaining = self._remaining_seconds(owner, action)
                if remaining > 0:
                    waits.append(remaining)
                    continue
                for inner in action.actions:
                    await self._write(inner, versions)
                self._due_by_owner.get(owner, {}).pop(action.name, None)
            else:
                await self._write(action, versions)
        if not any(is_write(action) for action in actions):
            self._drop_delays(owner, wanted)
        return min(waits, default=None)

    def _remaining_seconds(self, owner: str, action: AfterDelay) -> float:
        now = asyncio.get_running_loop().time()
        due = self._due_by_owner.setdefault(owner, {})
        if action.name not in due:
            due[action.name] = now + draw_seconds(action.delay, self._rng)
        return due[action.name] - now

    def _drop_delays(self, owner: str, wanted: set[str]) -> None:
        due = {name: when for name, when in self._due_by_owner.get(owner, {}).items() if name in wanted}
        if due:
            self._due_by_owner[owner] = due
        else:
            self._due_by_owner.pop(owner, None)

    async def _write(self, action: Action, versions: dict[str, int]) -> None:
        if isinstance(action, CreateObject):
            await self._create(action)
        elif isinstance(action, (PatchObject, ReplaceStatus)):
            await self._change(action, versions)
        elif isinstance(action, ReplaceObjects):
            await self._replace_objects(action)
        elif isinstance(action, DeleteObject):
            await self._delete(action)

    async def _create(self, action: CreateObject) -> None:
        resource = action.resource
        metadata = action.body["metadata"]
        path = resource.path(metadata.get("namespace", ""))
        try:
            answer = await self._client.create(path, _with_type(resource, action.body))
        except ApiError as error:
            if error.reason == _ALREADY_EXISTS:
                return
            raise
        self._record_answer(resource, answer)
        self._log(action.event, resource, metadata["name"], action.counter)

    async def _change(self, action: PatchObject | ReplaceStatus, versions: dict[str, int]) -> None:
        target = action.target
        version = {"resourceVersion": str(versions.get(target.uid, target.version))}
        try:
            if isinstance(action, PatchObject):
                path = action.resource.path(target.namespace, target.name, "status" if action.status else "")
                metadata = {**action.body.get("metadata", {}), **version}
                answer = await self._client.patch(path, {**action.body, "metadata": metadata})
            else:
                path = action.resource.path(target.namespace, target.name, "status")
                body = {**target.raw, "metadata": {**target.metadata, **version}, "status": action.status}
                answer = await self._client.replace(path, _with_type(action.resource, body))
        except ApiError as error:
            if error.not_found:
                return
            raise
        versions[target.uid] = self._record_answer(action.resource, answer)
        if isinstance(action, PatchObject):
            self._log(action.event, action.resource, target.name, action.counter)
        else:
            log.debug(action.event, kind=action.resource.label, name=target.name)

    async def _replace_objects(self, action: ReplaceObjects) -> None:
        refusal: ApiError | None = None
        for replacement in action.replacements:
            target = replacement.target
            path = action.resource.path(target.namespace, target.name)
            try:
                await self._client.replace(path, _with_type(action.resource, _merge_fields(replacement)))
            except ApiError as error:
                refusal = error
            else:
                self._log(replacement.event, action.resource, target.name, replacement.counter)
        if refusal is not None:
            raise refusal

    async def _delete(self, action: DeleteObject) -> None:
        target = action.target
        try:
            body = {"preconditions": {"uid": target.uid}}
            answer = await self._client.delete(action.resource.path(target.namespace, target.name), body)
        except ApiError as error:
            if error.not_found or error.conflict:
                return
            raise
        answered: Json = msgspec.json.decode(answer)
        if answered.get("kind") == action.resource.kind and answered["metadata"].get("deletionTimestamp"):
            self._record_answer(action.resource, answer)
        self._log(action.event, action.resource, target.name, action.counter)

    def _record_answer(self, resource: Resource, answer: bytes) -> int:
        body: Json = msgspec.json.decode(answer)
        table = self._tables.get(resource)
        written: KubeObject[Any] = KubeObject(body, None) if table is None else table.record_write(body)
        return written.version

    def _log(self, event: str, resource: Resource, name: str, counter: str) -> None:
        if counter:
            self.counters[counter] += 1
        log.info(event, kind=resource.label, name=name)


def _with_type(resource: Resource, body: Json) -> Json:
    """The body with apiVersion and kind, which the items of a list lack."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _merge_fields(replacement: Replacement) -> Json:
    """The whole object, with its resourceVersion as a condition."""
    target = replacement.target
    metadata = {**target.metadata, "labels": {**target.labels, **replacement.labels}}
    return {**target.raw, "metadata": metadata, "spec": {**target.spec, **replacement.spec}}
