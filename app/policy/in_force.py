"""Which policy is in force; and what it adds to kube-scheduler's verbs: scores for /prioritize, and in /filter what its own predicates refuse.

Without a file the extender's policy is `EXTENDER_POLICY`, which has priorities of Longhorn's only and refuses nothing beside /filter's own
decision. A file's policy is in force once everything that its rules read is known; until then the one before it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from app.decisions.evaluator import Scheduling
from app.extender.availability import HungUp
from app.extender.verbs import Verbs
from app.policy.file import PolicyFile
from app.schemas.policy import PolicyAnswer, policy_answer
from scheduler_core.extender.filter import Decision
from scheduler_core.generic.cluster_state import State
from scheduler_core.generic.extender_policy import Refused, reads, refusals, scores_longhorn
from scheduler_core.generic.policy import EXTENDER_POLICY, Policy
from scheduler_core.generic.scheduler import prioritize_names
from scheduler_core.generic.volume_facts import NOTHING_KNOWN
from scheduler_core.model import kube
from scheduler_core.model.generic import Node, Pod

# Beyond this many names of nodes, all are forgotten: somebody asks about nodes that do not exist.
_MOST_NAMES: Final = 50_000


class GenericSource(Protocol):
    """Where nodes, pods and services come from, for rules that read them."""

    def want(self, kinds: frozenset[str]) -> None:
        """These kinds are needed from now on."""

    def problem(self, kinds: frozenset[str]) -> str:
        """Why these kinds are not known well enough; "" if they are."""

    def state(self) -> State:
        """Everything known of them."""


class FixedState:
    """A snapshot's state, which never changes."""

    def __init__(self, state: State) -> None:
        self._state = state

    def want(self, kinds: frozenset[str]) -> None:
        """Everything is there already."""

    def problem(self, kinds: frozenset[str]) -> str:
        """A file that could be read is complete."""
        del kinds
        return ""

    def state(self) -> State:
        """The same every time."""
        return self._state


class PolicyInForce:
    """Owner of the choice which policy is in force, and of what it is asked about.

    `default` is in force without a file; `needs` names the kinds that a policy's rules read of the source.
    """

    def __init__(
        self,
        file: PolicyFile | None = None,
        source: GenericSource | None = None,
        default: Policy = EXTENDER_POLICY,
        needs: Callable[[Policy], frozenset[str]] = reads,
    ) -> None:
        self._file = file
        self._source = source or FixedState(State())
        self._policy = default if file is None else file.policy
        self._needs = needs
        self._reads = needs(self._policy)
        self._bare = State()
        self._source.want(self._reads)

    @property
    def from_file(self) -> bool:
        """Whether an administrator has given a policy."""
        return self._file is not None

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        self._settle()
        return self._policy

    @property
    def problem(self) -> str:
        """Why the policy in force cannot be asked now; "" if it can."""
        self._settle()
        return self._source.problem(self._reads)

    @property
    def waiting_for(self) -> str:
        """Why a newer policy is not in force yet; "" if there is none."""
        if self._file is None or self.policy is self._file.policy:
            return ""
        return self._source.problem(self._needs(self._file.policy))

    def _settle(self) -> None:
        """A newer policy comes into force as soon as all that it reads is known."""
        newest = self._file.policy if self._file else self._policy
        if newest is self._policy:
            return
        kinds = self._needs(newest)
        self._source.want(kinds | self._reads)
        if not self._source.problem(kinds):
            self._policy, self._reads = newest, kinds
            self._source.want(kinds)

    def state(self, names: Sequence[str]) -> State:
        """What the policy's rules read; where they read nothing, just nodes of these names."""
        if self._reads:
            return self._source.state()
        if len(self._bare.names) > _MOST_NAMES:
            self._bare = State()
        new = [name for name in names if name not in self._bare.nodes]
        if new:
            self._bare = State.of([Node(name) for name in (*self._bare.names, *new)], (), ())
        return self._bare

    def answer(self) -> PolicyAnswer | None:
        """What /state says of it; None without a file."""
        if self._file is None:
            return None
        pending = bool(self.waiting_for)
        return policy_answer(self._file.path, self._policy, self._file.problem, pending=pending)


@dataclass(frozen=True, slots=True)
class Judged:
    """What is answered to /filter: what the policy's predicates bar, and Longhorn's decision about the other nodes."""

    decision: Decision
    barred: Mapping[str, Refused]

    def refused(self) -> tuple[dict[str, str], dict[str, str]]:
        """The nodes that do not fit, with why: those where evicting pods changes nothing, and those where it may."""
        pairs = zip(self.decision.candidates, self.decision.reasons, strict=True)
        lasting = {name: reason.text for name, reason in pairs if not reason.fits}
        lasting |= {name: found.text for name, found in self.barred.items() if found.lasting}
        return lasting, {name: found.text for name, found in self.barred.items() if not found.lasting}


class PolicyVerbs:
    """What the routes call: kube-scheduler's verbs with the policy in force. `whole` is the pod as a file's rules read it."""

    def __init__(self, verbs: Verbs, scheduling: Scheduling, in_force: PolicyInForce) -> None:
        self._verbs = verbs
        self._scheduling = scheduling
        self._in_force = in_force

    @property
    def from_file(self) -> bool:
        """Whether an administrator has given a policy, whose rules may read the whole pod."""
        return self._in_force.from_file

    def answer(self) -> PolicyAnswer | None:
        """What /state says of the policy; None without a file."""
        return self._in_force.answer()

    async def filter(self, pod: kube.Pod, whole: Pod | None, names: Sequence[str], hung_up: HungUp) -> Judged:
        """Asks the policy's predicates, and Longhorn's rules about the nodes they leave, which alone are offered.

        Raises:
            UndecidableError: a predicate cannot be decided for any node
            ResolutionError, UnavailableError, CallerGoneError: as Verbs.filter
        """
        barred = await self._barred(whole, names)
        rest = [name for name in names if name not in barred] if barred else names
        return Judged(await self._verbs.filter(pod, rest, hung_up), barred)

    async def preempt(self, pod: kube.Pod, whole: Pod | None, names: Sequence[str]) -> Decision:
        """The decision about the nodes where evicting pods could help as far as the policy goes, without any promise.

        Raises:
            UndecidableError, ResolutionError, UnavailableError: as filter
        """
        barred = await self._barred(whole, names)
        return await self._verbs.preempt(
            pod, [name for name in names if name not in barred or not barred[name].lasting]
        )

    async def _barred(self, whole: Pod | None, names: Sequence[str]) -> Mapping[str, Refused]:
        if whole is None:
            return {}
        self._verbs.check()
        policy = self._in_force.policy
        return await self._scheduling.run(refusals(whole, names, self._in_force.state(names), policy))

    async def scores(self, pod: kube.Pod, whole: Pod | None, names: Sequence[str]) -> Mapping[str, int]:
        """A whole number from 0 to 10 for every node asked, in order.

        Raises:
            ResolutionError: an object the pod names does not exist or contradicts it
            UnavailableError: another process answers
        """
        self._verbs.check()
        policy = self._in_force.policy
        state = self._in_force.state(names)
        facts = await self._verbs.facts(pod, names) if scores_longhorn(policy) else NOTHING_KNOWN
        asked = whole or Pod(pod.namespace, pod.name)
        return await self._scheduling.run(prioritize_names(asked, names, state, policy, facts))
