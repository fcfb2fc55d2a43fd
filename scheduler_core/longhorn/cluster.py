"""A snapshot prepared for the engine: parsed settings and the look-ups every rule needs, built once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar

from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube, longhorn
from scheduler_core.model.snapshot import Snapshot

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
    known_nodes: dict[object, Any] = field(default_factory=dict[object, Any], compare=False, repr=False)

    @classmethod
    def of(cls, snapshot: Snapshot, now: datetime, settings: Settings | None = None) -> Cluster:
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
            nodes={node.name: node for node in _sort_by_name(snapshot.longhorn_nodes.values())},
            kube_nodes=dict(snapshot.nodes),
            replicas_by_volume=_group_by(snapshot.replicas.values(), _volume_name),
            instance_managers=None if managers is None else _group_by(managers.values(), _node_and_engine),
            engine_images=None if images is None else _group_by(images.values(), _image_name),
        )

    def replicas_of(self, volume: str) -> tuple[longhorn.Replica, ...]:
        return self.replicas_by_volume.get(volume, ())

    def backing_image(self, name: str) -> longhorn.BackingImage | None:
        return self.snapshot.backing_images.get(name)

    def with_nodes(self, nodes: Iterable[longhorn.Node]) -> Cluster:
        return replace(self, nodes={**self.nodes, **{node.name: node for node in nodes}})


def _sort_by_name(values: Iterable[_Named]) -> list[_Named]:
    return sorted(values, key=attrgetter("name"))


def _group_by(values: Iterable[_Named], key: Callable[[_Named], _Key]) -> dict[_Key, tuple[_Named, ...]]:
    groups: dict[_Key, list[_Named]] = {}
    for value in _sort_by_name(values):
        groups.setdefault(key(value), []).append(value)
    return {name: tuple(group) for name, group in groups.items()}


def _volume_name(replica: longhorn.Replica) -> str:
    return replica.volume


def _node_and_engine(manager: longhorn.InstanceManager) -> NodeAndEngine:
    return (manager.node, manager.data_engine)


def _image_name(image: longhorn.EngineImage) -> str:
    return image.image
