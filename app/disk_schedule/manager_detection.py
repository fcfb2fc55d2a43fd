"""Whether longhorn-manager runs: where it does, it allocates by itself, and two allocators would promise the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from app.kube.client import KubeClient
from app.kube.paging import pages
from app.kube.reflector import Key, Phase, Reflector, Timing
from app.kube.resources import PODS
from scheduler_core.convert.object_header import pod_phase

_SELECTOR: Final = "app=longhorn-manager"
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def _decode(raw: bytes | msgspec.Raw) -> tuple[Key, str | None]:
    """A pod's name; None for one that has ended."""
    name, phase = pod_phase(raw)
    return name, None if phase in _ENDED else name


class _Labelled(Reflector[str]):
    """A reflector of the pods with a label."""

    def select(self, labels: str) -> None:
        """Before it runs."""
        self._query = {**self._query, "labelSelector": labels}


class Managers:
    """The longhorn-manager pods of one namespace, watched."""

    def __init__(self, client: KubeClient, namespace: str, timing: Timing, stale_after: float) -> None:
        self._clock = timing.clock
        self._stale_after = stale_after
        self._pods: set[str] = set()
        self._reflector = _Labelled(client, PODS, _decode, self, timing, namespace=namespace)
        self._reflector.select(_SELECTOR)
        self._listed = asyncio.Event()

    async def run(self) -> None:
        """Watches until cancelled."""
        await self._reflector.run()

    @property
    def problem(self) -> str:
        """Why nothing may be allocated, in one sentence; "" if it may. Not knowing is a reason, too."""
        standing = self._reflector.standing
        if standing.phase is Phase.STARTING:
            return "pods of longhorn-manager not listed yet" + (f": {standing.problem}" if standing.problem else "")
        behind = standing.behind(self._clock())
        if behind > self._stale_after:
            return f"pods of longhorn-manager not heard of for {behind:.0f} s: {standing.problem}"
        return refusal(self._pods)

    def replaced(self, objects: Mapping[Key, str]) -> None:
        """Called by the reflector."""
        self._pods = set(objects.values())

    def changed(self, key: Key, value: str | None) -> None:
        """Called by the reflector."""
        if value is None:
            self._pods.discard(str(key))
        else:
            self._pods.add(value)


def refusal(pods: set[str]) -> str:
    """Why nothing is allocated beside these pods; "" if there are none."""
    if not pods:
        return ""
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"longhorn-manager runs here (pod {min(pods)}{more}) and allocates by itself; use --mirror to observe it"


async def managers_now(client: KubeClient, namespace: str) -> set[str]:
    """The names of the longhorn-manager pods that have not ended.

    Raises:
        ApiError: the API server refused or did not answer
    """
    found: set[str] = set()
    async for page in pages(client, PODS.path(namespace), {"labelSelector": _SELECTOR}):
        for raw in page.items:
            key, name = _decode(raw)
            if name is not None:
                found.add(str(key))
    return found
