"""What a pod's volumes ask of any node, so that equal questions are recognised as equal whoever asks them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from scheduler_core.longhorn.disk_stage import EXT_LIMIT, XFS_LIMIT
from scheduler_core.longhorn.replica_request import Ask
from scheduler_core.model import longhorn
from scheduler_core.packing.items import Load
from scheduler_core.volumes.resolve import PodVolume

_FILE_SIZE_LIMITS: Final = (XFS_LIMIT, EXT_LIMIT)


@dataclass(frozen=True, slots=True)
class Kinds:
    """The part of a question that sizes do not change.

    Attributes:
        asks: the kinds of volumes that need space, each once; volumes of one kind differ in size only
        attach: the engines that must be able to run on the node, each once
        rewrites: whether some volume brings data along, so that a disk's available bytes matter beyond being enough
    """

    asks: tuple[Ask, ...] = ()
    attach: tuple[Ask, ...] = ()
    rewrites: bool = False


@dataclass(frozen=True)
class Needs:
    """The volumes that need space together, largest first, with what Longhorn's two space rules read of each.

    Attributes:
        volumes: who needs it
        sizes: bytes that count against the over-provisioning limit (volume.spec.size)
        required: bytes that are written (volume.status.actualSize, 0 for a new volume)
        kind: the index of each volume's kind in `kinds.asks`
    """

    volumes: tuple[PodVolume, ...]
    sizes: tuple[int, ...]
    required: tuple[int, ...]
    kind: tuple[int, ...]
    kinds: Kinds

    @cached_property
    def load(self) -> Load:
        """The sizes, prepared for packing."""
        return Load(self.sizes)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for needs that every node answers alike."""
        return self.sizes, self.required, self.kind, self.kinds

    @cached_property
    def images(self) -> tuple[str, ...]:
        """The backing image of each volume, "" for none."""
        return tuple(volume.volume.backing_image for volume in self.volumes)

    @cached_property
    def uniform(self) -> bool:
        """Whether every open disk is open to every volume alike, so that sizes alone decide."""
        return len(self.kinds.asks) <= 1 and not self.kinds.rewrites and not any(self.images)


def needs(volumes: Iterable[PodVolume], attach: Iterable[PodVolume]) -> Needs:
    """The needs of `volumes`, on a node that can also attach those of `attach`."""
    ordered = sorted(volumes, key=lambda entry: (-entry.volume.size, -entry.volume.actual_size, entry.claim))
    kinds = [kind_of(entry.volume) for entry in ordered]
    alike = all(kind is kinds[0] for kind in kinds)  # hashing them takes longer
    asks = tuple(kinds[:1]) if alike else tuple(dict.fromkeys(kinds))
    required = tuple(entry.volume.actual_size for entry in ordered)
    return Needs(
        volumes=tuple(ordered),
        sizes=tuple(entry.volume.size for entry in ordered),
        required=required,
        kind=tuple(asks.index(kind) for kind in kinds),
        kinds=Kinds(asks, attach_kinds(attach), rewrites=any(required)),
    )


def attach_kinds(volumes: Iterable[PodVolume]) -> tuple[Ask, ...]:
    """The engines that run the volumes, each once, in a fixed order."""
    engines = sorted({(entry.volume.data_engine, entry.volume.image) for entry in volumes})
    return tuple(_kind("", 0, data_engine, image, (), (), "", "", "", ()) for data_engine, image in engines)


def kind_of(volume: longhorn.Volume) -> Ask:
    """A fresh replica of the volume without what does not decide which disks are open: name, exact size, state."""
    linked = volume.clone_mode != ""
    return _kind(
        volume.name if linked else "",
        next((limit for limit in _FILE_SIZE_LIMITS if volume.size >= limit), 0),
        volume.data_engine,
        volume.image,
        volume.node_selector,
        volume.disk_selector,
        volume.backing_image,
        volume.clone_mode,
        volume.data_source if linked else "",
        volume.topology_requirement,
    )


@lru_cache(maxsize=4096)
def _kind(  # noqa: PLR0913, PLR0917 # a key: equal kinds are one object, made once
    name: str,
    size: int,
    data_engine: str,
    image: str,
    node_selector: tuple[str, ...],
    disk_selector: tuple[str, ...],
    backing_image: str,
    clone_mode: str,
    data_source: str,
    topology_requirement: tuple[longhorn.TopologyTerm, ...],
) -> Ask:
    return Ask.fresh(
        longhorn.Volume(
            name=name,
            size=size,
            data_engine=data_engine,
            image=image,
            node_selector=node_selector,
            disk_selector=disk_selector,
            backing_image=backing_image,
            clone_mode=clone_mode,
            data_source=data_source,
            topology_requirement=topology_requirement,
        )
    )
