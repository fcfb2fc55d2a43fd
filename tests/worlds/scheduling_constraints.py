"""Random nodes, placed pods and pending pods with every constraint that kube-scheduler reads today, as API objects."""

import random
from dataclasses import dataclass
from typing import Any

from tests.e2e.objects import HOSTNAME, PAUSE, Object

NAMESPACES = {"red": {"team": "a"}, "green": {"team": "b", "env": "test"}, "blue": {"team": "a", "env": "live"}}
OVERHEAD = {"cpu": "150m", "memory": "64Mi"}
RUNTIME_CLASS = {"metadata": {"name": "heavy"}, "handler": "heavy", "overhead": {"podFixed": OVERHEAD}}
ZONE = "zone"
RACK = "rack"
GPU = "example.com/gpu"
_TAINTS = ("dedicated", "node.kubernetes.io/not-ready", "node.kubernetes.io/unschedulable", "spare")
_EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")


@dataclass(frozen=True)
class RandomCluster:
    """The objects of one cluster."""

    nodes: list[Object]
    # Pods with a node; `phase` is in their status, and `terminating` is to be deleted after creation.
    placed: list[Object]
    pending: list[Object]


class Generator:
    """Makes objects; equal seeds make equal objects."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 # test data
        self._prefix = f"s{seed}"
        self._nodes: list[str] = []

    def cluster(self, nodes: int, placed: int, pending: int) -> RandomCluster:
        """Makes a cluster."""
        self._nodes = [f"{self._prefix}-n{number}" for number in range(nodes)]
        return RandomCluster(
            [self._node(name) for name in self._nodes],
            [self._placed_pod(f"{self._prefix}-placed-{number}") for number in range(placed)],
            [self._pod(f"{self._prefix}-pending-{number}") for number in range(pending)],
        )

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _node(self, name: str) -> Object:
        choice = self._random.choice
        labels = {HOSTNAME: name, "size": choice(["1", "2", "7", "0", "x"])}
        if self._chance(0.85):
            labels[ZONE] = choice(["a", "b", "c"])
        if self._chance(0.7):
            labels[RACK] = choice(["1", "2"])
        if self._chance(0.5):
            labels["disk"] = choice(["ssd", "hdd", ""])
        taints = [
            {"key": choice(_TAINTS), "value": choice(["", "x", "y"]), "effect": choice(_EFFECTS)}
            for _ in range(choice([0, 0, 0, 1, 2]))
        ]
        unique = {(taint["key"], taint["effect"]): taint for taint in taints}
        unschedulable = self._chance(0.12)
        if unschedulable and self._chance(0.7):
            key = _TAINTS[2]
            unique[key, "NoSchedule"] = {"key": key, "value": "", "effect": "NoSchedule"}
        allocatable = {"cpu": choice(["1", "2", "3500m"]), "memory": choice(["1Gi", "2Gi"])}
        allocatable["pods"] = choice(["3", "6", "20", "20"])
        if self._chance(0.6):
            allocatable["ephemeral-storage"] = choice(["1Gi", "5Gi"])
        if self._chance(0.4):
            allocatable[GPU] = choice(["1", "2"])
        return {
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": list(unique.values()), "unschedulable": unschedulable},
            "status": {
                "capacity": {**allocatable, "cpu": "4", "memory": "4Gi"},
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }

    def _placed_pod(self, name: str) -> Object:
        pod = self._pod(name)
        spec = pod["spec"]
        spec["nodeName"] = self._random.choice([*self._nodes, *self._nodes, f"{self._prefix}-gone"])
        for field in ("tolerations", "nodeSelector", "topologySpreadConstraints"):
            spec.pop(field, None)
        pod["status"] = {"phase": self._random.choice(["Running"] * 6 + ["Succeeded", "Failed"])}
        pod["terminating"] = self._chance(0.12)
        return pod

    def _pod(self, name: str) -> Object:
        choice = self._random.choice
        labels = {"app": choice(["web", "db", "job"])}
        if self._chance(0.4):
            labels["tier"] = choice(["x", "y"])
        spec: Object = {
            "schedulerName": "default-scheduler",
            "containers": [self._container("main"), *([self._container("second")] if self._chance(0.3) else [])],
        }
        if self._chance(0.3):
            spec["initContainers"] = [
                {**self._container(f"init-{number}"), **({"restartPolicy": "Always"} if self._chance(0.5) else {})}
                for number in range(choice([1, 2, 3]))
            ]
        if self._chance(0.15):
            spec["runtimeClassName"] = "heavy"
        if self._chance(0.1):
            spec["resources"] = {"requests": {"cpu": choice(["1500m", "3"]), "memory": "1Gi"}}
        if self._chance(0.5):
            spec["tolerations"] = [self._toleration() for _ in range(choice([1, 2, 3]))]
        if self._chance(0.15):
            spec["nodeSelector"] = {ZONE: choice(["a", "b"])}
        affinity = {
            **({"nodeAffinity": self._node_affinity()} if self._chance(0.25) else {}),
            **({"podAffinity": self._pod_affinity()} if self._chance(0.2) else {}),
            **({"podAntiAffinity": self._pod_affinity()} if self._chance(0.25) else {}),
        }
        if affinity:
            spec["affinity"] = affinity
        if self._chance(0.3):
            spec["topologySpreadConstraints"] = self._spread_constraints()
        return {"metadata": {"name": name, "namespace": choice(sorted(NAMESPACES)), "labels": labels}, "spec": spec}

    def _container(self, name: str) -> Object:
        choice = self._random.choice
        requests: Object = {}
        if self._chance(0.7):
            requests["cpu"] = choice(["0", "50m", "100m", "300m", "0.25"])
        if self._chance(0.6):
            requests["memory"] = choice(["0", "16Mi", "100M", "200Mi"])
        limits: Object = {}
        if self._chance(0.15):
            requests["ephemeral-storage"] = choice(["100Mi", "1Gi"])
        if self._chance(0.12):
            requests[GPU] = limits[GPU] = choice(["1", "2"])
        if "cpu" not in requests and self._chance(0.3):
            limits["cpu"] = choice(["200m", "600m"])
        container: Object = {"name": name, "image": PAUSE, "resources": {"requests": requests, "limits": limits}}
        if self._chance(0.2):
            port = {"containerPort": 80, "hostPort": choice([80, 443]), "protocol": choice(["TCP", "TCP", "UDP"])}
            address = choice(["", "", "10.0.0.1", "10.0.0.2"])
            container["ports"] = [{**port, **({"hostIP": address} if address else {})}]
        return container

    def _toleration(self) -> Object:
        choice = self._random.choice
        operator = choice(["Exists", "Equal", ""])
        toleration: Object = {"key": choice(_TAINTS)}
        if operator:
            toleration["operator"] = operator
        if operator == "Exists" and self._chance(0.2):
            toleration.pop("key")
        if operator != "Exists" and self._chance(0.7):
            toleration["value"] = choice(["x", "y"])
        effect = choice(["", "NoSchedule", "NoExecute"])
        return {**toleration, **({"effect": effect} if effect else {})}

    def _node_affinity(self) -> Object:
        terms = []
        for _ in range(self._random.choice([1, 1, 2])):
            term: Object = {}
            if self._chance(0.9):
                count = self._random.choice([1, 1, 2])
                term["matchExpressions"] = [self._node_requirement() for _ in range(count)]
            if self._chance(0.2) or not term:
                operator = self._random.choice(["In", "NotIn"])
                name = self._random.choice(self._nodes)
                term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
            terms.append(term)
        return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}

    def _node_requirement(self) -> Object:
        operator = self._random.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
        if operator in ("Gt", "Lt"):
            return {"key": "size", "operator": operator, "values": [self._random.choice(["0", "1", "5"])]}
        key, values = self._random.choice([(ZONE, ["a", "b", "c"]), (RACK, ["1", "2"]), ("disk", ["ssd", "hdd"])])
        if operator in ("Exists", "DoesNotExist"):
            return {"key": key, "operator": operator}
        return {"key": key, "operator": operator, "values": self._random.sample(values, self._random.choice([1, 2]))}

    def _label_selector(self) -> Object:
        choice = self._random.choice
        selector: Object = {}
        if self._chance(0.7):
            selector["matchLabels"] = {"app": choice(["web", "db"])}
        if self._chance(0.35):
            operator = choice(["In", "NotIn", "Exists", "DoesNotExist"])
            values = {"values": [choice(["x", "y"])]} if operator in ("In", "NotIn") else {}
            selector["matchExpressions"] = [{"key": "tier", "operator": operator, **values}]
        return selector

    def _pod_affinity(self) -> Object:
        terms = []
        for _ in range(self._random.choice([1, 1, 2])):
            term: Object = {"topologyKey": self._random.choice([ZONE, RACK, HOSTNAME])}
            if self._chance(0.92):
                term["labelSelector"] = self._label_selector()
            if self._chance(0.2):
                term["namespaces"] = self._random.sample(sorted(NAMESPACES), 2)
            if self._chance(0.25):
                term["namespaceSelector"] = self._random.choice(
                    [
                        {},
                        {"matchLabels": {"team": "a"}},
                        {"matchExpressions": [{"key": "env", "operator": "DoesNotExist"}]},
                        {"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["live"]}]},
                    ]
                )
            terms.append(term)
        return {"requiredDuringSchedulingIgnoredDuringExecution": terms}

    def _spread_constraints(self) -> list[Object]:
        constraints: dict[tuple[str, str], Object] = {}
        for _ in range(self._random.choice([1, 1, 2])):
            choice = self._random.choice
            key = choice([ZONE, RACK, HOSTNAME])
            when = choice(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"])
            constraint: Object = {"topologyKey": key, "maxSkew": choice([1, 2]), "whenUnsatisfiable": when}
            if self._chance(0.95):
                constraint["labelSelector"] = self._label_selector()
                if self._chance(0.2) and "app" not in constraint["labelSelector"].get("matchLabels", {}):
                    constraint["matchLabelKeys"] = ["app"]
            if when == "DoNotSchedule" and self._chance(0.2):
                constraint["minDomains"] = choice([1, 2, 4])
            if self._chance(0.3):
                constraint["nodeAffinityPolicy"] = choice(["Honor", "Ignore"])
            if self._chance(0.3):
                constraint["nodeTaintsPolicy"] = choice(["Honor", "Ignore"])
            constraints[key, when] = constraint
        return list(constraints.values())


def object_of(raw: Any) -> tuple[str, str]:
    return str(raw["metadata"].get("namespace", "")), str(raw["metadata"]["name"])
