"""The CSI attacher: VolumeAttachments set a Longhorn volume's spec.nodeID and report the result. Mirrors external-attacher, and
the ControllerPublishVolume call of Longhorn's CSI driver. A call holds a worker until its volume is attached or the call fails.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum

from msgspec import Struct

from app.kube.resources import LONGHORN_VOLUMES, VOLUME_ATTACHMENTS
from scheduler_core.backoff import Backoff
from scheduler_core.model import kube
from scheduler_core.model.longhorn import STRICT_LOCAL
from simulator.actions import Action, AfterDelay, PatchObject, RequeueAfter, remove_finalizers
from simulator.config import Config
from simulator.objects import DRIVER, EVICTING, KubeObject, timestamp
from simulator.volumes.attach import readiness_problem
from simulator.volumes.observation import ATTACHED, Replica, Volume

ATTACHER_FINALIZER = "external-attacher/driver-longhorn-io"

Attachment = KubeObject[kube.VolumeAttachment]


class PublishCall(Struct, frozen=True):
    """One ControllerPublishVolume call in progress.

    Attributes:
        seconds: since its start
        until_poll: seconds until it looks at its volume again, 0 if it looks now
    """

    seconds: float
    until_poll: float


class PublishCalls:
    """Which attachments hold a worker, and when the next call of each is due. Mirrors external-attacher's workers and Longhorn's
    waitForVolumeState: the first look at a volume is one `publish_poll` after the start of the call. Calls that hang hold up all
    other attachments, to be detached as well as attached.
    """

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._backoff = Backoff(config.attach_retry, config.attach_retry_limit)
        self._workers: set[str] = set()
        self._started: dict[str, float] = {}
        self._next_poll: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._failures: dict[str, int] = {}

    def take_worker(self, attachment: str) -> bool:
        """Gives an attachment a worker, unless it has one. Returns False if none is free; the attachment is then among the next
        that `end` returns.
        """
        if attachment not in self._workers and len(self._workers) >= self._config.attach_workers:
            self._waiting.add(attachment)
            return False
        self._workers.add(attachment)
        return True

    def get(self, attachment: str) -> PublishCall | None:
        """Returns the call of an attachment, None if none is in progress."""
        started = self._started.get(attachment)
        if started is None:
            return None
        now = self._clock()
        return PublishCall(now - started, max(0.0, self._next_poll[attachment] - now))

    def keep(self, attachment: str) -> None:
        """Starts the call of an attachment, or continues it after a look at its volume."""
        now = self._clock()
        self._started.setdefault(attachment, now)
        if self._next_poll.setdefault(attachment, now + self._config.publish_poll) <= now:
            self._next_poll[attachment] = now + self._config.publish_poll

    def end(self, attachment: str, *, failed: bool = False) -> set[str]:
        """Frees the worker of an attachment; returns the attachments that wait for one. Only a failure keeps the count of an
        attachment's failures.
        """
        self._workers.discard(attachment)
        self._started.pop(attachment, None)
        self._next_poll.pop(attachment, None)
        if failed:
            self._failures[attachment] = self._failures.get(attachment, 0) + 1
        else:
            self._failures.pop(attachment, None)
        waiting = self._waiting
        self._waiting = set()
        return waiting

    def retry_delay(self, attachment: str) -> float:
        return self._backoff.delay(max(0, self._failures.get(attachment, 0) - 1))


class AttachmentObservation(Struct, frozen=True):
    """The input of a decision about a VolumeAttachment.

    Attributes:
        other_attachments: the volume's other attachments that are not being deleted
        is_node_ready: whether the attachment's node is ready
        is_image_ready: whether the volume's engine image is ready on that node
        call: the attachment's publish call, None if none is in progress
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
    call: PublishCall | None = None


class Publish(Enum):
    """What becomes of an attachment's publish call, and so of the worker that it holds."""

    NONE = "there is none, or it succeeded"
    IN_PROGRESS = "it goes on"
    FAILED = "it failed, and is repeated after a back-off"


class AttachmentDecision(Struct, frozen=True):
    """What is to be done about a VolumeAttachment."""

    actions: list[Action]
    publish: Publish = Publish.NONE


def decide_attachment(observation: AttachmentObservation) -> AttachmentDecision:
    """Takes the next step toward the attached, or detached, volume."""
    attachment = observation.attachment
    if attachment.model.attacher != DRIVER:
        return AttachmentDecision([])
    if attachment.deleting:
        return AttachmentDecision(_release(observation))
    if ATTACHER_FINALIZER not in attachment.finalizers:
        body = {"metadata": {"finalizers": [*attachment.finalizers, ATTACHER_FINALIZER]}}
        return AttachmentDecision([PatchObject(VOLUME_ATTACHMENTS, attachment, body, "attachment taken up")])
    if attachment.status.get("attached"):
        # If the volume faulted while a pod uses it, Longhorn attaches it again, and Kubernetes is not informed.
        return AttachmentDecision([])
    volume = observation.volume
    if volume is None:
        return _fail(observation, f"rpc error: code = NotFound desc = volume {observation.handle} not found")
    if observation.call is not None:
        return _continue_call(observation, volume, observation.call)
    problem = _publish_problem(observation, volume)
    if problem:
        return _fail(observation, problem)
    return _wait_for_volume(observation, volume, observation.config.publish_poll)


def _continue_call(observation: AttachmentObservation, volume: Volume, call: PublishCall) -> AttachmentDecision:
    """Reports the volume as attached, waits on, or gives up after `publish_timeout`."""
    node = observation.attachment.model.node
    if call.until_poll <= 0:
        if _has_attachment_to(volume, node):
            return AttachmentDecision(_report_attachment(observation))
        if call.seconds >= observation.config.publish_timeout:
            problem = (
                f"volume {volume.name} failed to attach to node {node} with attachmentID {observation.attachment.name}"
            )
            return _fail(observation, f"rpc error: code = DeadlineExceeded desc = {problem}")
    return _wait_for_volume(observation, volume, call.until_poll or observation.config.publish_poll)


def _wait_for_volume(observation: AttachmentObservation, volume: Volume, until_poll: float) -> AttachmentDecision:
    """Requests the volume's attachment, unless that is done. Looks at the volume again at the next poll."""
    node = observation.attachment.model.node
    actions: list[Action] = [RequeueAfter(until_poll)]
    if not volume.model.node_id or EVICTING in volume.annotations:
        body = {"spec": {"nodeID": node}, "metadata": {"annotations": {EVICTING: None}}}
        request = PatchObject(LONGHORN_VOLUMES, volume, body, "volume to be attached")
        actions.insert(0, AfterDelay("publish", observation.config.publish_seconds, (request,)))
    return AttachmentDecision(actions, Publish.IN_PROGRESS)


def _has_attachment_to(volume: Volume, node: str) -> bool:
    """Whether the volume is attached for a node. A shared volume may be attached anywhere: it is served over the network."""
    model = volume.model
    if model.state != ATTACHED or EVICTING in volume.annotations:
        return False
    return model.current_node_id == node or (_is_shared_volume(volume) and bool(model.current_node_id))


def _is_shared_volume(volume: Volume) -> bool:
    return volume.model.access_mode == "rwx" and not volume.model.migratable


def _publish_problem(observation: AttachmentObservation, volume: Volume) -> str:
    """Why the volume's attachment cannot be requested, "" if it can be."""
    model = volume.model
    node = observation.attachment.model.node
    if volume.deleting:
        return f"volume {volume.name} is being deleted"
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
    reason = readiness_problem(volume, observation.replicas)
    if reason:
        return f"rpc error: code = Aborted desc = volume {volume.name} is not ready for workloads: {reason}"
    return ""


def _report_attachment(observation: AttachmentObservation) -> list[Action]:
    status = {"attached": True, "attachError": None}
    return [PatchObject(VOLUME_ATTACHMENTS, observation.attachment, {"status": status}, "attachment done", status=True)]


def _fail(observation: AttachmentObservation, problem: str) -> AttachmentDecision:
    """Reports the error of a publish call, unless it is the last reported one."""
    reported = observation.attachment.status.get("attachError") or {}
    if reported.get("message") == problem:
        return AttachmentDecision([], Publish.FAILED)
    status = {"attached": False, "attachError": {"message": problem, "time": timestamp(observation.now)}}
    body = {"status": status}
    event = f"attachment failed: {problem}"
    report = PatchObject(VOLUME_ATTACHMENTS, observation.attachment, body, event, status=True, counter="attach_errors")
    return AttachmentDecision([report], Publish.FAILED)


def _release(observation: AttachmentObservation) -> list[Action]:
    """Detaches the volume and then removes the attachment's finalizer. A shared volume that other attachments use stays attached."""
    volume = observation.volume
    node = observation.attachment.model.node
    removal = remove_finalizers(VOLUME_ATTACHMENTS, observation.attachment, "attachment gone", ATTACHER_FINALIZER)
    if volume is None or not removal or (observation.other_attachments and _is_shared_volume(volume)):
        return removal
    if volume.model.node_id and (volume.model.node_id == node or _is_shared_volume(volume)):
        request = PatchObject(LONGHORN_VOLUMES, volume, {"spec": {"nodeID": ""}}, "volume to be detached")
        return [request, RequeueAfter(observation.config.publish_poll)]
    if volume.model.current_node_id == node:
        return [RequeueAfter(observation.config.publish_poll)]
    return removal
