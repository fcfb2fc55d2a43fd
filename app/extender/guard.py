"""The placement guard: answers the API server when Longhorn writes the place of a replica.

    a review whose shape was read (`scheduler_core/convert/admission.py`) → decision on the newest state and what was allowed a moment ago
    (`scheduler_core/extender/placement_guard.py`) → a JSON patch or nothing → the placement takes space until a watch shows it
    a watch shows a replica with its first disk → confirmed, bypassed or tampered (`scheduler_core/extender/guard_health.py`)

One lock makes deciding and allowing one step, so that two placements of a pod see each other. The guard never refuses: whatever goes wrong
here, Longhorn's own choice is written. An answer that would come too late is given up, because the API server does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from app.decisions.evaluator import Evaluator
from app.decisions.state_source import StateSource
from app.extender.metrics import Metrics
from app.schemas.state import GuardActivity
from scheduler_core.convert.admission import (
    AdmissionRequest,
    JsonPatch,
    placement_patch,
)
from scheduler_core.extender.decision import Competing, Contenders
from scheduler_core.extender.guard_health import ANSWER_LIFETIME, MAX_ANSWERS, GuardHealth, GuardState, Observation
from scheduler_core.extender.placement_guard import (
    STEPS_PER_PLACEMENT,
    GuardDecision,
    GuardOutcome,
    guard_placement,
)
from scheduler_core.extender.settings import GuardMode
from scheduler_core.model.longhorn import Replica
from scheduler_core.model.replica_placement import Placement
from scheduler_core.packing.budget import Budget

log = structlog.get_logger("guard")

# The webhook's timeoutSeconds is 1; the rest is for the way there and back.
ANSWER_SECONDS: Final = 0.7
_TICK_SECONDS: Final = 1.0
# Placements that the previous leader answered are shown to its successor.
_TAKEOVER_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Allowance:
    """A placement as it was allowed, and when."""

    placement: Placement
    at: float


@dataclass(frozen=True, slots=True)
class GuardContext:
    """What the guard reads of its process at each placement.

    Attributes:
        mode: returns what the setting says
        contenders: returns the demand and offers of other pods
    """

    mode: Callable[[], GuardMode]
    contenders: Callable[[], Contenders]


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
        self._leads = False
        self._term = _Term(clock())

    @property
    def proven(self) -> bool:
        """Whether every placement was answered lately, and is kept to the plan."""
        return (
            self._leads and self._context.mode() is GuardMode.ENFORCE and self._term.health.state is GuardState.PROVEN
        )

    @property
    def allowances(self) -> tuple[Placement, ...]:
        """The placements that take space and that no watch has shown yet."""
        return tuple(allowance.placement for allowance in self._term.allowances.values())

    @property
    def activity(self) -> GuardActivity:
        """What the guard did since this process leads."""
        term = self._term
        active = self._leads and self._context.mode() is not GuardMode.OFF
        return GuardActivity(
            health=term.health.state if active else None,
            awaited=self.allowances,
            outcomes=dict(sorted(term.outcomes.items())),
            observations=dict(sorted(term.observations.items())),
        )

    def adopt(self) -> None:
        """Starts: this process leads, and its state is filled."""
        self._term = _Term(self._clock())
        self._leads = True

    def clear(self) -> None:
        """Forgets everything: another process leads."""
        self._leads = False
        self._term = _Term(self._clock())

    async def run(self) -> None:
        """Drops allowances that were given up, until cancelled."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._term.drop_old(self._clock())

    async def review(self, request: AdmissionRequest) -> JsonPatch:
        """Returns the patch for the object of a review, empty to leave it alone."""
        if not self._leads or self._context.mode() is GuardMode.OFF:
            return []
        started = self._clock()
        patch = await self._patch(request)
        self._metrics.observe_guard_answer(self._clock() - started)
        return patch

    async def _patch(self, request: AdmissionRequest) -> JsonPatch:
        wanted = request.placement
        if isinstance(wanted, str):
            self._count(GuardOutcome.REFUSED_SHAPE)
            log.warning("a replica's update is left alone: it has not the shape of a placement", problem=wanted)
            return []
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._lock:
                return await self._decide(wanted, dry_run=request.dry_run)
        except TimeoutError:
            # It is not noted as answered: a watch will show it as bypassed.
            self._count(GuardOutcome.LATE)
            log.warning("a placement is left alone: its decision took too long", replica=wanted.replica)
            return []

    async def _decide(self, wanted: Placement, *, dry_run: bool) -> JsonPatch:
        term = self._term
        started = self._clock()
        while True:
            contenders = self._context.contenders()
            if not isinstance(contenders, Competing):
                return []
            budget = Budget(STEPS_PER_PLACEMENT)
            decision = await self._evaluator.run(
                guard_placement(wanted, self._cache.state(), contenders.ledger, self.allowances, budget)
            )
            if term is not self._term:
                return []
            if self._has_offers(wanted.node, contenders):
                break
        enforces = self._context.mode() is GuardMode.ENFORCE and term.health.state is not GuardState.TAMPERED
        written = decision.allowance if enforces else wanted
        if not dry_run:
            self._count(decision.outcome)
            term.allow(wanted, written, decision, self._clock())
        self._log(decision, wanted, written, self._clock() - started)
        return placement_patch(wanted, written)

    def _has_offers(self, node: str, contenders: Competing) -> bool:
        """Whether the offers on a node are still those of the contenders.

        An offer that was made meanwhile is to be kept, too.
        """
        current = self._context.contenders()
        return isinstance(current, Competing) and current.ledger.offers_on(node) == contenders.ledger.offers_on(node)

    def note_delivery(self, before: object | None, after: object | None) -> None:
        """Compares a replica that a watch delivers with the guard's answer.

        Called for every change of a replica.
        """
        if not self._leads or self._context.mode() is GuardMode.OFF:
            return
        if not isinstance(after, Replica):
            return
        earlier = before if isinstance(before, Replica) else None
        state = self._term.health.state
        observation = self._term.observe(earlier, after, self._clock())
        if observation is None:
            return
        self._metrics.count_guard_observation(observation.value)
        write = log.info if observation is Observation.CONFIRMED else log.warning
        write(
            "a placement is shown",
            observation=observation.value,
            replica=after.name,
            volume=after.volume,
            node=after.node_id,
            disk=after.disk_id,
        )
        if self._term.health.state is not state:
            log.warning("the placement guard is", state=self._term.health.state.value, before=state.value)

    def _count(self, outcome: GuardOutcome) -> None:
        self._term.outcomes[outcome.value] += 1
        self._metrics.count_guarded_placement(outcome.value)

    def _log(self, decision: GuardDecision, wanted: Placement, written: Placement, seconds: float) -> None:
        write = log.debug if decision.outcome is GuardOutcome.NOT_GUARDED else log.info
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


class _Term:
    """What belongs to one lead of this process."""

    def __init__(self, now: float) -> None:
        self.started_at = now
        self.health = GuardHealth(now)
        self.allowances: dict[str, _Allowance] = {}
        self.outcomes: Counter[str] = Counter()
        self.observations: Counter[str] = Counter()

    def allow(self, wanted: Placement, written: Placement, decision: GuardDecision, now: float) -> None:
        """Notes a placement that takes space from now on."""
        if decision.outcome is GuardOutcome.REFUSED_SHAPE:
            return
        self.allowances.pop(wanted.replica, None)
        self.allowances[wanted.replica] = _Allowance(written, now)
        self.health = self.health.with_answer(wanted, written, now)
        self.drop_old(now)

    def observe(self, before: Replica | None, after: Replica, now: float) -> Observation | None:
        """Returns what a replica shows about a placement."""
        health, observation = self.health.observe(before, after, now)
        if observation is Observation.BYPASSED and now - self.started_at < _TAKEOVER_SECONDS:
            # The previous leader may have answered it.
            return None
        self.health = health
        if after.disk_id:
            self.allowances.pop(after.name, None)
        if observation is not None:
            self.observations[observation.value] += 1
        return observation

    def drop_old(self, now: float) -> None:
        """Drops allowances that were not written in `ANSWER_LIFETIME`, and the oldest beyond `MAX_ANSWERS`."""
        while self.allowances:
            replica = next(iter(self.allowances))
            if now - self.allowances[replica].at < ANSWER_LIFETIME and len(self.allowances) <= MAX_ANSWERS:
                return
            del self.allowances[replica]
