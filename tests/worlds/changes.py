"""Kubernetes objects as the changes that `ClusterState.update` reads."""

from scheduler_core.cluster.update import build_view, empty_snapshot
from scheduler_core.convert.snapshot_kinds import KINDS, Key, group_of
from scheduler_core.evaluation.cluster_state import ClusterState, ProfileCache
from scheduler_core.volumes.demand_index import DemandIndex
from tests.builders import NOW, Object, flat

Changes = dict[tuple[str, Key], object | None]


def changes_of(*objects: Object | list[Object], deleted: bool = False) -> Changes:
    """Returns changes that create or replace the objects, or delete them."""
    changes: Changes = {}
    for raw in flat(*objects):
        field, key, value = read_object(raw)
        changes[field, key] = None if deleted else value
    return changes


def read_object(raw: Object) -> tuple[str, Key, object]:
    kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
    key, value = kind.read(raw)
    return kind.field, key, value


def empty_state() -> ClusterState:
    """The state of a cluster without objects; its demand is derived, so that `update` keeps it current."""
    view = build_view(empty_snapshot(), NOW, 0)
    return ClusterState(view, ProfileCache(view), DemandIndex.of(view))
