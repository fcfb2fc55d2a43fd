"""The clusters under examples/: the answers that each of them shows, and that their objects are consistent."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from app.kube.snapshot_file import is_file, load_snapshot, named_pod, pod_in_file
from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.decide.explain import explain_nodes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.longhorn.settings import Settings
from scheduler_core.longhorn.space import minimal_available
from scheduler_core.model.kube import ClaimVolume, Pod
from scheduler_core.model.longhorn import Disk, Node
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.model.verdict import Reason, Verdict

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
NAMES = ("goal-1-burst", "goal-2-multiple-claims", "goal-3-drain", "goal-3-restart", "mixed-cluster")
PODS = EXAMPLES / "mixed-cluster" / "pods"
NOW = datetime(2026, 11, 18, 8, tzinfo=UTC)
GI = 1024**3


@cache
def _snapshot(example: str) -> Snapshot:
    loaded = load_snapshot(str(EXAMPLES / example / "snapshot.yaml"))
    assert loaded.warnings == ()
    return loaded.snapshot


def _verdicts(pod: Pod, snapshot: Snapshot, nodes: tuple[str, ...] = ()) -> dict[str, Verdict]:
    candidates = nodes or tuple(sorted(snapshot.nodes))
    explanation = explain_nodes(pod, candidates, ClusterState.of(View.of(snapshot, NOW)), FilterOptions())
    return dict(zip(candidates, explanation.verdicts, strict=True))


def _explain(example: str, source: Path | str, nodes: tuple[str, ...] = ()) -> dict[str, Verdict]:
    snapshot = _snapshot(example)
    if is_file(str(source)):
        pod, snapshot, _ = pod_in_file(str(source), snapshot)
    else:
        pod = named_pod(str(source), snapshot)
    return _verdicts(pod, snapshot, nodes)


def _reasons(verdicts: dict[str, Verdict]) -> dict[str, Reason]:
    return {node: verdict.reason for node, verdict in verdicts.items()}


def _fitting(verdicts: dict[str, Verdict]) -> set[str]:
    return {node for node, verdict in verdicts.items() if verdict.fits}


def _longhorn_nodes() -> set[str]:
    return set(_snapshot("mixed-cluster").longhorn_nodes)


def _nodes_with_replica(example: str, pod: str) -> set[str]:
    view = View.of(_snapshot(example), NOW)
    volumes = {claim.spec.volume_name for claim in view.snapshot.claims.values() if claim.name.endswith(f"-{pod}")}
    return {replica.node_id for volume in volumes for replica in view.replicas_of(volume)}


def test_in_a_burst_a_node_is_full_before_longhorns_status_says_so() -> None:
    """Goal 1: node-2 is refused although its status lists 300Gi of 400Gi, because a fourth replica is placed there."""
    snapshot = _snapshot("goal-1-burst")
    (disk,) = snapshot.longhorn_nodes["node-2"].disks
    assert (disk.storage_scheduled, disk.storage_maximum) == (300 * GI, 400 * GI)
    assert sum(replica.node_id == "node-2" for replica in snapshot.replicas.values()) == 4
    verdicts = _explain("goal-1-burst", EXAMPLES / "goal-1-burst" / "pod.yaml")
    assert verdicts["node-1"].missing == verdicts["node-2"].missing == 100 * GI


def test_explain_of_a_statefulset_is_about_its_first_pod() -> None:
    """Goal 1: of statefulset.yaml pod 0 is taken, whose volume exists already: only its own node is returned."""
    verdicts = _explain("goal-1-burst", EXAMPLES / "goal-1-burst" / "statefulset.yaml")
    assert _fitting(verdicts) == _nodes_with_replica("goal-1-burst", "web-0") == {"node-1"}


def test_four_claims_need_four_disks() -> None:
    """Goal 2: four claims of 100Gi fit only on the node with four disks of 100Gi, one on each."""
    plan = _explain("goal-2-multiple-claims", EXAMPLES / "goal-2-multiple-claims" / "pod.yaml")["node-4"].plan
    assert plan.keys() == {"data-a", "data-b", "data-c", "data-d"}
    assert len(set(plan.values())) == 4


def test_one_of_the_four_claims_alone_fits_everywhere() -> None:
    """Goal 2: only the four together are limited to node-4; each alone fits on every node."""
    pod = Pod("default", "one", volumes=(ClaimVolume("data", "data-a"),))
    assert _fitting(_verdicts(pod, _snapshot("goal-2-multiple-claims"))) == {"node-1", "node-2", "node-3", "node-4"}


def test_after_a_drain_all_four_pods_fit_on_the_other_large_node() -> None:
    """Goal 3 A: the volumes of all four pods together fill the other 400Gi node to the last byte."""
    together = Pod("default", "all", volumes=tuple(ClaimVolume(f"v{i}", f"data-web-{i}") for i in range(4)))
    verdicts = _verdicts(together, _snapshot("goal-3-drain"), ("node-2", "node-3", "node-4"))
    assert _fitting(verdicts) == {"node-2"}


def test_a_cordon_does_not_end_a_home() -> None:
    """Goal 3 A: with the drained node among the candidates, explain returns it alone, because the data is there."""
    verdicts = _explain("goal-3-drain", EXAMPLES / "goal-3-drain" / "pod.yaml")
    assert not _snapshot("goal-3-drain").longhorn_nodes["node-1"].schedulable
    assert _reasons(verdicts) == {
        "node-1": Reason.HOME,
        "node-2": Reason.HOME_ELSEWHERE,
        "node-3": Reason.HOME_ELSEWHERE,
        "node-4": Reason.HOME_ELSEWHERE,
    }


@pytest.mark.parametrize("index", range(16))
def test_every_restarted_pod_returns_to_its_own_node(index: int) -> None:
    """Goal 3 B: each of the 16 pods is offered the one node that has its replica, which has no byte left to schedule."""
    (node,) = _fitting(_explain("goal-3-restart", f"default/web-{index}"))
    assert {node} == _nodes_with_replica("goal-3-restart", f"web-{index}")
    view = View.of(_snapshot("goal-3-restart"), NOW)
    assert [space.free for space in view.free_space(node).values()] == [0]


def test_on_one_node_the_claims_fit_only_split_over_two_disks() -> None:
    verdicts = _explain("mixed-cluster", "shop/orders-0")
    disks = {disk.uuid: disk.name for disk in _snapshot("mixed-cluster").longhorn_nodes["east-2"].disks}
    plan = {volume: disks[uuid] for volume, uuid in verdicts["east-2"].plan.items()}
    assert (plan["data-orders-0"], plan["wal-orders-0"]) == ("hdd-0", "ssd-0")
    assert {node: len(set(verdicts[node].plan.values())) for node in ("east-1", "north-2")} == {
        "east-1": 1,
        "north-2": 1,
    }


def test_enough_space_in_total_is_not_enough() -> None:
    """east-3 has 427Gi left for 420Gi, on two disks between which they cannot be divided; 3Gi more would do."""
    view = View.of(_snapshot("mixed-cluster"), NOW)
    free = [space.free for space in view.free_space("east-3").values()]
    assert free == [310 * GI, 117 * GI]
    assert _explain("mixed-cluster", "shop/orders-0")["east-3"].missing == 3 * GI


def test_the_example_request_of_serve_is_about_the_pod_with_three_claims() -> None:
    pods = _snapshot("mixed-cluster").pods.values()
    assert min(pod.key for pod in pods if pod.volumes and not pod.node_name) == "shop/orders-0"


def test_data_that_has_to_be_copied_needs_available_space() -> None:
    """returns-0 brings 60Gi of data: west-3 could schedule its volume, but has too little available space for that."""
    verdicts = _explain("mixed-cluster", "shop/returns-0")
    assert verdicts["west-3"].reason is Reason.LOW_AVAILABLE
    assert _fitting(verdicts) == {"east-1", "east-2", "east-3", "north-1", "north-2", "north-3"}


@pytest.mark.parametrize(
    ("pod", "fitting", "refused"),
    [
        pytest.param("v2", "north-2 north-3", {Reason.DISK_TYPE, Reason.ENGINE_NOT_READY}, id="a block disk"),
        pytest.param("strict-local", "north-2", {Reason.STRICT_LOCAL_ELSEWHERE}, id="tied to one node"),
        pytest.param("deployment", "west-2", {Reason.CLAIM_IN_USE}, id="follows the pod that uses its claim"),
        pytest.param("rwx", "", set(), id="a shared volume needs no local space"),
        pytest.param("plain", "", set(), id="no volumes"),
    ],
)
def test_a_pod_fits_by_the_kind_of_its_volume(pod: str, fitting: str, refused: set[Reason]) -> None:
    verdicts = _explain("mixed-cluster", PODS / f"{pod}.yaml")
    names = fitting.split() or (verdicts if pod == "plain" else _longhorn_nodes())
    assert _fitting(verdicts) == {*names}
    assert {verdicts[name].reason for name in _longhorn_nodes() - {*names}} == refused


def test_an_ephemeral_volume_counts_before_its_claim_exists() -> None:
    """A generic ephemeral volume of 400Gi fits on the four nodes with such a disk, tags or not."""
    verdicts = _explain("mixed-cluster", PODS / "ephemeral.yaml")
    assert _fitting(verdicts) == {"east-1", "north-1", "north-2", "north-3"}
    assert verdicts["north-1"].plan.keys() == {"scratch-job-scratch"}


def test_the_goals_use_longhorns_exact_space() -> None:
    for example in NAMES[:4]:
        snapshot = _snapshot(example)
        assert snapshot.settings is not None
        assert snapshot.settings["storage-over-provisioning-percentage"] == "100"
        assert {disk.storage_reserved for _, disk in _disks(snapshot)} == {0}


@pytest.mark.parametrize("example", NAMES)
def test_disks_list_the_replicas_and_backing_images_that_exist(example: str) -> None:
    """Every placed replica is in its disk's scheduledReplica; but for one of the burst, which the status lags behind."""
    snapshot = _snapshot(example)
    for node, disk in _disks(snapshot):
        listed = sum(disk.scheduled_replicas.values()) + sum(disk.scheduled_backing_images.values())
        assert disk.storage_scheduled == listed, (node.name, disk.name)
        for name, size in disk.scheduled_replicas.items():
            replica = snapshot.replicas[name]
            assert (replica.node_id, replica.disk_id, replica.size) == (node.name, disk.uuid, size)
            assert (replica.disk_path, replica.size) == (disk.path, snapshot.volumes[replica.volume].size)
        for name, size in disk.scheduled_backing_images.items():
            assert disk.uuid in snapshot.backing_images[name].disks
            assert size == snapshot.backing_images[name].real_size
    names = {name for _, disk in _disks(snapshot) for name in disk.scheduled_replicas}
    missing = {replica.volume for name, replica in snapshot.replicas.items() if name not in names}
    late = {snapshot.claims["default", "data-web-10"].spec.volume_name} if example == "goal-1-burst" else set[str]()
    assert missing == late


@pytest.mark.parametrize("example", NAMES)
def test_conditions_agree_with_the_numbers(example: str) -> None:
    snapshot = _snapshot(example)
    settings = Settings.read(snapshot.settings or {})
    for node, disk in _disks(snapshot):
        assert disk.schedulable == (disk.storage_available > minimal_available(disk, settings)), (node.name, disk.name)
    for node in snapshot.longhorn_nodes.values():
        kube_node = snapshot.nodes[node.name]
        assert node.schedulable != kube_node.unschedulable
        assert node.zone == kube_node.labels.get("topology.kubernetes.io/zone", "")


@pytest.mark.parametrize("example", NAMES)
def test_claims_lead_to_volumes(example: str) -> None:
    snapshot = _snapshot(example)
    view = View.of(snapshot, NOW)
    for claim in snapshot.claims.values():
        if claim.spec.volume_name:
            volume = snapshot.volumes[snapshot.persistent_volumes[claim.spec.volume_name].handle]
            assert len(view.replicas_of(volume.name)) == volume.number_of_replicas
            assert volume.size == claim.spec.request
    mounted = {(pod.namespace, volume.claim) for pod in snapshot.pods.values() for volume in pod.volumes}
    assert mounted <= snapshot.claims.keys()


def test_the_index_names_every_example() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert folders == {*NAMES, "dev", "plugin", "policies"}
    assert folders == set(re.findall(r"\]\(([\w-]+)/\)", (EXAMPLES / "README.md").read_text()))
    text = (EXAMPLES / "mixed-cluster" / "README.md").read_text()
    assert {path.name for path in PODS.iterdir()} == set(re.findall(r"\]\(pods/([^)]+)\)", text))


def _disks(snapshot: Snapshot) -> Iterator[tuple[Node, Disk]]:
    for node in snapshot.longhorn_nodes.values():
        for disk in node.disks:
            yield node, disk
