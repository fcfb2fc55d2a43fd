"""Changes of nodes' and disks' settings that may help a pod: uncordon, allow scheduling, add tags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

from scheduler_core.evaluation.replicas import DEGRADED_SETTING, DomainShortage
from scheduler_core.longhorn.volume_validation import is_tag
from scheduler_core.model import longhorn
from scheduler_core.model.kube import condition
from scheduler_core.model.longhorn import CORDONED
from scheduler_core.predict.predicted_cluster import PredictedCluster
from scheduler_core.predict.remedy import RemedyKind, Step
from scheduler_core.volumes.resolve import Resolution

# Of more different selectors, only one each and all together are tried.
_MAX_COMBINED: Final = 3
Tags = tuple[str, ...]


def spread_steps(shortage: DomainShortage) -> list[Step]:
    """Returns the steps by which replicas no longer need a node or zone each."""
    degraded = _setting_step(RemedyKind.ALLOW_DEGRADED, DEGRADED_SETTING)
    soft = _setting_step(RemedyKind.SOFTEN_ANTI_AFFINITY, shortage.setting)
    return [degraded] if shortage.by_volume else [degraded, soft]


def _setting_step(kind: RemedyKind, setting: str) -> Step:
    return Step(kind, "", text=f"set Longhorn's {setting} to true", setting=setting)


def uncordon_steps(cluster: PredictedCluster, name: str) -> list[Step]:
    """Returns the step that uncordons a node, if it is cordoned."""
    kube_node = cluster.snapshot.nodes.get(name)
    node = cluster.snapshot.longhorn_nodes.get(name)
    cordoned = kube_node is not None and kube_node.unschedulable
    cordoned |= node is not None and condition(node.conditions, "Schedulable").reason == CORDONED
    return [Step(RemedyKind.UNCORDON, name, text=f"uncordon node {name}")] if cordoned else []


def allow_node_steps(node: longhorn.Node) -> list[Step]:
    """Returns the step that allows scheduling on a Longhorn node, none if it is allowed."""
    if node.allow_scheduling and not node.eviction_requested:
        return []
    text = f"allow scheduling on Longhorn node {node.name}"
    text += " and cancel its eviction" if node.eviction_requested else ""
    return [Step(RemedyKind.ALLOW_NODE, node.name, text=text)]


def allow_disk_steps(node: longhorn.Node) -> list[Step]:
    """Returns the steps that allow scheduling on those of a node's disks where it is not allowed."""
    steps: list[Step] = []
    for disk in node.disks:
        if disk.in_spec and (not disk.allow_scheduling or disk.eviction_requested):
            text = f"allow scheduling on disk {node.name}/{disk.name}"
            text += " and cancel its eviction" if disk.eviction_requested else ""
            steps.append(Step(RemedyKind.ALLOW_DISK, node.name, disk.name, text=text))
    return steps


def tag_node_steps(cluster: PredictedCluster, resolution: Resolution, node: longhorn.Node) -> list[Step]:
    """Returns the steps that add to a node tags that the pod's volumes select and the node lacks."""
    selectors = [
        (*volume.node_selector, *(image.node_selector if image is not None else ()))
        for volume, image in _volumes_with_images(cluster, resolution)
    ]
    place = f"Longhorn node {node.name}"
    return [
        Step(RemedyKind.TAG_NODE, node.name, tags=tags, text=f"add {_tag_list(tags)} to {place}")
        for tags in _tags_to_add(selectors, node.tags)
    ]


def tag_disk_steps(cluster: PredictedCluster, resolution: Resolution, node: longhorn.Node) -> list[Step]:
    """Returns the steps that add to a node's disks tags that the pod's volumes select and the disk lacks."""
    selectors = [
        (*volume.disk_selector, *(image.disk_selector if image is not None else ()))
        for volume, image in _volumes_with_images(cluster, resolution)
    ]
    places = [(disk, f"disk {node.name}/{disk.name}") for disk in node.disks if disk.in_spec]
    return [
        Step(RemedyKind.TAG_DISK, node.name, disk.name, tags=tags, text=f"add {_tag_list(tags)} to {place}")
        for disk, place in places
        for tags in _tags_to_add(selectors, disk.tags)
    ]


def _volumes_with_images(
    cluster: PredictedCluster, resolution: Resolution
) -> list[tuple[longhorn.Volume, longhorn.BackingImage | None]]:
    volumes = [entry.volume for entry in resolution.volumes]
    return [(volume, cluster.snapshot.backing_images.get(volume.backing_image)) for volume in volumes]


def _tags_to_add(selectors: Iterable[Sequence[str]], tags: Sequence[str]) -> list[Tags]:
    """Returns the sets of tags to try, fewest tags first."""
    # Longhorn admits no tag that is no qualified name.
    missing = {tuple(sorted({*selector} - {*tags})) for selector in selectors if all(map(is_tag, selector))} - {()}
    counts = range(1, len(missing) + 1) if len(missing) <= _MAX_COMBINED else (1, len(missing))
    # Volumes of a pod may be on different disks, so not every selector has to match.
    unions = {
        tuple(sorted({tag for part in chosen for tag in part}))
        for count in counts
        for chosen in combinations(sorted(missing), count)
    }
    return sorted(unions, key=lambda union: (len(union), union))


def _tag_list(tags: Tags) -> str:
    return f"{'tag' if len(tags) == 1 else 'tags'} {', '.join(tags)}"
