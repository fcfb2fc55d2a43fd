"""The CSI attacher: VolumeAttachments move a Longhorn volume's spec.nodeID and report what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.kube.resources import LONGHORN_VOLUMES, VOLUME_ATTACHMENTS
from scheduler_core.model import kube
from scheduler_core.model.longhorn import STRICT_LOCAL
from simulator.actions import Action, Later, Patch, Wake, without_finalizer
from simulator.config import Config
from simulator.objects import DRIVER, EVICTING, Obj, timestamp
from simulator.volumes.attach import refusal
from simulator.volumes.observation import ATTACHED, Replica, Volume

ATTACHER_FINALIZER: Final = "external-attacher/driver-longhorn-io"

Attachment = Obj[kube.VolumeAttachment]


@dataclass(frozen=True, slots=True)
class Attaching:
    """What a decision about a VolumeAttachment sees; `others` are the volume's other attachments that are meant to stay.

    `node_ready` and `image_ready` are about the attachment's node and the volume's engine image there.
    """

    config: Config
    attachment: Attachment
    handle: str
    volume: Volume | None
    replicas: Sequence[Replica]
    others: Sequence[Attachment]
    node_ready: bool
    image_ready: bool
    now: datetime


def decide_attachment(sight: Attaching) -> list[Action]:
    """One step toward attached, or detached."""
    attachment = sight.attachment
    if attachment.model.attacher != DRIVER:
        return []
    if attachment.deleting:
        return _release(sight)
    if ATTACHER_FINALIZER not in attachment.finalizers:
        finalizers = [*attachment.finalizers, ATTACHER_FINALIZER]
        return [Patch(VOLUME_ATTACHMENTS, attachment, {"metadata": {"finalizers": finalizers}}, "attachment taken up")]
    volume, node = sight.volume, attachment.model.node
    if volume is None:
        return _refuse(sight, f"rpc error: code = NotFound desc = volume {sight.handle} not found")
    if _serves(volume, node):
        return _report_attached(sight)
    if attachment.status.get("attached"):
        return []  # a volume that faulted under its pod: Longhorn brings it back, Kubernetes is not told
    if volume.deleting:
        return _refuse(sight, f"volume {volume.name} is being deleted")
    problem = _problem(sight, volume, node)
    if problem:
        return _refuse(sight, problem)
    if volume.model.node_id == node and EVICTING not in volume.annotations:
        return [Wake(sight.config.attach_retry)]
    body = {"spec": {"nodeID": node}, "metadata": {"annotations": {EVICTING: None}}}
    request = Patch(LONGHORN_VOLUMES, volume, body, "volume to be attached")
    return [Later("publish", sight.config.publish_seconds, (request,))]


def _serves(volume: Volume, node: str) -> bool:
    """Whether the volume is attached where it should be; a shared one is served over the network from anywhere."""
    model = volume.model
    if model.state != ATTACHED or EVICTING in volume.annotations:
        return False
    return model.current_node_id == node or (_shared(volume) and bool(model.current_node_id))


def _shared(volume: Volume) -> bool:
    return volume.model.access_mode == "rwx" and not volume.model.migratable


def _problem(sight: Attaching, volume: Volume, node: str) -> str:
    """Why the volume cannot be attached now, "" if it can or is about to be."""
    model = volume.model
    if not sight.node_ready:
        return f"node {node} is not ready, couldn't attach volume {model.name} to it"
    if not sight.image_ready:
        return f"cannot attach volume {model.name}: engine image {model.image} is not deployed on node {node}"
    elsewhere = model.node_id not in ("", node)
    if elsewhere and EVICTING in volume.annotations:
        return ""
    if elsewhere and not _shared(volume):
        return f"volume {model.name} is already attached to node {model.node_id}, cannot attach it to node {node}"
    if model.data_locality == STRICT_LOCAL:
        homes = sorted({replica.model.node_id for replica in sight.replicas if replica.model.node_id})
        if homes and node not in homes:
            return (
                f"volume {model.name} with data locality strict-local cannot be attached to node {node}: "
                f"its replica is on node {homes[0]}"
            )
    return _unplaceable(volume)


def _unplaceable(volume: Volume) -> str:
    because = refusal(volume.status)
    return f"volume {volume.name} cannot be attached: its replicas are not scheduled: {because}" if because else ""


def _report_attached(sight: Attaching) -> list[Action]:
    if sight.attachment.status.get("attached"):
        return []
    status = {"attached": True, "attachError": None}
    return [Patch(VOLUME_ATTACHMENTS, sight.attachment, {"status": status}, "attachment done", status=True)]


def _refuse(sight: Attaching, problem: str) -> list[Action]:
    """Reports an error, once, and looks again later."""
    again = Wake(sight.config.attach_retry)
    known = sight.attachment.status.get("attachError") or {}
    if known.get("message") == problem:
        return [again]
    status = {"attached": False, "attachError": {"message": problem, "time": timestamp(sight.now)}}
    body = {"status": status}
    why = f"attachment refused: {problem}"
    return [Patch(VOLUME_ATTACHMENTS, sight.attachment, body, why, status=True, counts="attach_errors"), again]


def _release(sight: Attaching) -> list[Action]:
    """Detaches the volume, unless others still use it, and lets the attachment go."""
    volume, node = sight.volume, sight.attachment.model.node
    gone = list(without_finalizer(VOLUME_ATTACHMENTS, sight.attachment, "attachment gone", ATTACHER_FINALIZER))
    if volume is None or not gone or (sight.others and _shared(volume)):
        return gone
    if volume.model.node_id and (volume.model.node_id == node or _shared(volume)):
        return [Patch(LONGHORN_VOLUMES, volume, {"spec": {"nodeID": ""}}, "volume to be detached")]
    if volume.model.current_node_id == node:
        return [Wake(sight.config.attach_retry)]
    return gone
