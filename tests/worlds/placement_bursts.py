"""A burst of pods on a tight cluster, with the product's decisions and Longhorn's placements, in virtual time and without an API server.

    kube-scheduler asks about one pod after the other → `Offers.decide` → one of the offered nodes, at random
    the claims' selected node → volumes are provisioned → the pod is bound → its volumes are attached within 10 ms
    Longhorn places each volume, 5 ms to 1.8 s later, by its own rule (`schedule_replica`) → the guard, if there is one → the replica is
    written → the node's status counts it, 0.36 to 2 s later

So the volumes of a pod are placed in random order, and several may meet on one status, as measured with Longhorn's control code. The
extender sees every object by watches, one for each kind, that are 5 to 100 ms behind. Pods that get no node are asked about again once
all others are done, for as long as that places one more.

Nothing is ever freed. So a volume that finds no disk on outdated status, which shows too much space, finds none later: it is stuck. Longhorn
places a best-effort volume on another node if its own has no disk for it, and it stays there.

All that is random is drawn from the seed and from what it is for, so that it is the same whatever decides.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from math import exp, log
from typing import Any

from structlog.testing import capture_logs

from app.evaluator import Evaluator
from app.extender.guard import PlacementGuard
from app.extender.metrics import Metrics
from app.extender.offers import Offers
from scheduler_core.convert.admission import JsonPatch, admission_request
from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.extender_settings import ExtenderSettings, GuardMode
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.guard.placement_guard import GuardOutcome, GuardState, Observation
from scheduler_core.longhorn.placement import schedule_replica
from scheduler_core.model.longhorn import Placement, Replica
from scheduler_core.structs import replace
from tests import builders as make
from tests.builders import GI, Object
from tests.worlds.placements import leader_context, placement_review
from tests.worlds.state_source import FakeStateSource, caller_waits
from tests.worlds.tight_clusters import TightClaim, TightCluster
from tests.worlds.virtual_time import run, virtual_loop

_SELECTED_NODE = "volume.kubernetes.io/selected-node"
# Spans in seconds; the defaults of the simulator, but for a status that is seconds behind.
_LEAST_WATCH = 0.005
_CYCLE = (0.01, 0.05)
_BINDING = (0.02, 0.1)
_PROVISIONING = (0.3, 0.6)
_PUBLISHING = (0.1, 0.11)
_PLACEMENT = (0.005, 1.8)
_WEBHOOK = (0.002, 0.01)
_STATUS = (0.36, 2.0)
# At most this much free space for each byte of the pod.
_MOST_FREE = 1.4
# Longer than status and watches together.
_QUIET_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Way:
    """A way to decide about pods, and about placements."""

    packing: Packing
    guard: bool = False  # whether the placement guard answers every placement; it is proven from the start
    watch_seconds: float = 0.1  # how far the extender's watches are behind at most


@dataclass(frozen=True, slots=True)
class BurstOutcome:
    """What came of one burst."""

    usable_nodes: int  # the nodes that the first pod could get
    usable_tight_nodes: int  # those of them with at most 40 % more space than it needs
    placed: int  # pods that got a node
    misplaced: int  # volumes whose replica is on another node than their pod
    stuck: int  # pods with a node and a volume that found no disk
    overbooked_disks: int  # disks with more than Longhorn's scheduling limit
    overbooked_gi: int  # what is too much there
    changed: int  # placements that the guard changed
    proven: bool  # whether the guard was proven at the end, and was never bypassed

    @property
    def wrong(self) -> bool:
        return bool(self.misplaced or self.stuck or self.overbooked_disks)


def run_burst(cluster: TightCluster, way: Way) -> BurstOutcome:
    """Runs one burst."""

    async def run_it() -> BurstOutcome:
        return await PlacementBurst(cluster, way).run()

    with capture_logs():
        return run(run_it())


class _Chance:
    """What is random, by what it is for."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def share(self, *purpose: object) -> float:
        return random.Random(" ".join(map(str, (self._seed, *purpose)))).random()  # noqa: S311 # repeatable, not secret

    def seconds(self, span: tuple[float, float], *purpose: object) -> float:
        least, most = span
        return least + (most - least) * self.share(*purpose)

    def logarithmic_seconds(self, span: tuple[float, float], *purpose: object) -> float:
        least, most = span
        return exp(self.seconds((log(least), log(most)), *purpose))

    def choose(self, names: Iterable[str], *purpose: object) -> str:
        """One of some names; without it, the choice among the others is as if it had never been one of them."""
        return min(names, key=lambda name: self.share(*purpose, name))


class _Objects:
    """The objects in the API server, and as the extender's watches have shown them."""

    def __init__(self, objects: Iterable[Object], chance: _Chance, watch_seconds: float) -> None:
        raws = list(objects)
        self._chance = chance
        self._watch = (_LEAST_WATCH, watch_seconds)
        # Longhorn's nodes have the names of the Kubernetes nodes, which never change here.
        changing = [raw for raw in raws if (raw["apiVersion"], raw["kind"]) != ("v1", "Node")]
        self._raws = {(raw["kind"], raw["metadata"]["name"]): raw for raw in changing}
        self._delivered: Counter[str] = Counter()
        self._delivered_at: dict[str, float] = {}
        self.current = FakeStateSource(*raws)
        self.shown = FakeStateSource(*raws)

    def get(self, kind: str, name: str) -> Object:
        """A copy of an object, to be changed and written."""
        return deepcopy(self._raws[kind, name])

    def all(self, kind: str) -> list[Object]:
        return [raw for (raw_kind, _), raw in self._raws.items() if raw_kind == kind]

    def write(self, raw: Object) -> None:
        """Creates or changes an object; its watch shows it later, and every change of a kind in order."""
        kind = raw["kind"]
        self._raws[kind, raw["metadata"]["name"]] = raw
        self.current.put(raw)
        self._delivered[kind] += 1
        loop = virtual_loop()
        delay = self._chance.seconds(self._watch, "watch", kind, self._delivered[kind])
        # Timers of the same time are in no order.
        at = max(loop.time() + delay, self._delivered_at.get(kind, 0.0) + 1e-6)
        self._delivered_at[kind] = at
        loop.call_at(at, self.shown.put, raw)


class PlacementBurst:
    """One burst: kube-scheduler and Longhorn are played here, everything else is the product."""

    def __init__(self, cluster: TightCluster, way: Way) -> None:
        self._cluster = cluster
        self._chance = _Chance(cluster.seed)
        self._objects = _Objects(cluster.objects(), self._chance, way.watch_seconds)
        self._pods: list[asyncio.Task[None]] = []
        settings = ExtenderSettings(enabled=True, placement_guard=GuardMode.ENFORCE if way.guard else GuardMode.OFF)
        clock = virtual_loop().time
        cache = self._objects.shown
        metrics = Metrics()
        self._evaluator = Evaluator(cache, FilterOptions(packing=way.packing))
        self._offers = Offers(cache, self._evaluator, lambda: settings, metrics, clock)
        context = leader_context(lambda: settings, self._offers.contenders, self._written)
        self._guard = PlacementGuard(cache, self._evaluator, context, metrics, clock)
        cache.subscribe("replicas", self._guard.note_delivery)
        if way.guard:
            self._evaluator.follow_guard(lambda: True, lambda: self._guard.allowances)

    async def _written(self, node: str) -> list[Replica]:
        replicas = self._objects.current.state().view.snapshot.replicas.values()
        return [replica for replica in replicas if replica.node_id == node]

    async def run(self) -> BurstOutcome:
        """Runs until no further pod gets a node."""
        usable_nodes = self._usable_nodes()
        waiting = list(self._cluster.pods)
        while True:
            refused = await self._schedule(waiting)
            await asyncio.gather(*self._pods)
            await asyncio.sleep(_QUIET_SECONDS)
            if len(refused) in (0, len(waiting)):
                return self._outcome(usable_nodes)
            waiting = refused

    def _usable_nodes(self) -> list[str]:
        state = self._objects.shown.state()
        pod = state.view.snapshot.pods["default", self._cluster.first_pod]
        contenders = make.competing(state)
        decision = filter_nodes(pod, list(self._cluster.nodes), state, self._evaluator.options, contenders)
        return decision.fitting_nodes

    # kube-scheduler

    async def _schedule(self, pods: Iterable[str]) -> list[str]:
        """Asks about pods one after the other; returns those that get no node."""
        refused: list[str] = []
        for name in pods:
            await asyncio.sleep(self._chance.seconds(_CYCLE, "cycle", name))
            raw = self._objects.get("Pod", name)
            decision = await self._offers.decide(make.as_pod(raw), list(self._cluster.nodes), caller_waits)
            if decision.fits:
                node = self._chance.choose(decision.fitting_nodes, "node", name)
                self._pods.append(asyncio.create_task(self._start(name, node)))
            else:
                refused.append(name)
                raw["status"]["conditions"] = [make.condition("PodScheduled", status=False, reason="Unschedulable")]
                self._objects.write(raw)
        return refused

    async def _start(self, name: str, node: str) -> None:
        claims = self._cluster.pods[name]
        await asyncio.sleep(self._chance.seconds(_BINDING, "claims", name))
        for claim in claims:
            raw = self._objects.get("PersistentVolumeClaim", claim.name)
            raw["metadata"]["annotations"] = {_SELECTED_NODE: node}
            self._objects.write(raw)
        await asyncio.gather(*(self._provision(claim) for claim in claims))
        await asyncio.sleep(self._chance.seconds(_BINDING, "pod", name))
        raw = self._objects.get("Pod", name)
        raw["spec"]["nodeName"] = node
        raw["status"]["conditions"] = [make.condition("PodScheduled")]
        self._objects.write(raw)
        await asyncio.gather(*(self._attach(claim, node) for claim in claims))

    # Longhorn

    async def _provision(self, claim: TightClaim) -> None:
        await asyncio.sleep(self._chance.seconds(_PROVISIONING, "provision", claim.name))
        raw = self._objects.get("PersistentVolumeClaim", claim.name)
        volume = _volume_of(claim)
        persistent_volume = make.persistent_volume(claim.name, handle=volume, uid=raw["metadata"]["uid"])
        persistent_volume["metadata"]["creationTimestamp"] = "2026-01-01T01:00:00Z"
        self._objects.write(make.volume(volume, claim.size, locality=claim.locality))
        self._objects.write(make.replica(_replica_of(claim), volume, size=claim.size, healthy=False))
        self._objects.write(persistent_volume)
        raw["spec"]["volumeName"] = persistent_volume["metadata"]["name"]
        raw["status"]["phase"] = "Bound"
        self._objects.write(raw)

    async def _attach(self, claim: TightClaim, node: str) -> None:
        """Attaches a volume to its pod's node, where Longhorn then places its replica."""
        await asyncio.sleep(self._chance.seconds(_PUBLISHING, "publish", claim.name))
        raw = self._objects.get("Volume", _volume_of(claim))
        raw["spec"]["nodeID"] = node
        self._objects.write(raw)
        await asyncio.sleep(self._chance.logarithmic_seconds(_PLACEMENT, "place", claim.name))
        wanted = self._choose_disk(claim, node)
        if wanted is None:
            return
        review = placement_review(wanted)
        await asyncio.sleep(self._chance.seconds(_WEBHOOK, "webhook", claim.name))
        replica: Object = review["request"]["object"]
        _apply(await self._guard.review(admission_request(review)), replica)
        self._objects.write(replica)
        await asyncio.sleep(self._chance.seconds(_STATUS, "status", claim.name))
        self._count(replica)

    def _choose_disk(self, claim: TightClaim, node: str) -> Placement | None:
        """Longhorn's choice by the status that the nodes have now, None for no disk."""
        view = self._objects.current.state().view
        volume = view.snapshot.volumes[_volume_of(claim)]
        affinity = node if claim.locality == "strict-local" else ""
        replica = replace(view.snapshot.replicas[_replica_of(claim)], hard_node_affinity=affinity)
        choices = schedule_replica(view.cluster, volume, replica, view.replicas_of(volume.name)).choices
        candidates = {choice.candidate.disk_uuid: choice.candidate for choice in choices}
        if not candidates:
            return None
        chosen = candidates[self._chance.choose(candidates, "disk", claim.name)]
        return Placement(
            replica=replica.name,
            volume=volume.name,
            size=replica.size,
            node=chosen.node.name,
            disk=chosen.disk_uuid,
            disk_path=chosen.disk.path,
            hard_node_affinity=affinity,
        )

    def _count(self, replica: Object) -> None:
        raw = self._objects.get("Node", replica["spec"]["nodeID"])
        statuses = raw["status"]["diskStatus"].values()
        status = next(status for status in statuses if status["diskUUID"] == replica["spec"]["diskID"])
        size = int(replica["spec"]["volumeSize"])
        status["storageScheduled"] += size
        status["scheduledReplica"][replica["metadata"]["name"]] = size
        self._objects.write(raw)

    def _outcome(self, usable_nodes: list[str]) -> BurstOutcome:
        replicas = {raw["spec"]["volumeName"]: raw["spec"] for raw in self._objects.all("Replica")}
        nodes = {raw["metadata"]["name"]: raw["spec"]["nodeName"] for raw in self._objects.all("Pod")}
        bound = {name: node for name, node in nodes.items() if node}
        places = {name: [replicas[_volume_of(claim)]["nodeID"] for claim in self._cluster.pods[name]] for name in bound}
        excess = self._excess(replicas.values())
        activity = self._guard.activity
        most_free = _MOST_FREE * sum(claim.size for claim in self._cluster.pods[self._cluster.first_pod])
        return BurstOutcome(
            usable_nodes=len(usable_nodes),
            usable_tight_nodes=sum(self._cluster.free_space(name) <= most_free for name in usable_nodes),
            placed=len(bound),
            misplaced=sum(place not in ("", bound[name]) for name in bound for place in places[name]),
            stuck=sum("" in volumes for volumes in places.values()),
            overbooked_disks=len(excess),
            overbooked_gi=sum(excess) // GI,
            changed=activity.outcomes.get(GuardOutcome.CHANGED, 0),
            proven=activity.health is GuardState.PROVEN and set(activity.observations) == {Observation.CONFIRMED},
        )

    def _excess(self, replicas: Iterable[dict[str, Any]]) -> list[int]:
        """The bytes that are too many on each overbooked disk."""
        booked: Counter[str] = Counter()
        for replica in replicas:
            booked[replica["diskID"]] += int(replica["volumeSize"])
        free = {
            f"{name}-d{number}": disk.free * GI
            for name, disks in self._cluster.nodes.items()
            for number, disk in enumerate(disks)
        }
        return [booked[uuid] - size for uuid, size in free.items() if booked[uuid] > size]


def _volume_of(claim: TightClaim) -> str:
    return f"pvc-uid-{claim.name}"


def _replica_of(claim: TightClaim) -> str:
    return f"{_volume_of(claim)}-r"


def _apply(patch: JsonPatch, replica: Object) -> None:
    for change in patch:
        if change["op"] != "test":
            *parents, key = change["path"].removeprefix("/").split("/")
            parent = replica
            for name in parents:
                parent = parent[name]
            parent[key] = change["value"]
