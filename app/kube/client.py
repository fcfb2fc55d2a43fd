"""Calls to the Kubernetes API as bytes: the official client's connection (credentials, TLS, proxies), none of its models.

Decoding thousands of objects into the client's models takes seconds and blocks the event loop, so callers get the body
and decode it with msgspec. Every call has a time-out; every answer that is no success is an `ApiError` that says what was
asked, so that nobody has to look at a status code.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final
from weakref import WeakSet

import aiohttp
import msgspec
import yaml
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from app import DISTRIBUTION
from scheduler_core.errors import CoreError

CALL_SECONDS: Final = 10.0
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
_IN_CLUSTER: Final = "KUBERNETES_SERVICE_HOST"
_NO_QUERY: Final[Mapping[str, str]] = {}
_CONNECTIONS: Final = 100
# How long `close` waits for the event loop to let go of connections that are hung up: a few turns, unless it is busy.
_TURN_SECONDS: Final = 0.005
_MOST_TURNS: Final = 100
_DEFAULT_KUBECONFIG: Final = "~/.kube/config"
# What the client raises where credentials are missing or wrong; it also reads tokens and runs plugins before later calls.
_CREDENTIALS: Final = (config.ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
_BROKEN: Final = (TimeoutError, aiohttp.ClientError, OSError)


class ConnectError(CoreError):
    """There is no cluster to talk to: no kubeconfig, a broken one, or one that names no server."""


class ApiError(CoreError):
    """The API server refused a call, or did not answer.

    Attributes:
        status: the HTTP status; 0 when there was no answer
        reason: Kubernetes' machine-readable reason, such as ``Conflict``; "" if it gave none
    """

    def __init__(self, call: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{call}: {message}")
        self.status = status
        self.reason = reason

    @property
    def unreachable(self) -> bool:
        """Whether nothing answered, or nothing that knows: a later attempt may succeed."""
        return self.status == 0 or self.status >= 500 or self.status == 429

    @property
    def not_found(self) -> bool:
        """Whether the object, or its kind, does not exist."""
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Whether somebody else changed or created the object meanwhile."""
        return self.status == 409

    @property
    def forbidden(self) -> bool:
        """Whether this caller's RBAC, or its missing credentials, forbid the call."""
        return self.status in (401, 403)

    @property
    def gone(self) -> bool:
        """Whether a resource version or a continue token is too old."""
        return self.status == 410


class _Status(msgspec.Struct):
    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    path: str
    seconds: float
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class _Connections(RESTClientObject):
    """The client's pool, whose connections can all be hung up.

    On a TLS connection whose call was given up aiohttp says goodbye and forgets it, and asyncio waits 30 s for the server's
    goodbye. A server that hangs says none, so the pool is closed long before its connections are, perhaps its loop, too.
    """

    def __init__(self, settings: Configuration) -> None:
        super().__init__(settings)
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def close(self) -> None:
        await super().close()
        for one in self._sockets:
            # Closed meanwhile, or never connected: then there is nobody to hang up on.
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for _ in range(_MOST_TURNS):
            if all(one.fileno() < 0 for one in self._sockets):
                return
            await asyncio.sleep(_TURN_SECONDS)

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=self.maxsize, ssl=self.ssl_context, socket_factory=self._opened)

    def _opened(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened


class KubeClient:
    """One connection pool to one API server."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> KubeClient:
        """Reads credentials: the given kubeconfig, or a pod's own, or $KUBECONFIG, or ~/.kube/config.

        Raises:
            ConnectError: there are none, or they cannot be read
        """
        settings = Configuration()
        settings.connection_pool_maxsize = _CONNECTIONS
        try:
            if kubeconfig is None and context is None and os.environ.get(_IN_CLUSTER):
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            else:
                await _load_kubeconfig(settings, kubeconfig, context)
            api = ApiClient(settings)
            api.rest_client = _Connections(settings)
        except ConnectError:
            raise
        except _CREDENTIALS as error:
            raise ConnectError(f"no cluster to talk to: {_one_line(error)}; see --kubeconfig and --context") from error
        api.user_agent = f"{DISTRIBUTION}/{version(DISTRIBUTION)}"
        return cls(api)

    @property
    def server(self) -> str:
        """The API server's address."""
        return str(self._api.configuration.host)

    async def get(self, path: str, query: Mapping[str, str] = _NO_QUERY, seconds: float = CALL_SECONDS) -> bytes:
        """The body of one GET.

        Raises:
            ApiError: any answer but a success, or none within `seconds`
        """
        return await self._answer(_Call("GET", path, seconds, query))

    async def create(self, path: str, body: Mapping[str, Any], seconds: float = CALL_SECONDS) -> bytes:
        """POSTs an object; the body of the answer.

        Raises:
            ApiError: as get
        """
        return await self._answer(_Call("POST", path, seconds, body=body))

    async def replace(self, path: str, body: Mapping[str, Any], seconds: float = CALL_SECONDS) -> bytes:
        """PUTs an object; with a resourceVersion in it, only if nobody changed the object meanwhile.

        Raises:
            ApiError: as get; `conflict` if somebody did
        """
        return await self._answer(_Call("PUT", path, seconds, body=body))

    async def patch(
        self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH, seconds: float = CALL_SECONDS
    ) -> bytes:
        """PATCHes an object; the body of the answer.

        Raises:
            ApiError: as get
        """
        return await self._answer(_Call("PATCH", path, seconds, body=body, content_type=content_type))

    async def delete(self, path: str, body: Mapping[str, Any] | None = None, seconds: float = CALL_SECONDS) -> bytes:
        """DELETEs an object; `body` may hold DeleteOptions such as preconditions.

        Raises:
            ApiError: as get
        """
        return await self._answer(_Call("DELETE", path, seconds, body=body))

    @asynccontextmanager
    async def lines(self, path: str, query: Mapping[str, str], seconds: float) -> AsyncIterator[aiohttp.StreamReader]:
        """The answer of a watch as a stream, cut off after `seconds`; its beginning has to come as soon as any answer.

        Raises:
            ApiError: any answer but a success, or none; a stream that breaks later raises aiohttp's or asyncio's own errors
        """
        call = _Call("GET", path, seconds, query)
        begin = _Call("GET", path, min(seconds, CALL_SECONDS))
        try:
            async with asyncio.timeout(begin.seconds):
                response = await self._sent(call)
                if response.status != 200:
                    raise _refusal(call, response.status, await response.read())
        except _BROKEN as error:
            raise _silence(begin, error) from error
        try:
            yield response.content
        finally:
            response.close()

    async def close(self) -> None:
        """Closes every connection."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def _answer(self, call: _Call) -> bytes:
        response = await self._sent(call)
        try:
            data = await response.read()
        except _BROKEN as error:
            raise _silence(call, error) from error
        if not 200 <= response.status < 300:
            raise _refusal(call, response.status, data)
        return data

    async def _sent(self, call: _Call) -> aiohttp.ClientResponse:
        content = {} if call.body is None else {"Content-Type": call.content_type}
        try:
            request = await self._api.param_serialize(
                call.method,
                call.path,
                query_params=list(call.query.items()),
                header_params={"Accept": "application/json", **content},
                body=call.body,
                auth_settings=["BearerToken"],
            )
            answer = await self._api.call_api(*request, _request_timeout=call.seconds)
        except (*_BROKEN, *_CREDENTIALS) as error:
            raise _silence(call, error) from error
        response: aiohttp.ClientResponse = answer.response
        return response


async def _load_kubeconfig(settings: Configuration, kubeconfig: str | None, context: str | None) -> None:
    _check_exists(kubeconfig)
    settings.host = ""  # the client's default is this machine
    await config.load_kube_config(  # type: ignore[no-untyped-call]
        config_file=kubeconfig, context=context, client_configuration=settings, persist_config=False
    )
    if not settings.host:
        raise ConnectError("no cluster to talk to: the kubeconfig names no server; see --kubeconfig and --context")


def _check_exists(kubeconfig: str | None) -> None:
    """The client would go on with an empty configuration.

    Raises:
        ConnectError: none of the files that may hold credentials is there
    """
    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    files = named.split(os.pathsep) if named else [os.path.expanduser(_DEFAULT_KUBECONFIG)]  # noqa: PTH111 # as the client
    if not any(os.path.isfile(file) for file in files):  # noqa: PTH113
        raise ConnectError(
            f"no cluster to talk to: there is no file {' or '.join(files)}; give --kubeconfig, or set KUBECONFIG"
        )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _silence(call: _Call, error: Exception) -> ApiError:
    if isinstance(error, TimeoutError):
        return ApiError(str(call), 0, "", f"no answer within {call.seconds:g} s")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return ApiError(
            str(call), 0, "", f"the certificate of {error.host}:{error.port} is not trusted: {_cause(error)}"
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return ApiError(str(call), 0, "", f"cannot connect to {error.host}:{error.port}: {_cause(error)}")
    return ApiError(str(call), 0, "", _one_line(error))


def _cause(error: aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorError) -> str:
    """What went wrong, without the addresses of objects that aiohttp's own texts have."""
    cause = error.certificate_error if isinstance(error, aiohttp.ClientConnectorCertificateError) else error.os_error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)  # negative: of getaddrinfo
    return _one_line(cause)


def _refusal(call: _Call, status: int, body: bytes) -> ApiError:
    try:
        answer = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        answer = _Status()
    text = " ".join((answer.message or body[:200].decode(errors="replace")).split()) or "no explanation"
    return ApiError(str(call), status, answer.reason or "", f"{text} (HTTP {status})")
