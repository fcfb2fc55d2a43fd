"""An API server in memory, with the parts that decisions rely on: versions, merge patches, finalizers, admission, watches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from app.kube.client import ApiError
from simulator.tables import Store, Table

Json = dict[str, Any]
Admission = Callable[[Json, Json], Json]
"""Receives an object before and after a PUT; returns what is to be written, or raises an ApiError."""
_DELETED_AT = "2026-01-01T00:00:00Z"


class MemoryApi:
    """Stands in for KubeClient; the store gets every write at once, as from a watch without lag.

    Attributes:
        writes: how many writes succeeded
        admission: changes or refuses the PUTs of objects
    """

    def __init__(self, store: Store) -> None:
        self.writes = 0
        self.admission: Admission = lambda _, new: new
        self._held: list[Callable[[], None]] | None = None
        self.freed: list[Json] = []
        self._tables: dict[str, Table[Any, Any]] = {
            table.resource.plural + table.resource.group: table for table in store.tables
        }
        self._objects: dict[str, Json] = {}
        self._versions = itertools.count(1)

    async def create(self, path: str, body: Mapping[str, Any]) -> bytes:
        """POST."""
        full = f"{path}/{body['metadata']['name']}"
        if full in self._objects:
            raise ApiError(f"POST {path}", 409, "AlreadyExists", "exists")
        number = next(self._versions)
        metadata = {**body["metadata"], "uid": f"uid-{number}", "creationTimestamp": _DELETED_AT}
        return self._store(full, {**body, "metadata": metadata})

    async def patch(self, path: str, body: Mapping[str, Any]) -> bytes:
        """PATCH, of an object or its status, with the resourceVersion as a condition."""
        name, current = self._find(path)
        expected_version = body["metadata"].get("resourceVersion")
        if expected_version is not None and expected_version != current["metadata"]["resourceVersion"]:
            raise ApiError(f"PATCH {path}", 409, "Conflict", "the object has changed")
        return self._store(name, _merge(current, body))

    async def replace(self, path: str, body: Mapping[str, Any]) -> bytes:
        """PUT, of an object without its status, or of its status alone."""
        name, current = self._find(path)
        if body["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
            raise ApiError(f"PUT {path}", 409, "Conflict", "the object has changed")
        if path != name:
            return self._store(name, {**current, "status": body["status"]})
        status = {"status": current["status"]} if "status" in current else {}
        wanted = {**{key: value for key, value in body.items() if key != "status"}, **status}
        return self._store(name, self.admission(current, wanted))

    async def delete(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """DELETE: at once, or when the last finalizer goes."""
        name, current = self._find(path)
        uid = ((body or {}).get("preconditions") or {}).get("uid")
        if uid not in (None, current["metadata"]["uid"]):
            raise ApiError(f"DELETE {path}", 409, "Conflict", "another object")
        return self._store(name, _merge(current, {"metadata": {"deletionTimestamp": _DELETED_AT}}))

    def hold_watches(self) -> None:
        """Holds back all events until `release_watches`."""
        self._held = []

    def release_watches(self) -> None:
        """Delivers the events that were held back, in their order."""
        events = self._held or []
        self._held = None
        for deliver in events:
            deliver()

    def _find(self, path: str) -> tuple[str, Json]:
        name = path.removesuffix("/status")
        if name not in self._objects:
            raise ApiError(path, 404, "NotFound", "not found")
        return name, self._objects[name]

    def _store(self, name: str, body: Json) -> bytes:
        self.writes += 1
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(next(self._versions))}}
        answer = msgspec.json.encode(body)
        table = self._table(name)
        key, value = table.decode(answer)
        if body["metadata"].get("deletionTimestamp") and not body["metadata"].get("finalizers"):
            self._objects.pop(name, None)
            self.freed.append(body)
            self._deliver(lambda: table.change(key, None))
        else:
            self._objects[name] = body
            self._deliver(lambda: table.change(key, value))
        return answer

    def _deliver(self, event: Callable[[], None]) -> None:
        if self._held is None:
            event()
        else:
            self._held.append(event)

    def _table(self, name: str) -> Table[Any, Any]:
        parts = name.split("/")
        group = parts[2] if parts[1] == "apis" else ""
        return self._tables[parts[-2] + group]


def _merge(base: Json, patch: Mapping[str, Any]) -> Json:
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            nested = merged.get(key)
            merged[key] = _merge(nested if isinstance(nested, dict) else {}, value)
        else:
            merged[key] = value
    return merged
