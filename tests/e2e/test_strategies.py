"""The report's strategies: its tables are those of docs/strategies.md."""

from pathlib import Path

from rich.table import Table

from app.cli.cluster_source import seeded_choice
from tests.e2e import strategies
from tests.worlds.generated_cluster import draw_situation

PAGE = Path(__file__).parents[2] / "docs/strategies.md"


def rows(table: Table) -> list[str]:
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    return [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]


def test_the_page_has_the_first_table() -> None:
    """It is the proposal's first goal; without an extender a disk is overbooked, and with the guard nothing is wrong."""
    comparison = strategies.compare(strategies.goal_1(), 5)
    head, *others = rows(strategies.table(comparison))
    assert "\n".join([head, "|---" * 8 + "|", *others]) in PAGE.read_text()
    assert strategies.failures([comparison]) == []


def test_something_wrong_with_the_guard_is_a_failure() -> None:
    """As is a burst in which nothing goes wrong without it."""
    comparison = strategies.compare(draw_situation(2, 4, 2, 200, seeded_choice("0/generated")), 1)
    assert [entry.name for entry in comparison.strategies] == ["none", "proposal", "capacity", "guarded"]
    assert strategies.failures([]) == ["strategies: nothing went wrong"]
