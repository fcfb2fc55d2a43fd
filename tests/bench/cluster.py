"""Clusters and requests of any size, as kubectl and kube-scheduler print them."""

import json
import random
from pathlib import Path
from typing import Any

from tests import builders as make

GI = make.GI
RECORDED = Path(__file__).parents[1] / "golden" / "recorded"


def name_of(index: int) -> str:
    return f"node-{index:05d}"


def snapshot(nodes: int, *, half: bool) -> dict[str, Any]:
    """A cluster of nodes with two disks each, no two nodes alike. With `half` every other node is too full for the pod."""
    items = [make.storage_class()]
    for index in range(nodes):
        full = half and index % 2 == 1
        free = (10 * GI, 20 * GI) if full else (150 * GI, 90 * GI)
        items.append(_node(name_of(index), [size + index * 2**20 for size in free]))
    return {"apiVersion": "v1", "kind": "List", "items": items}


def tight_snapshot(nodes: int, sizes: list[int], disks: int = 8) -> dict[str, Any]:
    """A cluster of nodes on which volumes barely fit, or just do not. No two nodes are alike."""
    chance = random.Random(24)  # noqa: S311 # repeatable, not secret
    cluster = snapshot(0, half=False)
    share = sum(sizes) // disks // GI
    cluster["items"] += [
        _node(name_of(index), [(share + chance.randrange(-3, 6)) * GI for _ in range(disks)]) for index in range(nodes)
    ]
    return cluster


def _node(name: str, free: list[int]) -> dict[str, Any]:
    """A node with disks of 400 Gi, of which so many bytes are free."""
    disks = {
        f"disk-{index}": make.disk(400, scheduled=400 - size / GI, available=380) for index, size in enumerate(free)
    }
    return make.longhorn_node(name, disks)


def pod(name: str, sizes: list[int]) -> dict[str, Any]:
    """A pod with a generic ephemeral volume of each size in bytes. Its claims need not exist."""
    raw: dict[str, Any] = json.loads((RECORDED / "filter-node-names.json").read_bytes())["Pod"]
    raw["metadata"]["name"] = name
    raw["spec"]["volumes"] = [
        {"name": f"data-{index}", "ephemeral": {"volumeClaimTemplate": {"spec": make.ephemeral_spec(size / GI)}}}
        for index, size in enumerate(sizes)
    ]
    return raw


def names_body(requested: dict[str, Any], nodes: int) -> bytes:
    return _dump({"Pod": requested, "Nodes": None, "NodeNames": [name_of(index) for index in range(nodes)]})


def nodes_body(requested: dict[str, Any], nodes: int, node_bytes: int = 10_000) -> bytes:
    """A request with full nodes of about `node_bytes`, padded with images."""
    node = json.loads((RECORDED / "filter-nodes.json").read_bytes())["Nodes"]["items"][0]
    padding = node_bytes - len(_dump(node))
    image = {"names": ["registry.example/app@sha256:" + "a" * 64, "registry.example/app:v1"], "sizeBytes": 123456789}
    node["status"]["images"] = [image] * (padding // (len(_dump(image)) + 1))
    text = json.dumps(node, separators=(",", ":"))
    recorded_name = json.dumps(node["metadata"]["name"])
    items = ",".join(text.replace(recorded_name, json.dumps(name_of(index))) for index in range(nodes))
    head = _dump(requested).decode()
    return f'{{"Pod":{head},"Nodes":{{"metadata":{{}},"items":[{items}]}},"NodeNames":null}}'.encode()


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
