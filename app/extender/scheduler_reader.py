"""Reads how kube-scheduler runs, where it can call the extender, and Kubernetes' version."""

from __future__ import annotations

from typing import Final

import msgspec

from app.kube.client import ApiError, KubeClient
from app.kube.paging import pages
from app.kube.resources import PODS, SERVICES
from scheduler_core.convert.installed_objects import command_line, installed_pod, service_address
from scheduler_core.installation.registration import SchedulerFlags, flags
from scheduler_core.leadership.endpoint_slice import EXTENDER
from scheduler_core.model.installation import ServiceAddress

EXTENDER_PODS: Final = {"labelSelector": f"app.kubernetes.io/name={EXTENDER.name}"}
# kubeadm and RKE2 label their static pods so, which the kubelet mirrors.
_STATIC_POD: Final = {"labelSelector": "component=kube-scheduler"}
_NAMESPACE: Final = "kube-system"
_VERSION: Final = "/version"


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
    """Returns the API server's version.

    Raises:
        ApiError: the API server does not answer
    """
    return msgspec.json.decode(await client.get(_VERSION), type=_Version).text


async def read_service(client: KubeClient, namespace: str) -> ServiceAddress | None:
    """Returns where the extender's Service is reached, None without one.

    Raises:
        ApiError: it may not be read, or the API server does not answer
    """
    try:
        return service_address(await client.get(SERVICES.path(namespace, EXTENDER.name)))
    except ApiError as error:
        if error.not_found:
            return None
        raise


async def read_loopback_port(client: KubeClient, namespace: str) -> int | None:
    """Returns the port of an extender that listens on loopback alone, None if it listens on other addresses, or pods
    may not be read.

    Raises:
        ApiError: the API server does not answer
    """
    try:
        async for page in pages(client, PODS.path(namespace), EXTENDER_PODS):
            for raw in page.items:
                pod = installed_pod(raw)
                if pod.live and pod.on_loopback:
                    return pod.port or EXTENDER.port
    except ApiError as error:
        if not error.forbidden:
            raise
    return None


async def read_scheduler_flags(client: KubeClient) -> SchedulerFlags:
    """Returns the flags of kube-scheduler's static pod, all empty where it is no pod, or pods may not be read.

    Raises:
        ApiError: the API server does not answer
    """
    try:
        async for page in pages(client, PODS.path(_NAMESPACE), _STATIC_POD):
            for raw in page.items:
                return flags(command_line(raw))
    except ApiError as error:
        if not error.forbidden:
            raise
    return SchedulerFlags()
