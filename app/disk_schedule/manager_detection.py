"""Detects whether longhorn-manager runs.

Where it runs, it allocates by itself, and two allocators would promise the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from app.kube.client import KubeClient
from app.kube.paging import pages
from app.kube.reflector import Key, Reflector, Timing
from app.kube.reflector_group import cache_problem
from app.kube.resources import PODS
from scheduler_core.convert.object_header import pod_phase

_SELECTOR: Final = "app=longhorn-manager"
_TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


def _decode(raw: bytes | msgspec.Raw) -> tuple[Key, str | None]:
    """Returns a pod's name as key, and as value unless it has ended."""
    name, phase = pod_phase(raw)
    return name, None if phase in _TERMINAL_PHASES else name


class ManagerPods:
    """Watches the longhorn-manager pods of one namespace."""

    def __init__(self, client: KubeClient, namespace: str, timing: Timing, stale_after: float) -> None:
        self._clock = timing.clock
        self._stale_after = stale_after
        self._pods: set[str] = set()
        self._reflector = Reflector(
            client, PODS, _decode, self, timing, namespace=namespace, selectors={"labelSelector": _SELECTOR}
        )

    async def run(self) -> None:
        """Watches until cancelled."""
        await self._reflector.run()

    @property
    def problem(self) -> str:
        """Why nothing may be allocated, in one sentence, or "".

        It is a reason, too, that the pods are not known.
        """
        status = self._reflector.status
        problem = cache_problem("pods of longhorn-manager", status, self._clock(), self._stale_after)
        return problem or refusal(self._pods)

    def replace(self, objects: Mapping[Key, str]) -> None:
        """Replaces all pods; called by the reflector."""
        self._pods = set(objects.values())

    def change(self, key: Key, value: str | None) -> None:
        """Adds or removes one pod; called by the reflector."""
        if value is None:
            self._pods.discard(str(key))
        else:
            self._pods.add(value)


def refusal(pods: set[str]) -> str:
    """Returns why nothing is allocated while these pods run, or ""."""
    if not pods:
        return ""
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"longhorn-manager runs here (pod {min(pods)}{more}) and allocates by itself; use --mirror to observe it"


async def list_manager_pods(client: KubeClient, namespace: str) -> set[str]:
    """Returns the names of the longhorn-manager pods that have not ended.

    Raises:
        ApiError: the API server refused or did not answer
    """
    names: set[str] = set()
    async for page in pages(client, PODS.path(namespace), {"labelSelector": _SELECTOR}):
        for raw in page.items:
            key, name = _decode(raw)
            if name is not None:
                names.add(str(key))
    return names
