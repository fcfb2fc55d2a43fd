"""Runs the core's decisions: on the current view, in slices so that the event loop serves others meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, TypeVar

from app.decisions.state_source import ViewSource
from scheduler_core.cluster.view import View
from scheduler_core.cooperative import Steps
from scheduler_core.errors import ResolutionError
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.extender.filter import Decision, Explanation, Options, Others, explain_nodes, filter_nodes
from scheduler_core.extender.volume_facts import Plans, facts_for
from scheduler_core.generic.volume_facts import LonghornFacts
from scheduler_core.model.kube import Pod
from scheduler_core.volumes.resolve import MissingObjectError, resolve, unseen_classes

# Longer than most decisions take in all, short enough that nobody notices waiting for it.
SLICE_SECONDS: Final = 0.005
# Single reads on behalf of one question; a pod that names more objects nobody has seen is asked about again later.
MOST_FETCHES: Final = 8
_Result = TypeVar("_Result")


class Scheduling:
    """Answers questions about pods from the current view."""

    def __init__(self, source: ViewSource, options: Options, clock: Callable[[], float] = perf_counter) -> None:
        self._source = source
        self._options = options
        self._clock = clock
        self._plans = Plans()

    @property
    def options(self) -> Options:
        """How decisions are made."""
        return self._options

    @property
    def view(self) -> View:
        """The view that the next question is answered from."""
        return self._source.memory().view

    async def filter(self, pod: Pod, candidates: Sequence[str], others: Callable[[], Others] = Others) -> Decision:
        """Which candidates can hold the pod's volumes; `others` tells what other pods have then.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
        """
        return await self._decide(pod, lambda memory: filter_nodes(pod, candidates, memory, self._options, others()))

    async def filter_unassisted(self, pod: Pod, candidates: Sequence[str], others: Others) -> Decision:
        """The same from the view as it is: nothing is looked for, so that a caller may hold a lock meanwhile.

        Raises:
            MissingObjectError: the view lacks an object that the pod names; see `look`
            ResolutionError: as filter
        """
        return await self.run(filter_nodes(pod, candidates, self._source.memory(), self._options, others))

    async def look(self, pod: Pod) -> None:
        """Looks for what the pod names and the view lacks, so that deciding need not.

        Raises:
            ResolutionError: as filter
        """
        await self._decide(pod, lambda memory: _resolved(pod, memory))

    async def explain(self, pod: Pod, candidates: Sequence[str], others: Callable[[], Others] = Others) -> Explanation:
        """The same decision with plans and numbers.

        Raises:
            ResolutionError: as filter
        """
        return await self._decide(pod, lambda memory: explain_nodes(pod, candidates, memory, self._options, others()))

    async def facts(self, pod: Pod, candidates: Sequence[str], others: Callable[[], Others] = Others) -> LonghornFacts:
        """The same decision as Longhorn's rules of a policy read it.

        Raises:
            ResolutionError: as filter
        """
        return await self._decide(
            pod, lambda memory: facts_for(pod, candidates, memory, self._options, others(), self._plans)
        )

    async def _decide(self, pod: Pod, ask: Callable[[Memory], Steps[_Result]]) -> _Result:
        """Asks; where the view lacks something the pod names, looks for it and asks again."""
        unseen = unseen_classes(pod, self.view)
        fetches = len(unseen)
        if fetches > MOST_FETCHES:  # a class nobody has looked for must not count as somebody else's
            raise ResolutionError(
                f"pod {pod.key} names {fetches} StorageClasses that are not there: {', '.join(unseen)}"
            )
        for name in unseen:
            await self._source.fetch(MissingObjectError("StorageClass", name, f"pod {pod.key}"))
        while True:
            try:
                return await self.run(ask(self._source.memory()))
            except MissingObjectError as missing:
                fetches += 1
                if fetches > MOST_FETCHES or not await self._source.fetch(missing):
                    raise

    async def run(self, steps: Steps[_Result]) -> _Result:
        """Runs a decision of the core to its end, in slices."""
        pause_at = self._clock() + SLICE_SECONDS
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: _Result = done.value
                return result
            if self._clock() >= pause_at:
                await asyncio.sleep(0)
                pause_at = self._clock() + SLICE_SECONDS


def _resolved(pod: Pod, memory: Memory) -> Steps[None]:
    resolve(pod, memory.view)
    yield
