"""The figures of all runs of a strategy: the least, the median and the most of all orders, and samples over time."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from scheduler_core.extender.strategies.seeded_run import Pace, RunResult
from scheduler_core.extender.strategies.strategy import StrategyName
from scheduler_core.extender.strategies.tally import Sample


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
    samples: tuple[Sample, ...]  # the counts over time in the first order


@dataclass(frozen=True, slots=True)
class StrategyComparison:
    """Strategies on the same pods."""

    nodes: int  # how many nodes pods may run on
    pods: int  # how many pods are to be placed
    orders: int  # how many orders each strategy was run in
    pace: Pace
    strategies: tuple[StrategyFigures, ...]

    def sampled_steps(self, limit: int) -> list[int]:
        """Returns at most `limit` steps that divide the longest run evenly, the first and the last included."""
        end = max(entry.samples[-1].step for entry in self.strategies)
        intervals = max(1, min(limit - 1, end))
        return sorted({end * number // intervals for number in range(intervals + 1)})


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
        samples=results[0].samples,
    )


def resample(samples: Sequence[Sample], steps: Sequence[int]) -> tuple[Sample, ...]:
    """Returns the counts after each of some steps; `changes` has the counts whenever they changed, first at step 0."""
    changes = [sample.step for sample in samples]
    return tuple(replace(samples[bisect_right(changes, step) - 1], step=step) for step in steps)
