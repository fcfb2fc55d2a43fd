"""Writes the leader's address to the EndpointSlice of a Service. Each change: get, compare, write at the
resourceVersion that was compared; after a conflict all three again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from app.kube.client import ApiError, KubeClient, create_owned
from app.kube.resources import ENDPOINT_SLICES
from scheduler_core.convert.discovery import endpoint_slice, new_slice, update_slice, version_precondition
from scheduler_core.leadership.endpoint_slice import (
    EXTENDER,
    CreateSlice,
    DeleteSlice,
    Endpoint,
    LeaderService,
    Slice,
    SliceChange,
    plan_empty,
    plan_publish,
    plan_withdraw,
)

log = structlog.get_logger("publishing")

CALL_SECONDS: Final = 5.0
_TRIES: Final = 6


class EndpointPublisher:
    """Points a Service to this process's endpoint, and away from it. `leading` is called between the read that a write
    is based on and the write. So a process that has lost the lead cannot overwrite its successor: had the successor
    written before the read, this process would not lead; if it wrote later, the versions differ.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        endpoint: Endpoint,
        leading: Callable[[], bool],
        service: LeaderService = EXTENDER,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._endpoint = endpoint
        self._leading = leading
        self._service = service
        self._collection = ENDPOINT_SLICES.path(namespace)
        self._path = ENDPOINT_SLICES.path(namespace, service.name)

    async def publish(self) -> bool:
        """Points the Service here; returns whether it does, which it does not if this process does not lead any more.

        Raises:
            ApiError: the API server refused or did not answer; `conflict` if others kept changing the slice
        """
        return await self._apply(plan_publish, self._leading)

    async def withdraw(self) -> None:
        """Points the Service nowhere, unless it points to another process already.

        Raises:
            ApiError: as publish
        """
        await self._apply(plan_withdraw, lambda: True)

    async def empty(self) -> bool:
        """Points the Service nowhere, wherever it points; returns as publish.

        Raises:
            ApiError: as publish
        """
        return await self._apply(lambda service, _, current: plan_empty(service, current), self._leading)

    async def _apply(
        self, plan: Callable[[LeaderService, Endpoint, Slice | None], SliceChange | None], allowed: Callable[[], bool]
    ) -> bool:
        for tries_left in reversed(range(_TRIES)):
            raw = await self._get()
            current = None if raw is None else endpoint_slice(raw, self._service)
            change = plan(self._service, self._endpoint, current)
            if not allowed():
                return False
            if change is None:
                return True
            try:
                await self._write(change, raw)
            except ApiError as error:
                if not tries_left or not (error.conflict or error.not_found):
                    raise
                continue
            # A slice that was deleted is created in the next try.
            if not isinstance(change, DeleteSlice):
                addresses = [str(entry) for entry in change.desired.endpoints]
                log.info("the Service leads to", service=self._service.name, endpoints=addresses)
                return True
        raise ApiError(f"PUT {self._path}", 409, "Conflict", f"others changed it {_TRIES} times in a row")

    async def _get(self) -> bytes | None:
        try:
            return await self._client.get(self._path, seconds=CALL_SECONDS)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def _write(self, change: SliceChange, raw: bytes | None) -> None:
        if isinstance(change, CreateSlice):
            body = new_slice(self._namespace, self._service, change.desired)
            await create_owned(self._client, self._collection, self._namespace, body, CALL_SECONDS)
        elif raw is None:
            raise AssertionError("only a slice that was read is replaced or deleted")
        elif isinstance(change, DeleteSlice):
            await self._client.delete(self._path, version_precondition(raw), CALL_SECONDS)
        else:
            await self._client.replace(self._path, update_slice(raw, self._service, change.desired), CALL_SECONDS)
