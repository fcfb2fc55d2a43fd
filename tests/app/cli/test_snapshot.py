"""`longhorn-extender snapshot`: a file with everything that decisions read, and no secrets."""

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest
import yaml

from app.kube.cluster_cache import WATCHED
from app.kube.resources import STATEFUL_SETS
from app.kube.snapshot_file import load_snapshot, read_objects
from scheduler_core.model.generic import PodCount
from tests import builders as make
from tests.app.cli.test_explain_live import forbidding, live_cluster, run_in_thread
from tests.builders import csi_node
from tests.worlds.cluster_cache import PATHS, REPLICAS
from tests.worlds.command_line import Result, Run
from tests.worlds.fake_api import FakeApi, Object, failing, sending, write_kubeconfig
from tests.worlds.predicted_clusters import disruption_budget, node, running, stateful_set
from tests.worlds.two_nodes import database_pod, two_nodes

RunCommand = Callable[..., Awaitable[Result]]
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
DISRUPTION_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
SECRET = "hunter2"  # noqa: S105 # must not be in any output


@pytest.fixture
def run_command(run: Run) -> RunCommand:
    """Runs the program in a thread, next to the fake API server."""
    return partial(run_in_thread, run)


def served_cluster(
    folder: Path, *objects: Object | list[Object], api: FakeApi | None = None
) -> AbstractAsyncContextManager[str]:
    """Serves objects with a fake API server; yields its kubeconfig."""
    return live_cluster(folder, make.flat(*objects), api)


def secret_object(version: str, kind: str, name: str, namespace: str = "longhorn-system", **parts: Object) -> Object:
    """An object with secrets in its metadata."""
    metadata = {"name": name, "labels": {"label": SECRET}, "annotations": {"secret": SECRET}}
    metadata |= {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **parts}


def cluster_with_secrets() -> list[Object]:
    """A cluster with secrets wherever users put them."""
    objects = [
        *two_nodes(),
        make.claim("data-0", 10),
        database_pod(0),
        *make.bound("logs", 5),
        make.replica("r", "vol-logs", "a", size=5),
    ]
    pod = next(raw for raw in objects if raw["kind"] == "Pod")
    secret = {"env": [{"name": "PASSWORD", "value": SECRET}], "args": [f"--password={SECRET}"], "name": "main"}
    pod["spec"] |= {"containers": [secret], "initContainers": [secret], "hostname": SECRET}
    pod["spec"]["volumes"].append({"name": "config", "secret": {"secretName": SECRET}})
    pod["status"] |= {"message": SECRET}
    for raw in objects:
        applied = json.dumps({"env": SECRET})
        raw["metadata"].setdefault("annotations", {})["kubectl.kubernetes.io/last-applied-configuration"] = applied
        raw["metadata"]["managedFields"] = [{"manager": SECRET}]
        if raw["kind"] != "Node" or "longhorn" in raw["apiVersion"]:
            raw["metadata"]["labels"] = {"label": SECRET}
    classes = next(raw for raw in objects if raw["kind"] == "StorageClass")
    source = json.dumps({"url": f"https://me:{SECRET}@example.com"})
    classes["parameters"] |= {"backingImageDataSourceParameters": source}
    classes["parameters"] |= {"csi.storage.k8s.io/node-publish-secret-name": SECRET}
    other_class = make.storage_class("other", provisioner="example.com/other", restuserkey=SECRET)
    image = secret_object(
        make.LONGHORN,
        "BackingImage",
        "image",
        spec={"sourceType": "download", "sourceParameters": {"url": f"https://x.com/{SECRET}"}, "secret": SECRET},
        status={"realSize": 5, "virtualSize": 7},
    )
    persistent = next(raw for raw in objects if raw["kind"] == "PersistentVolume")
    persistent["spec"]["csi"] |= {"volumeAttributes": {"key": SECRET}, "nodeStageSecretRef": {"name": SECRET}}
    volume = next(raw for raw in objects if raw["kind"] == "Volume")
    volume["spec"] |= {"fromBackup": f"s3://{SECRET}", "encrypted": True}
    template = {"metadata": {"annotations": {"x": SECRET}, "labels": {"x": SECRET}}, "spec": make.ephemeral_spec(3)}
    scratch = make.pod(name="scratch")
    scratch["spec"]["volumes"] = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    settings = [
        make.setting("backup-target", f"s3://{SECRET}"),
        make.setting("registry-secret", SECRET),
        make.setting("storage-over-provisioning-percentage", "150"),
    ]
    schedule = secret_object(
        make.LONGHORN,
        "DiskSchedule",
        "a-disk-1",
        spec={"name": "disk-1", "nodeID": "a", "replicas": {"r": 5 * make.GI}, "note": SECRET},
        status={"replicas": {}, "conditions": [{"type": "Schedulable", "status": "True", "message": SECRET}]},
    )
    texts = {"url": f"s3://{SECRET}", "labels": {"key": SECRET}, "messages": {"error": SECRET}}
    backup = secret_object(
        make.LONGHORN, "Backup", "b", spec={"labels": {"key": SECRET}}, status={"volumeSize": "5", **texts}
    )
    group = "snapshot.storage.k8s.io/v1"
    bound = {"boundVolumeSnapshotContentName": "c", "error": {"message": SECRET}}
    saved = secret_object(group, "VolumeSnapshot", "s", "default", status=bound)
    spec = {"driver": "driver.longhorn.io", "volumeSnapshotClassName": SECRET}
    content = secret_object(group, "VolumeSnapshotContent", "c", "", spec=spec, status={"snapshotHandle": "bak://v/b"})
    stored = stateful_set("web", 1, note=SECRET)
    stored["spec"]["template"]["spec"] |= {"containers": [secret], "serviceAccountName": SECRET}
    stored["spec"]["template"]["metadata"] |= {"labels": {"label": SECRET}, "annotations": {"x": SECRET}}
    stored["spec"]["volumeClaimTemplates"][0]["metadata"] |= {"labels": {"x": SECRET}, "annotations": {"x": SECRET}}
    return [*objects, other_class, image, scratch, schedule, backup, saved, content, stored, *settings]


@pytest.mark.parametrize("form", ["yaml", "json"])
async def test_no_secret_is_written(form: str, tmp_path: Path, run_command: RunCommand) -> None:
    async with served_cluster(tmp_path, cluster_with_secrets()) as kubeconfig:
        result = await run_command("snapshot", "--kubeconfig", kubeconfig, "-o", form)
    assert (result.code, result.err) == (0, "")
    assert SECRET not in result.out
    items = (json.loads if form == "json" else yaml.safe_load)(result.out)["items"]
    kinds = {(raw["apiVersion"], raw["kind"]) for raw in items}
    assert len(kinds) == len(WATCHED)  # nothing is attached, and there is a StatefulSet
    (setting,) = (raw for raw in items if raw["kind"] == "Setting")
    assert (setting["metadata"]["name"], setting["value"]) == ("storage-over-provisioning-percentage", "150")
    assert {raw["metadata"]["name"]: raw.get("parameters") for raw in items if raw["kind"] == "StorageClass"} == {
        "longhorn": {"numberOfReplicas": "1", "dataLocality": "best-effort"},
        "other": None,
    }


@pytest.mark.parametrize("form", ["yaml", "json"])
async def test_the_file_gives_the_same_decisions_as_the_cluster(
    form: str, tmp_path: Path, run_command: RunCommand
) -> None:
    file = tmp_path / "snapshot"
    async with served_cluster(tmp_path, cluster_with_secrets()) as kubeconfig:
        written = await run_command("snapshot", "--kubeconfig", kubeconfig, "-o", form, "-f", str(file))
        live = await run_command("explain", "--kubeconfig", kubeconfig, "--pod", "default/db-0", "-o", "json")
    assert written.code == 0
    assert f"objects to {file}" in written.err
    explained = await run_command("explain", "--snapshot", str(file), "--pod", "default/db-0", "-o", "json")
    assert explained.out == live.out
    assert (explained.code, live.code) == (0, 0)
    assert {name: node["fits"] for name, node in live.answer["nodes"].items()} == {"a": True, "b": True}
    assert SECRET not in live.out


ODD_TEXTS = (
    "1.5e3",
    "1e3",
    "012",
    "0x1f",
    "yes",
    "null",
    "~",
    "2026-01-01",
    "1_000",
    ".5",
    "12:30",
    "-",
    "",
    "+1.",
    "=",
)


async def test_texts_that_look_like_other_types_stay_texts(tmp_path: Path, run_command: RunCommand) -> None:
    file = tmp_path / "snapshot.yaml"
    node = make.kube_node("a", **{f"label-{index}": text for index, text in enumerate(ODD_TEXTS)})
    async with served_cluster(tmp_path, two_nodes()[2:], node, make.claim("data-0", 10), database_pod(0)) as kubeconfig:
        assert (await run_command("snapshot", "--kubeconfig", kubeconfig, "-f", str(file))).code == 0
    labels = load_snapshot(str(file)).snapshot.nodes["a"].labels
    assert labels == {f"label-{index}": text for index, text in enumerate(ODD_TEXTS)}


async def test_an_unreadable_object_is_left_out_and_named(tmp_path: Path, run_command: RunCommand) -> None:
    file = tmp_path / "snapshot.yaml"
    bad = make.claim("bad", "much")
    async with served_cluster(tmp_path, two_nodes(), make.claim("data-0", 10), database_pod(0), bad) as kubeconfig:
        written = await run_command("snapshot", "--kubeconfig", kubeconfig, "-f", str(file))
    assert written.code == 0
    assert "warning: left out: PersistentVolumeClaim default/bad: spec.resources.requests.storage" in written.err
    assert (await run_command("explain", "--snapshot", str(file), "--pod", "default/db-0")).code == 0


async def test_a_missing_optional_kind_is_no_warning(tmp_path: Path, run_command: RunCommand) -> None:
    api = FakeApi()
    api.missing.add(PATHS["longhorn.io", "BackingImage"])
    async with served_cluster(tmp_path, two_nodes(), api=api) as kubeconfig:
        result = await run_command("snapshot", "--kubeconfig", kubeconfig)
    assert (result.code, result.err) == (0, "")


async def test_disruption_budgets_are_written_if_they_may_be_listed(tmp_path: Path, run_command: RunCommand) -> None:
    file = tmp_path / "snapshot.yaml"
    api = FakeApi()
    api.add(DISRUPTION_BUDGETS, disruption_budget(maxUnavailable=1))
    async with served_cluster(tmp_path, two_nodes(), api=api) as kubeconfig:
        written = await run_command("snapshot", "--kubeconfig", kubeconfig, "-f", str(file))
        (budget,) = load_snapshot(str(file)).snapshot.disruption_budgets.values()
    async with served_cluster(tmp_path, two_nodes(), api=forbidding(api, DISRUPTION_BUDGETS)) as kubeconfig:
        refused = await run_command("snapshot", "--kubeconfig", kubeconfig, "-f", str(file))
    assert (written.code, budget.key, budget.max_unavailable) == (0, "default/web", PodCount(1))
    assert "1 poddisruptionbudgets.policy" in written.err
    assert (refused.code, load_snapshot(str(file)).snapshot.disruption_budgets) == (0, {})
    assert "warning: poddisruptionbudgets.policy cannot be listed, so that what-if predicts" in refused.err


async def test_csi_nodes_are_written_if_they_may_be_listed(tmp_path: Path, run_command: RunCommand) -> None:
    file = tmp_path / "snapshot.yaml"
    api = FakeApi()
    api.add(CSI_NODES, csi_node("a", "driver.longhorn.io"))
    async with served_cluster(tmp_path, two_nodes(), api=api) as kubeconfig:
        await run_command("snapshot", "--kubeconfig", kubeconfig, "-f", str(file))
    assert load_snapshot(str(file)).snapshot.csi_nodes == {"a": frozenset({"driver.longhorn.io"})}
    async with served_cluster(tmp_path, two_nodes(), api=forbidding(api, CSI_NODES)) as kubeconfig:
        refused = await run_command("snapshot", "--kubeconfig", kubeconfig, "-f", str(file))
    assert (refused.code, load_snapshot(str(file)).snapshot.csi_nodes) == (0, None)
    assert "warning: csinodes.storage.k8s.io cannot be listed" in refused.err


def ordered_cluster(*stored: Object) -> list[Object]:
    """The data of db-0 is lost with node a, and db-1 may move to c; a third node is empty."""
    nodes = (node("a", listed={"db-0-a": 30}), node("b", listed={"db-1-b": 30}), node("c", zone="z"))
    return make.flat(make.storage_class(), *nodes, running("db-0", "a"), running("db-1", "b"), list(stored))


@pytest.mark.parametrize(
    ("stored", "outcome"),
    [
        pytest.param([stateful_set("db", 2, podManagementPolicy="Parallel")], "always", id="at once"),
        pytest.param([stateful_set("db", 2, podManagementPolicy="OrderedReady")], "never", id="in order"),
        pytest.param([stateful_set("db", 2)], "never", id="default"),
        pytest.param([stateful_set("other", 2, podManagementPolicy="Parallel")], "never", id="another one"),
        pytest.param([], "never", id="none, as in older snapshots"),
    ],
)
async def test_a_drain_reads_the_pod_management_policy(
    stored: list[Object], outcome: str, tmp_path: Path, run_command: RunCommand
) -> None:
    file = str(tmp_path / "snapshot.yaml")
    verbs = ("--lose", "a", "--drain", "b", "--orders", "3", "-o", "json")
    async with served_cluster(tmp_path, ordered_cluster(*stored)) as kubeconfig:
        live = await run_command("what-if", "--kubeconfig", kubeconfig, *verbs)
        assert (await run_command("snapshot", "--kubeconfig", kubeconfig, "-f", file)).code == 0
    read = await run_command("what-if", "--snapshot", file, *verbs)
    assert (live.out, live.err, read.err) == (read.out, "", "")
    outcomes = {entry["pod"]: entry["outcome"] for entry in live.answer["pods"]}
    assert outcomes == {"default/db-0": "never", "default/db-1": outcome}


async def test_stateful_sets_that_may_not_be_listed_are_a_warning(tmp_path: Path, run_command: RunCommand) -> None:
    file = str(tmp_path / "snapshot.yaml")
    api = forbidding(FakeApi(), STATEFUL_SETS.path())
    objects = ordered_cluster(stateful_set("db", 2, podManagementPolicy="Parallel"))
    verbs = ("--lose", "a", "--drain", "b", "--orders", "3", "-o", "json")
    async with served_cluster(tmp_path, objects, api=api) as kubeconfig:
        result = await run_command("what-if", "--kubeconfig", kubeconfig, *verbs)
        written = await run_command("snapshot", "--kubeconfig", kubeconfig, "-f", file)
    assert result.err == (
        "warning: statefulsets.apps cannot be listed, so that what-if predicts the pods of every StatefulSet as created one "
        "after the other\n"
    )
    assert [entry["outcome"] for entry in json.loads(result.out)["pods"]] == ["never", "never"]
    kinds = {kind for kind, *_ in read_objects(file)}
    assert (written.code, kinds & {"StatefulSet", "Pod"}) == (0, {"Pod"})


async def test_a_workload_of_a_snapshot_has_its_template(tmp_path: Path, run_command: RunCommand) -> None:
    file = str(tmp_path / "snapshot.yaml")
    stored = stateful_set("web", 0, "30Gi", podManagementPolicy="Parallel")
    stored["spec"]["template"]["spec"] |= {"nodeSelector": {"topology.kubernetes.io/zone": "z"}}
    verbs = ("--scale", "sts/web=4", "--orders", "3", "-o", "json")
    async with served_cluster(tmp_path, ordered_cluster(stored)) as kubeconfig:
        live = await run_command("what-if", "--kubeconfig", kubeconfig, *verbs)
        assert (await run_command("snapshot", "--kubeconfig", kubeconfig, "-f", file)).code == 0
    read = await run_command("what-if", "--snapshot", file, *verbs)
    assert (live.out, live.err, read.err) == (read.out, "", "")
    answer = read.answer
    assert [entry["pod"] for entry in answer["pods"]] == [f"default/web-{number}" for number in range(4)]
    assert {node for entry in answer["pods"] for node in entry["nodes"]} == {"c"}
    assert sum(entry["placed"] for entry in answer["pods"]) == 9  # three of four fit in each of the orders


async def failure(run_command: RunCommand, *arguments: str) -> str:
    result = await run_command(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    return result.err.removeprefix("longhorn-extender: ").rstrip()


@pytest.mark.parametrize("command", [["snapshot"], ["explain", "--pod", "default/db-0"]])
async def test_every_failure_is_one_line(command: list[str], tmp_path: Path, run_command: RunCommand) -> None:
    """File, server, permission, Longhorn or Kubernetes may be missing."""
    assert f"there is no file {tmp_path}/no" in await failure(run_command, *command, "--kubeconfig", f"{tmp_path}/no")
    nowhere = str(write_kubeconfig(tmp_path, "http://127.0.0.1:9"))
    assert await failure(run_command, *command, "--kubeconfig", nowhere) == (
        "GET /api/v1/nodes: cannot connect to 127.0.0.1:9: Connection refused"
    )
    assert "elsewhere" in await failure(run_command, *command, "--kubeconfig", nowhere, "--context", "elsewhere")
    api = FakeApi()
    async with served_cluster(tmp_path, two_nodes(), api=api) as kubeconfig:
        api.always["list"] = failing(403, 'cannot list resource "nodes"', "Forbidden")
        assert await failure(run_command, *command, "--kubeconfig", kubeconfig) == (
            'GET /api/v1/nodes: cannot list resource "nodes" (HTTP 403)'
        )
        api.always["list"] = sending(b"<html>")
        assert "the answer is no list of objects" in await failure(run_command, *command, "--kubeconfig", kubeconfig)
        api.always.clear()
        api.missing.add(REPLICAS)
        assert "replicas: 404 page not found (HTTP 404)" in await failure(
            run_command, *command, "--kubeconfig", kubeconfig
        )


async def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, run_command: RunCommand) -> None:
    async with served_cluster(tmp_path, two_nodes()) as kubeconfig:
        result = await run_command("snapshot", "--kubeconfig", kubeconfig, "-f", f"{tmp_path}/no/file")
    problem = f"longhorn-extender: {tmp_path}/no/file: cannot be written: No such file or directory"
    assert (result.code, result.err.splitlines()[-1]) == (2, problem)
