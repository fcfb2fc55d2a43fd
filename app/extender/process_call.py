"""Calls of the extender's own processes, as an administrator, through the API server's pod proxy, which works with
every kubeconfig. Where that cannot reach them, such as on a loopback address, one of them may be called directly.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import aiohttp

from app.extender.scheduler_reader import EXTENDER_PODS, read_service
from app.kube.client import ApiError, KubeClient
from app.kube.paging import pages
from app.kube.resources import LEASES, PODS
from app.settings import NO_BROWSER
from scheduler_core.convert.installed_objects import installed_pod
from scheduler_core.convert.leadership import lease
from scheduler_core.errors import CoreError
from scheduler_core.installation.facts import leading_pod
from scheduler_core.leadership.endpoint_slice import EXTENDER
from scheduler_core.model.installation import InstalledPod

_TIMEOUT: Final = 10.0
_HEADERS: Final = {NO_BROWSER: "command"}
# A URL may lead to another server. The extender's own answers have at most some MB.
_MAX_BODY: Final = 64 * 2**20
# GETs a path, such as "state", and returns the body; raises ApiError for every other answer than 200.
Ask = Callable[[str], Awaitable[bytes]]


def proxy_call(client: KubeClient, pod: InstalledPod, scheme: str = "http", port: int = 0) -> Ask:
    """Returns what calls a process through the API server, by default at its port for HTTP."""
    path = PODS.path(pod.namespace, f"{scheme}:{pod.name}:{port or pod.port or EXTENDER.port}", "proxy").replace(
        "%3A", ":"
    )

    async def ask(where: str) -> bytes:
        # The API server passes its own name on as Host.
        return await client.get(f"{path}/{where}", seconds=_TIMEOUT, headers=_HEADERS)

    return ask


@dataclass(frozen=True, slots=True)
class CallerFiles:
    """What a caller of an extender with TLS needs: `tlsConfig` of the file that registers the extender."""

    ca: str = ""  # authorities of the extender's certificate, "" for those of the system
    certificate: str = ""  # of the caller, "" for none
    private_key: str = ""  # of the caller, "" for none
    server_name: str = ""  # the name in the extender's certificate, "" for the host of the URL

    def context(self) -> ssl.SSLContext:
        """Returns what connections use.

        Raises:
            CoreError: a file cannot be read, or the key is not that of the certificate
        """
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except OSError as error:
            raise CoreError(f"--ca-file {self.ca}: {_file_problem(error, 'holds no certificate')}") from error
        if self.certificate:
            try:
                # Without a password OpenSSL would ask for that of an encrypted key on the terminal.
                context.load_cert_chain(self.certificate, self.private_key, password="")
            except OSError as error:
                problem = _file_problem(error, "are no certificate and its key")
                raise CoreError(f"--cert-file {self.certificate}, --key-file {self.private_key}: {problem}") from error
        return context


def _file_problem(error: OSError, unusable: str) -> str:
    """Returns why a file cannot be used; `unusable` says what is wrong with one that can be read."""
    return unusable if isinstance(error, ssl.SSLError) else f"cannot be read: {error.strerror}"


def direct_call(url: str, files: CallerFiles | None = None) -> Ask:
    """Returns what calls a process at a URL.

    Raises:
        CoreError: a file of `files` cannot be used
    """
    files = files or CallerFiles()
    context = files.context()
    server_name = files.server_name or None

    async def ask(where: str) -> bytes:
        timeout = aiohttp.ClientTimeout(_TIMEOUT)
        call = f"GET {url.rstrip('/')}/{where}"
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=_HEADERS) as session,
                session.get(call[4:], ssl=context, server_hostname=server_name) as response,
            ):
                body = await _body(call, response)
                if response.status != 200:
                    raise ApiError(call, response.status, "", body[:200].decode(errors="replace"))
                return body
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            problem = " ".join(str(error).split()) or "no answer"
            # A server with TLS says no more to a caller whose certificate it refuses.
            ended = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError))
            if ended and not isinstance(error, aiohttp.ClientConnectorError) and url.startswith("https://"):
                problem += "; it may require a certificate, or another one: docs/tls.md"
            raise ApiError(call, 0, "", problem) from error

    return ask


async def _body(call: str, response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_BODY:
            raise ApiError(call, response.status, "", f"the answer has more than {_MAX_BODY} bytes")
    return bytes(body)


async def leader_call(client: KubeClient, namespace: str) -> Ask:
    """Returns what calls the leader through the API server.

    Raises:
        ApiError: the API server does not answer, or refuses
        CoreError: no pod leads, or the leader answers callers with a certificate only, and the API server has none
    """
    service = await read_service(client, namespace)
    if service is not None and service.tls:
        raise CoreError(
            f"the extender in namespace {namespace} requires TLS, and the API server has no certificate to show; see --url, "
            "--ca-file, --cert-file, --key-file and docs/tls.md"
        )
    pods = [
        installed_pod(raw) async for page in pages(client, PODS.path(namespace), EXTENDER_PODS) for raw in page.items
    ]
    leader = leading_pod([pod for pod in pods if pod.live], await _lease_holder(client, namespace))
    if leader is None:
        raise CoreError(
            f"no pod in namespace {namespace} leads the extender; see --longhorn-namespace, --url and `longhorn-extender doctor`"
        )
    return proxy_call(client, leader)


async def _lease_holder(client: KubeClient, namespace: str) -> str:
    try:
        return lease(await client.get(LEASES.path(namespace, EXTENDER.name))).holder
    except ApiError as error:
        if error.not_found:
            return ""
        raise
