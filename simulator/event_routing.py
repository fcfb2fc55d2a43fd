"""Which change of an object makes which controller look at what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from scheduler_core.disk_schedule.replica_release import changed
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule, Kind, Status
from scheduler_core.model.snapshot import NamespacedName
from simulator.config import Config
from simulator.controller_queue import Queue
from simulator.objects import AUTO_SALVAGE, Obj
from simulator.provisioner import claim_of, volume_name
from simulator.store import Store
from simulator.volumes.observation import FAULTED

_Volume = Obj[longhorn.Volume] | None
_Replica = Obj[longhorn.Replica] | None
_Node = Obj[longhorn.Node] | None
_Manager = Obj[longhorn.InstanceManager] | None
_Image = Obj[longhorn.EngineImage] | None
_Schedule = Obj[DiskSchedule] | None


class Woken(Protocol):
    """The queues that are woken, and what they know."""

    store: Store
    config: Config
    volumes: Queue[Any]
    replicas: Queue[Any]
    nodes: Queue[Any]
    claims: Queue[Any]
    persistent_volumes: Queue[Any]
    attachments: Queue[Any]
    pods: Queue[Any]
    images: Queue[Any]


class Wakes:
    """Listens to every table."""

    def __init__(self, woken: Woken) -> None:
        self._woken = woken
        self._store = woken.store

    def listen(self) -> None:
        """Starts to listen."""
        store = self._store
        listeners: tuple[tuple[Any, Callable[..., None]], ...] = (
            (store.volumes, self._volume),
            (store.replicas, self._replica),
            (store.longhorn_nodes, self._longhorn_node),
            (store.instance_managers, self._instance_manager),
            (store.engine_images, self._engine_image),
            (store.settings, self._setting),
            (store.attachments, self._attachment),
            (store.claims, self._claim),
            (store.persistent_volumes, self._persistent_volume),
            (store.storage_classes, self._storage_class),
            (store.pods, lambda key, *_: self._woken.pods.add(key)),
            (store.nodes, lambda key, *_: self._woken.nodes.add(key)),
            (store.csi_nodes, lambda key, *_: self._woken.nodes.add(key)),
            (store.backing_images, self._backing_image),
            (store.disk_schedules, self._disk_schedule),
        )
        for table, listener in listeners:
            table.listeners.append(listener)

    def _volume(self, name: str, old: _Volume, new: _Volume) -> None:
        woken = self._woken
        woken.volumes.add(name)
        for persistent_volume in self._store.persistent_volumes_of.of(name):
            woken.persistent_volumes.add(persistent_volume.name)
            self._attachments_of(persistent_volume.name)
        known = new or old
        claim = claim_of(known) if known is not None else None
        if claim is not None:
            woken.claims.add(claim[:2])
        if old is not None and new is not None and old.model.actual_size != new.model.actual_size:
            for replica in self._store.replicas_of.of(name):
                self._node_later(replica.model.node_id)

    def _replica(self, name: str, old: _Replica, new: _Replica) -> None:
        for replica in (old, new):
            if replica is None:
                continue
            self._woken.volumes.add(replica.model.volume)
            self._node_later(replica.model.node_id)
            volume = self._store.volumes.models.get(replica.model.volume)
            if volume is not None and volume.backing_image:
                self._woken.images.add(volume.backing_image)
        if old is not None and new is not None and old.model.size != new.model.size:
            self._claims_of(new.model.volume)
        self._woken.replicas.add(name)

    def _claims_of(self, volume: str) -> None:
        """A volume's claim tells how large it is."""
        for persistent_volume in self._store.persistent_volumes_of.of(volume):
            if persistent_volume.model.claim is not None:
                self._woken.claims.add(persistent_volume.model.claim[:2])

    def _disk_schedule(self, _: str, old: _Schedule, new: _Schedule) -> None:
        """Only what was answered concerns anybody here; volumes and images that are asked for are woken by their own changes."""
        before, after = (each.model.status if each is not None else Status() for each in (old, new))
        for name in sorted(changed(before.of(Kind.REPLICA), after.of(Kind.REPLICA))):
            replica = self._store.replicas.models.get(name)
            if replica is not None:
                self._woken.volumes.add(replica.volume)
                self._claims_of(replica.volume)
        for name in sorted(changed(before.of(Kind.BACKING_IMAGE), after.of(Kind.BACKING_IMAGE))):
            self._woken.images.add(name)

    def _node_later(self, name: str) -> None:
        if name:
            self._woken.nodes.add(name, max(self._woken.config.status_lag, 0.001))

    def _longhorn_node(self, name: str, old: _Node, new: _Node) -> None:
        """Volumes are only concerned by nodes that go or come; freed space they find when they try again."""
        self._woken.nodes.add(name)
        if old is None or new is None or old.model.ready != new.model.ready:
            self._volumes_on(name)

    def _instance_manager(self, _: str, old: _Manager, new: _Manager) -> None:
        known = new or old
        if known is None:
            return
        self._woken.nodes.add(known.model.node)
        if old is None or new is None or old.model.state != new.model.state:
            self._volumes_on(known.model.node)

    def _engine_image(self, _: str, old: _Image, new: _Image) -> None:
        before = old.model.nodes if old is not None else frozenset[str]()
        after = new.model.nodes if new is not None else frozenset[str]()
        for node in sorted(before ^ after):
            self._volumes_on(node)

    def _setting(self, name: str, *_: object) -> None:
        """Longhorn looks at its volumes every 30 s; a faulted one need not wait that long for its salvage."""
        if name != AUTO_SALVAGE:
            return
        for key, volume in self._store.volumes.models.items():
            if volume.robustness == FAULTED:
                self._woken.volumes.add(key)

    def _volumes_on(self, name: str) -> None:
        for replica in self._store.replicas_on.of(name):
            self._woken.volumes.add(replica.model.volume)
        for key, volume in self._store.volumes.models.items():
            if name in (volume.node_id, volume.current_node_id):
                self._woken.volumes.add(key)

    def _attachment(
        self, name: str, old: Obj[kube.VolumeAttachment] | None, new: Obj[kube.VolumeAttachment] | None
    ) -> None:
        self._woken.attachments.add(name)
        for attachment in (old, new):
            if attachment is not None:
                self._woken.persistent_volumes.add(attachment.model.persistent_volume)
                self._attachments_of(attachment.model.persistent_volume)
                self._pods_of(self._store.persistent_volumes.models.get(attachment.model.persistent_volume))

    def _attachments_of(self, persistent_volume: str) -> None:
        for attachment in self._store.attachments_of.of(persistent_volume):
            self._woken.attachments.add(attachment.name)

    def _pods_of(self, persistent_volume: kube.PersistentVolume | None) -> None:
        if persistent_volume is None or persistent_volume.claim is None:
            return
        for pod in self._store.pods_of.of(persistent_volume.claim[:2]):
            self._woken.pods.add((pod.namespace, pod.name))

    def _claim(self, key: NamespacedName, old: Obj[kube.Claim] | None, new: Obj[kube.Claim] | None) -> None:
        self._woken.claims.add(key)
        for pod in self._store.pods_of.of(key):
            self._woken.pods.add((pod.namespace, pod.name))
        for claim in (old, new):
            if claim is not None:
                self._woken.volumes.add(volume_name(claim))

    def _persistent_volume(
        self, name: str, old: Obj[kube.PersistentVolume] | None, new: Obj[kube.PersistentVolume] | None
    ) -> None:
        self._woken.persistent_volumes.add(name)
        self._attachments_of(name)
        for known in (old, new):
            if known is not None and known.model.claim is not None:
                self._woken.claims.add(known.model.claim[:2])
                self._woken.volumes.add(known.model.handle)
                self._pods_of(known.model)

    def _storage_class(self, *_: object) -> None:
        for key, claim in self._store.claims.models.items():
            if not claim.spec.volume_name:
                self._woken.claims.add(key)

    def _backing_image(self, name: str, *_: object) -> None:
        self._woken.images.add(name)
        for key, volume in self._store.volumes.models.items():
            if volume.backing_image == name:
                self._woken.volumes.add(key)
