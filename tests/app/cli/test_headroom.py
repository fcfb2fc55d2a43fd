"""`longhorn-extender headroom`: templates, both outputs, exit codes and bad input."""

from pathlib import Path

import pytest

from tests.builders import Object, claim, pod, write_list
from tests.worlds.command_line import Run
from tests.worlds.predicted_clusters import growing_class, node, owned_pod, running, stateful_set


def workload(kind: str = "StatefulSet", size: str = "40Gi") -> Object:
    """A workload with one claim per pod. It has no claim if it is no StatefulSet."""
    raw = {**stateful_set("web", 0, size), "kind": kind}
    if kind != "StatefulSet":
        del raw["spec"]["volumeClaimTemplates"]
    return raw


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """A snapshot file of two nodes. db-0 runs on a with 30 of 100 Gi, and b is empty."""
    objects = (growing_class(), node("a", listed={"db-0-a": 30}), node("b"), running("db-0", "a"))
    return write_list(tmp_path, *objects)


def test_the_table_says_how_many_fit_and_why_no_more(run: Run, cluster: str, tmp_path: Path) -> None:
    file = write_list(tmp_path / "web.json", workload())
    result = run("headroom", file, "--snapshot", cluster, "--orders", "2")
    lines = result.rows
    assert result.code == 0
    assert lines[:3] == ["NODE PODS", "a 1", "b 2"]
    assert lines[4] == "default/web-3 does not fit after 3 pods: insufficient Longhorn storage (2 nodes)"
    assert lines[5].startswith("closest: a: insufficient Longhorn storage, 10Gi are missing (data-web-3 needs 40Gi;")
    assert lines[-1] == f"3 more pods of {file} fit, in 2 orders"


def test_json_is_stable(run: Run, cluster: str, tmp_path: Path) -> None:
    file = write_list(tmp_path / "web.json", workload())
    answer = run("headroom", file, "--snapshot", cluster, "--orders", "2", "-o", "json").answer
    assert list(answer) == [
        "apiVersion", "kind", "template", "orders", "seed", "limit", "atLeast", "least", "most", "limitReached",
        "succeeds", "nodes", "refusals", "refused", "notes",
    ]  # fmt: skip
    assert (answer["apiVersion"], answer["kind"]) == ("longhorn-extender/v1", "Headroom")
    assert (answer["least"], answer["most"], answer["limitReached"], answer["succeeds"]) == (3, 3, False, True)
    assert answer["nodes"] == [{"node": "a", "least": 1, "most": 1}, {"node": "b", "least": 2, "most": 2}]
    assert answer["refused"]["pod"] == "default/web-3"
    assert answer["refused"]["reasons"] == {"insufficient Longhorn storage": 2}
    assert answer["refused"]["closest"]["missing"] == 10 * 1024**3


@pytest.mark.parametrize(
    ("size", "options", "code"),
    [
        ("40Gi", ["--at-least", "0"], 0),
        ("40Gi", ["--at-least", "3"], 0),
        ("40Gi", ["--at-least", "4"], 1),
        ("400Gi", [], 1),
    ],
)
def test_the_exit_code_says_whether_enough_fit(
    run: Run, cluster: str, tmp_path: Path, *, size: str, options: list[str], code: int
) -> None:
    result = run("headroom", write_list(tmp_path / "web.json", workload(size=size)), "--snapshot", cluster, *options)
    assert (result.code, result.rows[-1].partition(" ")[0]) == (code, "3" if size == "40Gi" else "0")


def test_a_limit_that_is_reached_is_said(run: Run, cluster: str, tmp_path: Path) -> None:
    file = write_list(tmp_path / "web.json", workload("Deployment"))
    result = run("headroom", file, "--snapshot", cluster, "--limit", "4")
    assert result.out.splitlines()[-1] == f"at least 4 more pods of {file} fit, in 5 orders"


@pytest.mark.parametrize("template", ["sts/db", "db-0", "pod/db-0"])
def test_a_stateful_set_of_the_cluster_goes_on_with_its_next_pod(run: Run, cluster: str, template: str) -> None:
    answer = run("headroom", template, "--snapshot", cluster, "--orders", "1", "-o", "json").answer
    assert (answer["least"], answer["refused"]["pod"]) == (5, "default/db-6")


def test_copies_of_a_pod_without_a_controller_have_claims_of_their_own(run: Run, cluster: str, tmp_path: Path) -> None:
    file = write_list(tmp_path / "pod.json", pod("data", name="job"), claim("data", 40))
    answer = run("headroom", file, "--snapshot", cluster, "--orders", "1", "-o", "json").answer
    assert answer["least"] == 3
    shared = claim("data", 40)
    shared["spec"]["accessModes"] = ["ReadWriteMany"]
    file = write_list(tmp_path / "shared.json", pod("data", name="job"), shared)
    answer = run("headroom", file, "--snapshot", cluster, "--limit", "9", "-o", "json").answer
    assert (answer["least"], answer["limitReached"]) == (9, True)


def test_pods_of_a_deployment_share_its_claims(run: Run, tmp_path: Path) -> None:
    objects = (growing_class(), node("a"), node("b"), claim("data", 40))
    bound = owned_pod("data", name="web-1-x", owner="ReplicaSet")
    file = write_list(tmp_path, *objects, bound)
    answer = run("headroom", "web-1-x", "--snapshot", file, "--limit", "9", "-o", "json").answer
    assert [entry["least"] for entry in answer["nodes"] if entry["least"]] in ([9], [])
    assert answer["least"] == 9
    assert answer["notes"][0] == "pods that wait already: 1; they are placed first where they fit"


def test_a_daemon_set_has_no_headroom(run: Run, cluster: str, tmp_path: Path) -> None:
    result = run("headroom", write_list(tmp_path / "ds.json", workload("DaemonSet")), "--snapshot", cluster)
    assert (result.code, "is a DaemonSet" in result.err) == (2, True)
