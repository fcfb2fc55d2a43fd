"""`longhorn-extender schedule`: scheduling the pending pods of a snapshot, and the options of `--watch`."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.commands import load_command
from app.kube.client import KubeClient
from app.runtime.elector import Elector
from app.scheduler import lifecycle
from app.scheduler.api_calls import SchedulerMetrics
from app.scheduler.lifecycle import LEASE, SchedulerOptions
from app.scheduler.scheduler import SchedulerConfig
from scheduler_core.model.verdict import Reason
from tests.builders import Object, claim, flat, kube_node, longhorn_node, storage_class
from tests.worlds.command_line import Run
from tests.worlds.generic_objects import ready_node as node, requesting_pod
from tests.worlds.service import EXTENDER

POLICIES = Path(__file__).parents[3] / "examples" / "policies"
CLUSTER = str(POLICIES / "cluster.yaml")


def pod(name: str, cpu: str = "1", **spec: Any) -> Object:
    raw = requesting_pod(name=name, cpu=cpu, namespace="shop")
    raw["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    raw["spec"] |= spec
    return raw


@pytest.fixture
def schedule(run: Run, tmp_path: Path) -> Any:
    """Schedules the pending pods of some objects; returns exit code and answer."""

    def run_schedule(objects: list[Object], *arguments: str) -> tuple[int, Any]:
        file = tmp_path / "snapshot.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        result = run("schedule", "--snapshot", str(file), *arguments, "-o", "json")
        return result.code, result.answer

    return run_schedule


def test_each_decision_counts_the_pods_bound_before(schedule: Any) -> None:
    objects = [node("a", "3"), node("b", "3"), *(pod(f"web-{number}", "2") for number in range(3))]
    code, answer = schedule(objects)
    assert code == 1
    assert {entry["pod"]: entry["node"] for entry in answer["bindings"]}.keys() == {"shop/web-0", "shop/web-1"}
    assert {entry["node"] for entry in answer["bindings"]} == {"a", "b"}
    (unplaced,) = answer["unschedulable"]
    assert unplaced["pod"] == "shop/web-2"
    assert unplaced["message"] == "0/2 nodes are available: 2 {}.".format(*unplaced["reasons"])
    assert list(unplaced["reasons"].values()) == [2]


def test_the_answer_has_the_documented_keys(schedule: Any) -> None:
    code, answer = schedule([node("a"), pod("web"), pod("stuck", "9")])
    assert code == 1
    assert {key: [sorted(entry) for entry in entries] for key, entries in answer.items()} == {
        "bindings": [["equallyGood", "node", "pod", "refused", "score", "scores", "unsupported"]],
        "unschedulable": [["message", "pod", "reasons"]],
    }


def test_the_answer_explains_the_node_of_a_bound_pod(schedule: Any, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    zone = {"labelPreference": {"label": "zone", "presence": True}}
    priorities = [{"name": "EqualPriority", "weight": 1}, {"name": "Zoned", "weight": 2, "argument": zone}]
    file.write_text(json.dumps({"predicates": [{"name": "PodFitsResources"}], "priorities": priorities}))
    nodes = [node("a", zone="z"), node("b", zone="z"), node("c"), node("small", "1"), node("smaller", "1")]
    _, answer = schedule([*nodes, pod("web", "2")], "--policy", str(file))
    (binding,) = answer["bindings"]
    assert binding.pop("node") in {"a", "b"}
    assert binding == {
        "pod": "shop/web",
        "score": 21,
        "scores": {"EqualPriority": 1, "Zoned": 10},
        "equallyGood": 2,
        "refused": {"insufficient CPU": 2},
        "unsupported": [],
    }


@pytest.mark.parametrize(
    ("unready", "message"),
    [
        pytest.param(["a"], "0/1 nodes are available: 1 node is unschedulable.", id="all are cordoned"),
        pytest.param([], "no nodes available to schedule pods", id="there are none"),
    ],
)
def test_without_an_available_node_the_message_counts_cordoned_nodes(
    schedule: Any, unready: list[str], message: str
) -> None:
    cordoned = [node(name) | {"spec": {"unschedulable": True}} for name in unready]
    _, answer = schedule([*cordoned, pod("web")])
    assert [entry["message"] for entry in answer["unschedulable"]] == [message]


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        pytest.param([], "no pod waits for a node", id="any scheduler"),
        pytest.param(
            ["--scheduler-name", "x"], "no pod with spec.schedulerName 'x' waits for a node", id="one scheduler"
        ),
    ],
)
def test_a_snapshot_without_pending_pods_causes_a_warning(run: Run, arguments: list[str], warning: str) -> None:
    """A wrong name or a wrong file would look like success."""
    pods = [pod("bound", nodeName="a"), *([pod("others")] if arguments else [])]
    raw = yaml.safe_dump_all([node("a"), *pods]).encode()
    result = run("schedule", "--snapshot", "-", *arguments, stdin=raw)
    assert result.code == 0
    assert warning in result.err
    assert warning not in run("schedule", "--snapshot", CLUSTER).err


def test_pods_are_ordered_by_priority_and_age(schedule: Any) -> None:
    old = pod("z-old", "2")
    urgent = pod("urgent", "2", priority=1)
    old["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    _, answer = schedule([node("a", "5"), pod("a-young", "2"), old, urgent])
    assert [entry["pod"] for entry in answer["bindings"]] == ["shop/urgent", "shop/z-old"]


def test_only_pending_pods_are_scheduled(schedule: Any) -> None:
    deleted = pod("deleted")
    finished = pod("finished")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    finished["status"] = {"phase": "Failed"}
    gated = pod("gated", schedulingGates=[{"name": "later"}])
    code, answer = schedule([node("a"), pod("bound", nodeName="a"), deleted, finished, gated])
    assert (code, answer) == (0, {"bindings": [], "unschedulable": []})


def test_a_scheduler_name_selects_that_schedulers_pods(schedule: Any) -> None:
    objects = [node("a"), pod("mine", schedulerName="mine"), pod("others")]
    _, answer = schedule(objects, "--scheduler-name", "mine")
    assert [entry["pod"] for entry in answer["bindings"]] == ["shop/mine"]
    assert len(schedule(objects)[1]["bindings"]) == 2


def test_the_same_seed_gives_the_same_answer(run: Run) -> None:
    command = ["schedule", "--snapshot", CLUSTER, "-o", "json"]
    answers = [run(*command, "--seed", str(seed)).out for seed in (1, 1, 2, 3, 4)]
    assert answers[0] == answers[1]
    assert len(set(answers)) > 1
    assert run(*command).out == run(*command, "--seed", "0").out


def test_a_policy_spreads_a_service_over_racks(run: Run) -> None:
    policy = str(POLICIES / "region-zone-rack.json")
    result = run("schedule", "--snapshot", CLUSTER, "--policy", policy, "-o", "json")
    nodes = [entry["node"] for entry in result.answer["bindings"]]
    assert result.code == 0
    assert len({name.rpartition("-")[0] for name in nodes}) == 1
    counts = [nodes.count(name) for name in set(nodes)]
    assert max(counts) - min(counts) <= 1


def test_longhorn_rules_count_the_volumes_of_pods_bound_before(schedule: Any) -> None:
    """Each node of 100Gi takes one of three pods with a volume of 60Gi."""
    objects = flat(
        [node(name) for name in ("a", "b")],
        [longhorn_node(name, 100) for name in ("a", "b")],
        storage_class(),
        [claim(f"data-{number}", 60) for number in range(3)],
    )
    names = [entry["metadata"].get("namespace") for entry in objects if entry["kind"] == "PersistentVolumeClaim"]
    for number in range(3):
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": f"data-{number}"}}]
        raw = pod(f"db-{number}", volumes=volumes)
        raw["metadata"]["namespace"] = names[0]
        objects.append(raw)
    code, answer = schedule(objects, "--policy", str(POLICIES / "extender.json"))
    assert code == 1
    assert {entry["node"] for entry in answer["bindings"]} == {"a", "b"}
    (unplaced,) = answer["unschedulable"]
    assert unplaced["message"] == f"0/2 nodes are available: 2 {Reason.SPOKEN_FOR.text}."


def test_the_message_of_a_pod_that_cannot_be_decided_names_its_missing_claim(schedule: Any) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}}]
    objects = flat([node("a")], [longhorn_node("a", 100)], [pod("db", volumes=volumes)])
    code, answer = schedule(objects, "--policy", str(POLICIES / "extender.json"))
    assert code == 1
    assert "shop/nowhere" in answer["unschedulable"][0]["message"]


def test_pods_without_volumes_pass_longhorns_rules(schedule: Any) -> None:
    objects = flat([node("a")], [longhorn_node("a", 100)], [pod("web")])
    code, answer = schedule(objects, "--policy", str(POLICIES / "extender.json"))
    assert (code, [entry["node"] for entry in answer["bindings"]]) == (0, ["a"])


def test_the_table_counts_and_gives_reasons(run: Run) -> None:
    nodes = yaml.safe_dump_all([node("a"), pod("web"), pod("stuck", "9")]).encode()
    result = run("schedule", "--snapshot", "-", stdin=nodes)
    assert result.code == 1
    assert "shop/web" in result.out
    assert "0/1 nodes are available: 1 " in result.out
    assert result.out.splitlines()[-1] == "1 scheduled, 1 not"


def test_a_snapshot_without_capacities_causes_a_warning(run: Run) -> None:
    raw = yaml.safe_dump_all([kube_node("a"), pod("web")]).encode()
    result = run("schedule", "--snapshot", "-", stdin=raw)
    assert result.code == 1
    assert "no node says how many pods it takes" in result.err


def test_a_policy_that_reads_no_resources_needs_no_capacities(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    rules = {"predicates": [{"name": "PodFitsPorts"}], "priorities": [{"name": "EqualPriority", "weight": 1}]}
    policy.write_text(json.dumps(rules))
    bare = {**node("a"), "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    raw = yaml.safe_dump_all([bare, pod("web")]).encode()
    result = run("schedule", "--snapshot", "-", "--policy", str(policy), stdin=raw)
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("environment", "arguments", "lease"),
    [
        pytest.param({}, [], LEASE, id="the manifests'"),
        pytest.param({"LONGHORN_SCHEDULER_LEASE": ""}, [], LEASE, id="an empty variable is none"),
        pytest.param({"LONGHORN_SCHEDULER_LEASE": "second"}, [], "second", id="from the environment"),
        pytest.param({"LONGHORN_SCHEDULER_LEASE": "x"}, ["--lease-name", "my.second-1"], "my.second-1", id="a flag"),
    ],
)
def test_the_lease_name_comes_from_the_flag_or_the_environment(
    environment: dict[str, str], arguments: list[str], lease: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second scheduler with the same Lease would never lead."""
    leases: list[str] = []

    class RecordingElector(Elector):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            leases.append(options["lease"])
            super().__init__(*arguments, **options)

    async def build_only(config: SchedulerConfig, options: SchedulerOptions, *_: object) -> None:
        lifecycle.build_lifecycle(KubeClient(None), config, options, SchedulerMetrics())  # type: ignore[arg-type]

    monkeypatch.setattr(lifecycle, "Elector", RecordingElector)
    monkeypatch.setattr(lifecycle, "run_scheduler", build_only)
    monkeypatch.setattr("app.cli.schedule_and_policy_check.configure", lambda *_: None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run("schedule", "--watch", "--scheduler-name", "other", *arguments).code == 0
    assert leases == [lease]


def test_a_cordoned_home_does_not_exclude_other_nodes(run: Run) -> None:
    snapshot = str(POLICIES.parent / "goal-3-drain" / "snapshot.yaml")
    result = run("schedule", "--snapshot", snapshot, "--policy", str(POLICIES / "extender.json"), "-o", "json")
    assert result.code == 0
    assert {entry["node"] for entry in result.answer["bindings"]} == {"node-2"}


def test_every_option_is_documented() -> None:
    command = load_command("schedule")
    flags = [parameter for parameter in command.params if parameter.name != "help"]
    rows = re.findall(
        r"^\| `(--[a-z-]+)` \| (?:`([A-Z_]+)`)? ?\| (?:`([^`]+)`)? ?\|",
        (POLICIES.parents[1] / "docs" / "generic-scheduler.md").read_text(),
        re.MULTILINE,
    )
    assert rows == [
        (flag.opts[0], flag.envvar or "", str(getattr(flag.default, "value", flag.default) or "")) for flag in flags
    ]


@pytest.fixture
def odd_objects() -> list[Object]:
    tainted = node("a") | {"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}}
    return [tainted, pod("odd", overhead={"cpu": "1"}), pod("tolerant", tolerations=[{"operator": "Exists"}])]


def test_constraints_that_the_policy_does_not_read_are_listed_by_default(
    run: Run, odd_objects: list[Object], tmp_path: Path
) -> None:
    file = tmp_path / "snapshot.yaml"
    file.write_text(yaml.safe_dump_all(odd_objects))
    result = run("schedule", "--snapshot", str(file), "-o", "json")
    assert result.code == 0
    unsupported = {entry["pod"]: entry["unsupported"] for entry in result.answer["bindings"]}
    assert unsupported == {"shop/odd": ["spec.overhead[cpu]", "node spec.taints"], "shop/tolerant": []}
    assert result.err == (
        "warning: shop/odd: the policy does not read spec.overhead[cpu] (rule NodeResourcesFit), "
        "node spec.taints (rule PodToleratesNodeTaints)\n"
    )


def test_with_refuse_a_pod_with_such_a_constraint_is_not_placed(schedule: Any, odd_objects: list[Object]) -> None:
    """As by `--watch`; its message names the field and the rule."""
    code, answer = schedule([*odd_objects, pod("plain")], "--unsupported-constraints", "refuse")
    assert code == 1
    assert [entry["pod"] for entry in answer["bindings"]] == ["shop/tolerant"]
    messages = {entry["pod"]: entry["message"] for entry in answer["unschedulable"]}
    assert messages == {
        "shop/odd": "the policy does not read spec.overhead[cpu] (rule NodeResourcesFit)",
        "shop/plain": "0/1 nodes are available: 1 node has a taint that the pod does not tolerate, which the policy does "
        "not read (rule PodToleratesNodeTaints).",
    }


def test_with_ignore_nothing_is_said_about_them(schedule: Any, odd_objects: list[Object]) -> None:
    """As in Kubernetes 1.1."""
    code, answer = schedule(odd_objects, "--unsupported-constraints", "ignore")
    assert code == 0
    assert [entry["unsupported"] for entry in answer["bindings"]] == [[], []]


def test_a_plugin_adds_rules_that_the_policy_names(run: Run) -> None:
    example = POLICIES.parent / "plugin"
    options = ("--policy", str(example / "policy.json"), "--plugin", str(example / "max_pods.py"))
    result = run("schedule", "--snapshot", str(POLICIES / "cluster.yaml"), *options, "-o", "json")
    bindings = result.answer["bindings"]
    assert (result.code, len({entry["node"] for entry in bindings})) == (0, 6)
    assert [entry["scores"] for entry in bindings] == [{"FewestPods": 10}] * 6


def test_progress_is_shown_on_a_terminal() -> None:
    """On standard error, so that standard output has the result alone."""
    controller, terminal = os.openpty()
    command = [EXTENDER, "schedule", "--snapshot", str(POLICIES / "cluster.yaml"), "-o", "json"]
    environment = {**os.environ, "TERM": "xterm"}
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, env=environment, check=True)
    os.close(terminal)
    shown = os.read(controller, 10_000).decode()
    os.close(controller)
    assert "Scheduling pods" in shown
    assert len(json.loads(result.stdout)["bindings"]) == 6
