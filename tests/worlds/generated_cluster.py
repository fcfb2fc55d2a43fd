"""Clusters of any size and pods with Longhorn volumes from a source of chance that is passed in, and the runs of each strategy."""

import random
from collections.abc import Mapping, Sequence

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.model import kube
from scheduler_core.predict.predicted_replicas import Choose
from scheduler_core.predict.prediction_input import Situation
from tests.builders import Object, disk, kube_node, longhorn_node
from tests.worlds.paced_timeline import Pace
from tests.worlds.predicted_clusters import situation
from tests.worlds.strategies import STRATEGIES, StrategyName, StrategyRun, run_strategy

GIBIBYTE = 2**30
_VOLUME_SIZES = (10, 20, 40, 80)
_MOST_DISKS = 3
# How large a disk is compared with others.
_DISK_SHARES = (1, 2, 3)


def draw_situation(nodes: int, pods: int, volumes: int, fill: int, choose: Choose) -> Situation:
    """Pods of so many volumes, and nodes with one to three empty disks of at least 1 Gi, of which the pods would take
    about `fill` per cent.
    """
    sizes = [[_VOLUME_SIZES[choose(len(_VOLUME_SIZES))] for _ in range(volumes)] for _ in range(pods)]
    shares = [[_DISK_SHARES[choose(len(_DISK_SHARES))] for _ in range(choose(_MOST_DISKS) + 1)] for _ in range(nodes)]
    unit = sum(map(sum, sizes)) * 100 / fill / sum(map(sum, shares))
    digits = len(str(nodes))
    disks = {
        f"node-{number:0{digits}}": [max(1, round(share * unit)) for share in of_node]
        for number, of_node in enumerate(shares, start=1)
    }
    return with_pods(disks, *sizes)


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
    digits = len(str(len(pods)))
    for number, sizes in enumerate(pods, start=1):
        name = f"pod-{number:0{digits}}"
        mounts = tuple(
            kube.ClaimVolume(
                f"data-{index}",
                f"data-{index}-{name}",
                kube.ClaimSpec("longhorn", int(size * GIBIBYTE), ("ReadWriteOnce",)),
            )
            for index, size in enumerate(sizes, start=1)
        )
        start = start.with_new_pod(kube.Pod("generated", name, uid=f"generated-{name}", volumes=mounts))
    return start


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
