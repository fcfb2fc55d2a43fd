"""A short burst with more pods than room, on unequal nodes, with kube-scheduler's default client limits.

`python -m tests.e2e --section backlog` has the long ones, in which the writes are more than a minute behind.
"""

import pytest

from tests.e2e import backlog


@pytest.mark.campaign
@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_a_burst_larger_than_the_room_fills_unequal_nodes_exactly(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No replica was ever on another node than its pod, and no room is left while pods wait."""
    outcome = backlog.run(tmp_path_factory.mktemp("backlog"), backlog.Backlog(pods=100, quiet=12))
    print(outcome.text())
    assert outcome.problems == []


def test_the_nodes_have_room_for_three_quarters_of_the_pods() -> None:
    slots = backlog.Backlog(pods=1500).slots()
    assert sum(slots.values()) == 1125
    assert len(set(slots.values())) > 1


@pytest.mark.parametrize(
    ("node", "replica_nodes", "names"),
    [
        pytest.param("a", {"a"}, [], id="beside its pod"),
        pytest.param("a", {"a", "b"}, ["pod"], id="mended"),
        pytest.param("a", {"b"}, ["pod"], id="elsewhere"),
        pytest.param("a", set(), ["pod"], id="nowhere"),
        pytest.param("", {"b"}, [], id="without a node"),
    ],
)
def test_a_replica_that_ever_was_elsewhere_counts(node: str, replica_nodes: set[str], names: list[str]) -> None:
    """The volume's name is that of its PersistentVolume."""
    spec = {"nodeName": node, "volumes": [{"persistentVolumeClaim": {"claimName": "claim"}}]}
    pod = {"metadata": {"name": "pod"}, "spec": spec}
    claim = {"metadata": {"name": "claim"}, "spec": {"volumeName": "volume"}}
    assert backlog.misplaced_pods([pod], [claim], {"volume": replica_nodes}) == names
