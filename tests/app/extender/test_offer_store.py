"""The record of offers in a ConfigMap: when it is written, and whose is read."""

import asyncio
import itertools
import json
import math
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from app.extender.offer_store import CONFIG_MAP, KEY, OfferStore
from app.kube.client import ApiError, KubeClient
from app.kube.resources import CONFIG_MAPS
from scheduler_core.leadership.election import RELEASED_SECONDS, LeaseRecord
from scheduler_core.offers.handover_record import HandoverRecord, RecordError, RecordHead, decode_record, encode_record
from scheduler_core.offers.ledger import Ledger, step
from scheduler_core.offers.outstanding_offer import ObservedPod, Offered, PodGone
from tests.worlds.fake_api import failing, serve, until

PATH = CONFIG_MAPS.path("longhorn-system", CONFIG_MAP)


class FakeLeadership:
    """A leader of the eighth term."""

    def __init__(self) -> None:
        self.identity = "extender-2"
        self.predecessor: LeaseRecord | None = LeaseRecord("extender-1", 15, transitions=7)
        self.transitions = 8
        self.leads = True

    def leading(self) -> bool:
        return self.leads


class ConfigMapServer:
    """An API server with one ConfigMap, which checks the version of every patch."""

    def __init__(self) -> None:
        self.version = 100
        self.data = ""
        self.exists = True  # whether there is a ConfigMap
        self.hangs = 0.0  # how many requests get no answer
        self.writes: list[tuple[float, HandoverRecord]] = []  # the records that were written, with the times
        self.conflicts = 0

    def put(self, data: bytes) -> None:
        self.data = b64encode(data).decode()
        self.version += 1

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
        if self.hangs:
            self.hangs -= 1
            await asyncio.sleep(60)
        if request.path != PATH or not self.exists:
            return await failing(404, reason="NotFound")(request)
        if request.method == "PATCH":
            body = await request.json()
            if body["metadata"]["resourceVersion"] != str(self.version):
                self.conflicts += 1
                return await failing(409, reason="Conflict")(request)
            self.put(b64decode(body["binaryData"][KEY]))
            self.writes.append((time.monotonic(), decode_record(b64decode(self.data))))
        content: dict[str, Any] = {"metadata": {"name": CONFIG_MAP, "resourceVersion": str(self.version)}}
        if self.data:
            content["binaryData"] = {KEY: self.data}
        return web.Response(text=json.dumps(content), content_type="application/json")


@asynccontextmanager
async def store_of(server: ConfigMapServer, folder: Path) -> AsyncIterator[tuple[OfferStore, FakeLeadership]]:
    """A running store, and its leadership."""
    leadership = FakeLeadership()
    async with serve(server.handle, folder) as kubeconfig:
        client = await KubeClient.connect(str(kubeconfig))
        store = OfferStore(client, "longhorn-system", cast("Any", leadership), lambda: {"pods": "12"}, time.monotonic)
        running = asyncio.create_task(store.run())
        try:
            yield store, leadership
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await client.close()


@pytest.fixture
def server() -> ConfigMapServer:
    return ConfigMapServer()


def offered(ledger: Ledger, number: int) -> Ledger:
    pod = ObservedPod(f"uid-{number}", "default", f"web-{number}")
    return step(ledger, Offered(pod, frozenset("ab"), ("volume",)), time.monotonic())[0]


def encoded(head: RecordHead) -> bytes:
    return encode_record(offered(Ledger(), 0), head, time.monotonic()).data


async def test_offers_are_recorded_as_they_are_made_three_times_a_second_at_most(
    server: ConfigMapServer, tmp_path: Path
) -> None:
    async with store_of(server, tmp_path) as (store, _):
        store.adopt()
        ledger = Ledger()
        for number in range(60):
            ledger = offered(ledger, number)
            store.note(ledger)
            await asyncio.sleep(0.02)
        await until("the last offer", lambda: len(server.writes[-1][1].offers) == 60)
    times = [at for at, _ in server.writes]
    assert all(later - earlier > 0.3 for earlier, later in itertools.pairwise(times))
    assert len(times) <= 6
    head = server.writes[-1][1].head
    assert (head.holder, head.transitions, head.final, head.versions) == ("extender-2", 8, False, {})


async def test_the_end_of_an_offer_is_not_urgent(
    server: ConfigMapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.extender.offer_store._ENDS_INTERVAL", 1.0)
    async with store_of(server, tmp_path) as (store, _):
        ledger = offered(Ledger(), 0)
        store.note(ledger)
        store.adopt()
        await until("the offer", lambda: server.writes)
        await asyncio.sleep(0.5)
        store.note(step(ledger, PodGone("uid-0"), time.monotonic())[0])
        await asyncio.sleep(0.5)
        assert len(server.writes) == 1
        await until("its end", lambda: not server.writes[-1][1].offers)


async def test_nothing_is_recorded_before_this_process_answers_nor_after(
    server: ConfigMapServer, tmp_path: Path
) -> None:
    async with store_of(server, tmp_path) as (store, _):
        store.note(offered(Ledger(), 0))
        await asyncio.sleep(0.2)
        store.adopt()
        store.clear()
        store.note(offered(Ledger(), 1))
        await asyncio.sleep(0.5)
    assert server.writes == []


async def test_the_final_record_says_what_the_leader_had_seen(server: ConfigMapServer, tmp_path: Path) -> None:
    async with store_of(server, tmp_path) as (store, _):
        store.adopt()
        ledger = offered(Ledger(), 0)
        assert await store.write_final(ledger)
        store.note(Ledger())
        await asyncio.sleep(0.6)
    head = server.writes[-1][1].head
    assert (head.final, head.complete, head.versions) == (True, True, {"pods": "12"})
    assert len(server.writes[-1][1].offers) == 1


async def test_a_write_after_another_process_wrote_is_repeated(server: ConfigMapServer, tmp_path: Path) -> None:
    async with store_of(server, tmp_path) as (store, _):
        assert await store.read() is None
        server.put(b"something else")
        assert await store.write_final(Ledger())
    assert server.conflicts == 1


async def test_a_former_leader_writes_nothing(server: ConfigMapServer, tmp_path: Path) -> None:
    """Its fence is closed by the time it has read the version that it would write on."""
    async with store_of(server, tmp_path) as (store, leadership):
        leadership.leads = False
        assert not await store.write_final(Ledger())
    assert server.writes == []


async def test_a_missing_config_map_does_not_stop_the_leader(server: ConfigMapServer, tmp_path: Path) -> None:
    server.exists = False
    async with store_of(server, tmp_path) as (store, _):
        with pytest.raises(ApiError) as missing:
            await store.read()
        assert missing.value.not_found
        store.adopt()
        await asyncio.sleep(0.1)
        assert not await store.write_final(Ledger())


async def test_an_api_server_that_hangs_delays_the_end_by_seconds_only(
    server: ConfigMapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.extender.offer_store.FINAL_SECONDS", 0.2)
    async with store_of(server, tmp_path) as (store, _):
        server.hangs = math.inf
        async with asyncio.timeout(2):
            assert not await store.write_final(Ledger())


async def test_a_final_record_is_repeated_after_a_call_without_an_answer(
    server: ConfigMapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the successor would wait until the Lease has run out."""
    monkeypatch.setattr("app.extender.offer_store.CALL_SECONDS", 0.2)
    async with store_of(server, tmp_path) as (store, _):
        assert await store.read() is None
        server.hangs = 1
        assert await store.write_final(offered(Ledger(), 0))
    assert len(server.writes[-1][1].offers) == 1


async def test_the_record_of_the_last_leader_is_read(server: ConfigMapServer, tmp_path: Path) -> None:
    server.put(encoded(RecordHead("extender-1", 7)))
    async with store_of(server, tmp_path) as (store, leadership):
        for holder, duration in (("extender-1", 15), ("", RELEASED_SECONDS)):
            leadership.predecessor = LeaseRecord(holder, duration, transitions=7)
            record = await store.read()
            assert record is not None
            assert [entry.offered.pod.name for entry in record.offers] == ["web-0"]


async def test_the_record_is_read_after_a_call_without_an_answer(
    server: ConfigMapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, the successor would wait until the last leader's answers are visible."""
    monkeypatch.setattr("app.extender.offer_store.CALL_SECONDS", 0.2)
    server.put(encoded(RecordHead("extender-1", 7, final=True, versions={})))
    async with store_of(server, tmp_path) as (store, _):
        server.hangs = 1
        record = await store.read()
    assert record is not None
    assert record.head.final


@pytest.mark.parametrize(
    ("predecessor", "head"),
    [
        pytest.param(LeaseRecord("extender-1", 15, transitions=7), RecordHead("extender-3", 7), id="holder"),
        pytest.param(LeaseRecord("extender-1", 15, transitions=7), RecordHead("extender-1", 9), id="later term"),
        pytest.param(None, RecordHead("extender-1", 7), id="never led"),
    ],
)
async def test_a_record_of_another_leader_is_refused(
    server: ConfigMapServer, tmp_path: Path, predecessor: LeaseRecord | None, head: RecordHead
) -> None:
    """A later leader may have made offers that it does not have."""
    server.put(encoded(head))
    async with store_of(server, tmp_path) as (store, leadership):
        leadership.predecessor = predecessor
        with pytest.raises(RecordError, match="did not hold the Lease last"):
            await store.read()


async def test_the_record_of_an_earlier_leader_is_neither_final_nor_complete(
    server: ConfigMapServer, tmp_path: Path
) -> None:
    """The last one wrote none: it ended before it answered, or could not write."""
    server.put(encoded(RecordHead("extender-0", 6, final=True)))
    async with store_of(server, tmp_path) as (store, leadership):
        for holder, duration in (("extender-1", 15), ("", RELEASED_SECONDS)):
            leadership.predecessor = LeaseRecord(holder, duration, transitions=7)
            record = await store.read()
            assert record is not None
            assert (record.head.final, record.head.complete) == (False, False)
            assert len(record.offers) == 1


async def test_a_damaged_record_is_refused(server: ConfigMapServer, tmp_path: Path) -> None:
    async with store_of(server, tmp_path) as (store, _):
        server.put(b"not JSON")
        with pytest.raises(RecordError):
            await store.read()
        server.data = "not base64"
        with pytest.raises(RecordError):
            await store.read()


async def test_a_process_that_does_not_lead_reads_the_offers_that_the_leader_recorded_last(
    server: ConfigMapServer, tmp_path: Path
) -> None:
    async with store_of(server, tmp_path) as (store, _):
        assert list(await store.read_offers()) == []
        record = encode_record(offered(Ledger(), 1), RecordHead("extender-1", 7), time.monotonic())
        server.put(record.data)
        for _ in range(2):
            assert [entry.offered.pod.uid for entry in await store.read_offers()] == ["uid-1"]
        server.put(b"damaged")
        assert list(await store.read_offers()) == []
