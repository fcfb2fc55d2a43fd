"""Everything that the controllers watch, and why it cannot be used now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from app.disk_schedule.disk_index import DiskIndex
from app.disk_schedule.informer import (
    ImageObject,
    Informer,
    InformerObject,
    VolumeObject,
    decode_replica,
    decode_schedule,
    decode_volume,
    decoder,
    model_reader,
    read_image,
    reuse_written,
)
from app.kube import resources
from app.kube.client import KubeClient
from app.kube.reflector import CacheStatus, Decode, Reflector, Timing
from app.kube.reflector_group import Member, ReflectorGroup
from app.kube.resources import Resource
from scheduler_core.convert.snapshot_kinds import LONGHORN_GROUP
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule, Fault
from scheduler_core.model.snapshot import Snapshot

_Value = TypeVar("_Value")
_Model = TypeVar("_Model")
_MAX_AGE: Final = 0.25
_OPTIONAL: Final = frozenset({resources.LONGHORN_BACKING_IMAGES})
_HINTS: Final[Mapping[Resource, str]] = {
    resources.DISK_SCHEDULES: "kubectl create -k manifests/crd",
    resources.LONGHORN_NODES: "is Longhorn installed?",
}


class ControllerCache:
    """Owner of the informers; everything happens on the event loop that runs `run`."""

    def __init__(
        self, client: KubeClient, namespace: str, timing: Timing, now: Callable[[], datetime], stale_after: float
    ) -> None:
        self.schedules = Informer[DiskSchedule]()
        self.nodes = Informer[longhorn.Node]()
        self.volumes = Informer[VolumeObject]()
        self.replicas = Informer[longhorn.Replica]()
        self.images = Informer[ImageObject]()
        self.disks = DiskIndex(self.schedules, self.nodes, self.volumes, self.replicas, self.images)
        self._settings = Informer[str]()
        self._engine_images = Informer[longhorn.EngineImage]()
        self._instance_managers = Informer[longhorn.InstanceManager]()
        self._kube_nodes = Informer[kube.Node]()
        self._now = now
        self._clock = timing.clock
        self._cluster: tuple[tuple[int, ...], float, Cluster] | None = None
        self._reflectors = ReflectorGroup(timing.clock, stale_after)

        def watch(resource: Resource, decode: Decode[Any], informer: Informer[Any]) -> None:
            reflector = Reflector(
                client,
                resource,
                reuse_written(informer, decode),
                informer,
                timing,
                namespace=namespace if resource.group == LONGHORN_GROUP else "",
            )
            member = Member(
                reflector, reflector.label, required=resource not in _OPTIONAL, hint=_HINTS.get(resource, "")
            )
            self._reflectors.add(resource.label, member)

        watch(resources.DISK_SCHEDULES, decode_schedule, self.schedules)
        watch(resources.LONGHORN_NODES, _decoder(LONGHORN_GROUP, "Node", longhorn.Node), self.nodes)
        watch(resources.LONGHORN_VOLUMES, decode_volume, self.volumes)
        watch(resources.LONGHORN_REPLICAS, decode_replica, self.replicas)
        watch(resources.LONGHORN_BACKING_IMAGES, decoder(read_image), self.images)
        watch(resources.LONGHORN_SETTINGS, _decoder(LONGHORN_GROUP, "Setting", str), self._settings)
        engine_image = _decoder(LONGHORN_GROUP, "EngineImage", longhorn.EngineImage)
        watch(resources.LONGHORN_ENGINE_IMAGES, engine_image, self._engine_images)
        instance_manager = _decoder(LONGHORN_GROUP, "InstanceManager", longhorn.InstanceManager)
        watch(resources.LONGHORN_INSTANCE_MANAGERS, instance_manager, self._instance_managers)
        watch(resources.NODES, _decoder("", "Node", kube.Node), self._kube_nodes)

    async def run(self) -> None:
        await self._reflectors.run()

    @property
    def statuses(self) -> Mapping[str, CacheStatus]:
        return self._reflectors.statuses

    @property
    def problem(self) -> str:
        return self._reflectors.problem()

    def unreadable(self) -> Iterator[tuple[str, str, str]]:
        """Yields kind, name and problem of each object that cannot be read."""
        kinds: tuple[tuple[Resource, Informer[Any]], ...] = (
            (resources.DISK_SCHEDULES, self.schedules),
            (resources.LONGHORN_NODES, self.nodes),
            (resources.LONGHORN_VOLUMES, self.volumes),
            (resources.LONGHORN_REPLICAS, self.replicas),
            (resources.LONGHORN_BACKING_IMAGES, self.images),
        )
        for resource, informer in kinds:
            for name, fault in informer.unreadable().items():
                yield resource.label, name, str(fault)
        for name, image in self.images.readable().items():
            # The mirror needs its disks only, which can be read. The controller of backing images refuses it.
            if image.copies.faults:
                yield resources.LONGHORN_BACKING_IMAGES.label, name, "; ".join(map(str, image.copies.faults))

    def cluster(self) -> Cluster:
        """Returns what Longhorn's placement rules read. A setting that cannot be parsed is a fault there, not an error.

        Volumes and replicas are as the caches have them while the caller uses it: valid until it awaits. What concerns nodes is
        up to `_MAX_AGE` seconds old, because making it takes long in a large cluster. The DiskSchedule of a chosen disk is read
        separately, so an outdated choice is refused there.
        """
        informers = (
            self.nodes, self.images, self._settings, self._engine_images, self._instance_managers, self._kube_nodes
        )  # fmt: skip
        revisions = tuple(informer.revision for informer in informers)
        clock = self._clock()
        if self._cluster is not None:
            cached_revisions, made_at, cluster = self._cluster
            if cached_revisions == revisions or clock - made_at < _MAX_AGE:
                return replace(cluster, now=self._now())
        snapshot = Snapshot(
            nodes=self._kube_nodes.readable(),
            longhorn_nodes=self.nodes.readable(),
            backing_images={name: value.image for name, value in self.images.readable().items()},
            engine_images=self._engine_images.readable(),
            instance_managers=self._instance_managers.readable(),
            settings=self._settings.readable(),
        )
        cluster = Cluster.of(snapshot, self._now(), Settings.read(snapshot.settings))
        snapshot = replace(snapshot, replicas=ReadableValues(self.replicas, lambda replica: replica))
        snapshot = replace(snapshot, volumes=ReadableValues(self.volumes, lambda each: each.volume))
        cluster = replace(cluster, snapshot=snapshot, replicas_by_volume=_ReplicasByVolume(self.replicas, self.disks))
        self._cluster = (revisions, clock, cluster)
        return cluster


class ReadableObjects(Mapping[str, _Value], Generic[_Value]):
    """The values of cached objects that can be read, without copying them."""

    def __init__(self, objects: Mapping[str, InformerObject[_Value]]) -> None:
        self._objects = objects

    def __getitem__(self, name: str) -> _Value:
        """Returns a value; KeyError if there is none, or it cannot be read."""
        value = self._objects[name].value
        if isinstance(value, Fault):
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return (name for name, each in self._objects.items() if not isinstance(each.value, Fault))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ReadableValues(Mapping[str, _Model], Generic[_Value, _Model]):
    """The values of a cache that can be read, without copying it."""

    def __init__(self, informer: Informer[_Value], convert: Callable[[_Value], _Model]) -> None:
        self._informer = informer
        self._convert = convert

    def __getitem__(self, name: str) -> _Model:
        """Returns a value; KeyError if there is none, or it cannot be read."""
        value = self._informer.value(name)
        if value is None or isinstance(value, Fault):
            raise KeyError(name)
        return self._convert(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._informer.readable())

    def __len__(self) -> int:
        return len(self._informer.readable())


class _ReplicasByVolume(Mapping[str, tuple[longhorn.Replica, ...]]):
    """The replicas of each volume, ordered by name, without copying the cache."""

    def __init__(self, replicas: Informer[longhorn.Replica], disks: DiskIndex) -> None:
        self._replicas = replicas
        self._disks = disks

    def __getitem__(self, volume: str) -> tuple[longhorn.Replica, ...]:
        names = sorted(self._disks.replicas_of(volume))
        replicas = tuple(each for name in names if isinstance(each := self._replicas.value(name), longhorn.Replica))
        if not replicas:
            raise KeyError(volume)
        return replicas

    def __iter__(self) -> Iterator[str]:
        return iter({replica.volume for replica in self._replicas.readable().values()})

    def __len__(self) -> int:
        return len({replica.volume for replica in self._replicas.readable().values()})


def _decoder(group: str, kind: str, model: type[Any]) -> Decode[InformerObject[Any]]:
    return decoder(model_reader(group, kind, model))
