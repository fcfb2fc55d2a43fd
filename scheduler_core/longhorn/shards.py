"""Sharded volumes: k data and m parity shards of erasure coding, on distinct nodes with v2 disks, in place of replicas.

A new one is decided as a volume of k + m replicas of a shard's size (`shards_as_replicas`): scheduler/shard_scheduler.go asks of a disk what
the replica scheduler asks, never puts two shards of a volume on one node, and looks neither at zones nor at node tags. Longhorn places
them when it creates the volume, whatever the pod's node. From then on their bytes are part of each disk's storageScheduled
(node_controller.go), and the volume only has to be attached.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from scheduler_core.longhorn.settings import AUTO_BALANCE_DISABLED
from scheduler_core.model.longhorn import DISABLED, DataLayout, Volume

_CLUSTER: Final = 4 * 1024**2
_PAGE: Final = 4096
_PAGES_PER_CLUSTER: Final = _CLUSTER // _PAGE
# A volume may grow to ten times its size, and the pages that this takes are reserved when it is created.
_METADATA_PAGES_PER_CLUSTER: Final = 10
_MASK_HEADER: Final = 8
_ALIGNMENT: Final = 2 * 1024**2
_BITMAP_HEADER: Final = 40
_CHECKSUM: Final = 4
_WRITE_INTENT_HEADER: Final = 24
_STRIPES_PER_REGION: Final = 1024
# Two copies of the write-intent bitmap and of the commit record, of one strip each.
_FIXED_STRIPS: Final = 4


def shards_as_replicas(volume: Volume) -> Volume:
    """A new sharded volume as the volume of replicas that takes the same space; any other volume as it is."""
    layout = volume.data_layout
    if layout is None:
        return volume
    return replace(
        volume,
        size=shard_size(volume.size, layout),
        whole_size=volume.size,
        number_of_replicas=layout.data_chunks + layout.parity_chunks,
        data_locality=DISABLED,
        node_selector=(),
        replica_soft_anti_affinity="disabled",
        replica_zone_soft_anti_affinity="enabled",
        replica_auto_balance=AUTO_BALANCE_DISABLED,
    )


def shard_size(size: int, layout: DataLayout) -> int:
    """The bytes of each shard of a volume of `size` bytes (go-spdk-helper, pkg/spdk/types/ec.go: ComputeShardSize)."""
    data = -(-(size + _metadata_bytes(size)) // layout.data_chunks)
    return _round_up(data + _front_bytes(layout.strip_size_kb), _ALIGNMENT)


def _front_bytes(strip_size_kb: int) -> int:
    """What erasure coding keeps for itself at the front of each shard (EcFrontReservationBytes)."""
    strip = strip_size_kb * 1024
    stripes = (strip - _WRITE_INTENT_HEADER - _CHECKSUM) // 8 * 64 * _STRIPES_PER_REGION
    bitmap = _BITMAP_HEADER + -(-stripes // 64) * 8 + _CHECKSUM
    return (-(-bitmap // strip) * 2 + _FIXED_STRIPS) * strip


def _metadata_bytes(size: int) -> int:
    """An upper bound of the metadata of the volume's own store, which takes space itself (lvstoreMetadataBytes)."""
    metadata = 0
    while (needed := _metadata_bytes_of_device(size + metadata)) > metadata:
        metadata = needed
    return metadata + _CLUSTER


def _metadata_bytes_of_device(size: int) -> int:
    pages = -(-size // _CLUSTER) * _METADATA_PAGES_PER_CLUSTER
    mask = -(-(_MASK_HEADER + -(-pages // 8)) // _PAGE)
    # One page for the super block, and three masks.
    return -(-(1 + 3 * mask + pages) // _PAGES_PER_CLUSTER) * _CLUSTER


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step
