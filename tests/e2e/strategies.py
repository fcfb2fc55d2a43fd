"""The report's strategies: the same pods placed without an extender, by Longhorn's proposal, by this extender, and with its guard.

This part is computed, without a cluster; docs/strategies.md says how, and has its tables.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from msgspec import to_builtins
from rich.table import Table

from app.cli.cluster_source import Orders, Query, predicted_cluster, seeded_choice
from app.cli.what_if_changes import ChangeReader
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.predict.predicted_replicas import Choose
from scheduler_core.predict.prediction_input import Situation
from tests.e2e.report import Options, Part, draw
from tests.worlds.generated_cluster import draw_situation
from tests.worlds.strategies import Spread, StrategyComparison, compare_strategies

ROOT = Path(__file__).parents[2]
GOAL_1 = ROOT / "examples/goal-1-burst"
_ARRIVALS = 5  # random orders in which pods arrive at each strategy
# Nodes and pods of generated clusters.
_CLUSTERS = ((6, 30), (10, 60))


def report(_folder: Path, options: Options) -> Part:
    """Computes the burst of the proposal's first goal, and generated ones."""
    generated = (draw_situation(nodes, pods, 2, 90, seeded_choice("0/generated")) for nodes, pods in _CLUSTERS)
    situations = (goal_1(), *generated)
    compared = [compare(situation, options.repetitions or _ARRIVALS) for situation in situations]
    return Part(failures(compared), [to_builtins(each) for each in compared], list(map(table, compared)))


def goal_1() -> Situation:
    """The pods of the example's StatefulSet are to be placed."""
    source = Query(str(GOAL_1 / "snapshot.yaml")).read()
    situation = Situation(predicted_cluster(source), parallel=source.parallel_sets)
    for change in ChangeReader(source, None).read("apply", str(GOAL_1 / "statefulset.yaml")):
        situation = change(situation)
    return situation


def compare(situation: Situation, orders: int) -> StrategyComparison:
    """Runs every strategy in every order."""
    return compare_strategies(situation, [partial(_choices, seed) for seed in Orders(orders).seeds])


def _choices(seed: str, purpose: str) -> Choose:
    return seeded_choice(f"{seed}/{purpose}")


def failures(comparisons: Iterable[StrategyComparison]) -> list[str]:
    """What happened against expectation: something wrong with the guard, or nothing without an extender."""
    wrong = {
        (entry.name, number): entry.misplaced.most + entry.overbooked.most
        for number, comparison in enumerate(comparisons)
        for entry in comparison.strategies
    }
    texts = [
        f"strategies, cluster {number}: {count} with the guard"
        for (name, number), count in wrong.items()
        if name == "guarded" and count
    ]
    return (
        texts
        if any(count for (name, _), count in wrong.items() if name == "none")
        else [*texts, "strategies: nothing went wrong"]
    )


def table(comparison: StrategyComparison) -> Table:
    """The figures for people: the median of all orders, with the least and the most."""
    size = f"{format_count(comparison.pods, 'pod')} on {format_count(comparison.nodes, 'node')}"
    rows = (
        {
            size: entry.name,
            "placed": _text(entry.placed),
            "waiting": _text(entry.waiting),
            "stuck": _text(entry.stuck),
            "misplaced": _text(entry.misplaced),
            "overbooked": _text(entry.overbooked),
            "by": format_bytes(entry.overbooked_bytes.median),
            "last placed at step": _text(entry.last_placement),
        }
        for entry in comparison.strategies
    )
    return draw(rows, f"{format_count(comparison.orders, 'order')}: median (least to most)")


def _text(spread: Spread) -> str:
    return str(spread.median) if spread.least == spread.most else f"{spread.median} ({spread.least} to {spread.most})"
