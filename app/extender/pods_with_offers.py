"""The pods that have offers, and which of them have changed.

Data flow: a watch delivers a pod or a claim → the pod is due → `offers` observes it: at the next request, at once if nothing was
delivered lately, or with all that is gathered meanwhile.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.evaluator import LiveStateSource
from app.runtime import wait_at_most
from scheduler_core.decide.offered_nodes import current_pod
from scheduler_core.model import kube, snapshot
from scheduler_core.offers.outstanding_offer import OFFER_LIFETIME
from scheduler_core.structs import Struct

# After a look, changes are gathered for the shorter time while a request waits for them, and for both times while none does. Each look
# makes a state of the cluster, and a burst delivers dozens of changes for each pod. A request that is decided looks at them anyway.
_GATHER_SECONDS = 0.02
_MORE_GATHER_SECONDS = 0.25


class WatchedPod(Struct):
    """A pod that has an offer."""

    pod: kube.Pod
    claims: frozenset[snapshot.NamespacedName]
    seen: bool  # whether some view had the pod
    unseen_until: float


class WatchedPods:
    """Owner of the pods, by UID, and of what has changed."""

    def __init__(self, cache: LiveStateSource, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._clock = clock
        self._pods: dict[str, WatchedPod] = {}
        self._due: set[str] = set()
        self._claims: set[snapshot.NamespacedName] = set()
        self._changed = asyncio.Event()
        self._awaiting = 0
        self._awaited = asyncio.Event()
        cache.subscribe("pods", self._note_pod)
        cache.subscribe("claims", self._note_claim)

    def __bool__(self) -> bool:
        return bool(self._pods)

    def get(self, uid: str) -> WatchedPod | None:
        return self._pods.get(uid)

    def add(self, pod: kube.Pod) -> None:
        """Watches a pod, which is due at once."""
        if pod.uid not in self._pods:
            # A pod that is deleted before it is observed was in the view.
            seen = current_pod(pod, self._cache.state().view) is not None
            claims = frozenset((pod.namespace, volume.claim) for volume in pod.volumes)
            self._pods[pod.uid] = WatchedPod(pod, claims, seen, self._clock() + OFFER_LIFETIME)
        self.note_change(pod.uid)

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)

    async def wait(self, seconds: float) -> None:
        await wait_at_most(self._changed, seconds)
        self._changed.clear()

    @contextmanager
    def awaiting_changes(self) -> Iterator[None]:
        """Shortens how long changes are gathered: a request, or a hand-over, waits for them."""
        self._awaiting += 1
        self._awaited.set()
        try:
            yield
        finally:
            self._awaiting -= 1
            if not self._awaiting:
                self._awaited.clear()

    async def gather_changes(self) -> None:
        await asyncio.sleep(_GATHER_SECONDS)
        await wait_at_most(self._awaited, _MORE_GATHER_SECONDS)

    def take_changed(self) -> list[WatchedPod]:
        """Returns the pods that are due, and those that no view has had for too long, which are gone."""
        now = self._clock()
        due = []
        for uid, watched in self._pods.items():
            overdue = not watched.seen and now >= watched.unseen_until
            watched.seen = watched.seen or overdue
            if overdue or uid in self._due or not watched.claims.isdisjoint(self._claims):
                due.append(watched)
        self._due.clear()
        self._claims.clear()
        return due

    def note_change(self, uid: str) -> None:
        self._due.add(uid)
        self._changed.set()

    def _note_pod(self, before: object | None, after: object | None) -> None:
        for pod in (before, after):
            if isinstance(pod, kube.Pod) and pod.uid in self._pods:
                self.note_change(pod.uid)

    def _note_claim(self, before: object | None, after: object | None) -> None:
        claim = before or after
        if self._pods and isinstance(claim, kube.Claim):
            self._claims.add((claim.namespace, claim.name))
            self._changed.set()
