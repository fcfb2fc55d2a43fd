"""`longhorn-extender remedies`: outputs, commands, exit codes and bad input.

The first remedy in `explain` is tested, too.
"""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_core.predict.remedies import find_remedies
from tests.builders import Object, claim, disk, kube_node, longhorn_node, pod, storage_class, write_list
from tests.worlds.command_line import Run
from tests.worlds.remedies import object_of, run_command, write_conditions

ROOT = Path(__file__).parents[3]
MIXED = "examples/mixed-cluster/snapshot.yaml"
LARGE = "examples/mixed-cluster/pods/large.yaml"


def world(**fields: Any) -> list[Object]:
    node = longhorn_node("a", {"disk-1": disk(100, **fields)})
    return [kube_node("a"), node, storage_class(), claim("data", 40), pod("data", name="db", uid="uid-db")]


def cordoned_node() -> list[Object]:
    """The same, with the node cordoned."""
    objects = world()
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    object_of(objects, "v1", "Node", "a")["spec"] = {"unschedulable": True, "taints": [taint]}
    write_conditions(objects)
    return objects


def evicted_node() -> list[Object]:
    """The same, with an eviction of the node."""
    objects = world()
    object_of(objects, "longhorn.io/v1beta2", "Node", "a")["spec"] |= {
        "allowScheduling": False,
        "evictionRequested": True,
    }
    return objects


def selective() -> list[Object]:
    objects = world(tags=("hdd",))
    objects[2] = storage_class(diskSelector="ssd,fast")
    return objects


def test_a_search_that_ends_early_says_so(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a remedy that was not tried."""
    file = write_list(tmp_path, *world(reserved=70))
    assert "not searched further" not in run("remedies", "db", "--snapshot", file).out
    assert run("remedies", "db", "--snapshot", file, "-o", "json").answer["complete"] is True
    monkeypatch.setattr("app.cli.remedies_and_rebalance.find_remedies", partial(find_remedies, max_decisions=1))
    assert "not searched further" in run("remedies", "db", "--snapshot", file).out
    assert run("remedies", "db", "--snapshot", file, "-o", "json").answer["complete"] is False


CLUSTERS = [
    pytest.param(cordoned_node(), "uncordon node a", id="cordoned"),
    pytest.param(world(allow=False), "allow scheduling on disk a/disk-1", id="disk disallowed"),
    pytest.param(world(evict=True), "allow scheduling on disk a/disk-1 and cancel its eviction", id="disk evicted"),
    pytest.param(evicted_node(), "allow scheduling on Longhorn node a and cancel its eviction", id="node evicted"),
    pytest.param(selective(), "add tags fast, ssd to disk a/disk-1", id="no tags"),
    pytest.param(
        world(reserved=70), "reserve 10Gi less on disk a/disk-1 (60Gi instead of 70Gi)", id="too much reserved"
    ),
]


@pytest.mark.parametrize(("objects", "text"), CLUSTERS)
def test_the_printed_commands_make_explain_say_that_the_pod_fits(
    run: Run, tmp_path: Path, objects: list[Object], text: str
) -> None:
    snapshot = write_list(tmp_path, objects)
    assert run("explain", "--snapshot", snapshot, "db").code == 1
    result = run("remedies", "--snapshot", snapshot, "db", "--limit", "1")
    lines = result.out.splitlines()
    assert (result.code, lines[0]) == (1, f"1. {text}")
    changed = json.loads(Path(snapshot).read_text())["items"]
    commands = [shlex.split(line) for line in lines if line.startswith("   kubectl ")]
    assert commands
    for command in commands:
        run_command(changed, command)
    write_conditions(changed)
    assert run("explain", "--snapshot", write_list(tmp_path, changed), "db").code == 0


def test_the_remedies_of_the_example_work(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    answer = run("remedies", "--snapshot", MIXED, LARGE, "-o", "json").answer
    commands = [remedy["steps"][0]["commands"] for remedy in answer["remedies"] if remedy["steps"][0]["commands"]]
    assert len(commands) == 2
    for [command] in commands:
        items = yaml.load((ROOT / MIXED).read_text(), yaml.CSafeLoader)["items"]
        run_command(items, shlex.split(command))
        result = run("explain", "--snapshot", write_list(tmp_path, items), LARGE, "-o", "name")
        assert (result.code, result.out) == (0, "node/north-1\n")


def test_json_and_yaml_are_stable(run: Run, tmp_path: Path) -> None:
    snapshot = write_list(tmp_path, world(scheduled=70))
    answer = run("remedies", "--snapshot", snapshot, "db", "-o", "json").answer
    assert list(answer) == ["apiVersion", "kind", "pod", "fits", "remedies", "complete"]
    assert (answer["apiVersion"], answer["kind"]) == ("longhorn-extender/v1", "Remedies")
    assert (answer["pod"], answer["fits"]) == ("default/db", False)
    assert answer["remedies"][0] == {
        "text": "free 10Gi of what is scheduled on disk a/disk-1",
        "kind": "free-scheduled",
        "size": 10 * 1024**3,
        "steps": [
            {
                "kind": "free-scheduled",
                "text": "free 10Gi of what is scheduled on disk a/disk-1",
                "node": "a",
                "disk": "disk-1",
                "size": 10 * 1024**3,
                "tags": [],
                "replica": "",
                "commands": [],
            }
        ],
    }
    assert [remedy["kind"] for remedy in answer["remedies"]] == ["free-scheduled", "grow-disk"]
    assert yaml.safe_load(run("remedies", "--snapshot", snapshot, "db", "-o", "yaml").out) == answer


def test_a_pod_that_fits_needs_no_remedy(run: Run, tmp_path: Path) -> None:
    result = run("remedies", "--snapshot", write_list(tmp_path, world()), "db")
    assert (result.code, result.out) == (0, "pod default/db fits as it is\n")


def test_where_nothing_helps_that_is_said(run: Run, tmp_path: Path) -> None:
    node = longhorn_node("a", {})
    objects = [kube_node("a"), node, storage_class(), claim("data", 40), pod("data", name="db", uid="uid-db")]
    result = run("remedies", "--snapshot", write_list(tmp_path, objects), "db")
    assert (result.code, result.out) == (1, "pod default/db fits nowhere; no remedy was found\n")


@pytest.mark.parametrize(
    ("options", "fits"), [(["--alone"], False), (["--all-nodes"], False), (["--node", "a"], False), ([], True)]
)
def test_explain_seeks_no_remedy_for_a_narrower_question_or_a_pod_that_fits(
    run: Run, tmp_path: Path, options: list[str], fits: bool
) -> None:
    result = run("explain", "--snapshot", write_list(tmp_path, world(allow=fits)), "db", *options, "-o", "json")
    assert (result.code, result.answer["remedy"]) == (not fits, None)


@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_explain_prints_as_many_remedies_as_are_asked_for(run: Run, number: int) -> None:
    example = ROOT / "examples/mixed-cluster"
    arguments = ("--snapshot", str(example / "snapshot.yaml"), str(example / "pods/large.yaml"))
    answer = run("explain", *arguments, "--remedies", str(number), "-o", "json").answer
    expected = run("remedies", *arguments, "--limit", "5", "-o", "json").answer["remedies"]
    assert answer["remedies"] == expected[:number]
    assert answer["remedy"] == (expected[0] if number else None)
    lines = [
        line for line in run("explain", *arguments, "--remedies", str(number)).out.splitlines() if " remedy: " in line
    ]
    assert [line.split()[0] for line in lines] == ["cheapest", "next", "next", "next", "next"][:number]
    assert [line.endswith("; commands and others: longhorn-extender remedies") for line in lines[-1:]] == [True][
        :number
    ]
