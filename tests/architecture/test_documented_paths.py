"""docs/architecture.md follows one request and one watch event by file and function: both are traced."""

import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType

import httpx
import pytest

from app.api.app_state import AppState
from app.bootstrap import application
from app.evaluator import Evaluator
from app.extender.metrics import Metrics
from app.extender.offers import Offers
from app.extender.verbs import Verbs
from app.memory_budget import MemoryBudget
from app.policy import PolicyInForce
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.decide.extender_settings import ExtenderSettings
from tests import builders as make
from tests.worlds.cluster_cache import CachedCluster, cached_cluster
from tests.worlds.fake_api import until
from tests.worlds.service import by_names, http_client
from tests.worlds.two_nodes import NODES, two_nodes

# On two disks of 70 Gi these fit in one way only.
SIZES = {"a": 40, "b": 35, "c": 30, "d": 25}
DISKS = {"one": make.disk(70), "two": make.disk(70)}
POD = make.pod(*SIZES, name="db") | {"apiVersion": "v1", "kind": "Pod"}
ROOT = Path(__file__).parents[2]
_MOST_STOPS = 20
Stop = tuple[str, str]


def documented_stops(heading: str) -> list[Stop]:
    """The files and functions of a section's table, in its order."""
    section = (ROOT / "docs/architecture.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| \d+ \| `([\w/.]+)` \| `([\w.]+)` \|", section, re.MULTILINE)


@contextmanager
def calls_of_the_product() -> Iterator[list[Stop]]:
    """The functions that are called while it is entered, in order."""
    calls: list[Stop] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            calls.append((str(path.relative_to(ROOT)), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@asynccontextmanager
async def leader(folder: Path) -> AsyncIterator[tuple[CachedCluster, httpx.AsyncClient]]:
    """A process that makes offers, and a client of it."""
    claims = [make.claim(name, size) for name, size in SIZES.items()]
    async with cached_cluster(folder, two_nodes(), claims, POD) as world:
        await world.put(*(make.longhorn_node(name, DISKS) for name in NODES))
        await world.wait_for_sync()
        evaluator = Evaluator(world.cache, FilterOptions())
        metrics = Metrics()
        offers = Offers(world.cache, evaluator, ExtenderSettings, metrics, time.monotonic)
        verbs = Verbs(evaluator, PolicyInForce(), decider=offers)
        app = application(AppState(evaluator, verbs, metrics, 1 << 20, MemoryBudget(1 << 30)))
        async with http_client(app) as client:
            yield world, client


def missing_stops(heading: str, calls: list[Stop]) -> list[Stop]:
    """The documented stops that the calls do not pass in this order."""
    stops = documented_stops(heading)
    assert 0 < len(stops) <= _MOST_STOPS
    ahead = iter(calls)
    return [stop for stop in stops if stop not in ahead]


async def test_a_request_passes_the_documented_stops(tmp_path: Path) -> None:
    """Its volumes have to be packed."""
    async with leader(tmp_path) as (_, client):
        with calls_of_the_product() as calls:
            answer = await client.post("/filter", json=by_names(POD, NODES))
    assert answer.json()["NodeNames"]
    assert missing_stops("One request, step by step", calls) == []


async def test_a_watch_event_passes_the_documented_stops(tmp_path: Path) -> None:
    """A Longhorn node reports another size."""
    async with leader(tmp_path) as (world, _):
        before = world.cache.state()
        assert before.demand.all == ()  # made once, and updated from then on
        with calls_of_the_product() as calls:
            await world.put(make.longhorn_node(NODES[0], 50))
            await until("the event", lambda: world.cache.state() is not before)
    assert missing_stops("One watch event, step by step", calls) == []


@pytest.mark.parametrize("heading", ["One request, step by step", "One watch event, step by step"])
def test_no_stop_is_documented_twice(heading: str) -> None:
    """A way that returns is not told as a straight one."""
    stops = documented_stops(heading)
    assert len(set(stops)) == len(stops)
