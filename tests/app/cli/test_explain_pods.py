"""`longhorn-extender explain` as users of kubectl expect it.

What kube-scheduler filters before the extender is tested, too.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.kube.cluster_cache import as_snapshot
from tests.builders import Object, claim, csi_node, kube_node, longhorn_node, pod, storage_class, write_list
from tests.worlds.command_line import Run
from tests.worlds.service import db_pod, small_cluster


def cordoned(name: str) -> Object:
    """A node that `kubectl cordon` has closed."""
    return {**kube_node(name), "spec": {"unschedulable": True}}


def two_nodes(first: Object | None = None) -> list[Object]:
    """Two nodes with room for one claim each, and a pod.

    The nodes are `a` and `b`, and the waiting pod is shop/db-0.
    """
    return [
        first or kube_node("a"),
        kube_node("b"),
        longhorn_node("a"),
        longhorn_node("b"),
        storage_class(),
        claim("data", 50, namespace="shop"),
        pod("data", name="db-0", namespace="shop"),
    ]


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    """Two nodes, of which `a` is cordoned."""
    return write_list(tmp_path, two_nodes(cordoned("a")))


def test_a_cordoned_node_is_not_counted(run: Run, snapshot: str) -> None:
    result = run("explain", "--snapshot", snapshot, "db-0")
    rows = {line.split()[0]: line for line in result.out.splitlines() if line}
    assert rows["a"].split()[:5] == ["a", "no", "node", "is", "unschedulable"]
    assert "has room" in rows["a"]
    assert rows["b"].split()[:3] == ["b", "yes", "ok"]
    assert result.out.endswith("1 of 2 nodes fit\n")


def test_json_has_both_answers_beside_the_stable_keys(run: Run, snapshot: str) -> None:
    answer = run("explain", "--snapshot", snapshot, "db-0", "-o", "json").answer
    assert (answer["apiVersion"], answer["kind"], answer["pod"]) == (
        "longhorn-extender/v1", "PodExplanation", "shop/db-0",
    )  # fmt: skip
    node = answer["nodes"]["a"]
    assert (node["fits"], node["schedulable"], node["reason"]) == (False, False, "node is unschedulable")
    assert node["longhorn"] == {"fits": True, "reason": "has room for all local volumes"}
    assert node["kubeScheduler"] == {"fits": False, "plugin": "NodeUnschedulable", "reason": "node is unschedulable"}
    admitted = answer["nodes"]["b"]
    assert admitted["orderSafe"] == admitted["order_safe"]
    assert admitted["disks"] == {"data": {"node": "b", "name": "disk-1", "uuid": "b-disk-1"}}


EXAMPLES = Path(__file__).parents[3] / "examples"
QUESTIONS = [
    (example.parent / "snapshot.yaml", *subject)
    for example in sorted(EXAMPLES.glob("*/snapshot.yaml"))
    for subject in [(), *((file,) for file in sorted(example.parent.rglob("*.yaml")) if file != example)]
]


def _printed(run: Run, question: Sequence[Path], output: str) -> tuple[int, str]:
    source, *subject = map(str, question)
    result = run("explain", "--snapshot", source, *subject, "-o", output)
    assert result.err == ""
    return result.code, result.out


@pytest.mark.parametrize(
    "question", QUESTIONS, ids=lambda question: " ".join(file.parent.name + "/" + file.name for file in question)
)
def test_table_json_yaml_names_and_exit_code_agree_about_every_example(run: Run, question: Sequence[Path]) -> None:
    code, text = _printed(run, question, "json")
    answer = json.loads(text)
    items = answer.get("items", [answer])
    fits = [{name for name, node in item["nodes"].items() if node["fits"]} for item in items]
    for item in items:
        for node in item["nodes"].values():
            assert node["fits"] == (node["kubeScheduler"]["fits"] and node["longhorn"]["fits"]) == node["schedulable"]
    assert _printed(run, question, "yaml") == (code, yaml.safe_dump(answer, sort_keys=False, allow_unicode=True))
    assert code == (0 if all(fits) else 1)
    table = [line.split() for line in _printed(run, question, "wide")[1].splitlines()]
    names = [line.partition("/")[2] for line in _printed(run, question, "name")[1].splitlines()]
    if len(question) == 1:
        counts = {item["pod"]: f"{len(nodes)}/{len(item['nodes'])}" for item, nodes in zip(items, fits, strict=True)}
        assert {row[0]: row[1] for row in table if row and "/" in row[0]} == counts
        assert names == [item["pod"].partition("/")[2] for item, nodes in zip(items, fits, strict=True) if nodes]
    else:
        assert {row[0]: row[1] for row in table if row and row[0] in answer["nodes"]} == {
            name: "yes" if name in fits[0] else "no" for name in answer["nodes"]
        }
        assert set(names) == fits[0]


@pytest.mark.parametrize(
    ("csi_nodes", "fitting"),
    [
        pytest.param([], {"a", "b"}, id="no CSINode is in the file"),
        pytest.param(
            [csi_node("a", "driver.longhorn.io", "other"), csi_node("b", "other")], {"a"}, id="another driver"
        ),
        pytest.param([csi_node("b", "driver.longhorn.io")], {"b"}, id="no CSINode of the node"),
    ],
)
def test_a_node_without_longhorns_csi_driver_does_not_fit(
    run: Run, tmp_path: Path, csi_nodes: list[Object], fitting: set[str]
) -> None:
    """kube-scheduler admits it, and the pod would wait there for its volumes; in `waiting` it counts among the others."""
    file = write_list(tmp_path, [*two_nodes(), *csi_nodes])
    nodes = run("explain", "--snapshot", file, "db-0", "-o", "json").answer["nodes"]
    assert {name for name, node in nodes.items() if node["fits"]} == fitting
    for name in nodes.keys() - fitting:
        assert nodes[name]["kubeScheduler"]["fits"]
        assert nodes[name]["longhorn"] == {
            "fits": False,
            "reason": "Longhorn's CSI driver is not registered on the node",
        }
        assert "until the node's CSINode names driver.longhorn.io" in nodes[name]["detail"]
    (waiting,) = run("waiting", "--snapshot", file, "-o", "json").answer["items"]
    assert waiting["fits"] == len(fitting)
    assert sum(waiting["reasons"].values()) == 2 - len(fitting)


def test_a_pod_without_longhorn_volumes_needs_no_driver(run: Run, tmp_path: Path) -> None:
    objects = [*two_nodes()[:-2], pod(name="plain", namespace="shop"), csi_node("a", "other")]
    assert run("explain", "--snapshot", write_list(tmp_path, objects), "plain", "-o", "name").out == "node/a\nnode/b\n"


def test_all_nodes_leaves_kube_scheduler_out(run: Run, snapshot: str) -> None:
    result = run("explain", "--snapshot", snapshot, "db-0", "--all-nodes")
    assert result.out.endswith("2 of 2 nodes fit\n")
    answer = run("explain", "--snapshot", snapshot, "db-0", "--all-nodes", "-o", "json").answer
    assert {entry["kubeScheduler"] for entry in answer["nodes"].values()} == {None}


def test_the_node_affinity_of_a_bound_volume_counts(run: Run, tmp_path: Path) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["w"]}]}]
    bound = claim("data", 1, bound=True, storage_class="local", namespace="shop")
    persistent = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pv-data"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}, "local": {"path": "/x"}},
    }
    objects = [*two_nodes()[:4], bound, persistent, pod("data", name="db-0", namespace="shop")]
    objects[1] = kube_node("b", zone="w")
    answer = run("explain", "--snapshot", write_list(tmp_path, objects), "db-0", "-o", "json").answer
    assert {name: entry["kubeScheduler"]["plugin"] for name, entry in answer["nodes"].items()} == {
        "a": "VolumeBinding",
        "b": "",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["db-0"], id="name"),
        pytest.param(["shop/db-0"], id="namespace and name"),
        pytest.param(["db-0", "-n", "shop"], id="namespace by flag"),
        pytest.param(["pod/db-0", "--namespace", "shop"], id="kind and name"),
        pytest.param(["sts/db", "-n", "shop"], id="workload"),
        pytest.param(["statefulset/db", "-n", "shop"], id="workload in full"),
        pytest.param(["--claim", "shop/data"], id="claim"),
    ],
)
def test_a_pod_is_named_as_for_kubectl(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    spec = {"template": {"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}}}
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": spec,
    }
    result = run("explain", "--snapshot", write_list(tmp_path, [*two_nodes(), stateful_set]), *arguments, "-o", "json")
    assert (result.err, result.answer["pod"]) == ("", "shop/db-0")


@pytest.mark.parametrize(
    ("kind", "pods", "lines"),
    [
        pytest.param(
            "StatefulSet",
            {"db-0": "a", "db-1": "b", "db-10": "", "db-2": ""},
            ["pod shop/db-2", "  the first of StatefulSet db, of those that wait"],
            id="a pod waits",
        ),
        pytest.param(
            "StatefulSet",
            {"db-1": "b", "db-0": "a"},
            ["pod shop/db-0", "  the first of StatefulSet db, none of its pods waits"],
            id="all pods have nodes",
        ),
        pytest.param(
            "StatefulSet", {}, ["pod shop/db-0", "  the first that StatefulSet db creates"], id="there is no pod"
        ),
        pytest.param(
            "Deployment",
            {"db-7d5b9c-x2x2x": "a", "db-7d5b9c-z9z9z": ""},
            ["pod shop/db-7d5b9c-z9z9z", "  the first of Deployment db, of those that wait"],
            id="of a Deployment",
        ),
        pytest.param(
            "Job",
            {},
            ["pod shop/db-0", "  the first that Job db creates, under a name of its own"],
            id="a name that is not known",
        ),
    ],
)
def test_explain_of_a_workload_says_which_pod_it_shows(
    run: Run, tmp_path: Path, kind: str, pods: dict[str, str], lines: list[str]
) -> None:
    """One that waits comes first, then one that exists; without any, it is the one that the workload in the file would create."""
    template = {"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    workload = {"kind": kind, "apiVersion": version, "metadata": {"name": "db", "namespace": "shop"}, "spec": {"template": template}}  # fmt: skip
    members = [pod("data", name=name, namespace="shop", node=node) for name, node in pods.items()]
    snapshot = write_list(tmp_path, [*two_nodes()[:-1], *(members or [workload])])
    arguments = ["explain", "--snapshot", snapshot, f"{kind.lower()}/db", "-n", "shop"]
    answer = run(*arguments, "-o", "json").answer
    assert [f"pod {answer['pod']}", f"  {answer['selection']}"] == lines
    assert run(*arguments).out.splitlines()[:2] == lines


def test_of_several_pods_that_use_a_claim_the_first_that_waits_is_taken(run: Run, tmp_path: Path) -> None:
    pods = [pod("data", name=name, namespace="shop", node=node) for name, node in {"db-0": "a", "db-1": ""}.items()]
    file = write_list(tmp_path, [*two_nodes()[:-1], *pods])
    assert run("explain", "--snapshot", file, "--claim", "shop/data", "-o", "json").answer["pod"] == "shop/db-1"


def test_a_claim_without_a_pod_is_asked_about_alone(run: Run, tmp_path: Path) -> None:
    snapshot = write_list(tmp_path, two_nodes()[:-1])
    answer = run("explain", "--snapshot", snapshot, "--claim", "shop/data", "-o", "json").answer
    assert [volume["claim"] for volume in answer["volumes"]] == ["shop/data"]
    assert {name: entry["fits"] for name, entry in answer["nodes"].items()} == {"a": True, "b": True}


def test_a_node_that_does_not_exist_is_refused_with_a_warning(run: Run, snapshot: str) -> None:
    """It may be a typing error."""
    result = run("explain", "--snapshot", snapshot, "db-0", "--node", "c")
    assert (result.code, result.err) == (1, "warning: --node c: there is no such node\n")


def test_without_a_pod_all_waiting_pods_are_listed(run: Run, tmp_path: Path) -> None:
    objects = [
        *two_nodes(cordoned("a")),
        claim("large", 500, namespace="shop"),
        pod("large", name="db-1", namespace="shop"),
        pod(name="runs", node="b"),
    ]
    snapshot = write_list(tmp_path, objects)
    result = run("explain", "--snapshot", snapshot)
    rows = [line.split()[:2] for line in result.out.splitlines() if line.startswith("shop/")]
    assert (rows, result.code) == ([["shop/db-0", "1/2"], ["shop/db-1", "0/2"]], 1)
    answer = run("explain", "--snapshot", snapshot, "-o", "json").answer
    assert (answer["kind"], [item["pod"] for item in answer["items"]]) == (
        "PodExplanationList", ["shop/db-0", "shop/db-1"],
    )  # fmt: skip


def test_a_namespace_narrows_the_waiting_pods(run: Run, snapshot: str) -> None:
    result = run("explain", "--snapshot", snapshot, "-n", "other")
    assert (result.code, result.out) == (0, "no pod waits for a node\n")


def test_a_waiting_pod_that_cannot_be_decided_about_has_the_reason(run: Run, tmp_path: Path) -> None:
    objects = [*two_nodes(), pod("missing", name="db-1", namespace="shop")]
    result = run("explain", "--snapshot", write_list(tmp_path, objects))
    (line,) = [line for line in result.out.splitlines() if line.startswith("shop/db-1")]
    assert "shop/missing" in line
    assert "shop/db-0" in result.out


@pytest.mark.parametrize(("nodes", "rows"), [(29, 29), (30, 2)])
def test_equal_refusals_share_a_row_from_thirty_nodes_on(run: Run, tmp_path: Path, nodes: int, rows: int) -> None:
    names = [f"n-{number:02}" for number in range(nodes - 1)]
    objects = [raw for name in names for raw in (kube_node(name), longhorn_node(name, 10))]
    objects += two_nodes()[1:2] + two_nodes()[3:]
    snapshot = write_list(tmp_path, objects)
    table = run("explain", "--snapshot", snapshot, "db-0").out.splitlines()
    body = table[table.index(next(line for line in table if line.startswith("NODE"))) + 1 :]
    assert len(body[: body.index("")]) == rows
    wide = run("explain", "--snapshot", snapshot, "db-0", "-o", "wide").out
    assert all(name in wide for name in names)
    assert ("29 nodes: n-00, n-01, n-02, ..." in "".join(body)) == (nodes == 30)


def test_a_row_of_nodes_with_long_names_has_one_name(run: Run, tmp_path: Path) -> None:
    objects = [kube_node(f"worker-{number:02}.example.com") for number in range(30)]
    snapshot = write_list(tmp_path, [*objects, storage_class(), claim("x", 1), pod("x", name="db-0")])
    out = run("explain", "--snapshot", snapshot, "db-0").out
    assert "\n30 nodes: worker-00.example.com, ...  no " in out


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")  # which has no colours


def test_the_table_fits_a_terminal_of_80_columns(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    lines = run("explain", "--snapshot", write_list(tmp_path, [*small_cluster(), db_pod()]), "db-0").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("  claim data-db-0")
    assert lines[2].split() == ["node"]
    assert lines[2].startswith("  ")
    (row,) = [line for line in lines if line.startswith("node-1")]
    assert "has room for all local volumes" in row


def test_the_wide_table_has_one_line_per_node_on_a_terminal(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    snapshot = write_list(tmp_path, [*small_cluster(), db_pod()])
    lines = run("explain", "--snapshot", snapshot, "db-0", "-o", "wide").out.splitlines()
    body = lines[lines.index("") + 2 :]
    assert [line.split()[0] for line in body[: body.index("")]] == ["node-1", "node-2", "node-3", "node-4"]


def test_a_long_name_of_a_node_stays_whole(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    name = "ip-192-168-112-34.eu-central-1.compute.internal"
    objects = [kube_node(name), longhorn_node(name), pod(name="db-0")]
    lines = run("explain", "--snapshot", write_list(tmp_path, objects), "db-0").out.splitlines()
    assert any(line.startswith(f"{name}  yes   ok") for line in lines)


def test_namespaces_of_a_live_cluster_do_not_disturb_decisions() -> None:
    namespace: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}
    assert as_snapshot([kube_node("a"), namespace]) == as_snapshot([kube_node("a")])
