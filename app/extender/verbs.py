"""kube-scheduler's verbs: filter, prioritize, preempt; and explain for people. Every verb checks whether this process
may answer, decides, and checks again. A policy file's predicates are asked before Longhorn's rules, which then evaluate
only the nodes that the predicates leave. Nodes are scored by the classic rules (`generic/scheduler.py: prioritize_names`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog

from app.evaluator import Evaluator
from app.policy import PolicyInForce
from app.runtime.probes import ALWAYS_AVAILABLE, Availability, HungUp, UnavailableError, check
from app.schemas.decision import PolicyAnswer
from scheduler_core import errors
from scheduler_core.decide.decision import NO_CONTENDERS, NO_SCORES, Competing, Contenders, Decision
from scheduler_core.decide.explain import Explanation
from scheduler_core.decide.offered_nodes import may_narrow
from scheduler_core.generic import cycle_state, scheduler
from scheduler_core.generic.policy import priorities_read_longhorn
from scheduler_core.model.kube import Pod
from scheduler_core.offers.handover_record import HandoverRecord
from scheduler_core.structs import Struct

log = structlog.get_logger("filter")

# They are made one at a time, and each that waits keeps its request in memory.
MAX_EXPLANATIONS = 16


class Decider(Protocol):
    """Decides about pods with what other pods have. Nothing is reserved for a pod that does not exist
    (`Evaluator.has_pod`): a request may name any pod.
    """

    def contenders(self) -> Contenders:
        """Returns what other pods have that counts for a pod that is evaluated now."""

    async def decide(
        self, pod: Pod, candidates: Sequence[str], hung_up: HungUp, scores: Mapping[str, int] = NO_SCORES
    ) -> Decision:
        """Decides about a pod, and reserves what it will take. `scores` says which of the nodes that fit are wanted
        most, if not all of them can be returned.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
            CallerGoneError: the caller did not wait
        """

    async def preempt(self, pod: Pod, candidates: Sequence[str]) -> Decision:
        """Decides where preemption could help, and holds the room there. Raises a ResolutionError if an object the pod
        names does not exist or contradicts it.
        """


class Reservations(Decider, Protocol):
    """Keeps pods from taking the same space: the proposal's node reservations, or offers."""

    def reserved_nodes(self) -> frozenset[str]:
        """Names of the nodes that take no new volumes now."""

    async def adopt(self, undisturbed: float, record: HandoverRecord | None = None) -> None:
        """Restores the previous leader's reservations from the cluster.

        `undisturbed`: seconds since it may last have answered. `record`: the offers that it recorded, None if there is no record of it.
        """

    async def settle(self) -> bool:
        """Returns once nothing is reserved that only this process knows of, or False if that took too long: a successor
        must wait then.
        """

    def clear(self) -> None:
        """Forgets everything: another process leads."""


class WithoutReservations:
    """Decides over a snapshot, where no decision counts for the next one."""

    def __init__(self, evaluator: Evaluator, contenders: Contenders = NO_CONTENDERS) -> None:
        self._evaluator = evaluator
        self._contenders = contenders

    def contenders(self) -> Contenders:
        return self._contenders

    async def decide(
        self, pod: Pod, candidates: Sequence[str], hung_up: HungUp, scores: Mapping[str, int] = NO_SCORES
    ) -> Decision:
        del hung_up, scores
        return await self.preempt(pod, candidates)

    async def preempt(self, pod: Pod, candidates: Sequence[str]) -> Decision:
        return await self._evaluator.decide(pod, candidates, self.contenders)


class FilterAnswer(Struct, frozen=True):
    """The answer of /filter: refusals by the policy, and the decision about the nodes that the policy leaves."""

    decision: Decision
    policy_refusals: Mapping[str, scheduler.PolicyRefusal]

    def refusals(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the refused nodes with their reasons, first those that preemption cannot help, then those that it
        may.
        """
        pairs = zip(self.decision.candidates, self.decision.reasons, strict=True)
        unresolvable = {name: reason.text for name, reason in pairs if not reason.fits}
        resolvable: dict[str, str] = {}
        for name, refusal in self.policy_refusals.items():
            (unresolvable if refusal.unresolvable else resolvable)[name] = refusal.text
        return unresolvable, resolvable


class Verbs:
    """What the routes call.

    Args:
        evaluator: decides
        policy: the policy in force
        availability: why no new request is accepted now
        decider: decides about pods; by default without reservations and other pods
        late_availability: why an accepted request must not be answered after all; by default the same. A process that hands over
            accepts no new requests, but answers those that it accepted
    """

    def __init__(
        self,
        evaluator: Evaluator,
        policy: PolicyInForce,
        availability: Availability = ALWAYS_AVAILABLE,
        decider: Decider | None = None,
        late_availability: Availability | None = None,
    ) -> None:
        self._evaluator = evaluator
        self._policy = policy
        self._availability = availability
        self._late_availability = late_availability or availability
        self._decider = decider or WithoutReservations(evaluator)

    @property
    def reads_scheduling(self) -> bool:
        """Whether there is a policy file, whose rules may read `Pod.scheduling`."""
        return self._policy.from_file

    def policy_answer(self) -> PolicyAnswer | None:
        """Returns what /state shows of the policy, None without a file."""
        return self._policy.answer()

    def check(self) -> None:
        """Returns if new requests are accepted now. Raises an UnavailableError if they are not; another process may
        answer.
        """
        check(self._availability)

    async def filter(self, pod: Pod, names: Sequence[str], hung_up: HungUp) -> FilterAnswer:
        """Decides which nodes can hold the pod's volumes, and reserves what the `Decider` does.

        Raises:
            UndecidableError: a predicate of the policy cannot be decided for any node
            ResolutionError: an object the pod names does not exist or contradicts it
            UnavailableError: another process answers
            CallerGoneError: the caller did not wait
        """
        refusals = await self._policy_refusals(pod, names)
        candidates = [name for name in names if name not in refusals] if refusals else names
        self.check()

        async def poll_caller() -> bool:
            check(self._late_availability)
            return await hung_up()

        scores = await self._offer_scores(pod, candidates)
        decision = await self._decider.decide(pod, candidates, poll_caller, scores)
        check(self._late_availability)
        return FilterAnswer(decision, refusals)

    async def preempt(self, pod: Pod, names: Sequence[str]) -> Decision:
        """Decides where preemption could help, and holds the room there, but not on nodes that the policy refuses for
        good. Raises an UndecidableError, a ResolutionError or an UnavailableError as `filter` does.
        """
        refusals = await self._policy_refusals(pod, names)
        candidates = [name for name in names if name not in refusals or not refusals[name].unresolvable]
        self.check()
        decision = await self._decider.preempt(pod, candidates)
        check(self._late_availability)
        return decision

    async def explain(self, pod: Pod, candidates: Sequence[str]) -> Explanation:
        """Decides as `filter` without the policy, with plans and numbers, and without any promise. Raises a
        ResolutionError or an UnavailableError as `filter` does.
        """
        self.check()
        if self._evaluator.explanations >= MAX_EXPLANATIONS:
            raise UnavailableError(f"{MAX_EXPLANATIONS} explanations are being made or wait; try again later")
        explanation = await self._evaluator.explain(pod, candidates, self._decider.contenders)
        check(self._late_availability)
        return explanation

    async def scores(self, pod: Pod, names: Sequence[str]) -> Mapping[str, int]:
        """Returns a score from 0 to 10 for each node, in order. Raises an UndecidableError, a ResolutionError or an
        UnavailableError as `filter` does.
        """
        self.check()
        return await self._scores(pod, names)

    async def _offer_scores(self, pod: Pod, names: Sequence[str]) -> Mapping[str, int]:
        """Returns the scores of a policy file if they may decide which nodes are offered."""
        if not self._policy.from_file or not self._policy.policy.priorities:
            return NO_SCORES
        contenders = self._decider.contenders()
        if not isinstance(contenders, Competing) or not may_narrow(self._evaluator.view, contenders.ledger.outstanding):
            return NO_SCORES
        try:
            return await self._scores(pod, names)
        except (errors.ResolutionError, cycle_state.UndecidableError) as error:
            # Without scores the pod can still be decided about; what else is wrong with it, that decision says.
            log.warning("scores are missing", pod=pod.key, uid=pod.uid, error=str(error))
            return NO_SCORES

    async def _scores(self, pod: Pod, names: Sequence[str]) -> Mapping[str, int]:
        policy = self._policy.policy
        state = await self._policy.state(names)
        facts = cycle_state.NO_FACTS
        if priorities_read_longhorn(policy):
            facts = await self._evaluator.facts(pod, names, self._decider.contenders)
            check(self._late_availability)
        return await self._evaluator.run(partial(scheduler.prioritize_names, pod, names, state, policy, facts))

    async def _policy_refusals(self, pod: Pod, names: Sequence[str]) -> Mapping[str, scheduler.PolicyRefusal]:
        if not self._policy.from_file:
            return {}
        self.check()
        policy = self._policy.policy
        state = await self._policy.state(names)
        return await self._evaluator.run(partial(scheduler.policy_refusals, pod, names, state, policy))
