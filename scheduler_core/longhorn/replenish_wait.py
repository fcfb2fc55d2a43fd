"""How long a degraded volume waits for its failed replica (scheduler: timeToReplacementReplica)."""

from __future__ import annotations

from datetime import timedelta

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.rules import Refusal, Rule
from scheduler_core.longhorn.timestamps import parse_time
from scheduler_core.model.longhorn import Volume

DEGRADED = "degraded"
WAIT_SETTING = "replica-replenishment-wait-interval"
_NO_WAIT = timedelta(0)
_LONGEST_WAIT = timedelta(days=365_000)


def wait_refusal(cluster: Cluster, volume: Volume) -> Refusal | None:
    """Why the wait of a degraded volume cannot be told: the setting or status.lastDegradedAt does not parse."""
    fault = cluster.settings.fault((WAIT_SETTING,))
    if fault is not None:
        return Refusal(Rule.SETTING_FAULT, str(fault))
    if parse_time(volume.last_degraded_at) is None:
        return Refusal(Rule.DEGRADED_SINCE_FAULT, f"volume {volume.name}: lastDegradedAt {volume.last_degraded_at!r}")
    return None


def time_to_replacement(cluster: Cluster, volume: Volume) -> timedelta:
    """What is left of the wait; zero when it has run out, at equality too, and when it cannot be told."""
    since = parse_time(volume.last_degraded_at)
    if since is None or wait_refusal(cluster, volume) is not None:
        return _NO_WAIT
    # Not as dates: a setting of centuries is beyond what a date can say.
    waited = cluster.now - since
    interval = cluster.settings.replica_replenishment_wait_interval
    if interval > _LONGEST_WAIT.total_seconds():
        return _LONGEST_WAIT
    return max(_NO_WAIT, timedelta(seconds=max(0, interval)) - waited)


def being_replenished(cluster: Cluster, volume: Volume) -> bool:
    """Whether the volume is degraded and its wait has run out: failed replicas then stop holding node and zone."""
    return volume.robustness == DEGRADED and time_to_replacement(cluster, volume) == _NO_WAIT
