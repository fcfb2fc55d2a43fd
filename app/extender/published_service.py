"""Whether one Service leads to this process: it is pointed here in each term, checked at an interval, and pointed away
at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from app.extender.endpoint_publisher import EndpointPublisher
from app.kube.client import ApiError

log = structlog.get_logger("live")

WITHDRAW_TIMEOUT: Final = 1.0
RETRY_INTERVAL: Final = 2.0
# The EndpointSlice may be edited or deleted by hand, so one GET checks it at this interval.
RECHECK_INTERVAL: Final = 10.0


class PublishedService:
    """Owner of the state of one Service.

    Args:
        publisher: None without an address to point the Service to; then there is nothing to do
        leading: returns whether this process leads
    """

    def __init__(self, publisher: EndpointPublisher | None, leading: Callable[[], bool]) -> None:
        self._publisher = publisher
        self._leading = leading
        self.problem = ""  # why the Service could not be written the last time, or ""
        # Only this pod's own address is ever removed.
        self.may_point_here = True  # whether an earlier process in this pod may have left the Service pointing here
        # The term in which the Service points here.
        self._term: int | None = None
        self._retry_at = 0.0
        self._recheck_at = 0.0

    @property
    def points_here(self) -> bool:
        """Whether this process leads and has pointed the Service to itself."""
        return self._term is not None and self._leading()

    async def point_here(self, term: int) -> None:
        """Points the Service here; does nothing for `RETRY_INTERVAL` after a failure."""
        await self._change(term)

    async def keep(self, term: int) -> None:
        """Points the Service here in a new term, and checks at an interval that it still leads here."""
        if self._term != term or asyncio.get_running_loop().time() >= self._recheck_at:
            await self._change(term)

    async def keep_empty(self) -> None:
        """Points the Service nowhere, wherever it points, if this process leads; checks that at an interval."""
        if self.points_here or asyncio.get_running_loop().time() >= self._recheck_at:
            await self._change(None, wherever=True)

    async def withdraw(self) -> None:
        """Removes this process from the Service; does nothing for `RETRY_INTERVAL` after a failure."""
        await self._change(None)

    async def withdraw_in_time(self) -> None:
        """Removes this process from the Service before it stops listening; gives up after `WITHDRAW_TIMEOUT`. A
        successor need not wait for that. If it has put its address there already, that stays.
        """
        try:
            async with asyncio.timeout(WITHDRAW_TIMEOUT):
                await self.withdraw()
        except TimeoutError:
            log.warning("the Service still points here: the API server does not answer")

    def forget(self) -> None:
        """Forgets the term if it is over, and problems."""
        if not self._leading():
            self._term = None
        self.problem = ""

    async def _change(self, term: int | None, *, wherever: bool = False) -> None:
        clock = asyncio.get_running_loop().time
        if clock() < self._retry_at:
            return
        publisher = self._publisher
        try:
            if publisher is not None and wherever:
                await publisher.empty()
            elif publisher is not None and term is None:
                await publisher.withdraw()
            elif publisher is not None and not await publisher.publish():
                return
        except ApiError as error:
            self.problem = str(error)
            self._retry_at = clock() + RETRY_INTERVAL
            return
        self.problem = ""
        self._term = term
        self.may_point_here = term is not None
        self._recheck_at = clock() + RECHECK_INTERVAL
