"""DiskSchedules where the extender meets them: in `/state`, in a snapshot file, and in a cluster that may not know them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.kube.snapshot_file import load_snapshot
from scheduler_core.cluster.view import View
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.app.extender.test_node_reservation import cluster, db
from tests.app.kube.test_cluster_cache import PATHS, rigged
from tests.builders import GI, NOW
from tests.core.disk_schedule.test_accounting import disk_schedule
from tests.worlds.fake_api import FakeApi, until
from tests.worlds.service import application, asking

pytestmark = pytest.mark.anyio
SCHEDULES = PATHS["longhorn.io", "DiskSchedule"]


async def test_state_tells_what_is_scheduled_and_pending_on_a_disk() -> None:
    """A rejected newcomer is neither; a disk without a DiskSchedule says null."""
    schedule = disk_schedule(
        replicas={"r": 30, "growing": 15, "pending": 7, "rejected": 60},
        answers={"r": ("scheduled", 30), "growing": ("scheduled", 10), "rejected": ("rejected", 0)},
        image_answers={"withdrawn": ("scheduled", 2)},
    )
    disks = {"disk-1": make.disk(100, available=90), "disk-2": make.disk(50)}
    async with asking(application([make.longhorn_node("n", disks), schedule])) as client:
        first, second = (await client.get("/state")).json()["nodes"]["n"]["disks"]
    assert first["diskSchedule"] == {"scheduled": 42 * GI, "pending": 12 * GI, "grants": (90 - 42 - 12) * GI}
    assert first["free"] == first["diskSchedule"]["grants"]
    assert second["diskSchedule"] is None


def test_a_snapshot_file_holds_disk_schedules(tmp_path: Path) -> None:
    """Without a warning that something was ignored, and they count."""
    file = tmp_path / "snapshot.json"
    items = [make.longhorn_node("n"), disk_schedule(replicas={"r": 30})]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    loaded = load_snapshot(str(file))
    assert loaded.warnings == ()
    assert View.of(loaded.snapshot, NOW).rooms("n")["disk-1"].free == 70 * GI


async def test_a_cluster_that_knows_no_disk_schedules_has_none_until_it_does(tmp_path: Path) -> None:
    """Nothing is missing without them; when they are installed what they hold counts, and stops counting when they go."""
    api = FakeApi()
    api.missing.add(SCHEDULES)
    full = [
        disk_schedule(f"{name}-disk-1", node=name, replicas={"other": 95}, answers={"other": ("scheduled", 95)})
        for name in ("a", "b")
    ]
    async with rigged(tmp_path, cluster(), make.claim("data-0", 10), db(0), api=api) as rig:
        await until("the view", lambda: not rig.cache.problem)
        assert dict(rig.held.disk_schedules) == {}
        assert await rig.reasons() == [Reason.ROOM, Reason.ROOM]
        api.missing.discard(SCHEDULES)
        await rig.synced()
        await rig.put(*full)
        await until("both", lambda: len(rig.held.disk_schedules) == 2)
        assert await rig.reasons() == [Reason.INSUFFICIENT_STORAGE, Reason.INSUFFICIENT_STORAGE]
        await rig.remove(full[0])
        await until("one", lambda: len(rig.held.disk_schedules) == 1)
        assert await rig.reasons() == [Reason.ROOM, Reason.INSUFFICIENT_STORAGE]
