"""Clusters of any size and pods with Longhorn volumes from a source of chance that is passed in, and the runs of each strategy."""

import random
from collections.abc import Mapping, Sequence

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.longhorn.csi_driver import DRIVER
from scheduler_core.model import kube, longhorn
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.predict.predicted_replicas import Choose
from scheduler_core.predict.situation import Situation
from tests.builders import Object, disk, kube_node, longhorn_node
from tests.worlds.paced_timeline import Pace
from tests.worlds.predicted_clusters import situation
from tests.worlds.strategies import STRATEGIES, StrategyName, StrategyRun, run_strategy

GIBIBYTE = 2**30
STORAGE_CLASS = "longhorn"
HOST_NAME_LABEL = "kubernetes.io/hostname"
VOLUME_SIZES = tuple(size * GIBIBYTE for size in (10, 20, 40, 80))
NAMESPACE = "generated"
_MOST_DISKS = 3
# How large a disk is compared with others.
_DISK_SHARES = (1, 2, 3)
_OPEN = (kube.Condition("Ready", "True"), kube.Condition("Schedulable", "True"))


def draw_volume_sizes(pods: int, volumes: int, choose: Choose) -> list[tuple[int, ...]]:
    """Returns the sizes of each pod's volumes, in bytes."""
    return [tuple(VOLUME_SIZES[choose(len(VOLUME_SIZES))] for _ in range(volumes)) for _ in range(pods)]


def draw_cluster(nodes: int, capacity: int, choose: Choose) -> Snapshot:
    """Returns a cluster of nodes with one to three empty disks of at least 1 GiB each, whose limits add up to about `capacity` bytes. Its
    only StorageClass is that of Longhorn's proposal: best-effort data locality and one replica. Longhorn's settings have their defaults.
    """
    shares = [[_DISK_SHARES[choose(len(_DISK_SHARES))] for _ in range(choose(_MOST_DISKS) + 1)] for _ in range(nodes)]
    unit = capacity / max(1, sum(map(sum, shares)))
    names = [f"node-{number:0{len(str(nodes))}}" for number in range(1, nodes + 1)]
    longhorn_nodes = {name: _longhorn_node(name, of_node, unit) for name, of_node in zip(names, shares, strict=True)}
    parameters = {"numberOfReplicas": "1", "dataLocality": longhorn.BEST_EFFORT}
    storage_class = kube.StorageClass(STORAGE_CLASS, DRIVER, parameters, is_default=True, waits_for_consumer=True)
    return Snapshot(
        nodes={name: kube.Node(name, {HOST_NAME_LABEL: name}, conditions=(_OPEN[0],)) for name in names},
        longhorn_nodes=longhorn_nodes,
        storage_classes={STORAGE_CLASS: storage_class},
    )


def _longhorn_node(name: str, shares: Sequence[int], unit: float) -> longhorn.Node:
    disks = tuple(
        _disk(f"{name}-disk-{number}", f"disk-{number}", max(1, round(share * unit / GIBIBYTE)) * GIBIBYTE)
        for number, share in enumerate(shares, start=1)
    )
    return longhorn.Node(name, allow_scheduling=True, conditions=_OPEN, disks=disks)


def _disk(uuid: str, name: str, size: int) -> longhorn.Disk:
    return longhorn.Disk(
        name=name,
        uuid=uuid,
        path=f"/var/lib/{name}/",
        allow_scheduling=True,
        spec_type=longhorn.FILESYSTEM,
        status_type=longhorn.FILESYSTEM,
        filesystem_type="ext4",
        storage_maximum=size,
        storage_available=size,
        conditions=_OPEN,
    )


def add_pods(situation: Situation, sizes: Sequence[Sequence[int]]) -> Situation:
    """Adds pods, each with new volumes of these sizes in bytes."""
    digits = len(str(len(sizes)))
    for number, of_pod in enumerate(sizes, start=1):
        situation = situation.with_new_pod(_pod(f"pod-{number:0{digits}}", of_pod))
    return situation


def _pod(name: str, sizes: Sequence[int]) -> kube.Pod:
    templates = [kube.ClaimSpec(STORAGE_CLASS, size, ("ReadWriteOnce",)) for size in sizes]
    mounts = tuple(
        kube.ClaimVolume(f"data-{number}", f"data-{number}-{name}", template)
        for number, template in enumerate(templates, start=1)
    )
    return kube.Pod(NAMESPACE, name, uid=f"generated-{name}", volumes=mounts)


AT_ONCE = Pace(lag=0, binding=0)


def disks_of(name: str, *sizes: float) -> list[Object]:
    """A node with one empty Longhorn disk for each size in Gi."""
    disks = {f"disk-{number}": disk(size) for number, size in enumerate(sizes, start=1)}
    raw = longhorn_node(name, disks)
    for number, spec in enumerate(raw["spec"]["disks"].values(), start=1):
        spec["path"] = f"/data/{number}/"
    return [kube_node(name), raw]


def with_pods(nodes: Mapping[str, Sequence[float]], *pods: Sequence[float]) -> Situation:
    """Nodes with disks, and pods with best-effort volumes. All sizes are in Gi."""
    start = situation(*(disks_of(name, *sizes) for name, sizes in nodes.items()))
    return add_pods(start, [[int(size * GIBIBYTE) for size in sizes] for sizes in pods])


def play_strategy(
    start: Situation, name: StrategyName, seed: int = 0, pace: Pace | None = None, packing: Packing = Packing.AUTO
) -> StrategyRun:
    strategy = STRATEGIES[name](FilterOptions(packing=packing))
    choose_arrival = random.Random(seed).randrange  # noqa: S311
    choose = random.Random(f"{seed}/choices").randrange  # noqa: S311
    return run_strategy(start, strategy, pace or Pace(), choose_arrival, choose)


def play_seeds(
    start: Situation, name: StrategyName, pace: Pace | None = None, packing: Packing = Packing.AUTO, seeds: int = 20
) -> list[StrategyRun]:
    return [play_strategy(start, name, seed, pace, packing) for seed in range(seeds)]
