"""What a pod's volumes require of any node, comparable whichever pod has them."""

from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any

from scheduler_core.longhorn.replica_request import ReplicaRequest
from scheduler_core.longhorn.stages import EXT_LIMIT, XFS_LIMIT
from scheduler_core.model import longhorn
from scheduler_core.packing.items import Items, OptionalItems
from scheduler_core.structs import Struct
from scheduler_core.volumes.resolve import PodVolume

_FILE_SIZE_LIMITS = (XFS_LIMIT, EXT_LIMIT)
# The fields of a volume that open or close disks to its replicas. A plain tuple of their values is the fastest cache key.
_CLASS_FIELDS = (
    "name", "size", "data_engine", "image", "node_selector", "disk_selector",
    "backing_image", "clone_mode", "data_source", "data_layout", "topology_requirement",
)  # fmt: skip


class VolumeClasses(Struct, frozen=True):
    """The part of requirements that sizes do not change."""

    # The classes of volumes that need space, each once; volumes of one class differ in size only.
    requests: tuple[ReplicaRequest, ...] = ()
    engines: tuple[ReplicaRequest, ...] = ()  # the engines that must be able to run on the node, each once
    rewrites: bool = False  # whether some volume brings data along, so that the bytes available on a disk matter
    # Further classes, of replicas that may be placed there or elsewhere (`OptionalVolume`).
    optional: tuple[ReplicaRequest, ...] = ()


class OptionalVolume(Struct, frozen=True):
    """A volume whose replicas Longhorn may place on a node, or elsewhere."""

    volume: PodVolume
    count: int  # the most replicas that the node can get, positive
    one_per_disk: bool = False  # whether they must be on different disks
    used_disks: frozenset[str] = frozenset()  # UUIDs of the disks that its placed replicas keep from others


class Requirements(Struct, frozen=True, dict=True):
    """The volumes that need space together. `sizes` and `written` are what Longhorn's two space rules read of each
    volume.
    """

    volumes: tuple[PodVolume, ...]  # the volumes, largest first
    sizes: tuple[int, ...]  # bytes that count against the over-provisioning limit (volume.spec.size)
    written: tuple[int, ...]  # bytes that are copied (volume.status.actualSize, 0 for a new volume)
    class_indexes: tuple[int, ...]  # index of each volume's class in `classes.requests`
    classes: VolumeClasses
    # Volumes that may be in their way, largest first; they matter to order safety and stale safety alone.
    optional: tuple[OptionalVolume, ...] = ()
    # Index of each of these in `classes.requests` followed by `classes.optional`.
    optional_class_indexes: tuple[int, ...] = ()

    @cached_property
    def items(self) -> Items:
        return Items(self.sizes)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for requirements that every node answers alike."""
        optional = tuple(
            (entry.volume.volume.size, entry.volume.volume.actual_size, index, entry.count, entry.one_per_disk)
            for entry, index in zip(self.optional, self.optional_class_indexes, strict=True)
        )
        return self.sizes, self.written, self.class_indexes, self.classes, optional

    @cached_property
    def optional_replicas(self) -> tuple[PodVolume, ...]:
        return tuple(entry.volume for entry in self.optional for _ in range(entry.count))

    @cached_property
    def optional_items(self) -> OptionalItems:
        """The optional replicas as they may be in the way of others, on any disk."""
        return OptionalItems(
            sizes=tuple(volume.volume.size for volume in self.optional_replicas),
            written=tuple(volume.volume.actual_size for volume in self.optional_replicas),
            spread=tuple(
                index if entry.one_per_disk and entry.count > 1 else -1
                for index, entry in enumerate(self.optional)
                for _ in range(entry.count)
            ),
        )

    @cached_property
    def optional_on_one_disk(self) -> Items:
        """The sizes of the most optional replicas that one disk may take."""
        return Items([self.optional_items.sizes[index] for index in self.optional_items.on_one_disk])

    @cached_property
    def images(self) -> tuple[str, ...]:
        return tuple(volume.volume.backing_image for volume in self.volumes)

    @cached_property
    def uniform(self) -> bool:
        classes = self.classes
        return len(classes.requests) + len(classes.optional) <= 1 and not classes.rewrites and not any(self.images)


def requirements(
    volumes: Iterable[PodVolume], attach: Iterable[PodVolume], optional: Iterable[OptionalVolume] = ()
) -> Requirements:
    """Returns what `volumes` require of a node. The node must also be able to attach the volumes of `attach`.
    `optional` may be in the way of `volumes`. Volumes of one size are in the order of their classes, and claims' names
    come last, so that no reason depends on them.
    """
    ordered = sorted(volumes, key=lambda entry: (-entry.volume.size, -entry.volume.actual_size, entry.claim))
    classes = [volume_class(entry.volume) for entry in ordered]
    # Comparing identities first is faster than hashing every class.
    same_class = all(entry is classes[0] for entry in classes)
    if not same_class:
        pairs = sorted(zip(ordered, classes, strict=True), key=lambda pair: order_without_names(pair[0]))
        ordered = [entry for entry, _ in pairs]
        classes = [request for _, request in pairs]
    requests = tuple(classes[:1]) if same_class else tuple(dict.fromkeys(classes))
    written = tuple(entry.volume.actual_size for entry in ordered)
    blockers = sorted(optional, key=_optional_order) if ordered else []
    # In an order that does not depend on the volumes'.
    engines = sorted({(entry.volume.data_engine, entry.volume.image) for entry in attach})
    engine_classes = tuple(_interned_class(("", 0, *engine, (), (), "", "", "", None, ())) for engine in engines)
    blocker_classes = [volume_class(entry.volume.volume) for entry in blockers]
    further = tuple(dict.fromkeys(entry for entry in blocker_classes if entry not in requests))
    rewrites = any(written) or any(entry.volume.volume.actual_size for entry in blockers)
    return Requirements(
        volumes=tuple(ordered),
        sizes=tuple(entry.volume.size for entry in ordered),
        written=written,
        class_indexes=tuple(requests.index(entry) for entry in classes),
        classes=VolumeClasses(requests, engine_classes, rewrites=rewrites, optional=further),
        optional=tuple(blockers),
        optional_class_indexes=tuple((*requests, *further).index(entry) for entry in blocker_classes),
    )


def _optional_order(entry: OptionalVolume) -> tuple[object, ...]:
    *order, claim = order_without_names(entry.volume)
    return (*order, entry.count, entry.one_per_disk, claim)


def order_without_names(entry: PodVolume) -> tuple[object, ...]:
    """Returns a sort key in which names only break ties."""
    volume = entry.volume
    name, *values, layout, topology = _class_values(volume)
    chunks = () if layout is None else (layout.data_chunks, layout.parity_chunks, layout.strip_size_kb)
    terms = tuple((term.zone, term.region) for term in topology)
    # The volume's name comes before the claim's, because it distinguishes linked clones.
    return (-volume.size, -volume.actual_size, *values, chunks, terms, name, entry.claim)


def volume_class(volume: longhorn.Volume) -> ReplicaRequest:
    """Returns a replica request with only the fields that decide which disks are open, for all volumes of a class."""
    return _interned_class(_class_values(volume))


def _class_values(volume: longhorn.Volume) -> tuple[Any, ...]:
    linked = volume.clone_mode != ""
    return (
        volume.name if linked else "",
        next((limit for limit in _FILE_SIZE_LIMITS if volume.size >= limit), 0),
        volume.data_engine,
        volume.image,
        volume.node_selector,
        volume.disk_selector,
        volume.backing_image,
        volume.clone_mode,
        volume.data_source if linked else "",
        volume.data_layout,
        volume.topology_requirement,
    )


@lru_cache(maxsize=4096)
def _interned_class(values: tuple[Any, ...]) -> ReplicaRequest:
    # One object for equal values, so that classes can be compared by identity.
    fields: dict[str, Any] = dict(zip(_CLASS_FIELDS, values, strict=True))
    return ReplicaRequest.for_volume(longhorn.Volume(**fields))
