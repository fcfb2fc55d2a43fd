"""`longhorn-extender what-if`: verbs, their order, both outputs, exit codes and bad input."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.builders import GI, pod, setting, storage_class, write_list
from tests.worlds.command_line import Run
from tests.worlds.predicted_clusters import (
    add_labels,
    disruption_budget,
    growing_class,
    node,
    owned_pod,
    running,
    stateful_set,
)
from tests.worlds.service import EXTENDER

MIXED = str(Path(__file__).parents[3] / "examples/mixed-cluster/snapshot.yaml")


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    objects = (growing_class(), node("a", listed={"db-0-a": 30}), node("b"), running("db-0", "a"))
    return write_list(tmp_path, *objects)


def test_a_drain_that_succeeds_ends_with_0(run: Run, cluster: str) -> None:
    result = run("what-if", "--snapshot", cluster, "--drain", "a", "--rebuild-rate", "100Mi")
    lines = result.rows
    assert result.code == 0
    assert lines[1] == "default/db-0 a always b"
    assert "a always" in lines
    assert "a/disk-1 30Gi 0" in lines
    assert "rebuilds copy 30Gi, which takes 0:05:07 one after the other" in lines
    assert lines[-1] == "1 of 1 pod is always placed, in 20 orders; 1 of 1 drain always finishes"


def test_a_lost_volume_names_the_pods_that_use_it(run: Run, cluster: str) -> None:
    verbs = ("--snapshot", cluster, "--lose", "a/disk-1", "--orders", "3")
    [volume] = run("what-if", *verbs, "-o", "json").answer["volumes"]
    assert (volume["name"], volume["pods"]) == ("vol-data-db-0", ["default/db-0"])
    assert "default/db-0" in run("what-if", *verbs).out


def test_the_last_line_names_every_failure(run: Run, tmp_path: Path) -> None:
    """Lost data, a refused expansion, and a pod that is not created."""
    objects = (growing_class(grows=False), node("a", listed={"db-0-a": 30}), node("b"), running("db-0", "a"))
    file = write_list(tmp_path / "bare.json", *objects, pod(name="bare", node="b", phase="Running"))
    result = run("what-if", "--snapshot", file, "--expand", "data-db-0=40Gi", "--lose", "a/disk-1", "--lose", "b")
    assert result.code == 1
    assert result.out.splitlines()[-1].split("; ") == [
        "0 of 0 pods are always placed, in 20 orders",
        "1 pod is gone",
        "1 expansion is refused",
        "1 volume is faulted, without a replica to salvage",
    ]


def test_a_pod_that_is_bound_without_running_is_told_apart(run: Run, tmp_path: Path) -> None:
    objects = (node("a", listed={"db-0-a": 30}), node("b"), running("db-0", "a", locality="disabled"))
    file = write_list(tmp_path / "remote.json", growing_class(), *objects, setting("node-drain-policy", "always-allow"))
    report = tmp_path / "report.html"
    verbs = ("--snapshot", file, "--drain", "a", "--orders", "3")
    table = run("what-if", *verbs, "--html", str(report)).out
    assert "default/db-0 a bound, never runs b volume" in " ".join(table.split())
    assert "; 1 pod is bound without running; " in table
    assert "bound, never runs" in report.read_text()
    [entry] = run("what-if", *verbs, "-o", "json").answer["pods"]
    assert (entry["outcome"], entry["notRunning"], entry["nodes"]) == ("never", 3, {"b": 3})
    assert entry["reasons"] == {"volume vol-data-db-0 is faulted: no replica with its data is left": 3}


def test_an_expansion_is_refused_at_the_claim(run: Run, cluster: str, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    verbs = ("--snapshot", cluster, "--expand", "data-db-0=90Gi", "--orders", "2")
    text = " ".join(run("what-if", *verbs, "--html", str(report)).out.split())
    refusal = "insufficient storage (a/disk-1): disk disk-1: 10Gi free once the growth is written must be at least 25Gi (25 % of 100Gi)"
    result = f"is refused when it is updated (validator.longhorn.io), and keeps its size: {refusal}"
    assert f"claim default/data-db-0 to 90Gi {result}" in text
    assert result in report.read_text()
    [entry] = run("what-if", *verbs, "-o", "json").answer["expansions"]
    assert (entry["fits"], entry["refusals"], entry["refusedBy"]) == (False, [refusal], "validator.longhorn.io")


def test_a_drain_says_when_longhorn_rebuilds(run: Run, tmp_path: Path) -> None:
    nodes = [*node("a", listed={"db-0-a": 30}), *node("b", listed={"db-0-b": 30}), *node("c")]
    pods = running("db-0", "b", replicas=["a", "b"], locality="disabled")
    file = write_list(tmp_path / "remote.json", growing_class(), nodes, pods)
    report = tmp_path / "report.html"
    verbs = ("--snapshot", file, "--drain", "a", "--orders", "3")
    table = " ".join(run("what-if", *verbs, "--html", str(report)).out.split())
    wait = "othing is rebuilt for 0:10:01 where a failed replica could be reused (replica-replenishment-wait-interval)"
    assert "complete, rebuilt after 0:10:01" in table
    assert f"n{wait}" in table
    assert f"N{wait}." in report.read_text()
    assert "complete, rebuilt after 0:10:01" in report.read_text()
    answer = run("what-if", *verbs, "-o", "json").answer
    assert answer["rebuilds"]["waitSeconds"] == 601
    assert [volume["rebuildAfterSeconds"] for volume in answer["volumes"]] == [601]


def test_json_is_stable(run: Run, cluster: str) -> None:
    result = run("what-if", "--snapshot", cluster, "--drain", "a", "--orders", "3", "--seed", "7", "-o", "json")
    answer = result.answer
    assert list(answer) == [
        "apiVersion", "kind", "orders", "seed", "succeeds", "pods", "gonePods", "drains", "expansions", "rebuilds",
        "disks", "volumes", "shownOrder", "notes",
    ]  # fmt: skip
    assert (answer["apiVersion"], answer["kind"]) == ("longhorn-extender/v1", "WhatIf")
    assert (answer["orders"], answer["seed"], answer["succeeds"]) == (3, 7, True)
    assert answer["shownOrder"]["remedies"] == []
    assert answer["pods"] == [
        {
            "pod": "default/db-0",
            "origin": "moved",
            "left": "a",
            "outcome": "always",
            "placed": 3,
            "notRunning": 0,
            "nodes": {"b": 3},
            "reasons": {},
            "unluckyOrder": [],
        }
    ]


@pytest.mark.parametrize(
    ("verbs", "code"),
    [
        (("--drain", "a", "--set", "disable-scheduling-on-cordoned-node=false", "--lose", "b"), 1),
        (("--add-node", "like=b", "--lose", "b", "--drain", "a"), 0),
        (("--lose", "b", "--add-node", "like=a", "--drain", "a"), 0),
        (("--drain", "a,b", "--add-node", "disks=100Gi"), 0),
        (("--lose", "b", "--add-disk", "a=100Gi"), 0),
        (("--expand", "data-db-0=60Gi"), 0),
        (("--expand", "default/data-db-0=90Gi"), 1),
        (("--lose", "zone=none"), 2),
    ],
)
def test_verbs_are_combined(run: Run, cluster: str, verbs: tuple[str, ...], code: int) -> None:
    assert run("what-if", "--snapshot", cluster, "--orders", "5", *verbs).code == code


def test_options_count_in_the_order_of_the_command_line(run: Run, cluster: str) -> None:
    """A node that is added before it is lost is gone. The other way round there is no such node."""
    added = ("--add-node", "like=b")
    lost = ("--lose", "new-node-1")
    assert run("what-if", "--snapshot", cluster, *added, *lost).code == 0
    result = run("what-if", "--snapshot", cluster, *lost, *added)
    assert (result.code, result.err) == (2, "longhorn-extender: there is no node new-node-1\n")


@pytest.mark.parametrize("has_stateful_set", [True, False])
def test_a_stateful_set_is_scaled(run: Run, tmp_path: Path, has_stateful_set: bool) -> None:
    objects = (storage_class(), node("a", listed={"db-0-a": 40}), node("b"), running("db-0", "a", 40))
    file = write_list(tmp_path, *objects, *([stateful_set("db", 1)] if has_stateful_set else []))
    result = run("what-if", "--snapshot", file, "--scale", "sts/db=5", "-o", "json")
    pods = {entry["pod"]: entry["outcome"] for entry in result.answer["pods"]}
    assert pods == {**{f"default/db-{number}": "always" for number in (1, 2, 3)}, "default/db-4": "never"}


@pytest.mark.parametrize(
    ("verbs", "names"),
    [
        (("--scale", "sts/db=3", "--scale", "sts/db=4"), ["db-1", "db-2", "db-3"]),
        (("--scale", "sts/db=5", "--scale", "sts/db=1"), []),
        (("--apply", "MANIFEST", "--apply", "MANIFEST"), ["web-0", "web-1"]),
        (("--apply", "MANIFEST", "--scale", "sts/web=3"), ["web-0", "web-1", "web-2"]),
        (("--scale", "deploy/api=2", "--scale", "deploy/api=1"), ["api-0"]),
    ],
)
def test_the_last_number_of_pods_counts(run: Run, tmp_path: Path, verbs: tuple[str, ...], names: list[str]) -> None:
    """A workload may be scaled or applied more than once."""
    deployment = {**stateful_set("api", 0), "kind": "Deployment"}
    del deployment["spec"]["volumeClaimTemplates"]
    objects = (storage_class(), node("a", 900, listed={"db-0-a": 40}), running("db-0", "a", 40), stateful_set("db", 1))
    file = write_list(tmp_path, *objects, deployment)
    manifest = write_list(tmp_path / "web.json", stateful_set("web", 2, "20Gi"))
    texts = [manifest if verb == "MANIFEST" else verb for verb in verbs]
    result = run("what-if", "--snapshot", file, *texts, "-o", "json")
    assert [entry["pod"] for entry in result.answer["pods"]] == [f"default/{name}" for name in names]


def test_an_object_without_a_namespace_gets_the_option_s(run: Run, cluster: str, tmp_path: Path) -> None:
    web = stateful_set("web", 1, "20Gi")
    del web["metadata"]["namespace"]
    manifest = write_list(tmp_path / "web.json", web)
    result = run("what-if", "--snapshot", cluster, "--apply", manifest, "--namespace", "shop", "-o", "json")
    assert [entry["pod"] for entry in result.answer["pods"]] == ["shop/web-0"]


def test_a_pod_that_exists_is_not_placed_again(run: Run, cluster: str, tmp_path: Path) -> None:
    manifest = write_list(tmp_path / "pod.json", pod(name="db-0"))
    result = run("what-if", "--snapshot", cluster, "--apply", manifest, "-o", "json")
    assert result.answer["pods"] == []


def test_kinds_that_decisions_do_not_read_are_skipped(run: Run, cluster: str, tmp_path: Path) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    manifest = write_list(tmp_path / "web.json", service, stateful_set("web", 1, "20Gi"))
    answer = run("what-if", "--snapshot", cluster, "--apply", manifest, "-o", "json").answer
    assert f"--apply {manifest}: objects of kind Service are not read" in answer["notes"]
    assert [entry["pod"] for entry in answer["pods"]] == ["default/web-0"]


def test_a_workload_without_a_number_of_pods_keeps_it(run: Run, tmp_path: Path) -> None:
    objects = (storage_class(), node("a", listed={"db-0-a": 30, "db-1-a": 30}), node("b"))
    file = write_list(tmp_path, *objects, running("db-0", "a"), running("db-1", "a"))
    applied = [stateful_set(name, 0, "5Gi") for name in ("db", "web")]
    for workload in applied:
        del workload["spec"]["replicas"]
    manifest = write_list(tmp_path / "applied.json", *applied)
    result = run("what-if", "--snapshot", file, "--apply", manifest, "--lose", "a", "-o", "json")
    assert [entry["pod"] for entry in result.answer["pods"]] == ["default/db-0", "default/db-1", "default/web-0"]


def test_a_source_without_controllers_says_so(run: Run, tmp_path: Path) -> None:
    bare = owned_pod(name="db-0", node="a")
    del bare["metadata"]["ownerReferences"]
    file = write_list(tmp_path, storage_class(), node("a"), node("b"), bare)
    result = run("what-if", "--snapshot", file, "--drain", "a", "-o", "json")
    assert "no pod in the source has a controller, so that a drain moves none" in result.answer["notes"]
    assert result.code == 1


def test_the_same_seed_gives_the_same_output(run: Run) -> None:
    verbs = ("--drain", "east-1", "--lose", "zone=north", "--orders", "5")
    arguments = ("what-if", "--snapshot", MIXED, *verbs, "-o", "json")
    expected = run(*arguments)
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        other = subprocess.run([EXTENDER, *arguments], capture_output=True, text=True, env=environment, check=False)
        assert (other.returncode, other.stdout) == (expected.code, expected.out)


@pytest.fixture
def budget_cluster(tmp_path: Path) -> str:
    """A snapshot file with two pods under a PodDisruptionBudget.

    web-0 and web-1 run on a, b has room for both, and the budget lets one of them be away.
    """
    pods = [*running("web-0", "a"), *running("web-1", "a")]
    listed = {"web-0-a": 30.0, "web-1-a": 30.0}
    budget = disruption_budget(maxUnavailable=1)
    objects = (growing_class(), node("a", listed=listed), node("b"), add_labels(pods, app="web"), budget)
    return write_list(tmp_path / "guarded.json", *objects)


def test_the_steps_of_an_order_show_a_drain_under_a_budget(run: Run, budget_cluster: str) -> None:
    result = run("what-if", "--snapshot", budget_cluster, "--drain", "a", "-o", "json")
    order = result.answer["shownOrder"]
    steps = order["steps"]
    assert (result.code, order["number"], order["fails"]) == (0, 0, False)
    assert max(entry["waiting"] for entry in steps) == 1
    assert [steps[0]["toEvict"], steps[-1]["toEvict"]] == [2, 0]
    assert max(entry["misplaced"] for entry in steps) > 0 == steps[-1]["misplaced"]
    assert {entry["overbooked"] for entry in steps} == {0}
    assert steps[0]["freeBytes"] == steps[-1]["freeBytes"] > min(entry["freeBytes"] for entry in steps)
    assert (steps[0]["copiedBytes"], steps[-1]["copiedBytes"]) == (0, 60 * GI)


def test_the_steps_are_those_of_the_first_order_that_fails(run: Run, budget_cluster: str) -> None:
    verbs = ("--drain", "a", "--set", "storage-over-provisioning-percentage=50")
    result = run("what-if", "--snapshot", budget_cluster, *verbs, "-o", "json")
    order = result.answer["shownOrder"]
    assert (result.code, order["fails"], order["steps"][-1]["waiting"]) == (1, True, 1)


def test_what_would_help_is_printed_with_its_commands(run: Run, tmp_path: Path) -> None:
    """The drained node stays cordoned. Another one that was cordoned before would help, which is checked."""
    cordoned = node("c")
    cordoned[0]["spec"] = {"unschedulable": True}
    file = write_list(
        tmp_path / "cordoned.json", growing_class(), node("a"), node("b", 1), cordoned, running("db-0", "a")
    )
    result = run("what-if", "--snapshot", file, "--drain", "a")
    lines = result.out.splitlines()
    number = lines.index("default/db-0 would fit after this: uncordon node c")
    assert (result.code, lines[number + 1]) == (1, "   kubectl uncordon c")
    answer = run("what-if", "--snapshot", file, "--drain", "a", "-o", "json").answer
    [entry] = answer["shownOrder"]["remedies"]
    assert (entry["pod"], entry["remedy"]["steps"][0]["commands"]) == ("default/db-0", ["kubectl uncordon c"])
    report = tmp_path / "report.html"
    run("what-if", "--snapshot", file, "--drain", "a", "--html", str(report))
    assert "<pre>kubectl uncordon c</pre>" in report.read_text()


def test_a_budget_of_a_file_is_applied(run: Run, budget_cluster: str, tmp_path: Path) -> None:
    budget = disruption_budget(maxUnavailable=0)
    del budget["metadata"]["namespace"]
    (tmp_path / "budget.json").write_text(json.dumps(budget))
    file = str(tmp_path / "budget.json")
    result = run("what-if", "--snapshot", budget_cluster, "--apply", file, "--drain", "a", "-o", "json")
    (drain,) = result.answer["drains"]
    refused = "PodDisruptionBudget default/web needs 2 healthy pods and has 2"
    assert (result.code, list(drain["blockers"])) == (
        1,
        [f"pod default/web-{number} stays on a: {refused}" for number in (0, 1)],
    )


@pytest.mark.parametrize("count", ["two", "1.5%", "-1", -1])
def test_a_budget_with_a_wrong_number_is_refused(run: Run, tmp_path: Path, count: str | int) -> None:
    file = write_list(tmp_path, node("a"), disruption_budget(minAvailable=count))
    result = run("what-if", "--snapshot", file)
    assert (result.code, result.out) == (2, "")
    assert "PodDisruptionBudget default/web: spec.minAvailable" in result.err
    assert f"{count!r} is neither a number of pods nor a percentage" in result.err


def test_without_a_verb_it_is_about_the_pods_that_wait(run: Run) -> None:
    result = run("what-if", "--snapshot", MIXED, "--orders", "5", "-o", "json")
    assert {entry["pod"]: entry["origin"] for entry in result.answer["pods"]} == {
        "shop/orders-0": "waiting",
        "shop/returns-0": "waiting",
    }
