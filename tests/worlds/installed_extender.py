"""An installation as `longhorn-extender doctor` sees it, on a cluster whose kubelets start no containers. The extender's processes run on
this machine; a pod with its address shows each of them.
"""

import json
import subprocess
from typing import Any

from app.kube.client import ApiError
from app.kube.resources import LONGHORN_SETTINGS, PODS, STORAGE_CLASSES
from devcluster.dev_cluster import DevCluster
from devcluster.polling import wait_until
from devcluster.programs import NAMESPACE, SERVICE, primary_address
from tests.worlds.service import EXTENDER

DRIVER = "driver.longhorn.io"


def show_as_pod(cluster: DevCluster, name: str, url: str, guard_port: int, node: str) -> None:
    """Creates the pod of a candidate, with the address and ports of its process."""
    container = {
        "name": "extender",
        "image": "none",
        "ports": [
            {"name": "http", "containerPort": int(url.rpartition(":")[2])},
            {"name": "https", "containerPort": guard_port},
        ],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": SERVICE}},
        "spec": {
            "nodeName": node,
            "serviceAccountName": SERVICE,
            "automountServiceAccountToken": False,
            "containers": [container],
        },
    }
    cluster.api.create(PODS.path(NAMESPACE), body)
    path = PODS.path(NAMESPACE, name)
    wait_until("the pod", lambda: cluster.api.get(path).get("status", {}).get("phase") == "Running")
    address = primary_address()
    cluster.api.patch(f"{path}/status", {"status": {"podIP": address, "podIPs": [{"ip": address}]}})


def mend_longhorn(cluster: DevCluster) -> None:
    """Sets what the simulator, as Longhorn, leaves to be mended by default."""
    put_setting(cluster, "current-longhorn-version", "v1.12.0")
    for entry in cluster.api.get(STORAGE_CLASSES.path())["items"]:
        if entry["provisioner"] == DRIVER and entry["volumeBindingMode"] == "Immediate":
            cluster.api.delete(STORAGE_CLASSES.path(name=entry["metadata"]["name"]))


def put_setting(cluster: DevCluster, name: str, value: str) -> None:
    """Sets one of Longhorn's settings, whether it exists or not."""
    try:
        cluster.api.patch(LONGHORN_SETTINGS.path(NAMESPACE, name), {"value": value})
    except ApiError as error:
        if not error.not_found:
            raise
        body = {"apiVersion": LONGHORN_SETTINGS.api_version, "kind": "Setting", "metadata": {"name": name}}
        cluster.api.create(LONGHORN_SETTINGS.path(NAMESPACE), {**body, "value": value})


def run_doctor(cluster: DevCluster, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    command = [EXTENDER, "doctor", "--kubeconfig", str(cluster.kubeconfig), "-o", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)["findings"]


def print_scheduler_config(cluster: DevCluster, platform: str, *arguments: str) -> str:
    """The file that registers the extender, printed for this cluster."""
    command = [
        EXTENDER,
        "scheduler-config",
        "--platform",
        platform,
        "--kubeconfig",
        str(cluster.kubeconfig),
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
