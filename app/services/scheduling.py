"""The owner of the view and its memory: runs the core's decisions in slices so that the event loop serves others meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, TypeVar

from scheduler_core.memory import Memory
from scheduler_core.model.kube import Pod
from scheduler_core.steps import Steps
from scheduler_core.verbs import Decision, Explanation, Options, explain_nodes, filter_nodes
from scheduler_core.view import View

# Longer than most decisions take in all, short enough that nobody notices waiting for it.
SLICE_SECONDS: Final = 0.005
_Result = TypeVar("_Result")


class Scheduling:
    """Answers questions about pods from the current view."""

    def __init__(self, view: View, options: Options, clock: Callable[[], float] = perf_counter) -> None:
        self._memory = Memory(view)
        self._options = options
        self._clock = clock

    @property
    def view(self) -> View:
        """The view that the next question is answered from."""
        return self._memory.view

    async def filter(self, pod: Pod, candidates: Sequence[str]) -> Decision:
        """Which candidates can hold the pod's volumes.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
        """
        return await self._run(filter_nodes(pod, candidates, self._memory, self._options))

    async def explain(self, pod: Pod, candidates: Sequence[str]) -> Explanation:
        """The same decision with plans and numbers.

        Raises:
            ResolutionError: as filter
        """
        return await self._run(explain_nodes(pod, candidates, self._memory, self._options))

    async def _run(self, steps: Steps[_Result]) -> _Result:
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
