"""When the placement guard's Service leads here: only from the leader, only while it is switched on and has a certificate."""

from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from app.extender import endpoint_publisher
from app.extender.endpoint_publisher import GuardEndpoint
from app.kube.client import ApiError
from scheduler_core.decide.settings import GuardMode


class FakePublisher:
    """The Service's endpoint."""

    def __init__(self) -> None:
        self.story: list[str] = []  # the calls
        self.error: ApiError | None = None  # every call raises it

    async def publish(self) -> bool:
        self.story.append("published")
        if self.error is not None:
            raise self.error
        return True

    async def withdraw(self) -> None:
        self.story.append("withdrawn")
        if self.error is not None:
            raise self.error

    async def empty(self) -> bool:
        self.story.append("emptied")
        if self.error is not None:
            raise self.error
        return True


class FakeCertificate:
    """A certificate that is there or not."""

    def __init__(self) -> None:
        self.ready = True
        self.problem = ""


class World:
    """An endpoint among fakes, whose lead belongs to the test."""

    def __init__(self, *, address: bool = True, listener_problem: str = "") -> None:
        self.leads = True
        self.publisher = FakePublisher()
        self.standby = FakePublisher()
        self.certificate = FakeCertificate()
        self.endpoint = GuardEndpoint(
            cast("Any", self.certificate),
            cast("Any", (self.publisher, self.standby)) if address else None,
            lambda: self.leads,
            listener_problem=listener_problem,
        )

    @property
    def story(self) -> list[str]:
        return self.publisher.story


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_publisher, "RETRY_INTERVAL", 0.0)


@pytest.mark.parametrize("mode", [GuardMode.OBSERVE, GuardMode.ENFORCE])
async def test_a_guard_that_is_switched_on_is_published_once(mode: GuardMode) -> None:
    world = World()
    for _ in range(3):
        await world.endpoint.keep(1, mode)
    assert world.story == ["published"]
    assert world.endpoint.state(mode).published
    await world.endpoint.keep(2, mode)
    assert world.story == ["published", "published"], "a new term"


async def test_an_endpoint_is_checked_at_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The EndpointSlice may be edited by hand."""
    monkeypatch.setattr(endpoint_publisher, "RECHECK_INTERVAL", 0.0)
    world = World()
    for _ in range(2):
        await world.endpoint.keep(1, GuardMode.ENFORCE)
    assert world.story == ["published", "published"]


async def test_the_slice_of_a_guard_that_is_off_is_emptied() -> None:
    """With a stolen token the Service could be pointed elsewhere, and API servers would call that."""
    world = World()
    world.certificate.problem = "no Secret"
    for _ in range(2):
        await world.endpoint.keep(1, GuardMode.OFF)
    for service in world.endpoint.left:
        await service.withdraw()
    assert (world.story, world.standby.story) == (["emptied"], ["emptied"])
    state = world.endpoint.state(GuardMode.OFF)
    assert (state.mode, state.published, state.problem) == ("off", False, "")


async def test_an_empty_slice_is_checked_at_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_publisher, "RECHECK_INTERVAL", 0.0)
    world = World()
    world.certificate.ready = False
    for mode in (GuardMode.OFF, GuardMode.OBSERVE, GuardMode.ENFORCE):
        await world.endpoint.keep(1, mode)
    assert world.story == ["emptied"] * 3


async def test_switching_off_empties_the_slice() -> None:
    world = World()
    for mode in (GuardMode.ENFORCE, GuardMode.OFF, GuardMode.OFF, GuardMode.OBSERVE):
        await world.endpoint.keep(1, mode)
    assert world.story == ["published", "emptied", "published"]


async def test_without_a_certificate_that_is_accepted_the_slice_is_empty() -> None:
    """A call would fail after a handshake, and now fails at once."""
    world = World()
    world.certificate.ready = False
    world.certificate.problem = "expired"
    await world.endpoint.keep(1, GuardMode.ENFORCE)
    assert world.story == ["emptied"]
    assert world.endpoint.state(GuardMode.ENFORCE).problem == "expired"
    world.certificate.ready = True
    await world.endpoint.keep(1, GuardMode.ENFORCE)
    world.certificate.ready = False
    await world.endpoint.keep(1, GuardMode.ENFORCE)
    assert world.story == ["emptied", "published", "emptied"]


async def test_a_certificate_with_a_problem_that_still_holds_is_published() -> None:
    world = World()
    world.certificate.problem = "no answer"
    await world.endpoint.keep(1, GuardMode.ENFORCE)
    assert world.story == ["published"]
    assert world.endpoint.state(GuardMode.ENFORCE).problem == "no answer"


@pytest.mark.parametrize(
    ("world", "problem"),
    [
        (World(address=False), "there is no address that API servers could call; see --advertise"),
        (World(address=False, listener_problem="cannot listen"), "cannot listen"),
        (World(listener_problem="cannot listen"), "cannot listen"),
    ],
)
async def test_what_cannot_be_called_is_not_published(world: World, problem: str) -> None:
    with capture_logs() as lines:
        for _ in range(2):
            await world.endpoint.keep(1, GuardMode.ENFORCE)
    assert "published" not in world.story
    assert [(line["log_level"], line["problem"]) for line in lines] == [("warning", problem)]
    assert world.endpoint.state(GuardMode.ENFORCE).problem == problem
    assert world.endpoint.state(GuardMode.OFF).problem == ""


async def test_a_slice_that_cannot_be_written_is_tried_again() -> None:
    """The permission may be missing."""
    world = World()
    world.publisher.error = ApiError("PUT slice", 403, "Forbidden", "may not")
    await world.endpoint.keep(1, GuardMode.ENFORCE)
    assert world.endpoint.state(GuardMode.ENFORCE).problem == "PUT slice: may not"
    world.publisher.error = None
    await world.endpoint.keep(1, GuardMode.ENFORCE)
    state = world.endpoint.state(GuardMode.ENFORCE)
    assert (state.published, state.problem) == (True, "")


@pytest.mark.parametrize(
    ("mode", "ready", "story"),
    [
        (GuardMode.ENFORCE, True, ["published"]),
        (GuardMode.OFF, True, ["withdrawn"]),
        (GuardMode.ENFORCE, False, ["withdrawn"]),
    ],
)
async def test_a_process_that_does_not_lead_is_published_as_the_standby(
    mode: GuardMode, ready: bool, story: list[str]
) -> None:
    world = World()
    world.leads = False
    world.certificate.ready = ready
    for _ in range(2):
        await world.endpoint.keep(None, mode)
    assert (world.standby.story, world.story) == (story, [])
    assert world.endpoint.state(mode).published is (story == ["published"])


async def test_a_standby_that_takes_over_leads_the_other_port_here() -> None:
    world = World()
    world.leads = False
    await world.endpoint.keep(None, GuardMode.ENFORCE)
    world.leads = True
    await world.endpoint.keep(1, GuardMode.ENFORCE)
    assert (world.standby.story, world.story) == (["published"], ["published"])
    for service in world.endpoint.left:
        await service.withdraw_in_time()
    assert (world.standby.story, world.story) == (["published", "withdrawn"], ["published", "withdrawn"])


async def test_a_process_that_ends_is_removed_from_both_ports() -> None:
    world = World()
    world.leads = False
    await world.endpoint.keep(None, GuardMode.ENFORCE)
    for service in world.endpoint.left:
        await service.withdraw_in_time()
    assert world.standby.story == ["published", "withdrawn"]


async def test_a_leader_that_ends_is_removed_though_it_leads_no_more() -> None:
    world = World()
    await world.endpoint.keep(1, GuardMode.ENFORCE)
    world.leads = False
    for service in world.endpoint.left:
        await service.withdraw_in_time()
    assert world.story == ["published", "withdrawn"]


async def test_a_former_leader_leaves_the_slice_to_its_successor() -> None:
    """It points here no more as soon as the lead is lost."""
    world = World()
    await world.endpoint.keep(1, GuardMode.ENFORCE)
    world.leads = False
    assert not world.endpoint.state(GuardMode.ENFORCE).published
    for service in world.endpoint.left:
        await service.withdraw()
    world.endpoint.forget()
    world.leads = True
    assert not world.endpoint.state(GuardMode.ENFORCE).published
    assert world.story == ["published", "withdrawn"], "only its own address is removed"
