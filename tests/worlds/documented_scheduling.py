"""A second implementation of today's predicates: the Kubernetes documents, read sentence by sentence, over API objects. Slow on purpose:
each question is answered by looking at every object again.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from tests.e2e.objects import Object

_UNITS: dict[str, int | Fraction] = {
    "": 1,
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": 1000,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_Labels = dict[str, str]


@dataclass(frozen=True)
class DocumentedScheduler:
    """A cluster as API objects; `namespaces` are labels by name."""

    nodes: list[Object]
    placed: list[Object]
    namespaces: dict[str, _Labels]

    def fitting_nodes(self, pod: Object) -> set[str]:
        """The names of the nodes on which the pod may run."""
        tests = (
            self._is_schedulable, self._tolerates_taints, self._matches_node, self._has_free_ports, self._has_resources,
            self._keeps_spread, self._joins_pods, self._avoids_pods, self._is_not_avoided,
        )  # fmt: skip
        return {node["metadata"]["name"] for node in self.nodes if all(test(pod, node) for test in tests)}

    def _pods(self, node: Object) -> list[Object]:
        """The pods that run on a node: those with its name that have not finished."""
        return [
            pod
            for pod in self.placed
            if pod["spec"]["nodeName"] == node["metadata"]["name"]
            and pod["status"]["phase"] not in ("Succeeded", "Failed")
        ]

    def _is_schedulable(self, pod: Object, node: Object) -> bool:
        cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        return not node["spec"].get("unschedulable") or _tolerates(pod, cordon)

    def _tolerates_taints(self, pod: Object, node: Object) -> bool:
        taints = [taint for taint in node["spec"].get("taints", []) if taint["effect"] != "PreferNoSchedule"]
        return all(_tolerates(pod, taint) for taint in taints)

    def _matches_node(self, pod: Object, node: Object) -> bool:
        labels = node["metadata"]["labels"]
        selector = pod["spec"].get("nodeSelector", {})
        if any(labels.get(key) != value for key, value in selector.items()):
            return False
        required = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(_REQUIRED)
        if required is None:
            return True
        fields = {"metadata.name": node["metadata"]["name"]}
        return any(
            bool(term.get("matchExpressions") or term.get("matchFields"))
            and all(_meets(entry, labels) for entry in term.get("matchExpressions", []))
            and all(_meets(entry, fields) for entry in term.get("matchFields", []))
            for term in required["nodeSelectorTerms"]
        )

    def _has_free_ports(self, pod: Object, node: Object) -> bool:
        used = [port for other in self._pods(node) for port in _ports(other)]
        return not any(
            mine[:2] == other[:2] and (mine[2] == other[2] or "0.0.0.0" in (mine[2], other[2]))  # noqa: S104
            for mine in _ports(pod)
            for other in used
        )

    def _has_resources(self, pod: Object, node: Object) -> bool:
        allocatable = {name: quantity(value) for name, value in node["status"]["allocatable"].items()}
        pods = self._pods(node)
        if len(pods) + 1 > allocatable["pods"]:
            return False
        capacity = {name: amount * 1000 if name == "cpu" else amount for name, amount in allocatable.items()}
        return all(
            not amount or sum(_requests(other).get(name, 0) for other in pods) + amount <= capacity.get(name, 0)
            for name, amount in _requests(pod).items()
        )

    def _keeps_spread(self, pod: Object, node: Object) -> bool:
        constraints = [
            entry
            for entry in pod["spec"].get("topologySpreadConstraints", [])
            if entry["whenUnsatisfiable"] == "DoNotSchedule"
        ]
        keys = {entry["topologyKey"] for entry in constraints}
        eligible = [other for other in self.nodes if keys <= other["metadata"]["labels"].keys()]
        for entry in constraints:
            key = entry["topologyKey"]
            if key not in node["metadata"]["labels"]:
                return False
            domains: dict[str, int] = {}
            for other in eligible:
                if entry.get("nodeAffinityPolicy", "Honor") == "Honor" and not self._matches_node(pod, other):
                    continue
                if entry.get("nodeTaintsPolicy", "Ignore") == "Honor" and not self._tolerates_taints(pod, other):
                    continue
                value = other["metadata"]["labels"][key]
                domains[value] = domains.get(value, 0) + self._count_spread(entry, pod, other)
            enough = len(domains) >= entry.get("minDomains", 1)
            fewest = min(domains.values()) if domains and enough else 0
            here = domains.get(node["metadata"]["labels"][key], 0)
            itself = _spreads(entry, pod, pod["metadata"]["labels"])
            if here + itself - fewest > entry["maxSkew"]:
                return False
        return True

    def _count_spread(self, entry: Object, pod: Object, node: Object) -> int:
        if not entry.get("labelSelector") and not entry.get("matchLabelKeys"):
            return 0
        return sum(
            _spreads(entry, pod, other["metadata"]["labels"])
            for other in self._pods(node)
            if other["metadata"]["namespace"] == pod["metadata"]["namespace"] and not other["terminating"]
        )

    def _joins_pods(self, pod: Object, node: Object) -> bool:
        terms = _terms(pod, "podAffinity")
        labels = node["metadata"]["labels"]
        if any(term["topologyKey"] not in labels for term in terms):
            return False
        # Only pods that match all terms count.
        matching = [
            other for other in self.nodes for existing in self._pods(other) if self._matches_all(terms, pod, existing)
        ]
        pairs = {
            (term["topologyKey"], other["metadata"]["labels"][term["topologyKey"]])
            for other in matching
            for term in terms
            if term["topologyKey"] in other["metadata"]["labels"]
        }
        if all((term["topologyKey"], labels[term["topologyKey"]]) in pairs for term in terms):
            return True
        return not pairs and self._matches_all(terms, pod, pod)

    def _matches_all(self, terms: list[Object], owner: Object, pod: Object) -> bool:
        return bool(terms) and all(self._counts(term, owner, pod) for term in terms)

    def _avoids_pods(self, pod: Object, node: Object) -> bool:
        return not any(
            self._counts(term, pod, existing) and _same_domain(term, node, other)
            for term in _terms(pod, "podAntiAffinity")
            for other in self.nodes
            for existing in self._pods(other)
        )

    def _is_not_avoided(self, pod: Object, node: Object) -> bool:
        return not any(
            self._counts(term, existing, pod) and _same_domain(term, node, other)
            for other in self.nodes
            for existing in self._pods(other)
            for term in _terms(existing, "podAntiAffinity")
        )

    def _counts(self, term: Object, owner: Object, pod: Object) -> bool:
        namespace = pod["metadata"]["namespace"]
        named = term.get("namespaces", [])
        selector = term.get("namespaceSelector")
        if not named and selector is None:
            named = [owner["metadata"]["namespace"]]
        selected = selector is not None and selects(selector, self.namespaces[namespace])
        # Not documented: in terms of a pod that has no node, kube-scheduler also matches the selector with no labels.
        if "nodeName" not in owner["spec"]:
            selected = selected or (selector is not None and selects(selector, {}))
        if namespace not in named and not selected:
            return False
        return term.get("labelSelector") is not None and selects(term["labelSelector"], pod["metadata"]["labels"])


def _terms(pod: Object, kind: str) -> list[Object]:
    return list(pod["spec"].get("affinity", {}).get(kind, {}).get(_REQUIRED, []))


def _same_domain(term: Object, first: Object, second: Object) -> bool:
    values = [node["metadata"]["labels"].get(term["topologyKey"]) for node in (first, second)]
    return values[0] is not None and values[0] == values[1]


def _spreads(entry: Object, pod: Object, labels: _Labels) -> bool:
    selector = entry.get("labelSelector")
    own = pod["metadata"]["labels"]
    keys = [key for key in entry.get("matchLabelKeys", []) if key in own]
    return selector is not None and selects(selector, labels) and all(labels.get(key) == own[key] for key in keys)


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        _meets(entry, labels) for entry in selector.get("matchExpressions", [])
    )


def _meets(entry: Object, labels: Mapping[str, str]) -> bool:
    value = labels.get(entry["key"])
    answer: dict[str, Any] = {
        "In": lambda: value in entry["values"],
        "NotIn": lambda: value not in entry["values"],
        "Exists": lambda: value is not None,
        "DoesNotExist": lambda: value is None,
        "Gt": lambda: value is not None and _is_integer(value) and int(value) > int(entry["values"][0]),
        "Lt": lambda: value is not None and _is_integer(value) and int(value) < int(entry["values"][0]),
    }
    return bool(answer[entry["operator"]]())


def _is_integer(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None


def _tolerates(pod: Object, taint: Object) -> bool:
    return any(
        entry.get("effect", "") in ("", taint["effect"])
        and entry.get("key", taint["key"]) == taint["key"]
        and (entry.get("operator") == "Exists" or entry.get("value", "") == taint.get("value", ""))
        for entry in pod["spec"].get("tolerations", [])
    )


def _ports(pod: Object) -> list[tuple[int, str, str]]:
    spec = pod["spec"]
    running = [entry for entry in spec.get("initContainers", []) if entry.get("restartPolicy") == "Always"]
    return [
        (port["hostPort"], port["protocol"], port.get("hostIP", "0.0.0.0"))  # noqa: S104
        for container in (*spec["containers"], *running)
        for port in container.get("ports", [])
    ]


def _requests(pod: Object) -> dict[str, int]:
    """The most that the pod needs at any time, by the formula of the document about sidecar containers."""
    spec = pod["spec"]
    sidecars: list[dict[str, Fraction]] = []
    needs: list[dict[str, Fraction]] = []
    for container in spec.get("initContainers", []):
        own = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars.append(own)
            needs.append(_sum(sidecars))
        else:
            needs.append(_sum([*sidecars, own]))
    needs.append(_sum([*sidecars, *map(_container_requests, spec["containers"])]))
    total = {
        name: max(need.get(name, Fraction(0)) for need in needs) for name in {name for need in needs for name in need}
    }
    total |= {name: quantity(value) for name, value in spec.get("resources", {}).get("requests", {}).items()}
    overhead = {name: quantity(value) for name, value in spec.get("overhead", {}).items()}
    total = _sum([total, overhead])
    # CPU is counted in thousandths.
    return {name: math.ceil(value * 1000) if name == "cpu" else math.ceil(value) for name, value in total.items()}


def _container_requests(container: Object) -> dict[str, Fraction]:
    resources = container["resources"]
    amounts = {**resources.get("limits", {}), **resources.get("requests", {})}
    return {name: quantity(value) for name, value in amounts.items()}


def _sum(amounts: list[dict[str, Fraction]]) -> dict[str, Fraction]:
    names = {name for entry in amounts for name in entry}
    return {name: sum((entry.get(name, Fraction(0)) for entry in amounts), Fraction(0)) for name in names}


@cache
def quantity(text: str) -> Fraction:
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", text)
    assert match is not None
    return Fraction(match[1]) * _UNITS[match[2]]
