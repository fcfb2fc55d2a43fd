"""The placement guard: answers the API server when Longhorn writes the place of a replica.

    a review whose shape was read (`scheduler_core/convert/admission.py`) → decision on the newest state and what was allowed a moment ago
    (`scheduler_core/guard/placement_guard.py`) → a JSON patch → the placement takes space until a watch shows it
    a watch shows a replica with its first disk → confirmed, bypassed or tampered (`scheduler_core/guard/placement_guard.py`)

Every process reviews, whether it leads or not: what is promised on a node follows from the cluster's objects. API servers call the leader,
and a standby if the leader does not answer. Where another process may have answered a moment ago, this one first reads what was written: on
a standby, after a take-over, after it stood still, and if no watch shows its own last answer. A standby also reads the leader's record
of offers.

One lock makes deciding and allowing one step, so that two placements of a pod see each other. The guard never refuses: whatever goes wrong
here, Longhorn's own choice is written. An answer that would come too late is given up, because the API server does not wait for it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import structlog

from app.evaluator import Evaluator, StateSource
from app.extender.metrics import Metrics
from app.extender.offer_store import READ_SECONDS
from app.kube.client import ApiError, KubeClient
from app.kube.resources import LONGHORN_REPLICAS
from app.runtime.decision_thread import Urgency
from app.schemas.state import GuardActivity
from scheduler_core import errors
from scheduler_core.convert import admission, snapshot_kinds, wire_types
from scheduler_core.decide.decision import Competing, Contenders
from scheduler_core.decide.extender_settings import ExtenderSettings, GuardMode
from scheduler_core.guard import placement_guard
from scheduler_core.model.longhorn import NODE_LABEL, Placement, Replica
from scheduler_core.packing.budget import Budget
from scheduler_core.structs import Struct

log = structlog.get_logger("guard")

# The webhook's timeoutSeconds is 1; the rest is for the way there and back.
ANSWER_SECONDS = 0.7
# A placement that was not written by then was given up.
ALLOWANCE_LIFETIME = 60.0
# Every client that reaches the webhook's port can make up placements.
MAX_ALLOWANCES = 10_000
_TICK_SECONDS = 0.25
# So long this process reads what was written before it decides, after it stood still for a tick or took over.
CATCH_UP_SECONDS = 2.0
# A watch shows a placement within this time after it was answered.
UNSEEN_SECONDS = 0.25


class _Allowance(Struct, frozen=True):
    """A placement as it was allowed, and when."""

    placement: Placement
    at: float


class GuardContext(Struct, frozen=True):
    """What the guard reads of its process at each placement."""

    settings: Callable[[], ExtenderSettings]  # returns the settings in force
    leads: Callable[[], bool]  # returns whether this process makes the offers
    # Returns the demand and offers of other pods, as far as this process made them.
    contenders: Callable[[], Contenders]
    # Returns the demand, and the offers of a node that the leader has recorded.
    recorded: Callable[[str], Awaitable[Contenders]]
    written: Callable[[str], Awaitable[Sequence[Replica]]]  # returns the replicas of a node that the API server has
    obstacle: Callable[[], str]  # returns why API servers cannot reach this guard, "" if nothing is known to prevent it


class _ReplicaList(wire_types.Wire):
    items: list[Any]


async def written_replicas(client: KubeClient, namespace: str, node: str) -> Sequence[Replica]:
    """Reads the replicas that Longhorn's label names for a node, whatever the watch has shown.

    Raises:
        ApiError: the API server refused or did not answer
        ObjectError: the answer cannot be read
    """
    query = {"labelSelector": f"{NODE_LABEL}={node}"}
    raw = await client.get(LONGHORN_REPLICAS.path(namespace), query, READ_SECONDS)
    replicas: list[Replica] = []
    for entry in wire_types.decode_json("ReplicaList", raw, _ReplicaList).items:
        try:
            replicas.append(snapshot_kinds.REPLICA.read(entry))
        except errors.ObjectError as error:
            log.warning("a replica cannot be read", problem=str(error))
    return replicas


class PlacementGuard:
    """Owner of the allowances, the counts and the health of the guard."""

    def __init__(
        self,
        cache: StateSource,
        evaluator: Evaluator,
        context: GuardContext,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._evaluator = evaluator
        self._context = context
        self._metrics = metrics
        self._clock = clock
        self._lock = asyncio.Lock()
        self._state = placement_guard.GuardState.UNPROVEN
        self._allowances: dict[str, _Allowance] = {}
        self._outcomes: Counter[str] = Counter()
        self._observations: Counter[str] = Counter()
        self._behind_until = 0.0

    @property
    def proven(self) -> bool:
        """Whether every placement was answered lately, by any process, and is kept to the plan."""
        # An obstacle is known before the first placement passes the guard by.
        enforced = self._mode is GuardMode.ENFORCE and not self._context.obstacle()
        return enforced and self._state is placement_guard.GuardState.PROVEN

    @property
    def allowances(self) -> tuple[Placement, ...]:
        return tuple(allowance.placement for allowance in self._allowances.values())

    @property
    def activity(self) -> GuardActivity:
        """What the guard did, and what it saw, since this process started."""
        return GuardActivity(
            health=self._state if self._mode is not GuardMode.OFF else None,
            awaited=self.allowances,
            outcomes=dict(sorted(self._outcomes.items())),
            observations=dict(sorted(self._observations.items())),
        )

    @property
    def _mode(self) -> GuardMode:
        return self._context.settings().placement_guard

    def adopt(self) -> None:
        # The previous leader may have answered a moment ago.
        self._fall_behind()

    def clear(self) -> None:
        """Does nothing: a process that leads no more reviews, too."""

    async def run(self) -> None:
        """Drops allowances that were given up, and notices that this process stood still, until cancelled."""
        while True:
            before = self._clock()
            await asyncio.sleep(_TICK_SECONDS)
            now = self._clock()
            # Another process may have answered meanwhile, and the watch may be as late as this is.
            if now - before > 2 * _TICK_SECONDS:
                self._fall_behind()
            self._drop_old(now)

    def _fall_behind(self) -> None:
        self._behind_until = self._clock() + CATCH_UP_SECONDS

    async def review(self, request: admission.AdmissionRequest) -> admission.JsonPatch:
        """Returns the patch for the object of a review, empty to leave it alone."""
        if self._mode is GuardMode.OFF:
            return []
        started = self._clock()
        patch = await self._patch(request)
        self._metrics.guard_duration.observe(self._clock() - started)
        return patch

    async def _patch(self, request: admission.AdmissionRequest) -> admission.JsonPatch:
        wanted = request.placement
        if isinstance(wanted, str):
            self._count(placement_guard.GuardOutcome.REFUSED_SHAPE)
            log.warning("a replica's update is left alone: it has not the shape of a placement", problem=wanted)
            return []
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._lock:
                return await self._decide(request, wanted)
        except TimeoutError:
            # The object will have no note of an answer. Another process may be asked.
            self._fall_behind()
            self._count(placement_guard.GuardOutcome.LATE)
            log.warning("a placement is left alone: its decision took too long", replica=wanted.replica)
            return []
        except Exception:
            self._fall_behind()
            raise

    async def _decide(self, request: admission.AdmissionRequest, wanted: Placement) -> admission.JsonPatch:
        started = self._clock()
        settings = self._context.settings()
        contenders = self._context.contenders()
        if not isinstance(contenders, Competing):
            return []
        on_node = (each for each in self._allowances.values() if each.placement.node == wanted.node)
        # If no watch shows an answer, it may be lost, and another process may have been asked.
        watch_lags = any(started - each.at > UNSEEN_SECONDS for each in on_node)
        alone = self._context.leads() and started >= self._behind_until and not watch_lags
        if not alone:
            contenders, _ = await asyncio.gather(self._contenders(wanted.node), self._read_written(wanted.node))
        while True:
            if not isinstance(contenders, Competing):
                return []
            # What other processes do on other nodes is not read.
            search = placement_guard.Search(
                Budget(placement_guard.STEPS_PER_PLACEMENT), settings.guard_other_nodes and alone
            )
            inputs = (wanted, self._cache.state(), contenders.ledger, self.allowances, search)
            decision = await self._evaluator.run(partial(placement_guard.guard_placement, *inputs), Urgency.REVIEW)
            current = await self._contenders(wanted.node) if alone else contenders
            nodes = {wanted.node, decision.allowance.node}
            # An offer that was made meanwhile is to be kept, too.
            if isinstance(current, Competing) and all(
                current.ledger.offers_on(node) == contenders.ledger.offers_on(node) for node in nodes
            ):
                break
            contenders = current
        tampered = self._state is placement_guard.GuardState.TAMPERED
        enforces = settings.placement_guard is GuardMode.ENFORCE and not tampered
        written = decision.allowance if enforces else wanted
        refused = decision.outcome is placement_guard.GuardOutcome.REFUSED_SHAPE
        if not request.dry_run:
            self._count(decision.outcome)
            if not refused:
                self._allow(written, self._clock())
        self._log(decision, wanted, written, self._clock() - started)
        return [] if refused else admission.placement_patch(wanted, written, has_annotations=request.has_annotations)

    async def _contenders(self, node: str) -> Contenders:
        return self._context.contenders() if self._context.leads() else await self._context.recorded(node)

    async def _read_written(self, node: str) -> None:
        """Counts placements that were written and that no watch has shown."""
        before = self._cache.state().view.snapshot.replicas
        try:
            replicas = await self._context.written(node)
        except (ApiError, errors.ObjectError) as error:
            log.warning("a placement is decided by what the watches show", node=node, problem=str(error))
            return
        now = self._cache.state().view.snapshot.replicas
        for replica in replicas:
            is_deleted = replica.name in before and replica.name not in now
            if replica.disk_id and not is_deleted and not ((shown := now.get(replica.name)) and shown.disk_id):
                self._allow(Placement.of(replica), self._clock())

    def note_delivery(self, before: object | None, after: object | None) -> None:
        """Compares a replica that a watch delivers with the guard's answer; called for every change of a replica."""
        if isinstance(before, Replica) and after is None:
            self._allowances.pop(before.name, None)
        if not isinstance(after, Replica):
            return
        if after.disk_id:
            self._allowances.pop(after.name, None)
        observation = placement_guard.observe_placement(before if isinstance(before, Replica) else None, after)
        if observation is None:
            return
        if self._mode is GuardMode.OFF:
            self._state = placement_guard.next_state(self._state, observation)
            return
        self._observations[observation.value] += 1
        self._metrics.guard_observations.count(observation.value)
        write = log.info if observation is placement_guard.Observation.CONFIRMED else log.warning
        write(
            "a placement is shown",
            observation=observation.value,
            replica=after.name,
            volume=after.volume,
            node=after.node_id,
            disk=after.disk_id,
        )
        state = placement_guard.next_state(self._state, observation)
        if state is not self._state:
            log.warning("the placement guard is", state=state.value, before=self._state.value)
            self._state = state

    def _allow(self, placement: Placement, now: float) -> None:
        self._allowances.pop(placement.replica, None)
        self._allowances[placement.replica] = _Allowance(placement, now)
        self._drop_old(now)

    def _drop_old(self, now: float) -> None:
        """Drops allowances that were not written in `ALLOWANCE_LIFETIME`, and the oldest beyond `MAX_ALLOWANCES`."""
        while self._allowances:
            replica = next(iter(self._allowances))
            if now - self._allowances[replica].at < ALLOWANCE_LIFETIME and len(self._allowances) <= MAX_ALLOWANCES:
                return
            del self._allowances[replica]

    def _count(self, outcome: placement_guard.GuardOutcome) -> None:
        self._outcomes[outcome.value] += 1
        self._metrics.guarded_placements.count(outcome.value)

    def _log(
        self, decision: placement_guard.GuardDecision, wanted: Placement, written: Placement, seconds: float
    ) -> None:
        write = log.debug if decision.outcome is placement_guard.GuardOutcome.NOT_GUARDED else log.info
        write(
            "placement",
            outcome=decision.outcome.value,
            pod=decision.pod,
            volume=wanted.volume,
            replica=wanted.replica,
            node=wanted.node,
            chosen=wanted.disk,
            planned=decision.allowance.disk,
            written=written.disk,
            why=decision.detail,
            ms=round(seconds * 1000, 1),
        )
