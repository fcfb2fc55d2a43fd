"""Publishes the endpoint where API servers reach the placement guard.

The endpoint is the leader's port with TLS, behind a Service of its own. The Service leads here while this process
leads, the guard is switched on, and there is a certificate that API servers accept. Otherwise the leader keeps its
EndpointSlice empty, so that Longhorn's placements wait for nothing, and no other process answers in the guard's place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from app.extender.endpoint_publisher import EndpointPublisher
from app.extender.published_service import PublishedService
from app.extender.serving_certificate import ServingCertificate
from app.schemas.state import GuardActivity, PlacementGuardState
from scheduler_core.extender.settings import GuardMode

log = structlog.get_logger("live")

_NO_ADDRESS: Final = "there is no address that API servers could call; see --advertise"


class GuardEndpoint:
    """Owner of the decision whether the placement guard's Service leads here.

    Args:
        publisher: None without an address to point the Service to
        leading: returns whether this process leads
        activity: returns what the guard did
        listener_problem: why the guard's port could not be opened, or ""
    """

    def __init__(
        self,
        certificate: ServingCertificate,
        publisher: EndpointPublisher | None,
        leading: Callable[[], bool],
        activity: Callable[[], GuardActivity] = GuardActivity,
        listener_problem: str = "",
    ) -> None:
        self._certificate = certificate
        self._activity = activity
        self._service = PublishedService(publisher, leading)
        self._fault = listener_problem or ("" if publisher is not None else _NO_ADDRESS)
        self._logged_problem = ""

    @property
    def points_here(self) -> bool:
        """Whether this process leads, and has pointed the Service to itself."""
        return self._service.points_here

    def state(self, mode: GuardMode) -> PlacementGuardState:
        """Returns what /state shows."""
        return PlacementGuardState(mode.value, self.points_here, self._problem(mode), self._activity())

    async def keep(self, term: int, mode: GuardMode) -> None:
        """Has the Service lead here if the guard can be called, and nowhere otherwise."""
        if mode is not GuardMode.OFF and not self._fault and self._certificate.ready:
            await self._service.keep(term)
        else:
            await self._service.keep_empty()
        self._log_problem(mode)

    async def withdraw(self) -> None:
        """Has the Service lead nowhere, if it leads here."""
        if self.points_here:
            await self._service.withdraw()

    async def withdraw_in_time(self) -> None:
        """As `withdraw`, before this process stops listening; bounded."""
        await self._service.withdraw_in_time()

    def forget(self) -> None:
        """Forgets that the Service leads here, if another process leads."""
        self._service.forget()

    def _problem(self, mode: GuardMode) -> str:
        return "" if mode is GuardMode.OFF else self._fault or self._certificate.problem or self._service.problem

    def _log_problem(self, mode: GuardMode) -> None:
        problem = self._problem(mode)
        if problem == self._logged_problem:
            return
        self._logged_problem = problem
        if problem:
            log.warning("the placement guard cannot be called", problem=problem)
        else:
            log.info("the placement guard can be called")
