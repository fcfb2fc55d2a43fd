"""The stable JSON of `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import Field

from app.schemas.explain import Answer
from app.schemas.pod_explanation import API_VERSION
from scheduler_core.extender.decision import Packing
from scheduler_core.extender.strategies.comparison import Spread, StrategyComparison, StrategyFigures, resample
from scheduler_core.extender.strategies.seeded_run import STEPS_PER_SECOND
from scheduler_core.extender.strategies.strategy import StrategyName

MAX_SAMPLES: Final = 101
NOTES = (
    f"a step is one decision of kube-scheduler; about {STEPS_PER_SECOND} take a second with its default client limits",
    "a node is chosen at random among those that are offered: kube-scheduler's scores are not predicted",
)
_DESCRIPTIONS: Final = {
    StrategyName.NONE: "kube-scheduler alone",
    StrategyName.PROPOSAL: "Longhorn's proposal: one pod at a time, whose node is then reserved",
    StrategyName.CAPACITY: "this extender: volumes are packed together with those of other pods",
    StrategyName.GUARDED: "this extender with the placement guard",
}


class SpreadAnswer(Answer):
    """A number in all orders."""

    least: int
    median: int = Field(description="the lower one of two")
    most: int


class SampleAnswer(Answer):
    """The counts after a step, in the first order."""

    step: int
    placed: int
    waiting: int
    misplaced: int
    overbooked: int


class StrategyAnswer(Answer):
    """What a strategy leads to."""

    name: str = Field(description="none, proposal, capacity or guarded")
    description: str
    placed: SpreadAnswer = Field(description="pods with a node whose volumes all have a healthy replica, in the end")
    waiting: SpreadAnswer = Field(description="all other pods, in the end")
    stuck: SpreadAnswer = Field(description="pods that wait although they have a node")
    misplaced: SpreadAnswer = Field(
        description="new volumes that Longhorn placed on another node than their pod's, also if mended later"
    )
    overbooked: SpreadAnswer = Field(
        description="disks that placements took beyond Longhorn's scheduling limit, also if mended later"
    )
    overbooked_bytes: SpreadAnswer = Field(
        serialization_alias="overbookedBytes", description="how far these disks exceeded the limit, in total"
    )
    last_placement: SpreadAnswer = Field(
        serialization_alias="lastPlacement", description="the step at which the last pod was placed"
    )
    reasons: dict[str, int] = Field(
        description="why pods without a node wait in the end, with the number of pods in all orders"
    )
    samples: list[SampleAnswer] = Field(description=f"at most {MAX_SAMPLES}, at the same steps for each strategy")


class ComparisonAnswer(Answer):
    """Strategies on the same pods."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "StrategyComparison"
    nodes: int = Field(description="how many nodes pods may run on")
    pods: int = Field(description="how many pods are to be placed")
    orders: int
    seed: int
    lag: int = Field(description="steps from a placement to the status that shows it")
    binding: int = Field(description="steps from a decision to the bound pod")
    packing: str = Field(description="which nodes with room this extender offers")
    strategies: list[StrategyAnswer]
    notes: list[str] = Field(description="what was not taken into account")


def comparison_answer(
    comparison: StrategyComparison, packing: Packing, seed: int, notes: Sequence[str]
) -> ComparisonAnswer:
    """Returns a comparison as plain data."""
    steps = comparison.sampled_steps(MAX_SAMPLES)
    return ComparisonAnswer(
        nodes=comparison.nodes,
        pods=comparison.pods,
        orders=comparison.orders,
        seed=seed,
        lag=comparison.pace.lag,
        binding=comparison.pace.binding,
        packing=packing,
        strategies=[_strategy_answer(entry, steps) for entry in comparison.strategies],
        notes=list(notes),
    )


def _strategy_answer(entry: StrategyFigures, steps: Sequence[int]) -> StrategyAnswer:
    return StrategyAnswer(
        name=entry.name,
        description=_DESCRIPTIONS[entry.name],
        placed=_spread(entry.placed),
        waiting=_spread(entry.waiting),
        stuck=_spread(entry.stuck),
        misplaced=_spread(entry.misplaced),
        overbooked=_spread(entry.overbooked),
        overbooked_bytes=_spread(entry.overbooked_bytes),
        last_placement=_spread(entry.last_placement),
        reasons=dict(entry.reasons),
        samples=[
            SampleAnswer(
                step=sample.step,
                placed=sample.placed,
                waiting=sample.waiting,
                misplaced=sample.misplaced,
                overbooked=sample.overbooked,
            )
            for sample in resample(entry.samples, steps)
        ],
    )


def _spread(spread: Spread) -> SpreadAnswer:
    return SpreadAnswer(least=spread.least, median=spread.median, most=spread.most)
