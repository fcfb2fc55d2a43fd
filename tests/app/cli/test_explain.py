"""`longhorn-extender explain` and the options of the program itself."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders import (
    Object,
    claim,
    kept,
    kube_node,
    longhorn_node,
    pod,
    replica,
    storage_class,
    volume,
    write_list,
)
from tests.worlds.command_line import Run
from tests.worlds.service import EXTENDER, db_pod, small_cluster

GI = 1024**3


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    return write_list(tmp_path, [*small_cluster(), db_pod()])


def _first(file: Path, raw: Object) -> str:
    file.write_text(yaml.safe_dump(raw))
    return str(file)


@pytest.fixture
def explain(run: Run, snapshot: str) -> Callable[..., Any]:
    """Returns the JSON of an explanation; without another file, of the small cluster."""

    def answer(*arguments: str, file: str = snapshot) -> Any:
        return run("explain", "--snapshot", file, *arguments, "-o", "json").answer

    return answer


def _fitting(answer: Any) -> list[str]:
    return [name for name, node in answer["nodes"].items() if node["fits"]]


def test_the_table_has_volumes_nodes_and_reasons(run: Run, snapshot: str) -> None:
    result = run("explain", "--snapshot", snapshot, "--pod", "db-0", "-o", "wide")
    lines = [line.rstrip() for line in result.out.splitlines()]
    assert lines[:4] == [
        "pod default/db-0",
        "  claim data-db-0 (not bound yet): 50Gi, best-effort, needs room on the pod's node",
        "",
        lines[3],
    ]
    table = {line.split()[0]: line for line in lines[4:8]}
    assert list(table) == ["node-1", "node-2", "node-3", "node-4"]
    assert " yes " in table["node-1"]
    assert "data-db-0 on disk-1" in table["node-1"]
    assert " no " in table["node-2"]
    assert "insufficient Longhorn storage" in table["node-2"]
    assert "10Gi" in table["node-2"]
    assert lines[-1] == "2 of 4 nodes fit"
    assert (result.code, result.err) == (0, "")


def test_the_table_names_the_existing_volume_that_a_claim_will_be_bound_to(run: Run, tmp_path: Path) -> None:
    objects = [storage_class(), claim("data", 50), pod("data", name="db-0"), *kept("pv", 100, node="a")]
    objects += [raw for name in "ab" for raw in (longhorn_node(name, 200), kube_node(name, node=name))]
    result = run("explain", "--snapshot", write_list(tmp_path, objects), "--pod", "db-0")
    assert [line.split(": ")[0] for line in result.out.splitlines()[1:3]] == [
        "  claim data (not bound yet) on b",
        "  claim data (not bound yet, matches PersistentVolume pv) on a",
    ]


def test_a_claim_with_a_missing_storage_class_is_listed_as_such(run: Run, tmp_path: Path) -> None:
    objects = [longhorn_node("a"), claim("data", 50, storage_class="gone"), pod("data", name="db-0")]
    arguments = ["explain", "--snapshot", write_list(tmp_path, objects), "--pod", "db-0"]
    skipped = ["no Longhorn volumes", "claim data is skipped: StorageClass gone does not exist"]
    assert run(*arguments).rows[1:3] == skipped
    answer = run(*arguments, "-o", "json").answer
    assert answer["skippedClaims"] == [{"claim": "default/data", "cause": "StorageClass gone does not exist"}]
    assert _fitting(answer) == ["a"]


def test_json_has_its_documented_shape(explain: Callable[..., Any]) -> None:
    answer = explain("--pod", "db-0")
    assert (answer["pod"], [volume["size"] for volume in answer["volumes"]]) == ("default/db-0", [50 * GI])
    assert set(answer["nodes"]) == {"node-1", "node-2", "node-3", "node-4"}
    node = answer["nodes"]["node-1"]
    assert (node["fits"], node["plan"]) == (True, {"data-db-0": "node-1-disk-1"})
    types = [type(node[key]) for key in ("order_safe", "stale_safe", "reason", "detail", "staleCounterExample")]
    assert types == [bool, bool, str, str, type(None)]


def test_nodes_may_be_given_even_unknown_ones(run: Run, snapshot: str) -> None:
    names = ["node-3", "[/red]", ":cow:", "node-3"]
    result = run(
        "explain", "--snapshot", snapshot, "--pod", "db-0", *(part for name in names for part in ("--node", name))
    )
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()[4:7]] == [":cow:", "[/red]", "node-3"]
    assert result.out.endswith("1 of 3 nodes fit\n")


def test_a_name_in_two_namespaces_must_be_given_in_full(run: Run, tmp_path: Path) -> None:
    """Guessing would explain the wrong pod."""
    twins = [pod(name="db-0"), pod(name="db-0", namespace="shop")]
    snapshot = write_list(tmp_path, [*small_cluster(), *twins])
    result = run("explain", "--snapshot", snapshot, "--pod", "db-0")
    assert (result.code, result.out) == (2, "")
    assert "db-0: several pods have this name" in result.err
    assert run("explain", "--snapshot", snapshot, "--pod", "shop/db-0", "-o", "json").answer["pod"] == "shop/db-0"


def test_a_pod_may_be_a_file_with_its_claims(explain: Callable[..., Any], tmp_path: Path) -> None:
    file = _first(tmp_path / "pod.yaml", pod("data-db-0", name="new"))
    assert explain("--pod", file)["pod"] == "default/new"
    file = write_list(tmp_path / "pod.json", [claim("extra", 95), pod("extra", name="new")])
    assert _fitting(explain("--pod", file)) == ["node-1"]


@pytest.mark.parametrize("stdin_for", ["--snapshot", "--pod"])
def test_a_dash_reads_standard_input(run: Run, snapshot: str, tmp_path: Path, stdin_for: str) -> None:
    files = {"--snapshot": snapshot, "--pod": _first(tmp_path / "pod.yaml", db_pod())}
    content = Path(files[stdin_for]).read_bytes()
    files[stdin_for] = "-"
    arguments = [part for pair in files.items() for part in pair]
    assert _fitting(run("explain", *arguments, "-o", "json", stdin=content).answer) == ["node-1", "node-3"]


TEMPLATE = {"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}]}}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        *((kind, {"template": TEMPLATE}) for kind in ("Deployment", "DaemonSet", "ReplicaSet", "Job")),
        ("CronJob", {"jobTemplate": {"spec": {"template": TEMPLATE}}}),
    ],
)
def test_a_workloads_pod_template_is_explained(
    explain: Callable[..., Any], tmp_path: Path, kind: str, spec: Object
) -> None:
    """The pod is the one that the workload would create."""
    workload = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "db"}, "spec": spec}
    file = _first(tmp_path / "workload.yaml", workload)
    answer = explain("--pod", file)
    assert [volume["claim"] for volume in answer["volumes"]] == ["default/data-db-0"]
    assert _fitting(answer) == ["node-1", "node-3"]


def test_a_stateful_sets_claim_templates_become_the_claims_of_its_first_pod(
    explain: Callable[..., Any], tmp_path: Path
) -> None:
    templates = [claim("data", 60), claim("log", 40)]
    spec = {"template": {"spec": {}}, "volumeClaimTemplates": templates}
    stateful_set = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "new"}, "spec": spec}
    file = _first(tmp_path / "set.yaml", stateful_set)
    answer = explain("--pod", file)
    assert answer["pod"] == "default/new-0"
    assert [(volume["claim"], volume["size"]) for volume in answer["volumes"]] == [
        ("default/data-new-0", 60 * GI),
        ("default/log-new-0", 40 * GI),
    ]
    assert _fitting(answer) == ["node-1"]


def test_a_snapshot_without_kubernetes_nodes_has_longhorns_nodes(run: Run, tmp_path: Path) -> None:
    objects = [longhorn_node("only"), storage_class(), claim("data-db-0"), db_pod()]
    snapshot = write_list(tmp_path, objects)
    assert _fitting(run("explain", "--snapshot", snapshot, "--pod", "db-0", "-o", "json").answer) == ["only"]


def test_lines_in_a_pipe_are_not_cut(run: Run, tmp_path: Path) -> None:
    name = "n" * 300
    objects = [longhorn_node(name, 1), storage_class(), claim("data-db-0"), db_pod()]
    result = run("explain", "--snapshot", write_list(tmp_path, objects), "--pod", "db-0", "-o", "wide")
    (line,) = [line for line in result.out.splitlines() if line.startswith("nnn")]
    assert line.split()[0] == name
    assert "100Gi" in line
    assert [line for line in result.out.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("host", ["256.256.256.256", "a" * 70, "no host"])
def test_a_host_without_a_free_port_is_an_error_of_one_line(run: Run, snapshot: str, host: str) -> None:
    result = run("serve", "--snapshot", snapshot, "--host", host, "--port", "0")
    assert result.code == 2
    (line,) = result.err.splitlines()
    assert line.startswith(f"longhorn-extender: cannot listen on {host} port 0: ")


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    result = run()
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Usage: longhorn-extender ")


def test_the_version_is_printed(run: Run) -> None:
    result = run("--version")
    assert (result.code, result.err) == (0, "")
    assert result.out.strip().replace(".", "").isdigit()


@pytest.mark.e2e
def test_the_installed_program_prints_no_colours_into_a_pipe(snapshot: str) -> None:
    command = [EXTENDER, "explain", "--snapshot", snapshot, "--pod", "db-0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


@pytest.mark.smoke
@pytest.mark.e2e
def test_a_closed_pipe_is_no_error(snapshot: str) -> None:
    command = f"{EXTENDER} explain --snapshot {snapshot} --pod db-0 -o json | head -n 0"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


class TestVolume:
    """`explain --volume`: node by node, disk by disk, rule by rule."""

    @pytest.fixture
    def volume_with_replica(self, tmp_path: Path) -> str:
        """A volume of 50Gi with two replicas wanted, one of them on node-1; node-3 is too full for another."""
        items = [
            longhorn_node("node-1"),
            longhorn_node("node-2"),
            longhorn_node("node-3", 40),
            volume("v", 50, locality="disabled", numberOfReplicas=2),
            replica("r1", "v", "node-1", size=50),
        ]
        return write_list(tmp_path / "volumes.json", items)

    def test_the_table_names_rule_and_numbers(self, run: Run, volume_with_replica: str) -> None:
        result = run("explain", "--snapshot", volume_with_replica, "--volume", "v")
        assert result.code == 0
        lines = {line.split()[0]: line for line in result.out.splitlines() if line.startswith("node-")}
        assert "node has a replica of the volume" in lines["node-1"]
        assert "yes" in lines["node-2"]
        assert "50Gi + 0 scheduled must be at most 100Gi" in lines["node-2"]
        assert "over-provisioning limit reached" in lines["node-3"]
        assert "node-2 disk-1: the only candidate" in result.out

    def test_nodes_may_be_given(self, run: Run, volume_with_replica: str) -> None:
        arguments = ("explain", "--snapshot", volume_with_replica, "--volume", "v", "--node", "node-2")
        answer = run(*arguments, "-o", "json").answer
        assert ([entry["node"] for entry in answer["candidates"]], list(answer["nodes"])) == (["node-2"], ["node-2"])
        assert yaml.safe_load(run(*arguments, "-o", "yaml").out) == answer

    def test_without_a_candidate_the_exit_code_is_one(self, run: Run, volume_with_replica: str) -> None:
        text = Path(volume_with_replica).read_text().replace('"53687091200"', '"536870912000"', 1)
        Path(volume_with_replica).write_text(text)
        result = run("explain", "--snapshot", volume_with_replica, "--volume", "v")
        assert (result.code, "Longhorn itself reports insufficient storage" in result.out) == (1, True)


@pytest.fixture
def demanded(tmp_path: Path) -> str:
    """A node with 50Gi of space, of which the bound pod shop/first will take 40Gi; the pod shop/second asks for 20Gi."""
    objects = [
        kube_node("node-1"),
        longhorn_node("node-1", 50),
        storage_class(),
        *(claim(name, size, namespace="shop") for name, size in (("first", 40), ("second", 20))),
        pod("first", name="first", namespace="shop", node="node-1", phase="Pending"),
        pod("second", name="second", namespace="shop"),
    ]
    return write_list(tmp_path, objects)


def test_space_that_another_pod_will_take_counts_unless_alone(
    run: Run, explain: Callable[..., Any], demanded: str
) -> None:
    result = run("explain", "--snapshot", demanded, "--pod", "shop/second", "-o", "wide")
    assert (result.code, run("schedule", "--snapshot", demanded).code) == (1, 1)
    assert "counted with first of pod shop/first (40Gi)" in result.out
    [competing] = explain("shop/second", file=demanded)["nodes"]["node-1"]["competing"]
    assert competing == {"pod": "shop/first", "claim": "shop/first", "volume": "first", "size": 40 * GI}
    alone = explain("shop/second", "--alone", file=demanded)
    assert (_fitting(alone), alone["nodes"]["node-1"]["competing"]) == (["node-1"], [])


def test_the_table_names_the_largest_volumes_of_other_pods_only(run: Run, tmp_path: Path) -> None:
    objects = [
        kube_node("node-1"),
        longhorn_node("node-1", 500),
        storage_class(),
        claim("own", 1),
        pod("own", name="db-0"),
    ]
    for number in range(6):
        name = f"other-{number}"
        objects += [claim(name, 10 + number), pod(name, name=name, uid=f"uid-{number}", node="node-1")]
    result = run("explain", "--snapshot", write_list(tmp_path, objects), "--pod", "db-0", "-o", "wide")
    assert "counted with other-5 of pod default/other-5 (15Gi), other-4 " in result.out
    assert "other-2 of pod default/other-2 (12Gi) and 2 more" in result.out
