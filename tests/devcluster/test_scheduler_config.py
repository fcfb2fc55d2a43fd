"""A user's KubeSchedulerConfiguration changes only where this machine requires it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.errors import ConfigError
from devcluster.scheduler_config import rewrite

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


def rewrite_given(**options: Any) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(rewrite(yaml.safe_dump(GIVEN), CREDENTIALS, **options))
    return config


def test_only_credentials_and_leader_election_differ_by_default() -> None:
    expected = GIVEN | {
        "clientConnection": {"kubeconfig": str(CREDENTIALS), "qps": 50},
        "leaderElection": {"leaderElect": False, "leaseDuration": "15s"},
    }
    assert rewrite_given() == expected


def test_one_address_replaces_host_and_port_of_every_extender() -> None:
    extenders = rewrite_given(url_prefix="10.0.0.1:2000")["extenders"]
    assert [each["urlPrefix"] for each in extenders] == ["http://10.0.0.1:2000/one", "https://10.0.0.1:2000"]


@pytest.mark.parametrize("text", ["- a list", "kind: Policy", "", "{"])
def test_the_error_for_a_file_without_a_configuration_names_it(text: str) -> None:
    with pytest.raises(ConfigError, match="my-file"):
        rewrite(text, CREDENTIALS, source="my-file")


@pytest.mark.parametrize("address", ["http://10.0.0.1:2000", "10.0.0.1", "10.0.0.1:http"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """A URL would silently lose its scheme."""
    with pytest.raises(ConfigError, match="host:port"):
        rewrite_given(url_prefix=address)
