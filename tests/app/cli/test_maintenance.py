"""`longhorn-extender maintenance`: both outputs, exit codes and bad input."""

from pathlib import Path

import pytest

from tests.builders import pod, write_list
from tests.worlds.command_line import Run
from tests.worlds.predicted_clusters import growing_class, node, running


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """A snapshot file of three nodes. db-0 runs on a with a replica there and on b; c is empty."""
    nodes = [*node("a", listed={"db-0-a": 30}), *node("b", listed={"db-0-b": 30}), *node("c")]
    return write_list(tmp_path, growing_class(), nodes, running("db-0", "a", replicas=["a", "b"]))


def test_an_order_of_all_nodes_ends_with_0(run: Run, cluster: str) -> None:
    result = run("maintenance", "--snapshot", cluster, "--rebuild-rate", "100Mi", "--orders", "2")
    lines = result.rows
    assert result.code == 0
    assert lines[0] == "DRAIN PODS FEWER REPLICAS REBUILDS TAKES"
    assert lines[1] == "1 a 1 1 30Gi 0:05:07"
    assert [line.split()[1] for line in lines[1:4]] == ["a", "b", "c"]
    assert lines[-1] == "3 of 3 nodes can be drained in this order, in 2 orders of events"


def test_the_wait_before_a_rebuild_is_said(run: Run, tmp_path: Path) -> None:
    """Longhorn rebuilds elsewhere what it could reuse only after replica-replenishment-wait-interval."""
    nodes = [*node("a", listed={"db-0-a": 30}), *node("b", listed={"db-0-b": 30}), *node("c")]
    pods = running("db-0", "b", replicas=["a", "b"], locality="disabled")
    file = write_list(tmp_path / "remote.json", growing_class(), nodes, pods)
    arguments = ("maintenance", "a", "--snapshot", file, "--orders", "2")
    wait = "nothing is rebuilt for 0:10:01 where a failed replica could be reused (replica-replenishment-wait-interval)"
    assert f"after each drain {wait}" in run(*arguments).out
    assert [step["waitSeconds"] for step in run(*arguments, "-o", "json").answer["steps"]] == [601]


def test_only_the_named_nodes_are_drained(run: Run, cluster: str) -> None:
    answer = run("maintenance", "c", "a", "c", "--snapshot", cluster, "-o", "json").answer
    assert [step["node"] for step in answer["steps"]] == ["c", "a"]


def test_json_is_stable(run: Run, cluster: str) -> None:
    answer = run("maintenance", "a", "--snapshot", cluster, "--orders", "2", "-o", "json").answer
    assert list(answer) == [
        "apiVersion", "kind", "orders", "seed", "rate", "succeeds", "exhaustive", "tries", "steps", "failed", "notes",
    ]  # fmt: skip
    assert (answer["kind"], answer["succeeds"], answer["exhaustive"], answer["tries"]) == ("Maintenance", True, True, 0)
    assert list(answer["steps"][0]) == [
        "node", "leastPods", "mostPods", "leastBytes", "mostBytes", "leastSeconds", "mostSeconds",
        "leastReducedVolumes", "mostReducedVolumes", "waitSeconds",
    ]  # fmt: skip


def test_a_node_that_is_blocked_in_any_order_ends_with_1(run: Run, tmp_path: Path) -> None:
    objects = (growing_class(), node("a"), node("b"), pod(name="bare", node="a", phase="Running"))
    file = write_list(tmp_path / "bare.json", *objects)
    result = run("maintenance", "--snapshot", file, "--orders", "2")
    lines = result.rows
    assert result.code == 1
    assert lines[1] == "1 b 0 0 0"
    assert "a in any order pod default/bare has no controller" in lines
    assert lines[-1].startswith("1 of 2 nodes can be drained one after the other, in 2 orders of events; ")


def test_where_no_drain_fits_every_order_was_tried(run: Run, tmp_path: Path) -> None:
    nodes = [*node("a", 50, listed={"db-0-a": 40}), *node("b", 50, listed={"db-1-b": 40})]
    file = write_list(
        tmp_path / "full.json", growing_class(), nodes, running("db-0", "a", 40), running("db-1", "b", 40)
    )
    result = run("maintenance", "--snapshot", file, "--orders", "2")
    lines = result.rows
    assert result.code == 1
    assert any(line.startswith("a first ") and "finds no node" in line for line in lines)
    assert lines[-1].endswith("every order was tried, so that no other one drains more")
    answer = run("maintenance", "--snapshot", file, "--orders", "2", "-o", "json").answer
    assert [(entry["node"], entry["blocked"]) for entry in answer["failed"]] == [("a", False), ("b", False)]
    assert all(entry["firstProblems"] == entry["problems"] for entry in answer["failed"])
    assert (answer["steps"], answer["exhaustive"], answer["tries"]) == ([], True, 1)
