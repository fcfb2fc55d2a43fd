"""The simulator with DiskSchedules on a real API server."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.kube.resources import DISK_SCHEDULES, LONGHORN_NAMESPACE, LONGHORN_NODES, LONGHORN_REPLICAS
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from tests.worlds.simulator_cluster import Rig, Scene, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
CRD = Path(__file__).parents[2] / "manifests/crd/diskschedules.yaml"


def test_a_replica_starts_once_granted_and_is_gone_once_released(tmp_path: Path) -> None:
    """The test places and grants in place of the DiskSchedule controllers. The definition of DiskSchedules is created
    after the simulator has started.
    """
    with DevCluster(tmp_path / "cluster", ClusterOptions(nodes=0)) as cluster:
        rig = Rig(cluster, tmp_path, disk_schedules=True)
        cluster.apply(CRD)
        cluster.kubectl("wait", "--for=condition=Established", "crd/diskschedules.longhorn.io")
        scene = Scene(rig, "granting")
        [home] = scene.add_nodes("40Gi")
        scene.add_claim("data", "10Gi")
        scene.add_pod("app", "data", node=home)
        [replica] = until("a replica", lambda: scene.replicas("data"))
        name = replica["metadata"]["name"]
        size = int(replica["spec"]["volumeSize"])
        node = rig.find(LONGHORN_NODES, home)
        assert node is not None
        [disk] = node["status"]["diskStatus"].values()
        _patch(rig, LONGHORN_REPLICAS.plural, name, {"spec": {"nodeID": home, "diskID": disk["diskUUID"]}})
        until("the placed replica is ungranted", lambda: rig.status()["ungranted"] == [name])
        assert not scene.running("app")
        rig.apply(
            {
                "apiVersion": DISK_SCHEDULES.api_version,
                "kind": DISK_SCHEDULES.kind,
                "metadata": {"name": disk["diskUUID"], "namespace": LONGHORN_NAMESPACE},
                "spec": {"name": disk["diskName"], "nodeID": home, "replicas": {name: size}},
            }
        )
        granted = {"status": {"replicas": {name: {"state": "scheduled", "scheduledSize": size}}}}
        _patch(rig, DISK_SCHEDULES.plural, disk["diskUUID"], granted, "--subresource=status")
        until("pod runs", lambda: scene.running("app"))
        assert rig.status()["ungranted"] == []
        # The first publish call has failed meanwhile. Kubernetes detaches only what it saw attached, which its retry shows.
        until(
            "Kubernetes sees it attached",
            lambda: cluster.api.get(f"/api/v1/nodes/{home}")["status"].get("volumesAttached"),
        )
        cluster.kubectl("delete", "pod,pvc", "--all", "-n", "granting", "--wait=false")
        until("only the space is not released", lambda: _finalizers(rig, name) == ["longhorn.io"])
        _patch(rig, LONGHORN_REPLICAS.plural, name, {"metadata": {"finalizers": None}})
        until("replica gone", lambda: rig.find(LONGHORN_REPLICAS, name) is None)
        assert rig.status()["failures"] == 0, rig.simulator.log_tail()


def _patch(rig: Rig, plural: str, name: str, body: dict[str, Any], *arguments: str) -> None:
    resource = f"{plural}.longhorn.io"
    target = ["patch", resource, name, "-n", LONGHORN_NAMESPACE, "--type=merge", "-p", json.dumps(body)]
    rig.cluster.kubectl(*target, *arguments)


def _finalizers(rig: Rig, name: str) -> list[str]:
    replica = rig.find(LONGHORN_REPLICAS, name)
    return list(replica["metadata"].get("finalizers") or []) if replica is not None else []
