"""`longhorn-extender snapshot`: what decides and nothing else, in a file that decides the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from app.kube.snapshot_file import load_snapshot
from app.kube.watched_kinds import WATCHED
from tests import builders as make
from tests.app.extender.test_node_reservation import cluster, db
from tests.app.kube.test_cluster_cache import PATHS, REPLICAS, path_of
from tests.worlds.fake_api import FakeApi, Object, failing, sending, served, write_kubeconfig
from tests.worlds.service import EXTENDER

pytestmark = pytest.mark.e2e
SECRET = "hunter2"  # noqa: S105 # what must not be found


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str


async def run(*arguments: str) -> Result:
    """Runs the program; the fake API server goes on meanwhile."""
    process = await asyncio.create_subprocess_exec(
        EXTENDER,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert b"Traceback" not in err
    assert process.returncode is not None
    return Result(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def faking(folder: Path, *objects: Object | list[Object], api: FakeApi | None = None) -> AsyncIterator[str]:
    """A kubeconfig of a fake API server with some objects."""
    api = api or FakeApi()
    for path in PATHS.values():
        api.add(path)
    for raw in make.flat(*objects):
        api.add(path_of(raw), raw)
    async with served(api.handle, folder) as kubeconfig:
        yield str(kubeconfig)


def poisoned() -> list[Object]:
    """A cluster with secrets wherever people put them."""
    objects = [
        *cluster(),
        make.claim("data-0", 10),
        db(0),
        *make.bound("kept", 5),
        make.replica("r", "vol-kept", "a", size=5),
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
    classes["parameters"] |= {
        "backingImageDataSourceParameters": json.dumps({"url": f"https://me:{SECRET}@example.com"})
    }
    classes["parameters"] |= {"csi.storage.k8s.io/node-publish-secret-name": SECRET}
    other = make.storage_class("other", provisioner="example.com/other", restuserkey=SECRET)
    image = {
        "apiVersion": make.LONGHORN,
        "kind": "BackingImage",
        "metadata": {"name": "image", "namespace": "longhorn-system"},
        "spec": {
            "sourceType": "download",
            "sourceParameters": {"url": f"https://example.com/{SECRET}"},
            "secret": SECRET,
        },
        "status": {"realSize": 5, "virtualSize": 7},
    }
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
    schedule = {
        "apiVersion": make.LONGHORN,
        "kind": "DiskSchedule",
        "metadata": {"name": "a-disk-1", "namespace": "longhorn-system", "labels": {"label": SECRET}},
        "spec": {"name": "disk-1", "nodeID": "a", "replicas": {"r": 5 * make.GI}, "note": SECRET},
        "status": {"replicas": {}, "conditions": [{"type": "Schedulable", "status": "True", "message": SECRET}]},
    }
    return [*objects, other, image, scratch, schedule, *settings]


@pytest.mark.parametrize("form", ["yaml", "json"])
async def test_no_secret_is_written(form: str, tmp_path: Path) -> None:
    """But everything that decides."""
    async with faking(tmp_path, poisoned()) as kubeconfig:
        result = await run("snapshot", "--kubeconfig", kubeconfig, "-o", form)
    assert (result.code, result.err) == (0, "")
    assert SECRET not in result.out
    items = (json.loads if form == "json" else yaml.safe_load)(result.out)["items"]
    kinds = {(raw["apiVersion"], raw["kind"]) for raw in items}
    assert len(kinds) == len(WATCHED) - 1  # nothing is attached
    (setting,) = (raw for raw in items if raw["kind"] == "Setting")
    assert (setting["metadata"]["name"], setting["value"]) == ("storage-over-provisioning-percentage", "150")
    assert {raw["metadata"]["name"]: raw.get("parameters") for raw in items if raw["kind"] == "StorageClass"} == {
        "longhorn": {"numberOfReplicas": "1", "dataLocality": "best-effort"},
        "other": None,
    }


@pytest.mark.parametrize("form", ["yaml", "json"])
async def test_the_file_decides_as_the_cluster_does(form: str, tmp_path: Path) -> None:
    """`explain` of either prints the same."""
    file = tmp_path / "snapshot"
    async with faking(tmp_path, poisoned()) as kubeconfig:
        written = await run("snapshot", "--kubeconfig", kubeconfig, "-o", form, "-f", str(file))
        live = await run("explain", "--kubeconfig", kubeconfig, "--pod", "default/db-0", "-o", "json")
    assert written.code == 0
    assert f"objects to {file}" in written.err
    explained = await run("explain", "--snapshot", str(file), "--pod", "default/db-0", "-o", "json")
    assert explained.out == live.out
    assert (explained.code, live.code) == (0, 0)
    assert {name: node["fits"] for name, node in json.loads(live.out)["nodes"].items()} == {"a": True, "b": True}
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


async def test_texts_that_look_like_something_else_stay_texts(tmp_path: Path) -> None:
    """In YAML, where a commit's hash may look like a number."""
    file = tmp_path / "snapshot.yaml"
    node = make.kube_node("a", **{f"label-{index}": text for index, text in enumerate(ODD_TEXTS)})
    async with faking(tmp_path, cluster()[2:], node, make.claim("data-0", 10), db(0)) as kubeconfig:
        assert (await run("snapshot", "--kubeconfig", kubeconfig, "-f", str(file))).code == 0
    labels = load_snapshot(str(file)).snapshot.nodes["a"].labels
    assert labels == {f"label-{index}": text for index, text in enumerate(ODD_TEXTS)}


async def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    """So that the file can be."""
    file = tmp_path / "snapshot.yaml"
    bad = make.claim("bad", "much")
    async with faking(tmp_path, cluster(), make.claim("data-0", 10), db(0), bad) as kubeconfig:
        written = await run("snapshot", "--kubeconfig", kubeconfig, "-f", str(file))
    assert written.code == 0
    assert "warning: left out: PersistentVolumeClaim default/bad: spec.resources.requests.storage" in written.err
    assert (await run("explain", "--snapshot", str(file), "--pod", "default/db-0")).code == 0


async def test_a_kind_that_may_be_missing_is_told(tmp_path: Path) -> None:
    """Backing images are new in Longhorn."""
    api = FakeApi()
    api.missing.add(PATHS["longhorn.io", "BackingImage"])
    async with faking(tmp_path, cluster(), api=api) as kubeconfig:
        result = await run("snapshot", "--kubeconfig", kubeconfig)
    assert (result.code, result.err) == (0, "warning: the cluster knows no backingimages.longhorn.io\n")


async def failure(*arguments: str) -> str:
    """The one line a command fails with."""
    result = await run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1
    return result.err.removeprefix("longhorn-extender: ").rstrip()


@pytest.mark.parametrize("command", [["snapshot"], ["explain", "--pod", "default/db-0"]])
async def test_what_stands_in_the_way_is_one_line(command: list[str], tmp_path: Path) -> None:
    """No file, no server, no permission, no Longhorn, no Kubernetes."""
    assert f"there is no file {tmp_path}/no" in await failure(*command, "--kubeconfig", f"{tmp_path}/no")
    nowhere = str(write_kubeconfig(tmp_path, "http://127.0.0.1:9"))
    assert await failure(*command, "--kubeconfig", nowhere) == (
        "GET /api/v1/nodes: cannot connect to 127.0.0.1:9: Connection refused"
    )
    assert "elsewhere" in await failure(*command, "--kubeconfig", nowhere, "--context", "elsewhere")
    api = FakeApi()
    async with faking(tmp_path, cluster(), api=api) as kubeconfig:
        api.always["list"] = failing(403, 'cannot list resource "nodes"', "Forbidden")
        assert await failure(*command, "--kubeconfig", kubeconfig) == (
            'GET /api/v1/nodes: cannot list resource "nodes" (HTTP 403)'
        )
        api.always["list"] = sending(b"<html>")
        assert "the answer is no list of objects" in await failure(*command, "--kubeconfig", kubeconfig)
        api.always.clear()
        api.missing.add(REPLICAS)
        assert "replicas: 404 page not found (HTTP 404)" in await failure(*command, "--kubeconfig", kubeconfig)


async def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """Is told by name."""
    async with faking(tmp_path, cluster()) as kubeconfig:
        result = await run("snapshot", "--kubeconfig", kubeconfig, "-f", f"{tmp_path}/no/file")
    problem = f"longhorn-extender: {tmp_path}/no/file: cannot be written: No such file or directory"
    assert (result.code, result.err.splitlines()[-1]) == (2, problem)
