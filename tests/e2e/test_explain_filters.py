"""What `explain` says that kube-scheduler filters is what a real kube-scheduler says."""

import json

import pytest

from app.kube.resources import LONGHORN_NODES, NODES, PODS
from devcluster.polling import wait_until
from devcluster.programs import NAMESPACE, start_simulator
from simulator.objects import DISKS
from tests.control_plane import ControlPlane
from tests.e2e.objects import scheduling_message
from tests.e2e.rig import run_extender

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
# Parts of kube-scheduler's message by the plugin that refuses a node.
MESSAGES = {
    "NodeUnschedulable": "1 node(s) were unschedulable",
    "TaintToleration": "1 node(s) had untolerated taint",
    "NodeAffinity": "1 node(s) didn't match Pod's node affinity/selector",
    "NodeResourcesFit": "1 Insufficient cpu",
}


def test_explain_names_the_plugins_that_refuse_a_waiting_pod(control_plane: ControlPlane) -> None:
    """Each of four nodes is refused by another plugin; the pod has no Longhorn volume."""
    with control_plane.borrow() as cluster:
        fast = {"disk": "fast"}
        cluster.create_node("cordoned", labels=fast)
        cluster.create_node("tainted", labels=fast, taints=[{"key": "dedicated", "effect": "NoSchedule"}])
        cluster.create_node("slow", annotations={DISKS: '[{"size": "400Gi"}]'})
        cluster.create_node("small", labels=fast, allocatable={"cpu": "1", "memory": "1Gi", "pods": "10"})
        cluster.wait_nodes_ready()
        cluster.api.patch(NODES.path(name="cordoned"), {"spec": {"unschedulable": True}})
        start_simulator(cluster)
        wait_until("a Longhorn node", lambda: cluster.api.get(LONGHORN_NODES.path(NAMESPACE))["items"])
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "2"}}}
        body = {"metadata": {"name": "waiting"}, "spec": {"nodeSelector": fast, "containers": [container]}}
        cluster.api.create(PODS.path("default"), {"apiVersion": "v1", "kind": "Pod", **body})
        path = PODS.path("default", "waiting")
        message = wait_until("kube-scheduler's message", lambda: scheduling_message(cluster.api.get(path)))
        explained = run_extender(cluster, "explain", "waiting", "-n", "default", "-o", "json", codes=[1])
        nodes = json.loads(explained)["nodes"]
    assert {name: entry["kubeScheduler"]["plugin"] for name, entry in nodes.items()} == {
        "cordoned": "NodeUnschedulable",
        "tainted": "TaintToleration",
        "slow": "NodeAffinity",
        "small": "NodeResourcesFit",
    }
    assert [text for text in MESSAGES.values() if text not in message] == []
