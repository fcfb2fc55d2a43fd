"""Creates a pod that fits nowhere, and reads kube-scheduler's answer.

Data flow: StorageClass, namespace, claim and pod are created → the pod and its claim are read until kube-scheduler has said something,
or chosen a node → everything is deleted, whatever happened.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.kube.client import ApiError, KubeClient
from app.kube.resources import CLAIMS, NAMESPACES, PODS, STORAGE_CLASSES, Resource
from scheduler_core.convert.installed_objects import (
    TAG,
    installed_pod,
    pod_progress,
    probe_claim,
    probe_class,
    probe_namespace,
    probe_pod,
    selected_node,
)
from scheduler_core.errors import CoreError
from scheduler_core.installation.facts import ProbeResult
from scheduler_core.longhorn.csi_driver import DRIVER
from scheduler_core.model.installation import DEFAULT_SCHEDULER, InstalledPod

_INTERVAL: Final = 0.25
# Until the controllers have made the ServiceAccount of a new namespace.
_ACCOUNT_TIMEOUT: Final = 20.0
_DELETE_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class ProbeOptions:
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
        self._name = f"{TAG}-{secrets.token_hex(4)}"
        self._namespace = options.namespace or self._name
        self._created: list[tuple[Resource, str]] = []

    async def run(self) -> ProbeResult:
        """Returns what kube-scheduler does with the pod."""
        try:
            await self._create_all()
            return await self._observe()
        except CoreError as error:
            return ProbeResult(problem=str(error))
        finally:
            await self._remove_despite_signals()

    async def _create_all(self) -> None:
        name = self._name
        if not self._options.namespace:
            await self._create(NAMESPACES, "", probe_namespace(name))
        await self._create(STORAGE_CLASSES, "", probe_class(name, DRIVER))
        await self._create(CLAIMS, self._namespace, probe_claim(name))
        options = self._options
        pod = probe_pod(name, options.scheduler_name or DEFAULT_SCHEDULER, requests_extender=options.requests_extender)
        deadline = asyncio.get_running_loop().time() + _ACCOUNT_TIMEOUT
        while True:
            try:
                await self._create(PODS, self._namespace, pod)
            except ApiError as error:
                if "serviceaccount" not in str(error) or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_INTERVAL)
            else:
                return

    async def _create(self, resource: Resource, namespace: str, body: dict[str, object]) -> None:
        # Noted before: an answer may be lost, and a name that does not exist is deleted without harm.
        if (resource, namespace) not in self._created:
            self._created.append((resource, namespace))
        await self._client.create(resource.path(namespace), body)

    async def _observe(self) -> ProbeResult:
        deadline = asyncio.get_running_loop().time() + self._options.seconds
        while True:
            progress = pod_progress(await self._client.get(PODS.path(self._namespace, self._name)))
            node = progress.node or selected_node(await self._client.get(CLAIMS.path(self._namespace, self._name)))
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
        """Deletes what was created, the last first."""
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
    path = f"{PODS.path(namespace)}?dryRun=All"
    body = probe_pod(TAG, DEFAULT_SCHEDULER, requests_extender=False, opts_out=False)
    return installed_pod(await client.create(path, body))
