"""The two space rules, to the byte, and the disk pressure rules."""

from typing import Any

import pytest

from scheduler_core.longhorn import space
from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.settings import Settings
from tests.worlds.longhorn import GIB, disk

DEFAULTS = Settings()


RESERVED = {"storage_reserved": 30 * GIB, "storage_scheduled": 10 * GIB}
TWICE = Settings(storage_over_provisioning_percentage=200)
NO_MINIMUM = Settings(storage_minimal_available_percentage=0)
# A disk, settings, the size of a volume and its written bytes, and the rule that refuses.
CASES: dict[str, tuple[dict[str, int], Settings, int, int, Rule | None]] = {
    "available below the minimum": ({"storage_available": 25 * GIB - 1}, DEFAULTS, 0, 0, Rule.ACTUAL_SPACE),
    "available equal to the minimum": ({"storage_available": 25 * GIB}, DEFAULTS, 0, 0, Rule.ACTUAL_SPACE),
    "available above the minimum": ({"storage_available": 25 * GIB + 1}, DEFAULTS, 0, 0, None),
    "written -1": ({"storage_available": 30 * GIB}, DEFAULTS, 0, 5 * GIB - 1, None),
    "written, equal fails": ({"storage_available": 30 * GIB}, DEFAULTS, 0, 5 * GIB, Rule.ACTUAL_SPACE),
    "written +1": ({"storage_available": 30 * GIB}, DEFAULTS, 0, 5 * GIB + 1, Rule.ACTUAL_SPACE),
    "scheduled -1": (RESERVED, DEFAULTS, 60 * GIB - 1, 0, None),
    "scheduled, equal passes": (RESERVED, DEFAULTS, 60 * GIB, 0, None),
    "scheduled +1": (RESERVED, DEFAULTS, 60 * GIB + 1, 0, Rule.SCHEDULING_SPACE),
    "a new volume may be larger than the available space": ({"storage_available": 26 * GIB}, TWICE, 150 * GIB, 0, None),
    "the minimum does not depend on the reserve": (
        {"storage_available": 26 * GIB, "storage_reserved": 90 * GIB},
        DEFAULTS,
        0,
        0,
        None,
    ),
    "available space comes before scheduling space": (
        {"storage_available": GIB},
        DEFAULTS,
        500 * GIB,
        0,
        Rule.ACTUAL_SPACE,
    ),
    "no maximum": ({"storage_maximum": 0}, NO_MINIMUM, 0, 0, Rule.STORAGE_MAXIMUM),
    "nothing available": ({"storage_available": 0}, NO_MINIMUM, 0, 0, Rule.STORAGE_AVAILABLE),
    "negative available space": ({"storage_available": -1}, NO_MINIMUM, 0, 0, Rule.STORAGE_AVAILABLE),
    "maximum first": ({"storage_available": 0, "storage_maximum": -1}, NO_MINIMUM, 0, 0, Rule.STORAGE_MAXIMUM),
}


@pytest.mark.parametrize(("fields", "settings", "size", "required", "rule"), CASES.values(), ids=CASES.keys())
def test_the_rules_hold_to_the_byte(
    fields: dict[str, Any], settings: Settings, size: int, required: int, rule: Rule | None
) -> None:
    left = space.disk_space(disk(**fields), settings)
    assert space.space_refusal(size, required, left) is rule
    assert left.open is (rule not in (Rule.STORAGE_MAXIMUM, Rule.STORAGE_AVAILABLE))


def test_uncounted_replicas_take_scheduling_space() -> None:
    assert space.disk_space(disk(), DEFAULTS, uncounted=40 * GIB).free == 60 * GIB


@pytest.mark.parametrize(
    ("size", "percentage", "expected"),
    [
        pytest.param(101, 33, 33, id="truncated"),
        pytest.param(-1, 50, 0, id="toward zero"),
        pytest.param(2**53 + 1, 100, 2**53, id="rounded above 2^53"),
        pytest.param(2**62, 1000, -(2**63), id="past 2^63 as on amd64"),
    ],
)
def test_percentages_are_computed_in_float64(size: int, percentage: int, expected: int) -> None:
    """Then truncated, as in Go."""
    assert space.percent_of(size, percentage) == expected


@pytest.mark.parametrize(("value", "expected"), [(2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (-(2**63) - 1, 2**63 - 1)])
def test_sums_wrap_around_as_int64(value: int, expected: int) -> None:
    """As in Go."""
    assert space.wrap_int64(value) == expected


@pytest.mark.parametrize(
    ("fields", "pressed"),
    [
        pytest.param({"storage_available": 10 * GIB - 1}, True, id="-1: 9 % unused"),
        pytest.param({"storage_available": 10 * GIB}, False, id="exactly 10 % unused"),
        pytest.param({"storage_available": 10 * GIB + 1}, False, id="+1"),
        pytest.param(
            {"storage_available": 35 * GIB, "storage_reserved": 30 * GIB}, True, id="the reserve counts as used"
        ),
    ],
)
def test_a_disk_used_beyond_the_percentage_is_under_pressure(fields: dict[str, Any], pressed: bool) -> None:
    assert space.under_pressure(disk(**fields), 90) is pressed


@pytest.mark.parametrize(
    ("fields", "size", "fits"),
    [
        pytest.param({"storage_scheduled": 89 * GIB}, 10 * GIB, True, id="89 %"),
        pytest.param({"storage_scheduled": 90 * GIB}, 10 * GIB, False, id="90 % is too much"),
        pytest.param({"storage_maximum": 0}, 0, False, id="a disk without maximum gives no relief"),
    ],
)
def test_relief_must_stay_below_the_pressure_percentage(fields: dict[str, Any], size: int, fits: bool) -> None:
    assert space.fits_without_pressure(disk(**fields), TWICE, size, 0) is fits
