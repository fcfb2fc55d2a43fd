"""Step 5 of the proposal under whatever happens, in whatever order: nothing leaks, and the promises hold."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.extender.availability import CallerGoneError, HungUp, UnavailableError
from app.extender.node_reservation import ADOPTED_SECONDS
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.app.extender.test_node_reservation import NODES, SCHEDULING_SECONDS, World, db, fits
from tests.worlds.virtual_time import VirtualLoop

PODS = st.integers(0, 4)
NAMES = st.sampled_from(NODES)
PAUSES = st.sampled_from([0.0, 0.001, 0.4, 1.0, 4.99, 5.0, 7.5, 20.0])


class Reservations(RuleBasedStateMachine):
    """kube-scheduler, Longhorn and the election do what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.world: World = self.run(self.begin())
        self.questions: dict[asyncio.Task[list[str]], int] = {}
        self.hung_up: set[int] = set()
        self.existing: set[int] = set()
        self.bound: dict[int, str] = {}
        self.answered_at: dict[int, float] = {}

    async def begin(self) -> World:
        """The world lives on the runner's loop."""
        return World()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Lets the loop turn until this is done."""
        return self.runner.run(coroutine)

    async def turn(self, seconds: float = 0.0) -> None:
        """Lets time pass, and what is ready happen."""
        await asyncio.sleep(seconds)
        for _ in range(30):  # what falls due at one moment has consequences of its own
            await asyncio.sleep(0)

    async def question(self, number: int, hung_up: HungUp) -> list[str]:
        """Asks; a reserved node is offered only to a pod whose replicas are there."""
        decision = await self.world.verbs.filter(make.as_pod(db(number)), NODES, hung_up)
        reserved = self.world.reservations.reserved()
        for name, reason in zip(decision.candidates, decision.reasons, strict=True):
            assert name not in reserved or not reason.fits or reason is Reason.HOME
        return fits(decision)

    def step(self, what: Any = None, seconds: float = 0.0) -> None:
        """Does something on the loop, and lets its consequences happen."""

        async def do() -> None:
            if what is not None:
                what()
            await self.turn(seconds)

        self.run(do())
        self.collect()

    def collect(self) -> None:
        """Looks at the questions that are over; what they may end with."""
        for task in [task for task in self.questions if task.done()]:
            number = self.questions.pop(task)
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                self.answered_at[number] = self.world.loop.time()
            else:
                assert isinstance(error, CallerGoneError | UnavailableError), error
                assert not isinstance(error, CallerGoneError) or number in self.hung_up

    @rule(number=PODS)
    def create(self, number: int) -> None:
        """A pod appears, unbound, whatever it was before."""
        self.existing.add(number)
        self.bound.pop(number, None)
        self.step(lambda: self.world.create(number))

    @rule(number=PODS)
    def ask(self, number: int) -> None:
        """kube-scheduler asks."""

        async def hung_up() -> bool:
            return number in self.hung_up

        def begin() -> None:
            if number not in self.existing:
                self.world.create(number)
                self.existing.add(number)
                self.bound.pop(number, None)
            self.hung_up.discard(number)
            task = self.world.loop.create_task(self.question(number, hung_up), name=f"question about {number}")
            self.questions[task] = number

        self.step(begin)

    @rule(number=PODS)
    def hang_up(self, number: int) -> None:
        """A caller goes."""
        self.hung_up.add(number)

    @precondition(lambda self: self.questions)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """The server drops a question."""
        task = data.draw(st.sampled_from(sorted(self.questions, key=lambda task: task.get_name())))
        self.step(task.cancel)

    @precondition(lambda self: self.existing)
    @rule(data=st.data(), node=NAMES)
    def bind(self, data: st.DataObject, node: str) -> None:
        """kube-scheduler binds."""
        number = data.draw(st.sampled_from(sorted(self.existing)))
        self.bound[number] = node
        self.step(lambda: self.world.bind(number, node))

    @precondition(lambda self: self.existing)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """A pod goes."""
        number = data.draw(st.sampled_from(sorted(self.existing)))
        self.existing.discard(number)
        self.bound.pop(number, None)
        self.step(lambda: self.world.cache.remove(db(number)))

    @rule(number=PODS, node=NAMES)
    def provision(self, number: int, node: str) -> None:
        """Longhorn places a replica."""
        self.step(lambda: self.world.provision(number, node))

    @rule(node=NAMES, numbers=st.sets(PODS))
    def list_replicas(self, node: str, numbers: set[int]) -> None:
        """Longhorn's node says what is on it."""
        self.step(lambda: self.world.list_replicas(node, *sorted(numbers)))

    @rule(seconds=PAUSES)
    def wait(self, seconds: float) -> None:
        """Nothing happens."""
        self.step(seconds=seconds)

    @rule()
    def lose(self) -> None:
        """Somebody else leads: nothing is reserved, and nobody waits for anything."""

        def lost() -> None:
            self.world.refusal = "not the leader"
            self.world.reservations.clear()

        self.step(lost)
        assert self.world.reservations.reserved() == frozenset()
        assert not self.questions

    @precondition(lambda self: self.world.refusal)
    @rule()
    def lead(self) -> None:
        """This one leads again."""

        async def won() -> None:
            self.world.refusal = ""
            await self.world.reservations.adopt(0.0)
            await self.turn()

        self.run(won())
        self.collect()

    @invariant()
    def nobody_waits_for_ever(self) -> None:
        """The lock is free, or somebody is waited for; and the readers that listen are those that wait."""
        reservations, cache = self.world.reservations, self.world.cache
        assert reservations._lock.locked() == bool(reservations._waits)
        listening = sum(len(events) for events in cache.listeners.values())
        assert listening == len(reservations._waits) + len(reservations._arrivals)
        assert not reservations._forgotten
        assert not self.questions or reservations._lock.locked()

    def teardown(self) -> None:
        """All that waits ends by itself, in bounded time, and leaves nothing."""
        pending = len(self.questions)
        self.step(seconds=SCHEDULING_SECONDS * (pending + 1) + ADOPTED_SECONDS + 20)
        assert not self.questions
        self.run(self.world.assert_free())
        self.runner.close()


Reservations.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestReservations = Reservations.TestCase
