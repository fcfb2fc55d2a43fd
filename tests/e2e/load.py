"""Waves of pods with volumes of several sizes, equal for equal seeds.

A wave has StatefulSets and loose pods. The first wave finds an empty cluster and mixes everything: also pods that do not request the
extender, and volumes whose replicas Longhorn may place anywhere. Later waves fill the cluster, and have only pods with local volumes
that request the extender: with little room left, any other pod can take the room between a decision and the replica, and no
extender could prevent that.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from devcluster.stack import Disk
from tests.builders import storage_class
from tests.e2e.objects import LOCAL, Object, Volume, Workload

GROUP: Final = "size"
ANYWHERE: Final = "longhorn-anywhere"
ANYWHERE_AT_ONCE: Final = "longhorn-anywhere-at-once"
ASKED: Final = "asked"
BYPASSES: Final = "bypasses"
KIND_LABEL: Final = "kind"

_SIZES: Final = ("4Gi", "8Gi", "16Gi", "24Gi")
# For volumes of any place or of pods that do not request the extender: far less than is free on any node during the first wave.
_MIXED_SIZE: Final = "4Gi"
# The shares of a node's disks, and the Gi on each node: on 70 of 100 nodes not enough for 1,000 pods.
_LAYOUTS: Final[Sequence[Sequence[float]]] = ((1,), (0.5, 0.5), (0.25, 0.25, 0.25, 0.25), (0.75, 0.25))
_ROOM: Final = 400
# One gibibyte is free: less than any volume needs.
_FULL: Final[Sequence[Disk]] = ({"size": "400Gi", "reserved": "399Gi"},)
_FULL_SHARE: Final = 0.3
_REPORT_PODS: Final = 1000
_SET_SHARE: Final = 0.4
_SET_REPLICAS: Final = 20
_BYPASS_SHARE: Final = 0.08
_ANYWHERE_SHARE: Final = 0.15


@dataclass(frozen=True, slots=True)
class Wave:
    """Objects to create at once, and the number of their pods. `loose` has the apps of the loose pods that request the extender."""

    objects: Sequence[Object]
    pods: int
    loose: Sequence[str]


def nodes(count: int, pods: int, seed: int) -> dict[str, Sequence[Disk]]:
    """Nodes with their disks, in total too small for that many pods. For 1,000 pods, 30 % of them are too full for any
    volume. For fewer pods it is more nodes, not less room on each: otherwise the first wave would fill nodes, and
    volumes of any place take the room of others there.
    """
    rng = random.Random(seed)  # noqa: S311 # chance in a test
    names = [f"size-{number:03d}" for number in range(1, count + 1)]
    roomy = min(count, round(count * (1 - _FULL_SHARE) * pods / _REPORT_PODS))
    full = set(rng.sample(names, count - roomy))
    layouts = {name: [f"{round(_ROOM * share)}Gi" for share in rng.choice(_LAYOUTS)] for name in names}
    return {name: _FULL if name in full else layouts[name] for name in names}


def storage_classes() -> list[Object]:
    """Two classes like Longhorn's own, without data locality. One waits for its first consumer, the other does not."""
    modes = ((ANYWHERE, "WaitForFirstConsumer"), (ANYWHERE_AT_ONCE, "Immediate"))
    return [
        storage_class(name, binding=mode, numberOfReplicas="2", dataLocality="disabled", staleReplicaTimeout="30")
        for name, mode in modes
    ]


def wave(number: int, pods: int, seed: int, *, mixed: bool) -> Wave:
    """One wave of some pods. `mixed` adds pods that do not request the extender, and volumes without locality."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 # chance in a test
    replicas = max(1, min(_SET_REPLICAS, round(pods * _SET_SHARE)))
    sets = [
        Workload(app=f"wave-{number}-set-{index}", group=GROUP, volumes=_volumes(rng, mixed=mixed), labels=_ASKS)
        for index in range(round(pods * _SET_SHARE) // replicas)
    ]
    loose = list(_loose(rng, number, pods - len(sets) * replicas, mixed=mixed))
    objects: list[Object] = [entry for workload in loose for entry in workload.loose()]
    # StatefulSets create their pods while the loose ones are being created.
    objects[:0] = [workload.statefulset(replicas) for workload in sets]
    asking = [workload.app for workload in loose if workload.asks]
    return Wave(objects, len(sets) * replicas + len(loose), asking)


_ASKS: Final = {KIND_LABEL: ASKED}


def _loose(rng: random.Random, number: int, count: int, *, mixed: bool) -> Iterator[Workload]:
    for index in range(count):
        asks = not (mixed and rng.random() < _BYPASS_SHARE / (1 - _SET_SHARE))
        yield Workload(
            app=f"wave-{number}-loose-{index:03d}",
            group=GROUP,
            volumes=_volumes(rng, mixed=mixed, asks=asks),
            asks=asks,
            labels=_ASKS if asks else {KIND_LABEL: BYPASSES},
        )


def _volumes(rng: random.Random, *, mixed: bool, asks: bool = True) -> list[Volume]:
    volumes = []
    for _ in range(rng.randint(1, 4)):
        anywhere = mixed and rng.random() < _ANYWHERE_SHARE
        storage_class = rng.choice((ANYWHERE, ANYWHERE_AT_ONCE)) if anywhere else LOCAL
        volumes.append(Volume(_MIXED_SIZE if anywhere or not asks else rng.choice(_SIZES), storage_class))
    return volumes
