"""What the status page reads besides reports: remedies, losses of nodes, drains, caches and the time.

Each has a default that says nothing, so that a page works without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from app.extender.status_reporter import StatusReporter
from scheduler_core.model.kube import Pod

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.extender.drain_reporter import DrainReporter
    from app.kube.reflector import CacheStatus


@dataclass(frozen=True, slots=True)
class RemedyText:
    """A change of the cluster that makes a pod fit.

    Attributes:
        text: one sentence
        commands: what makes the change
    """

    text: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """What the loss of a node would lead to.

    Attributes:
        safe: whether every pod always finds another node, and no volume is left without a replica
        text: what is lost otherwise, as a sentence
    """

    safe: bool
    text: str = ""


def _now() -> datetime:
    return datetime.now(UTC)


async def _no_remedies(_pod: Pod) -> Sequence[RemedyText] | None:
    return None


def _no_latest_remedies(_pod: Pod) -> Sequence[RemedyText] | None:
    return None


def _no_losses() -> Mapping[str, NodeLoss]:
    return {}


def _no_caches() -> Mapping[str, CacheStatus]:
    return {}


@dataclass(frozen=True, slots=True)
class StatusSources:
    """What the pages read.

    Attributes:
        drains: None if drains cannot be predicted
        remedies: returns what makes a waiting pod fit, the cheapest first; None while that is not known
        latest_remedies: as `remedies`, but of what was worked out before
        node_losses: returns what the loss of each node would lead to, as far as that is known
        caches: returns the status of every cache of the live cluster; none for a snapshot file
        identity: of this process; "" for a snapshot file
        source: what a snapshot was read from; "" in a live cluster
    """

    reporter: StatusReporter
    drains: DrainReporter | None = None
    remedies: Callable[[Pod], Awaitable[Sequence[RemedyText] | None]] = _no_remedies
    latest_remedies: Callable[[Pod], Sequence[RemedyText] | None] = _no_latest_remedies
    node_losses: Callable[[], Mapping[str, NodeLoss]] = _no_losses
    caches: Callable[[], Mapping[str, CacheStatus]] = _no_caches
    identity: str = ""
    source: str = ""
    now: Callable[[], datetime] = field(default=_now)
