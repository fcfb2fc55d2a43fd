"""Small clusters with running pods for `what-if`, and the prediction about them."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.kube.cluster_cache import as_snapshot
from app.kube.snapshot_file import SchedulingObjects
from scheduler_core.convert.snapshot_kinds import group_of
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.model import kube
from scheduler_core.model.constraints import PodScheduling
from scheduler_core.predict.cluster_additions import Workload
from scheduler_core.predict.predicted_cluster import PredictedCluster, predicted_state
from scheduler_core.predict.predicted_replicas import ReplicaMove, replica_moves
from scheduler_core.predict.prediction import PodOutcome, Prediction, predict
from scheduler_core.predict.prediction_input import Change, Situation
from scheduler_core.predict.timeline import Observe, OrderResult, run_order
from tests.builders import (
    GI,
    NOW,
    Object,
    claim,
    disk,
    flat,
    kube_node,
    longhorn_node,
    persistent_volume,
    pod,
    replica,
    storage_class,
    volume,
)

OPTIONS = FilterOptions()


def node(name: str, size: float = 100, *, zone: str = "", listed: dict[str, float] | None = None) -> list[Object]:
    """A node with one Longhorn disk of `size` Gi. `listed` are the replicas on it, in Gi."""
    used = sum((listed or {}).values())
    return [
        kube_node(name, **({"topology.kubernetes.io/zone": zone} if zone else {})),
        longhorn_node(name, {"disk-1": disk(size, available=size - used, listed=listed)}, zone=zone),
    ]


def owned_pod(*claims: str, name: str, node: str = "", owner: str = "StatefulSet", **fields: Any) -> Object:
    phase = "Running" if node else "Pending"
    raw = pod(*claims, name=name, uid=f"uid-{name}", node=node, phase=phase, **fields)
    raw["metadata"]["ownerReferences"] = [{"kind": owner, "name": name.rpartition("-")[0], "uid": "uid-owner"}]
    return raw


def running(
    name: str, on: str, size: float = 30, *, replicas: Sequence[str] | None = None, locality: str = "best-effort"
) -> list[Object]:
    """A running pod with one claim, whose volume is fully written. The volume is attached. Its replicas are on these
    nodes, on the pod's alone by default.
    """
    places = [on] if replicas is None else list(replicas)
    claim_name = f"data-{name}"
    attached = volume(
        f"vol-{claim_name}", size, locality=locality, actual=size, numberOfReplicas=len(places), nodeID=on
    )
    attached["status"] |= {"state": "attached", "robustness": "healthy", "currentNodeID": on}
    bound_claim = claim(claim_name, size, bound=True)
    return [
        owned_pod(claim_name, name=name, node=on),
        bound_claim,
        persistent_volume(claim_name, uid=f"uid-{claim_name}"),
        attached,
        *(replica(replica_name(name, place), f"vol-{claim_name}", place, size=size) for place in places),
    ]


def draw_cluster(
    chance: random.Random,
    sizes: Mapping[str, float],
    *,
    prefix: str = "db",
    most_pods: int = 8,
    volumes: Sequence[float] = (5, 10, 20, 40),
    share: float = 0.6,
    most_replicas: int = 2,
    localities: Sequence[str] = ("best-effort", "disabled"),
) -> tuple[list[Object], dict[str, list[Object]]]:
    """Nodes of these sizes, and what `running` makes of one or more pods by name. Replicas take at most a `share` of each node."""
    booked: dict[str, dict[str, float]] = {name: {} for name in sizes}
    pods: dict[str, list[Object]] = {}
    for number in range(chance.randint(1, most_pods)):
        size = chance.choice(volumes)
        room = [name for name in sizes if sum(booked[name].values()) + size <= sizes[name] * share]
        if not room:
            break
        places = chance.sample(room, min(len(room), chance.randint(1, most_replicas)))
        name = f"{prefix}-{number}"
        for place in places:
            booked[place][replica_name(name, place)] = size
        pods[name] = running(name, places[0], size, replicas=places, locality=chance.choice(localities))
    return [entry for name in sizes for entry in node(name, sizes[name], listed=booked[name])], pods


def add_labels(objects: Iterable[Object], ready: bool | None = None, **labels: str) -> list[Object]:
    """The objects, with labels and maybe the condition Ready on pods."""
    raw = list(objects)
    for entry in raw:
        if entry["kind"] == "Pod":
            entry["metadata"]["labels"] = labels
            if ready is not None:
                entry["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
    return raw


def disruption_budget(
    name: str = "web", *, status: Object | None = None, selector: Object | None = None, **spec: Any
) -> Object:
    """A PodDisruptionBudget of the namespace default. It selects the pods with the label app by its name."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": name}} if selector is None else selector, **spec},
        "status": {"observedGeneration": 1, **status} if status is not None else {},
    }


def stateful_set(name: str, replicas: int, size: str = "40Gi", **spec: Any) -> Object:
    """A StatefulSet with one claim per pod. `spec` has more of its fields."""
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "storageClassName": "longhorn",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
        },
    }
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": replicas, "template": template, "volumeClaimTemplates": [claim], **spec},
    }


def workload(
    size: float,
    *,
    name: str = "web",
    in_order: bool = False,
    storage_class: str = "longhorn",
    ephemeral: bool = False,
    labels: frozenset[tuple[str, str]] = frozenset(),
) -> Workload:
    """A StatefulSet whose pods have one claim of `size` Gi, which may be ephemeral, or none for 0."""
    spec = kube.ClaimSpec(storage_class=storage_class, request=int(size * GI), access_modes=("ReadWriteOnce",))
    mount = kube.ClaimVolume("data", f"{name}-0-data" if ephemeral else f"data-{name}-0", spec, ephemeral=ephemeral)
    pod = kube.Pod("default", f"{name}-0", volumes=(mount,) if size else (), scheduling=PodScheduling(labels))
    return Workload("StatefulSet", "default", name, pod, in_order=in_order)


def replica_name(pod_name: str, place: str) -> str:
    return f"{pod_name}-{place}"


def growing_class(*, grows: bool = True) -> Object:
    return {**storage_class(), "allowVolumeExpansion": grows}


def situation(*objects: Object | Iterable[Object]) -> Situation:
    """A cluster of some objects, with a StorageClass, before any change."""
    raw = flat(growing_class(), *objects)
    read = as_snapshot(raw)
    entries = ((entry["kind"], group_of(entry["apiVersion"]), entry) for entry in raw)
    scheduling = SchedulingObjects.of(entries, read.pods.values())
    return Situation(PredictedCluster(predicted_state(read, NOW), scheduling.state, scheduling.affinities))


def after(start: Situation, *changes: Change) -> Situation:
    for change in changes:
        start = change(start)
    return start


def play(start: Situation, orders: int = 10) -> list[OrderResult]:
    """The ends of some orders."""
    return [run_order(start, OPTIONS, random.Random(seed).randrange) for seed in range(orders)]  # noqa: S311


def observe(start: Situation, seed: int, observer: Observe) -> OrderResult:
    """The end of one order whose steps are observed."""
    return run_order(start, OPTIONS, random.Random(seed).randrange, observer)  # noqa: S311


def prediction(start: Situation, *changes: Change, orders: int = 10) -> Prediction:
    changed = after(start, *changes)
    return predict(start, changed, play(changed, orders))


def outcome_of(result: Prediction, name: str) -> PodOutcome:
    return next(outcome for outcome in result.pods if outcome.pod == f"default/{name}")


def every_move(cluster: PredictedCluster) -> list[ReplicaMove]:
    """Every move that is possible now, by volume and replica."""
    return [move for name in sorted(cluster.snapshot.volumes) for move in replica_moves(cluster, name)]


def gibibytes(gib: float) -> int:
    """Bytes of some Gi."""
    return int(gib * GI)
