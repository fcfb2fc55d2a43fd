"""What a diagnosis creates: access reviews, a pod that fits on no node, and, by a dry run alone, a replica.

The pod mounts a claim of a StorageClass of its own, whose volumes need a node with a tag that no node has. The extender therefore
refuses every node. Without it, kube-scheduler chooses a node, and Longhorn refuses to create the volume (VolumeCreate: "specified node
tag does not exist"), so that nothing is left of it, and the pod never starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from scheduler_core.convert.fields import Fields
from scheduler_core.convert.meta import Metadata, Wire, WireCondition, decode_json, decode_object
from scheduler_core.errors import ObjectError
from scheduler_core.model.installation import EXTENDER_RESOURCE, Permission
from scheduler_core.model.kube import SELECTED_NODE_ANNOTATION

# Longhorn's tags are chosen by administrators; none chooses this.
TAG: Final = "longhorn-extender-doctor"
_LABELS: Final = {"app.kubernetes.io/managed-by": TAG}
# The annotation by which a pod opts out of the ask policy and the scheduler-name policy.
_OPT_OUT: Final = "longhorn.io/scheduler-extender-ask"
# The placement guard gives it to the replica of a diagnosis.
ANSWERED: Final = "longhorn.io/scheduler-extender-answered"
# Never started: no node gets the pod.
_IMAGE: Final = "registry.k8s.io/pause:3.10"


def _waiting_message(entries: list[WireCondition] | None) -> str:
    refusals = [entry for entry in entries or () if entry.type == "PodScheduled" and entry.status == "False"]
    return refusals[0].message or "" if refusals else ""


@dataclass(frozen=True, slots=True)
class PodProgress:
    """How far kube-scheduler is with a pod."""

    # Why the pod waits, "" if kube-scheduler has said nothing.
    message: Annotated[str, "status.conditions", _waiting_message] = ""
    node: Annotated[str, "spec.nodeName"] = ""  # the node that it has, or ""


def access_review(permission: Permission, namespace: str, account: str) -> dict[str, Any]:
    """A SubjectAccessReview: whether a ServiceAccount may make a call. `namespace` is that of the ServiceAccount, and
    of calls that are not needed everywhere.
    """
    resource, _, subresource = permission.resource.partition("/")
    attributes = {
        "verb": permission.verb,
        "group": permission.group,
        "resource": resource,
        "subresource": subresource,
        "name": permission.name,
        "namespace": "" if permission.everywhere else namespace,
    }
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{account}",
            "groups": groups,
            "resourceAttributes": attributes,
        },
    }


class _ReviewStatus(Wire):
    allowed: bool = False


class _Review(Wire):
    status: _ReviewStatus | None = None


def is_allowed(raw: bytes) -> bool:
    """What the API server answers to a SubjectAccessReview.

    Raises:
        ObjectError: it is none
    """
    status = decode_json("SubjectAccessReview", raw, _Review).status
    return status is not None and status.allowed


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
    resource = {EXTENDER_RESOURCE: "1"} if requests_extender else {}
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
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": name}}],
        },
    }


def probe_replica(api_version: str) -> dict[str, Any]:
    """A replica that only a dry run may create; its name makes API servers call the placement guard
    (manifests/access/guard-webhook.yaml).
    """
    return {
        "apiVersion": api_version,
        "kind": "Replica",
        # A patch can add to a map that exists only.
        "metadata": {"name": TAG, "labels": _LABELS, "annotations": {_OPT_OUT: "false"}},
        "spec": {"volumeName": TAG},
    }


class _Named(Wire):
    metadata: Metadata


def is_probe_replica(new: object) -> bool:
    """Whether an object that is to be created is the replica of a diagnosis."""
    try:
        return decode_object("Replica.longhorn.io", new, _Named).metadata.name == TAG
    except ObjectError:
        return False


def is_answered(raw: bytes) -> bool:
    """Whether the placement guard has seen the replica of a diagnosis.

    Raises:
        ObjectError: it is no replica
    """
    return ANSWERED in (decode_json("Replica.longhorn.io", raw, _Named).metadata.annotations or {})


pod_progress: Final = Fields("Pod", PodProgress).decode


def selected_node(raw: bytes | msgspec.Raw) -> str:
    """The node that kube-scheduler has chosen for a claim, "" for none.

    Raises:
        ObjectError: it is no claim
    """
    annotations = decode_json("PersistentVolumeClaim", raw, _Named).metadata.annotations or {}
    return annotations.get(SELECTED_NODE_ANNOTATION, "")
