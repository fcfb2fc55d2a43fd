"""What a run counts, step by step: pods with their volumes, misplaced volumes and overbooked disks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scheduler_core.extender.overbooking_monitor import bytes_over
from scheduler_core.model import longhorn
from scheduler_core.model.generic import PodKey
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.volumes.resolve import is_local


@dataclass(frozen=True, slots=True)
class Sample:
    """The counts after one step."""

    step: int
    placed: int  # pods with a node whose volumes all have a healthy replica
    waiting: int  # all other pods
    # Volumes that Longhorn has placed on another node than the one their pod needs them on, also if mended later.
    misplaced: int
    overbooked: int  # disks that placements have taken beyond Longhorn's scheduling limit, also if mended later


class Tally:
    """The counts of one run so far."""

    def __init__(self, pods: int, cluster: PredictedCluster) -> None:
        self.running: set[PodKey] = set()  # the pods that are placed
        self.misplaced: set[str] = set()  # names of volumes
        # The most bytes over the limit by node and name of a disk, without disks that were overbooked before the run.
        self.overbooked: dict[tuple[str, str], int] = {}
        self._pods = pods
        self._samples: list[Sample] = []
        uuids = (disk.uuid for node in cluster.snapshot.longhorn_nodes.values() for disk in node.disks)
        self._overbooked_before = frozenset(uuid for uuid in uuids if bytes_over(cluster.state.view, uuid) > 0)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The counts whenever they changed, in order."""
        return tuple(self._samples)

    def note_step(self, step: int) -> None:
        """Notes the counts after a step, if they changed."""
        placed = len(self.running)
        sample = Sample(step, placed, self._pods - placed, len(self.misplaced), len(self.overbooked))
        last = self._samples[-1] if self._samples else None
        if last is not None and replace(last, step=step) == sample:
            return
        if last is not None and last.step == step:
            self._samples.pop()
        self._samples.append(sample)

    def note_placement(self, cluster: PredictedCluster, name: str, *, is_new: bool) -> None:
        """Notes what placing or removing replicas of a volume led to; `is_new`: it had no replica before."""
        replicas = placed_replicas(cluster, name)
        volume = cluster.snapshot.volumes[name]
        on_node = any(replica.node_id == volume.node_id for replica in replicas)
        if is_new and volume.node_id and is_local(volume) and not on_node:
            self.misplaced.add(name)
        for replica in replicas:
            place = cluster.disk_of(replica)
            over = bytes_over(cluster.state.view, replica.disk_id)
            if place is not None and over > 0 and replica.disk_id not in self._overbooked_before:
                key = (place[0].name, place[1].name)
                self.overbooked[key] = max(over, self.overbooked.get(key, 0))


def placed_replicas(cluster: PredictedCluster, name: str) -> list[longhorn.Replica]:
    return [replica for replica in cluster.state.view.replicas_of(name) if replica.node_id]
