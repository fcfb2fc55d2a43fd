"""Event routing: which keys are added to which queues when an object changes."""

from collections.abc import Callable
from typing import Any, Protocol

from scheduler_core.disk_schedule.writes import changed_names
from scheduler_core.longhorn.new_volume_placement import waits_for_attachment
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule, DiskScheduleStatus, RequestKind
from scheduler_core.model.snapshot import NamespacedName
from simulator.config import Config, quantiles
from simulator.controller_queue import ControllerQueue
from simulator.objects import AUTO_SALVAGE, NODE_LABEL, Json, KubeObject
from simulator.provisioner import claim_reference, volume_name
from simulator.tables import WAITING, Store
from simulator.volumes.observation import FAULTED

_Volume = KubeObject[longhorn.Volume] | None
_Replica = KubeObject[longhorn.Replica] | None
_Node = KubeObject[longhorn.Node] | None
_Manager = KubeObject[longhorn.InstanceManager] | None
_Image = KubeObject[longhorn.EngineImage] | None
_Schedule = KubeObject[DiskSchedule] | None
_WRITE_METADATA = ("resourceVersion", "managedFields")


class ControllerQueues(Protocol):
    """The controllers' queues, and the tables they work on."""

    store: Store
    config: Config
    volumes: ControllerQueue[Any]
    replicas: ControllerQueue[Any]
    nodes: ControllerQueue[Any]
    claims: ControllerQueue[Any]
    persistent_volumes: ControllerQueue[Any]
    attachments: ControllerQueue[Any]
    pods: ControllerQueue[Any]
    images: ControllerQueue[Any]


class EventRouter:
    """Adds keys to the queues when a table changes."""

    def __init__(self, queues: ControllerQueues) -> None:
        self._queues = queues
        self._store = queues.store

    def subscribe(self) -> None:
        """Registers a listener with every table whose changes matter."""
        store = self._store
        listeners: tuple[tuple[Any, Callable[..., None]], ...] = (
            (store.volumes, self._on_volume),
            (store.replicas, self._on_replica),
            (store.shards, self._on_shard),
            (store.longhorn_nodes, self._on_longhorn_node),
            (store.instance_managers, self._on_instance_manager),
            (store.engine_images, self._on_engine_image),
            (store.settings, self._on_setting),
            (store.attachments, self._on_attachment),
            (store.claims, self._on_claim),
            (store.persistent_volumes, self._on_persistent_volume),
            (store.storage_classes, self._on_storage_class),
            (store.pods, lambda key, *_: self._queues.pods.add(key)),
            (store.nodes, lambda key, *_: self._queues.nodes.add(key)),
            (store.csi_nodes, lambda key, *_: self._queues.nodes.add(key)),
            (store.backing_images, self._on_backing_image),
            (store.disk_schedules, self._on_disk_schedule),
        )
        for table, listener in listeners:
            table.listeners.append(listener)

    def _on_volume(self, name: str, old: _Volume, new: _Volume) -> None:
        queues = self._queues
        queues.volumes.add(name)
        for persistent_volume in self._store.persistent_volumes_by_handle.get(name):
            queues.persistent_volumes.add(persistent_volume.name)
        current = new or old
        claim = claim_reference(current) if current is not None else None
        if claim is not None:
            queues.claims.add(claim[:2])
        if old is not None and new is not None and old.model.actual_size != new.model.actual_size:
            for replica in self._store.replicas_by_volume.get(name):
                self._enqueue_node_later(replica.model.node_id)

    def _on_replica(self, name: str, old: _Replica, new: _Replica) -> None:
        for replica in (old, new):
            if replica is None:
                continue
            self._queues.volumes.add(replica.model.volume)
            for node in {replica.model.node_id, replica.labels.get(NODE_LABEL, "")}:
                self._enqueue_node_later(node)
            volume = self._store.volumes.models.get(replica.model.volume)
            if volume is not None and volume.backing_image:
                self._queues.images.add(volume.backing_image)
        if old is not None and new is not None and old.model.size != new.model.size:
            self._enqueue_claims(new.model.volume)
        self._queues.replicas.add(name)

    def _on_shard(self, _: str, old: KubeObject[None] | None, new: KubeObject[None] | None) -> None:
        for shard in (old, new):
            if shard is not None:
                self._queues.volumes.add(shard.spec["shardGroupName"])
                self._enqueue_node_later(shard.spec["nodeID"])

    def _enqueue_claims(self, volume: str) -> None:
        for persistent_volume in self._store.persistent_volumes_by_handle.get(volume):
            if persistent_volume.model.claim is not None:
                self._queues.claims.add(persistent_volume.model.claim[:2])

    def _on_disk_schedule(self, _: str, old: _Schedule, new: _Schedule) -> None:
        """Enqueues the volumes, claims and images whose allocations changed. Changed requests enqueue nothing: the change of the
        replica or image behind them does.
        """
        before, after = (each.model.status if each is not None else DiskScheduleStatus() for each in (old, new))
        for name in sorted(
            changed_names(before.allocations(RequestKind.REPLICA), after.allocations(RequestKind.REPLICA))
        ):
            replica = self._store.replicas.models.get(name)
            if replica is not None:
                self._queues.volumes.add(replica.volume)
                self._enqueue_claims(replica.volume)
        for name in sorted(
            changed_names(before.allocations(RequestKind.BACKING_IMAGE), after.allocations(RequestKind.BACKING_IMAGE))
        ):
            self._queues.images.add(name)

    def _enqueue_node_later(self, name: str) -> None:
        if name:
            _, least = quantiles(self._queues.config.status_lag)[0]
            self._queues.nodes.add_later(name, max(least, 0.001))

    def _on_longhorn_node(self, name: str, old: _Node, new: _Node) -> None:
        """Enqueues a node, and the volumes that its change may concern. These are its volumes if its readiness changed, and the
        volumes that wait for space on any node.
        """
        self._queues.nodes.add(name)
        if old is None or new is None or old.model.ready != new.model.ready:
            self._enqueue_volumes_on(name)
        self._enqueue_waiting_volumes()

    def _enqueue_waiting_volumes(self) -> None:
        """Enqueues every volume with an unplaced or failed replica. Mirrors Longhorn's VolumeController.enqueueNodeChange
        (measured with v1.12.1's control code: freed space is taken at once). A replica that waits for its volume's attachment is
        placed on no node, so its volume is left out.
        """
        for replica in self._store.unplaced_or_failed_replicas.unordered_objects(WAITING):
            volume = self._store.volumes.models.get(replica.model.volume)
            if volume is not None and (replica.model.failed_at or not waits_for_attachment(volume)):
                self._queues.volumes.add(volume.name)

    def _on_instance_manager(self, _: str, old: _Manager, new: _Manager) -> None:
        current = new or old
        if current is None:
            return
        self._queues.nodes.add(current.model.node)
        if old is None or new is None or old.model.state != new.model.state:
            self._enqueue_volumes_on(current.model.node)

    def _on_engine_image(self, _: str, old: _Image, new: _Image) -> None:
        before = old.model.nodes if old is not None else frozenset[str]()
        after = new.model.nodes if new is not None else frozenset[str]()
        for node in sorted(before ^ after):
            self._enqueue_volumes_on(node)

    def _on_setting(self, name: str, *_: object) -> None:
        """Enqueues faulted volumes when auto-salvage changes. Longhorn looks at its volumes every 30 s; the salvage of a faulted
        one need not wait that long.
        """
        if name != AUTO_SALVAGE:
            return
        for key, volume in self._store.volumes.models.items():
            if volume.robustness == FAULTED:
                self._queues.volumes.add(key)

    def _enqueue_volumes_on(self, name: str) -> None:
        for replica in self._store.replicas_by_node.get(name):
            self._queues.volumes.add(replica.model.volume)
        for key, volume in self._store.volumes.models.items():
            if name in (volume.node_id, volume.current_node_id):
                self._queues.volumes.add(key)

    def _on_attachment(
        self, name: str, old: KubeObject[kube.VolumeAttachment] | None, new: KubeObject[kube.VolumeAttachment] | None
    ) -> None:
        """Enqueues an attachment, its PersistentVolume, and the pods that wait for it. An attachment whose error alone changed is
        not enqueued: its publish call waits for the end of its back-off. Mirrors external-attacher's shouldEnqueueVAChange.
        """
        if old is None or new is None or _without_error(old) != _without_error(new):
            self._queues.attachments.add(name)
        for attachment in (old, new):
            if attachment is not None:
                self._queues.persistent_volumes.add(attachment.model.persistent_volume)
                self._enqueue_pods(self._store.persistent_volumes.models.get(attachment.model.persistent_volume))

    def _enqueue_attachments(self, persistent_volume: str) -> None:
        for attachment in self._store.attachments_by_volume.get(persistent_volume):
            self._queues.attachments.add(attachment.name)

    def _enqueue_pods(self, persistent_volume: kube.PersistentVolume | None) -> None:
        if persistent_volume is None or persistent_volume.claim is None:
            return
        for pod in self._store.pods_by_claim.get(persistent_volume.claim[:2]):
            self._queues.pods.add((pod.namespace, pod.name))

    def _on_claim(
        self, key: NamespacedName, old: KubeObject[kube.Claim] | None, new: KubeObject[kube.Claim] | None
    ) -> None:
        self._queues.claims.add(key)
        for pod in self._store.pods_by_claim.get(key):
            self._queues.pods.add((pod.namespace, pod.name))
        for claim in (old, new):
            if claim is not None:
                self._queues.volumes.add(volume_name(claim))

    def _on_persistent_volume(
        self, name: str, old: KubeObject[kube.PersistentVolume] | None, new: KubeObject[kube.PersistentVolume] | None
    ) -> None:
        self._queues.persistent_volumes.add(name)
        self._enqueue_attachments(name)
        for version in (old, new):
            if version is not None and version.model.claim is not None:
                self._queues.claims.add(version.model.claim[:2])
                self._queues.volumes.add(version.model.handle)
                self._enqueue_pods(version.model)

    def _on_storage_class(self, *_: object) -> None:
        for key, claim in self._store.claims.models.items():
            if not claim.spec.volume_name:
                self._queues.claims.add(key)

    def _on_backing_image(self, name: str, *_: object) -> None:
        self._queues.images.add(name)
        for key, volume in self._store.volumes.models.items():
            if volume.backing_image == name:
                self._queues.volumes.add(key)


def _without_error(attachment: KubeObject[kube.VolumeAttachment]) -> Json:
    """A VolumeAttachment without its errors, and without what changes at every write."""
    metadata = {key: value for key, value in attachment.metadata.items() if key not in _WRITE_METADATA}
    status = {key: value for key, value in attachment.status.items() if key not in ("attachError", "detachError")}
    return {"metadata": metadata, "spec": attachment.spec, "attached": bool(status.pop("attached", False)), **status}
