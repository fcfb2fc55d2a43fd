"""The CSI attacher: VolumeAttachments set a Longhorn volume's spec.nodeID and report the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.kube.resources import LONGHORN_VOLUMES, VOLUME_ATTACHMENTS
from scheduler_core.model import kube
from scheduler_core.model.longhorn import STRICT_LOCAL
from simulator.actions import Action, AfterDelay, PatchObject, RequeueAfter, remove_finalizers
from simulator.config import Config
from simulator.objects import DRIVER, EVICTING, KubeObject, timestamp
from simulator.volumes.attach import scheduling_refusal
from simulator.volumes.observation import ATTACHED, Replica, Volume

ATTACHER_FINALIZER: Final = "external-attacher/driver-longhorn-io"

Attachment = KubeObject[kube.VolumeAttachment]


@dataclass(frozen=True, slots=True)
class AttachmentObservation:
    """The input of a decision about a VolumeAttachment.

    Attributes:
        other_attachments: the volume's other attachments that are not being deleted
        is_node_ready: whether the attachment's node is ready
        is_image_ready: whether the volume's engine image is ready on that node
    """

    config: Config
    attachment: Attachment
    handle: str
    volume: Volume | None
    replicas: Sequence[Replica]
    other_attachments: Sequence[Attachment]
    is_node_ready: bool
    is_image_ready: bool
    now: datetime


def decide_attachment(observation: AttachmentObservation) -> list[Action]:
    """Takes the next step toward the attached, or detached, volume."""
    attachment = observation.attachment
    if attachment.model.attacher != DRIVER:
        return []
    if attachment.deleting:
        return _release(observation)
    if ATTACHER_FINALIZER not in attachment.finalizers:
        finalizers = [*attachment.finalizers, ATTACHER_FINALIZER]
        return [
            PatchObject(VOLUME_ATTACHMENTS, attachment, {"metadata": {"finalizers": finalizers}}, "attachment taken up")
        ]
    volume = observation.volume
    node = attachment.model.node
    if volume is None:
        return _refuse(observation, f"rpc error: code = NotFound desc = volume {observation.handle} not found")
    if _is_attached_for(volume, node):
        return _report_attachment(observation)
    if attachment.status.get("attached"):
        return []  # the volume faulted while a pod uses it: Longhorn attaches it again, and Kubernetes is not informed
    if volume.deleting:
        return _refuse(observation, f"volume {volume.name} is being deleted")
    problem = _attach_problem(observation, volume, node)
    if problem:
        return _refuse(observation, problem)
    if volume.model.node_id == node and EVICTING not in volume.annotations:
        return [RequeueAfter(observation.config.attach_retry)]
    body = {"spec": {"nodeID": node}, "metadata": {"annotations": {EVICTING: None}}}
    request = PatchObject(LONGHORN_VOLUMES, volume, body, "volume to be attached")
    return [AfterDelay("publish", observation.config.publish_seconds, (request,))]


def _is_attached_for(volume: Volume, node: str) -> bool:
    """Whether the volume is attached for a node.

    A shared volume may be attached anywhere: it is served over the network.
    """
    model = volume.model
    if model.state != ATTACHED or EVICTING in volume.annotations:
        return False
    return model.current_node_id == node or (_is_shared_volume(volume) and bool(model.current_node_id))


def _is_shared_volume(volume: Volume) -> bool:
    return volume.model.access_mode == "rwx" and not volume.model.migratable


def _attach_problem(observation: AttachmentObservation, volume: Volume, node: str) -> str:
    """Why the volume cannot be attached, "" if it can be now or soon."""
    model = volume.model
    if not observation.is_node_ready:
        return f"node {node} is not ready, couldn't attach volume {model.name} to it"
    if not observation.is_image_ready:
        return f"cannot attach volume {model.name}: engine image {model.image} is not deployed on node {node}"
    elsewhere = model.node_id not in ("", node)
    if elsewhere and EVICTING in volume.annotations:
        return ""
    if elsewhere and not _is_shared_volume(volume):
        return f"volume {model.name} is already attached to node {model.node_id}, cannot attach it to node {node}"
    if model.data_locality == STRICT_LOCAL:
        homes = sorted({replica.model.node_id for replica in observation.replicas if replica.model.node_id})
        if homes and node not in homes:
            return (
                f"volume {model.name} with data locality strict-local cannot be attached to node {node}: "
                f"its replica is on node {homes[0]}"
            )
    return _scheduling_problem(volume)


def _scheduling_problem(volume: Volume) -> str:
    reason = scheduling_refusal(volume.status)
    return f"volume {volume.name} cannot be attached: its replicas are not scheduled: {reason}" if reason else ""


def _report_attachment(observation: AttachmentObservation) -> list[Action]:
    if observation.attachment.status.get("attached"):
        return []
    status = {"attached": True, "attachError": None}
    return [PatchObject(VOLUME_ATTACHMENTS, observation.attachment, {"status": status}, "attachment done", status=True)]


def _refuse(observation: AttachmentObservation, problem: str) -> list[Action]:
    """Reports an error once, and repeats the decision later."""
    requeue = RequeueAfter(observation.config.attach_retry)
    reported = observation.attachment.status.get("attachError") or {}
    if reported.get("message") == problem:
        return [requeue]
    status = {"attached": False, "attachError": {"message": problem, "time": timestamp(observation.now)}}
    body = {"status": status}
    event = f"attachment refused: {problem}"
    return [
        PatchObject(VOLUME_ATTACHMENTS, observation.attachment, body, event, status=True, counter="attach_errors"),
        requeue,
    ]


def _release(observation: AttachmentObservation) -> list[Action]:
    """Detaches the volume and then removes the attachment's finalizer.

    A shared volume that other attachments use stays attached.
    """
    volume = observation.volume
    node = observation.attachment.model.node
    removal = list(remove_finalizers(VOLUME_ATTACHMENTS, observation.attachment, "attachment gone", ATTACHER_FINALIZER))
    if volume is None or not removal or (observation.other_attachments and _is_shared_volume(volume)):
        return removal
    if volume.model.node_id and (volume.model.node_id == node or _is_shared_volume(volume)):
        return [PatchObject(LONGHORN_VOLUMES, volume, {"spec": {"nodeID": ""}}, "volume to be detached")]
    if volume.model.current_node_id == node:
        return [RequeueAfter(observation.config.attach_retry)]
    return removal
