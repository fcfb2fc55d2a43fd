"""What the verbs are given in tests: states that a test changes, without a cluster, and callers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from app.evaluator import LiveStateSource
from app.kube.cluster_cache import ChangeObserver
from scheduler_core.cluster.update import build_view, empty_snapshot
from scheduler_core.convert.snapshot_kinds import KINDS, Key, group_of
from scheduler_core.decide.decision import Decision
from scheduler_core.errors import MissingObjectError
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.model.kube import Pod
from tests.builders import NOW, Object, as_pod, flat


class FakeStateSource:
    """The objects that a test puts into it."""

    def __init__(self, *objects: Object | list[Object]) -> None:
        self.current = ClusterState.of(build_view(empty_snapshot(), NOW, 0))  # the state
        self.listeners: dict[tuple[str, Key], set[asyncio.Event]] = {}
        self.observers: dict[str, list[ChangeObserver]] = {}
        self.elsewhere: dict[str, Object] = {}  # objects by name that only `fetch` and `read_pod` find
        self.fetch_seconds = 0.0  # how long a fetch takes
        self.fetched: list[str] = []  # names of the objects that were fetched
        self.put(*flat(*objects))

    def state(self) -> ClusterState:
        return self.current

    async def fetch(self, missing: MissingObjectError) -> bool:
        """Finds what `elsewhere` has, by name."""
        self.fetched.append(missing.name)
        await asyncio.sleep(self.fetch_seconds)
        raw = self.elsewhere.get(missing.name)
        if raw is not None:
            self.put(raw)
        return raw is not None

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        self.fetched.append(f"{namespace}/{name}")
        raw = self.elsewhere.get(f"{namespace}/{name}")
        return None if raw is None else as_pod(raw)

    @contextmanager
    def listening(self, *keys: tuple[str, Key]) -> Iterator[asyncio.Event]:
        """Provides an event that is set when one of the objects changes."""
        event = asyncio.Event()
        distinct = frozenset(keys)
        for key in distinct:
            self.listeners.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            for key in distinct:
                self.listeners[key].remove(event)
                if not self.listeners[key]:
                    del self.listeners[key]

    def subscribe(self, field: str, observer: ChangeObserver) -> None:
        """Passes every later change of a field's objects to an observer."""
        self.observers.setdefault(field, []).append(observer)

    def put(self, *objects: Object) -> None:
        self._update({_read(raw)[:2]: _read(raw)[2] for raw in objects})

    def remove(self, *objects: Object) -> None:
        self._update(dict.fromkeys(_read(raw)[:2] for raw in objects))

    def _update(self, changes: dict[tuple[str, Key], object | None]) -> None:
        before = self.current.view.snapshot
        self.current = self.current.update(changes, NOW)
        for (field, key), value in changes.items():
            for observer in self.observers.get(field, ()):
                observer(getattr(before, field).get(key), value)
        for changed in changes:
            for event in self.listeners.get(changed, ()):
                event.set()


class SlowSource(FakeStateSource):
    """A state source whose API server takes 0.5 s to read a pod."""

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        await asyncio.sleep(0.5)
        return await super().read_pod(namespace, name)


def _read(raw: Object) -> tuple[str, Key, object]:
    kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
    key, value = kind.read(raw)
    return kind.field, key, value


_: type[LiveStateSource] = FakeStateSource


async def caller_waits() -> bool:
    """The caller waits for its answer: it has not hung up."""
    return False


async def caller_hung_up() -> bool:
    return True


def fitting_nodes(decision: Decision) -> list[str]:
    return [name for name, reason in zip(decision.candidates, decision.reasons, strict=True) if reason.fits]
