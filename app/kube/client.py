"""Calls to the Kubernetes API that return the body as bytes.

Credentials, TLS and proxies come from the official client, but none of its models: decoding thousands of objects into them takes
seconds and blocks the event loop. Callers decode the body with msgspec.

Collections are listed page by page (`pages`); their objects stay undecoded. Every call has a time-out. Every response that is no success raises an `ApiError`, which names the call and has a property for each
kind of failure, so that callers need no status codes.

An object that the process's ServiceAccount owns goes with it (`create_owned`). An existing object keeps the owners that it has: to
change them may need permissions that the process does not have (admission plugin OwnerReferencesPermissionEnforcement).
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from time import monotonic
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import aiohttp
import msgspec
import yaml
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from app import DISTRIBUTION
from app.kube.answer_memory import AnswerMemory, AnswerTooLargeError
from scheduler_core import backoff, errors
from scheduler_core.convert.leadership import SELF_REVIEW, owner_references, with_owners
from scheduler_core.structs import Struct

CALL_TIMEOUT = 10.0
# As in client-go's pager.
PAGE_SIZE = 500
LIST_TIMEOUT = 60.0
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

_NONE: Mapping[str, str] = {}
_MAX_CONNECTIONS = 100
# How often `close` checks whether the event loop has closed the sockets that were shut down: a few times, unless the loop is busy.
_CLOSE_CHECK_INTERVAL = 0.005
_MAX_CLOSE_CHECKS = 100
# Raised by the client for missing or wrong credentials; it also reads tokens and runs plugins before later calls.
_CREDENTIAL_ERRORS = (config.ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
_CONNECTION_ERRORS = (TimeoutError, aiohttp.ClientError, OSError)


class ConnectError(errors.CoreError):
    """There is no cluster to connect to: the kubeconfig is missing, cannot be used, or names no server."""


class ApiError(errors.CoreError):
    """The API server refused a call, or did not answer."""

    def __init__(self, call: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{call}: {message}")
        self.status = status  # the HTTP status; 0 without an answer
        self.reason = reason  # Kubernetes' machine-readable reason, such as ``Conflict``; "" if there is none

    @property
    def unreachable(self) -> bool:
        """Whether the API server could not answer, so a retry may succeed."""
        return self.status == 0 or self.status >= 500 or self.status == 429

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        return self.status == 409

    @property
    def forbidden(self) -> bool:
        return self.status in (401, 403)


class CallLimits(Struct, frozen=True):
    """How many calls a client makes, as in kube-scheduler's ``clientConnection``, whose defaults these are."""

    qps: float = 50.0  # calls per second in the long run
    burst: int = 100  # calls at once after a pause


class _Status(msgspec.Struct):
    reason: str | None = None
    message: str | None = None


class _Call(Struct, frozen=True):
    method: str
    path: str
    seconds: float
    query: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class _ConnectionPool(RESTClientObject):
    """The client's connection pool, whose `close` also shuts down every socket.

    When a call on a TLS connection is cancelled, aiohttp sends close_notify and drops the connection from its pool, and asyncio waits
    30 s for the server's close_notify. A server that hangs sends none, so the connections would outlive the pool, perhaps even the
    event loop.

    The environment's proxy is looked up once. With trust_env, aiohttp would look for it, and for a .netrc file, before every call, each in a
    thread, which takes as much processor time as the rest of the call.
    """

    def __init__(self, settings: Configuration) -> None:
        super().__init__(settings)
        self.proxy = self.proxy or _environment_proxy(settings.host)
        settings.client_session_kwargs = {"trust_env": False}
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def close(self) -> None:
        await super().close()
        for entry in self._sockets:
            # A socket that is closed already, or was never connected, cannot be shut down.
            with suppress(OSError):
                entry.shutdown(socket.SHUT_RDWR)
        for _ in range(_MAX_CLOSE_CHECKS):
            if all(entry.fileno() < 0 for entry in self._sockets):
                return
            await asyncio.sleep(_CLOSE_CHECK_INTERVAL)

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=self.maxsize, ssl=self.ssl_context, socket_factory=self._open_socket)

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        new_socket = socket.socket(family, kind, protocol)
        self._sockets.add(new_socket)
        return new_socket


class KubeClient:
    """A connection pool to one API server.

    Args:
        limits: how many calls are made, as client-go's clients limit themselves; None: no limit
    """

    def __init__(self, api: ApiClient, limits: CallLimits | None = None, memory: AnswerMemory | None = None) -> None:
        self._api = api
        self.memory = memory or AnswerMemory()  # for answers
        self._limits = limits
        self._bucket = None if limits is None else backoff.TokenBucket(limits.qps, limits.burst)

    def with_own_limits(self) -> "KubeClient":
        """Returns a client of the same connections, whose calls are counted on their own."""
        return KubeClient(self._api, self._limits, self.memory)

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        limits: CallLimits | None = None,
        memory: int | None = None,
    ) -> "KubeClient":
        """Reads the credentials and returns a client. Credentials come from the given kubeconfig or context; else from
        the pod's service account; else from $KUBECONFIG or ~/.kube/config. Raises a ConnectError if there are no
        credentials, or they cannot be read.
        """
        settings = Configuration()
        settings.connection_pool_maxsize = _MAX_CONNECTIONS
        try:
            if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
                config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            else:
                await _load_kubeconfig(settings, kubeconfig, context)
            api = ApiClient(settings)
            api.rest_client = _ConnectionPool(settings)
        except ConnectError:
            raise
        except _CREDENTIAL_ERRORS as error:
            raise ConnectError(f"no cluster to talk to: {one_line(error)}; see --kubeconfig and --context") from error
        api.user_agent = f"{DISTRIBUTION}/{version(DISTRIBUTION)}"
        return cls(api, limits, AnswerMemory(memory))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def server(self) -> str:
        return str(self._api.configuration.host)

    async def get(
        self,
        path: str,
        query: Mapping[str, str] = _NONE,
        seconds: float = CALL_TIMEOUT,
        headers: Mapping[str, str] = _NONE,
    ) -> bytes:
        """GETs an object or a list; returns the body of the response. Raises an ApiError unless the
        response is a success, and comes within `seconds`.
        """
        return await self._request(_Call("GET", path, seconds, query, headers=headers))

    async def find(self, path: str, seconds: float = CALL_TIMEOUT) -> bytes | None:
        """Returns an object, None if it does not exist; raises as `get`."""
        try:
            return await self.get(path, seconds=seconds)
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def create(self, path: str, body: Mapping[str, Any], seconds: float = CALL_TIMEOUT) -> bytes:
        return await self._request(_Call("POST", path, seconds, body=body))

    async def replace(self, path: str, body: Mapping[str, Any], seconds: float = CALL_TIMEOUT) -> bytes:
        """PUTs an object; returns the body of the response. Raises an ApiError as `get` does; `conflict` if the body
        has a resourceVersion and the object has changed since.
        """
        return await self._request(_Call("PUT", path, seconds, body=body))

    async def patch(
        self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH, seconds: float = CALL_TIMEOUT
    ) -> bytes:
        return await self._request(_Call("PATCH", path, seconds, body=body, content_type=content_type))

    async def delete(self, path: str, body: Mapping[str, Any] | None = None, seconds: float = CALL_TIMEOUT) -> bytes:
        """DELETEs an object; returns the body of the response. `body` may hold DeleteOptions such as preconditions.
        Raises an ApiError as `get` does.
        """
        return await self._request(_Call("DELETE", path, seconds, body=body))

    @asynccontextmanager
    async def watch(self, path: str, query: Mapping[str, str], seconds: float) -> AsyncIterator[aiohttp.StreamReader]:
        """Opens a watch and provides its events as a stream. The response must begin within `CALL_TIMEOUT`, and the
        stream is cut off after `seconds`. A stream that breaks raises aiohttp's or asyncio's own errors. Raises an
        ApiError unless the response is a success.
        """
        call = _Call("GET", path, seconds, query)
        opening = _Call("GET", path, min(seconds, CALL_TIMEOUT))
        try:
            async with asyncio.timeout(opening.seconds):
                response = await self._send(call)
                if response.status != 200:
                    raise _status_error(call, response.status, await self.memory.read(response))
        except (*_CONNECTION_ERRORS, AnswerTooLargeError) as error:
            raise _connection_error(opening, error) from error
        try:
            yield response.content
        finally:
            response.close()

    async def close(self) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def _request(self, call: _Call) -> bytes:
        response = await self._send(call)
        try:
            body = await self.memory.read(response)
        except (*_CONNECTION_ERRORS, AnswerTooLargeError) as error:
            raise _connection_error(call, error) from error
        if not 200 <= response.status < 300:
            raise _status_error(call, response.status, body)
        return body

    async def _send(self, call: _Call) -> aiohttp.ClientResponse:
        if self._bucket is not None:
            now = monotonic()
            ready_at = max(now, self._bucket.ready_at)
            # Taken before the wait, so that a later call waits for the next token.
            self._bucket = self._bucket.after(ready_at)
            if ready_at > now:
                await asyncio.sleep(ready_at - now)
        content_type = {} if call.body is None else {"Content-Type": call.content_type}
        try:
            # The body is JSON already. Given to param_serialize, it would be copied value by value in search of models.
            method, url, headers, _, _ = await self._api.param_serialize(
                call.method,
                call.path,
                query_params=list(call.query.items()),
                header_params={"Accept": "application/json", **content_type, **call.headers},
                auth_settings=["BearerToken"],
            )
            result = await self._api.call_api(method, url, headers, call.body, _request_timeout=call.seconds)
        except (*_CONNECTION_ERRORS, *_CREDENTIAL_ERRORS) as error:
            raise _connection_error(call, error) from error
        response: aiohttp.ClientResponse = result.response
        return response


def _environment_proxy(server: str) -> str | None:
    """Returns the proxy that HTTPS_PROXY or HTTP_PROXY names for a server, None if NO_PROXY excludes it."""
    address = urlsplit(server)
    return None if proxy_bypass(address.netloc) else getproxies().get(address.scheme)


async def _load_kubeconfig(settings: Configuration, kubeconfig: str | None, context: str | None) -> None:
    _check_exists(kubeconfig)
    # Without this the client connects to this machine.
    settings.host = ""
    await config.load_kube_config(  # type: ignore[no-untyped-call]
        config_file=kubeconfig, context=context, client_configuration=settings, persist_config=False
    )
    if not settings.host:
        raise ConnectError("no cluster to talk to: the kubeconfig names no server; see --kubeconfig and --context")


def _check_exists(kubeconfig: str | None) -> None:
    # Without a file the client would use an empty configuration.
    paths = kubeconfig or os.environ.get("KUBECONFIG", "")
    files = paths.split(os.pathsep) if paths else [os.path.expanduser("~/.kube/config")]  # noqa: PTH111 # as the client
    if not any(os.path.isfile(file) for file in files):  # noqa: PTH113
        raise ConnectError(
            f"no cluster to talk to: there is no file {' or '.join(files)}; give --kubeconfig, or set KUBECONFIG"
        )


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _connection_error(call: _Call, error: Exception) -> ApiError:
    match error:
        case TimeoutError():
            text = f"no answer within {call.seconds:g} s"
        case aiohttp.ClientConnectorCertificateError():
            cause = _cause(error.certificate_error)
            text = f"the certificate of {error.host}:{error.port} is not trusted: {cause}"
        case aiohttp.ClientConnectorError():
            text = f"cannot connect to {error.host}:{error.port}: {_cause(error.os_error)}"
        case _:
            text = one_line(error)
    return ApiError(str(call), 0, "", text)


def _cause(cause: Exception) -> str:
    # aiohttp's own texts contain the addresses of Python objects.
    if isinstance(cause, ssl.SSLCertVerificationError):
        return cause.verify_message
    if isinstance(cause, OSError) and cause.errno:
        # getaddrinfo's errors have negative numbers, which strerror does not know.
        return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
    return one_line(cause)


def _status_error(call: _Call, status: int, body: bytes) -> ApiError:
    try:
        details = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        details = _Status()
    text = " ".join((details.message or body[:200].decode(errors="replace")).split()) or "no explanation"
    return ApiError(str(call), status, details.reason or "", f"{text} (HTTP {status})")


class _Metadata(msgspec.Struct, rename={"resource_version": "resourceVersion", "next": "continue"}):
    resource_version: str = ""
    next: str | None = None


class _List(msgspec.Struct):
    metadata: _Metadata
    items: list[msgspec.Raw] | None = None


class Page(Struct, frozen=True):
    """One page of a list, valid until the next page is requested."""

    items: list[msgspec.Raw]
    resource_version: str  # the list's resourceVersion; a watch begins at that of the last page


async def pages(client: KubeClient, path: str, query: Mapping[str, str] = _NONE) -> AsyncIterator[Page]:
    """Yields a collection page by page. Raises an ApiError as `get` does, and if the answer is no list."""
    token = ""
    objects = 0
    while True:
        page = await _page(client, path, {**query, "limit": str(PAGE_SIZE), **({"continue": token} if token else {})})
        yield Page(page.items or [], page.metadata.resource_version)
        token = page.metadata.next or ""
        if not token:
            return
        objects += len(page.items or [])
        try:
            client.memory.check(objects)
        except AnswerTooLargeError as error:
            raise ApiError(f"GET {path}", 0, "", str(error)) from error


async def newest_version(client: KubeClient, path: str, query: Mapping[str, str] = _NONE) -> str:
    """Returns a collection's resourceVersion, which includes everything before this call. Raises as `pages` does."""
    return (await _page(client, path, {**query, "limit": "1"})).metadata.resource_version


async def _page(client: KubeClient, path: str, query: Mapping[str, str]) -> _List:
    body = await client.get(path, query, LIST_TIMEOUT)
    try:
        return msgspec.json.decode(body, type=_List)
    except msgspec.DecodeError as error:
        raise ApiError(f"GET {path}", 200, "", f"the answer is no list of objects: {error}") from error


_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def create_owned(client: KubeClient, path: str, namespace: str, body: Mapping[str, Any], seconds: float) -> bytes:
    """POSTs an object that the process's ServiceAccount owns, and returns and raises as `KubeClient.create`. Without a
    ServiceAccount in `namespace` the object has no owner. Each of the two calls takes at most half of `seconds`.
    """
    owners = await _owners(client, namespace, seconds / 2)
    if owners:
        body = with_owners(body, owners)
    return await client.create(path, body, seconds / 2)


async def _owners(client: KubeClient, namespace: str, seconds: float) -> list[dict[str, str]]:
    try:
        return owner_references(await client.create(_REVIEWS, SELF_REVIEW, seconds), namespace)
    except ApiError as error:
        # An administrator may have taken this right from authenticated users. An object without an owner is better than none.
        if error.forbidden or error.not_found:
            return []
        raise
