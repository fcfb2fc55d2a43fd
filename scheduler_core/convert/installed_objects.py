"""What a diagnosis reads and creates: pods, Services and Events; access reviews, a pod that fits on no node, and, by a dry
run alone, a replica.

The pod mounts a claim of a StorageClass of its own, whose volumes need a node with a tag that no node has. The extender therefore
refuses every node. Without it, kube-scheduler chooses a node, and Longhorn refuses to create the volume (VolumeCreate: "specified node
tag does not exist"), so that nothing is left of it, and the pod never starts.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from scheduler_core import errors
from scheduler_core.convert import pod_constraints, wire_types
from scheduler_core.convert.kube import CLAIM_VOLUME, pod_volumes
from scheduler_core.leadership.endpoint_slice import EXTENDER_WITH_TLS, PLACEMENT_GUARD
from scheduler_core.model import constraints, installation, kube
from scheduler_core.structs import Struct

# As the host-network overlay has it.
_HOST_FLAG = "--host"
_LOOPBACK = "127.0.0.1"


class _ContainerPort(wire_types.Wire):
    name: str | None = None
    container_port: int = 0


class _Container(wire_types.Wire):
    resources: pod_constraints.WireResources | None = None
    ports: list[_ContainerPort] | None = None
    command: list[str] | None = None
    args: list[str] | None = None


_Containers = list[_Container] | None


def _port_for(name: str) -> Callable[[_Containers, _Containers], int]:
    def read(containers: _Containers, init_containers: _Containers) -> int:
        return next((port.container_port for port in _ports(containers, init_containers) if port.name == name), 0)

    return read


def _http_port(containers: _Containers, init_containers: _Containers) -> int:
    # The extender's port in its manifests, with TLS, too. Overlays add ports, in any place.
    ports = sorted(_ports(containers, init_containers), key=lambda port: port.name != "http")
    return ports[0].container_port if ports else 0


def _ports(*lists: _Containers) -> list[_ContainerPort]:
    return [port for containers in lists for container in containers or () for port in container.ports or ()]


def _is_on_loopback(host_network: bool | None, containers: _Containers, init_containers: _Containers) -> bool:  # noqa: FBT001 # a value of an object
    commands = [_command_line(each) for each in (*(containers or ()), *(init_containers or ()))] if host_network else []
    return any(f"{_HOST_FLAG}={_LOOPBACK}" in words or (_HOST_FLAG, _LOOPBACK) in pairwise(words) for words in commands)


def _command_line(container: _Container) -> list[str]:
    return [*(container.command or ()), *(container.args or ())]


def _requests_extender(containers: _Containers, init_containers: _Containers) -> bool:
    resources = [each.resources for each in (*(containers or ()), *(init_containers or ())) if each.resources]
    # A limit without a request is a request of that size.
    return any(constraints.EXTENDER_RESOURCE in {**(each.requests or {}), **(each.limits or {})} for each in resources)


_POD = wire_types.Fields(
    "Pod",
    installation.InstalledPod,
    live=(lambda deleted, phase: deleted is None and phase not in kube.FINISHED_PHASES, str | None, str | None),
    ready=(
        lambda entries: kube.condition(wire_types.conditions(entries), "Ready").status == "True",
        wire_types.list_of(wire_types.WireCondition),
    ),
    port=_http_port,
    probe_port=_port_for("probes"),
    guard_port=_port_for(PLACEMENT_GUARD.port_name),
    on_loopback=_is_on_loopback,
    requests_extender=_requests_extender,
    claims=(
        lambda metadata, volumes: tuple(volume.claim for volume in pod_volumes(metadata, volumes)),
        *(wire_types.Metadata, wire_types.list_of(CLAIM_VOLUME.wire)),
    ),
)
installed_pod = _POD.decode


def command_line(raw: bytes | msgspec.Raw) -> list[str]:
    wire: Any = wire_types.decode_json("Pod", raw, _POD.wire)
    containers = wire.spec.containers if wire.spec else None
    return _command_line(containers[0]) if containers else []


held_lease = wire_types.Fields("Lease", installation.HeldLease).decode


class _ServicePort(wire_types.Wire):
    name: str | None = None
    port: int = 0


service_address = wire_types.Fields(
    "Service",
    installation.ServiceAddress,
    port=(lambda ports: ports[0].port if ports else 0, wire_types.list_of(_ServicePort)),
    tls=(lambda ports: bool(ports) and ports[0].name == EXTENDER_WITH_TLS.port_name, wire_types.list_of(_ServicePort)),
).decode


scheduling_failure = wire_types.Fields("Event", installation.SchedulingFailure, needs_metadata=False).decode
"""An event of the reason FailedScheduling."""

csi_driver_tracks_capacity = wire_types.value_at(
    "CSIDriver", "spec.storageCapacity", default=False, needs_metadata=False
).decode
"""Whether kube-scheduler compares CSIStorageCapacity objects for a driver."""


# Longhorn's tags are chosen by administrators; none chooses this.
TAG = "longhorn-extender-doctor"
_LABELS = {"app.kubernetes.io/managed-by": TAG}
# The annotation by which a pod opts out of the ask policy and the scheduler-name policy.
_OPT_OUT = "longhorn.io/scheduler-extender-ask"
# The placement guard gives it to the replica of a diagnosis.
ANSWERED = "longhorn.io/scheduler-extender-answered"
# Never started: no node gets the pod.
_IMAGE = "registry.k8s.io/pause:3.10"


def _waiting_message(entries: list[wire_types.WireCondition] | None) -> str:
    scheduled = kube.condition(wire_types.conditions(entries), "PodScheduled")
    return scheduled.message if scheduled.status == "False" else ""


class PodProgress(Struct, frozen=True):
    """How far kube-scheduler is with a pod."""

    # Why the pod waits, "" if kube-scheduler has said nothing.
    message: Annotated[str, "status.conditions", _waiting_message] = ""
    node: Annotated[str, "spec.nodeName"] = ""  # the node that it has, or ""


def access_review(permission: installation.Permission, namespace: str, account: str) -> dict[str, Any]:
    """Whether a ServiceAccount, of this namespace, may make a call, there or everywhere."""
    resource, _, subresource = permission.resource.partition("/")
    spec = {
        "user": f"system:serviceaccount:{namespace}:{account}",
        "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
        "resourceAttributes": {
            "verb": permission.verb,
            "group": permission.group,
            "resource": resource,
            "subresource": subresource,
            "name": permission.name,
            "namespace": "" if permission.everywhere else namespace,
        },
    }
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


is_allowed = wire_types.value_at("SubjectAccessReview", "status.allowed", default=False, needs_metadata=False).decode
"""What the API server answers to a SubjectAccessReview."""


def probe_namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": _LABELS}}


def probe_class(name: str, driver: str) -> dict[str, Any]:
    """The StorageClass whose volumes fit nowhere."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "labels": _LABELS},
        "provisioner": driver,
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
        "parameters": {"numberOfReplicas": "1", "dataLocality": "strict-local", "nodeSelector": TAG},
    }


def probe_claim(name: str) -> dict[str, Any]:
    """The claim of a probe pod; its class has the same name."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": _LABELS},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": name,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def probe_pod(
    name: str, scheduler_name: str, *, requests_extender: bool = True, opts_out: bool = True
) -> dict[str, Any]:
    """A pod that mounts the claim of its name, with or without the extender's resource. With `opts_out`, the policies
    of manifests/overlays leave scheduler and resource as they are given. It tolerates every taint, asks for no CPU or
    memory, and complies with the Pod Security Standard "restricted".
    """
    resource = {constraints.EXTENDER_RESOURCE: "1"} if requests_extender else {}
    container = {
        "name": "never-started",
        "image": _IMAGE,
        "resources": {"requests": resource, "limits": resource},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "volume", "mountPath": "/volume"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": _LABELS, "annotations": {_OPT_OUT: "false"} if opts_out else {}},
        "spec": {
            "schedulerName": scheduler_name,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": name}}],
        },
    }


def probe_replica(api_version: str) -> dict[str, Any]:
    """A replica for a dry run. API servers call the guard by its name (manifests/access/guard-webhook.yaml)."""
    return {
        "apiVersion": api_version,
        "kind": "Replica",
        # A patch can add to a map that exists only.
        "metadata": {"name": TAG, "labels": _LABELS, "annotations": {_OPT_OUT: "false"}},
        "spec": {"volumeName": TAG},
    }


_REPLICA_NAME = wire_types.value_at("Replica.longhorn.io", "metadata.name", "")
_ANSWER = wire_types.value_at("Replica.longhorn.io", f"metadata.annotations[{ANSWERED}]", "")


def is_probe_replica(new: object) -> bool:
    try:
        return _REPLICA_NAME.read(new) == TAG
    except errors.ObjectError:
        return False


def is_answered(raw: bytes) -> bool:
    return bool(_ANSWER.decode(raw))


pod_progress = wire_types.Fields("Pod", PodProgress).decode


selected_node = wire_types.value_at(
    "PersistentVolumeClaim", f"metadata.annotations[{kube.SELECTED_NODE_ANNOTATION}]", ""
).decode
"""The node that kube-scheduler has chosen for a claim, "" for none."""
