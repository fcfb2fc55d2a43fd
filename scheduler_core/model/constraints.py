"""What the classic rules and kube-scheduler's own filters read of a pod: labels, requests, ports, disks; and the constraints that
Kubernetes knows since 1.1: taints, affinity, spreading, and requests of every resource.

Amounts of CPU are in millicores, all others in whole units (bytes, devices). All values are hashable, so that equal constraints of
many pods can be one object.
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated

from scheduler_core.structs import Struct

Labels = frozenset[tuple[str, str]]
Amounts = frozenset[tuple[str, int]]
"""An amount per resource name."""

# Pods request it only so that kube-scheduler calls the extender; no node has it (ignoredByScheduler).
EXTENDER_RESOURCE = "longhorn.io/scheduler-extender"
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 # the host IP of a port that is open on every address
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_MAX_INTEGER = 2**63
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Operator(Enum):
    """Operators of label and node selectors."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER = "Gt"
    LESS = "Lt"


class Requirement(Struct, frozen=True):
    """One expression of a selector (labels.Requirement); `GREATER` and `LESS` have one value, a whole number."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels fulfil it (Requirement.Matches)."""
        value = labels.get(self.key)
        if self.operator is Operator.IN:
            return value in self.values
        if self.operator is Operator.NOT_IN:
            return value not in self.values
        if self.operator is Operator.EXISTS:
            return value is not None
        if self.operator is Operator.DOES_NOT_EXIST:
            return value is None
        number = None if value is None else parse_int64(value)
        (limit,) = (parse_int64(text) for text in self.values)
        if number is None or limit is None:
            return False
        return number > limit if self.operator is Operator.GREATER else number < limit


def parse_int64(text: str) -> int | None:
    """A whole number of 64 bits (strconv.ParseInt); None if it is none."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text) if len(text) <= len(str(_MAX_INTEGER)) + 1 else int(text[:1] + text[1:].lstrip("0") or "0")
    return number if -_MAX_INTEGER <= number < _MAX_INTEGER else None


class LabelSelector(Struct, frozen=True):
    """A label selector; without parts it matches everything. None is an absent one, which matches nothing."""

    labels: Labels = frozenset()
    requirements: tuple[Requirement, ...] = ()

    @property
    def matches_everything(self) -> bool:
        return not self.labels and not self.requirements

    def matches(self, labels: Labels) -> bool:
        """Whether it selects an object with these labels."""
        if not self.labels <= labels:
            return False
        if not self.requirements:
            return True
        values = dict(labels)
        return all(requirement.matches(values) for requirement in self.requirements)


class Taint(Struct, frozen=True):
    """A taint of a node."""

    key: Annotated[str, "key"]
    value: Annotated[str, "value"] = ""
    effect: Annotated[str, "effect", str] = ""


class Toleration(Struct, frozen=True):
    """A toleration of a pod; an empty effect stands for all effects."""

    key: Annotated[str, "key"] = ""
    operator: Annotated[str, "operator"] = ""
    value: Annotated[str, "value"] = ""
    effect: Annotated[str, "effect"] = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether it tolerates a taint (Toleration.ToleratesTaint)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator in ("", "Equal"):
            return self.value == taint.value
        # Numeric comparison (operators Lt and Gt) is off by default in Kubernetes 1.36, and tolerates nothing.
        return self.operator == "Exists"


class NodeSelectorTerm(Struct, frozen=True):
    """A term of a node affinity: labels and fields of the node. One without requirements is never made."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node of this name and with these labels fulfils it."""
        return all(requirement.matches(labels) for requirement in self.labels) and all(
            ((name if requirement.key == "metadata.name" else "") in requirement.values)
            == (requirement.operator is Operator.IN)
            for requirement in self.fields
        )


class PodAffinityTerm(Struct, frozen=True):
    """A required term of a pod's affinity or anti-affinity."""

    topology_key: str
    namespaces: frozenset[str] = frozenset()  # the namespaces of the pods that count
    namespace_selector: LabelSelector | None = None  # selects more namespaces by their labels; None selects none
    selector: LabelSelector | None = None  # the pods that count; None selects none

    def matches(self, namespace: str, namespace_labels: Labels, labels: Labels) -> bool:
        """Whether a pod with these labels, in this namespace, counts (AffinityTerm.Matches)."""
        selector = self.namespace_selector
        if namespace not in self.namespaces and (selector is None or not selector.matches(namespace_labels)):
            return False
        return self.selector is not None and self.selector.matches(labels)


class SpreadConstraint(Struct, frozen=True):
    """A topology spread constraint with whenUnsatisfiable DoNotSchedule."""

    topology_key: str
    max_skew: int
    selector: LabelSelector | None = None  # the pods that are spread, `matchLabelKeys` included; None selects none
    min_domains: int = 1
    honor_affinity: bool = True  # whether only nodes that match the pod's node selector and node affinity count
    honor_taints: bool = False  # whether only nodes count whose taints the pod tolerates

    def selects(self, labels: Labels) -> bool:
        return self.selector is not None and self.selector.matches(labels)


class HostPort(Struct, frozen=True):
    """A port of the host, with the address that it is open on."""

    port: int
    protocol: str = "TCP"
    address: str = ALL_ADDRESSES

    def conflicts(self, other: "HostPort") -> bool:
        """Whether both cannot be open on one host (HostPortInfo.CheckConflict)."""
        return (
            (self.port, self.protocol) == (other.port, other.protocol)
            and ALL_ADDRESSES in (self.address, other.address)
        ) or self == other


class PodConstraints(Struct, frozen=True):
    """Constraints of a pod that no rule of Kubernetes 1.1 reads."""

    tolerations: Annotated[tuple[Toleration, ...], "spec.tolerations"] = ()
    # The required terms, of which one must match; None without required node affinity.
    node_affinity: Annotated[tuple[NodeSelectorTerm, ...] | None, f"spec.affinity.nodeAffinity.{_REQUIRED}"] = None
    pod_affinity: Annotated[
        tuple[PodAffinityTerm, ...], "metadata.namespace", f"spec.affinity.podAffinity.{_REQUIRED}"
    ] = ()
    pod_anti_affinity: Annotated[
        tuple[PodAffinityTerm, ...], "metadata.namespace", f"spec.affinity.podAntiAffinity.{_REQUIRED}"
    ] = ()
    spread: Annotated[tuple[SpreadConstraint, ...], "metadata.labels", "spec.topologySpreadConstraints"] = ()
    # What the pod requests of each resource as kube-scheduler counts today: with init containers, overhead and requests
    # of the whole pod.
    requests: Annotated[Amounts, "spec.containers", "spec.initContainers", "spec.overhead", "spec.resources"] = (
        frozenset()
    )
    host_ports: Annotated[frozenset[HostPort], "spec.containers", "spec.initContainers", "spec.hostNetwork"] = (
        frozenset()
    )
    # The fields with requests that `PodFitsResources` does not count.
    request_fields: Annotated[
        tuple[str, ...], "spec.containers", "spec.initContainers", "spec.overhead", "spec.resources"
    ] = ()
    # The fields that name devices by resource claims.
    claim_fields: Annotated[tuple[str, ...], "spec.resourceClaims"] = ()


NO_CONSTRAINTS = PodConstraints()


class Cloud(Enum):
    """The kinds of cloud disks that the classic scheduler distinguishes."""

    GCE = "gcePersistentDisk"
    EBS = "awsElasticBlockStore"


class CloudDisk(Struct, frozen=True):
    """A cloud disk that a pod mounts, without its partition."""

    cloud: Cloud
    name: str
    read_only: bool = False


def read_labels(labels: dict[str, str] | None) -> Labels:
    return frozenset((labels or {}).items())


class PodScheduling(Struct, frozen=True):
    """What the classic rules and kube-scheduler's own filters read of a pod besides its identity and its node."""

    labels: Annotated[Labels, "metadata.labels", read_labels] = frozenset()
    node_selector: Annotated[Labels, "spec.nodeSelector", read_labels] = frozenset()
    cpu: Annotated[int, "spec.containers"] = 0  # the requests of its containers; an unset one counts as 0
    memory: Annotated[int, "spec.containers"] = 0  # the same
    # `nonzero_cpu` and `nonzero_memory`: the same, but an unset one counts as 100m and 200Mi per container, as in the
    # priorities.
    nonzero_cpu: Annotated[int, "spec.containers"] = 0
    nonzero_memory: Annotated[int, "spec.containers"] = 0
    ports: Annotated[frozenset[int], "spec.containers", "spec.hostNetwork"] = frozenset()
    disks: Annotated[tuple[CloudDisk, ...], "spec.volumes"] = ()
    # What only rules that are newer than Kubernetes 1.1 read.
    constraints: Annotated[PodConstraints, ""] = NO_CONSTRAINTS
    # Whether its PodDisruptionBudget counts it, as it does a running pod of a file that names no conditions.
    ready: Annotated[bool, "status.phase", "status.conditions"] = True


NO_SCHEDULING = PodScheduling()
