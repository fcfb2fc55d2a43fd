"""docs/placement-policy.md matches the code: its tables are read and compared."""

import math
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.longhorn.anti_affinity import TIER_ORDER, Tier
from scheduler_core.longhorn.csi_driver import free_size
from scheduler_core.longhorn.placement import DiskCandidate
from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.settings import FIELDS_BY_SETTING, Settings
from scheduler_core.longhorn.space import (
    disk_space,
    fits_without_pressure,
    minimal_available,
    scheduling_limit,
    space_refusal,
    under_pressure,
)
from scheduler_core.model.longhorn import Disk
from tests.worlds.longhorn import disk, node

PAGE = (Path(__file__).parents[3] / "docs" / "placement-policy.md").read_text(encoding="utf-8")


def table(first_header: str) -> list[list[str]]:
    """Reads the rows of the table whose first column has this header, without code marks."""
    lines = PAGE.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {first_header} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`").strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_page_lists_every_setting_with_its_default() -> None:
    expected = [(name, entry.metadata["default"]) for name, entry in FIELDS_BY_SETTING.items()]
    assert [(row[0], row[1]) for row in table("setting")] == expected


def test_the_page_lists_every_rule_with_its_reason() -> None:
    expected = [[rule.name, rule.text, rule.reported or ""] for rule in Rule]
    assert table("rule") == expected


def test_the_page_has_the_order_of_the_tiers() -> None:
    documented = {
        (row[0] == "true", row[1] == "true"): tuple(Tier[name] for name in row[2].split(", "))
        for row in table("zone soft")
    }
    assert documented == dict(TIER_ORDER)


def test_the_page_describes_each_tier_as_the_code_does() -> None:
    assert table("group") == [[tier.name, tier.value] for tier in Tier]


CASES = [
    pytest.param({}, id="empty"),
    pytest.param({"available": 26, "reserved": 30, "scheduled": 60, "required": 3}, id="in use"),
    pytest.param(
        {"maximum": 999_999_999_999, "available": 123_456_789_012, "over_percentage": 133}, id="large, uneven"
    ),
    pytest.param({"available": 5, "reserved": 20, "scheduled": 300, "minimal_percentage": 33}, id="overbooked"),
]


BASE = {
    "maximum": 100,
    "available": 100,
    "reserved": 0,
    "scheduled": 0,
    "required": 0,
    "minimal_percentage": 25,
    "over_percentage": 100,
}


def disk_of(values: dict[str, int]) -> Disk:
    """The disk of a case."""
    return disk(
        storage_maximum=values["maximum"],
        storage_available=values["available"],
        storage_reserved=values["reserved"],
        storage_scheduled=values["scheduled"],
    )


@pytest.mark.parametrize("case", CASES)
def test_the_formulas_for_space_give_what_the_code_computes(case: dict[str, int]) -> None:
    values = {**BASE, **case}
    entry = disk_of(values)
    settings = Settings(
        storage_minimal_available_percentage=values["minimal_percentage"],
        storage_over_provisioning_percentage=values["over_percentage"],
    )
    space = disk_space(entry, settings)
    computed = {
        "minimal": minimal_available(entry, settings),
        "limit": scheduling_limit(entry, settings),
        "headroom": space.headroom,
        "free": space.free,
        "usable": DiskCandidate(node("n1", entry), entry).usable_bytes,
        "capacity": free_size(entry, settings),
    }
    documented = evaluate_formulas(values)
    assert {name: documented[name] for name in computed} == computed
    assert documented.keys() - computed.keys() == {"unused_percentage", "relief_percentage"}


@pytest.mark.parametrize("case", CASES)
def test_the_formulas_for_pressure_give_the_percentages_that_decide(case: dict[str, int]) -> None:
    values = {**BASE, **case}
    entry = disk_of(values)
    documented = evaluate_formulas(values)
    unused = documented["unused_percentage"]
    relief = documented["relief_percentage"]
    assert not under_pressure(entry, 100 - unused)
    assert under_pressure(entry, 99 - unused)
    assert not fits_without_pressure(entry, settings_with_pressure_limit(relief), 0, values["required"])
    assert fits_without_pressure(entry, settings_with_pressure_limit(relief + 1), 0, values["required"])


def settings_with_pressure_limit(pressure: int) -> Settings:
    """Settings under which only the pressure percentage can refuse."""
    return Settings(
        storage_minimal_available_percentage=0,
        storage_over_provisioning_percentage=10_000,
        replica_auto_balance_disk_pressure_percentage=pressure,
    )


def evaluate_formulas(values: dict[str, Any]) -> dict[str, int]:
    """Evaluates each documented formula; later ones may use earlier ones."""
    names = {**values, "trunc": math.trunc, "max": max}
    results: dict[str, int] = {}
    for name, formula, _ in table("quantity"):
        names[name] = eval(formula, {"__builtins__": {}}, names)  # noqa: S307 # our own page
        results[name] = names[name]
    return results


@pytest.mark.parametrize(("row", "offset"), [(0, -1), (1, 0), (2, 1)], ids=["less", "equal", "more"])
def test_the_page_describes_the_boundaries(row: int, offset: int) -> None:
    _, actual, scheduling = table("required or size compared with the limit")[row]
    space = disk_space(disk(), Settings())
    by_available = space_refusal(0, space.headroom + offset, space)
    by_scheduled = space_refusal(space.free + offset, 0, space)
    assert [word(by_available), word(by_scheduled)] == [actual, scheduling]


def word(refusal: Rule | None) -> str:
    return "fits" if refusal is None else "refused"
