"""Installs what the simulation needs: CRDs, the CSI driver, StorageClasses, settings and Longhorn's admission rules."""

import asyncio
from collections.abc import Iterable
from importlib.resources import files

import msgspec
import structlog
import yaml

from app.kube.client import ApiError, KubeClient
from app.kube.resources import (
    CRDS,
    CSI_DRIVERS,
    LONGHORN_NAMESPACE,
    LONGHORN_NODES,
    LONGHORN_SETTINGS,
    LONGHORN_VOLUMES,
    STORAGE_CLASSES,
    Resource,
)
from scheduler_core.errors import CoreError
from scheduler_core.longhorn.settings import FIELDS_BY_SETTING
from simulator.config import Config
from simulator.images import ENGINE_IMAGE, MANAGER_IMAGE
from simulator.known_settings import KNOWN_SETTINGS
from simulator.objects import AUTO_SALVAGE, DRIVER, Json
from simulator.provisioner import WAIT_FOR_CONSUMER

log = structlog.get_logger("simulator.install")

NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy")
BINDINGS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"
)
_ESTABLISHED_TIMEOUT = 30.0
_POLL_INTERVAL = 0.1
_EVICTED_WHILE_SCHEDULABLE = (
    "has({0}.evictionRequested) && {0}.evictionRequested && has({0}.allowScheduling) && {0}.allowScheduling"
)


class InstallError(CoreError):
    """Something that the simulation needs could not be installed."""


async def install(client: KubeClient, config: Config) -> None:
    """Creates missing objects and updates definitions and rules. Existing settings and StorageClasses stay as they are."""
    await ensure(client, NAMESPACES, {"metadata": {"name": LONGHORN_NAMESPACE}})
    definitions = crds()
    for definition in definitions:
        await ensure(client, CRDS, definition, update=True)
    for resource, body in admission_policies(config):
        await ensure(client, resource, body, update=True)
    await ensure(client, CSI_DRIVERS, csi_driver(config), update=True)
    for body in storage_classes():
        await ensure(client, STORAGE_CLASSES, body)
    for definition in definitions:
        await _wait_for_definition(client, definition["metadata"]["name"])
    for body in settings(config):
        await ensure(client, LONGHORN_SETTINGS, body)


async def ensure(client: KubeClient, resource: Resource, body: Json, *, update: bool = False) -> None:
    """Creates an object; `update` makes an existing one equal."""
    namespace = body["metadata"].get("namespace", "")
    full = {**body, "apiVersion": resource.api_version, "kind": resource.kind}
    try:
        await client.create(resource.path(namespace), full)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        if update:
            await client.patch(resource.path(namespace, body["metadata"]["name"]), full)
        return
    log.info("installed", kind=resource.label, name=body["metadata"]["name"])


async def _wait_for_definition(client: KubeClient, name: str) -> None:
    """Waits until the API server serves a definition. Creating objects before that fails with 404."""
    path = CRDS.path(name=name)
    async with asyncio.timeout(_ESTABLISHED_TIMEOUT) as limit:
        try:
            while True:
                definition: Json = msgspec.json.decode(await client.get(path))
                conditions = definition.get("status", {}).get("conditions") or []
                if any(entry["type"] == "Established" and entry["status"] == "True" for entry in conditions):
                    return
                await asyncio.sleep(_POLL_INTERVAL)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise InstallError(f"the API server does not serve {name} after {_ESTABLISHED_TIMEOUT:g} s") from error


def crds() -> list[Json]:
    folder = files("simulator") / "crds"
    entries = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda each: each.name)
    return [yaml.safe_load(entry.read_text(encoding="utf-8")) for entry in entries]


def csi_driver(config: Config) -> Json:
    """The CSIDriver object as Longhorn installs it."""
    spec = {
        "attachRequired": True,
        "podInfoOnMount": True,
        "storageCapacity": config.storage_capacity,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "volumeLifecycleModes": ["Persistent"],
    }
    return {"metadata": {"name": DRIVER}, "spec": spec}


def storage_classes() -> list[Json]:
    """Longhorn's own StorageClass, and one per kind of local volume."""
    local = {"numberOfReplicas": "1", "dataLocality": "best-effort", "staleReplicaTimeout": "30"}
    return [
        _storage_class("longhorn", "Immediate", "Delete", {"numberOfReplicas": "3", "staleReplicaTimeout": "30"}),
        _storage_class("longhorn-local", WAIT_FOR_CONSUMER, "Delete", local),
        _storage_class("longhorn-strict", WAIT_FOR_CONSUMER, "Delete", {**local, "dataLocality": "strict-local"}),
        _storage_class("longhorn-retain", WAIT_FOR_CONSUMER, "Retain", local),
    ]


def _storage_class(name: str, mode: str, policy: str, parameters: dict[str, str]) -> Json:
    return {
        "metadata": {"name": name},
        "provisioner": DRIVER,
        "volumeBindingMode": mode,
        "reclaimPolicy": policy,
        "allowVolumeExpansion": True,
        "parameters": parameters,
    }


def settings(config: Config) -> Iterable[Json]:
    images = {"default-engine-image": ENGINE_IMAGE, "default-instance-manager-image": MANAGER_IMAGE}
    defaults = {name: entry.metadata["default"] for name, entry in FIELDS_BY_SETTING.items()}
    for name, value in {**defaults, AUTO_SALVAGE: "true", **images, **config.settings}.items():
        yield {"metadata": {"name": name, "namespace": LONGHORN_NAMESPACE}, "value": value}


def admission_policies(config: Config) -> Iterable[tuple[Resource, Json]]:
    """The rules of Longhorn's webhooks, with Longhorn's messages. They cover what can be expressed in CEL."""
    names = sorted({*KNOWN_SETTINGS, *config.known_settings_extra, *config.settings})
    allowed = ", ".join(f"'{name}'" for name in names)
    unknown = (
        "'value ' + object.value + ' of settings ' + object.metadata.name + ' is invalid: setting ' + "
        "object.metadata.name + ' is not supported'"
    )
    yield from _policy("settings", LONGHORN_SETTINGS, (f"object.metadata.name in [{allowed}]", unknown))
    node = (
        f"!({_EVICTED_WHILE_SCHEDULABLE.format('object.spec')})",
        "'need to disable scheduling on node ' + object.metadata.name + ' for node eviction'",
    )
    evicting = f"object.spec.disks.filter(name, {_EVICTED_WHILE_SCHEDULABLE.format('object.spec.disks[name]')})"
    disk = (
        f"!has(object.spec.disks) || {evicting}.size() == 0",
        f"'need to disable scheduling on disk ' + {evicting}[0] + ' for disk eviction'",
    )
    yield from _policy("nodes", LONGHORN_NODES, node, disk)
    shrinking = (
        "'shrinking volume ' + object.metadata.name + ' size from ' + oldObject.spec.size + ' to ' + object.spec.size + "
        "' is not supported'"
    )
    grows = "oldObject == null || int(object.spec.size) >= int(oldObject.spec.size)"
    yield from _policy("volumes", LONGHORN_VOLUMES, (grows, shrinking))


def _policy(name: str, resource: Resource, *rules: tuple[str, str]) -> Iterable[tuple[Resource, Json]]:
    """A policy and its binding."""
    metadata = {"name": f"longhorn-{name}.simulator"}
    rule = {
        "apiGroups": [resource.group],
        "apiVersions": [resource.version],
        "operations": ["CREATE", "UPDATE"],
        "resources": [resource.plural],
    }
    validations = [
        {"expression": expression, "messageExpression": message, "reason": "Invalid"} for expression, message in rules
    ]
    spec = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": validations}
    yield POLICIES, {"metadata": metadata, "spec": spec}
    yield BINDINGS, {"metadata": metadata, "spec": {"policyName": metadata["name"], "validationActions": ["Deny"]}}
