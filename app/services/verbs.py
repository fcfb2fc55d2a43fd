"""kube-scheduler's verbs as one service: may we answer, decide, may we still answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from app.services.gate import ALWAYS_OPEN, Refusal, check
from app.services.scheduling import Scheduling
from scheduler_core.model.kube import Pod
from scheduler_core.verbs import Decision, Explanation

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.services.reservation import NodeReservations


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
        reservations: NodeReservations | None = None,
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

    async def filter(self, pod: Pod, candidates: Sequence[str], hung_up: Callable[[], Awaitable[bool]]) -> Decision:
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
        return await self._scheduling.filter(pod, candidates, self.reserved)

    async def explain(self, pod: Pod, candidates: Sequence[str]) -> Explanation:
        """The decision `filter` would give, with plans and numbers, and without any promise.

        Raises:
            ResolutionError: as filter
            UnavailableError: as filter
        """
        self.check()
        return await self._scheduling.explain(pod, candidates, self.reserved)
