"""Writes the leader's address to the EndpointSlice of a Service, in each term, at an interval, and at the end.

Each change: get, compare, write at the resourceVersion that was compared; after a conflict all three again.

API servers reach the placement guard at a port with TLS, behind a Service of its own: one port of the Service leads to the leader,
another to a process that does not lead, which API servers call if the leader does not answer. One Service for all would lead to a leader
that hangs, too, and an API server asks no second endpoint after a time-out. Both ports lead here as long as the guard is switched on and
there is a certificate that API servers accept. Otherwise the leader keeps both EndpointSlices empty, so that Longhorn's placements wait
for nothing.
"""

import asyncio
from collections.abc import Callable

import structlog

from app.extender.guard_certificate import GuardCertificate
from app.kube.client import ApiError, KubeClient, create_owned
from app.kube.resources import ENDPOINT_SLICES
from app.runtime.logs import ProblemLog
from app.schemas.state import GuardActivity, PlacementGuardState
from scheduler_core.convert.leadership import endpoint_slice, new_slice, update_slice, version_precondition
from scheduler_core.decide.extender_settings import GuardMode
from scheduler_core.leadership import endpoint_slice as slices

log = structlog.get_logger("publishing")
live_log = structlog.get_logger("live")

CALL_SECONDS = 5.0
_TRIES = 6
# The end of the process must not wait for it: a successor overwrites the address.
WITHDRAW_TIMEOUT = 1.0
RETRY_INTERVAL = 2.0
# The EndpointSlice may be edited or deleted by hand, so one GET checks it at this interval.
RECHECK_INTERVAL = 10.0


class EndpointPublisher:
    """Points a Service to this process's endpoint, and away from it. `leading` is called between the read that a write
    is based on and the write. So a process that has lost the lead cannot overwrite its successor: had the successor
    written before the read, this process would not lead; if it wrote later, the versions differ.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        endpoint: slices.Endpoint,
        leading: Callable[[], bool],
        service: slices.LeaderService = slices.EXTENDER,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._endpoint = endpoint
        self._leading = leading
        self._service = service
        self._collection = ENDPOINT_SLICES.path(namespace)
        self._path = ENDPOINT_SLICES.path(namespace, service.name)

    async def publish(self) -> bool:
        """Points the Service here; returns whether it does, which it does not if this process does not lead any more.
        Raises an ApiError if the API server refused or did not answer; `conflict` if others kept changing the slice.
        """
        return await self._apply(slices.plan_publish, self._leading)

    async def withdraw(self) -> None:
        """Points the Service nowhere, unless it points to another process already. Raises an ApiError as `publish`
        does.
        """
        await self._apply(slices.plan_withdraw, lambda: True)

    async def empty(self) -> bool:
        """Points the Service nowhere, wherever it points; returns as publish. Raises an ApiError as `publish` does."""
        return await self._apply(lambda service, _, current: slices.plan_empty(service, current), self._leading)

    async def _apply(
        self,
        plan: Callable[[slices.LeaderService, slices.Endpoint, slices.Slice | None], slices.SliceChange | None],
        allowed: Callable[[], bool],
    ) -> bool:
        for tries_left in reversed(range(_TRIES)):
            raw = await self._client.find(self._path, CALL_SECONDS)
            current = None if raw is None else endpoint_slice(raw, self._service)
            change = plan(self._service, self._endpoint, current)
            if not allowed():
                return False
            if change is None:
                return True
            try:
                await self._write(change, raw)
            except ApiError as error:
                if not tries_left or not (error.conflict or error.not_found):
                    raise
                continue
            # A slice that was deleted is created in the next try.
            if not isinstance(change, slices.DeleteSlice):
                addresses = [str(entry) for entry in change.desired.endpoints]
                log.info("the Service leads to", service=self._service.name, endpoints=addresses)
                return True
        raise ApiError(f"PUT {self._path}", 409, "Conflict", f"others changed it {_TRIES} times in a row")

    async def _write(self, change: slices.SliceChange, raw: bytes | None) -> None:
        if isinstance(change, slices.CreateSlice):
            body = new_slice(self._namespace, self._service, change.desired)
            await create_owned(self._client, self._collection, self._namespace, body, CALL_SECONDS)
        elif raw is None:
            raise AssertionError("only a slice that was read is replaced or deleted")
        elif isinstance(change, slices.DeleteSlice):
            await self._client.delete(self._path, version_precondition(raw), CALL_SECONDS)
        else:
            await self._client.replace(self._path, update_slice(raw, self._service, change.desired), CALL_SECONDS)


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
        return self._term is not None and self._leading()

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
            live_log.warning("the Service still points here: the API server does not answer")

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


# A process that does not lead has no term.
_ANY_TERM = 0
_NO_ADDRESS = "there is no address that API servers could call; see --advertise"


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
        self._log = ProblemLog(live_log, "the placement guard cannot be called", "the placement guard can be called")

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
        self._log.note(self._problem(mode))

    @property
    def left(self) -> list[PublishedService]:
        """What must be withdrawn before this process ends, or is switched off."""
        # A leader that ends leads no more by then, and only this pod's own address is ever removed.
        return [service for service in (self._service, self._standby) if service.may_point_here]

    def forget(self) -> None:
        """Forgets that the leader's port leads here, if another process leads."""
        self._service.forget()

    def _problem(self, mode: GuardMode) -> str:
        service = self._service if self._leading() else self._standby
        return "" if mode is GuardMode.OFF else self._fault or self._certificate.problem or service.problem
