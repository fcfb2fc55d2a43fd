"""What the stand-alone scheduler knows of a live cluster: nodes, services and pods, watched, and what it bound itself but has not seen yet.

Data flow: `GenericCache` watches, and asks the `Cluster` how each pod counts → `State` (`scheduler_core.generic.cluster_state`); and a `Listener` hears
which pods want a node, and that something has changed that may help those that found none.

**Assumptions.** A bound pod counts on its node from the moment it is decided, before the API server has answered, so that the next pod is decided
beside it. The assumption ends when the pod is seen with a node, when it is gone or another one of its name has come, or when
binding it has failed. Being seen without a node ends nothing: such news is older than the binding. A `Witness` is told
of the pod's landing, because its own watch may not have brought that yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app.kube.client import KubeClient
from app.kube.generic_cache import GenericCache
from app.kube.reflector import Timing
from scheduler_core.convert.binding import Applicant
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.extender_policy import SERVICES
from scheduler_core.model.generic import Pod, PodKey


class Listener(Protocol):
    """Who is told; called on the event loop, and must not block."""

    def wants(self, applicant: Applicant) -> None:
        """A pod wants a node, or has changed while it does."""

    def settled_pod(self, key: PodKey) -> None:
        """A pod wants no node any more: it has one, or is gone."""

    def helped(self) -> None:
        """Something has changed that may help pods that found no node."""


class Witness(Protocol):
    """Who knows pods from another watch, and may hear later than this one where they are; called as a `Listener` is."""

    def landed(self, found: Applicant, node: str) -> None:
        """A pod that was assumed, as it was then, is seen on a node."""

    def left(self, key: PodKey) -> None:
        """A pod has finished, is gone, or another one of its name has come."""


class _Nobody:
    def landed(self, found: Applicant, node: str) -> None:
        pass

    def left(self, key: PodKey) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Assumed:
    found: Applicant
    node: str

    @property
    def pod(self) -> Pod:
        return self.found.pod


class Cluster:
    """What was seen, with what is assumed; everything happens on the event loop that runs `run`."""

    def __init__(
        self, client: KubeClient, scheduler: str, listener: Listener, timing: Timing, *, stale_after: float
    ) -> None:
        self._scheduler = scheduler
        self._listener = listener
        self._witness: Witness = _Nobody()
        self._assumed: dict[PodKey, _Assumed] = {}
        self._cache = GenericCache(client, timing, stale_after, reader=self, whose="")
        self._cache.want(SERVICES)

    def tell(self, witness: Witness) -> None:
        """Sets who hears what becomes of assumed pods."""
        self._witness = witness

    async def run(self) -> None:
        """Watches until cancelled."""
        await self._cache.run()

    async def catch_up(self) -> None:
        """Returns once everything that has happened before this call is in the state."""
        await self._cache.catch_up()

    @property
    def problem(self) -> str:
        """Why nothing can be decided now, in one sentence; "" if it can."""
        return self._cache.problem(SERVICES)

    @property
    def state(self) -> State:
        """The cluster now, assumptions included."""
        return self._cache.state()

    @property
    def assumed(self) -> Mapping[PodKey, str]:
        """The nodes of pods that were bound and are not seen there yet."""
        return {key: entry.node for key, entry in self._assumed.items()}

    def seen(self, key: PodKey) -> Applicant | None:
        """A pod as it was seen last."""
        return self._cache.pod(key)

    def wants_node(self, found: Applicant | None) -> bool:
        """Whether a pod is one of this scheduler's, and waits for a node."""
        return found is not None and found.waits and found.scheduler == self._scheduler

    def assume(self, found: Applicant, node: str) -> None:
        """From now on the pod, which was seen and is not gone, counts on this node."""
        self._assumed[found.pod.key] = _Assumed(found, node)
        self._cache.recount(found.pod.key)

    def forget(self, found: Applicant) -> None:
        """The pod was not bound after all."""
        key = found.pod.key
        assumed = self._assumed.get(key)
        if assumed is None or assumed.pod.uid != found.pod.uid:
            return
        del self._assumed[key]
        self._cache.recount(key)
        self._listener.helped()

    def counted(self, found: Applicant) -> Pod:
        """Called by the cache."""
        assumed = self._assumed.get(found.pod.key)
        return found.pod if assumed is None else replace(assumed.pod, node_name=assumed.node)

    def changed(self, kind: str, key: Any, before: Any, value: Any) -> None:
        """Called by the cache."""
        if kind == "pods":
            self._pod(key, before, value)
        elif kind == "services" or value is not None:  # a node that is gone helps nobody
            self._listener.helped()

    def _pod(self, key: PodKey, before: Applicant | None, value: Applicant | None) -> None:
        assumed = self._assumed.get(key)
        if assumed is not None and value is not None and value.pod.node_name and value.pod.uid == assumed.pod.uid:
            self._witness.landed(assumed.found, value.pod.node_name)
        if before is not None and (value is None or value.pod.finished or value.pod.uid != before.pod.uid):
            self._witness.left(key)
        if assumed is not None and (value is None or value.pod.node_name or value.pod.uid != assumed.pod.uid):
            del self._assumed[key]
            assumed = None
        if before is not None and before.pod.node_name:
            self._listener.helped()  # it was on a node, and is gone or different
        if assumed is not None:  # whoever assumed it learns soon enough what came of it
            return
        if value is not None and self.wants_node(value):
            self._listener.wants(value)
        else:
            self._listener.settled_pod(key)
