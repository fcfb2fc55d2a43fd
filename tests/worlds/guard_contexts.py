"""What a placement guard reads of its process, without a cluster."""

from __future__ import annotations

from collections.abc import Callable

from app.extender.guard import GuardContext
from scheduler_core.extender.decision import Contenders
from scheduler_core.extender.settings import ExtenderSettings
from scheduler_core.model.longhorn import Replica


def leader_context(settings: Callable[[], ExtenderSettings], contenders: Callable[[], Contenders]) -> GuardContext:
    """The context of a process that leads, and whose watches show everything."""

    async def recorded(node: str) -> Contenders:
        raise AssertionError(f"the leader reads no record of node {node}")

    async def written(node: str) -> list[Replica]:
        raise AssertionError(f"the leader does not read the replicas of node {node}")

    return GuardContext(settings, lambda: True, contenders, recorded, written)
