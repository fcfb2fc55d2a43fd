"""Small clusters with new pods, and each strategy's runs on them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.predict.paced_timeline import Pace
from scheduler_core.predict.situation import Situation
from scheduler_core.predict.strategies import STRATEGIES, StrategyName, StrategyRun, run_strategy
from tests.builders import Object, disk, kube_node, longhorn_node
from tests.worlds.generated_cluster import GIBIBYTE, AddPods
from tests.worlds.predicted_clusters import after, situation

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
    return after(start, AddPods([[int(size * GIBIBYTE) for size in sizes] for sizes in pods]))


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
