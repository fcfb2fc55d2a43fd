"""The raw objects of a situation about which the extender says something, and changes of single facts, for `situations.py`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.kube.resources import (
    CLAIMS,
    LONGHORN_BACKING_IMAGES,
    LONGHORN_INSTANCE_MANAGERS,
    LONGHORN_NODES,
    LONGHORN_REPLICAS,
    LONGHORN_SETTINGS,
    LONGHORN_VOLUMES,
    PODS,
    Resource,
)
from devcluster.api import Api
from devcluster.programs import NAMESPACE
from scheduler_core.model.quantity import parse_bytes
from simulator.images import ENGINE_IMAGE
from tests import builders
from tests.e2e.objects import HOSTNAME, Object, asking_pod, claim_of, longhorn_volume, name_of, selected_node

# A node with room, on which nothing is spoilt.
ELSEWHERE: Final = "elsewhere"
DISK: Final = "disk-1"
LONG_AGO: Final = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Facts:
    """The raw objects of one situation, as the API server has them now; `name` is that of the situation."""

    api: Api
    name: str

    def get(self, resource: Resource, name: str = "", namespace: str = NAMESPACE) -> Any:
        """An object, by default of Longhorn and with the situation's name."""
        return self.api.get(resource.path(namespace, name or self.name))

    def patch(self, resource: Resource, body: Object, name: str = "", namespace: str = NAMESPACE) -> None:
        """Merges a patch into an object; a status goes to its own path."""
        path = resource.path(namespace, name or self.name)
        self.api.patch(f"{path}/status" if "status" in body else path, body)

    @property
    def node(self) -> Any:
        return self.get(LONGHORN_NODES)

    @property
    def disk(self) -> Any:
        return self.node["status"]["diskStatus"][DISK]

    @property
    def free(self) -> int:
        """The bytes that may still be scheduled on the disk; nothing is reserved, and no more is promised than there is."""
        return int(self.disk["storageMaximum"]) - int(self.disk["storageScheduled"])

    @property
    def volume(self) -> Any:
        return self.get(LONGHORN_VOLUMES)

    @property
    def sizes(self) -> list[int]:
        claims = self.api.get(CLAIMS.path("default"))["items"]
        own = [claim for claim in claims if claim["metadata"]["labels"]["situation"] == self.name]
        return [parse_bytes(claim["spec"]["resources"]["requests"]["storage"]) for claim in own]

    def replica_nodes(self, volume: str = "") -> list[str]:
        replicas = self.api.get(LONGHORN_REPLICAS.path(NAMESPACE))["items"]
        return [entry["spec"]["nodeID"] for entry in replicas if entry["spec"]["volumeName"] == (volume or self.name)]

    def condition(self, conditions: Sequence[Object], kind: str) -> tuple[str, str]:
        return next(((entry["status"], entry["reason"]) for entry in conditions if entry["type"] == kind), ("", ""))

    def tagged(self, tag: str) -> list[str]:
        nodes = self.api.get(LONGHORN_NODES.path(NAMESPACE))["items"]
        return [name_of(node) for node in nodes if tag in (node["spec"].get("tags") or ())]


def replica(api: Api, volume: str, node: str) -> Object:
    """A healthy replica of a volume of 100Gi."""
    raw = builders.replica(f"{volume}-r", volume, node, image=ENGINE_IMAGE, diskID=disk_of(api, node))
    return {**raw, "metadata": {**raw["metadata"], "labels": {"longhornvolume": volume}}}


def disk_of(api: Api, node: str) -> str:
    """The UUID of a node's disk."""
    return str(api.get(LONGHORN_NODES.path(NAMESPACE, node))["status"]["diskStatus"][DISK]["diskUUID"])


def node_spec(**changes: Any) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_NODES, {"spec": changes})


def disk_spec(**changes: Any) -> Callable[[Facts], None]:
    return node_spec(disks={DISK: changes})


def disk_status(**changes: Any) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_NODES, {"status": {"diskStatus": {DISK: changes}}})


def node_conditions(**entries: tuple[str, str]) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_NODES, {"status": {"conditions": conditions(entries)}})


def conditions(entries: Mapping[str, tuple[str, str]]) -> list[Object]:
    empty = {"message": "", "lastProbeTime": "", "lastTransitionTime": LONG_AGO}
    return [{"type": kind, "status": status, "reason": reason, **empty} for kind, (status, reason) in entries.items()]


def volume_spec(**changes: Any) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_VOLUMES, {"spec": changes})


def volume_status(**changes: Any) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_VOLUMES, {"status": changes})


def set_manager_state(state: str) -> Callable[[Facts], None]:
    """Sets the state of the node's instance managers."""

    def change(facts: Facts) -> None:
        for raw in managers_of(facts):
            facts.patch(LONGHORN_INSTANCE_MANAGERS, {"status": {"currentState": state}}, name_of(raw))

    return change


def managers_of(facts: Facts) -> list[Object]:
    managers = facts.api.get(LONGHORN_INSTANCE_MANAGERS.path(NAMESPACE))["items"]
    return [raw for raw in managers if raw["spec"]["nodeID"] == facts.name]


def delete_node(facts: Facts) -> None:
    path = LONGHORN_NODES.path(NAMESPACE, facts.name)
    facts.api.patch(path, {"metadata": {"finalizers": None}})
    facts.api.delete(path)


def create_node(facts: Facts) -> None:
    """Creates a Longhorn node like the one elsewhere."""
    raw = facts.get(LONGHORN_NODES, ELSEWHERE)
    body = {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "metadata": {"name": facts.name}}
    facts.api.create(LONGHORN_NODES.path(NAMESPACE), {**body, "spec": {**raw["spec"], "name": facts.name}})
    status = raw["status"]
    status["diskStatus"][DISK]["diskUUID"] = f"uuid-{facts.name}"
    facts.patch(LONGHORN_NODES, {"status": status})


def delete_volume(facts: Facts) -> None:
    facts.patch(LONGHORN_VOLUMES, {"metadata": {"finalizers": ["example.com/busy"]}})
    facts.api.delete(LONGHORN_VOLUMES.path(NAMESPACE, facts.name))


def create_volume_again(facts: Facts) -> None:
    facts.patch(LONGHORN_VOLUMES, {"metadata": {"finalizers": None}})
    facts.api.create(LONGHORN_VOLUMES.path(NAMESPACE), longhorn_volume(facts.name))


def create_backing_image(facts: Facts) -> None:
    spec = {"sourceType": "download", "sourceParameters": {"url": "http://example.com/image"}, "dataEngine": "v1"}
    body = {"apiVersion": LONGHORN_BACKING_IMAGES.api_version, "kind": LONGHORN_BACKING_IMAGES.kind}
    metadata = {"name": facts.name, "namespace": NAMESPACE}
    facts.api.create(LONGHORN_BACKING_IMAGES.path(NAMESPACE), {**body, "metadata": metadata, "spec": spec})


def has_backing_image(facts: Facts) -> bool:
    images = facts.api.get(LONGHORN_BACKING_IMAGES.path(NAMESPACE))["items"]
    return facts.name in map(name_of, images)


def create_user(facts: Facts) -> None:
    pod = asking_pod(f"{facts.name}-user", [f"{facts.name}-0"], {})
    pod["spec"]["nodeName"] = ELSEWHERE
    facts.api.create(PODS.path("default"), pod)


def delete_user(facts: Facts) -> None:
    facts.api.delete(PODS.path("default", f"{facts.name}-user"), {"gracePeriodSeconds": 0})


def create_earlier_pod(facts: Facts) -> None:
    """Creates a pod, for which kube-scheduler chooses the node."""
    name = f"{facts.name}-9"
    facts.api.create(CLAIMS.path("default"), claim_of(name, "100Gi", facts.name, {"situation": "earlier"}))
    facts.api.create(PODS.path("default"), asking_pod(name, [name], {HOSTNAME: facts.name}))


def delete_earlier_pod(facts: Facts) -> None:
    facts.api.delete(PODS.path("default", f"{facts.name}-9"), {"gracePeriodSeconds": 0})
    facts.api.delete(CLAIMS.path("default", f"{facts.name}-9"))


def promised(facts: Facts) -> int:
    """What the claim of the earlier pod takes on the node that kube-scheduler has chosen for it."""
    claim = facts.get(CLAIMS, f"{facts.name}-9", "default")
    chosen = selected_node(claim) == facts.name
    return parse_bytes(claim["spec"]["resources"]["requests"]["storage"]) if chosen else 0


def move_replica(facts: Facts) -> None:
    spec = {"nodeID": facts.name, "diskID": disk_of(facts.api, facts.name)}
    facts.patch(LONGHORN_REPLICAS, {"spec": spec}, f"{facts.name}-r")


def set_over_provisioning(value: str) -> Callable[[Facts], None]:
    return lambda facts: facts.patch(LONGHORN_SETTINGS, {"value": value}, "storage-over-provisioning-percentage")


def ready_condition(facts: Facts) -> tuple[str, str]:
    return facts.condition(facts.node["status"]["conditions"], "Ready")
