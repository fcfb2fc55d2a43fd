"""Clusters of any size with everything that a page shows. They have zones, unlike and broken disks, long names, and waiting pods."""

from collections.abc import Iterator

from tests.builders import Object, claim, condition, disk, flat, kube_node, longhorn_node, pod, setting
from tests.worlds.predicted_clusters import growing_class, replica_name, running

ZONES = ("zone-a", "zone-b", "zone-c")
# Keys of `spec.disks` and node tags may be any text.
HOSTILE_DISK = "<img src=x onerror=alert(1)>"
HOSTILE_TAG = '"><script>alert(1)</script>'


def node_name(index: int) -> str:
    return f"ip-10-0-{index // 250}-{index % 250}.eu-central-1.compute.internal"


MIN_WAITING = 3


def mixed_cluster(nodes: int, waiting: int | None = None) -> list[Object]:
    """Nodes with one running pod each, two replicas apart, and waiting pods; by default one for every sixteen nodes."""
    number = max(MIN_WAITING, nodes // 16) if waiting is None else waiting
    return flat(
        growing_class(),
        setting("storage-over-provisioning-percentage", "150"),
        *(_node(index, nodes) for index in range(nodes)),
        *(_running_pod(index, nodes) for index in range(nodes)),
        *(_waiting_pod(index) for index in range(number)),
    )


def _pod_name(index: int) -> str:
    return f"orders-{index}"


def _node(index: int, nodes: int) -> Iterator[Object]:
    """Of ten nodes four have one problem each. One is cordoned, one is not ready, one has a full disk, and one has a disk that is closed."""
    name = node_name(index)
    zone = ZONES[index % len(ZONES)]
    kind = index % 10
    raw = kube_node(name)
    raw["metadata"]["labels"] = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
    raw["spec"] = {"unschedulable": True} if kind == 7 else {}
    raw["status"] = {"conditions": [condition("Ready", kind != 8)]}
    yield raw
    # The pod's own replica, and the second one of the pod before it.
    listed = {replica_name(_pod_name(index), name): 30.0, replica_name(_pod_name((index - 1) % nodes), name): 30.0}
    disks = {
        "disk-1": disk(100 + index % 7 * 20, available=20 + index % 7 * 20, reserved=10, listed=listed, tags=["ssd"]),
        HOSTILE_DISK if index == 0 else "disk-2": disk(
            400, available=5 if kind == 9 else 390, scheduled=40 * kind, allow=kind != 6, pressure=kind == 9
        ),
    }
    tags = ["storage", HOSTILE_TAG] if index == 0 else ["storage"]
    yield longhorn_node(name, disks, zone=zone, ready=kind != 8, schedulable=kind != 7, tags=tags)


def _running_pod(index: int, nodes: int) -> list[Object]:
    name = node_name(index)
    return running(_pod_name(index), name, replicas=[name, node_name((index + 1) % nodes)])


def _waiting_pod(index: int) -> list[Object]:
    """Of three pods one fits nowhere, and one on some nodes. The third mounts a claim that does not exist."""
    name = f"warehouse-{index}"
    if index % 3 == 2:
        return [pod(f"missing-{name}", name=name, uid=f"uid-{name}")]
    size = 4000 if index % 3 == 0 else 100
    claims = [f"data-of-a-claim-with-a-very-long-name-{name}", f"wal-{name}"]
    return [pod(*claims, name=name, uid=f"uid-{name}"), *(claim(entry, size) for entry in claims)]
