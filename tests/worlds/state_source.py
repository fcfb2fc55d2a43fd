"""A live view without a cluster: what a cache promises its readers, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from app.decisions.state_source import LiveView
from scheduler_core.cluster.update import advance, empty_snapshot, rebuilt
from scheduler_core.convert.snapshot_kinds import KINDS, Key, group_of
from scheduler_core.demand.index import Demands
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.volumes.resolve import MissingObjectError
from tests.builders import NOW, Object, flat


class FakeCache:
    """Objects that tests put there and take away."""

    def __init__(self, *objects: Object | list[Object]) -> None:
        self._memory = Memory(rebuilt(empty_snapshot(), NOW, 0))
        self._demands = Demands.of(self._memory.view)
        self.listeners: dict[tuple[str, Key], set[asyncio.Event]] = {}
        self.elsewhere: dict[str, Object] = {}
        self.slowness = 0.0
        self.fetched: list[str] = []
        self.put(*flat(*objects))

    def memory(self) -> Memory:
        """The current view."""
        return self._memory

    def demands(self) -> Demands:
        """Kept current, as the cache does."""
        return self._demands

    async def fetch(self, missing: MissingObjectError) -> bool:
        """Finds what `elsewhere` has, by name."""
        self.fetched.append(missing.name)
        await asyncio.sleep(self.slowness)
        raw = self.elsewhere.get(missing.name)
        if raw is not None:
            self.put(raw)
        return raw is not None

    @contextmanager
    def listening(self, *keys: tuple[str, Key]) -> Iterator[asyncio.Event]:
        """As the cache's."""
        event, different = asyncio.Event(), frozenset(keys)
        for key in different:
            self.listeners.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            for key in different:
                self.listeners[key].remove(event)
                if not self.listeners[key]:
                    del self.listeners[key]

    def put(self, *objects: Object) -> None:
        """Creates or changes objects."""
        self._step({_read(raw)[:2]: _read(raw)[2] for raw in objects})

    def remove(self, *objects: Object) -> None:
        """Deletes objects."""
        self._step(dict.fromkeys(_read(raw)[:2] for raw in objects))

    def _step(self, changes: dict[tuple[str, Key], object | None]) -> None:
        before = self._memory.view
        advanced = advance(before, changes, NOW)
        self._demands = self._demands.after(before, changes, advanced.view)
        self._memory = self._memory.after(advanced.view, advanced.touched)
        for key in changes:
            for event in self.listeners.get(key, ()):
                event.set()


def _read(raw: Object) -> tuple[str, Key, object]:
    kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
    key, value = kind.read(raw)
    return kind.field, key, value


_: type[LiveView] = FakeCache
