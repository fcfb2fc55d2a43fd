"""Evaluates pods against the current state, and fetches objects that a pod names and no watch has delivered yet."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Final, TypeVar

from app.decisions.state_source import StateSource
from app.runtime.decision_thread import DecisionThread, Urgency
from app.runtime.time_slices import PAUSE_PER_SECOND, run_in_background, run_in_slices, work_in_background
from scheduler_core.cluster.view import View
from scheduler_core.cooperative import Cooperative
from scheduler_core.errors import MissingObjectError, ResolutionError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.allowed_placements import await_allowed
from scheduler_core.extender.decision import NO_CONTENDERS, Contenders, Decision, FilterOptions, resolve_candidates
from scheduler_core.extender.explain import Explanation, explain_nodes
from scheduler_core.extender.filter import filter_nodes
from scheduler_core.extender.longhorn_facts import PlanCache
from scheduler_core.extender.placement_guard import STEPS_PER_PLACEMENT, guards_every_node
from scheduler_core.generic.longhorn_facts import LonghornFacts
from scheduler_core.model.kube import Pod, is_same_pod
from scheduler_core.model.replica_placement import Placement
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.resolve import exceeds_attach_limit, missing_storage_classes

# Single reads for one request; a pod that names more undelivered objects is refused and retried later.
MAX_FETCHES: Final = 8
MAX_POD_FETCHES: Final = 4
QUIET_SECONDS: Final = 0.25
_POD_RECHECK_INTERVAL: Final = 0.05
_POD_RECHECKS: Final = 20
_Result = TypeVar("_Result")


def no_contenders() -> Contenders:
    return NO_CONTENDERS


class Evaluator:
    """Runs the core's decisions. `contenders` returns what other pods have when a decision begins.

    Args:
        thread: where decisions run; None: on the event loop, in slices
    """

    def __init__(
        self,
        source: StateSource,
        options: FilterOptions,
        clock: Callable[[], float] = perf_counter,
        thread: DecisionThread | None = None,
    ) -> None:
        self._source = source
        self._thread = thread
        self._options = options
        self._options_with_guard = options.with_guard()
        self._guard_proven: Callable[[], bool] = lambda: False
        self._allowances: Callable[[], Sequence[Placement]] = tuple
        self._clock = clock
        self._plans = PlanCache()
        # Requests about pods that do not exist must not become a flood of requests to the API server.
        self._pod_fetches = asyncio.Semaphore(MAX_POD_FETCHES)
        self._decisions = 0
        self._latest_decision = -math.inf
        self._no_decision = asyncio.Event()
        self._no_decision.set()
        self._explanations = 0
        self._explanation = asyncio.Lock()

    def follow_guard(self, proven: Callable[[], bool], allowances: Callable[[], Sequence[Placement]] = tuple) -> None:
        """Makes later decisions count what the placement guard allowed, as `FilterOptions.with_guard` says while the
        guard is proven.

        `allowances`: returns the placements that it allowed and that no watch may have shown yet.
        """
        self._guard_proven = proven
        self._allowances = allowances

    @property
    def options(self) -> FilterOptions:
        guarded = self._guard_proven() and guards_every_node(self.view)
        return self._options_with_guard if guarded else self._options

    @property
    def explanations(self) -> int:
        return self._explanations

    @property
    def state(self) -> ClusterState:
        return self._source.state()

    @property
    def view(self) -> View:
        return self._source.state().view

    async def filter(
        self, pod: Pod, candidates: Sequence[str], contenders: Callable[[], Contenders] = no_contenders
    ) -> Decision:
        """Decides which candidates can hold the pod's volumes.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
        """
        return await self._run(pod, lambda state: filter_nodes(pod, candidates, state, self.options, contenders()))

    async def filter_without_fetch(self, pod: Pod, candidates: Sequence[str], contenders: Contenders) -> Decision:
        """Decides as `filter`, but fetches no missing objects. Allowed placements count where they are. There is no
        I/O, so a caller may hold a lock meanwhile. Placements that are allowed meanwhile count, too.

        Raises:
            MissingObjectError: the state lacks an object that the pod names; see `fetch_missing`
            ResolutionError: as filter
        """
        state = self._source.state()
        decision = await self.run(filter_nodes(pod, candidates, state, self.options, contenders))
        counted: Sequence[Placement] = ()
        while (allowances := self._allowances()) != counted:
            counted = allowances
            decision = await self.run(await_allowed(decision, state.view, counted, Budget(STEPS_PER_PLACEMENT)))
        return decision

    async def fetch_missing(self, pod: Pod) -> None:
        """Fetches what the pod names and the state lacks.

        Raises:
            ResolutionError: as filter
        """
        await self._run(pod, lambda state: _resolve(pod, state, self.options))

    async def has_pod(self, pod: Pod) -> bool:
        """Whether this very pod, by its UID, exists in the cluster. The API server is asked about a pod that no watch
        has delivered yet.

        Raises:
            ResolutionError: the API server does not answer, the pod cannot be read, or too many pods are looked for
        """
        for _ in range(_POD_RECHECKS):
            if is_same_pod(self.view.snapshot.pods.get((pod.namespace, pod.name)), pod):
                return True
            try:
                async with asyncio.timeout(_POD_RECHECK_INTERVAL):
                    await self._pod_fetches.acquire()
            except TimeoutError:
                # A watch may have delivered it meanwhile.
                continue
            try:
                return is_same_pod(await self._source.read_pod(pod.namespace, pod.name), pod)
            finally:
                self._pod_fetches.release()
        raise ResolutionError(f"pod {pod.key} is not known yet, and too many other pods are looked for")

    async def explain(
        self, pod: Pod, candidates: Sequence[str], contenders: Callable[[], Contenders] = no_contenders
    ) -> Explanation:
        """Decides as `filter`, with plans and numbers. Explanations run one at a time, and only while no decision runs,
        because kube-scheduler waits for decisions.

        Raises:
            ResolutionError: as filter
        """
        self._explanations += 1
        try:
            async with self._explanation:
                return await self._run(
                    pod,
                    lambda state: explain_nodes(pod, candidates, state, self.options, contenders()),
                    self.run_between_decisions,
                )
        finally:
            self._explanations -= 1

    async def facts(
        self, pod: Pod, candidates: Sequence[str], contenders: Callable[[], Contenders] = no_contenders
    ) -> LonghornFacts:
        """Decides as `filter`, in the form that a policy's Longhorn rules read.

        Raises:
            ResolutionError: as filter
        """
        return await self._run(
            pod, lambda state: self._plans.longhorn_facts(pod, candidates, state, self.options, contenders())
        )

    async def run(self, computation: Cooperative[_Result]) -> _Result:
        """Runs a computation of the core to its end. It must read nothing that the event loop changes."""
        self._decisions += 1
        self._no_decision.clear()
        try:
            if self._thread is not None:
                return await self._thread.run(computation)
            return await run_in_slices(computation, self._clock)
        finally:
            self._decisions -= 1
            self._latest_decision = self._clock()
            if not self._decisions:
                self._no_decision.set()

    def expecting_decision(self) -> AbstractContextManager[None]:
        """Lets nothing else run in the thread while a decision is about to be asked for."""
        return nullcontext() if self._thread is None else self._thread.expecting()

    async def run_between_decisions(self, computation: Cooperative[_Result]) -> _Result:
        if self._thread is not None:
            return await self._thread.run(computation, Urgency.EXPLANATION)
        return await run_in_slices(computation, self._clock, self._no_decision)

    async def run_in_background(
        self, computation: Cooperative[_Result], pause_per_second: float = PAUSE_PER_SECOND
    ) -> _Result:
        """Runs a computation that nothing waits for: in a tenth of the time or in what `pause_per_second` leaves, while no decision runs,
        and once none has for `QUIET_SECONDS`, because in a burst the next decision is about to come.
        """
        if self._thread is None:
            return await run_in_background(computation, self._clock, self._wait_for_quiet, pause_per_second)
        result: list[_Result] = []
        while not result:
            await self._wait_for_quiet()
            seconds = await self._thread.run(work_in_background(computation, self._clock, result), Urgency.BACKGROUND)
            await asyncio.sleep(pause_per_second * seconds)
        return result[0]

    async def _wait_for_quiet(self) -> None:
        await self._no_decision.wait()
        while (seconds := self._latest_decision + QUIET_SECONDS - self._clock()) > 0:
            await asyncio.sleep(seconds)
            await self._no_decision.wait()

    async def _run(
        self,
        pod: Pod,
        decide: Callable[[ClusterState], Cooperative[_Result]],
        run: Callable[[Cooperative[_Result]], Awaitable[_Result]] | None = None,
    ) -> _Result:
        run = run or self.run
        classes = missing_storage_classes(pod, self.view)
        fetches = len(classes)
        # A class that was not fetched must not pass for another driver's.
        if fetches > MAX_FETCHES:
            raise ResolutionError(
                f"pod {pod.key} names {fetches} StorageClasses that are not there: {', '.join(classes)}"
            )
        for name in classes:
            await self._source.fetch(MissingObjectError("StorageClass", name, f"pod {pod.key}"))
        while True:
            try:
                return await run(decide(self._source.state()))
            except MissingObjectError as missing:
                fetches += 1
                if fetches > MAX_FETCHES or not await self._source.fetch(missing):
                    raise


def _resolve(pod: Pod, state: ClusterState, options: FilterOptions) -> Cooperative[None]:
    if not exceeds_attach_limit(pod):
        yield from resolve_candidates(pod, state.view.snapshot.nodes, state.view, options)
