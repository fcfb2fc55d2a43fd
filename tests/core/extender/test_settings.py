"""The extender's own settings: precedence, live changes, and what happens to bad values."""

from __future__ import annotations

import pytest

from scheduler_core.extender.settings import (
    ENABLED,
    NODE_RESERVATION_TIMEOUT,
    POD_SCHEDULING_TIMEOUT,
    SettingsHistory,
    Source,
)


def test_without_sources_the_proposal_s_defaults_count() -> None:
    """Off, five seconds, five seconds."""
    settings = SettingsHistory().effective([])
    assert (settings.enabled, settings.pod_scheduling_timeout, settings.node_reservation_timeout) == (False, 5, 5)
    assert set(settings.origins.values()) == {"defaults"}


def test_the_first_source_that_has_a_setting_counts_for_that_setting_alone() -> None:
    """Each setting is looked for by itself."""
    settings = SettingsHistory().effective(
        [
            Source("ConfigMap", {ENABLED: "true"}),
            Source("Setting", {ENABLED: "false", POD_SCHEDULING_TIMEOUT: "7"}),
            Source("environment", {POD_SCHEDULING_TIMEOUT: "8", NODE_RESERVATION_TIMEOUT: "0"}),
        ]
    )
    assert (settings.enabled, settings.pod_scheduling_timeout, settings.node_reservation_timeout) == (True, 7, 0)
    assert settings.origins == {
        ENABLED: "ConfigMap",
        POD_SCHEDULING_TIMEOUT: "Setting",
        NODE_RESERVATION_TIMEOUT: "environment",
    }


@pytest.mark.parametrize("text", ["", "-1", "1.5", "5s", "٣", "3601", " 5", "999999999999999999999"])
def test_a_time_out_that_is_no_number_of_seconds_is_refused_and_the_next_source_counts(text: str) -> None:
    """Named with its source and what was expected."""
    settings = SettingsHistory().effective(
        [Source("ConfigMap", {POD_SCHEDULING_TIMEOUT: text}), Source("environment", {POD_SCHEDULING_TIMEOUT: "9"})]
    )
    assert settings.pod_scheduling_timeout == 9
    assert len(settings.problems) == 1
    assert settings.problems[0].startswith(f"ConfigMap: {POD_SCHEDULING_TIMEOUT}: {text!r} is not")


def test_a_bad_value_leaves_the_last_good_one_of_its_source_in_force() -> None:
    """A slip of the pen must not switch anything off."""
    history = SettingsHistory()
    history.effective([Source("ConfigMap", {ENABLED: "true"})])
    settings = history.effective([Source("ConfigMap", {ENABLED: "yes please"})])
    assert settings.enabled
    assert settings.problems == ("ConfigMap: scheduler-extender-enabled: 'yes please' is not a boolean; True stays",)


def test_a_removed_value_is_forgotten() -> None:
    """It does not come back when a bad one appears."""
    history = SettingsHistory()
    history.effective([Source("ConfigMap", {ENABLED: "true"})])
    history.effective([Source("ConfigMap", {})])
    assert not history.effective([Source("ConfigMap", {ENABLED: "what"})]).enabled
