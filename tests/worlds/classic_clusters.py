"""Random clusters, pods and policies with everything that the classic rules read, and much that they do not read."""

import random
from collections.abc import Callable
from typing import Any

from scheduler_core.convert.generic import CONTROLLERS, NODE, SCHEDULED_POD, SERVICE
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.model.generic import Controller
from tests.e2e.objects import Object
from tests.worlds.documented_classic_rules import DEFAULT, DocumentedClassicScheduler

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
GONE = "gone"
LABELS = ("zone", "rack", "disk")
VALUES = ("", "a", "b")
WORKLOADS = ("ReplicationController", "ReplicaSet", "StatefulSet")
STATIC_PREDICATES = (
    "PodFitsPorts", "PodFitsHostPorts", "PodFitsResources", "NoDiskConflict", "MatchNodeSelector", "HostName"
)  # fmt: skip
STATIC_PRIORITIES = (
    "LeastRequestedPriority", "BalancedResourceAllocation", "ServiceSpreadingPriority", "SelectorSpreadPriority",
    "EqualPriority",
)  # fmt: skip


class ClassicGenerator:
    """Makes objects; equal seeds make equal objects."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 # test data
        self._number = 0

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def some(self, most: int, make: Callable[[], Object]) -> list[Object]:
        return [make() for _ in range(self.random.randint(0, most))]

    def node(self, name: str) -> Object:
        """A node; most are ready."""
        choice = self.random.choice
        capacity: Object = {}
        if self.chance(0.95):
            capacity["cpu"] = choice(["1", "1", "2", "2", "1500m", "0.7", "0", 4])
        if self.chance(0.95):
            capacity["memory"] = choice(["2000Mi", "2000Mi", "1Gi", "2Gi", "1500M", "1e9", "0", "7e8"])
        if self.chance(0.95):
            capacity["pods"] = choice(["2", "4", "10", "110", 110, "110"])
        node: Object = {
            "metadata": {"name": name, "labels": self._labels(LABELS, VALUES, 0.6)},
            "status": {
                "capacity": capacity,
                "allocatable": {"cpu": "1m", "memory": "1", "pods": "1"},
                "conditions": [
                    {"type": "MemoryPressure", "status": choice(["True", "False"])},
                    {"type": "Ready", "status": choice(["True"] * 22 + ["False", "Unknown"])},
                    {"type": "OutOfDisk", "status": choice(["True", "False"])},
                ],
            },
        }
        if self.chance(0.03):
            node["status"].pop("conditions")
        if self.chance(0.25):
            node["spec"] = {"unschedulable": self.chance(0.6)}
        if self.chance(0.1):
            node.setdefault("spec", {})["taints"] = [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]
        return node

    def placed_pod(self, nodes: list[Object]) -> Object:
        """A pod on one of these nodes, or on one that may not exist; a few have none."""
        pod = self.pod(self.pod_spec())
        pod["spec"]["nodeName"] = self.random.choice([*[node["metadata"]["name"] for node in nodes] * 6, *NODES, GONE])
        if self.chance(0.05):
            del pod["spec"]["nodeName"]
        if self.chance(0.9):
            pod["status"] = {"phase": self.random.choice(["Running"] * 5 + ["Pending", "Succeeded", "Failed"])}
        if self.chance(0.1):
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return pod

    def pending_pod(self) -> Object:
        """A pod to be scheduled."""
        pod = self.pod(self.pod_spec())
        if self.chance(0.2):
            pod["spec"]["nodeSelector"] = self._labels(LABELS, VALUES, 0.4)
        if self.chance(0.05):
            pod["spec"]["nodeName"] = self.random.choice([*NODES, GONE])
        return pod

    def pod(self, spec: Object) -> Object:
        self._number += 1
        name = f"pod-{self._number}"
        metadata = {**self._metadata(name), "uid": name, "labels": self._labels(("app", "tier"), ("x", "x", "y"), 0.8)}
        return {"metadata": metadata, "spec": {**spec}}

    def pod_spec(self) -> Object:
        """What a pod requests, with parts that no classic rule reads."""
        spec: Object = {"containers": [self._container() for _ in range(self.random.choice([1, 1, 1, 2]))]}
        if self.chance(0.4):
            spec["volumes"] = [self._volume() for _ in range(self.random.choice([1, 1, 2]))]
        if self.chance(0.1):
            spec["hostNetwork"] = True
        if self.chance(0.1):
            spec["initContainers"] = [{**self._container(), "restartPolicy": self.random.choice(["Always", None])}]
        if self.chance(0.1):
            spec["overhead"] = {"cpu": "500m", "memory": "1Gi"}
        if self.chance(0.05):
            spec["resources"] = {"requests": {"cpu": "3"}}
        return spec

    def similar_spec(self, spec: Object) -> Object:
        """A pod's spec with one other part."""
        other = self._container()
        values: Object = {
            "volumes": [self._volume()],
            "hostNetwork": not spec.get("hostNetwork"),
            "nodeSelector": self._labels(LABELS, VALUES, 0.3),
            "nodeName": self.random.choice(NODES),
        }
        part = self.random.choice(["ports", "resources", *values])
        if part in values:
            return {**spec, part: values[part]}
        first, *others = spec["containers"]
        value = other.get(part, {} if part == "resources" else [])
        return {**spec, "containers": [{**first, part: value}, *others]}

    def service(self) -> Object:
        """A service."""
        service: Object = {"metadata": self._metadata(self.random.choice(["s", "t", "u"]))}
        if self.chance(0.9):
            service["spec"] = {"selector": self._labels(("app", "tier"), ("x", "x", "y"), 0.5)}
        if self.chance(0.05):
            service["spec"] = {"selector": None}
        return service

    def controller(self) -> Object:
        """A ReplicationController, ReplicaSet or StatefulSet."""
        kind = self.random.choice(WORKLOADS)
        labels = self._labels(("app", "tier"), ("x", "y"), 0.5)
        selector: Object = labels if kind == WORKLOADS[0] else {"matchLabels": labels}
        if kind != WORKLOADS[0] and self.chance(0.5):
            operator = self.random.choice(["In", "NotIn", "Exists", "DoesNotExist"])
            values = {"values": ["x"]} if operator in ("In", "NotIn") else {}
            selector["matchExpressions"] = [{"key": "tier", "operator": operator, **values}]
        metadata = self._metadata(self.random.choice(["c", "d"]))
        return {"kind": kind, "metadata": metadata, "spec": {"selector": selector} if self.chance(0.95) else {}}

    def policy(self) -> Object:
        """A policy; sometimes the default one, or one with a section that is missing or has a name twice."""
        if self.chance(0.1):
            return DEFAULT
        policy: Object = {"kind": "Policy"}
        if self.chance(0.95):
            policy["predicates"] = self._section(STATIC_PREDICATES, self._predicate_argument)
        if self.chance(0.95):
            entries = self._section(STATIC_PRIORITIES, self._priority_argument)
            policy["priorities"] = [{**entry, "weight": self.random.choice([1, 1, 2, 5])} for entry in entries]
        return policy

    def _section(self, static: tuple[str, ...], argument: Callable[[], Object]) -> list[Object]:
        entries: list[Object] = [{"name": name} for name in static if self.chance(0.6)]
        count = self.random.choice([0, 1, 1, 2])
        entries += [{"name": f"Custom{number}", "argument": argument()} for number in range(count)]
        if self.chance(0.05):
            entries.append({"name": self.random.choice(static), "argument": argument()})
        if entries and self.chance(0.05):
            entries.append({"name": self.random.choice(entries)["name"]})
        self.random.shuffle(entries)
        # A name of the administrator's own needs an argument when it is first used.
        return sorted(entries, key=lambda entry: entry["name"].startswith("Custom") and "argument" not in entry)

    def _predicate_argument(self) -> Object:
        labels = self.random.choices(LABELS, k=self.random.choice([1, 1, 2]))
        if self.chance(0.7):
            return {"serviceAffinity": {"labels": labels}}
        return {"labelsPresence": {"labels": labels, **self._presence()}}

    def _priority_argument(self) -> Object:
        label = self.random.choice(LABELS)
        if self.chance(0.6):
            return {"serviceAntiAffinity": {"label": label}}
        return {"labelPreference": {"label": label, **self._presence()}}

    def _presence(self) -> Object:
        return self.random.choice([{}, {"presence": True}, {"presence": False}])

    def _metadata(self, name: str) -> Object:
        namespace = self.random.choice(["shop"] * 6 + ["default", ""])
        return {"name": name, **({"namespace": namespace} if namespace else {})}

    def _labels(self, keys: tuple[str, ...], values: tuple[str, ...], share: float) -> dict[str, str]:
        return {key: self.random.choice(values) for key in keys if self.chance(share)}

    def _container(self) -> Object:
        choice = self.random.choice
        amounts: dict[str, list[str | float]] = {
            "cpu": ["0", "100m", "100m", "0.2", "250m", "0.0005", 1, 0.7, "300000u", "10P"],
            "memory": ["0", "200Mi", "200Mi", "400Mi", "0.6Gi", "1Gi", "100M", "1.1", "3e8", "9E"],
        }
        resources: Object = {}
        for part, share in (("requests", 0.6), ("limits", 0.15)):
            # The last amount of each list is more than any node has.
            is_huge = self.chance(0.04)
            chosen = {name: values[-1] if is_huge else choice(values[:-1]) for name, values in amounts.items()}
            resources[part] = {name: value for name, value in chosen.items() if self.chance(share)}
        container: Object = {"name": "main", "resources": resources}
        if self.chance(0.35):
            container["ports"] = [self._port() for _ in range(choice([1, 1, 2]))]
        if self.chance(0.1):
            container.pop("resources")
        return container

    def _port(self) -> Object:
        choice = self.random.choice
        port: Object = {"containerPort": choice([80, 81]), "protocol": choice(["TCP", "UDP"])}
        if self.chance(0.8):
            port["hostPort"] = choice([80, 81, 443, 0])
        if self.chance(0.3):
            port["hostIP"] = choice(["10.0.0.1", "10.0.0.2"])
        return port

    def _volume(self) -> Object:
        choice = self.random.choice
        disk = {"readOnly": self.chance(0.6)} if self.chance(0.8) else {}
        return choice(
            [
                {"name": "v", "gcePersistentDisk": {"pdName": choice(["d", "e"]), "partition": choice([1, 2]), **disk}},
                {"name": "v", "gcePersistentDisk": {"pdName": "d", "readOnly": True}},
                {"name": "v", "awsElasticBlockStore": {"volumeID": choice(["d", "e"]), **disk}},
                {"name": "v", "emptyDir": {}},
                {"name": "v", "persistentVolumeClaim": {"claimName": "d"}},
            ]
        )


class ClassicCluster:
    """A cluster that changes, for both implementations: API objects, and the product's state."""

    def __init__(self, generator: ClassicGenerator) -> None:
        count = generator.random.randint(1, len(NODES))
        nodes = [generator.node(name) for name in generator.random.sample(NODES[:count], count)]
        services = {_key(service): service for service in generator.some(3, generator.service)}
        controllers = {_key(controller): controller for controller in generator.some(2, generator.controller)}
        self.documented = DocumentedClassicScheduler(
            nodes,
            generator.some(8, lambda: generator.placed_pod(nodes)),
            list(services.values()),
            list(controllers.values()),
        )
        self.state = GenericClusterState.of(
            map(NODE.read, nodes), map(SCHEDULED_POD.read, self.documented.pods), map(SERVICE.read, services.values())
        )
        for controller in controllers.values():
            self.state = self.state.with_controller(_to_controller(controller))

    def put_node(self, raw: Object) -> None:
        self._replace(nodes=_put(self.documented.nodes, raw))
        self.state = self.state.with_node(NODE.read(raw))

    def remove_node(self, raw: Object) -> None:
        """Removes a node; its pods stay."""
        self._replace(nodes=_remove(self.documented.nodes, raw))
        self.state = self.state.without_node(raw["metadata"]["name"])

    def put_pod(self, raw: Object) -> None:
        """Adds or replaces a pod; without a node it loses its place in the order."""
        pods = [pod for pod in self.documented.pods if pod["spec"].get("nodeName")]
        self._replace(pods=_put(pods, raw) if raw["spec"].get("nodeName") else _remove(pods, raw))
        self.state = self.state.with_pod(SCHEDULED_POD.read(raw))

    def bind(self, raw: Object, node: str) -> None:
        self._replace(pods=_put(self.documented.pods, {**raw, "spec": {**raw["spec"], "nodeName": node}}))
        self.state = self.state.with_binding(SCHEDULED_POD.read(raw), node)

    def remove_pod(self, raw: Object) -> None:
        self._replace(pods=_remove(self.documented.pods, raw))
        self.state = self.state.without_pod(SCHEDULED_POD.read(raw).namespaced_name)

    def put_service(self, raw: Object) -> None:
        self._replace(services=_put(self.documented.services, raw))
        self.state = self.state.with_service(SERVICE.read(raw))

    def remove_service(self, raw: Object) -> None:
        self._replace(services=_remove(self.documented.services, raw))
        self.state = self.state.without_service(*_key(raw)[1:])

    def put_controller(self, raw: Object) -> None:
        self._replace(controllers=_put(self.documented.controllers, raw))
        self.state = self.state.with_controller(_to_controller(raw))

    def remove_controller(self, raw: Object) -> None:
        self._replace(controllers=_remove(self.documented.controllers, raw))
        self.state = self.state.without_controller(*_key(raw))

    def change(self, generator: ClassicGenerator) -> None:
        """Makes one random change."""
        documented = self.documented
        choice = generator.random.choice
        # Names of few nodes, so that some come again.
        names = NODES[: len(documented.nodes) + 1]
        changes: list[Callable[[], None]] = [
            lambda: self.put_node(generator.node(choice(names))),
            lambda: self.put_pod(generator.placed_pod(documented.nodes)),
            lambda: self.put_service(generator.service()),
            lambda: self.put_controller(generator.controller()),
        ]
        if documented.nodes:
            changes.append(lambda: self.remove_node(choice(documented.nodes)))
        if documented.pods:
            changes += [
                lambda: self.remove_pod(choice(documented.pods)),
                lambda: self.put_pod({**choice(documented.pods), "status": {"phase": "Succeeded"}}),
                lambda: self._update_labels(choice(documented.pods), generator),
                lambda: self._recreate(choice(documented.pods), generator),
            ]
        if documented.services:
            changes.append(lambda: self.remove_service(choice(documented.services)))
        if documented.controllers:
            changes.append(lambda: self.remove_controller(choice(documented.controllers)))
        choice(changes)()

    def _update_labels(self, raw: Object, generator: ClassicGenerator) -> None:
        labels = generator.pod({})["metadata"]["labels"]
        self.put_pod({**raw, "metadata": {**raw["metadata"], "labels": labels}})

    def _recreate(self, raw: Object, generator: ClassicGenerator) -> None:
        """Replaces a pod by one of the same name, as a StatefulSet does; it may have no node yet."""
        other = generator.placed_pod(self.documented.nodes)
        self.put_pod({**other, "metadata": {**raw["metadata"], "uid": other["metadata"]["uid"]}})

    def _replace(self, **lists: list[Object]) -> None:
        self.documented = DocumentedClassicScheduler(**{**vars(self.documented), **lists})


def _put(objects: list[Object], raw: Object) -> list[Object]:
    """The list with an object; one that is replaced keeps its place."""
    if _key(raw) not in map(_key, objects):
        return [*objects, raw]
    return [raw if _key(entry) == _key(raw) else entry for entry in objects]


def _remove(objects: list[Object], raw: Object) -> list[Object]:
    return [entry for entry in objects if _key(entry) != _key(raw)]


def _key(raw: Any) -> tuple[str, str, str]:
    metadata = raw["metadata"]
    return raw.get("kind", ""), metadata.get("namespace", "default"), metadata["name"]


def _to_controller(raw: Object) -> Controller:
    group = "" if raw["kind"] == WORKLOADS[0] else "apps"
    return CONTROLLERS[raw["kind"], group].read(raw)
