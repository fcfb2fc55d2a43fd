"""When the DiskSchedule controllers run, without a cluster."""

import random
from datetime import UTC, datetime
from time import monotonic
from typing import cast

from prometheus_client import generate_latest
from structlog.testing import capture_logs

from app.disk_schedule.controller import ControllerMetrics
from app.disk_schedule.lifecycle import ControllerOptions, DiskScheduleLifecycle
from app.kube.client import KubeClient
from app.kube.reflector import Timing
from app.runtime.leader_loop import NoElection


async def test_a_process_that_is_stopped_logs_it_and_no_longer_counts_as_working() -> None:
    metrics = ControllerMetrics()
    lifecycle = DiskScheduleLifecycle(
        cast("KubeClient", None),
        ControllerOptions("longhorn-system", mirror=False, stale_after=60),
        NoElection(),
        metrics,
        timing=Timing(monotonic, random.uniform),
        now=lambda: datetime.now(UTC),
        random=random.random,
    )
    lifecycle.start(1)
    metrics.working(now=True)
    with capture_logs() as logs:
        await lifecycle.drain()
    assert [(entry["event"], entry["because"]) for entry in logs] == [("does not reconcile", "it is being stopped")]
    assert "disk_schedule_working 0.0" in generate_latest(metrics.registry).decode()
