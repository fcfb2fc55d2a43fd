"""All that the controllers watch, and how fresh it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from app.disk_schedule.informer import (
    Collection,
    ImageSeen,
    Seen,
    VolumeSeen,
    decode_schedule,
    decoding,
    read_image,
    read_volume,
    reading,
)
from app.kube import resources
from app.kube.client import KubeClient
from app.kube.reflector import Decode, Phase, Reflector, Standing, Timing
from app.kube.resources import Resource
from scheduler_core.convert.snapshot_kinds import LONGHORN_GROUP
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.disk_schedule import DiskSchedule
from scheduler_core.model.snapshot import Snapshot

_OLDEST_SECONDS: Final = 0.25
_MISSING: Final = {
    resources.DISK_SCHEDULES.label: "apply manifests/crd",
    resources.LONGHORN_NODES.label: "is Longhorn installed?",
}


class Watches:
    """Owner of the collections; everything happens on the event loop that runs `run`."""

    def __init__(
        self, client: KubeClient, namespace: str, timing: Timing, now: Callable[[], datetime], stale_after: float
    ) -> None:
        self.schedules = Collection[DiskSchedule]()
        self.nodes = Collection[longhorn.Node]()
        self.volumes = Collection[VolumeSeen]()
        self.replicas = Collection[longhorn.Replica]()
        self.images = Collection[ImageSeen]()
        self._settings = Collection[str]()
        self._engine_images = Collection[longhorn.EngineImage]()
        self._managers = Collection[longhorn.InstanceManager]()
        self._kube_nodes = Collection[kube.Node]()
        self._now = now
        self._clock = timing.clock
        self._stale_after = stale_after
        self._cluster: tuple[tuple[int, ...], float, Cluster] | None = None
        self._reflectors: list[Reflector[Any]] = []
        self._optional = {resources.LONGHORN_BACKING_IMAGES.label}

        def watch(resource: Resource, decode: Decode[Any], sink: Collection[Any]) -> None:
            where = namespace if resource.group == LONGHORN_GROUP else ""
            self._reflectors.append(Reflector(client, resource, decode, sink, timing, namespace=where))

        watch(resources.DISK_SCHEDULES, decode_schedule, self.schedules)
        watch(resources.LONGHORN_NODES, _read(LONGHORN_GROUP, "Node", longhorn.Node), self.nodes)
        watch(resources.LONGHORN_VOLUMES, decoding(read_volume), self.volumes)
        watch(resources.LONGHORN_REPLICAS, _read(LONGHORN_GROUP, "Replica", longhorn.Replica), self.replicas)
        watch(resources.LONGHORN_BACKING_IMAGES, decoding(read_image), self.images)
        watch(resources.LONGHORN_SETTINGS, _read(LONGHORN_GROUP, "Setting", str), self._settings)
        images = _read(LONGHORN_GROUP, "EngineImage", longhorn.EngineImage)
        watch(resources.LONGHORN_ENGINE_IMAGES, images, self._engine_images)
        managers = _read(LONGHORN_GROUP, "InstanceManager", longhorn.InstanceManager)
        watch(resources.LONGHORN_INSTANCE_MANAGERS, managers, self._managers)
        watch(resources.NODES, _read("", "Node", kube.Node), self._kube_nodes)

    async def run(self) -> None:
        """Watches every kind until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run(), name=f"watch {reflector.label}")

    @property
    def standings(self) -> Mapping[str, Standing]:
        """How each kind's cache stands."""
        return {reflector.label: reflector.standing for reflector in self._reflectors}

    @property
    def problem(self) -> str:
        """Why nothing can be decided now, in one sentence; "" if it can."""
        now = self._clock()
        for label, standing in self.standings.items():
            if standing.phase is Phase.MISSING and label not in self._optional:
                return f"the API server knows no {label}" + (f": {_MISSING[label]}" if label in _MISSING else "")
            if standing.phase is Phase.STARTING:
                return f"{label} not listed yet" + (f": {standing.problem}" if standing.problem else "")
            if standing.phase is Phase.SYNCED and standing.behind(now) > self._stale_after:
                return f"{label} not heard of for {standing.behind(now):.0f} s: {standing.problem}"
        return ""

    def unreadable(self) -> Iterator[tuple[str, str, str]]:
        """Kind, name and trouble of each object that cannot be read."""
        kinds: tuple[tuple[Resource, Collection[Any]], ...] = (
            (resources.DISK_SCHEDULES, self.schedules),
            (resources.LONGHORN_NODES, self.nodes),
            (resources.LONGHORN_VOLUMES, self.volumes),
            (resources.LONGHORN_REPLICAS, self.replicas),
            (resources.LONGHORN_BACKING_IMAGES, self.images),
        )
        for resource, collection in kinds:
            for name, fault in collection.unreadable().items():
                yield resource.label, name, str(fault)
        for name, seen in self.images.readable().items():
            # Its disks are known, and that is enough for the mirror; its controller refuses it.
            if seen.copies.faults:
                yield resources.LONGHORN_BACKING_IMAGES.label, name, "; ".join(map(str, seen.copies.faults))

    def cluster(self) -> Cluster:
        """What Longhorn's placement rules read. A setting that does not parse is a fault there, not an error.

        It may be a quarter of a second old: making it costs time in a large cluster, and a disk is chosen by its DiskSchedule, which is
        read separately; an outdated choice is refused there.
        """
        parts = (
            self.nodes, self.volumes, self.replicas, self.images,
            self._settings, self._engine_images, self._managers, self._kube_nodes,
        )  # fmt: skip
        revisions, clock = tuple(part.revision for part in parts), self._clock()
        if self._cluster is not None:
            known, made, cluster = self._cluster
            if known == revisions or clock - made < _OLDEST_SECONDS:
                return replace(cluster, now=self._now())
        snapshot = Snapshot(
            nodes=self._kube_nodes.readable(),
            longhorn_nodes=self.nodes.readable(),
            volumes={name: seen.volume for name, seen in self.volumes.readable().items()},
            replicas=self.replicas.readable(),
            backing_images={name: seen.image for name, seen in self.images.readable().items()},
            engine_images=self._engine_images.readable(),
            instance_managers=self._managers.readable(),
            settings=self._settings.readable(),
        )
        cluster = Cluster.of(snapshot, self._now(), Settings.read(snapshot.settings))
        self._cluster = (revisions, clock, cluster)
        return cluster


def _read(group: str, kind: str, model: type[Any]) -> Decode[Seen[Any]]:
    return decoding(reading(group, kind, model))
