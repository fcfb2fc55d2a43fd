"""What the status page reads: reports, nodes, pods and caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from app.extender.drain_reporter import DrainReporter
from app.extender.remedy_reporter import RemedyReporter
from app.extender.status_reporter import StatusReporter
from scheduler_core.extender.planning.node_loss import NodeLossOutcome

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.kube.reflector import CacheStatus


def _now() -> datetime:
    return datetime.now(UTC)


def _no_caches() -> Mapping[str, CacheStatus]:
    return {}


@dataclass(frozen=True, slots=True)
class StatusSources:
    """What the pages read."""

    reporter: StatusReporter
    drains: DrainReporter
    remedies: RemedyReporter
    # Returns what the loss of each node would lead to, as far as that is known.
    node_losses: Callable[[], Mapping[str, NodeLossOutcome]]
    # Returns the status of every cache of the live cluster; none for a snapshot file.
    caches: Callable[[], Mapping[str, CacheStatus]] = _no_caches
    identity: str = ""  # of this process; "" for a snapshot file
    # Returns how long the prediction for the other nodes will take; 0 if that is not known.
    losses_seconds_left: Callable[[], float] = float
    now: Callable[[], datetime] = _now
