"""Step 5 of the proposal under events in any order: nothing leaks, and reserved nodes stay reserved."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.extender.whole_node_reservation import ADOPTED_SECONDS
from app.runtime.probes import CallerGoneError, HungUp, UnavailableError
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.worlds.node_reservation import POD_SCHEDULING_TIMEOUT, NodeReservationWorld
from tests.worlds.state_source import fitting_nodes
from tests.worlds.two_nodes import NODES, database_pod
from tests.worlds.virtual_time import VirtualLoop

PODS = st.integers(0, 4)
NAMES = st.sampled_from(NODES)
PAUSES = st.sampled_from([0.0, 0.001, 0.4, 1.0, 4.99, 5.0, 7.5, 20.0])


class Reservations(RuleBasedStateMachine):
    """Requests of kube-scheduler, changes of Longhorn and of the lead, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.world: NodeReservationWorld = self.run(self.begin())
        self.requests: dict[asyncio.Task[list[str]], int] = {}
        self.hung_up: set[int] = set()
        self.existing: set[int] = set()

    async def begin(self) -> NodeReservationWorld:
        return NodeReservationWorld()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    async def turn(self, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds)
        for _ in range(30):  # timers that are due at the same moment start further tasks
            await asyncio.sleep(0)

    async def filter(self, number: int, hung_up: HungUp) -> list[str]:
        """Sends /filter; a reserved node fits only a pod with a replica on it."""
        decision = await self.world.decide(make.as_pod(database_pod(number)), hung_up)
        reserved = self.world.reservations.reserved_nodes()
        for name, reason in zip(decision.candidates, decision.reasons, strict=True):
            assert name not in reserved or not reason.fits or reason is Reason.HOME
        return fitting_nodes(decision)

    def step(self, action: Callable[[], object] | None = None, seconds: float = 0.0) -> None:
        """Calls the action on the loop, then waits."""

        async def act() -> None:
            if action is not None:
                action()
            await self.turn(seconds)

        self.run(act())
        self.collect()

    def collect(self) -> None:
        """Removes the requests that have ended, and checks the errors they ended with."""
        for task in [task for task in self.requests if task.done()]:
            number = self.requests.pop(task)
            error = None if task.cancelled() else task.exception()
            assert isinstance(error, CallerGoneError | UnavailableError | None), error
            assert not isinstance(error, CallerGoneError) or number in self.hung_up

    @rule(number=PODS)
    def create(self, number: int) -> None:
        self.existing.add(number)
        self.step(lambda: self.world.create(number))

    @rule(number=PODS)
    def request(self, number: int) -> None:
        """kube-scheduler sends /filter."""

        async def hung_up() -> bool:
            return number in self.hung_up

        def begin() -> None:
            if number not in self.existing:
                self.world.create(number)
                self.existing.add(number)
            self.hung_up.discard(number)
            task = self.world.loop.create_task(self.filter(number, hung_up), name=f"request for {number}")
            self.requests[task] = number

        self.step(begin)

    @rule(number=PODS)
    def hang_up(self, number: int) -> None:
        self.hung_up.add(number)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.requests, key=lambda task: task.get_name())))
        self.step(task.cancel)

    @precondition(lambda self: self.existing)
    @rule(data=st.data(), node=NAMES)
    def bind(self, data: st.DataObject, node: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.existing)))
        self.step(lambda: self.world.bind(number, node))

    @precondition(lambda self: self.existing)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.existing)))
        self.existing.discard(number)
        self.step(lambda: self.world.cache.remove(database_pod(number)))

    @rule(number=PODS, node=NAMES)
    def provision(self, number: int, node: str) -> None:
        self.step(lambda: self.world.provision(number, node))

    @rule(node=NAMES, numbers=st.sets(PODS))
    def list_replicas(self, node: str, numbers: set[int]) -> None:
        self.step(lambda: self.world.list_replicas(node, *sorted(numbers)))

    @rule(seconds=PAUSES)
    def wait(self, seconds: float) -> None:
        self.step(seconds=seconds)

    @rule()
    def lose(self) -> None:
        """This process loses the lead: nothing is reserved, and no request waits."""

        def lose_lead() -> None:
            self.world.refusal = "not the leader"
            self.world.reservations.clear()

        self.step(lose_lead)
        assert self.world.reservations.reserved_nodes() == frozenset()
        assert not self.requests

    @precondition(lambda self: self.world.refusal)
    @rule()
    def lead(self) -> None:
        """This process leads again."""

        async def win_lead() -> None:
            self.world.refusal = ""
            await self.world.reservations.adopt(0.0)
            await self.turn()

        self.run(win_lead())
        self.collect()

    @invariant()
    def every_wait_has_an_owner(self) -> None:
        """Asserts that requests wait only while some pod is waited for, and each reserved node, too, has a listener."""
        listening = sum(len(events) for events in self.world.cache.listeners.values())
        assert listening >= len(self.world.reservations.reserved_nodes()) + bool(self.requests)

    def teardown(self) -> None:
        """Every wait ends by itself, in bounded time, and leaves nothing behind."""
        pending = len(self.requests)
        self.step(seconds=POD_SCHEDULING_TIMEOUT * (pending + 1) + ADOPTED_SECONDS + 20)
        assert not self.requests
        self.run(self.world.assert_idle())
        self.runner.close()


Reservations.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestReservations = Reservations.TestCase
