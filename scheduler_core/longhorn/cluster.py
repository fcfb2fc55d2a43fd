"""A snapshot prepared for the engine: parsed settings and the look-ups every rule needs, built once. And how long a degraded volume waits for
its failed replica (scheduler: timeToReplacementReplica).

Longhorn stores points in time as RFC 3339 texts, which are parsed as strictly as by Go's time.Parse(time.RFC3339, ...).
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, TypeVar

from scheduler_core.longhorn.refusal_rules import Refusal, Rule, setting_refusal
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.longhorn import Volume
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import replace

NodeAndEngine = tuple[str, str]
_Named = TypeVar("_Named", longhorn.Node, longhorn.Replica, longhorn.InstanceManager, longhorn.EngineImage)
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What Longhorn would read from Kubernetes for one decision."""

    snapshot: Snapshot
    now: datetime  # when the decision is made, an aware datetime
    settings: Settings
    nodes: Mapping[str, longhorn.Node]  # Longhorn's nodes by name, in the order of their names
    kube_nodes: Mapping[str, kube.Node]  # Kubernetes' nodes by name
    replicas_by_volume: Mapping[str, tuple[longhorn.Replica, ...]]  # the replicas of each volume, ordered by name
    # By node and data engine, ordered by name; None if the snapshot's source did not list them: then all are ready.
    instance_managers: Mapping[NodeAndEngine, tuple[longhorn.InstanceManager, ...]] | None
    # By image, ordered by name; None if the snapshot's source did not list them: then all are ready.
    engine_images: Mapping[str, tuple[longhorn.EngineImage, ...]] | None
    # What placements found out about nodes that are the same in later versions, by what volumes ask of nodes and disks (`placement`).
    known_nodes: dict[object, tuple[tuple[object, ...], Mapping[str, Any]]] = field(
        default_factory=dict[object, tuple[tuple[object, ...], Mapping[str, Any]]], compare=False, repr=False
    )

    @classmethod
    def of(cls, snapshot: Snapshot, now: datetime, settings: Settings | None = None) -> "Cluster":
        """Prepares a snapshot. `settings` replaces the snapshot's settings, for instance to decide with settings that
        have faults.

        Raises:
            SettingError: a setting of the snapshot does not parse
        """
        managers = snapshot.instance_managers
        images = snapshot.engine_images
        return cls(
            snapshot=snapshot,
            now=now,
            settings=settings or Settings.parse(snapshot.settings),
            nodes={node.name: node for node in sorted(snapshot.longhorn_nodes.values(), key=attrgetter("name"))},
            kube_nodes=dict(snapshot.nodes),
            replicas_by_volume=_group_by(snapshot.replicas.values(), attrgetter("volume")),
            instance_managers=None
            if managers is None
            else _group_by(managers.values(), attrgetter("node", "data_engine")),
            engine_images=None if images is None else _group_by(images.values(), attrgetter("image")),
        )

    def replicas_of(self, volume: str) -> tuple[longhorn.Replica, ...]:
        return self.replicas_by_volume.get(volume, ())

    def backing_image(self, name: str) -> longhorn.BackingImage | None:
        return self.snapshot.backing_images.get(name)

    def with_nodes(self, nodes: Iterable[longhorn.Node]) -> "Cluster":
        return replace(self, nodes={**self.nodes, **{node.name: node for node in nodes}})


def _group_by(values: Iterable[_Named], key: Callable[[_Named], _Key]) -> dict[_Key, tuple[_Named, ...]]:
    groups: dict[_Key, list[_Named]] = {}
    for value in sorted(values, key=attrgetter("name")):
        groups.setdefault(key(value), []).append(value)
    return {name: tuple(group) for name, group in groups.items()}


_RFC3339 = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})([.,]\d+)?(Z|[+-]\d{2}:\d{2})", re.ASCII)


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
