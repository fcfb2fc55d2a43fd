"""Pods become Running when their volumes are attached; until then they are stuck, and it is known why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.kube.resources import PODS
from scheduler_core.model import kube
from simulator.actions import Action, Patch
from simulator.attacher import Attachment
from simulator.objects import DRIVER, VOLUMES_ATTACHED, Obj

Pod = Obj[kube.Pod]


@dataclass(frozen=True, slots=True)
class Mount:
    """A claim of a pod, the PersistentVolume it is bound to, if any, and that one's attachments."""

    claim: str
    persistent_volume: Obj[kube.PersistentVolume] | None
    attachments: Sequence[Attachment] = ()


def waits(pod: Pod) -> bool:
    """Whether a pod has a node but is not yet known to have its volumes."""
    return pod.model.node_name != "" and pod.model.live and pod.annotations.get(VOLUMES_ATTACHED) != "true"


def missing(pod: Pod, mounts: Sequence[Mount]) -> str:
    """What a pod with a node still waits for, "" if it has everything."""
    problems = [problem for mount in mounts if (problem := _missing(pod.model.node_name, mount))]
    return "; ".join(problems)


def _missing(node: str, mount: Mount) -> str:
    persistent_volume = mount.persistent_volume
    if persistent_volume is None:
        return f"claim {mount.claim} is not bound"
    if persistent_volume.model.driver != DRIVER:
        return ""
    name = persistent_volume.model.handle
    here = [each for each in mount.attachments if each.model.node == node and not each.deleting]
    if not here:
        elsewhere = sorted(each.model.node for each in mount.attachments)
        return f"volume {name} is attached to node {elsewhere[0]}" if elsewhere else f"volume {name} is not attached"
    status = here[0].status
    if status.get("attached"):
        return ""
    error = (status.get("attachError") or {}).get("message")
    return error or f"volume {name} is being attached"


def decide_pod(pod: Pod, mounts: Sequence[Mount]) -> list[Action]:
    """Says on the pod that its volumes are attached, as soon as they are."""
    if not waits(pod) or missing(pod, mounts):
        return []
    body = {"metadata": {"annotations": {VOLUMES_ATTACHED: "true"}}}
    return [Patch(PODS, pod, body, "pod has its volumes", counts="pods_with_volumes")]
