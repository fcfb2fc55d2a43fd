"""Where the cluster's state comes from: a snapshot file, or the live cluster (`app/kube/cluster_cache.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from scheduler_core.cluster.view import View
from scheduler_core.convert.snapshot_kinds import Key
from scheduler_core.errors import MissingObjectError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.model.kube import Pod


class StateSource(Protocol):
    """Owner of the current state."""

    def state(self) -> ClusterState:
        """Returns the current state."""

    async def fetch(self, missing: MissingObjectError) -> bool:
        """Fetches an object that the state lacks; returns whether it exists.

        Raises:
            ResolutionError: the API server did not answer, or the object cannot be read
        """

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        """Reads a pod of which the state has no such object; None if there is none. The state does not change: a watch
        that is behind would end the pod in it once more.

        Raises:
            ResolutionError: the API server did not answer, or the pod cannot be read
        """


class LiveStateSource(StateSource, Protocol):
    """A state that changes."""

    def listening(self, *keys: tuple[str, Key]) -> AbstractContextManager[asyncio.Event]:
        """Provides an event that is set when an object changes. An object is named by its field of the snapshot and its
        key.
        """

    def subscribe(self, field: str, observer: Callable[[object | None, object | None], None]) -> None:
        """Passes every later change of a field's objects to an observer, at the moment of the delivery."""


class SnapshotState:
    """The state of a snapshot, which never changes."""

    def __init__(self, view: View) -> None:
        self._state = ClusterState.of(view)

    def state(self) -> ClusterState:
        return self._state

    async def fetch(self, missing: MissingObjectError) -> bool:
        """Returns False: an object that the file lacks does not exist."""
        del missing
        return False

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        return self._state.view.snapshot.pods.get((namespace, name))
