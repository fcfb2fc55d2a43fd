"""Pods become Running when their volumes are attached. Until then the reason why they wait is reported."""

from collections.abc import Sequence

from msgspec import Struct

from app.kube.resources import PODS
from scheduler_core.model import kube
from simulator.actions import Action, PatchObject
from simulator.attacher import Attachment
from simulator.objects import DRIVER, VOLUMES_ATTACHED, KubeObject

Pod = KubeObject[kube.Pod]


class Mount(Struct, frozen=True):
    """A pod's claim with its PersistentVolume and attachments."""

    claim: str
    persistent_volume: KubeObject[kube.PersistentVolume] | None
    attachments: Sequence[Attachment] = ()


def is_waiting(pod: Pod) -> bool:
    return pod.model.node_name != "" and pod.model.live and pod.annotations.get(VOLUMES_ATTACHED) != "true"


def waiting_reason(pod: Pod, mounts: Sequence[Mount]) -> str:
    """Why a pod with a node waits, "" if its volumes are attached."""
    problems = [problem for mount in mounts if (problem := _mount_problem(pod.model.node_name, mount))]
    return "; ".join(problems)


def _mount_problem(node: str, mount: Mount) -> str:
    persistent_volume = mount.persistent_volume
    if persistent_volume is None:
        return f"claim {mount.claim} is not bound"
    if persistent_volume.model.driver != DRIVER:
        return ""
    name = persistent_volume.model.handle
    attachments = [each for each in mount.attachments if each.model.node == node and not each.deleting]
    if not attachments:
        elsewhere = sorted(each.model.node for each in mount.attachments)
        return f"volume {name} is attached to node {elsewhere[0]}" if elsewhere else f"volume {name} is not attached"
    status = attachments[0].status
    if status.get("attached"):
        return ""
    error = (status.get("attachError") or {}).get("message")
    return error or f"volume {name} is being attached"


def decide_pod(pod: Pod, mounts: Sequence[Mount]) -> list[Action]:
    if not is_waiting(pod) or waiting_reason(pod, mounts):
        return []
    body = {"metadata": {"annotations": {VOLUMES_ATTACHED: "true"}}}
    return [PatchObject(PODS, pod, body, "pod has its volumes", counter="pods_with_volumes")]
