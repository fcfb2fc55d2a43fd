"""What a diagnosis calls: how kube-scheduler runs and where it can call the extender, the extender's own processes, and a
probe, which is a pod that fits nowhere and shows kube-scheduler's answer.

Processes are called as an administrator, through the API server's pod proxy, which works with every kubeconfig. Where that cannot reach
them, such as on a loopback address, one of them may be called directly.

Data flow of the probe: StorageClass, namespace, claim and pod are created → the pod and its claim are read until kube-scheduler has said
something, or chosen a node → everything is deleted, whatever happened.
"""

import asyncio
import secrets
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aiohttp
import msgspec

from app.kube import resources
from app.kube.client import ApiError, KubeClient, pages
from app.settings import NO_BROWSER
from scheduler_core import errors
from scheduler_core.convert import installed_objects, leadership
from scheduler_core.installation.facts import ProbeResult, leading_pod
from scheduler_core.installation.kube_scheduler_config import SchedulerFlags, flags
from scheduler_core.leadership.endpoint_slice import EXTENDER
from scheduler_core.longhorn.csi_driver import DRIVER
from scheduler_core.model.installation import DEFAULT_SCHEDULER, InstalledPod, ServiceAddress
from scheduler_core.structs import Struct

EXTENDER_PODS = {"labelSelector": f"app.kubernetes.io/name={EXTENDER.name}"}
# kubeadm and RKE2 label their static pods so, which the kubelet mirrors.
_STATIC_POD = {"labelSelector": "component=kube-scheduler"}
_NAMESPACE = "kube-system"
_VERSION = "/version"
_Value = TypeVar("_Value")


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""
    emulation_major: str = ""
    emulation_minor: str = ""

    @property
    def text(self) -> str:
        """The version or, for a build without one, the version whose behaviour it has."""
        unversioned = self.git_version.startswith("v0.0.0") and self.emulation_major
        return f"v{self.emulation_major}.{self.emulation_minor}" if unversioned else self.git_version


async def read_version(client: KubeClient) -> str:
    return msgspec.json.decode(await client.get(_VERSION), type=_Version).text


async def read_service(client: KubeClient, namespace: str) -> ServiceAddress | None:
    """Returns where the extender's Service is reached, None without one. Raises an ApiError if it may not be read, or
    the API server does not answer.
    """
    raw = await client.find(resources.SERVICES.path(namespace, EXTENDER.name))
    return installed_objects.service_address(raw) if raw is not None else None


async def read_loopback_port(client: KubeClient, namespace: str) -> int | None:
    """Returns the port of an extender that listens on loopback alone, None if it listens on other addresses, or pods
    may not be read. Raises an ApiError if the API server does not answer.
    """
    pods = await _permitted_pods(client, namespace, EXTENDER_PODS, installed_objects.installed_pod)
    return next((pod.port or EXTENDER.port for pod in pods if pod.live and pod.on_loopback), None)


async def read_scheduler_flags(client: KubeClient) -> SchedulerFlags:
    """Returns the flags of kube-scheduler's static pod, all empty where it is no pod, or pods may not be read. Raises
    an ApiError if the API server does not answer.
    """
    lines = await _permitted_pods(client, _NAMESPACE, _STATIC_POD, installed_objects.command_line)
    return flags(lines[0]) if lines else SchedulerFlags()


async def _permitted_pods(
    client: KubeClient, namespace: str, query: dict[str, str], convert: Callable[[msgspec.Raw], _Value]
) -> list[_Value]:
    try:
        return await _pods(client, namespace, query, convert)
    except ApiError as error:
        if not error.forbidden:
            raise
        return []


async def _pods(
    client: KubeClient, namespace: str, query: dict[str, str], convert: Callable[[msgspec.Raw], _Value]
) -> list[_Value]:
    path = resources.PODS.path(namespace)
    return [convert(raw) async for page in pages(client, path, query) for raw in page.items]


_TIMEOUT = 10.0
_HEADERS = {NO_BROWSER: "command"}
# A URL may lead to another server. The extender's own answers have at most some MB.
_MAX_BODY = 64 * 2**20
# GETs a path, such as "state", and returns the body; raises ApiError for every other answer than 200.
Ask = Callable[[str], Awaitable[bytes]]


def proxy_call(client: KubeClient, pod: InstalledPod, scheme: str = "http", port: int = 0) -> Ask:
    """Returns what calls a process through the API server, by default at its port for HTTP."""
    path = resources.PODS.path(
        pod.namespace, f"{scheme}:{pod.name}:{port or pod.port or EXTENDER.port}", "proxy"
    ).replace("%3A", ":")

    async def ask(where: str) -> bytes:
        # The API server passes its own name on as Host.
        return await client.get(f"{path}/{where}", seconds=_TIMEOUT, headers=_HEADERS)

    return ask


def direct_call(url: str, ca: str = "", certificate: str = "", private_key: str = "", server_name: str = "") -> Ask:
    """Returns what calls a process at a URL. Raises a CoreError if a file cannot be read, or the key is not that of the
    certificate. What a caller of an extender with TLS needs is in `tlsConfig` of the file that registers the extender.

    Args:
        url: of the process
        ca: file with authorities of the extender's certificate, "" for those of the system
        certificate: file with that of the caller, "" for none
        private_key: file with that of the caller, "" for none
        server_name: the name in the extender's certificate, "" for the host of the URL
    """
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise errors.CoreError(f"--ca-file {ca}: {_file_problem(error, 'holds no certificate')}") from error
    try:
        if certificate:
            # Without a password OpenSSL would ask for that of an encrypted key on the terminal.
            context.load_cert_chain(certificate, private_key, password="")
    except OSError as error:
        problem = _file_problem(error, "are no certificate and its key")
        raise errors.CoreError(f"--cert-file {certificate}, --key-file {private_key}: {problem}") from error

    async def ask(where: str) -> bytes:
        timeout = aiohttp.ClientTimeout(_TIMEOUT)
        call = f"GET {url.rstrip('/')}/{where}"
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=_HEADERS) as session,
                session.get(call[4:], ssl=context, server_hostname=server_name or None) as response,
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


def _file_problem(error: OSError, unusable: str) -> str:
    """Returns why a file cannot be used; `unusable` says what is wrong with one that can be read."""
    return unusable if isinstance(error, ssl.SSLError) else f"cannot be read: {error.strerror}"


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
        raise errors.CoreError(
            f"the extender in namespace {namespace} requires TLS, and the API server has no certificate to show; see --url, "
            "--ca-file, --cert-file, --key-file and docs/tls.md"
        )
    pods = await _pods(client, namespace, EXTENDER_PODS, installed_objects.installed_pod)
    raw = await client.find(resources.LEASES.path(namespace, EXTENDER.name))
    leader = leading_pod([pod for pod in pods if pod.live], leadership.lease(raw).holder if raw is not None else "")
    if leader is None:
        raise errors.CoreError(
            f"no pod in namespace {namespace} leads the extender; see --longhorn-namespace, --url and `longhorn-extender doctor`"
        )
    return proxy_call(client, leader)


_INTERVAL = 0.25
# Until the controllers have made the ServiceAccount of a new namespace.
_ACCOUNT_TIMEOUT = 20.0
_DELETE_TIMEOUT = 10.0


class ProbeOptions(Struct, frozen=True):
    """How to probe."""

    namespace: str = ""  # an existing namespace; "": one of its own, which is removed
    scheduler_name: str = ""  # spec.schedulerName of the pod; "": that of a new pod with a claim
    seconds: float = 30.0  # how long to wait for kube-scheduler
    warn: Callable[[str], None] = lambda _: None  # receives what could not be removed
    requests_extender: bool = True  # whether the pod requests the extender's resource


class Probe:
    """One probe pod and what it needs, all with one name that no other object has."""

    def __init__(self, client: KubeClient, options: ProbeOptions) -> None:
        self._client = client
        self._options = options
        self._name = f"{installed_objects.TAG}-{secrets.token_hex(4)}"
        self._namespace = options.namespace or self._name
        self._created: list[tuple[resources.Resource, str]] = []

    async def run(self) -> ProbeResult:
        """Returns what kube-scheduler does with the pod."""
        try:
            await self._create_all()
            return await self._observe()
        except errors.CoreError as error:
            return ProbeResult(problem=str(error))
        finally:
            await self._remove_despite_signals()

    async def _create_all(self) -> None:
        name = self._name
        if not self._options.namespace:
            await self._create(resources.NAMESPACES, "", installed_objects.probe_namespace(name))
        await self._create(resources.STORAGE_CLASSES, "", installed_objects.probe_class(name, DRIVER))
        await self._create(resources.CLAIMS, self._namespace, installed_objects.probe_claim(name))
        options = self._options
        pod = installed_objects.probe_pod(
            name, options.scheduler_name or DEFAULT_SCHEDULER, requests_extender=options.requests_extender
        )
        deadline = asyncio.get_running_loop().time() + _ACCOUNT_TIMEOUT
        while True:
            try:
                await self._create(resources.PODS, self._namespace, pod)
            except ApiError as error:
                if "serviceaccount" not in str(error) or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_INTERVAL)
            else:
                return

    async def _create(self, resource: resources.Resource, namespace: str, body: dict[str, object]) -> None:
        # Noted before: an answer may be lost, and a name that does not exist is deleted without harm.
        if (resource, namespace) not in self._created:
            self._created.append((resource, namespace))
        await self._client.create(resource.path(namespace), body)

    async def _observe(self) -> ProbeResult:
        deadline = asyncio.get_running_loop().time() + self._options.seconds
        while True:
            progress = installed_objects.pod_progress(
                await self._client.get(resources.PODS.path(self._namespace, self._name))
            )
            node = progress.node or installed_objects.selected_node(
                await self._client.get(resources.CLAIMS.path(self._namespace, self._name))
            )
            if node or progress.message or asyncio.get_running_loop().time() > deadline:
                return ProbeResult(message="" if node else progress.message, node=node)
            await asyncio.sleep(_INTERVAL)

    async def _remove_despite_signals(self) -> None:
        """Deletes what was created; a cancellation takes effect afterwards."""
        removal = asyncio.create_task(self._remove_all())
        cancellation: asyncio.CancelledError | None = None
        while not removal.done():
            # A shielded task alone would end with the event loop.
            try:
                await asyncio.shield(removal)
            except asyncio.CancelledError as error:
                cancellation = error
        if cancellation is not None:
            raise cancellation

    async def _remove_all(self) -> None:
        for resource, namespace in reversed(self._created):
            try:
                await self._client.delete(resource.path(namespace, self._name), seconds=_DELETE_TIMEOUT)
            except ApiError as error:
                if not error.not_found:
                    self._options.warn(f"the probe's {resource.label} {self._name} could not be removed: {error}")


async def admitted_pod(client: KubeClient, namespace: str) -> InstalledPod:
    """Returns a new pod with a claim as the API stores it, after policies and webhooks. It is not created (server-side
    dry run).

    Raises:
        ApiError: the API server does not answer, or refuses such a pod
        ObjectError: the answer is no pod
    """
    path = f"{resources.PODS.path(namespace)}?dryRun=All"
    body = installed_objects.probe_pod(
        installed_objects.TAG, DEFAULT_SCHEDULER, requests_extender=False, opts_out=False
    )
    return installed_objects.installed_pod(await client.create(path, body))
