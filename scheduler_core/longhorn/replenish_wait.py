"""How long a degraded volume waits for its failed replica (scheduler: timeToReplacementReplica).

Longhorn stores points in time as RFC 3339 texts, which are parsed as strictly as by Go's time.Parse(time.RFC3339, ...).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.refusal_rules import Refusal, Rule, setting_refusal
from scheduler_core.model.longhorn import Volume

_RFC3339: Final = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})([.,]\d+)?(Z|[+-]\d{2}:\d{2})", re.ASCII)


def parse_time(text: str) -> datetime | None:
    """The time in an RFC 3339 text, None otherwise. Digits past the microsecond are dropped."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    seconds, fraction, zone = match.groups()
    digits = (fraction or ".0")[1:7].ljust(6, "0")
    try:
        return datetime.fromisoformat(f"{seconds}.{digits}{'+00:00' if zone == 'Z' else zone}")
    except ValueError:
        return None


DEGRADED = "degraded"
WAIT_SETTING = "replica-replenishment-wait-interval"
_NO_WAIT = timedelta(0)
_MAX_WAIT = timedelta(days=365_000)


def wait_refusal(cluster: Cluster, volume: Volume) -> Refusal | None:
    """Why a degraded volume's wait is unknown (the setting or status.lastDegradedAt does not parse), or None."""
    refusal = setting_refusal(cluster.settings, (WAIT_SETTING,))
    if refusal is not None:
        return refusal
    if parse_time(volume.last_degraded_at) is None:
        return Refusal(Rule.DEGRADED_SINCE_FAULT, f"volume {volume.name}: lastDegradedAt {volume.last_degraded_at!r}")
    return None


def time_to_replacement(cluster: Cluster, volume: Volume) -> timedelta:
    """The remaining wait of a degraded volume. Zero when it has run out, at equality too, and when it is unknown."""
    since = parse_time(volume.last_degraded_at)
    if since is None or wait_refusal(cluster, volume) is not None:
        return _NO_WAIT
    # Compares durations, not dates: the setting may name a date so many centuries ahead that it cannot be represented.
    waited = cluster.now - since
    interval = cluster.settings.replica_replenishment_wait_interval
    if interval > _MAX_WAIT.total_seconds():
        return _MAX_WAIT
    return max(_NO_WAIT, timedelta(seconds=max(0, interval)) - waited)


def is_replenishing(cluster: Cluster, volume: Volume) -> bool:
    # Failed replicas then no longer occupy their node and zone.
    return volume.robustness == DEGRADED and time_to_replacement(cluster, volume) == _NO_WAIT
