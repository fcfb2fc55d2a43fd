"""Settings: Longhorn's defaults, Go's spelling of values and times, and faults. Faults only stop what reads them."""

from datetime import UTC, datetime

import pytest

from scheduler_core.errors import SettingError
from scheduler_core.longhorn.cluster import parse_time
from scheduler_core.longhorn.settings import Settings, check_new_value


def test_missing_settings_take_longhorns_defaults() -> None:
    settings = Settings.parse({})
    assert (settings.storage_over_provisioning_percentage, settings.storage_minimal_available_percentage) == (100, 25)
    assert (settings.replica_soft_anti_affinity, settings.replica_zone_soft_anti_affinity) == (False, True)


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_booleans_are_spelled_as_in_go(text: str) -> None:
    """Go's ParseBool knows six spellings of true."""
    assert Settings.parse({"replica-soft-anti-affinity": text}).replica_soft_anti_affinity is True


@pytest.mark.parametrize("text", ["yes", " true", "tRUE", "", "2"])
def test_other_spellings_of_booleans_are_faults(text: str) -> None:
    """As by ParseBool; the fault has the setting's name."""
    with pytest.raises(SettingError, match="replica-soft-anti-affinity"):
        Settings.parse({"replica-soft-anti-affinity": text})


@pytest.mark.parametrize("text", ["1.5", "1_000", "٣", "", "9223372036854775808", "0x10", " 1"])
def test_a_text_that_is_no_number_in_go_is_a_fault(text: str) -> None:
    with pytest.raises(SettingError, match="storage-over-provisioning-percentage"):
        Settings.parse({"storage-over-provisioning-percentage": text})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('{"v1":"2","v2":"1"}', {"v1": 2, "v2": 1}, id="by engine"),
        pytest.param("2", {"v1": 2, "v2": 2}, id="one for both"),
    ],
)
def test_a_setting_per_data_engine_is_an_object_or_one_value(text: str, expected: dict[str, int]) -> None:
    assert Settings.parse({"default-replica-count": text}).default_replica_count == expected


@pytest.mark.parametrize("text", ["{", '{"v1":[]}', '{"v1":"x"}', "[" * 5000])
def test_malformed_settings_per_data_engine_are_faults(text: str) -> None:
    assert "default-replica-count" in Settings.read({"default-replica-count": text}).faults


def test_an_unreadable_setting_has_its_default_and_a_fault() -> None:
    settings = Settings.read({"replica-auto-balance": "sometimes", "unknown-setting": "?"})
    assert settings.replica_auto_balance == "disabled"
    assert list(settings.faults) == ["replica-auto-balance"]


def test_the_first_fault_is_the_first_in_the_given_order() -> None:
    settings = Settings.read({"replica-soft-anti-affinity": "x", "allow-empty-node-selector-volume": "y"})
    fault = settings.first_fault(("allow-empty-node-selector-volume", "replica-soft-anti-affinity"))
    assert fault is not None
    assert fault.name == "allow-empty-node-selector-volume"


def test_an_empty_default_image_matches_any_image() -> None:
    assert Settings.parse({"default-engine-image": ""}).default_engine_image is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("storage-over-provisioning-percentage", "0"),
        ("storage-over-provisioning-percentage", "1000"),
        ("storage-minimal-available-percentage", "100"),
        ("default-replica-count", '{"v1":"20","v2":"1"}'),
        ("node-drain-policy", "always-allow"),
        ("replica-auto-balance", "best-effort"),
    ],
)
def test_values_that_longhorns_webhook_accepts_can_be_set(name: str, value: str) -> None:
    check_new_value(name, value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("storage-over-provisioning-percentage", "-1", "a whole number of at least 0"),
        ("storage-minimal-available-percentage", "101", "a whole number from 0 to 100"),
        ("storage-reserved-percentage-for-default-disk", "-1", "a whole number from 0 to 100"),
        ("replica-replenishment-wait-interval", "-1", "a whole number of at least 0"),
        ("concurrent-replica-rebuild-per-node-limit", "-1", "a whole number of at least 0"),
        ("default-replica-count", "0", "a whole number from 1 to 20"),
        ("default-replica-count", '{"v1":"21"}', "a whole number from 1 to 20"),
        ("node-drain-policy", "sometimes", "one of block-for-eviction, "),
        ("replica-auto-balance", "sometimes", "one of disabled, "),
        ("system-managed-components-node-selector", "storage", "labels as key:value"),
        ("system-managed-components-node-selector", "storage:yes:no", "labels as key:value"),
    ],
)
def test_values_that_longhorns_webhook_refuses_cannot_be_set(name: str, value: str, expected: str) -> None:
    """Longhorn would read some of them if a Setting had them already."""
    with pytest.raises(SettingError, match=f"{name}: value: .* is not {expected}"):
        check_new_value(name, value)


def test_a_setting_that_no_decision_reads_cannot_be_set() -> None:
    with pytest.raises(KeyError):
        check_new_value("guaranteed-instance-manager-cpu", "12")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC), id="UTC"),
        pytest.param("2026-01-01T02:00:00+02:00", datetime(2026, 1, 1, tzinfo=UTC), id="offset"),
        pytest.param("2026-01-01T00:00:00.1234567Z", datetime(2026, 1, 1, 0, 0, 0, 123456, UTC), id="fraction"),
        pytest.param("2026-01-01T00:00:00", None, id="no zone"),
        pytest.param("2026-01-01", None, id="only a date"),
        pytest.param("2026-13-01T00:00:00Z", None, id="no such month"),
        pytest.param("", None, id="empty"),
    ],
)
def test_only_rfc_3339_with_a_zone_is_a_time(text: str, expected: datetime | None) -> None:
    """Go's time.Parse is as strict."""
    assert parse_time(text) == expected
