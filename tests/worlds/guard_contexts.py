"""What a placement guard reads of its process, without a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from app.extender.guard import GuardContext
from scheduler_core.decide.decision import Contenders
from scheduler_core.decide.settings import ExtenderSettings
from scheduler_core.model.longhorn import Replica


async def _nothing(node: str) -> Sequence[Replica]:
    raise AssertionError(f"the leader does not read the replicas of node {node}")


def leader_context(
    settings: Callable[[], ExtenderSettings],
    contenders: Callable[[], Contenders],
    written: Callable[[str], Awaitable[Sequence[Replica]]] = _nothing,
) -> GuardContext:
    """The context of a process that leads; `written` returns what the API server has of a node."""

    async def recorded(node: str) -> Contenders:
        raise AssertionError(f"the leader reads no record of node {node}")

    return GuardContext(settings, lambda: True, contenders, recorded, written, lambda: "")
