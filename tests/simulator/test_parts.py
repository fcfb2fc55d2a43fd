"""Parts of the simulator: configuration, command line, queue, tables, provisioning, disks, installation."""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from app.kube.client import ApiError
from app.kube.resources import DISK_SCHEDULES, LONGHORN_SETTINGS, LONGHORN_VOLUMES
from scheduler_core.errors import ResolutionError
from scheduler_core.longhorn.csi_driver import csi_size
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.snapshot import Snapshot
from simulator import install
from simulator.__main__ import main
from simulator.config import Config, ConfigError, draw_seconds, load, quantiles
from simulator.controller_queue import ControllerQueue
from simulator.known_settings import KNOWN_SETTINGS
from simulator.nodes import DisksError, disk_uuid, read_disks
from simulator.objects import DISKS, KubeObject
from simulator.pods import Mount, waiting_reason
from simulator.provisioner import new_persistent_volume, new_volume
from simulator.tables import Store, Table
from tests.worlds.simulator import MemoryApi

MIB = 2**20
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("{speed: 1}", "unknown field `speed`", id="unknown key"),
        pytest.param("{attach_seconds: [3, 1]}", "attach_seconds: [3.0,1.0] is neither", id="falling span"),
        pytest.param("{attach_seconds: [1, 2, 3]}", "attach_seconds: [1.0,2.0,3.0] is neither", id="three seconds"),
        pytest.param("{attach_seconds: [[0, 1], 2]}", "attach_seconds: [[0.0,1.0],2.0] is neither", id="mixed forms"),
        pytest.param("{attach_seconds: [[0, 1], [0.9, 2]]}", "is neither", id="no last quantile"),
        pytest.param("{attach_seconds: [[0, 1], [0, 2], [1, 3]]}", "is neither", id="fraction twice"),
        pytest.param("{attach_seconds: [[0, 1, 2], [1, 3, 4]]}", "is neither", id="triples"),
        pytest.param("{attach_seconds: []}", "attach_seconds: [] is neither", id="no quantile"),
        pytest.param("{preset: slow}", "preset: Invalid enum value 'slow'", id="preset"),
        pytest.param("{status_period: 0}", "status_period: Expected", id="zero period"),
        pytest.param("{default_disk_size: big}", "default_disk_size: 'big' is not a quantity", id="size"),
        pytest.param("{", "is no YAML", id="no YAML"),
    ],
)
def test_wrong_configuration_is_refused_with_file_and_key(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "simulator.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert str(raised.value).startswith(str(path))
    assert problem in str(raised.value)


def test_drawn_delays_have_the_quantiles_of_their_configuration() -> None:
    rng = random.Random(1)  # noqa: S311 # chance in a simulation
    lags = [draw_seconds(Config().status_lag, rng) for _ in range(10_000)]
    shares = [sum(lag <= seconds for lag in lags) / len(lags) for seconds in (0.0235, 0.047, 0.16, 0.441)]
    assert shares == pytest.approx([0.25, 0.5, 0.9, 1], abs=0.02)
    even = sorted(draw_seconds((1.0, 3.0), rng) for _ in range(10_000))
    assert [even[0], even[5_000], even[-1]] == pytest.approx([1, 2, 3], rel=0.05)


def test_a_preset_gives_the_lags_that_the_file_does_not_name(tmp_path: Path) -> None:
    path = tmp_path / "simulator.yaml"
    path.write_text("{preset: throttled, status_lag: [2, 3]}")
    config = load(path)
    assert (config.status_lag, quantiles(config.freed_lag)[-1]) == ((2, 3), (1, 4.6))


def test_the_word_off_disables_placement(tmp_path: Path) -> None:
    path = tmp_path / "simulator.yaml"
    path.write_text("placement: off\ncapacity_period: none\n")
    assert load(path) == Config(placement=False, capacity_period="none")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        pytest.param(["--kubeconfig", "/nowhere"], "there is no file /nowhere", id="kubeconfig"),
        pytest.param(["--config", "/nowhere"], "/nowhere: cannot be read", id="config"),
        pytest.param(["--status-port", "70000"], "--status-port", id="port"),
        pytest.param(["--log-level", "loud"], "'loud' is not debug, info, warning or error", id="log level"),
        pytest.param(["--speed", "9"], "No such option", id="unknown option"),
    ],
)
@pytest.mark.usefixtures("process_state")
def test_wrong_command_line_ends_with_one_line(
    arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulator", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    printed = capsys.readouterr().err
    assert exit_info.value.code == 2
    assert problem in printed
    assert printed.count("\n") == 1


async def test_key_is_handled_by_one_worker_at_a_time() -> None:
    calls: list[str] = []
    active = 0

    async def handle(key: str) -> float | None:
        nonlocal active
        active += 1
        assert active == 1
        calls.append(key)
        if len(calls) == 1:
            queue.add(key)
            queue.add(key)
        await asyncio.sleep(0.01)
        active -= 1
        return None

    queue: ControllerQueue[str] = ControllerQueue("test", handle, random.Random(1), workers=4)  # noqa: S311
    queue.add("a")
    await _run_queue(queue, 1.0)
    assert calls == ["a", "a"]


async def test_keys_are_drawn_at_random() -> None:
    orders = []
    for _ in range(2):
        handled: list[int] = []

        async def handle(key: int, handled: list[int] = handled) -> None:
            handled.append(key)

        queue: ControllerQueue[int] = ControllerQueue("test", handle, random.Random(1), workers=1)  # noqa: S311
        for number in range(20):
            queue.add(number)
        await _run_queue(queue, 0.05)
        orders.append(handled)
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(20)) != orders[0]


async def test_conflict_is_retried_and_not_counted_as_a_failure() -> None:
    problems: list[Exception] = [ApiError("PATCH x", 409, "Conflict", "modified"), KeyError("bug")]
    done = asyncio.Event()

    async def handle(_: str) -> None:
        if problems:
            raise problems.pop(0)
        done.set()

    queue: ControllerQueue[str] = ControllerQueue("test", handle, random.Random(1), workers=1)  # noqa: S311
    queue.add("a")
    await _run_queue(queue, 1.0, done)
    assert done.is_set()
    assert queue.failures == 1


async def _run_queue(queue: ControllerQueue[Any], seconds: float, until: asyncio.Event | None = None) -> None:
    task = asyncio.create_task(queue.run())
    try:
        async with asyncio.timeout(seconds):
            await (until or asyncio.Event()).wait()
    except TimeoutError:
        pass
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_older_event_does_not_undo_a_write() -> None:
    """The watch may be behind the answer to a write."""
    table = Store().settings
    table.record_write(_setting(5, "new"))
    table.change("s", table.read(_setting(4, "old"))[1])
    assert table.models["s"] == "new"


def test_late_answer_does_not_restore_a_deleted_object() -> None:
    """The answer may belong to an earlier write."""
    table = Store().settings
    table.record_write(_setting(4, "old"))
    table.change("s", None)
    table.record_write(_setting(5, "ghost"))
    assert table.models == {}


def _setting(version: int, value: str) -> dict[str, Any]:
    return {"metadata": {"name": "s", "uid": "u", "resourceVersion": str(version)}, "value": value}


@pytest.mark.parametrize(
    ("request_bytes", "file_system", "size"),
    [
        pytest.param(1, "ext4", 10 * MIB, id="least"),
        pytest.param(1, "xfs", 300 * MIB, id="least on xfs"),
        pytest.param(11 * MIB, "ext4", 12 * MIB, id="rounded up"),
        pytest.param(12 * MIB, "ext4", 12 * MIB, id="as it is"),
    ],
)
def test_claim_is_rounded_as_the_csi_driver_does(request_bytes: int, file_system: str, size: int) -> None:
    assert csi_size(request_bytes, file_system) == size


def test_volume_takes_its_parameters_from_its_class() -> None:
    parameters = {"dataLocality": "best-effort", "numberOfReplicas": "2", "diskSelector": "ssd,fast"}
    spec = new_volume(_claim(), _class(**parameters), Settings(), Snapshot())["spec"]
    assert (spec["dataLocality"], spec["numberOfReplicas"]) == ("best-effort", 2)
    assert (spec["diskSelector"], spec["nodeSelector"]) == (["ssd", "fast"], [])
    assert new_volume(_claim(), _class(), Settings(), Snapshot())["spec"]["numberOfReplicas"] == 3


def test_strict_local_volume_has_one_replica() -> None:
    """Longhorn's webhook refuses any other number, also the default one."""
    parameters = {"dataLocality": "strict-local"}
    one = new_volume(_claim(), _class(**parameters, numberOfReplicas="1"), Settings(), Snapshot())
    assert one["spec"]["numberOfReplicas"] == 1
    for number in ({}, {"numberOfReplicas": "3"}):
        with pytest.raises(ResolutionError, match="strict-local needs numberOfReplicas 1, not 3"):
            new_volume(_claim(), _class(**parameters, **number), Settings(), Snapshot())


def test_wrong_parameter_is_refused_by_name() -> None:
    with pytest.raises(ResolutionError, match="numberOfReplicas 'many' is not a whole number"):
        new_volume(_claim(), _class(numberOfReplicas="many"), Settings(), Snapshot())


def test_persistent_volume_is_bound_to_its_claim_and_to_no_node() -> None:
    spec = _persistent_volume(_class(), Settings())["spec"]
    assert (spec["claimRef"]["uid"], spec["csi"]["volumeHandle"]) == ("uid-1", "pvc-uid-1")
    assert "nodeAffinity" not in spec


def test_zonal_volume_and_its_pods_stay_in_the_zone_of_the_selected_node() -> None:
    zone = "topology.kubernetes.io/zone"
    settings = Settings(csi_allowed_topology_keys=frozenset({zone}))
    volume = _persistent_volume(_class(volumeTopology="zonal"), settings)
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": zone, "operator": "In", "values": ["z"]}]


def _persistent_volume(storage_class: KubeObject[kube.StorageClass], settings: Settings) -> dict[str, Any]:
    nodes = Snapshot(longhorn_nodes={"a": longhorn.Node("a", zone="z", region="r")})
    body = new_volume(_claim(), storage_class, settings, nodes)
    volume = Store().volumes.read({**body, "metadata": {**body["metadata"], "resourceVersion": "1"}})[1]
    return new_persistent_volume(_claim(), storage_class, volume)


def _claim() -> KubeObject[kube.Claim]:
    body = {
        "metadata": {
            "name": "data",
            "namespace": "shop",
            "uid": "uid-1",
            "annotations": {"volume.kubernetes.io/selected-node": "a"},
        },
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    return Store().claims.read(body)[1]


def _class(**parameters: str) -> KubeObject[kube.StorageClass]:
    body = {"metadata": {"name": "c"}, "provisioner": "driver.longhorn.io", "parameters": parameters}
    return Store().storage_classes.read(body)[1]


def test_disks_have_default_names_and_stable_uuids() -> None:
    disks = read_disks(_node('[{"size": "10Gi"}, {"name": "fast", "size": "1Ti", "tags": ["ssd"]}]'))
    assert disks is not None
    assert [(disk.name, disk.size) for disk in disks] == [("disk-1", 10 * 2**30), ("fast", 2**40)]
    assert disk_uuid("a", "fast") == disk_uuid("a", "fast") != disk_uuid("b", "fast")


def test_node_without_the_annotation_is_no_longhorn_node() -> None:
    assert read_disks(_node(None)) is None
    assert read_disks(_node("[]")) == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("[", "Input data was truncated", id="no JSON"),
        pytest.param('[{"name": "a"}]', "missing required field `size`", id="no size"),
        pytest.param('[{"size": "huge"}]', "'huge' is not a quantity", id="no quantity"),
        pytest.param('[{"size": "1Gi", "name": "a"}, {"size": "1Gi", "name": "a"}]', "one name", id="twice"),
    ],
)
def test_wrong_disks_are_refused_with_their_node(text: str, problem: str) -> None:
    with pytest.raises(DisksError, match=f"Node n: annotation {DISKS}: .*{problem}"):
        read_disks(_node(text))


def _node(disks: str | None) -> KubeObject[kube.Node]:
    annotations = {} if disks is None else {DISKS: disks}
    return Store().nodes.read({"metadata": {"name": "n", "annotations": annotations}})[1]


def test_pod_does_not_wait_for_volumes_of_other_drivers() -> None:
    other = Store().persistent_volumes.read({"metadata": {"name": "pv"}, "spec": {"hostPath": {"path": "/"}}})[1]
    body = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "a"}}
    pod = Store().pods.read(body)[1]
    assert waiting_reason(pod, [Mount("data", other)]) == ""
    assert waiting_reason(pod, [Mount("data", None)]) == "claim data is not bound"


def test_every_simulated_kind_has_a_definition() -> None:
    simulated = {table.resource for table in Store().tables} - {DISK_SCHEDULES}
    plurals = {resource.plural for resource in simulated if resource.group == LONGHORN_VOLUMES.group}
    definitions = install.crds()
    assert {each["spec"]["names"]["plural"] for each in definitions} == plurals
    for definition in definitions:
        [version] = definition["spec"]["versions"]
        assert version["name"] == "v1beta2"
        assert version["subresources"] == {"status": {}}


def test_settings_are_created_with_longhorns_defaults() -> None:
    written = {
        each["metadata"]["name"]: each["value"]
        for each in install.settings(Config(settings={"node-drain-policy": "x"}))
    }
    assert written["storage-minimal-available-percentage"] == "25"
    assert written["node-drain-policy"] == "x"
    assert not Settings.read(written).faults
    assert written.keys() <= KNOWN_SETTINGS


def test_extra_settings_can_be_allowed() -> None:
    plain, extra = (
        json.dumps(list(install.admission_policies(Config(known_settings_extra=names))), default=str)
        for names in ([], ["scheduler-extender-enabled"])
    )
    assert "scheduler-extender-enabled" not in plain
    assert "'scheduler-extender-enabled'" in extra


def test_documentation_lists_every_key_with_its_default() -> None:
    text = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    section = text.partition("\n## Configuration\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    documented = {row[1].strip().strip("`"): yaml.safe_load(row[2].strip().strip("`")) for row in rows}
    assert documented == json.loads(msgspec.json.encode(Config()))


async def test_memory_api_refuses_stale_writes() -> None:
    store = Store()
    api = MemoryApi(store)
    path = LONGHORN_SETTINGS.path("longhorn-system")
    await api.create(path, {"metadata": {"name": "s"}, "value": "1"})
    table: Table[str, str] = store.settings
    version = table.objects["s"].metadata["resourceVersion"]
    await api.patch(f"{path}/s", {"metadata": {"resourceVersion": version}, "value": "2"})
    with pytest.raises(ApiError):
        await api.patch(f"{path}/s", {"metadata": {"resourceVersion": version}, "value": "3"})
    assert table.models["s"] == "2"
