"""A user's KubeSchedulerConfiguration is used as it is but for what must differ on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.errors import ConfigError
from devcluster.scheduler_config import DEFAULT, rewrite

CREDENTIALS = Path("/cluster/scheduler.kubeconfig")
GIVEN: dict[str, Any] = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf", "qps": 50},
    "leaderElection": {"leaderElect": True, "leaseDuration": "15s"},
    "percentageOfNodesToScore": 100,
    "profiles": [{"schedulerName": "default-scheduler"}],
    "extenders": [
        {"urlPrefix": "http://extender.example:9504/one", "filterVerb": "filter"},
        {"urlPrefix": "https://other.example:443", "weight": 1},
    ],
}


def rewritten(**options: Any) -> dict[str, Any]:
    """What becomes of GIVEN."""
    read: dict[str, Any] = yaml.safe_load(rewrite(yaml.safe_dump(GIVEN), CREDENTIALS, **options))
    return read


def prefixes(config: dict[str, Any]) -> list[str]:
    """Where the extenders are."""
    return [extender["urlPrefix"] for extender in config["extenders"]]


def test_only_credentials_and_leader_election_differ_by_default() -> None:
    """Client limits, lease times, profiles and extenders stay as in the file."""
    expected = GIVEN | {
        "clientConnection": {"kubeconfig": str(CREDENTIALS), "qps": 50},
        "leaderElection": {"leaderElect": False, "leaseDuration": "15s"},
    }
    assert rewritten() == expected


def test_one_address_moves_every_extender_and_keeps_scheme_and_path() -> None:
    """Only host and port are replaced."""
    moved = rewritten(url_prefix="10.0.0.1:2000")
    assert prefixes(moved) == ["http://10.0.0.1:2000/one", "https://10.0.0.1:2000"]


def test_a_mapping_moves_the_extenders_it_names() -> None:
    """The others stay where the file has them."""
    moved = rewritten(url_prefix={"extender.example:9504": "10.0.0.1:2000"})
    assert prefixes(moved) == ["http://10.0.0.1:2000/one", "https://other.example:443"]


def test_the_only_profile_is_renamed_for_a_second_scheduler() -> None:
    """Its plugins, had it any, would stay."""
    assert rewritten(scheduler_name="second")["profiles"] == [{"schedulerName": "second"}]


def test_the_default_configuration_can_be_renamed_too() -> None:
    """It has no profile of its own."""
    config = yaml.safe_load(rewrite(DEFAULT, CREDENTIALS, scheduler_name="second"))
    assert config["profiles"] == [{"schedulerName": "second"}]


@pytest.mark.parametrize("text", ["- a list", "kind: Policy", "", "{"])
def test_a_file_that_is_no_configuration_is_named(text: str) -> None:
    """The message says which file."""
    with pytest.raises(ConfigError, match="my-file"):
        rewrite(text, CREDENTIALS, source="my-file")


@pytest.mark.parametrize("address", ["http://10.0.0.1:2000", "10.0.0.1", "10.0.0.1:http"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    """A URL would silently lose its scheme."""
    with pytest.raises(ConfigError, match="host:port"):
        rewritten(url_prefix=address)


def test_several_profiles_are_not_renamed() -> None:
    """Which one would be meant?"""
    text = yaml.safe_dump(GIVEN | {"profiles": [{"schedulerName": "a"}, {"schedulerName": "b"}]})
    with pytest.raises(ConfigError, match="2 profiles"):
        rewrite(text, CREDENTIALS, scheduler_name="second")
