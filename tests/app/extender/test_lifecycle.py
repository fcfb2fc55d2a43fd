"""When this process competes, answers and points the Service to itself, with the election and the Service played by hand."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from app.extender import lifecycle as module
from app.extender.lifecycle import Live, LiveSettings, Parts
from app.extender.metrics import PREFIX, Metrics
from app.extender.node_reservation import NodeReservations
from app.kube.client import ApiError
from scheduler_core.extender.settings import ENABLED, NODE_RESERVATION_TIMEOUT, POD_SCHEDULING_TIMEOUT
from tests.worlds.fake_api import until

AGAIN = 0.3


class Cache:
    """A cache that is as complete and as fresh as it is told to be."""

    def __init__(self) -> None:
        self.problem = ""
        self.filled = True
        self.settings: dict[str, str] = {}
        self.caught_up = asyncio.Event()
        self.caught_up.set()
        self.catches = 0

    async def run(self) -> None:
        """Nothing to do."""
        await asyncio.Event().wait()

    async def catch_up(self) -> None:
        """As long as it takes."""
        self.catches += 1
        await self.caught_up.wait()


class ConfigMap:
    """The extender's ConfigMap."""

    def __init__(self) -> None:
        self.problem = ""
        self.data: dict[str, str] = {ENABLED: "true"}

    async def run(self) -> None:
        """Nothing to do."""
        await asyncio.Event().wait()


class Elector:
    """An election that is won and lost by hand."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.holder, self.problem, self.term, self.alive = "other", "", 0, True
        self.enabled = self.won = False
        self.undisturbed = math.inf

    def changed(self, callback: Callable[[], None]) -> None:
        """Nobody is told: the steering looks often enough."""

    def start(self) -> None:
        """Nothing to do."""

    def enable(self, enabled: bool) -> None:
        """Whether to compete."""
        if enabled != self.enabled:
            self.story.append("competes" if enabled else "competes no more")
        self.enabled = enabled

    def leading(self) -> bool:
        """Whether it was won."""
        return self.won and self.enabled

    def win(self) -> None:
        """The lead is taken."""
        self.won, self.term = True, self.term + 1

    def stop(self, *, release: bool, seconds: float) -> None:
        """The end."""
        if self.alive:
            assert seconds > 0
            self.story.append("released" if release else "ended")
        self.alive = self.won = False


class Publisher:
    """The Service's endpoint."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.error: ApiError | None = None
        self.calls = 0
        self.hangs = False

    async def _call(self, what: str) -> None:
        self.calls += 1
        if self.hangs:
            await asyncio.sleep(60)
        if self.error is not None:
            raise self.error
        self.story.append(what)

    async def publish(self) -> bool:
        """Points it here."""
        await self._call("published")
        return True

    async def withdraw(self) -> None:
        """Points it nowhere."""
        await self._call("withdrawn")


class Reservations:
    """Reservations that settle when they are told to."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.free = asyncio.Event()
        self.free.set()
        self.asked: Callable[[], str] = str
        self.refused_when_cleared = ""
        self.adopting: asyncio.Event | None = None
        self.undisturbed = -1.0

    def reserved(self) -> frozenset[str]:
        """None."""
        return frozenset()

    async def adopt(self, undisturbed: float) -> None:
        """Takes over."""
        self.undisturbed = undisturbed
        if self.adopting is not None:
            await self.adopting.wait()
        self.story.append("adopted")

    async def settled(self) -> None:
        """Waits for the last pod."""
        await self.free.wait()
        self.story.append("settled")

    def clear(self) -> None:
        """Forgets; by then nothing must be answered any more."""
        self.story.append("cleared")
        self.refused_when_cleared = self.asked()


class Companion:
    """Runs beside."""

    def __init__(self, story: list[str]) -> None:
        self.story = story

    async def run(self) -> None:
        """Until the end."""
        self.story.append("companion runs")
        await asyncio.Event().wait()

    def adopt(self) -> None:
        """Begins."""
        self.story.append("companion begins")

    def clear(self) -> None:
        """Ends."""
        self.story.append("companion ends")


class World:
    """A live service among these."""

    def __init__(self, environment: dict[str, str] | None = None, *, accompanied: bool = False) -> None:
        self.story: list[str] = []
        self.cache, self.config_map = Cache(), ConfigMap()
        self.elector, self.publisher = Elector(self.story), Publisher(self.story)
        self.reservations, self.metrics = Reservations(self.story), Metrics()
        played: dict[str, Any] = {
            "cache": self.cache, "config_map": self.config_map, "elector": self.elector, "publisher": self.publisher,
        }  # fmt: skip
        parts = Parts(**played, metrics=self.metrics, environment=environment or {}, node_name="host")
        settings = LiveSettings(parts.cache, parts.config_map, parts.environment)
        companions = [Companion(self.story)] if accompanied else []
        self.live = Live(parts, settings, cast("NodeReservations", self.reservations), companions)
        self.reservations.asked = self.live.late_refusal

    async def leads(self) -> None:
        """Wins, and waits until it answers."""
        await until("competing", lambda: self.elector.enabled)
        self.elector.win()
        await until("answering", lambda: not self.live.refusal())


@asynccontextmanager
async def running(environment: dict[str, str] | None = None, *, accompanied: bool = False) -> AsyncIterator[World]:
    """A service that is kept running."""
    world = World(environment, accompanied=accompanied)
    task = asyncio.create_task(world.live.run())
    try:
        yield world
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short steps."""
    monkeypatch.setattr(module, "_STEP_SECONDS", 0.01)
    monkeypatch.setattr(module, "_PUBLISH_AGAIN_SECONDS", AGAIN)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.05)


async def test_settings_in_the_order_of_their_sources() -> None:
    """ConfigMap, Setting, environment, defaults; each for itself."""
    world = World({ENABLED: "false", POD_SCHEDULING_TIMEOUT: "1", NODE_RESERVATION_TIMEOUT: "2"})
    world.config_map.data = {POD_SCHEDULING_TIMEOUT: "3"}
    world.cache.settings = {POD_SCHEDULING_TIMEOUT: "4", ENABLED: "true", "other": "x"}
    state = world.live.state()
    assert (state.enabled, state.pod_scheduling_timeout, state.node_reservation_timeout) == (True, 3, 2)
    assert list(state.origins.values()) == ["Setting", "environment", "ConfigMap longhorn-scheduler-extender"]


async def test_until_the_settings_are_known_it_is_not_said_to_be_disabled() -> None:
    """It is not ready."""
    world = World()
    world.config_map.data = {}
    world.config_map.problem = "ConfigMap not read yet"
    assert world.live.refusal() == "not ready: ConfigMap not read yet"
    world.config_map.problem, world.cache.filled, world.cache.problem = "", False, "nodes not listed yet"
    assert world.live.refusal() == "not ready: nodes not listed yet"
    world.cache.filled = True
    assert world.live.refusal().startswith(f"{ENABLED} is false (the default")


async def test_it_answers_when_it_has_caught_up_and_adopted() -> None:
    """Not when it has won."""
    async with running() as world:
        world.cache.caught_up.clear()
        await until("competing", lambda: world.elector.enabled)
        assert world.live.refusal() == "not the leader, other is"
        world.elector.win()
        await until("the catching up", lambda: world.cache.catches)
        assert world.live.refusal() == "taking over from the last leader"
        world.cache.caught_up.set()
        await until("the Service", lambda: "published" in world.story)
        assert world.live.refusal() == ""
        assert world.story == ["competes", "adopted", "published"]
        heartbeat = {"node": "host"}
        await until(
            "the heartbeat", lambda: world.metrics.registry.get_sample_value(f"{PREFIX}_heartbeat", heartbeat) == 1
        )


async def test_catching_up_that_does_not_end_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it leads."""
    monkeypatch.setattr(module, "CATCH_UP_SECONDS", 0.05)
    async with running() as world:
        world.cache.caught_up.clear()
        await until("competing", lambda: world.elector.enabled)
        world.elector.win()
        await until("the third time", lambda: world.cache.catches > 2)
        world.cache.caught_up.set()
        await until("answering", lambda: not world.live.refusal())


async def test_a_lead_lost_while_catching_up_is_not_taken() -> None:
    """Nor one that was won again since."""
    async with running() as world:
        world.cache.caught_up.clear()
        await until("competing", lambda: world.elector.enabled)
        world.elector.win()
        await until("the catching up", lambda: world.cache.catches)
        world.elector.win()
        world.cache.caught_up.set()
        await until("answering in the second term", lambda: not world.live.refusal())
        assert world.cache.catches == 2
        assert world.story.count("adopted") == 1


async def test_a_lead_lost_while_offers_settle_is_not_taken() -> None:
    """What was adopted meanwhile is forgotten."""
    async with running() as world:
        world.reservations.adopting = asyncio.Event()
        world.elector.undisturbed = 2.5
        await until("competing", lambda: world.elector.enabled)
        world.elector.win()
        await until("the settling", lambda: world.reservations.undisturbed == 2.5)
        world.elector.won = False
        world.reservations.adopting.set()
        await until("the end of it", lambda: "cleared" in world.story)
        assert world.live.refusal().startswith("not the leader")


async def test_what_goes_on_beside_begins_with_the_lead_and_ends_with_it() -> None:
    """Two processes must not nudge, nor count the same misplacement."""
    async with running(accompanied=True) as world:
        await world.leads()
        world.elector.won = False
        await until("the end", lambda: "companion ends" in world.story)
        await world.leads()
    told = [entry for entry in world.story if entry in {"adopted", "cleared"} or entry.startswith("companion")]
    begins = ["adopted", "companion begins"]
    assert told == ["companion runs", *begins, "cleared", "companion ends", *begins]


async def test_a_stale_cache_ends_the_lead() -> None:
    """Another candidate may know better; and back when it is fresh."""
    async with running() as world:
        await world.leads()
        world.cache.problem = "pods not heard of for 61 s"
        assert world.live.refusal() == "not ready: pods not heard of for 61 s"
        await until("the loss", lambda: "cleared" in world.story)
        assert not world.elector.enabled
        world.cache.problem = ""
        await until("its return", lambda: not world.live.refusal())


async def test_disabled_it_withdraws_before_it_releases() -> None:
    """Otherwise a successor's endpoint might be overwritten."""
    async with running() as world:
        await world.leads()
        await until("the Service", lambda: "published" in world.story)
        world.config_map.data = {ENABLED: "false"}
        assert world.live.refusal() == f"{ENABLED} is false (says ConfigMap longhorn-scheduler-extender)"
        await until("the end", lambda: "cleared" in world.story)
        assert world.story == ["competes", "adopted", "published", "withdrawn", "competes no more", "cleared"]


async def test_disabled_without_permission_it_tries_again_now_and_then() -> None:
    """It keeps the Lease meanwhile, and answers nobody."""
    async with running() as world:
        await world.leads()
        await until("the Service", lambda: "published" in world.story)
        world.publisher.error = ApiError("PUT slice", 403, "Forbidden", "may not")
        before, began = world.publisher.calls, time.monotonic()
        world.config_map.data = {ENABLED: "false"}
        await until("another try", lambda: world.publisher.calls >= before + 2)
        assert time.monotonic() - began >= AGAIN
        assert world.elector.leading()
        assert world.live.refusal().startswith(f"{ENABLED} is false")
        world.publisher.error = None
        await until("the end", lambda: not world.elector.enabled)
        assert "withdrawn" in world.story


async def test_a_service_that_cannot_be_written_is_tried_again_now_and_then() -> None:
    """It answers meanwhile: who asks may have come another way."""
    async with running() as world:
        world.publisher.error = ApiError("PUT slice", 403, "Forbidden", "may not")
        began = time.monotonic()
        await world.leads()
        await until("another try", lambda: world.publisher.calls >= 2)
        assert time.monotonic() - began >= AGAIN
        world.publisher.error = None
        await until("the Service", lambda: "published" in world.story)


async def test_an_elector_that_has_died_ends_the_service() -> None:
    """It could never lead again; a new process can."""
    world = World()
    task = asyncio.create_task(world.live.run())
    await until("competing", lambda: world.elector.enabled)
    world.elector.alive = False
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done
    assert isinstance(task.exception(), ExceptionGroup)


async def test_handing_over_in_its_order() -> None:
    """No new questions, the last pod placed, the Service pointed nowhere, the Lease released; it leads until then."""
    async with running() as world:
        await world.leads()
        await until("the Service", lambda: "published" in world.story)
        del world.story[:]
        world.reservations.free.clear()
        draining = asyncio.create_task(world.live.drain())
        await asyncio.sleep(0.1)
        assert world.live.refusal() == "shutting down"
        assert world.live.late_refusal() == ""
        assert world.elector.leading()
        world.reservations.free.set()
        await draining
        assert world.story == ["settled", "cleared", "withdrawn", "released"]
        assert world.reservations.refused_when_cleared != ""
        assert world.live.late_refusal() != ""


async def test_handing_over_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever hangs."""
    monkeypatch.setattr(module, "DRAIN_SECONDS", 0.1)
    monkeypatch.setattr(module, "WITHDRAW_SECONDS", 0.1)
    async with running() as world:
        await world.leads()
        await until("the Service", lambda: "published" in world.story)
        world.reservations.free.clear()
        world.publisher.hangs = True
        async with asyncio.timeout(2):
            await world.live.drain()
        assert world.story[-2:] == ["cleared", "released"]


async def test_a_follower_hands_over_nothing() -> None:
    """It just goes."""
    async with running() as world:
        await until("competing", lambda: world.elector.enabled)
        await world.live.drain()
        assert world.story == ["competes", "settled", "cleared", "released"]


async def test_after_a_crash_the_lease_runs_out() -> None:
    """A release would say that what came of the last answers can be seen."""
    world = World()

    async def fail() -> None:
        await until("answering", lambda: not world.live.refusal())
        raise RuntimeError("a fault")

    world.cache.run = fail  # type: ignore[method-assign]
    task = asyncio.create_task(world.live.run())
    await world.leads()
    await asyncio.wait({task}, timeout=5)
    assert world.story[-1] == "ended"
    assert task.exception() is not None


async def test_switched_off_it_keeps_the_lease_silently_until_its_answers_can_be_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else answers meanwhile; switched on again in time, it goes on."""
    monkeypatch.setattr(module, "SILENT_SECONDS", 1.0)
    async with running() as world:
        await world.leads()
        world.cache.problem = "nodes not heard of"
        await asyncio.sleep(0.1)
        assert world.live.refusal().startswith("not ready")
        assert world.elector.enabled
        world.cache.problem = ""
        await asyncio.sleep(1.1)
        assert world.elector.enabled
        assert world.live.refusal() == ""
        world.cache.problem = "nodes not heard of"
        await until("the end of the lead", lambda: not world.elector.enabled)


async def test_disabled_after_a_lead_was_lost_the_service_is_pointed_nowhere() -> None:
    """Nobody competes any more, so nobody else would do it."""
    async with running() as world:
        await world.leads()
        await until("the Service", lambda: "published" in world.story)
        world.elector.won = False
        await until("stepped down", lambda: bool(world.live.refusal()))
        world.config_map.data = {ENABLED: "false"}
        world.elector.holder = ""
        await until("withdrawn", lambda: "withdrawn" in world.story)
