"""When the DiskSchedule controllers run, without a cluster."""

import json
import random
from datetime import UTC, datetime
from time import monotonic
from typing import cast

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from app.disk_schedule.controller_base import ControllerMetrics
from app.disk_schedule.lifecycle import MANAGER_PODS, ControllerOptions, DiskScheduleLifecycle
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


@pytest.mark.parametrize(
    ("status", "obstacle"), [({"phase": "Running"}, "manager"), (None, "manager"), ({"phase": "Failed"}, None)]
)
def test_a_pod_of_longhorn_manager_is_an_obstacle_until_it_has_ended(status: object, obstacle: str | None) -> None:
    """Whatever else the pod has: one that cannot be read would forbid nothing."""
    pod = {"metadata": {"name": "manager"}, "spec": {"volumes": "no list"}, "status": status}
    assert MANAGER_PODS.decode(json.dumps(pod).encode()) == ("manager", obstacle)
