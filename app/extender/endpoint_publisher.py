"""The leader's address in the EndpointSlice of the Service.

Each change: get, compare, write at the version compared; on conflict look again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.resources import ENDPOINT_SLICES
from scheduler_core.convert.discovery import changed_slice, endpoint_slice, new_slice, this_version
from scheduler_core.leadership import endpoint_slice as endpoints
from scheduler_core.leadership.endpoint_slice import Change, Create, Delete, Endpoint, Slice

log = structlog.get_logger("publishing")

CALL_SECONDS: Final = 5.0
_TRIES: Final = 6


class Publisher:
    """Points the Service to this process, and away from it.

    `leading` is asked between the read that a write is based on and the write. So a process that has lost the lead cannot
    overwrite its successor: had the successor written before the read, this one would not be leading; if it wrote after,
    the versions differ.

    Raises:
        CoreError: address or port are none that an EndpointSlice can hold
    """

    def __init__(  # noqa: PLR0913 # the endpoint's parts, as the command line has them
        self,
        client: KubeClient,
        namespace: str,
        address: str,
        port: int,
        node_name: str,
        *,
        leading: Callable[[], bool],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._leading = leading
        self._me = Endpoint.at(address, port, node_name)
        self._collection = ENDPOINT_SLICES.path(namespace)
        self._path = ENDPOINT_SLICES.path(namespace, endpoints.NAME)

    async def publish(self) -> bool:
        """Makes the Service lead here. Returns whether it does: False if this process is not the leader any more.

        Raises:
            ApiError: the API server refused or did not answer; `conflict` if others kept changing the slice
        """
        return await self._bring_about(endpoints.publish, self._leading)

    async def withdraw(self) -> None:
        """Makes the Service lead nowhere, unless it leads somewhere else already.

        Raises:
            ApiError: as publish
        """
        await self._bring_about(endpoints.withdraw, lambda: True)

    async def _bring_about(
        self, compare: Callable[[Endpoint, Slice | None], Change | None], allowed: Callable[[], bool]
    ) -> bool:
        for left in reversed(range(_TRIES)):
            raw = await self._get()
            change = compare(self._me, None if raw is None else endpoint_slice(raw))
            if not allowed():
                return False
            if change is None:
                return True
            try:
                await self._write(change, raw)
            except ApiError as error:
                if not left or not (error.conflict or error.not_found):
                    raise
            else:
                if not isinstance(change, Delete):
                    log.info("the Service leads to", endpoints=[str(entry) for entry in change.wanted.endpoints])
                    return True
        raise ApiError(f"PUT {self._path}", 409, "Conflict", f"others changed it {_TRIES} times in a row")

    async def _get(self) -> bytes | None:
        try:
            return await self._client.get(self._path, seconds=CALL_SECONDS)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def _write(self, change: Change, raw: bytes | None) -> None:
        if isinstance(change, Create):
            body = new_slice(self._namespace, endpoints.NAME, change.wanted)
            await self._client.create(self._collection, body, CALL_SECONDS)
        elif raw is None:
            raise AssertionError("only a slice that was read is replaced or deleted")
        elif isinstance(change, Delete):
            await self._client.delete(self._path, this_version(raw), CALL_SECONDS)
        else:
            await self._client.replace(self._path, changed_slice(raw, change.wanted), CALL_SECONDS)
