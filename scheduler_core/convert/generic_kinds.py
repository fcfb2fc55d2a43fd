"""Registry of the kinds that the generic scheduler reads, and how each is read, from a file or from the API server.
`binding` reads more of pods: what a queue of pending pods needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec

from scheduler_core.convert.generic import (
    GenericNamespace,
    GenericNode,
    GenericPod,
    GenericReplicationController,
    GenericService,
    GenericWorkload,
    generic_namespace,
    generic_node,
    generic_pod,
    generic_service,
    replication_controller,
    workload,
)
from scheduler_core.convert.meta import Wire, decode_json, decode_object
from scheduler_core.model.generic import Controller, Namespace, Node, Pod, Service

_Model = TypeVar("_Model")


@dataclass(frozen=True, slots=True)
class GenericKind(Generic[_Model]):
    """A kind that the generic scheduler reads, and how it is read.

    Attributes:
        group: API group, "" for core/v1
        wire: wire type that objects are decoded to
        convert: turns the wire type into the model
    """

    kind: str
    group: str
    wire: type[Wire]
    convert: Callable[[Any], _Model]

    def read(self, raw: object) -> _Model:
        """The model of one decoded object.

        Raises:
            ObjectError: a field is missing or wrong
        """
        return self.convert(decode_object(self.kind, raw, self.wire))

    def decode(self, raw: bytes | msgspec.Raw) -> _Model:
        """The model of one object as the API server sends it.

        Raises:
            ObjectError: as `read`
        """
        return self.convert(decode_json(self.kind, raw, self.wire))


def _workload_kind(kind: str) -> GenericKind[Controller]:
    return GenericKind(kind, "apps", GenericWorkload, partial(workload, kind))


NODE: Final[GenericKind[Node]] = GenericKind("Node", "", GenericNode, generic_node)
POD: Final[GenericKind[Pod]] = GenericKind("Pod", "", GenericPod, generic_pod)
SERVICE: Final[GenericKind[Service]] = GenericKind("Service", "", GenericService, generic_service)
NAMESPACE: Final[GenericKind[Namespace]] = GenericKind("Namespace", "", GenericNamespace, generic_namespace)
REPLICATION_CONTROLLER: Final[GenericKind[Controller]] = GenericKind(
    "ReplicationController", "", GenericReplicationController, replication_controller
)
REPLICA_SET: Final = _workload_kind("ReplicaSet")
STATEFUL_SET: Final = _workload_kind("StatefulSet")
CONTROLLERS: Final[Mapping[tuple[str, str], GenericKind[Controller]]] = {
    (entry.kind, entry.group): entry for entry in (REPLICATION_CONTROLLER, REPLICA_SET, STATEFUL_SET)
}
"""The kinds of controllers, by kind and API group."""
