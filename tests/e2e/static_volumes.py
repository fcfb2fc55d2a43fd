"""Pods whose claims kube-scheduler binds to existing PersistentVolumes, on random clusters, for `test_static_volumes.py` and the report.

Each seed makes PersistentVolumes of several classes, sizes, access modes, labels and node affinities, and then one pod after the other. Before
a pod is created the extender is asked to explain it. The PersistentVolumes that it names for the node where the pod then goes are compared
with those that were really bound. Seeds have classes of their own, so that they may run at once.
"""

import random
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from app.kube.resources import CLAIMS, LONGHORN_NAMESPACE, LONGHORN_VOLUMES, PERSISTENT_VOLUMES, PODS
from scheduler_core.model.verdict import Reason
from tests.builders import storage_class
from tests.e2e.objects import (
    HOSTNAME,
    Object,
    asking_pod,
    claim_of,
    condition_of,
    longhorn_volume,
    name_of,
    node_of,
    retained_volume,
)
from tests.e2e.report import Options, Part
from tests.e2e.rig import Rig

GROUP = "static"
NODES = tuple(f"{GROUP}-{number}" for number in range(1, 4))
_LONGHORN = "driver.longhorn.io"
_FOREIGN = "nfs.csi.k8s.io"
_SEEDS = 40
_PODS = 4
_AT_ONCE = 5
_DECISION_SECONDS = 120.0
_POLL = 0.2
# A pod that kube-scheduler or the extender refused is retried when something changes; nothing does here.
_REFUSED_SECONDS = 3.0


@dataclass
class Bindings:
    """What was bound, compared with what was predicted."""

    matched: int = 0  # claims bound to the only PersistentVolume that was predicted
    among_equals: int = 0  # claims bound to one of several that were predicted
    provisioned: int = 0  # claims for which a new volume was predicted and provisioned
    foreign: int = 0  # claims bound to another driver's volume, for which no Longhorn volume was predicted
    # Pods that were refused everywhere, by the reason in their condition.
    refused: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)  # predictions that did not come true

    def add(self, other: Self) -> None:
        """Adds another seed's."""
        self.matched += other.matched
        self.among_equals += other.among_equals
        self.provisioned += other.provisioned
        self.foreign += other.foreign
        self.refused = dict(Counter(self.refused) + Counter(other.refused))
        self.wrong += other.wrong

    def text(self) -> str:
        """The figures, one per line."""
        refused = ", ".join(f"{count} {reason}" for reason, count in sorted(self.refused.items())) or "none"
        return "\n".join(
            [
                f"claims bound to the PersistentVolume that was predicted: {self.matched}",
                f"claims bound to one of several equal ones that were predicted: {self.among_equals}",
                f"claims provisioned as predicted: {self.provisioned}",
                f"claims bound to another driver's PersistentVolume: {self.foreign}",
                f"refused pods: {refused}",
                f"wrong predictions: {len(self.wrong)}",
            ]
        )


def report(folder: Path, options: Options) -> Part:
    with Rig(folder) as rig:
        bindings = compare(rig, range(1, (options.repetitions or _SEEDS) + 1))
    return Part(bindings.wrong, asdict(bindings), [bindings.text()])


def compare(rig: Rig, seeds: Iterable[int]) -> Bindings:
    """Runs seeds, some at once, on nodes that they share."""
    clusters = [_Cluster(rig, seed) for seed in seeds]
    rig.create(*(entry for cluster in clusters for entry in cluster.storage_classes()))
    rig.add_nodes(GROUP, {name: ["4000Gi"] for name in NODES})
    bindings = Bindings()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for entry in pool.map(_Cluster.run, clusters):
            bindings.add(entry)
    return bindings


class _Cluster:
    """The classes, volumes and pods of one seed."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._api = rig.cluster.api
        self._random = random.Random(seed)  # noqa: S311 # the cluster of a seed must be the same each time
        self._prefix = f"seed-{seed}"
        self._bindings = Bindings()
        self._drivers: dict[str, str] = {}
        self._sizes: dict[str, str] = {}

    def storage_classes(self) -> list[Object]:
        """A class that Longhorn provisions, and one without a provisioner."""
        provisioners = {"longhorn": _LONGHORN, "static": "kubernetes.io/no-provisioner"}
        return [storage_class(f"{self._prefix}-{kind}", provisioner=each) for kind, each in provisioners.items()]

    def run(self) -> Bindings:
        for number in range(self._random.randint(4, 9)):
            self._create_volume(f"{self._prefix}-pv-{number}")
        self._rig.until("all volumes are available", self._are_volumes_available)
        for number in range(_PODS):
            self._compare_pod(f"{self._prefix}-pod-{number}")
        return self._bindings

    def _class(self) -> str:
        return f"{self._prefix}-{self._random.choice(['longhorn', 'longhorn', 'static'])}"

    def _create_volume(self, name: str) -> None:
        size = f"{self._random.choice([1, 2, 2, 3, 4])}Gi"
        driver = self._random.choice([_LONGHORN] * 5 + [_FOREIGN])
        self._drivers[name] = driver
        self._sizes[name] = size
        if driver == _LONGHORN:
            locality = self._random.choice(["best-effort", "best-effort", "disabled"])
            volume = longhorn_volume(name, int(size.removesuffix("Gi")), dataLocality=locality)
            self._api.create(LONGHORN_VOLUMES.path(LONGHORN_NAMESPACE), volume)
        modes = self._random.choice([["ReadWriteOnce"], ["ReadWriteOnce"], ["ReadWriteOnce", "ReadWriteMany"]])
        storage_class = self._class()
        spec: Object = {
            "accessModes": modes,
            "volumeMode": self._random.choice(["Filesystem"] * 5 + ["Block"]),
            "csi": {"driver": driver, "volumeHandle": name},
        }
        requirement = self._random.choice(
            [None, None, None, {"operator": "In"}, {"operator": "In"}, {"operator": "NotIn"}]
        )
        if requirement is not None:
            values = self._random.sample(NODES, self._random.randint(1, 2))
            terms = [{"matchExpressions": [{"key": HOSTNAME, "values": values, **requirement}]}]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
        labels = self._random.choice([{}, {}, {"tier": "gold"}])
        self._api.create(PERSISTENT_VOLUMES.path(), retained_volume(name, size, storage_class, labels=labels, **spec))

    def _are_volumes_available(self) -> bool:
        own = [raw for raw in self._rig.items(PERSISTENT_VOLUMES.path()) if name_of(raw) in self._drivers]
        return all(raw.get("status", {}).get("phase") == "Available" for raw in own)

    def _compare_pod(self, name: str) -> None:
        claims = [self._claim(f"{name}-{index}") for index in range(self._random.randint(1, 3))]
        pod = asking_pod(name, list(map(name_of, claims)), {"group": GROUP})
        for claim in claims:
            self._api.create(CLAIMS.path("default"), claim)
        explained = self._explain(pod)
        self._api.create(PODS.path("default"), pod)
        node = self._wait_for_node(name)
        if not node:
            for raw in (pod, *claims):
                self._api.delete((PODS if raw is pod else CLAIMS).path("default", name_of(raw)))
            return
        for claim in claims:
            self._compare_claim(name_of(claim), node, explained)

    def _claim(self, name: str) -> Object:
        spec: Object = {"accessModes": self._random.choice([["ReadWriteOnce"]] * 4 + [["ReadWriteMany"]])}
        storage_class = self._class()
        spec["volumeMode"] = self._random.choice(["Filesystem"] * 7 + ["Block"])
        size = f"{self._random.choice([1, 1, 2, 3])}Gi"
        if self._random.random() < 0.15:
            spec["selector"] = {"matchLabels": {"tier": "gold"}}
        return claim_of(name, size, storage_class, **spec)

    def _explain(self, pod: Object) -> Object:
        """Returns the explanation, once two in a row are equal: the extender has then seen what was created."""
        leader = self._rig.wait_for_leader()
        earlier: Object = {}
        while True:
            code, answer = self._rig.request(leader, "/explain", {"pod": pod, "nodenames": list(NODES)})
            assert code == 200, answer
            if answer == earlier:
                return earlier
            earlier = dict(answer)
            time.sleep(2 * _POLL)

    def _wait_for_node(self, name: str) -> str:
        """Returns the pod's node, "" if the pod stays refused."""
        deadline = time.monotonic() + _DECISION_SECONDS
        refused_since: float | None = None
        while time.monotonic() < deadline:
            raw = self._api.get(PODS.path("default", name))
            if node := node_of(raw):
                return node
            refusal = condition_of(raw, "PodScheduled")
            if refusal.get("status") == "False" and self._is_unclaimed(name):
                refused_since = refused_since or time.monotonic()
                if time.monotonic() - refused_since > _REFUSED_SECONDS:
                    reason = _reason(str(refusal.get("message", "")))
                    self._bindings.refused[reason] = self._bindings.refused.get(reason, 0) + 1
                    return ""
            time.sleep(_POLL)
        self._bindings.wrong.append(f"{name} was neither bound nor refused")
        return ""

    def _is_unclaimed(self, pod: str) -> bool:
        bound = {
            (raw["spec"].get("claimRef") or {}).get("name", "") for raw in self._rig.items(PERSISTENT_VOLUMES.path())
        }
        return not any(name.startswith(f"{pod}-") for name in bound)

    def _compare_claim(self, claim: str, node: str, explained: Object) -> None:
        raw = self._api.get(CLAIMS.path("default", claim))
        bound = str(raw["spec"]["volumeName"])
        predicted = [
            str(volume["persistentVolume"])
            for volume in explained["volumes"]
            if volume["claim"] == f"default/{claim}" and (volume["nodes"] is None or node in volume["nodes"])
        ]
        actual = bound if bound in self._drivers else ""
        if self._drivers.get(bound) == _FOREIGN:
            self._bindings.foreign += 1
            # Only Longhorn's volumes are explained; another driver's may be equal to them.
            if predicted and self._sizes[bound] not in {self._sizes.get(name) for name in predicted}:
                self._bindings.wrong.append(f"{claim} on {node}: {bound} is another driver's, predicted {predicted}")
        elif actual not in predicted:
            self._bindings.wrong.append(f"{claim} on {node}: bound to {bound}, predicted {predicted}")
        elif not actual:
            self._bindings.provisioned += 1
        elif len(predicted) == 1:
            self._bindings.matched += 1
        else:
            self._bindings.among_equals += 1


def _reason(message: str) -> str:
    """A short name for why a pod is refused."""
    if Reason.UNCERTAIN_VOLUME.text in message:
        return "with an uncertain PersistentVolume"
    if "didn't find available persistent volumes" in message:
        return "without a PersistentVolume to bind"
    return message
