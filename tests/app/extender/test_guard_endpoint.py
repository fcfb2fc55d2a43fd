"""When the placement guard's Service leads here: only from the leader, only while it is switched on and has a certificate."""

from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from app.extender import endpoint_publisher
from app.extender.endpoint_publisher import GuardEndpoint
from app.kube.client import ApiError
from scheduler_core.decide.extender_settings import GuardMode
from tests.worlds.publishers import FakeCertificate, FakePublisher
from tests.worlds.timeline import play, rows


class World:
    """An endpoint among fakes, whose lead belongs to the timeline."""

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

    async def keep(self, term: int | str, mode: str) -> None:
        """Keeps the endpoint as of a leader's term, or of a process that leads in `none`."""
        await self.endpoint.keep(None if isinstance(term, str) else term, GuardMode(mode))

    def state(self, mode: str) -> list[str | bool]:
        state = self.endpoint.state(GuardMode(mode))
        return [state.mode, state.published, state.problem]

    async def withdraw(self) -> None:
        for service in self.endpoint.left:
            await service.withdraw()

    async def withdraw_in_time(self) -> None:
        for service in self.endpoint.left:
            await service.withdraw_in_time()

    def refuse_writes(self) -> None:
        self.publisher.error = ApiError("PUT slice", 403, "Forbidden", "may not")

    def accept_writes(self) -> None:
        self.publisher.error = None

    async def end(self) -> None:
        """Nothing runs."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_publisher, "RETRY_INTERVAL", 0.0)


TIMELINES = """
a guard that observes is published once
    0 keep 1 observe; keep 1 observe; keep 1 observe; publisher.story -> published; state observe -> observe yes none
    # A new term.
    0 keep 2 observe; publisher.story -> published published
a guard that enforces is published once
    0 keep 1 enforce; keep 1 enforce; keep 1 enforce; publisher.story -> published; state enforce -> enforce yes none
    0 keep 2 enforce; publisher.story -> published published
the slice of a guard that is off is emptied
    # With a stolen token the Service could be pointed elsewhere, and API servers would call that.
    0 set certificate.problem=unknown; keep 1 off; keep 1 off; withdraw; publisher.story -> emptied
    0 standby.story -> emptied; state off -> off no none
switching off empties the slice
    0 keep 1 enforce; keep 1 off; keep 1 off; keep 1 observe; publisher.story -> published emptied published
without a certificate that is accepted the slice is empty
    # A call would fail after a handshake, and now fails at once.
    0 set certificate.ready=no certificate.problem=expired; keep 1 enforce; publisher.story -> emptied
    0 state enforce -> enforce no expired; set certificate.ready=yes; keep 1 enforce
    0 set certificate.ready=no; keep 1 enforce; publisher.story -> emptied published emptied
a certificate with a problem that still holds is published
    0 set certificate.problem=outage; keep 1 enforce; publisher.story -> published
    0 state enforce -> enforce yes outage; state enforce -> enforce yes outage
a slice that cannot be written is tried again
    # The permission may be missing.
    0 refuse_writes; keep 1 enforce; state enforce -> enforce no PUT slice: may not
    0 accept_writes; keep 1 enforce; state enforce -> enforce yes none
a process that does not lead is published as the standby
    0 set leads=no; keep none enforce; keep none enforce; standby.story -> published; publisher.story -> none
    0 state enforce -> enforce yes none
a standby whose guard is off is withdrawn
    0 set leads=no; keep none off; keep none off; standby.story -> withdrawn; publisher.story -> none; state off -> off no none
a standby without a certificate is withdrawn
    0 set leads=no certificate.ready=no; keep none enforce; keep none enforce; standby.story -> withdrawn
    0 publisher.story -> none; state enforce -> enforce no none
a standby that takes over leads the other port here
    0 set leads=no; keep none enforce; set leads=yes; keep 1 enforce; standby.story -> published; publisher.story -> published
    0 withdraw_in_time; standby.story -> published withdrawn; publisher.story -> published withdrawn
a process that ends is removed from both ports
    0 set leads=no; keep none enforce; withdraw_in_time; standby.story -> published withdrawn
a leader that ends is removed though it leads no more
    0 keep 1 enforce; set leads=no; withdraw_in_time; publisher.story -> published withdrawn
a former leader leaves the slice to its successor
    # It points here no more as soon as the lead is lost. Only its own address is removed.
    0 keep 1 enforce; set leads=no; state enforce -> enforce no none; withdraw; endpoint.forget; set leads=yes
    0 state enforce -> enforce no none; publisher.story -> published withdrawn
"""
RECHECKS = """
an endpoint is checked at an interval
    # The EndpointSlice may be edited by hand.
    0 keep 1 enforce; keep 1 enforce; publisher.story -> published published
an empty slice is checked at an interval
    0 set certificate.ready=no; keep 1 off; keep 1 observe; keep 1 enforce; publisher.story -> emptied emptied emptied
"""


@pytest.mark.parametrize("timeline", rows(TIMELINES))
def test_only_what_can_be_called_is_published(timeline: str) -> None:
    play(World, timeline)


@pytest.mark.parametrize("timeline", rows(RECHECKS))
def test_slices_are_checked_again(timeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_publisher, "RECHECK_INTERVAL", 0.0)
    play(World, timeline)


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
    assert "published" not in world.publisher.story
    assert [(line["log_level"], line["problem"]) for line in lines] == [("warning", problem)]
    assert world.endpoint.state(GuardMode.ENFORCE).problem == problem
    assert world.endpoint.state(GuardMode.OFF).problem == ""
