"""kubectl commands that change one object, with the JSON of their patches."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

LONGHORN_NODES: Final = "nodes.longhorn.io"


@dataclass(frozen=True, slots=True)
class KubectlCommand:
    """A kubectl command about one object.

    Attributes:
        verb: patch, uncordon or delete
        resource: the plural name, with its group if it has one
        name: of the object
        patch: the JSON merge patch of the verb `patch`; None for the other verbs
    """

    verb: str
    resource: str
    name: str
    patch: dict[str, Any] | None = None

    def text(self, longhorn_namespace: str) -> str:
        """Returns the command as a line for a shell."""
        words = ["kubectl"]
        if self.resource.endswith(".longhorn.io"):
            words += ["--namespace", longhorn_namespace]
        words += [self.verb] if self.verb == "uncordon" else [self.verb, self.resource]
        words.append(self.name)
        if self.patch is not None:
            words += ["--type", "merge", "--patch", json.dumps(self.patch)]
        return shlex.join(words)


def uncordon(name: str) -> KubectlCommand:
    """Returns the command that uncordons a Kubernetes node."""
    return KubectlCommand("uncordon", "nodes", name)


def allow_scheduling_on_node(name: str, *, cancel_eviction: bool) -> KubectlCommand:
    """Returns the command that lets Longhorn place replicas on a node."""
    return _patch_node(name, _scheduling_fields(cancel_eviction=cancel_eviction))


def allow_scheduling_on_disk(node: str, disk: str, *, cancel_eviction: bool) -> KubectlCommand:
    """Returns the command that lets Longhorn place replicas on a disk."""
    return _patch_disk(node, disk, _scheduling_fields(cancel_eviction=cancel_eviction))


def _scheduling_fields(*, cancel_eviction: bool) -> dict[str, Any]:
    # Longhorn's admission webhook refuses objects that are evicted and allow scheduling.
    eviction = {"evictionRequested": False} if cancel_eviction else {}
    return {"allowScheduling": True, **eviction}


def set_node_tags(name: str, tags: Sequence[str]) -> KubectlCommand:
    """Returns the command that gives a Longhorn node these tags."""
    return _patch_node(name, {"tags": list(tags)})


def set_disk_tags(node: str, disk: str, tags: Sequence[str]) -> KubectlCommand:
    """Returns the command that gives a Longhorn disk these tags."""
    return _patch_disk(node, disk, {"tags": list(tags)})


def set_storage_reserved(node: str, disk: str, size: int) -> KubectlCommand:
    """Returns the command that reserves `size` bytes of a Longhorn disk."""
    return _patch_disk(node, disk, {"storageReserved": size})


def _patch_disk(node: str, disk: str, fields: dict[str, Any]) -> KubectlCommand:
    return _patch_node(node, {"disks": {disk: fields}})


def _patch_node(name: str, spec: dict[str, Any]) -> KubectlCommand:
    return KubectlCommand("patch", LONGHORN_NODES, name, {"spec": spec})
