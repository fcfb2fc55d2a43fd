"""The two space rules, to the byte, and the disk pressure rules."""

from typing import Any

import pytest

from scheduler_core.longhorn import space
from scheduler_core.longhorn.refusal_rules import Rule
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.longhorn import Disk
from tests.worlds.longhorn import GIB, disk

DEFAULTS = Settings()


def refusal(entry: Disk, settings: Settings = DEFAULTS, size: int = 0, required: int = 0) -> Rule | None:
    return space.space_refusal(size, required, space.disk_space(entry, settings))


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        pytest.param(25 * GIB - 1, Rule.ACTUAL_SPACE, id="-1"),
        pytest.param(25 * GIB, Rule.ACTUAL_SPACE, id="equal fails"),
        pytest.param(25 * GIB + 1, None, id="+1"),
    ],
)
def test_available_space_must_exceed_the_minimum(available: int, expected: Rule | None) -> None:
    assert refusal(disk(storage_available=available)) is expected


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        pytest.param(5 * GIB - 1, None, id="-1"),
        pytest.param(5 * GIB, Rule.ACTUAL_SPACE, id="equal fails"),
        pytest.param(5 * GIB + 1, Rule.ACTUAL_SPACE, id="+1"),
    ],
)
def test_the_actual_size_needs_available_space_above_the_minimum(required: int, expected: Rule | None) -> None:
    assert refusal(disk(storage_available=30 * GIB), required=required) is expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(60 * GIB - 1, None, id="-1"),
        pytest.param(60 * GIB, None, id="equal passes"),
        pytest.param(60 * GIB + 1, Rule.SCHEDULING_SPACE, id="+1"),
    ],
)
def test_scheduled_space_may_reach_the_limit(size: int, expected: Rule | None) -> None:
    entry = disk(storage_reserved=30 * GIB, storage_scheduled=10 * GIB)
    assert refusal(entry, size=size) is expected


def test_a_new_volume_may_be_larger_than_the_available_space() -> None:
    entry = disk(storage_available=26 * GIB)
    assert refusal(entry, Settings(storage_over_provisioning_percentage=200), size=150 * GIB) is None


def test_the_minimum_does_not_depend_on_the_reserve() -> None:
    assert refusal(disk(storage_available=26 * GIB, storage_reserved=90 * GIB)) is None


def test_uncounted_replicas_take_scheduling_space() -> None:
    assert space.disk_space(disk(), DEFAULTS, uncounted=40 * GIB).free == 60 * GIB


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"storage_maximum": 0}, Rule.STORAGE_MAXIMUM, id="no maximum"),
        pytest.param({"storage_available": 0}, Rule.STORAGE_AVAILABLE, id="nothing available"),
        pytest.param({"storage_available": -1}, Rule.STORAGE_AVAILABLE, id="negative"),
        pytest.param({"storage_available": 0, "storage_maximum": -1}, Rule.STORAGE_MAXIMUM, id="maximum first"),
    ],
)
def test_a_disk_without_space_is_closed(fields: dict[str, Any], expected: Rule) -> None:
    settings = Settings(storage_minimal_available_percentage=0)
    assert refusal(disk(**fields), settings) is expected
    assert not space.disk_space(disk(**fields), settings).open


def test_available_space_is_checked_before_scheduling_space() -> None:
    assert refusal(disk(storage_available=GIB), size=500 * GIB) is Rule.ACTUAL_SPACE


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
    ("available", "pressed"),
    [
        pytest.param(10 * GIB - 1, True, id="-1: 9 % unused"),
        pytest.param(10 * GIB, False, id="exactly 10 % unused"),
        pytest.param(10 * GIB + 1, False, id="+1"),
    ],
)
def test_a_disk_used_beyond_the_percentage_is_under_pressure(available: int, pressed: bool) -> None:
    assert space.under_pressure(disk(storage_available=available), 90) is pressed


def test_the_reserve_counts_as_used_for_pressure() -> None:
    assert space.under_pressure(disk(storage_available=35 * GIB, storage_reserved=30 * GIB), 90)


@pytest.mark.parametrize(
    ("scheduled", "fits"),
    [pytest.param(89 * GIB, True, id="89 %"), pytest.param(90 * GIB, False, id="90 % is too much")],
)
def test_relief_must_stay_below_the_pressure_percentage(scheduled: int, fits: bool) -> None:
    settings = Settings(storage_over_provisioning_percentage=200)
    assert space.fits_without_pressure(disk(storage_scheduled=scheduled), settings, 10 * GIB, 0) is fits


def test_a_disk_without_maximum_gives_no_relief() -> None:
    assert not space.fits_without_pressure(disk(storage_maximum=0), DEFAULTS, 0, 0)
