"""Publishes the endpoint where API servers reach the placement guard.

The endpoint is a port with TLS, behind a Service of its own: one port of the Service leads to the leader, another to a process that does
not lead, which API servers call if the leader does not answer. One Service for all would lead to a leader that hangs, too, and an API server
asks no second endpoint after a time-out. Both ports lead here as long as the guard is switched on and there is a certificate that API servers
accept. Otherwise the leader keeps both EndpointSlices empty, so that Longhorn's placements wait for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from app.extender.endpoint_publisher import EndpointPublisher, PublishedService
from app.extender.guard_certificate import GuardCertificate
from app.schemas.state import GuardActivity, PlacementGuardState
from scheduler_core.decide.settings import GuardMode

log = structlog.get_logger("live")

# A process that does not lead has no term.
_ANY_TERM: Final = 0
_NO_ADDRESS: Final = "there is no address that API servers could call; see --advertise"


class GuardEndpoint:
    """Owner of the decision whether the placement guard's Service leads here.

    Args:
        publishers: of the port that leads to the leader, and of that which leads to another process; None without an address
        leading: returns whether this process leads
        activity: returns what the guard did
        listener_problem: why the guard's port could not be opened, or ""
    """

    def __init__(
        self,
        certificate: GuardCertificate,
        publishers: tuple[EndpointPublisher, EndpointPublisher] | None,
        leading: Callable[[], bool],
        activity: Callable[[], GuardActivity] = GuardActivity,
        listener_problem: str = "",
    ) -> None:
        self._certificate = certificate
        self._activity = activity
        self._leading = leading
        leader, standby = publishers or (None, None)
        self._service = PublishedService(leader, leading)
        self._standby = PublishedService(standby, lambda: not leading())
        self._fault = listener_problem or ("" if publishers is not None else _NO_ADDRESS)
        self._logged_problem = ""

    @property
    def points_here(self) -> bool:
        return self._service.points_here or self._standby.points_here

    def state(self, mode: GuardMode) -> PlacementGuardState:
        return PlacementGuardState(mode.value, self.points_here, self._problem(mode), self._activity())

    async def keep(self, term: int | None, mode: GuardMode) -> None:
        """Has the Service lead here if the guard can be called.

        Args:
            term: None if this process does not lead
            mode: what the setting says
        """
        callable_here = mode is not GuardMode.OFF and not self._fault and self._certificate.ready
        if term is None and callable_here:
            await self._standby.keep(_ANY_TERM)
        elif term is None and self._standby.may_point_here:
            await self._standby.withdraw()
        elif term is not None and callable_here:
            # The standby's port leads here until another process takes it: without an endpoint, a call would fail meanwhile.
            await self._service.keep(term)
        elif term is not None:
            await self._service.keep_empty()
            await self._standby.keep_empty()
        self._log_problem(mode)

    async def withdraw(self) -> None:
        """Has the Service lead nowhere, if it leads here."""
        for service in self._pointing_here():
            await service.withdraw()

    async def withdraw_in_time(self) -> None:
        """As `withdraw`, before this process stops listening; bounded."""
        for service in self._pointing_here():
            await service.withdraw_in_time()

    def _pointing_here(self) -> list[PublishedService]:
        # A leader that ends leads no more by then, and only this pod's own address is ever removed.
        return [service for service in (self._service, self._standby) if service.may_point_here]

    def forget(self) -> None:
        """Forgets that the leader's port leads here, if another process leads."""
        self._service.forget()

    def _problem(self, mode: GuardMode) -> str:
        service = self._service if self._leading() else self._standby
        return "" if mode is GuardMode.OFF else self._fault or self._certificate.problem or service.problem

    def _log_problem(self, mode: GuardMode) -> None:
        problem = self._problem(mode)
        if problem == self._logged_problem:
            return
        self._logged_problem = problem
        if problem:
            log.warning("the placement guard cannot be called", problem=problem)
        else:
            log.info("the placement guard can be called")
