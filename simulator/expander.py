"""Growing claims: external-resizer and Longhorn's expansion, which its own space rule allows or refuses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from app.kube.resources import CLAIMS, LONGHORN_REPLICAS, LONGHORN_VOLUMES, PERSISTENT_VOLUMES
from scheduler_core.errors import QuantityError
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.provisioning import csi_size
from scheduler_core.longhorn.volume_expansion import expansions
from scheduler_core.model.quantity import parse_bytes
from simulator.actions import Action, Patch, Wake
from simulator.config import Config
from simulator.disk_schedule_grants import Schedules, granted_size
from simulator.objects import DRIVER
from simulator.provisioner import Claim, PersistentVolume
from simulator.volumes.observation import Replica, Volume


@dataclass(frozen=True, slots=True)
class Growing:
    """What a decision about a bound claim's size sees."""

    config: Config
    cluster: Cluster
    claim: Claim
    persistent_volume: PersistentVolume
    volume: Volume
    replicas: Sequence[Replica]
    rng: random.Random
    schedules: Schedules

    @property
    def size(self) -> int:
        """How large the volume is: with DiskSchedules what every disk has granted."""
        volume = self.volume.model
        if not self.config.disk_schedules:
            return volume.size
        return granted_size(self.schedules, volume, [replica.model for replica in self.replicas])


def decide_expansion(sight: Growing) -> list[Action]:
    """Grows the Longhorn volume when the claim asks for more, then tells Kubernetes how large it is."""
    claim, persistent_volume, volume = sight.claim, sight.persistent_volume, sight.volume
    if persistent_volume.model.driver != DRIVER or claim.deleting or volume.deleting:
        return []
    file_system = (persistent_volume.spec.get("csi") or {}).get("fsType") or ""
    wanted = csi_size(claim.model.spec.request or 0, file_system)
    known = _size((persistent_volume.spec.get("capacity") or {}).get("storage"))
    if wanted > max(known, volume.model.size):
        return _grow(sight, wanted)
    size = sight.size
    capacity = {"storage": str(size)}
    if size > known and wanted > known:
        body = {"spec": {"capacity": capacity}}
        return [Patch(PERSISTENT_VOLUMES, persistent_volume, body, "PersistentVolume grown")]
    reported = _size((claim.status.get("capacity") or {}).get("storage"))
    if 0 < reported < min(size, wanted):
        body = {"status": {"capacity": capacity}}
        return [Patch(CLAIMS, claim, body, "claim grown", status=True, counts="expanded")]
    return []


def _grow(sight: Growing, wanted: int) -> list[Action]:
    models = [replica.model for replica in sight.replicas]
    answers = expansions(sight.cluster, sight.volume.model, models, wanted)
    answer = sight.rng.choice(sorted(answers, key=lambda each: (each.disk, each.reason or "")))
    if not answer.allowed:
        return [Wake(sight.config.schedule_retry)]
    size = str(wanted)
    # With DiskSchedules only the wish is written: their controllers write replicas' sizes when all disks have granted them.
    growing = () if sight.config.disk_schedules else sight.replicas
    return [
        *(Patch(LONGHORN_REPLICAS, each, {"spec": {"volumeSize": size}}, "replica grows") for each in growing),
        Patch(LONGHORN_VOLUMES, sight.volume, {"spec": {"size": size}}, "volume grows"),
    ]


def _size(text: object) -> int:
    try:
        return parse_bytes(str(text)) if text else 0
    except QuantityError:
        return 0
