"""kube-scheduler's verbs as one service: may we answer, decide, may we still answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.decisions.evaluator import Scheduling
from app.extender.availability import ALWAYS_OPEN, HungUp, Refusal, check
from scheduler_core.extender.filter import NOBODY, Decision, Explanation, Others
from scheduler_core.generic.volume_facts import LonghornFacts
from scheduler_core.model.kube import Pod


class Reservations(Protocol):
    """How pods are kept from taking the same room: the proposal's node reservations, or offers."""

    def others(self) -> Others:
        """What counts beside a pod that is asked about now."""

    def reserved(self) -> frozenset[str]:
        """The nodes that take no new volumes now."""

    async def filter(self, pod: Pod, candidates: Sequence[str], hung_up: HungUp) -> Decision:
        """Decides about a pod, and keeps what it will take for it.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
            CallerGoneError: the caller did not wait
        """

    async def adopt(self, undisturbed: float) -> None:
        """Keeps what a predecessor kept, as far as the cluster tells; it answered last at least so many seconds ago."""

    async def settled(self) -> None:
        """Returns once nothing is kept that only this process knows of."""

    def clear(self) -> None:
        """Forgets everything: somebody else leads."""


class Verbs:
    """What the routes call. Without `reservations`, for a snapshot file, nothing is reserved.

    Args:
        refusal: why no question is taken now
        late_refusal: why a question that was taken is not answered now; without it the same. One that hands over takes no
            new questions, but answers those it has
    """

    def __init__(
        self,
        scheduling: Scheduling,
        refusal: Refusal = ALWAYS_OPEN,
        reservations: Reservations | None = None,
        late_refusal: Refusal | None = None,
    ) -> None:
        self._scheduling = scheduling
        self._refusal = refusal
        self._late_refusal = late_refusal or refusal
        self._reservations = reservations

    def check(self) -> None:
        """Passes if questions are answered now.

        Raises:
            UnavailableError: they are not; another process may answer
        """
        check(self._refusal)

    def reserved(self) -> frozenset[str]:
        """The nodes that take no new volumes now."""
        return self._reservations.reserved() if self._reservations else frozenset()

    async def filter(self, pod: Pod, candidates: Sequence[str], hung_up: HungUp) -> Decision:
        """Which candidates can hold the pod's volumes; the answer is a promise as far as reservations go.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
            UnavailableError: another process answers
            CallerGoneError: nobody waits for the answer
        """
        self.check()
        if self._reservations is None:
            return await self._scheduling.filter(pod, candidates)

        async def over() -> bool:
            check(self._late_refusal)
            return await hung_up()

        decision = await self._reservations.filter(pod, candidates, over)
        check(self._late_refusal)
        return decision

    async def preempt(self, pod: Pod, candidates: Sequence[str]) -> Decision:
        """The same decision without any promise.

        Raises:
            ResolutionError: as filter
            UnavailableError: as filter
        """
        self.check()
        decision = await self._scheduling.filter(pod, candidates, self._others)
        check(self._late_refusal)
        return decision

    async def explain(self, pod: Pod, candidates: Sequence[str]) -> Explanation:
        """The decision `filter` would give, with plans and numbers, and without any promise.

        Raises:
            ResolutionError: as filter
            UnavailableError: as filter
        """
        self.check()
        explanation = await self._scheduling.explain(pod, candidates, self._others)
        check(self._late_refusal)
        return explanation

    async def facts(self, pod: Pod, candidates: Sequence[str]) -> LonghornFacts:
        """The decision `filter` would give as a policy's priorities read it, without any promise.

        Raises:
            ResolutionError: as filter
            UnavailableError: as filter
        """
        self.check()
        facts = await self._scheduling.facts(pod, candidates, self._others)
        check(self._late_refusal)
        return facts

    def _others(self) -> Others:
        return self._reservations.others() if self._reservations else NOBODY
