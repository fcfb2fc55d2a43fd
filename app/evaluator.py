"""Evaluates pods against the current state, and fetches objects that a pod names and no watch has delivered yet. The state
comes from a snapshot file, or from the live cluster (`app/kube/cluster_cache.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol, TypeVar

from app.runtime.decision_thread import DecisionRunner, OnCallersThread, Urgency
from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.decide import score_facts
from scheduler_core.decide.decision import NO_CONTENDERS, Competing, Contenders, Decision, FilterOptions
from scheduler_core.decide.explain import Explanation, explain_nodes
from scheduler_core.decide.filter import candidate_volumes, filter_nodes
from scheduler_core.errors import MissingObjectError, ResolutionError
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.contention import Contention, EquivalenceCache
from scheduler_core.generic.cycle_state import LonghornFacts
from scheduler_core.guard.placement_guard import STEPS_PER_PLACEMENT, guards_every_node
from scheduler_core.guard.replica_steering import exclude_taken_nodes
from scheduler_core.model.kube import Pod, is_same_pod
from scheduler_core.model.longhorn import Placement
from scheduler_core.packing.budget import Budget
from scheduler_core.structs import replace
from scheduler_core.volumes.resolve import exceeds_attach_limit, missing_storage_classes


class StateSource(Protocol):
    """Owner of the current state."""

    def state(self) -> ClusterState:
        """Returns the current state."""

    async def fetch(self, missing: MissingObjectError) -> bool:
        """Fetches an object that the state lacks; returns whether it exists. Raises a ResolutionError if the API server
        did not answer, or the object cannot be read.
        """

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """Reads a pod of which the state has no such object; None if there is none. The state does not change: a watch
        that is behind would end the pod in it once more. Raises a ResolutionError if the API server did not answer, or
        the pod cannot be read.
        """


class LiveStateSource(StateSource, Protocol):
    """A state that changes."""

    def listening(self, *keys: tuple[str, Key]) -> AbstractContextManager[asyncio.Event]:
        """Provides an event that is set when an object changes. An object is named by its field of the snapshot and its
        key.
        """

    def subscribe(self, field: str, observer: Callable[[object | None, object | None], None]) -> None:
        """Passes every later change of a field's objects to an observer, at the moment of the delivery."""


class SnapshotState:
    """The state of a snapshot, which never changes."""

    def __init__(self, view: View) -> None:
        self._state = ClusterState.of(view)

    def state(self) -> ClusterState:
        return self._state

    async def fetch(self, missing: MissingObjectError) -> bool:
        """Returns False: an object that the file lacks does not exist."""
        del missing
        return False

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        return self._state.view.snapshot.pods.get((namespace, name))


# Single reads for one request; a pod that names more undelivered objects is refused and retried later.
MAX_FETCHES = 8
# A caller may make up pods without end, and each costs the API server a call.
MAX_POD_FETCHES = 4
# One second in all: kube-scheduler gives a request up after three (`httpTimeout`).
_POD_RECHECK_INTERVAL = 0.05
_POD_RECHECKS = 20
_Result = TypeVar("_Result")


def no_contenders() -> Contenders:
    return NO_CONTENDERS


class Evaluator:
    """Runs the core's decisions. `contenders` returns what other pods have when a decision begins.

    Args:
        runner: where decisions run; by default on the event loop, which is then not free meanwhile
    """

    def __init__(self, source: StateSource, options: FilterOptions, runner: DecisionRunner | None = None) -> None:
        self._source = source
        self._options = options
        self._options_with_guard = options.with_guard()
        self._guard_proven: Callable[[], bool] = lambda: False
        self._allowances: Callable[[], Sequence[Placement]] = tuple
        self._runner = runner or OnCallersThread()
        self._explained_contention = Contention()
        self._explained_equivalence = EquivalenceCache()
        self._plans = score_facts.PlanCache()
        # Requests about pods that do not exist must not become a flood of requests to the API server.
        self._pod_fetches = asyncio.Semaphore(MAX_POD_FETCHES)
        self.explanations = 0  # how many are being made

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
    def state(self) -> ClusterState:
        return self._source.state()

    @property
    def view(self) -> View:
        return self._source.state().view

    async def decide(
        self, pod: Pod, candidates: Sequence[str], contenders: Callable[[], Contenders] = no_contenders
    ) -> Decision:
        """Decides which candidates can hold the pod's volumes. Raises a ResolutionError if an object the pod names does
        not exist or contradicts it.
        """
        return await self._run(
            pod, lambda state: partial(filter_nodes, pod, candidates, state, self.options, contenders())
        )

    async def decide_without_fetch(self, pod: Pod, candidates: Sequence[str], contenders: Contenders) -> Decision:
        """Decides as `decide`, but fetches no missing objects. Allowed placements count where they are. There is no
        I/O, so a caller may hold a lock meanwhile. Placements that are allowed meanwhile count, too.

        Raises:
            MissingObjectError: the state lacks an object that the pod names; see `with_objects`
            ResolutionError: as decide
        """
        state = self._source.state()
        decision = await self.run(partial(filter_nodes, pod, candidates, state, self.options, contenders))
        counted: Sequence[Placement] = ()
        while (allowances := self._allowances()) != counted:
            counted = allowances
            decision = await self.run(
                partial(exclude_taken_nodes, decision, state.view, counted, Budget(STEPS_PER_PLACEMENT))
            )
        return decision

    async def fetch_missing(self, pod: Pod) -> None:
        """Fetches what the pod names and the state lacks. Raises a ResolutionError as `decide` does."""
        await self._run(pod, lambda state: partial(_resolve, pod, state, self.options))

    async def has_pod(self, pod: Pod) -> bool:
        """Whether this very pod, by its UID, exists in the cluster. The API server is asked about a pod that no watch
        has delivered yet. Raises a ResolutionError if the API server does not answer, the pod cannot be read, or too
        many pods are looked for.
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
        """Decides as `decide`, with plans and numbers. Explanations run one at a time, and decisions go first, because
        kube-scheduler waits for them. Raises a ResolutionError as `decide` does.
        """
        self.explanations += 1
        try:
            return await self._run(
                pod,
                lambda state: partial(
                    explain_nodes, pod, candidates, state, self.options, self.explained(contenders())
                ),
                Urgency.EXPLANATION,
            )
        finally:
            self.explanations -= 1

    def explained(self, contenders: Contenders) -> Contenders:
        """Returns contenders for an explanation: decisions run in the middle of it, and have caches of their own."""
        if not isinstance(contenders, Competing):
            return contenders
        self._explained_contention.follow(contenders.contention)
        return replace(contenders, contention=self._explained_contention, equivalence=self._explained_equivalence)

    async def facts(
        self, pod: Pod, candidates: Sequence[str], contenders: Callable[[], Contenders] = no_contenders
    ) -> LonghornFacts:
        """Decides as `decide`, in the form that a policy's Longhorn rules read. Raises a ResolutionError as `decide`
        does.
        """
        return await self._run(
            pod, lambda state: partial(self._plans.longhorn_facts, pod, candidates, state, self.options, contenders())
        )

    async def run(self, work: Callable[[], _Result], urgency: Urgency = Urgency.DECISION, rest: float = 0.0) -> _Result:
        """Runs a computation of the core, which reads nothing that the event loop changes. `rest`: as `DecisionThread.run`."""
        return await self._runner.run(work, urgency, rest)

    def expecting_decision(self) -> AbstractContextManager[None]:
        """Lets nothing else run in the thread while a decision is about to be asked for."""
        return self._runner.expecting()

    async def with_objects(self, pod: Pod, decide: Callable[[], Awaitable[_Result]]) -> _Result:
        """Returns what `decide` returns once the state has every object that the pod names; each missing one is fetched, and
        `decide` begins again. Raises a ResolutionError as `decide` does, or if these are too many.
        """
        fetches = 0
        while True:
            # Again for each claim that was fetched: its class may not have been delivered either. It would pass for another driver's.
            classes = missing_storage_classes(pod, self.view)
            if len(classes) > MAX_FETCHES:
                raise ResolutionError(
                    f"pod {pod.key} names {len(classes)} StorageClasses that are not there: {', '.join(classes)}"
                )
            for name in classes:
                await self._source.fetch(MissingObjectError("StorageClass", name, f"pod {pod.key}"))
            fetches += len(classes)
            try:
                return await decide()
            except MissingObjectError as missing:
                fetches += 1
                if fetches > MAX_FETCHES or not await self._source.fetch(missing):
                    raise

    async def _run(
        self, pod: Pod, decide: Callable[[ClusterState], Callable[[], _Result]], urgency: Urgency = Urgency.DECISION
    ) -> _Result:
        return await self.with_objects(pod, lambda: self.run(decide(self._source.state()), urgency))


def _resolve(pod: Pod, state: ClusterState, options: FilterOptions) -> None:
    if not exceeds_attach_limit(pod):
        candidate_volumes(pod, state.view.snapshot.nodes, state.view, options)
