"""What a policy's Longhorn rules read, beside what pods that were bound before will take: of a live cluster, or of a snapshot.

Binding a pod is enough for its volumes to count: what volumes demand of nodes is derived from pods that have one
(`scheduler_core.demand.derive`). So a pod that was bound and is not seen on its node yet is put there in a view for one decision.

Seen by whom matters: whoever assumes pods watches them on its own, and so does `ClusterCache`, whose watch may lag. What has *landed* by the first
watch is put on its node until the second shows that, too, or a later pod of the name, or the first says that it has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from time import perf_counter
from typing import Final

from rpds import HashTrieMap

from app.decisions.evaluator import Scheduling
from app.kube.cluster_cache import ClusterCache
from app.scheduler.decide import FactsFor
from scheduler_core.cluster.update import Changes, advance
from scheduler_core.cluster.view import View
from scheduler_core.convert.binding import Applicant
from scheduler_core.cooperative import Steps
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.contention import Joint
from scheduler_core.evaluation.equivalence_cache import Standing
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Options, Others
from scheduler_core.extender.volume_facts import Plans, facts_for
from scheduler_core.generic.volume_facts import LonghornFacts
from scheduler_core.model import kube
from scheduler_core.model.generic import PodKey
from scheduler_core.model.snapshot import Snapshot

_PODS: Final = "pods"


def bound_pods(pods: Iterable[tuple[kube.Pod | None, str]]) -> Changes:
    """The changes of a view by which pods that mount claims are on their nodes."""
    return {
        (_PODS, (pod.namespace, pod.name)): replace(pod, node_name=node) for pod, node in pods if pod and pod.volumes
    }


class LiveLonghorn:
    """A live cluster's; `cache` is kept current by whoever runs it."""

    def __init__(self, cache: ClusterCache, options: Options, now: Callable[[], datetime]) -> None:
        self.cache = cache
        self._now = now
        self._options = options
        self._scheduling = Scheduling(cache, options, perf_counter)
        self._joint = Joint()
        self._standing = Standing()
        self._plans = Plans()
        self._landed: dict[PodKey, kube.Pod] = {}

    def landed(self, found: Applicant, node: str) -> None:
        """A pod that was bound is on this node, which this cache may not have heard yet."""
        if found.mounts is not None and found.mounts.volumes:
            self._landed[found.pod.key] = replace(found.mounts, node_name=node)
            self._forget_heard()

    def left(self, key: PodKey) -> None:
        """Whatever this cache still hears of the pod is old."""
        self._landed.pop(key, None)

    def _forget_heard(self) -> None:
        pods = self.cache.memory().view.snapshot.pods
        heard = [key for key, pod in self._landed.items() if key in pods and _heard(pod, pods[key])]
        for key in heard:
            del self._landed[key]

    @property
    def version(self) -> int:
        """Differs whenever something that decisions read has changed."""
        return self.cache.memory().view.version

    async def look(self, found: Applicant) -> None:
        """Looks for what a pod names and no watch has brought yet.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
        """
        if found.mounts is not None:
            await self._scheduling.look(found.mounts)

    def facts(self, found: Applicant, assumed: Changes) -> FactsFor:
        """What a pod's volumes find on some nodes, beside pods that are assumed to be on theirs (see `bound_pods`)."""
        self._forget_heard()
        changes = {**bound_pods((pod, pod.node_name) for pod in self._landed.values()), **assumed}
        memory, demands = _with_bound(self.cache.memory(), self.cache.demands(), changes, self._now())
        others = Others(demands=demands, joint=self._joint, standing=self._standing)
        return lambda names: _facts(found, names, memory, self._options, others, self._plans)


def _heard(bound: kube.Pod, shown: kube.Pod) -> bool:
    """Whether a view has come as far as that a pod was bound: it shows that, or its end, or a later pod of its name."""
    if shown.uid == bound.uid:
        return bool(shown.node_name) or not shown.live
    return shown.version >= bound.version


class SnapshotLonghorn:
    """A snapshot's, as its pods are bound one after the other."""

    def __init__(self, snapshot: Snapshot, options: Options, now: datetime) -> None:
        self._options = options
        self._now = now
        # Nothing but pods will change; a kind that the file does not list stays one of which nothing is known.
        self._memory = Memory(View.of(replace(snapshot, pods=HashTrieMap(snapshot.pods)), now))
        self._demands = Demands.of(self._memory.view)
        self._joint = Joint()
        self._standing = Standing()
        self._plans = Plans()

    def facts(self, found: Applicant) -> FactsFor:
        """What a pod's volumes find on some nodes."""
        others = Others(demands=self._demands, joint=self._joint, standing=self._standing)
        return lambda names: _facts(found, names, self._memory, self._options, others, self._plans)

    def bound(self, found: Applicant, node: str) -> None:
        """A pod is on this node from now on."""
        changes = bound_pods([(found.mounts, node)])
        self._memory, self._demands = _with_bound(self._memory, self._demands, changes, self._now)


def _facts(  # noqa: PLR0913, PLR0917 # as facts_for
    found: Applicant, names: Sequence[str], memory: Memory, options: Options, others: Others, plans: Plans
) -> Steps[LonghornFacts]:
    if found.mounts is None:
        return LonghornFacts()
    return (yield from facts_for(found.mounts, names, memory, options, others, plans))


def _with_bound(memory: Memory, demands: Demands, changes: Changes, now: datetime) -> tuple[Memory, Demands]:
    """The same with some pods on their nodes."""
    if not changes:
        return memory, demands
    advanced = advance(memory.view, changes, now)
    return memory.after(advanced.view, advanced.touched), demands.after(memory.view, changes, advanced.view)
