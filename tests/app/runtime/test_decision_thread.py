"""The thread of decisions: what runs first, and what the event loop does meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from time import perf_counter

import pytest

from app.runtime.decision_thread import DEADLINE_SECONDS, QUIET_SECONDS, DecisionThread, Urgency
from scheduler_core.packing.budget import give_way


class _World:
    """Work that notes its steps, and a step that lasts until it is let go."""

    def __init__(self, deadline: float = DEADLINE_SECONDS) -> None:
        self.thread = DecisionThread(deadline)
        self.steps: list[str] = []  # the name of each step that was taken
        self._go = threading.Event()
        self._runs = threading.Event()

    def work(self, name: str, steps: int, act: Callable[[int], object] = lambda _: None) -> str:
        """Takes some steps, gives way after each, and returns its name."""
        for number in range(steps):
            self.steps.append(name)
            act(number)
            give_way()
        return name

    def start(self, name: str, steps: int, urgency: Urgency, rest: float = 0.0) -> asyncio.Task[str]:
        return asyncio.create_task(self.thread.run(lambda: self.work(name, steps), urgency, rest))

    def block(self, urgency: Urgency) -> asyncio.Task[str]:
        """Submits work whose first step lasts until `let_go`; it has a second one."""

        def wait(number: int) -> None:
            if number == 0:
                self._runs.set()
                self._go.wait(10)

        return asyncio.create_task(self.thread.run(lambda: self.work("blocks", 2, wait), urgency))

    async def until_blocked(self) -> None:
        assert await asyncio.to_thread(self._runs.wait, 10)

    def let_go(self) -> None:
        self._go.set()

    async def finish(self, *tasks: asyncio.Task[str]) -> list[str]:
        """Lets go once all tasks are submitted; returns the steps that were taken until their ends."""
        await asyncio.sleep(0)
        self.let_go()
        await asyncio.gather(*tasks)
        return self.steps


async def test_a_result_comes_back_from_another_thread() -> None:
    threads: list[int] = []
    world = _World()
    assert await world.thread.run(lambda: world.work("first", 2, lambda _: threads.append(threading.get_ident())))
    assert threads
    assert threading.get_ident() not in threads


async def test_an_error_is_raised_to_the_caller_alone() -> None:
    world = _World()

    def fail() -> str:
        raise KeyError("disk")

    with pytest.raises(KeyError, match="disk"):
        await world.thread.run(fail)
    assert await world.start("next", 1, Urgency.DECISION) == "next"


async def test_the_event_loop_goes_on_while_a_step_lasts() -> None:
    world = _World()
    task = world.block(Urgency.DECISION)
    await world.until_blocked()
    assert not task.done()
    world.let_go()
    assert await task == "blocks"


@pytest.mark.parametrize("urgency", [Urgency.EXPLANATION, Urgency.BACKGROUND, Urgency.IDLE])
async def test_a_decision_waits_for_one_step_of_anything_else(urgency: Urgency) -> None:
    world = _World()
    task = world.block(urgency)
    await world.until_blocked()
    others = world.start("earlier", 2, urgency), world.start("decision", 2, Urgency.DECISION)
    assert await world.finish(task, *others) == ["blocks", "decision", "decision", "blocks", "earlier", "earlier"]


async def test_a_decision_is_not_interrupted_by_another_one() -> None:
    world = _World()
    task = world.block(Urgency.DECISION)
    await world.until_blocked()
    steps = await world.finish(task, world.start("second", 2, Urgency.DECISION))
    assert steps == ["blocks", "blocks", "second", "second"]


async def test_the_more_urgent_goes_first() -> None:
    world = _World()
    task = world.block(Urgency.REVIEW)
    await world.until_blocked()
    steps = await world.finish(task, *(world.start(urgency.name, 1, urgency) for urgency in reversed(Urgency)))
    assert steps == ["blocks", "blocks", *(urgency.name for urgency in Urgency)]


async def test_nothing_else_goes_on_while_a_decision_is_expected() -> None:
    world = _World()
    with world.thread.expecting():
        tasks = [world.block(Urgency.EXPLANATION), world.start("background", 1, Urgency.BACKGROUND)]
        with world.thread.expecting():
            assert await world.start("decision", 1, Urgency.DECISION) == "decision"
        await asyncio.sleep(0.02)
        assert world.steps == ["decision"]
    await world.until_blocked()
    with world.thread.expecting():
        world.let_go()
        await asyncio.sleep(0.02)
        assert world.steps == ["decision", "blocks"]
        assert await world.start("second", 1, Urgency.DECISION) == "second"
    await asyncio.gather(*tasks)
    assert world.steps == ["decision", "blocks", "second", "blocks", "background"]


async def test_what_nothing_waits_for_any_more_ends() -> None:
    world = _World()
    tasks = [world.block(Urgency.DECISION)]
    await world.until_blocked()
    tasks += [world.start("waits", 1, Urgency.DECISION)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    world.let_go()
    assert await world.start("next", 1, Urgency.DECISION) == "next"
    assert world.steps == ["blocks", "next"]


async def test_work_that_rests_takes_its_share_of_the_time() -> None:
    world = _World()

    def wait(_: int) -> None:
        until = perf_counter() + 0.002
        while perf_counter() < until:
            pass

    began = perf_counter()
    rests = asyncio.create_task(world.thread.run(lambda: world.work("rests", 10, wait), Urgency.IDLE, 4.0))
    await asyncio.sleep(0.01)
    assert await world.start("page", 1, Urgency.EXPLANATION) == "page"
    assert not rests.done()
    await rests
    assert perf_counter() - began >= 10 * 0.002 * 5


async def test_work_that_rests_waits_while_decisions_are_frequent() -> None:
    world = _World()
    assert await world.start("decision", 1, Urgency.DECISION) == "decision"
    began = perf_counter()
    assert await world.start("rests", 1, Urgency.IDLE, 1.0) == "rests"
    assert perf_counter() - began >= QUIET_SECONDS - 0.05


async def test_a_job_that_rests_ends_in_a_burst_without_end() -> None:
    world = _World(deadline=0.1)
    job = world.start("rests", 3, Urgency.IDLE, 0.1)
    while not job.done():
        await world.start("decision", 1, Urgency.DECISION)


def test_a_loop_that_has_ended_gets_no_result() -> None:
    world = _World()

    async def leave() -> None:
        world.block(Urgency.DECISION)
        await world.until_blocked()

    async def begin_anew() -> str:
        return await world.start("next", 1, Urgency.DECISION)

    asyncio.run(leave())
    world.let_go()
    assert asyncio.run(begin_anew()) == "next"
