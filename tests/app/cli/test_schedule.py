"""`longhorn-extender schedule --snapshot`: what if the pending pods were scheduled?"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from app.cli.main import cli
from app.kube.client import KubeClient
from app.runtime.elector import Elector
from app.scheduler import lifecycle
from app.scheduler.lifecycle import LEASE, SchedulerOptions
from app.scheduler.metrics import SchedulerMetrics
from app.scheduler.scheduler import SchedulerConfig
from scheduler_core.model.verdict import Reason
from tests.builders import claim, flat, kube_node, longhorn_node, storage_class
from tests.worlds.command_line import Run

POLICIES = Path(__file__).parents[3] / "examples" / "policies"
CLUSTER = str(POLICIES / "cluster.yaml")
Object = dict[str, Any]


def node(name: str, cpu: str = "4", **labels: str) -> Object:
    """A node with room for ten pods."""
    capacity = {"cpu": cpu, "memory": "8Gi", "pods": "10"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": capacity, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name: str, cpu: str = "1", **spec: Any) -> Object:
    """A pending pod."""
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    metadata = {"namespace": "shop", "name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


@pytest.fixture
def scheduled(run: Run, tmp_path: Path) -> Any:
    """Schedules the pods among some objects; exit code and answer."""

    def ask(objects: list[Object], *arguments: str) -> tuple[int, Any]:
        file = tmp_path / "snapshot.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        result = run("schedule", "--snapshot", str(file), *arguments, "-o", "json")
        return result.code, json.loads(result.out)

    return ask


def test_each_pod_is_decided_beside_those_before_it(scheduled: Any) -> None:
    """Three pods of two CPUs on two nodes of three: one per node, and the third is told why not."""
    objects = [node("a", "3"), node("b", "3"), *(pod(f"web-{number}", "2") for number in range(3))]
    code, answer = scheduled(objects)
    assert code == 1
    assert {entry["pod"]: entry["node"] for entry in answer["bindings"]}.keys() == {"shop/web-0", "shop/web-1"}
    assert {entry["node"] for entry in answer["bindings"]} == {"a", "b"}
    (unplaced,) = answer["unschedulable"]
    assert unplaced["pod"] == "shop/web-2"
    assert unplaced["message"] == "0/2 nodes are available: 2 {}.".format(*unplaced["reasons"])
    assert list(unplaced["reasons"].values()) == [2]


def test_the_document_is_as_documented(scheduled: Any) -> None:
    """Its keys are relied on."""
    code, answer = scheduled([node("a"), pod("web"), pod("stuck", "9")])
    assert code == 1
    assert {key: [sorted(entry) for entry in entries] for key, entries in answer.items()} == {
        "bindings": [["equallyGood", "node", "pod", "refused", "score", "scores"]],
        "unschedulable": [["message", "pod", "reasons"]],
    }


def test_a_bound_pod_is_told_with_what_led_to_its_node(scheduled: Any, tmp_path: Path) -> None:
    """The chosen node's score by each priority, unweighted; how many are as good; and how many are out for what."""
    file = tmp_path / "policy.json"
    zone = {"labelPreference": {"label": "zone", "presence": True}}
    priorities = [{"name": "EqualPriority", "weight": 1}, {"name": "Zoned", "weight": 2, "argument": zone}]
    file.write_text(json.dumps({"predicates": [{"name": "PodFitsResources"}], "priorities": priorities}))
    nodes = [node("a", zone="z"), node("b", zone="z"), node("c"), node("small", "1"), node("smaller", "1")]
    _, answer = scheduled([*nodes, pod("web", "2")], "--policy", str(file))
    (binding,) = answer["bindings"]
    assert binding.pop("node") in {"a", "b"}
    assert binding == {
        "pod": "shop/web",
        "score": 21,
        "scores": {"EqualPriority": 1, "Zoned": 10},
        "equallyGood": 2,
        "refused": {"insufficient CPU": 2},
    }


def test_a_pod_that_nothing_can_be_decided_about_is_told_just_that(scheduled: Any, tmp_path: Path) -> None:
    """Service affinity follows a pod whose node is gone: no count of nodes would tell the administrator more."""
    file = tmp_path / "policy.json"
    affinity = {"name": "Zone", "argument": {"serviceAffinity": {"labels": ["zone"]}}}
    file.write_text(json.dumps({"predicates": [affinity]}))
    first, second = pod("web-0", nodeName="gone"), pod("web-1")
    for entry in (first, second):
        entry["metadata"]["labels"] = {"app": "web"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"selector": {"app": "web"}},
    }
    code, answer = scheduled([node("a"), first, second, service], "--policy", str(file))
    (unplaced,) = answer["unschedulable"]
    assert code == 1
    assert unplaced["message"] == "node 'gone' of pod shop/web-0, which service affinity follows, is not known"


@pytest.mark.parametrize(
    ("unready", "message"),
    [
        pytest.param(["a"], "0/1 nodes are available: 1 node is unschedulable.", id="all are cordoned"),
        pytest.param([], "no nodes available to schedule pods", id="there are none"),
    ],
)
def test_where_no_node_is_available_the_cordoned_are_counted(scheduled: Any, unready: list[str], message: str) -> None:
    """Without any node there is nothing to count."""
    cordoned = [node(name) | {"spec": {"unschedulable": True}} for name in unready]
    _, answer = scheduled([*cordoned, pod("web")])
    assert [entry["message"] for entry in answer["unschedulable"]] == [message]


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        pytest.param([], "no pod waits for a node", id="of anybody"),
        pytest.param(["--scheduler-name", "x"], "no pod with spec.schedulerName 'x' waits for a node", id="of one"),
    ],
)
def test_nothing_to_schedule_is_warned_about(run: Run, arguments: list[str], warning: str) -> None:
    """A wrong name or a wrong file would look like success."""
    pods = [pod("there", nodeName="a"), *([pod("others")] if arguments else [])]
    raw = yaml.safe_dump_all([node("a"), *pods]).encode()
    result = run("schedule", "--snapshot", "-", *arguments, stdin=raw)
    assert result.code == 0
    assert warning in result.err
    assert warning not in run("schedule", "--snapshot", CLUSTER).err


def test_priority_and_age_decide_who_comes_first(scheduled: Any) -> None:
    """One place, three pods."""
    old, urgent = pod("z-old", "2"), pod("urgent", "2", priority=1)
    old["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    _, answer = scheduled([node("a", "5"), pod("a-young", "2"), old, urgent])
    assert [entry["pod"] for entry in answer["bindings"]] == ["shop/urgent", "shop/z-old"]


def test_only_pods_that_wait_for_a_node_are_scheduled(scheduled: Any) -> None:
    """Not those that have one, are finished, are being deleted, or are held back by a gate."""
    deleted, finished = pod("deleted"), pod("finished")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    finished["status"] = {"phase": "Failed"}
    gated = pod("gated", schedulingGates=[{"name": "later"}])
    code, answer = scheduled([node("a"), pod("there", nodeName="a"), deleted, finished, gated])
    assert (code, answer) == (0, {"bindings": [], "unschedulable": []})


def test_a_scheduler_name_picks_that_schedulers_pods(scheduled: Any) -> None:
    """Without one, all pods."""
    objects = [node("a"), pod("mine", schedulerName="mine"), pod("others")]
    _, answer = scheduled(objects, "--scheduler-name", "mine")
    assert [entry["pod"] for entry in answer["bindings"]] == ["shop/mine"]
    assert len(scheduled(objects)[1]["bindings"]) == 2


def test_the_same_seed_gives_the_same_answer(run: Run) -> None:
    """And chance differs between seeds: thirteen nodes are equally good at first."""
    command = ["schedule", "--snapshot", CLUSTER, "-o", "json"]
    answers = [run(*command, "--seed", str(seed)).out for seed in (1, 1, 2, 3, 4)]
    assert answers[0] == answers[1]
    assert len(set(answers)) > 1
    assert run(*command).out == run(*command, "--seed", "0").out


def test_a_policy_spreads_a_service_over_racks(run: Run) -> None:
    """Region and zone of the first pod for all; the racks differ by one pod at most."""
    policy = str(POLICIES / "region-zone-rack.json")
    result = run("schedule", "--snapshot", CLUSTER, "--policy", policy, "-o", "json")
    nodes = [entry["node"] for entry in json.loads(result.out)["bindings"]]
    assert result.code == 0
    assert len({name.rpartition("-")[0] for name in nodes}) == 1
    counts = [nodes.count(name) for name in set(nodes)]
    assert max(counts) - min(counts) <= 1


def test_longhorn_rules_count_the_volumes_of_pods_bound_before(scheduled: Any) -> None:
    """Two pods with a volume of 60Gi each, two nodes with 100Gi: one each, and the third fits nowhere."""
    objects = flat(
        [node(name) for name in ("a", "b")],
        [longhorn_node(name, 100) for name in ("a", "b")],
        storage_class(),
        [claim(f"data-{number}", 60) for number in range(3)],
    )
    names = [entry["metadata"].get("namespace") for entry in objects if entry["kind"] == "PersistentVolumeClaim"]
    for number in range(3):
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": f"data-{number}"}}]
        made = pod(f"db-{number}", volumes=volumes)
        made["metadata"]["namespace"] = names[0]
        objects.append(made)
    code, answer = scheduled(objects, "--policy", str(POLICIES / "extender.json"))
    assert code == 1
    assert {entry["node"] for entry in answer["bindings"]} == {"a", "b"}
    (unplaced,) = answer["unschedulable"]
    assert unplaced["message"] == f"0/2 nodes are available: 2 {Reason.SPOKEN_FOR.text}."


def test_a_missing_claim_is_told_by_name(scheduled: Any) -> None:
    """As the pod's only reason."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}}]
    objects = flat([node("a")], [longhorn_node("a", 100)], [pod("db", volumes=volumes)])
    code, answer = scheduled(objects, "--policy", str(POLICIES / "extender.json"))
    assert code == 1
    assert "shop/nowhere" in answer["unschedulable"][0]["message"]


def test_pods_without_volumes_pass_longhorns_rules(scheduled: Any) -> None:
    """They need none."""
    objects = flat([node("a")], [longhorn_node("a", 100)], [pod("web")])
    code, answer = scheduled(objects, "--policy", str(POLICIES / "extender.json"))
    assert (code, [entry["node"] for entry in answer["bindings"]]) == (0, ["a"])


def test_the_table_counts_and_gives_reasons(run: Run) -> None:
    """For people."""
    nodes = yaml.safe_dump_all([node("a"), pod("web"), pod("stuck", "9")]).encode()
    result = run("schedule", "--snapshot", "-", stdin=nodes)
    assert result.code == 1
    assert "shop/web" in result.out
    assert "0/1 nodes are available: 1 " in result.out
    assert result.out.splitlines()[-1] == "1 scheduled, 1 not"


def test_a_snapshot_without_capacities_is_warned_about(run: Run) -> None:
    """No pod would fit on any node, and nobody would see why."""
    raw = yaml.safe_dump_all([kube_node("a"), pod("web")]).encode()
    result = run("schedule", "--snapshot", "-", stdin=raw)
    assert result.code == 1
    assert "no node says how many pods it takes" in result.err


def test_a_policy_that_reads_no_resources_needs_no_capacities(run: Run, tmp_path: Path) -> None:
    """Nothing is warned about that keeps no pod off any node."""
    policy = tmp_path / "policy.json"
    rules = {"predicates": [{"name": "PodFitsPorts"}], "priorities": [{"name": "EqualPriority", "weight": 1}]}
    policy.write_text(json.dumps(rules))
    bare = {**node("a"), "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    raw = yaml.safe_dump_all([bare, pod("web")]).encode()
    result = run("schedule", "--snapshot", "-", "--policy", str(policy), stdin=raw)
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        pytest.param([], "either --snapshot or --watch", id="neither"),
        pytest.param(["--snapshot", CLUSTER, "--watch"], "either --snapshot or --watch", id="both"),
        pytest.param(["--watch"], "needs --scheduler-name", id="whose pods"),
        pytest.param(["--snapshot", "nowhere.yaml"], "nowhere.yaml: cannot be read", id="no file"),
        pytest.param(["--snapshot", CLUSTER, "--policy", "nowhere"], "nowhere: cannot be read", id="no policy"),
        pytest.param(["--snapshot", CLUSTER, "--policy", CLUSTER], "cluster.yaml: policy: is not JSON", id="no JSON"),
        *(
            pytest.param(
                ["--watch", "--scheduler-name", "x", "--lease-name", name], f"--lease-name {name!r}: ", id=name
            )
            for name in ("Upper", "under_score", "-begins", "ends.", "a" * 254)
        ),
        pytest.param(
            ["--watch", "--scheduler-name", "x", "--log-level", "loud"], "--log-level loud: expected one of", id="level"
        ),
        pytest.param(
            ["--watch", "--scheduler-name", "x", "--kubeconfig", "nowhere"], "no cluster to talk to", id="no cluster"
        ),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: list[str], problem: str) -> None:
    """With exit code 2."""
    result = run("schedule", *arguments)
    assert result.code == 2
    assert problem in result.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("environment", "arguments", "lease"),
    [
        pytest.param({}, [], LEASE, id="the manifests'"),
        pytest.param({"LONGHORN_SCHEDULER_LEASE": ""}, [], LEASE, id="an empty variable is none"),
        pytest.param({"LONGHORN_SCHEDULER_LEASE": "second"}, [], "second", id="from the environment"),
        pytest.param({"LONGHORN_SCHEDULER_LEASE": "x"}, ["--lease-name", "my.second-1"], "my.second-1", id="a flag"),
    ],
)
def test_schedulers_of_different_names_have_different_leases(
    environment: dict[str, str], arguments: list[str], lease: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second would follow the first for ever, and its pods wait."""
    asked: list[str] = []

    class Asked(Elector):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            asked.append(options["lease"])
            super().__init__(*arguments, **options)

    def begin(config: SchedulerConfig, options: SchedulerOptions, *_: object) -> None:
        lifecycle.build_lifecycle(KubeClient(None), config, options, SchedulerMetrics())  # type: ignore[arg-type]

    monkeypatch.setattr(lifecycle, "Elector", Asked)
    monkeypatch.setattr("app.cli.schedule._watch", begin)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run("schedule", "--watch", "--scheduler-name", "other", *arguments).code == 0
    assert asked == [lease]


def test_a_cordoned_home_rules_out_no_other_node(run: Run) -> None:
    """Longhorn's rules judge the nodes that all others leave: a drained node's pods go where their volumes fit."""
    snapshot = str(POLICIES.parent / "goal-3-drain" / "snapshot.yaml")
    result = run("schedule", "--snapshot", snapshot, "--policy", str(POLICIES / "extender.json"), "-o", "json")
    assert result.code == 0
    assert {entry["node"] for entry in json.loads(result.out)["bindings"]} == {"node-2"}


def test_the_document_shows_what_is_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every what-if of docs/generic-scheduler.md, line by line."""
    root = POLICIES.parents[1]
    monkeypatch.chdir(root)
    text = (root / "docs" / "generic-scheduler.md").read_text()
    shown = re.findall(r"```console\n\$ longhorn-extender (schedule --snapshot .*?)\n(.*?)```", text, re.DOTALL)
    assert len(shown) >= 2
    for command, wanted in shown:
        printed = run(*shlex.split(command)).out.splitlines()
        assert [line.rstrip() for line in printed] == [line.rstrip() for line in wanted.splitlines()]


def test_every_option_is_documented() -> None:
    """docs/generic-scheduler.md lists the flags in the program's order, with their defaults."""
    command = typer.main.get_command(cli).get_command(None, "schedule")  # type: ignore[attr-defined]
    flags = [parameter for parameter in command.params if parameter.name != "help"]
    rows = re.findall(
        r"^\| `(--[a-z-]+)` \| (?:`([A-Z_]+)`)? ?\| (?:`([^`]+)`)? ?\|",
        (POLICIES.parents[2] / "docs" / "generic-scheduler.md").read_text(),
        re.MULTILINE,
    )
    assert rows == [
        (flag.opts[0], flag.envvar or "", str(getattr(flag.default, "value", flag.default) or "")) for flag in flags
    ]
