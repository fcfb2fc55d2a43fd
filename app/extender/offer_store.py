"""The record of offers: a ConfigMap that the leader writes and its successor reads.

    offers are made → at most three times a second, and never on the way to an answer → record
    SIGTERM → no more answers → final record → the Lease is released
    elected → read the record → restore the offers, if the record is of the leader that held the Lease before

Each write is based on the version that was last read or written, and on the fence being open after that. So a former leader cannot
overwrite its successor's record.
"""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from app.kube.client import ApiError, KubeClient
from app.kube.resources import CONFIG_MAPS
from app.runtime import logs, wait_at_most
from app.runtime.elector import Elector
from scheduler_core.offers import handover_record, outstanding_offer
from scheduler_core.offers.ledger import Ledger
from scheduler_core.structs import replace

log = structlog.get_logger("handover")

CONFIG_MAP = "longhorn-scheduler-extender-offers"
KEY = "offers"
CALL_SECONDS = 2.0
# An API server waits for a review meanwhile.
READ_SECONDS = 0.3
# Enough for two calls, and little of what a pod has to end.
FINAL_SECONDS = 4.0
# At most three writes a second.
_WRITE_INTERVAL = 0.35
# The successor of a killed leader sees in the cluster why most offers have ended.
_ENDS_INTERVAL = 5.0
_FAILURE_INTERVAL = 5.0
# etcd keeps every version for minutes.
_BYTES_PER_SECOND = 128 * 1024
_TRIES = 3


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _ConfigMap(msgspec.Struct, rename="camel"):
    metadata: _Metadata
    binary_data: dict[str, str] | None = None

    @property
    def record(self) -> bytes:
        """The stored record, b"" if there is none. Raises a RecordError if it is no base64."""
        try:
            return b64decode((self.binary_data or {}).get(KEY, ""), validate=True)
        except ValueError as error:
            raise handover_record.RecordError(f"the ConfigMap {CONFIG_MAP} cannot be read: {error}") from error


class OfferStore:
    """Reads and writes the record of offers.

    Args:
        versions: returns the newest version of each kind that this process's cache has
        clock: the ledger's clock
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        leadership: Elector,
        versions: Callable[[], Mapping[str, str]],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._path = CONFIG_MAPS.path(namespace, CONFIG_MAP)
        self._leadership = leadership
        self._versions = versions
        self._clock = clock
        self._ledger = Ledger()
        self._active = False
        self._version = ""
        self._read_version = ""
        self._read_offers: Sequence[outstanding_offer.RecordedOffer] = ()
        self._problems = logs.ProblemLog(
            log, "offers are not recorded for a successor", "offers are recorded for a successor again"
        )
        self._changed = asyncio.Event()
        self._made = asyncio.Event()
        self._writing = asyncio.Lock()

    def note(self, ledger: Ledger) -> None:
        """Takes the ledger after an event; a change of its offers is recorded soon."""
        before = self._ledger
        self._ledger = ledger
        if ledger.offers_made != before.offers_made:
            self._made.set()
        if ledger.offers is not before.offers:
            self._changed.set()

    async def run(self) -> None:
        """Records changes until cancelled; idles between `clear` and the next `adopt`."""
        while True:
            await self._changed.wait()
            await wait_at_most(self._made, _ENDS_INTERVAL)
            self._changed.clear()
            self._made.clear()
            if not self._active:
                continue
            size = await self._record(self._ledger, final=False)
            if size is None:
                self._changed.set()
                await asyncio.sleep(_FAILURE_INTERVAL)
            else:
                await asyncio.sleep(max(_WRITE_INTERVAL, size / _BYTES_PER_SECOND))

    def adopt(self) -> None:
        """Starts to record: this process answers from now on."""
        self._active = True
        self._changed.set()
        self._made.set()

    def clear(self) -> None:
        """Stops to record: another process leads, or will soon."""
        self._active = False

    async def write_final(self, ledger: Ledger) -> bool:
        """Records all offers of a leader that answers nothing more; returns whether a successor can read them."""
        self._active = False
        try:
            async with asyncio.timeout(FINAL_SECONDS):
                return await self._record(ledger, final=True) is not None
        except TimeoutError:
            log.warning("the offers were not handed over: the API server does not answer")
            return False

    async def read(self) -> handover_record.HandoverRecord | None:
        """Returns the record of the last leader or, neither final nor complete, that of an earlier one; None if no
        leader ever wrote one.

        Raises:
            RecordError: it is damaged, or not of a leader that held the Lease before this process
            ApiError: it cannot be read
        """
        # Without the record the successor waits until the last leader's answers are visible, so it is also read again
        # after a call without an answer.
        data = b""
        for tries_left in reversed(range(_TRIES)):
            try:
                data = await self._get()
                break
            except ApiError as error:
                if not tries_left or not error.unreachable:
                    raise
        if not data:
            return None
        record = await asyncio.to_thread(handover_record.decode_record, data)
        predecessor = self._leadership.predecessor
        head = record.head
        if predecessor is not None and head.transitions < predecessor.transitions:
            # The last leader may have ended before it answered.
            log.warning("the last leader recorded no offers, an earlier one did", holder=head.holder)
            return replace(record, head=replace(head, final=False, complete=False))
        if (
            predecessor is None
            or head.transitions != predecessor.transitions
            or predecessor.holder not in ("", head.holder)
        ):
            raise handover_record.RecordError(
                f"the record of offers is of {head.holder}, which did not hold the Lease last"
            )
        return record

    async def read_offers(self) -> Sequence[outstanding_offer.RecordedOffer]:
        """Returns the offers that the last leader recorded, none if they cannot be read."""
        try:
            config_map = await self._get_config_map(READ_SECONDS)
            version = config_map.metadata.resource_version
            if version != self._read_version:
                data = config_map.record
                self._read_offers = (
                    (await asyncio.to_thread(handover_record.decode_record, data)).offers if data else ()
                )
                self._read_version = version
        except (ApiError, handover_record.RecordError) as error:
            log.warning("the leader's offers are unknown", problem=str(error))
            return ()
        return self._read_offers

    async def _record(self, ledger: Ledger, *, final: bool) -> int | None:
        """Writes the record; returns its bytes, None if it was not written or a final one is not complete."""
        # The caller reads the ledger and calls this without a pause between, so that `versions` are not older than the
        # ledger.
        leadership = self._leadership
        versions = self._versions() if final else {}
        head = handover_record.RecordHead(leadership.identity, leadership.transitions, final, versions=versions)
        now = self._clock()
        async with self._writing:
            try:
                record = await asyncio.to_thread(handover_record.encode_record, ledger, head, now)
                written = await self._write(record.data, final=final)
            except (ApiError, handover_record.RecordError) as error:
                self._problems.note(str(error))
                return None
        self._problems.note("" if record.complete else f"{ledger.outstanding} offers do not fit into one record")
        return len(record.data) if written and (record.complete or not final) else None

    async def _write(self, data: bytes, *, final: bool) -> bool:
        """Writes a record; returns False if another process may lead by now."""
        for tries_left in reversed(range(_TRIES)):
            try:
                if not self._version:
                    await self._get()
                if not self._leadership.leading():
                    return False
                body = {"metadata": {"resourceVersion": self._version}, "binaryData": {KEY: b64encode(data).decode()}}
                raw = await self._client.patch(self._path, body, seconds=CALL_SECONDS)
            except ApiError as error:
                self._version = ""
                # Without a final record the successor waits until the Lease has run out, so it is also written after a
                # call without an answer.
                if not tries_left or not (error.conflict or (final and error.unreachable)):
                    raise
                continue
            self._version = msgspec.json.decode(raw, type=_ConfigMap).metadata.resource_version
            return True
        return False

    async def _get(self) -> bytes:
        """Returns the stored record, b"" if there is none; the next write is based on this version."""
        config_map = await self._get_config_map(CALL_SECONDS)
        self._version = config_map.metadata.resource_version
        return config_map.record

    async def _get_config_map(self, seconds: float) -> _ConfigMap:
        raw = await self._client.get(self._path, seconds=seconds)
        try:
            return msgspec.json.decode(raw, type=_ConfigMap)
        except msgspec.DecodeError as error:
            raise handover_record.RecordError(f"the ConfigMap {CONFIG_MAP} cannot be read: {error}") from error
