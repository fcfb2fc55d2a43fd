"""The figures of all runs of a strategy: the least, the median and the most of all orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from scheduler_core.predict.seeded_run import Pace, RunResult
from scheduler_core.predict.strategy import StrategyName


@dataclass(frozen=True, slots=True)
class Spread:
    """A number in all orders; the median is the lower one of two."""

    least: int
    median: int
    most: int

    @classmethod
    def of(cls, values: Sequence[int]) -> Spread:
        return cls(min(values), median_low(values), max(values))


@dataclass(frozen=True, slots=True)
class StrategyFigures:
    """What a strategy leads to."""

    name: StrategyName
    placed: Spread  # in the end, as in `Sample`
    waiting: Spread  # in the end, as in `Sample`
    stuck: Spread  # of the pods that wait, those with a node
    misplaced: Spread  # in the end, as in `Sample`
    overbooked: Spread  # in the end, as in `Sample`
    overbooked_bytes: Spread  # the sum over these disks of the most bytes over the limit
    last_placement: Spread  # the step at which the last pod was placed
    reasons: Mapping[str, int]  # why pods without a node wait in the end, with the number of pods in all orders


@dataclass(frozen=True, slots=True)
class StrategyComparison:
    """Strategies on the same pods."""

    nodes: int  # how many nodes pods may run on
    pods: int  # how many pods are to be placed
    orders: int  # how many orders each strategy was run in
    pace: Pace
    strategies: tuple[StrategyFigures, ...]


def summarize(name: StrategyName, results: Sequence[RunResult]) -> StrategyFigures:
    """Returns the figures of at least one run of a strategy."""

    def spread(value: Callable[[RunResult], int]) -> Spread:
        return Spread.of([value(result) for result in results])

    reasons: Counter[str] = Counter()
    for result in results:
        reasons.update(result.reasons)
    return StrategyFigures(
        name=name,
        placed=spread(lambda result: result.samples[-1].placed),
        waiting=spread(lambda result: result.samples[-1].waiting),
        stuck=spread(lambda result: len(result.stuck)),
        misplaced=spread(lambda result: len(result.misplaced)),
        overbooked=spread(lambda result: len(result.overbooked)),
        overbooked_bytes=spread(lambda result: sum(result.overbooked.values())),
        last_placement=spread(lambda result: result.last_placement),
        reasons=dict(sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))),
    )
