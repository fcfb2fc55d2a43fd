"""The controllers: which change wakes which key, and what each decision is given to see."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.readiness import engine_image_ready
from scheduler_core.longhorn.settings import parse_bool
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import V1, V2
from scheduler_core.model.quantity import parse_bytes
from scheduler_core.model.snapshot import NamespacedName
from simulator import images
from simulator.action_runner import Performer
from simulator.attacher import Attaching, Attachment, decide_attachment
from simulator.config import Config
from simulator.controller_queue import Queue
from simulator.csi_capacity import decide_capacities
from simulator.event_routing import Wakes
from simulator.expander import Growing, decide_expansion
from simulator.nodes import NodeSight, decide_node, disk_uuid, manager_name
from simulator.objects import AUTO_SALVAGE, WRITE, timestamp
from simulator.pods import Mount, Pod, decide_pod, missing, waits
from simulator.provisioner import Claim, Provisioning, claim_of, decide_claim, decide_reclaim, volume_name
from simulator.status_lag import StatusLag
from simulator.store import Store
from simulator.volumes.observation import RUNNING, Replica, Sight, Volume, healthy
from simulator.volumes.volume_reconciler import decide, decide_replica

log = structlog.get_logger("simulator")

_FAULT_RETRY: Final = 5.0


class Controllers:
    """One queue per kind of object. Decisions do not wait for anything, so replicas are placed one volume at a time."""

    def __init__(
        self,
        store: Store,
        performer: Performer,
        config: Config,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.performer = performer
        self.config = config
        self.stuck: dict[NamespacedName, tuple[float, str]] = {}
        self._rng = rng
        self.volumes = self._queue("volumes", self._volume)
        self.replicas = self._queue("replicas", self._replica)
        self.nodes = self._queue("nodes", self._node)
        self.claims = self._queue("claims", self._claim)
        self.persistent_volumes = self._queue("persistentvolumes", self._persistent_volume)
        self.attachments = self._queue("attachments", self._attachment)
        self.pods = self._queue("pods", self._pod)
        self.images = self._queue("backingimages", self._backing_image)
        self.queues: tuple[Queue[Any], ...] = (
            self.volumes,
            self.replicas,
            self.nodes,
            self.claims,
            self.persistent_volumes,
            self.attachments,
            self.pods,
            self.images,
        )
        self._lag = StatusLag(store.replicas, config.status_lag, clock)
        Wakes(self).listen()

    def _queue(self, name: str, handle: Callable[[Any], Awaitable[float | None]]) -> Queue[Any]:
        return Queue(name, handle, self._rng, workers=self.config.workers)

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as group:
            for queue in self.queues:
                group.create_task(queue.run(), name=queue.name)
            group.create_task(self._every(self.config.status_period, self._sync_nodes), name="node status")
            period = self.config.capacity_period
            if isinstance(period, (int, float)):
                group.create_task(self._every(period, self._report_capacity), name="capacity")

    async def _every(self, period: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except CoreError as error:
                log.warning("will be tried again", error=str(error))
            await asyncio.sleep(period)

    async def _sync_nodes(self) -> None:
        store = self.store
        image = store.engine_images.get("ei-simulated")
        await self.performer.perform("engine image", images.decide_engine_image(image, store.longhorn_nodes.objects))
        for name in store.nodes.objects.keys() | store.longhorn_nodes.objects.keys():
            self.nodes.add(name)

    async def _report_capacity(self) -> None:
        store = self.store
        actions = decide_capacities(
            store.cluster(_now()), store.storage_classes.objects.values(), store.capacities.objects
        )
        await self.performer.perform("capacity", actions)

    async def _volume(self, name: str) -> float | None:
        volume = self.store.volumes.get(name)
        actions = decide(self._sight(volume)) if volume is not None else []
        return await self.performer.perform(f"volume {name}", actions)

    def _sight(self, volume: Volume) -> Sight:
        store = self.store
        now = _now()
        return Sight(
            config=self.config,
            cluster=store.cluster(now),
            volume=volume,
            replicas=tuple(store.replicas_of.of(volume.name)),
            rng=self._rng,
            now=now,
            kubernetes=self._kubernetes(volume),
            write_target=self._write_target(volume),
            abandoned=self._abandoned(volume),
            copying=self._copying(volume),
            auto_salvage=_auto_salvage(store),
            schedules=store.disk_schedules.models,
        )

    def _copying(self, volume: Volume) -> frozenset[str]:
        """The disks that wait for the volume's backing image; with DiskSchedules also those it is not listed for yet."""
        name = volume.model.backing_image
        image = self.store.backing_images.get(name) if name else None
        if image is None:
            return frozenset()
        waiting = frozenset(images.missing(image))
        if not self.config.disk_schedules:
            return waiting
        disks = {replica.model.disk_id for replica in self.store.replicas_of.of(volume.name)}
        return waiting | (disks - set(image.model.disks))

    def _kubernetes(self, volume: Volume) -> dict[str, str]:
        """Whose volume it is, as status.kubernetesStatus says it; {} if it has no PersistentVolume."""
        for persistent_volume in self.store.persistent_volumes_of.of(volume.name):
            namespace, name, _ = persistent_volume.model.claim or ("", "", "")
            return {"pvName": persistent_volume.name, "namespace": namespace, "pvcName": name}
        return {}

    def _write_target(self, volume: Volume) -> int:
        texts = [volume.annotations.get(WRITE)]
        for persistent_volume in self.store.persistent_volumes_of.of(volume.name):
            key = persistent_volume.model.claim
            claim = self.store.claims.get(key[:2]) if key else None
            texts.append(claim.annotations.get(WRITE) if claim is not None else None)
        sizes = [0]
        for text in texts:
            try:
                sizes += [parse_bytes(text)] if text else []
            except QuantityError as error:
                log.warning("annotation cannot be read", annotation=WRITE, volume=volume.name, error=str(error))
        return max(sizes)

    def _abandoned(self, volume: Volume) -> bool:
        key = claim_of(volume)
        bound_before = (volume.status.get("kubernetesStatus") or {}).get("pvName")
        if key is None or bound_before or self.store.persistent_volumes_of.of(volume.name):
            return False
        claim = self.store.claims.get(key[:2])
        return claim is None or claim.uid != key[2]

    async def _replica(self, name: str) -> float | None:
        replica = self.store.replicas.get(name)
        actions = decide_replica(replica, self.config) if replica is not None else []
        return await self.performer.perform(f"replica {name}", actions)

    async def _claim(self, key: NamespacedName) -> float | None:
        claim = self.store.claims.get(key)
        owner = f"claim {key[0]}/{key[1]}"
        if claim is None:
            return await self.performer.perform(owner, [])
        bound = self._growing(claim)
        if bound is not None:
            return await self.performer.perform(owner, decide_expansion(bound))
        name = volume_name(claim)
        sight = Provisioning(
            config=self.config,
            claim=claim,
            storage_class=self.store.storage_classes.get(claim.model.spec.storage_class or ""),
            volume=self.store.volumes.get(name),
            persistent_volume=self.store.persistent_volumes.get(name),
            settings=self.store.longhorn_settings,
            nodes=self.store.longhorn_nodes.models.values(),
        )
        try:
            actions = decide_claim(sight)
        except CoreError as error:
            self.performer.counters["provisioning_errors"] += 1
            log.warning("cannot be provisioned", claim=owner, error=str(error))
            return _FAULT_RETRY
        return await self.performer.perform(owner, actions)

    def _growing(self, claim: Claim) -> Growing | None:
        """A bound claim with everything its size depends on, None if it is not bound to a volume of Longhorn's."""
        store = self.store
        persistent_volume = store.persistent_volumes.get(claim.model.spec.volume_name)
        volume = store.volumes.get(persistent_volume.model.handle) if persistent_volume is not None else None
        if persistent_volume is None or volume is None:
            return None
        replicas = store.replicas_of.of(volume.name)
        return Growing(
            self.config,
            store.cluster(_now()),
            claim,
            persistent_volume,
            volume,
            replicas,
            self._rng,
            store.disk_schedules.models,
        )

    async def _persistent_volume(self, name: str) -> float | None:
        persistent_volume = self.store.persistent_volumes.get(name)
        if persistent_volume is None:
            return None
        attached = bool(self.store.attachments_of.of(name))
        volume = self.store.volumes.get(persistent_volume.model.handle)
        actions = decide_reclaim(persistent_volume, volume, attached=attached)
        return await self.performer.perform(f"pv {name}", actions)

    async def _attachment(self, name: str) -> float | None:
        attachment = self.store.attachments.get(name)
        if attachment is None:
            return await self.performer.perform(f"attachment {name}", [])
        return await self.performer.perform(f"attachment {name}", decide_attachment(self._attaching(attachment)))

    def _attaching(self, attachment: Attachment) -> Attaching:
        store = self.store
        persistent_volume = store.persistent_volumes.get(attachment.model.persistent_volume)
        handle = persistent_volume.model.handle if persistent_volume else attachment.model.persistent_volume
        node = store.longhorn_nodes.models.get(attachment.model.node)
        siblings = store.attachments_of.of(attachment.model.persistent_volume)
        volume = store.volumes.get(handle)
        return Attaching(
            config=self.config,
            attachment=attachment,
            handle=handle,
            volume=volume,
            replicas=store.replicas_of.of(handle),
            others=[each for each in siblings if each.name != attachment.name and not each.deleting],
            node_ready=node is not None and node.ready,
            image_ready=volume is None or self._image_ready(volume, attachment.model.node),
            now=_now(),
        )

    def _image_ready(self, volume: Volume, node: str) -> bool:
        return engine_image_ready(self.store.cluster(_now()), volume.model.data_engine, volume.model.image, node)

    def mounts(self, pod: Pod) -> list[Mount]:
        """A pod's claims with what they are bound to."""
        store = self.store
        found: dict[str, Mount] = {}
        for volume in pod.model.volumes:
            claim = store.claims.get((pod.model.namespace, volume.claim))
            name = claim.model.spec.volume_name if claim is not None else ""
            persistent_volume = store.persistent_volumes.get(name) if name else None
            attachments = store.attachments_of.of(name) if name else []
            found[volume.claim] = Mount(volume.claim, persistent_volume, attachments)
        return list(found.values())

    async def _pod(self, key: NamespacedName) -> float | None:
        pod = self.store.pods.get(key)
        if pod is None or not waits(pod):
            self.stuck.pop(key, None)
            return None
        mounts = self.mounts(pod)
        reason = missing(pod, mounts)
        if reason:
            since = self.stuck.get(key, (asyncio.get_running_loop().time(), ""))[0]
            self.stuck[key] = (since, reason)
        else:
            self.stuck.pop(key, None)
        return await self.performer.perform(f"pod {pod.model.key}", decide_pod(pod, mounts))

    async def _node(self, name: str) -> float | None:
        try:
            actions = decide_node(self._node_sight(name))
        except CoreError as error:
            log.warning("node left alone", error=str(error))
            return _FAULT_RETRY
        again = await self.performer.perform(f"node {name}", actions)
        return min((wait for wait in (again, self._lag.wait(name)) if wait is not None), default=None)

    def _node_sight(self, name: str) -> NodeSight:
        store = self.store
        now = _now()
        replicas = store.replicas_on.of(name)
        managers = {engine: store.instance_managers.get(manager_name(name, engine)) for engine in (V1, V2)}
        here = store.cluster(now)
        return NodeSight(
            config=self.config,
            # Only this node's replicas count on its disks: looking at all of them for every node would take long.
            cluster=_only(here, self._lag.seen(name, (replica.model for replica in replicas)), name),
            node=store.nodes.get(name),
            longhorn_node=store.longhorn_nodes.get(name),
            csi_node=store.csi_nodes.get(name),
            managers={engine: manager for engine, manager in managers.items() if manager is not None},
            replicas=replicas,
            written=self._written(name, replicas),
            others={volume: self._healthy_elsewhere(volume, name) for volume in {r.model.volume for r in replicas}},
            time=timestamp(now),
            manager_image=images.MANAGER_IMAGE,
        )

    def _healthy_elsewhere(self, volume: str, node: str) -> bool:
        return any(healthy(each) and each.model.node_id != node for each in self.store.replicas_of.of(volume))

    def _written(self, node: str, replicas: list[Replica]) -> dict[str, int]:
        """What is on each disk: the data of every replica that had or is being given any, and the backing images' copies."""
        written: dict[str, int] = {}
        for replica in replicas:
            volume = self.store.volumes.models.get(replica.model.volume)
            if volume is not None and _has_data(replica):
                disk = replica.model.disk_id
                written[disk] = written.get(disk, 0) + volume.actual_size
        known = self.store.longhorn_nodes.models.get(node)
        for entry in known.disks if known is not None else ():
            identity = disk_uuid(node, entry.name)
            for image in self.store.backing_images.objects.values():
                if identity in image.model.disks and identity not in images.missing(image):
                    written[identity] = written.get(identity, 0) + image.model.real_size
        return written

    async def _backing_image(self, name: str) -> float | None:
        image = self.store.backing_images.get(name)
        if image is None:
            return await self.performer.perform(f"image {name}", [])
        store = self.store
        using = [
            (volume, [replica.model for replica in store.replicas_of.of(volume.name)])
            for volume in store.volumes.objects.values()
            if volume.model.backing_image == name
        ]
        needed = images.needed_disks(name, using)
        actions = images.decide_backing_image(image, needed, self.config, store.disk_schedules.models)
        return await self.performer.perform(f"image {name}", actions)


def _only(cluster: Cluster, replicas: tuple[longhorn.Replica, ...], node: str) -> Cluster:
    return replace(cluster, replicas_by_volume={node: replicas})


def _has_data(replica: Replica) -> bool:
    """Whether a replica occupies its volume's data: it was healthy once, or runs and is being rebuilt."""
    return bool(replica.model.healthy_at or replica.spec.get("lastHealthyAt") or replica.model.current_state == RUNNING)


def _auto_salvage(store: Store) -> bool:
    try:
        return parse_bool(store.settings.models.get(AUTO_SALVAGE, "true"))
    except ValueError:
        return True  # as if it were not set


def _now() -> datetime:
    return datetime.now(UTC)
