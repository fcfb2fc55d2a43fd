"""A second implementation of the classic rules: docs/generic-scheduler.md, read row by row, over API objects.

Slow on purpose: each question is answered by looking at every object again. Nothing is shared with the product.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.e2e.objects import Object
from tests.worlds.documented_scheduling import quantity, selects

DEFAULT: Object = {
    "predicates": [
        {"name": name}
        for name in ("PodFitsPorts", "PodFitsResources", "NoDiskConflict", "MatchNodeSelector", "HostName")
    ],
    "priorities": [
        {"name": name, "weight": 1}
        for name in ("LeastRequestedPriority", "BalancedResourceAllocation", "ServiceSpreadingPriority")
    ],
}
_LARGEST = 2**63 - 1
_DEFAULT_REQUESTS = {"cpu": 100, "memory": 200 * 1024 * 1024}


@dataclass(frozen=True)
class _Entry:
    """A predicate or priority of a policy."""

    name: str
    weight: int
    argument: Object


@dataclass(frozen=True)
class DocumentedClassicScheduler:
    """A cluster as API objects; pods and services are in the order in which they were added."""

    nodes: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    services: list[Object] = field(default_factory=list)
    controllers: list[Object] = field(default_factory=list)

    def decide(self, pod: Object, policy: Object, names: Iterable[str]) -> Object:
        """The decision about a pod for the nodes of these names, with everything that leads to it."""
        unavailable: dict[str, str] = {}
        failures: dict[str, list[tuple[str, str]]] = {}
        feasible: list[Object] = []
        errors: list[str] = []
        predicates = _entries(policy, "predicates")
        for name in names:
            node = self._node(name)
            if node is None or _why_unavailable(node):
                unavailable[name] = _why_unavailable(node) if node else "node does not exist"
                continue
            texts = [(entry.name, self._failure(entry, pod, node)) for entry in predicates]
            errors = [text for entry in predicates if (text := self._affinity_error(entry, pod))]
            failed = [(predicate, text) for predicate, text in texts if text]
            if failed:
                failures[name] = failed
            else:
                feasible.append(node)
        if not feasible and not failures:
            errors = ["no nodes available to schedule pods"]
        priorities = _entries(policy, "priorities")
        scores = self._scores(pod, priorities, feasible)
        totals = _totals(priorities, scores, feasible)
        return {
            "unavailable": unavailable,
            "failures": failures,
            "feasible": [_name(node) for node in feasible],
            "scores": scores,
            "totals": totals,
            "best": sorted(name for name in totals if totals[name] == max(totals.values())),
            "error": errors[0] if errors else "",
            "reasons": _count_reasons(unavailable, failures),
        }

    def prioritize(self, pod: Object, policy: Object, names: list[str]) -> dict[str, int]:
        """The scores of the extender's /prioritize: the mean by weight; all nodes of these names count as feasible."""
        priorities = _entries(policy, "priorities")
        nodes = [node for name in names if (node := self._node(name)) is not None]
        totals = _totals(priorities, self._scores(pod, priorities, nodes), nodes)
        weights = sum(entry.weight for entry in priorities) or 1
        return {name: totals.get(name, 0) // weights for name in names}

    def _node(self, name: str) -> Object | None:
        for node in self.nodes:
            if _name(node) == name:
                return node
        return None

    def _pods_on(self, node: Object) -> list[Object]:
        """The pods of all namespaces that occupy something on the node."""
        return [
            pod
            for pod in self.pods
            if pod["spec"].get("nodeName") == _name(node)
            and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        ]

    def _services(self, pod: Object) -> list[Object]:
        return [
            service
            for service in self.services
            if _namespace(service) == _namespace(pod) and _matches(service.get("spec", {}).get("selector"), pod)
        ]

    def _service_pods(self, service: Object) -> list[Object]:
        return [
            pod
            for pod in self.pods
            if pod["spec"].get("nodeName")
            and _namespace(pod) == _namespace(service)
            and _matches(service["spec"]["selector"], pod)
        ]

    def _first_service_pods(self, pod: Object) -> list[Object]:
        services = self._services(pod)
        return self._service_pods(services[0]) if services else []

    # Predicates

    def _failure(self, entry: _Entry, pod: Object, node: Object) -> str:
        """Why a predicate refuses a node, "" if it does not."""
        if "serviceAffinity" in entry.argument:
            return self._service_affinity(entry, pod, node)
        if "labelsPresence" in entry.argument:
            return _labels_presence(entry.argument["labelsPresence"], node)
        rules = {
            "PodFitsPorts": self._ports,
            "PodFitsHostPorts": self._ports,
            "PodFitsResources": self._resources,
            "NoDiskConflict": self._disks,
            "MatchNodeSelector": _node_selector,
            "HostName": _host_name,
        }
        return rules[entry.name](pod, node)

    def _ports(self, pod: Object, node: Object) -> str:
        for other in self._pods_on(node):
            for port in _host_ports(other):
                if port in _host_ports(pod):
                    return "host port is in use"
        return ""

    def _resources(self, pod: Object, node: Object) -> str:
        pods = self._pods_on(node)
        if len(pods) + 1 > _capacity(node, "pods"):
            return "too many pods"
        if _requests(pod, "cpu") == 0 and _requests(pod, "memory") == 0:
            return ""
        exceeded = []
        for resource, word in (("cpu", "CPU"), ("memory", "memory")):
            requested = sum(_requests(other, resource) for other in pods) + _requests(pod, resource)
            if _capacity(node, resource) != 0 and requested > _capacity(node, resource):
                exceeded.append(word)
        return "insufficient " + " and ".join(exceeded) if exceeded else ""

    def _disks(self, pod: Object, node: Object) -> str:
        for other in self._pods_on(node):
            for theirs in other["spec"].get("volumes", []):
                if any(_conflict(mine, theirs) for mine in pod["spec"].get("volumes", [])):
                    return "cloud disk is in use"
        return ""

    def _service_affinity(self, entry: _Entry, pod: Object, node: Object) -> str:
        error = self._affinity_error(entry, pod)
        if error:
            return error
        selector = pod["spec"].get("nodeSelector", {})
        for label in entry.argument["serviceAffinity"].get("labels", []):
            if label in selector:
                wanted = selector[label]
            else:
                pods = self._first_service_pods(pod)
                followed = self._node(pods[0]["spec"]["nodeName"]) if pods else None
                wanted = _labels(followed).get(label) if followed else None
            if wanted is not None and _labels(node).get(label) != wanted:
                return "service affinity does not match"
        return ""

    def _affinity_error(self, entry: _Entry, pod: Object) -> str:
        """Why service affinity cannot be decided for any node."""
        labels = entry.argument.get("serviceAffinity", {}).get("labels", [])
        pods = self._first_service_pods(pod)
        if not pods or all(label in pod["spec"].get("nodeSelector", {}) for label in labels):
            return ""
        name = pods[0]["spec"]["nodeName"]
        node = self._node(name)
        if node is not None and not node.get("spec", {}).get("unschedulable"):
            return ""
        fault = "cordoned" if node else "not known"
        return (
            f"node {name!r} of pod {_namespace(pods[0])}/{_name(pods[0])}, which service affinity follows, is {fault}"
        )

    # Priorities

    def _scores(self, pod: Object, entries: list[_Entry], nodes: list[Object]) -> dict[str, dict[str, int]]:
        return {
            entry.name: {_name(node): self._score(entry, pod, node, nodes) for node in nodes}
            for entry in (entries if nodes else [])
        }

    def _score(self, entry: _Entry, pod: Object, node: Object, feasible: list[Object]) -> int:
        if "serviceAntiAffinity" in entry.argument:
            return self._anti_affinity(entry.argument["serviceAntiAffinity"].get("label", ""), pod, node, feasible)
        if "labelPreference" in entry.argument:
            preference = entry.argument["labelPreference"]
            return 10 if (preference.get("label", "") in _labels(node)) == preference.get("presence", False) else 0
        if entry.name == "EqualPriority":
            return 1
        rules = {
            "LeastRequestedPriority": self._least_requested,
            "BalancedResourceAllocation": self._balanced,
            "ServiceSpreadingPriority": self._service_spreading,
            "SelectorSpreadPriority": self._selector_spread,
        }
        return rules[entry.name](pod, node)

    def _assumed(self, pod: Object, node: Object, resource: str) -> int:
        default = _DEFAULT_REQUESTS[resource]
        return sum(_requests(other, resource, default) for other in (*self._pods_on(node), pod))

    def _least_requested(self, pod: Object, node: Object) -> int:
        scores = []
        for resource in ("cpu", "memory"):
            capacity = _capacity(node, resource)
            requested = self._assumed(pod, node, resource)
            scores.append(0 if capacity == 0 or requested > capacity else (capacity - requested) * 10 // capacity)
        return sum(scores) // 2

    def _balanced(self, pod: Object, node: Object) -> int:
        shares = []
        for resource in ("cpu", "memory"):
            capacity = _capacity(node, resource)
            shares.append(float(self._assumed(pod, node, resource)) / float(capacity) if capacity else 1.0)
        if shares[0] >= 1 or shares[1] >= 1:
            return 0
        return int(10 - abs(shares[0] - shares[1]) * 10)

    def _service_spreading(self, pod: Object, node: Object) -> int:
        selectors = [service["spec"]["selector"] for service in self._services(pod)]
        return self._spread(pod, node, [{"matchLabels": selector} for selector in selectors])

    def _selector_spread(self, pod: Object, node: Object) -> int:
        selectors = [{"matchLabels": service["spec"]["selector"]} for service in self._services(pod)]
        for controller in self.controllers:
            selector = controller.get("spec", {}).get("selector")
            if selector and controller["kind"] == "ReplicationController":
                selector = {"matchLabels": selector}
            empty = not selector or not any(selector.values())
            if not empty and _namespace(controller) == _namespace(pod) and selects(selector, _labels(pod)):
                selectors.append(selector)
        return self._spread(pod, node, selectors)

    def _spread(self, pod: Object, node: Object, selectors: list[Object]) -> int:
        counts: dict[str, int] = {}
        for other in self.pods:
            name = other["spec"].get("nodeName")
            same_namespace = _namespace(other) == _namespace(pod)
            if name and same_namespace and any(selects(selector, _labels(other)) for selector in selectors):
                counts[name] = counts.get(name, 0) + 1
        if not counts:
            return 10
        largest = max(counts.values())
        return 10 * (largest - counts.get(_name(node), 0)) // largest

    def _anti_affinity(self, label: str, pod: Object, node: Object, feasible: list[Object]) -> int:
        if label not in _labels(node):
            return 0
        pods = self._first_service_pods(pod)
        if not pods:
            return 10
        alike = [_name(other) for other in feasible if _labels(other).get(label) == _labels(node)[label]]
        group = [other for other in pods if other["spec"]["nodeName"] in alike]
        return 10 * (len(pods) - len(group)) // len(pods)


def _entries(policy: Object, section: str) -> list[_Entry]:
    """The entries of a section: of two with one name the last wins, and keeps the argument if it has none itself."""
    entries: dict[str, _Entry] = {}
    for raw in policy.get(section) or []:
        name = raw["name"]
        earlier = entries[name].argument if name in entries else {}
        entries[name] = _Entry(name, raw.get("weight", 0), raw.get("argument") or earlier)
    return list(entries.values())


def _totals(entries: list[_Entry], scores: dict[str, dict[str, int]], nodes: list[Object]) -> dict[str, int]:
    names = [_name(node) for node in nodes]
    if not entries:
        return dict.fromkeys(names, 1)
    return {name: sum(entry.weight * scores[entry.name][name] for entry in entries) for name in names}


def _count_reasons(unavailable: dict[str, str], failures: dict[str, list[tuple[str, str]]]) -> list[tuple[str, int]]:
    """How many nodes have each reason, most frequent first; a node with several counts for each of them."""
    counts = Counter(unavailable.values())
    for texts in failures.values():
        counts.update({text for _, text in texts})
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))


def _why_unavailable(node: Object) -> str:
    if node.get("spec", {}).get("unschedulable"):
        return "node is unschedulable"
    for condition in node.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready" and condition["status"] == "True":
            return ""
    return "node is not ready"


def _labels_presence(argument: Any, node: Object) -> str:
    present = [label in _labels(node) for label in argument.get("labels", [])]
    if argument.get("presence", False):
        return "" if all(present) else "a required node label is missing"
    return "an unwanted node label is present" if any(present) else ""


def _node_selector(pod: Object, node: Object) -> str:
    for label, value in pod["spec"].get("nodeSelector", {}).items():
        if label not in _labels(node) or _labels(node)[label] != value:
            return "node selector does not match"
    return ""


def _host_name(pod: Object, node: Object) -> str:
    return "" if pod["spec"].get("nodeName", "") in ("", _name(node)) else "pod names another node"


def _host_ports(pod: Object) -> list[int]:
    ports = []
    for container in pod["spec"].get("containers", []):
        for port in container.get("ports", []):
            # The API server's default: on the host's network, a container port is a port of the host.
            default = port["containerPort"] if pod["spec"].get("hostNetwork") else 0
            ports.append(port.get("hostPort") or default)
    return [port for port in ports if port != 0]


def _conflict(mine: Object, theirs: Object) -> bool:
    if "gcePersistentDisk" in mine and "gcePersistentDisk" in theirs:
        disks = (mine["gcePersistentDisk"], theirs["gcePersistentDisk"])
        read_only = all(disk.get("readOnly") for disk in disks)
        return disks[0]["pdName"] == disks[1]["pdName"] and not read_only
    if "awsElasticBlockStore" in mine and "awsElasticBlockStore" in theirs:
        return bool(mine["awsElasticBlockStore"]["volumeID"] == theirs["awsElasticBlockStore"]["volumeID"])
    return False


def _requests(pod: Object, resource: str, default: int = 0) -> int:
    """The sum over the containers; `default` is for one that has neither a request nor a limit."""
    total = 0
    for container in pod["spec"].get("containers", []):
        resources = container.get("resources", {})
        amounts = {**resources.get("limits", {}), **resources.get("requests", {})}
        total += _amount(amounts[resource], resource) if resource in amounts else default
    return total


def _capacity(node: Object, resource: str) -> int:
    return _amount(node.get("status", {}).get("capacity", {}).get(resource, "0"), resource)


@cache
def _amount(value: str | float, resource: str) -> int:
    """Millicores, bytes or a number of pods, rounded up."""
    return min(math.ceil(quantity(str(value)) * (1000 if resource == "cpu" else 1)), _LARGEST)


def _matches(selector: dict[str, str] | None, pod: Object) -> bool:
    return bool(selector) and selects({"matchLabels": selector}, _labels(pod))


def _labels(entry: Object) -> dict[str, str]:
    return dict(entry["metadata"].get("labels", {}))


def _name(entry: Object) -> str:
    return str(entry["metadata"]["name"])


def _namespace(entry: Object) -> str:
    return str(entry["metadata"].get("namespace", "default"))
