"""The simulated controllers: one queue per kind of object, and the observation that each decision gets.

Data flow: a key from a queue → an observation of its object, from the tables → a pure decision → actions → `action_runner.py`.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from scheduler_core.errors import CoreError, QuantityError
from scheduler_core.longhorn.settings import parse_bool
from scheduler_core.longhorn.stages import engine_image_ready
from scheduler_core.model import longhorn
from scheduler_core.model.longhorn import V1, V2
from scheduler_core.model.quantity import parse_bytes
from scheduler_core.model.snapshot import NamespacedName
from scheduler_core.structs import replace
from simulator import images
from simulator.action_runner import ActionRunner
from simulator.attacher import Attachment, AttachmentObservation, Publish, PublishCalls, decide_attachment
from simulator.config import Config
from simulator.controller_queue import ControllerQueue, LonghornQueue
from simulator.event_routing import EventRouter
from simulator.expander import ExpansionObservation, decide_expansion
from simulator.nodes import NodeObservation, decide_node, disk_uuid, manager_name
from simulator.objects import AUTO_SALVAGE, DISK_LABEL, NODE_LABEL, WRITE, timestamp
from simulator.pods import Mount, Pod, decide_pod, is_waiting, waiting_reason
from simulator.provisioner import (
    Claim,
    ClaimObservation,
    claim_reference,
    decide_capacities,
    decide_claim,
    decide_reclaim,
    volume_name,
)
from simulator.status_lag import Place, StatusLag
from simulator.tables import Store
from simulator.volumes.observation import RUNNING, Replica, Volume, VolumeObservation, is_healthy
from simulator.volumes.volume_reconciler import decide_replica, decide_volume

log = structlog.get_logger("simulator")

_FAULT_RETRY_SECONDS = 5.0


class Controllers:
    """Reconciles every kind of object, each through its own queue.

    A decision never awaits anything, so replicas are placed one volume at a time.

    Attributes:
        waiting_pods: pods that have a node but not their volumes, with the time since when and the reason
    """

    def __init__(
        self,
        store: Store,
        runner: ActionRunner,
        config: Config,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store
        self.runner = runner
        self.config = config
        self.waiting_pods: dict[NamespacedName, tuple[float, str]] = {}
        self._rng = rng
        self.volumes: ControllerQueue[Any] = LonghornQueue(
            "volumes", self.reconcile_volume, rng, workers=config.workers, resync_period=config.resync_period
        )
        self.replicas = self._create_queue("replicas", self.reconcile_replica)
        self.nodes = self._create_queue("nodes", self.reconcile_node)
        self.claims = self._create_queue("claims", self.reconcile_claim)
        self.persistent_volumes = self._create_queue("persistentvolumes", self.reconcile_persistent_volume)
        self.attachments = self._create_queue("attachments", self.reconcile_attachment)
        self.pods = self._create_queue("pods", self.reconcile_pod)
        self.images = self._create_queue("backingimages", self.reconcile_backing_image)
        self.queues = [value for value in vars(self).values() if isinstance(value, ControllerQueue)]
        place_of = _labelled_place if config.places_replicas else _place
        self._lag = StatusLag(store.replicas, place_of, config, clock, rng)
        self.publish_calls = PublishCalls(config, clock)
        EventRouter(self).subscribe()

    def _create_queue(self, name: str, handle: Callable[[Any], Awaitable[float | None]]) -> ControllerQueue[Any]:
        return ControllerQueue(name, handle, self._rng, workers=self.config.workers)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for queue in self.queues:
                group.create_task(queue.run(), name=queue.name)
            group.create_task(self._repeat(self.config.status_period, self.sync_nodes), name="node status")
            period = self.config.capacity_period
            if isinstance(period, (int, float)):
                group.create_task(self._repeat(period, self.report_capacity), name="capacity")

    async def _repeat(self, period: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except CoreError as error:
                log.warning("will be tried again", error=str(error))
            await asyncio.sleep(period)

    async def sync_nodes(self) -> None:
        """Writes the engine image, and enqueues every node."""
        store = self.store
        image = store.engine_images.get("ei-simulated")
        await self.runner.run("engine image", images.decide_engine_image(image, store.longhorn_nodes.objects))
        for name in store.nodes.objects.keys() | store.longhorn_nodes.objects.keys():
            self.nodes.add(name)

    async def report_capacity(self) -> None:
        """Writes the CSIStorageCapacity objects."""
        store = self.store
        actions = decide_capacities(
            store.cluster(datetime.now(UTC)), store.storage_classes.objects.values(), store.capacities.objects
        )
        await self.runner.run("capacity", actions)

    async def reconcile_volume(self, name: str) -> float | None:
        """Brings a volume a step on; returns the seconds until it needs another."""
        volume = self.store.volumes.get(name)
        actions = decide_volume(self._observe_volume(volume)) if volume is not None else []
        return await self.runner.run(f"volume {name}", actions)

    def _observe_volume(self, volume: Volume) -> VolumeObservation:
        store = self.store
        now = datetime.now(UTC)
        return VolumeObservation(
            config=self.config,
            cluster=store.cluster(now),
            volume=volume,
            replicas=tuple(store.replicas_by_volume.get(volume.name)),
            rng=self._rng,
            now=now,
            kubernetes_status=self._kubernetes_status(volume),
            write_target=self._write_target(volume),
            abandoned=self._lacks_claim(volume),
            disks_awaiting_image=self._disks_awaiting_image(volume),
            auto_salvage=_is_auto_salvage_on(store),
            schedules=store.disk_schedules.models,
            shards=tuple(store.shards_by_volume.get(volume.name)),
        )

    def _disks_awaiting_image(self, volume: Volume) -> frozenset[str]:
        """Disks that still lack the volume's backing image. With DiskSchedules these include disks of the volume's replicas for
        which the image is not listed yet.
        """
        name = volume.model.backing_image
        image = self.store.backing_images.get(name) if name else None
        if image is None:
            return frozenset()
        waiting = frozenset(images.missing_copies(image))
        if not self.config.disk_schedules:
            return waiting
        disks = {replica.model.disk_id for replica in self.store.replicas_by_volume.get(volume.name)}
        return waiting | (disks - set(image.model.disks))

    def _kubernetes_status(self, volume: Volume) -> dict[str, str]:
        for persistent_volume in self.store.persistent_volumes_by_handle.get(volume.name):
            namespace, name, _ = persistent_volume.model.claim or ("", "", "")
            return {"pvName": persistent_volume.name, "namespace": namespace, "pvcName": name}
        return {}

    def _write_target(self, volume: Volume) -> int:
        texts = [volume.annotations.get(WRITE)]
        for persistent_volume in self.store.persistent_volumes_by_handle.get(volume.name):
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

    def _lacks_claim(self, volume: Volume) -> bool:
        key = claim_reference(volume)
        bound_before = (volume.status.get("kubernetesStatus") or {}).get("pvName")
        if key is None or bound_before or self.store.persistent_volumes_by_handle.get(volume.name):
            return False
        claim = self.store.claims.get(key[:2])
        return claim is None or claim.uid != key[2]

    async def reconcile_replica(self, name: str) -> float | None:
        replica = self.store.replicas.get(name)
        actions = decide_replica(replica, self.config) if replica is not None else []
        return await self.runner.run(f"replica {name}", actions)

    async def reconcile_claim(self, key: NamespacedName) -> float | None:
        """As `reconcile_volume`, for a claim."""
        claim = self.store.claims.get(key)
        owner = f"claim {key[0]}/{key[1]}"
        if claim is None:
            return await self.runner.run(owner, [])
        bound = self.observe_expansion(claim)
        if bound is not None:
            return await self.runner.run(owner, decide_expansion(bound))
        name = volume_name(claim)
        observation = ClaimObservation(
            config=self.config,
            claim=claim,
            storage_class=self.store.storage_classes.get(claim.model.spec.storage_class or ""),
            volume=self.store.volumes.get(name),
            persistent_volume=self.store.persistent_volumes.get(name),
            settings=self.store.longhorn_settings,
            snapshot=self.store.provisioning_snapshot(),
        )
        try:
            actions = decide_claim(observation)
        except CoreError as error:
            self.runner.counters["provisioning_errors"] += 1
            log.warning("cannot be provisioned", claim=owner, error=str(error))
            return _FAULT_RETRY_SECONDS
        return await self.runner.run(owner, actions)

    def observe_expansion(self, claim: Claim) -> ExpansionObservation | None:
        """The observation for an expansion, None if no Longhorn volume is bound."""
        store = self.store
        persistent_volume = store.persistent_volumes.get(claim.model.spec.volume_name)
        volume = store.volumes.get(persistent_volume.model.handle) if persistent_volume is not None else None
        if persistent_volume is None or volume is None:
            return None
        replicas = store.replicas_by_volume.get(volume.name)
        return ExpansionObservation(
            self.config,
            store.cluster(datetime.now(UTC)),
            claim,
            persistent_volume,
            volume,
            replicas,
            self._rng,
            store.disk_schedules.models,
        )

    async def reconcile_persistent_volume(self, name: str) -> float | None:
        """As `reconcile_volume`, for a PersistentVolume."""
        persistent_volume = self.store.persistent_volumes.get(name)
        if persistent_volume is None:
            return None
        attached = bool(self.store.attachments_by_volume.get(name))
        volume = self.store.volumes.get(persistent_volume.model.handle)
        actions = decide_reclaim(persistent_volume, volume, attached=attached)
        return await self.runner.run(f"pv {name}", actions)

    async def reconcile_attachment(self, name: str) -> float | None:
        """As `reconcile_volume`, for a VolumeAttachment."""
        attachment = self.store.attachments.get(name)
        if attachment is None:
            self._end_publish_call(name)
            return await self.runner.run(f"attachment {name}", [])
        if not self.publish_calls.take_worker(name):
            return None
        decision = decide_attachment(self._observe_attachment(attachment))
        delay = await self.runner.run(f"attachment {name}", decision.actions)
        if decision.publish is Publish.IN_PROGRESS:
            self.publish_calls.keep(name)
            return delay
        failed = decision.publish is Publish.FAILED
        self._end_publish_call(name, failed=failed)
        return self.publish_calls.retry_delay(name) if failed else delay

    def _end_publish_call(self, name: str, *, failed: bool = False) -> None:
        for waiting in self.publish_calls.end(name, failed=failed):
            self.attachments.add(waiting)

    def _observe_attachment(self, attachment: Attachment) -> AttachmentObservation:
        store = self.store
        persistent_volume = store.persistent_volumes.get(attachment.model.persistent_volume)
        handle = persistent_volume.model.handle if persistent_volume else attachment.model.persistent_volume
        node = store.longhorn_nodes.models.get(attachment.model.node)
        siblings = store.attachments_by_volume.get(attachment.model.persistent_volume)
        volume = store.volumes.get(handle)
        return AttachmentObservation(
            config=self.config,
            attachment=attachment,
            handle=handle,
            volume=volume,
            replicas=store.replicas_by_volume.get(handle),
            other_attachments=[each for each in siblings if each.name != attachment.name and not each.deleting],
            is_node_ready=node is not None and node.ready,
            is_image_ready=volume is None or self._is_image_ready(volume, attachment.model.node),
            now=datetime.now(UTC),
            call=self.publish_calls.get(attachment.name),
        )

    def _is_image_ready(self, volume: Volume, node: str) -> bool:
        return engine_image_ready(
            self.store.cluster(datetime.now(UTC)), volume.model.data_engine, volume.model.image, node
        )

    def mounts(self, pod: Pod) -> list[Mount]:
        """A pod's claims with their PersistentVolumes and attachments."""
        store = self.store
        mounts: dict[str, Mount] = {}
        for volume in pod.model.volumes:
            claim = store.claims.get((pod.model.namespace, volume.claim))
            name = claim.model.spec.volume_name if claim is not None else ""
            persistent_volume = store.persistent_volumes.get(name) if name else None
            attachments = store.attachments_by_volume.get(name) if name else []
            mounts[volume.claim] = Mount(volume.claim, persistent_volume, attachments)
        return list(mounts.values())

    async def reconcile_pod(self, key: NamespacedName) -> float | None:
        """As `reconcile_volume`, for a pod."""
        pod = self.store.pods.get(key)
        if pod is None or not is_waiting(pod):
            self.waiting_pods.pop(key, None)
            return None
        mounts = self.mounts(pod)
        reason = waiting_reason(pod, mounts)
        if reason:
            since = self.waiting_pods.get(key, (asyncio.get_running_loop().time(), ""))[0]
            self.waiting_pods[key] = (since, reason)
        else:
            self.waiting_pods.pop(key, None)
        return await self.runner.run(f"pod {pod.model.key}", decide_pod(pod, mounts))

    async def reconcile_node(self, name: str) -> float | None:
        """As `reconcile_volume`, for a node."""
        try:
            actions = decide_node(self._observe_node(name))
        except CoreError as error:
            log.warning("node left alone", error=str(error))
            return _FAULT_RETRY_SECONDS
        delay = await self.runner.run(f"node {name}", actions)
        return min((wait for wait in (delay, self._lag.seconds_until_next(name)) if wait is not None), default=None)

    def _observe_node(self, name: str) -> NodeObservation:
        store = self.store
        now = datetime.now(UTC)
        replicas = store.replicas_by_node.get(name)
        labelled = self._labelled_replicas(name)
        counted = (
            map(_with_labelled_disk, labelled) if self.config.places_replicas else (each.model for each in replicas)
        )
        managers = {engine: store.instance_managers.get(manager_name(name, engine)) for engine in (V1, V2)}
        visible = self._lag.visible_replicas(name, counted)
        return NodeObservation(
            config=self.config,
            # Only this node's replicas count on its disks; reading all replicas for every node would take long.
            cluster=replace(store.cluster(now), replicas_by_volume={name: visible}),
            node=store.nodes.get(name),
            longhorn_node=store.longhorn_nodes.get(name),
            csi_node=store.csi_nodes.get(name),
            instance_managers={engine: manager for engine, manager in managers.items() if manager is not None},
            replicas=replicas,
            labelled_replicas=labelled,
            written_bytes=self._written_bytes(name, replicas),
            healthy_elsewhere={
                volume: self._has_healthy_replica_elsewhere(volume, name)
                for volume in {r.model.volume for r in replicas}
            },
            time=timestamp(now),
            manager_image=images.MANAGER_IMAGE,
            shard_bytes=store.shard_bytes(name),
        )

    def _labelled_replicas(self, node: str) -> list[Replica]:
        """The replicas that are labelled with a disk of a node (ListReplicasByDiskUUID). There are none where another process
        places replicas: it need not label them, so spec.diskID counts.
        """
        longhorn_node = self.store.longhorn_nodes.models.get(node) if self.config.places_replicas else None
        disks = longhorn_node.disks if longhorn_node is not None else ()
        return [
            replica for disk in disks for replica in self.store.replicas_by_disk_label.get(disk_uuid(node, disk.name))
        ]

    def _has_healthy_replica_elsewhere(self, volume: str, node: str) -> bool:
        return any(
            is_healthy(each) and each.model.node_id != node for each in self.store.replicas_by_volume.get(volume)
        )

    def _written_bytes(self, node: str, replicas: list[Replica]) -> dict[str, int]:
        """The bytes on a node's disks, by disk UUID. Counted are the data of each replica that has or is given any, and the
        copies of backing images.
        """
        written: dict[str, int] = {}
        for replica in replicas:
            volume = self.store.volumes.models.get(replica.model.volume)
            if volume is not None and _has_data(replica):
                disk = replica.model.disk_id
                written[disk] = written.get(disk, 0) + volume.actual_size
        longhorn_node = self.store.longhorn_nodes.models.get(node)
        for entry in longhorn_node.disks if longhorn_node is not None else ():
            identity = disk_uuid(node, entry.name)
            for image in self.store.backing_images.objects.values():
                if identity in image.model.disks and identity not in images.missing_copies(image):
                    written[identity] = written.get(identity, 0) + image.model.real_size
        return written

    async def reconcile_backing_image(self, name: str) -> float | None:
        """As `reconcile_volume`, for a backing image."""
        image = self.store.backing_images.get(name)
        if image is None:
            return await self.runner.run(f"image {name}", [])
        store = self.store
        needed = {
            replica.model.disk_id
            for volume in store.volumes.objects.values()
            if volume.model.backing_image == name
            for replica in store.replicas_by_volume.get(volume.name)
        }
        actions = images.decide_backing_image(image, sorted(needed - {""}), self.config, store.disk_schedules.models)
        return await self.runner.run(f"image {name}", actions)


def _place(replica: Replica) -> Place:
    return replica.model.node_id, replica.model.disk_id


def _labelled_place(replica: Replica) -> Place:
    return replica.labels.get(NODE_LABEL, ""), replica.labels.get(DISK_LABEL, "")


def _with_labelled_disk(replica: Replica) -> longhorn.Replica:
    """The replica on the disk of its label, which is where Longhorn counts it."""
    return replace(replica.model, disk_id=replica.labels[DISK_LABEL])


def _has_data(replica: Replica) -> bool:
    return bool(replica.model.healthy_at or replica.spec.get("lastHealthyAt") or replica.model.current_state == RUNNING)


def _is_auto_salvage_on(store: Store) -> bool:
    try:
        return parse_bool(store.settings.models.get(AUTO_SALVAGE, "true"))
    except ValueError:
        return True  # as if it were not set
