"""Volume expansion: external-resizer and Longhorn's expansion, which Longhorn's space rule allows or refuses."""

import random
from collections.abc import Sequence

from msgspec import Struct

from app.kube.resources import CLAIMS, LONGHORN_VOLUMES, PERSISTENT_VOLUMES
from scheduler_core.errors import QuantityError
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.csi_driver import csi_size
from scheduler_core.longhorn.volume_validation import check_expansion
from scheduler_core.model.quantity import parse_bytes
from scheduler_core.structs import replace
from simulator.actions import Action, AfterDelay, PatchObject, RequeueAfter
from simulator.config import Config
from simulator.disk_schedule_grants import Schedules, granted_size
from simulator.objects import DRIVER
from simulator.provisioner import Claim, PersistentVolume
from simulator.volumes.observation import Replica, Volume, patch_replica_spec


class ExpansionObservation(Struct, frozen=True):
    """The input of a decision about a claim's size."""

    config: Config
    cluster: Cluster
    claim: Claim
    persistent_volume: PersistentVolume
    volume: Volume
    replicas: Sequence[Replica]
    rng: random.Random
    schedules: Schedules

    @property
    def granted_size(self) -> int:
        volume = self.volume.model
        if not self.config.disk_schedules:
            return volume.size
        return granted_size(self.schedules, volume, [replica.model for replica in self.replicas])


def decide_expansion(observation: ExpansionObservation) -> list[Action]:
    """Grows the Longhorn volume if its claim requests more. Then it reports the new size to Kubernetes: in the PersistentVolume
    first, then in the claim.
    """
    claim = observation.claim
    persistent_volume = observation.persistent_volume
    volume = observation.volume
    if persistent_volume.model.driver != DRIVER or claim.deleting or volume.deleting:
        return []
    file_system = (persistent_volume.spec.get("csi") or {}).get("fsType") or ""
    wanted = csi_size(claim.model.spec.request or 0, file_system)
    recorded = _parse_size((persistent_volume.spec.get("capacity") or {}).get("storage"))
    if wanted > max(recorded, volume.model.size):
        return _grow(observation, wanted)
    size = observation.granted_size
    capacity = {"storage": str(size)}
    if size > recorded and wanted > recorded:
        body = {"spec": {"capacity": capacity}}
        return [PatchObject(PERSISTENT_VOLUMES, persistent_volume, body, "PersistentVolume grown")]
    reported = _parse_size((claim.status.get("capacity") or {}).get("storage"))
    if 0 < reported < min(size, wanted):
        body = {"status": {"capacity": capacity}}
        return [PatchObject(CLAIMS, claim, body, "claim grown", status=True, counter="expanded")]
    return []


def _grow(observation: ExpansionObservation, wanted: int) -> list[Action]:
    if expansion_problem(observation, observation.volume.model.size, wanted):
        return [RequeueAfter(observation.config.schedule_retry)]
    size = str(wanted)
    # With DiskSchedules only the volume's size is written: their controllers write the replicas' sizes once all disks have granted them.
    resized = () if observation.config.disk_schedules else observation.replicas
    actions = (
        *(patch_replica_spec(each, {"volumeSize": size}, "replica grows") for each in resized),
        PatchObject(LONGHORN_VOLUMES, observation.volume, {"spec": {"size": size}}, "volume grows"),
    )
    return [AfterDelay("expand", observation.config.expand_seconds, actions)]


def expansion_problem(observation: ExpansionObservation, old: int, new: int) -> str:
    """Why Longhorn refuses a volume's growth from `old` to `new` bytes, "" if it does not."""
    volume = replace(observation.volume.model, size=old)
    models = [replica.model for replica in observation.replicas]
    answers = check_expansion(observation.cluster, volume, models, new)
    answer = observation.rng.choice(sorted(answers, key=lambda each: (each.disk, each.reason or "")))
    if answer.reason is None:
        return ""
    return f"error while CheckReplicasSizeExpansion for volume {volume.name}: disk {answer.disk}: {answer.reason.value}"


def _parse_size(text: object) -> int:
    try:
        return parse_bytes(str(text)) if text else 0
    except QuantityError:
        return 0
