"""Detects whether longhorn-manager allocates.

Where it runs, it allocates by itself, and two allocators would promise the same bytes. Where it owns DiskSchedules, it
answers them itself, and a mirror would write what Longhorn decides from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from app.kube.client import KubeClient
from app.kube.paging import pages
from app.kube.reflector import Decode, Key, Timing
from app.kube.resources import CRDS, DISK_SCHEDULES, PODS, Resource
from app.kube.store import Store, Watch
from scheduler_core.convert.disk_schedule_owner import longhorns_definition
from scheduler_core.convert.object_header import pod_phase

_TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})
_DEFINITION: Final = DISK_SCHEDULES.label


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Objects of longhorn-manager that forbid every write."""

    label: str  # the objects' name in problems
    resource: Resource
    selectors: Mapping[str, str]
    decode: Decode[str]  # returns an object's key, and as value its name if it is one of them
    refusal: Callable[[set[str]], str]  # says why nothing is written while objects with these names exist, or ""


def _decode_pod(raw: bytes | msgspec.Raw) -> tuple[Key, str | None]:
    """Returns a pod's name as key, and as value unless it has ended."""
    name, phase = pod_phase(raw)
    return name, None if phase in _TERMINAL_PHASES else name


def _pods_refusal(pods: set[str]) -> str:
    if not pods:
        return ""
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"longhorn-manager runs here (pod {min(pods)}{more}) and allocates by itself; use --mirror to observe it"


def _decode_definition(raw: bytes | msgspec.Raw) -> tuple[Key, str | None]:
    """Returns the definition's name as key, and as value if it is longhorn-manager's."""
    name, longhorns = longhorns_definition(raw)
    return name, name if longhorns else None


def _definition_refusal(definitions: set[str]) -> str:
    if not definitions:
        return ""
    return f"longhorn-manager owns the DiskSchedules here (the CustomResourceDefinition {_DEFINITION} is its own) and answers them itself"


MANAGER_PODS: Final = Obstacle(
    "pods of longhorn-manager", PODS, {"labelSelector": "app=longhorn-manager"}, _decode_pod, _pods_refusal
)
LONGHORNS_DEFINITION: Final = Obstacle(
    f"CustomResourceDefinition {_DEFINITION}",
    CRDS,
    {"fieldSelector": f"metadata.name={_DEFINITION}"},
    _decode_definition,
    _definition_refusal,
)


def obstacles(*, mirror: bool) -> tuple[Obstacle, ...]:
    """Returns what keeps the controllers from writing; a mirror may run where longhorn-manager does."""
    return (LONGHORNS_DEFINITION,) if mirror else (LONGHORNS_DEFINITION, MANAGER_PODS)


class ObstacleWatch:
    """Watches the obstacles in Longhorn's namespace."""

    def __init__(
        self, client: KubeClient, namespace: str, timing: Timing, stale_after: float, obstacles: Sequence[Obstacle]
    ) -> None:
        self._obstacles = obstacles
        self._store = Store(client, timing, stale_after)
        for each in obstacles:
            watch = Watch(
                each.resource,
                each.decode,
                namespace=namespace,
                selectors=each.selectors,
                label=each.label,
                required=False,
            )
            self._store.watch(each.label, watch)

    async def run(self) -> None:
        await self._store.run()

    @property
    def problem(self) -> str:
        """Why nothing may be written, in one sentence, or ""; that the objects are not known is a reason, too."""
        problems = (
            self._store.problem([each.label]) or each.refusal(set(self._store[each.label].values()))
            for each in self._obstacles
        )
        return next(filter(None, problems), "")


async def refusal(client: KubeClient, namespace: str, *, mirror: bool) -> str:
    """Returns why the controllers may not start, or "".

    Raises:
        ApiError: the API server refused or did not answer
        ObjectError: an object cannot be read
    """
    for obstacle in obstacles(mirror=mirror):
        names: set[str] = set()
        async for page in pages(client, obstacle.resource.path(namespace), obstacle.selectors):
            names.update(name for _, name in map(obstacle.decode, page.items) if name is not None)
        if names:
            return obstacle.refusal(names)
    return ""
