"""The control plane that files of tests borrow one after the other: each begins with an empty cluster."""

import pytest

from app.kube.resources import CLAIMS, CONFIG_MAPS, EVENTS, NAMESPACES, NODES
from devcluster.build import CONTROLLER_MANAGER, SCHEDULER
from devcluster.dev_cluster import DevCluster
from devcluster.programs import LOOPBACK
from devcluster.stack import ROOT
from tests.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def count(cluster: DevCluster) -> dict[str, int]:
    """The number of objects of some kinds that files create."""
    kinds = (
        "nodes",
        "pods",
        "persistentvolumeclaims",
        "statefulsets.apps",
        "validatingadmissionpolicies",
        "leases -n default",
    )
    return {kind: len(cluster.kubectl("get", *kind.split(), "-o", "name").splitlines()) for kind in kinds}


def test_the_next_file_finds_nothing_of_the_one_before(control_plane: ControlPlane) -> None:
    with control_plane.borrow() as cluster:
        before = count(cluster)
        configuration = cluster.processes[SCHEDULER].argv
    with control_plane.borrow(nodes=2) as cluster:
        cluster.kubectl("create", "configmap", "kept", "--from-literal=a=b")
        cluster.api.patch(CONFIG_MAPS.path("default", "kept"), {"metadata": {"finalizers": ["example.com/never"]}})
        cluster.kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        cluster.api.create(CLAIMS.path("default"), {"metadata": {"name": "waiting"}, "spec": claim})
        cluster.kubectl("apply", "-f", str(ROOT / "examples/dev/statefulset.yaml"))
        cluster.apply(ROOT / "manifests/test-cluster")
        cluster.use_scheduler_config(
            ROOT / "kube-scheduler-config/recommended.yaml", f"{LOOPBACK}:{cluster.free_port()}"
        )
        cluster.spawn("sleeper", ["/bin/sleep", "600"])
        cluster.processes[CONTROLLER_MANAGER].stop()
        sleeper = cluster.processes["sleeper"]
    with control_plane.borrow() as cluster:
        assert count(cluster) == before
        assert cluster.api.get(NODES.path())["items"] == []
        assert "kept" not in cluster.kubectl("get", "configmaps")
        assert not any(each["involvedObject"]["kind"] == "Pod" for each in cluster.api.get(EVENTS.path())["items"])
        assert set(cluster.api.get(NAMESPACES.path(name="default"))["metadata"]["labels"]) == {
            "kubernetes.io/metadata.name"
        }
        assert not sleeper.running
        assert "sleeper" not in cluster.processes
        assert cluster.processes[SCHEDULER].argv == configuration
        assert "extenders" not in (cluster.directory / "config" / f"{SCHEDULER}.yaml").read_text()
        assert all(process.running for process in cluster.processes.values())
        assert not any(
            event["objectRef"].get("name") == "kept" for event in cluster.audit_events() if "objectRef" in event
        )
