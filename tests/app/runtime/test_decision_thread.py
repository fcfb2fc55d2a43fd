"""The thread of decisions: what runs first, and what the event loop does meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from app.runtime.decision_thread import DecisionThread, Urgency
from scheduler_core.cooperative import Cooperative

pytestmark = pytest.mark.anyio


class _World:
    """Computations that note their steps, and a step that lasts until it is let go.

    Attributes:
        steps: the name of each step that was taken
    """

    def __init__(self) -> None:
        self.thread = DecisionThread()
        self.steps: list[str] = []
        self._go = threading.Event()
        self._runs = threading.Event()

    def computation(self, name: str, steps: int, act: Callable[[int], None] = lambda _: None) -> Cooperative[str]:
        """Takes some steps and returns its name."""
        for number in range(steps):
            self.steps.append(name)
            act(number)
            yield
        return name

    def start(self, name: str, steps: int, urgency: Urgency) -> asyncio.Task[str]:
        """Submits a computation."""
        return asyncio.create_task(self.thread.run(self.computation(name, steps), urgency))

    def block(self, urgency: Urgency) -> asyncio.Task[str]:
        """Submits a computation whose first step lasts until `let_go`; it has a second one."""

        def wait(number: int) -> None:
            if number == 0:
                self._runs.set()
                self._go.wait(10)

        return asyncio.create_task(self.thread.run(self.computation("blocks", 2, wait), urgency))

    async def until_blocked(self) -> None:
        """Returns once the step lasts."""
        assert await asyncio.to_thread(self._runs.wait, 10)

    def let_go(self) -> None:
        """Ends the step."""
        self._go.set()


async def test_a_result_comes_back_from_another_thread() -> None:
    """The caller's own thread is the event loop's."""
    threads: list[int] = []
    world = _World()
    computation = world.computation("first", 2, lambda _: threads.append(threading.get_ident()))
    assert await world.thread.run(computation) == "first"
    assert threading.get_ident() not in threads


async def test_an_error_is_raised_to_the_caller_alone() -> None:
    """The next computation runs none the less."""
    world = _World()

    def fail(_: int) -> None:
        raise KeyError("disk")

    with pytest.raises(KeyError, match="disk"):
        await world.thread.run(world.computation("fails", 1, fail))
    assert await world.thread.run(world.computation("next", 1)) == "next"


async def test_the_event_loop_goes_on_while_a_step_lasts() -> None:
    """However long it takes."""
    world = _World()
    task = world.block(Urgency.DECISION)
    await world.until_blocked()
    assert not task.done()
    world.let_go()
    assert await task == "blocks"


@pytest.mark.parametrize("urgency", [Urgency.EXPLANATION, Urgency.BACKGROUND])
async def test_a_decision_waits_for_one_step_of_anything_else(urgency: Urgency) -> None:
    """It goes before what runs already, and before what was submitted earlier."""
    world = _World()
    tasks = [world.block(urgency)]
    await world.until_blocked()
    tasks += [world.start("earlier", 2, urgency), world.start("decision", 2, Urgency.DECISION)]
    await asyncio.sleep(0)
    world.let_go()
    await asyncio.gather(*tasks)
    assert world.steps[:3] == ["blocks", "decision", "decision"]


async def test_the_more_urgent_goes_first() -> None:
    """Whatever was submitted first."""
    world = _World()
    tasks = [world.block(Urgency.DECISION)]
    await world.until_blocked()
    tasks += [world.start(urgency.name, 1, urgency) for urgency in reversed(Urgency)]
    await asyncio.sleep(0)
    world.let_go()
    await asyncio.gather(*tasks)
    assert [name for name in world.steps if name != "blocks"] == [urgency.name for urgency in Urgency]


async def test_equally_urgent_computations_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes long does not hold up the others."""
    monkeypatch.setattr("app.runtime.decision_thread.TURN_SECONDS", 0.0)
    world = _World()
    tasks = [world.block(Urgency.DECISION)]
    await world.until_blocked()
    tasks += [world.start("second", 2, Urgency.DECISION)]
    await asyncio.sleep(0)
    world.let_go()
    await asyncio.gather(*tasks)
    assert world.steps == ["blocks", "second", "blocks", "second"]


async def test_nothing_else_goes_on_while_a_decision_is_expected() -> None:
    """What is held runs once no decision is expected any more, also if none came."""
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
    await asyncio.gather(*tasks)
    assert world.steps == ["decision", "blocks", "blocks", "background"]


async def test_what_nothing_waits_for_any_more_ends() -> None:
    """Before its next step, or before its first one."""
    world = _World()
    tasks = [world.block(Urgency.DECISION)]
    await world.until_blocked()
    tasks += [world.start("waits", 1, Urgency.DECISION)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    world.let_go()
    assert await world.thread.run(world.computation("next", 1)) == "next"
    assert world.steps == ["blocks", "next"]


def test_a_loop_that_has_ended_gets_no_result() -> None:
    """The thread goes on for the next one."""
    world = _World()

    async def leave() -> None:
        world.block(Urgency.DECISION)
        await world.until_blocked()

    asyncio.run(leave())
    world.let_go()
    assert asyncio.run(world.thread.run(world.computation("next", 1))) == "next"
