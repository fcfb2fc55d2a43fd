"""The extender's own settings: precedence, live changes, and bad values."""

import pytest

from scheduler_core.decide.extender_settings import (
    GUARD_OTHER_NODES,
    NODE_RESERVATION_TIMEOUT,
    PLACEMENT_GUARD,
    POD_SCHEDULING_TIMEOUT,
    Enforcement,
    GuardMode,
    SettingsHistory,
    SettingsSource,
)
from scheduler_core.model.installation import ENABLED, ENFORCEMENT


def test_without_sources_the_proposal_s_defaults_count() -> None:
    settings = SettingsHistory().merge([])
    assert (settings.enabled, settings.pod_scheduling_timeout, settings.node_reservation_timeout) == (False, 5, 5)
    assert (settings.observes, settings.placement_guard) == (False, GuardMode.OFF)
    assert set(settings.origins.values()) == {"defaults"}


def test_each_setting_comes_from_the_first_source_that_has_it() -> None:
    settings = SettingsHistory().merge(
        [
            SettingsSource("ConfigMap", {ENABLED: "true"}),
            SettingsSource("Setting", {ENABLED: "false", POD_SCHEDULING_TIMEOUT: "7"}),
            SettingsSource("environment", {POD_SCHEDULING_TIMEOUT: "8", NODE_RESERVATION_TIMEOUT: "0"}),
        ]
    )
    assert (settings.enabled, settings.pod_scheduling_timeout, settings.node_reservation_timeout) == (True, 7, 0)
    assert settings.origins == {
        ENABLED: "ConfigMap",
        POD_SCHEDULING_TIMEOUT: "Setting",
        NODE_RESERVATION_TIMEOUT: "environment",
        ENFORCEMENT: "defaults",
        PLACEMENT_GUARD: "defaults",
        GUARD_OTHER_NODES: "defaults",
    }


@pytest.mark.parametrize("text", ["", "-1", "1.5", "5s", "٣", "3601", " 5", "999999999999999999999"])
def test_a_bad_time_out_is_refused_and_the_next_source_counts(text: str) -> None:
    settings = SettingsHistory().merge(
        [
            SettingsSource("ConfigMap", {POD_SCHEDULING_TIMEOUT: text}),
            SettingsSource("environment", {POD_SCHEDULING_TIMEOUT: "9"}),
        ]
    )
    assert settings.pod_scheduling_timeout == 9
    assert len(settings.problems) == 1
    assert settings.problems[0].startswith(f"ConfigMap: {POD_SCHEDULING_TIMEOUT}: {text!r} is not")


@pytest.mark.parametrize(
    ("setting", "good", "bad", "problem"),
    [
        (ENABLED, "true", "yes please", "a boolean; True stays"),
        (ENFORCEMENT, "observe", "Enforce", "one of enforce, observe; observe stays"),
    ],
)
def test_the_last_good_value_of_a_source_counts_instead_of_a_bad_one(
    setting: str, good: str, bad: str, problem: str
) -> None:
    """A typing error must not switch anything off."""
    history = SettingsHistory()
    before = history.merge([SettingsSource("ConfigMap", {setting: good})])
    settings = history.merge([SettingsSource("ConfigMap", {setting: bad})])
    assert (settings.enabled, settings.enforcement) == (before.enabled, before.enforcement)
    assert settings.problems == (f"ConfigMap: {setting}: {bad!r} is not {problem}",)


def test_a_removed_value_is_forgotten() -> None:
    history = SettingsHistory()
    history.merge([SettingsSource("ConfigMap", {ENFORCEMENT: "observe"})])
    history.merge([SettingsSource("ConfigMap", {})])
    assert not history.merge([SettingsSource("ConfigMap", {ENFORCEMENT: "what"})]).observes


@pytest.mark.parametrize("setting", [ENABLED, PLACEMENT_GUARD])
def test_a_bad_value_never_means_off(setting: str) -> None:
    settings = SettingsHistory().merge([SettingsSource("ConfigMap", {setting: "yes please"})])
    installed = (True, GuardMode.OFF) if setting == ENABLED else (False, GuardMode.ENFORCE)
    assert (settings.enabled, settings.placement_guard) == installed
    assert settings.origins[setting] == "the value as installed"
    assert settings.problems[0].endswith("; the next source counts, or the value as installed")


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("scheduler-extender-enforcment", "there is no such setting, scheduler-extender-enforcement is meant?"),
        ("scheduler-extender-x", "there is no such setting"),
        ("placement-guards", "there is no such setting, placement-guard is meant?"),
    ],
)
def test_a_key_that_looks_like_a_setting_and_is_none_is_refused(key: str, problem: str) -> None:
    """A misspelt key would change nothing and say nothing."""
    settings = SettingsHistory().merge([SettingsSource("ConfigMap", {key: "observe", "policy.cfg": "{}"})])
    assert settings.problems == (f"ConfigMap: {key}: {problem}",)


@pytest.mark.parametrize("mode", Enforcement)
def test_refusals_are_enforced_or_observed(mode: Enforcement) -> None:
    settings = SettingsHistory().merge([SettingsSource("ConfigMap", {ENFORCEMENT: mode.value})])
    assert (settings.enforcement, settings.observes, settings.problems) == (mode, mode is Enforcement.OBSERVE, ())


@pytest.mark.parametrize("mode", GuardMode)
def test_the_placement_guards_mode_is_one_of_three_words(mode: GuardMode) -> None:
    settings = SettingsHistory().merge([SettingsSource("ConfigMap", {PLACEMENT_GUARD: mode.value})])
    assert (settings.placement_guard, settings.problems) == (mode, ())


@pytest.mark.parametrize("text", ["", "Enforce", "true", " off", "on"])
@pytest.mark.parametrize("setting", [PLACEMENT_GUARD, ENFORCEMENT])
def test_another_word_for_a_mode_is_refused(setting: str, text: str) -> None:
    settings = SettingsHistory().merge([SettingsSource("ConfigMap", {setting: text})])
    assert (settings.placement_guard is GuardMode.ENFORCE) is (setting == PLACEMENT_GUARD)
    words = "off, observe, enforce" if setting == PLACEMENT_GUARD else "enforce, observe"
    instead = "the next source counts, or the value as installed"
    assert settings.problems == (f"ConfigMap: {setting}: {text!r} is not one of {words}; {instead}",)
