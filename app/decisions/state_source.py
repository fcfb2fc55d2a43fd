"""Where views come from: a snapshot file, or the live cluster (`app.kube.cluster_cache.ClusterCache`)."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Protocol

from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.volumes.resolve import MissingObjectError


class ViewSource(Protocol):
    """Owner of the current view."""

    def memory(self) -> Memory:
        """The current view and what is remembered about it."""

    async def fetch(self, missing: MissingObjectError) -> bool:
        """Looks once more for an object that is not in the view; whether it is now.

        Raises:
            ResolutionError: that cannot be told
        """


class LiveView(ViewSource, Protocol):
    """A view that changes, and tells when."""

    def demands(self) -> Demands:
        """What volumes demand in the current view."""

    def listening(self, *keys: tuple[str, Key]) -> AbstractContextManager[asyncio.Event]:
        """An event that is set whenever one of some objects (field of the snapshot, key) changes."""


class FixedView:
    """A view that never changes."""

    def __init__(self, view: View) -> None:
        self._memory = Memory(view)

    def memory(self) -> Memory:
        """The same every time."""
        return self._memory

    async def fetch(self, missing: MissingObjectError) -> bool:
        """What a file does not hold is not there."""
        del missing
        return False
