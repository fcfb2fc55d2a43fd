"""What a pod asks of nodes: wire types, and their conversion to `model/constraints.py`.

A selector that Kubernetes would not accept selects nothing, and a term of a node affinity that it would not accept matches no node, as
in kube-scheduler (nodeaffinity.LazyErrorNodeSelector). Requests and host ports are summed as kube-scheduler does
(k8s.io/component-helpers/resource, PodRequests; pkg/scheduler/util, GetHostPorts; Kubernetes 1.36). Two of the API server's defaults are
applied here as well, so that objects from files mean the same: a request that is not set equals the limit, and with hostNetwork a port
without hostPort is the host's port of the same number.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from scheduler_core.convert.wire_types import Wire
from scheduler_core.errors import ObjectError, QuantityError
from scheduler_core.model import constraints, quantity

DO_NOT_SCHEDULE = "DoNotSchedule"
_OPERATORS = {operator.value: operator for operator in constraints.Operator}
_LABEL_SELECTOR_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
_WITH_VALUES = frozenset({constraints.Operator.IN, constraints.Operator.NOT_IN})
_WITHOUT_VALUES = frozenset({constraints.Operator.EXISTS, constraints.Operator.DOES_NOT_EXIST})
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)


class WireRequirement(Wire):
    """An expression of a label selector or of a node selector term."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class WireLabelSelector(Wire):
    """meta/v1 LabelSelector."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[WireRequirement] | None = None


class _NodeTerm(Wire):
    match_expressions: list[WireRequirement] | None = None
    match_fields: list[WireRequirement] | None = None


class WireNodeSelector(Wire):
    """A node selector: of its terms one must match."""

    node_selector_terms: list[_NodeTerm] | None = None


class WirePodTerm(Wire):
    """A required term of a pod's affinity or anti-affinity."""

    label_selector: WireLabelSelector | None = None
    namespaces: list[str] | None = None
    topology_key: str = ""
    namespace_selector: WireLabelSelector | None = None


class WireSpreadConstraint(Wire):
    """spec.topologySpreadConstraints[] of a pod."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = DO_NOT_SCHEDULE
    label_selector: WireLabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


def label_selector(wire: WireLabelSelector | None) -> constraints.LabelSelector | None:
    """A label selector (LabelSelectorAsSelector); None if it selects nothing."""
    if wire is None:
        return None
    expressions = wire.match_expressions or ()
    requirements = tuple(_requirement(entry) for entry in expressions if entry.operator in _LABEL_SELECTOR_OPERATORS)
    valid = tuple(requirement for requirement in requirements if requirement is not None)
    if len(valid) != len(expressions):
        return None
    return constraints.LabelSelector(frozenset((wire.match_labels or {}).items()), valid)


def _requirement(wire: WireRequirement) -> constraints.Requirement | None:
    """An expression (labels.NewRequirement); None if Kubernetes would not accept it."""
    operator = _OPERATORS.get(wire.operator)
    values = wire.values or []
    if operator is None or not all(_LABEL_VALUE.fullmatch(value) for value in values):
        return None
    if operator in _WITH_VALUES:
        valid = bool(values)
    elif operator in _WITHOUT_VALUES:
        valid = not values
    else:
        valid = len(values) == 1 and constraints.parse_int64(values[0]) is not None
    return constraints.Requirement(wire.key, operator, frozenset(values)) if valid else None


def node_selector_terms(selector: WireNodeSelector | None) -> tuple[constraints.NodeSelectorTerm, ...] | None:
    """The terms of a node selector that can match a node; None without a selector."""
    if selector is None:
        return None
    terms = (_node_term(term) for term in selector.node_selector_terms or ())
    return tuple(term for term in terms if term is not None)


def _node_term(wire: _NodeTerm) -> constraints.NodeSelectorTerm | None:
    """A term of a node affinity; None if it matches no node."""
    expressions = wire.match_expressions or ()
    fields = wire.match_fields or ()
    if not expressions and not fields:
        return None
    labels = [requirement for entry in expressions if (requirement := _requirement(entry)) is not None]
    names = [requirement for entry in fields if (requirement := _field_requirement(entry)) is not None]
    if len(labels) != len(expressions) or len(names) != len(fields):
        return None
    return constraints.NodeSelectorTerm(tuple(labels), tuple(names))


def _field_requirement(wire: WireRequirement) -> constraints.Requirement | None:
    """An expression about a node's field (nodeSelectorRequirementsAsFieldSelector)."""
    operator = _OPERATORS.get(wire.operator)
    if operator not in _WITH_VALUES or len(wire.values or ()) != 1:
        return None
    return constraints.Requirement(wire.key, operator, frozenset(wire.values or ()))


def pod_affinity_terms(
    namespace: str | None, terms: list[WirePodTerm] | None
) -> tuple[constraints.PodAffinityTerm, ...]:
    """The required terms of an affinity or anti-affinity; one that names no namespaces is about the pod's own."""
    if not terms:
        return ()
    own = namespace or "default"
    return tuple(
        constraints.PodAffinityTerm(
            term.topology_key,
            frozenset(term.namespaces or (() if term.namespace_selector is not None else (own,))),
            label_selector(term.namespace_selector),
            label_selector(term.label_selector),
        )
        for term in terms
    )


def spread_constraint(wire: WireSpreadConstraint, labels: constraints.Labels) -> constraints.SpreadConstraint:
    """A topology spread constraint of a pod with these labels."""
    selector = label_selector(wire.label_selector)
    keys = frozenset(wire.match_label_keys or ())
    if selector is not None and keys:
        own = frozenset((key, value) for key, value in labels if key in keys)
        selector = constraints.LabelSelector(selector.labels | own, selector.requirements)
    return constraints.SpreadConstraint(
        wire.topology_key,
        wire.max_skew,
        selector,
        1 if wire.min_domains is None else wire.min_domains,
        honor_affinity=wire.node_affinity_policy != "Ignore",
        honor_taints=wire.node_taints_policy == "Honor",
    )


CPU = "cpu"
MEMORY = "memory"
MILLI = 1000
_CLASSIC = frozenset({CPU, MEMORY})

WireAmounts = dict[str, quantity.Amount]


class WirePort(Wire):
    """spec.containers[].ports[] of a pod."""

    container_port: int = 0
    host_port: int | None = None
    protocol: str | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")


class WireResources(Wire):
    """Requests and limits of a container or of a pod."""

    requests: WireAmounts | None = None
    limits: WireAmounts | None = None


class WireContainer(Wire):
    """A container or init container."""

    resources: WireResources | None = None
    ports: list[WirePort] | None = None
    restart_policy: str | None = None

    @property
    def is_sidecar(self) -> bool:
        """Whether it is an init container that goes on running."""
        return self.restart_policy == "Always"


Containers = list[WireContainer] | None


def container_amounts(containers: Containers, name: str) -> list[int | None]:
    """What each container requests of CPU (millicores) or memory (bytes); None without request and limit."""
    return [_container_amount(entry.resources, name, index) for index, entry in enumerate(containers or ())]


def _container_amount(resources: WireResources | None, name: str, index: int) -> int | None:
    if resources is None:
        return None
    for part, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        if amounts and name in amounts:
            field = f"spec.containers[{index}].resources.{part}[{name}]"
            return resource_amount(name, amounts[name], field)
    return None


def pod_requests(
    containers: Containers, init_containers: Containers, overhead: WireAmounts | None, resources: WireResources | None
) -> constraints.Amounts:
    """What a pod requests of each resource (PodRequests)."""
    total: dict[str, int] = {}
    for index, container in enumerate(containers or ()):
        _add(total, _container_milli(container, f"spec.containers[{index}]"))
    sidecars: dict[str, int] = {}
    startup: dict[str, int] = {}
    for index, container in enumerate(init_containers or ()):
        needed = _container_milli(container, f"spec.initContainers[{index}]")
        if container.is_sidecar:
            _add(total, needed)
            _add(sidecars, needed)
            needed = sidecars
        else:
            _add(needed, sidecars)
        _raise(startup, needed)
    _raise(total, startup)
    if resources is not None:
        requests = _milli(resources.requests, "spec.resources.requests")
        # These a pod may request as a whole (IsSupportedPodLevelResource).
        total |= {name: value for name, value in requests.items() if name in _CLASSIC or name.startswith("hugepages-")}
    _add(total, _milli(overhead, "spec.overhead"))
    total.pop(constraints.EXTENDER_RESOURCE, None)
    return frozenset((name, value if name == CPU else -(-value // MILLI)) for name, value in total.items())


def uncounted_request_fields(
    containers: Containers, init_containers: Containers, overhead: WireAmounts | None, resources: WireResources | None
) -> tuple[str, ...]:
    """The fields with requests that the classic `PodFitsResources` does not count."""
    fields = [
        f"spec.containers[{index}].resources.{part}[{name}]"
        for index, container in enumerate(containers or ())
        for part, name in _request_names(container.resources)
        if name not in _CLASSIC
    ]
    fields += [
        f"spec.initContainers[{index}].resources.{part}[{name}]"
        for index, container in enumerate(init_containers or ())
        for part, name in _request_names(container.resources)
    ]
    fields += [f"spec.overhead[{name}]" for name in _nonzero(overhead)]
    if resources is not None:
        fields += [f"spec.resources.requests[{name}]" for name in _nonzero(resources.requests)]
    return tuple(fields)


def _request_names(resources: WireResources | None) -> Iterable[tuple[str, str]]:
    if resources is None:
        return ()
    requests = resources.requests or {}
    names = [("requests", name) for name in _nonzero(requests)]
    return [*names, *(("limits", name) for name in _nonzero(resources.limits) if name not in requests)]


def _nonzero(amounts: WireAmounts | None) -> list[str]:
    return [
        name
        for name, value in (amounts or {}).items()
        if str(value) not in ("", "0") and name != constraints.EXTENDER_RESOURCE
    ]


def _container_milli(container: WireContainer, path: str) -> dict[str, int]:
    resources = container.resources
    if resources is None:
        return {}
    limits = {} if not resources.limits else _milli(resources.limits, f"{path}.resources.limits")
    return limits | _milli(resources.requests, f"{path}.resources.requests")


def _milli(amounts: WireAmounts | None, path: str) -> dict[str, int]:
    if not amounts:
        return {}
    # In thousandths sums are exact: the API server keeps no smaller parts.
    return {name: amount(value, f"{path}[{name}]", MILLI) for name, value in amounts.items()}


def _add(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, value in amounts.items():
        total[name] = total.get(name, 0) + value


def _raise(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    """Raises each amount to at least the other one."""
    for name, value in amounts.items():
        total[name] = max(total.get(name, 0), value)


def host_ports(
    containers: Containers,
    init_containers: Containers,
    host_network: bool | None,  # noqa: FBT001 # a value of an object
) -> frozenset[constraints.HostPort]:
    """The host ports of a pod's containers and sidecars (GetHostPorts)."""
    running = [*(containers or ()), *(entry for entry in init_containers or () if entry.is_sidecar)]
    ports = [port for entry in running for port in entry.ports or ()]
    numbered = [(_host_port(port, host_network=bool(host_network)), port) for port in ports]
    return frozenset(
        constraints.HostPort(number, port.protocol or "TCP", port.host_ip or constraints.ALL_ADDRESSES)
        for number, port in numbered
        if number
    )


def classic_host_ports(containers: Containers, host_network: bool | None) -> frozenset[int]:  # noqa: FBT001 # a value of an object
    """The numbers of the containers' host ports, as in Kubernetes 1.1."""
    ports = [port for entry in containers or () for port in entry.ports or ()]
    return frozenset(_host_port(port, host_network=bool(host_network)) for port in ports) - {0}


def _host_port(port: WirePort, *, host_network: bool) -> int:
    """The number of a port on the host; 0 if it is not open there."""
    return port.host_port or (port.container_port if host_network else 0)


def amount(value: quantity.Amount | None, field: str, scale: int = 1) -> int:
    """A quantity times `scale`, rounded up, and at most 2^63-1. The limit is more than any node has."""
    if value is None or value == "":
        return 0
    try:
        parsed = quantity.parse_clamped(str(value), scale)
    except QuantityError as error:
        raise ObjectError("", field, str(error)) from error
    if parsed < 0:
        raise ObjectError("", field, f"{value!r} is negative")
    return parsed


def resource_amount(name: str, value: quantity.Amount | None, field: str) -> int:
    """An amount of a resource: CPU in millicores, all others in whole units."""
    return amount(value, field, MILLI if name == CPU else 1)
