"""`longhorn-extender rebalance`: goals, both outputs, exit codes and bad input."""

import shlex
from pathlib import Path

import pytest
import yaml

from tests.builders import Object, claim, setting, write_list
from tests.worlds.command_line import Run
from tests.worlds.predicted_clusters import growing_class, node, owned_pod, running

GI = 1024**3


def cluster_objects() -> list[Object]:
    """The node a has 70 Gi free, the node b 60 Gi. The replica of db-0 is on a."""
    pod = running("db-0", "a", locality="disabled")
    return [growing_class(), *node("a", listed={"db-0-a": 30}), *node("b", 60), *pod]


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    return write_list(tmp_path, cluster_objects())


@pytest.fixture
def waiting(tmp_path: Path) -> str:
    """The same with a pod that waits for 90 Gi."""
    pod = [owned_pod("data-web-0", name="web-0"), claim("data-web-0", 90)]
    return write_list(tmp_path / "waiting.json", cluster_objects(), pod)


def test_the_plan_is_printed_with_its_commands(cluster: str, run: Run) -> None:
    result = run("rebalance", "--snapshot", cluster)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[1].split() == ["1", "vol-data-db-0", "db-0-a", "a/disk-1", "b/disk-1", "30Gi", "default/db-0"]
    assert [shlex.split(line)[3] for line in lines if line.startswith("kubectl")] == [
        *("patch", "wait", "wait", "patch", "delete")
    ]
    assert lines[-1] == (
        "largest volume of longhorn: 70Gi now, 100Gi after 1 move, which copies 30Gi; fewer moves do not suffice"
    )


def test_the_plan_makes_a_waiting_pod_fit(waiting: str, run: Run) -> None:
    """It is the goal where a pod waits."""
    result = run("rebalance", "--snapshot", waiting)
    assert result.code == 0
    assert result.out.splitlines()[-1].startswith("waiting pods that fit: 0 of 1 now, 1 of 1 after 1 move")
    assert result.out == run("rebalance", "--snapshot", waiting, "--goal", "waiting-pods").out


def test_json_and_yaml_are_stable(cluster: str, run: Run) -> None:
    result = run("rebalance", "--snapshot", cluster, "--longhorn-namespace", "longhorn-system", "-o", "json")
    answer = result.answer
    assert (answer["apiVersion"], answer["kind"]) == ("longhorn-extender/v1", "Rebalance")
    assert answer["goal"] == {
        "name": "largest-volume",
        "storageClass": "longhorn",
        "unit": "bytes",
        "before": 70 * GI,
        "target": 70 * GI + 2 * 1024**2,
        "after": 100 * GI,
        "reached": True,
    }
    (move,) = answer["moves"]
    assert move["commands"][4] == ["kubectl", "-n", "longhorn-system", "delete", "replicas.longhorn.io", "db-0-a"]
    del move["commands"]
    assert move == {
        "volume": "vol-data-db-0",
        "replica": "db-0-a",
        "pods": ["default/db-0"],
        "from": {"node": "a", "disk": "disk-1"},
        "targets": [{"node": "b", "disk": "disk-1"}],
        "size": 30 * GI,
        "copiedBytes": 30 * GI,
    }
    assert (answer["copiedBytes"], answer["maxMoves"], answer["exhaustedMoves"]) == (30 * GI, 3, 1)
    document = Path("docs/planning.md").read_text()
    assert all(f"`{key}`" in document for key in answer)
    again = run("rebalance", "--snapshot", cluster, "-o", "yaml")
    assert yaml.safe_load(again.out) == result.answer


@pytest.mark.parametrize(
    ("options", "code", "last"),
    [
        (["--size", "60Gi"], 0, "70Gi now; no move is needed"),
        (["--size", "100Gi"], 0, "70Gi now, 100Gi after 1 move, which copies 30Gi; fewer moves do not suffice"),
        (["--size", "101Gi"], 1, "70Gi now; no plan of up to 3 moves exists"),
        (["--size", "101Gi", "--max-moves", "1"], 1, "70Gi now; no plan of up to 1 move exists"),
    ],
)
def test_the_exit_code_says_whether_there_is_a_plan(
    options: list[str], code: int, last: str, cluster: str, run: Run
) -> None:
    result = run("rebalance", "--snapshot", cluster, "--goal", "largest-volume=longhorn", *options)
    assert (result.code, result.out.splitlines()[-1]) == (code, f"largest volume of longhorn: {last}")


def test_a_pod_that_no_move_helps_has_no_plan(tmp_path: Path, run: Run) -> None:
    pod = owned_pod("data-web-0", name="web-0")
    pod["spec"]["nodeSelector"] = {"disk": "none"}
    result = run(
        "rebalance", "--snapshot", write_list(tmp_path / "s.json", cluster_objects(), pod, claim("data-web-0", 90))
    )
    assert result.code == 1
    assert result.out.splitlines()[-1] == "waiting pods that fit: 0 of 1 now; no plan of up to 3 moves exists"


def test_what_is_not_predicted_is_noted(tmp_path: Path, run: Run) -> None:
    file = write_list(tmp_path / "s.json", cluster_objects(), setting("replica-auto-balance", "best-effort"))
    assert "note: replica-auto-balance is on" in run("rebalance", "--snapshot", file).out


def test_a_volume_that_waits_for_the_freed_space_prevents_the_move(tmp_path: Path, run: Run) -> None:
    """Longhorn would build its local replica there."""
    objects = cluster_objects()
    objects += running("db-1", "a", 72, replicas=["c"], locality="best-effort")
    objects += node("c", 100, listed={"db-1-c": 72})
    result = run("rebalance", "--snapshot", write_list(tmp_path / "s.json", objects), "--goal", "largest-volume")
    assert result.code == 1
    assert "volumes of which Longhorn has to place replicas: 1" in result.out


def test_one_of_several_classes_must_be_named(tmp_path: Path, run: Run) -> None:
    gold = {**growing_class(), "metadata": {"name": "gold"}}
    file = write_list(tmp_path / "s.json", cluster_objects(), gold)
    result = run("rebalance", "--snapshot", file)
    assert (result.code, "there are gold, longhorn" in result.err) == (2, True)
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    gold["metadata"] = {"name": "gold", "annotations": default}
    assert (
        "largest volume of gold" in run("rebalance", "--snapshot", write_list(Path(file), cluster_objects(), gold)).out
    )
