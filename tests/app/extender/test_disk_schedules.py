"""DiskSchedules where the extender meets them: in `/state`, in a snapshot file, and in a cluster without their definition."""

from pathlib import Path

import pytest

from app.kube.snapshot_file import load_snapshot
from scheduler_core.cluster.view import View
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.builders import GI, NOW
from tests.worlds.cluster_cache import PATHS, cached_cluster
from tests.worlds.disk_schedules import disk_schedule
from tests.worlds.fake_api import FakeApi, until
from tests.worlds.service import application, http_client
from tests.worlds.two_nodes import database_pod, two_nodes

SCHEDULES = PATHS["longhorn.io", "DiskSchedule"]


async def test_state_shows_what_is_scheduled_and_pending_on_a_disk() -> None:
    schedule = disk_schedule(
        replicas={"r": 30, "growing": 15, "pending": 7, "rejected": 60},
        answers={"r": ("scheduled", 30), "growing": ("scheduled", 10), "rejected": ("rejected", 0)},
        image_answers={"withdrawn": ("scheduled", 2)},
    )
    disks = {"disk-1": make.disk(100, available=90), "disk-2": make.disk(50)}
    async with http_client(application([make.longhorn_node("n", disks), schedule])) as client:
        first, second = (await client.get("/state")).json()["nodes"]["n"]["disks"]
    assert first["diskSchedule"] == {"scheduled": 42 * GI, "pending": 12 * GI, "grants": (90 - 42 - 12) * GI}
    assert first["free"] == first["diskSchedule"]["grants"]
    assert second["diskSchedule"] is None


def test_disk_schedules_of_a_snapshot_file_count(tmp_path: Path) -> None:
    loaded = load_snapshot(make.write_list(tmp_path, make.longhorn_node("n"), disk_schedule(replicas={"r": 30})))
    assert loaded.warnings == ()
    assert View.of(loaded.snapshot, NOW).free_space("n")["disk-1"].free == 70 * GI


async def test_a_cluster_has_no_disk_schedules_until_their_definition_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.kube.reflector._MISSING_RETRY_INTERVAL", 0.1)
    api = FakeApi()
    api.missing.add(SCHEDULES)
    full = [
        disk_schedule(f"{name}-disk-1", node=name, replicas={"other": 95}, answers={"other": ("scheduled", 95)})
        for name in ("a", "b")
    ]
    async with cached_cluster(tmp_path, two_nodes(), make.claim("data-0", 10), database_pod(0), api=api) as world:
        await until("the view", lambda: not world.cache.problem)
        assert dict(world.snapshot.disk_schedules) == {}
        assert await world.reasons() == [Reason.ROOM, Reason.ROOM]
        api.missing.discard(SCHEDULES)
        await world.wait_for_sync()
        await world.put(*full)
        await until("both", lambda: len(world.snapshot.disk_schedules) == 2)
        assert await world.reasons() == [Reason.INSUFFICIENT_STORAGE, Reason.INSUFFICIENT_STORAGE]
        await world.remove(full[0])
        await until("one", lambda: len(world.snapshot.disk_schedules) == 1)
        assert await world.reasons() == [Reason.ROOM, Reason.INSUFFICIENT_STORAGE]
