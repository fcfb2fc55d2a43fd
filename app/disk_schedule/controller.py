"""What the controllers have in common: what they work with, and a queue with what fills it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

from app.disk_schedule.watches import Watches
from app.disk_schedule.writer import Carrier
from app.runtime.work_queue import Again, Watcher, WorkQueue

_WORKERS: Final = 4


@dataclass(frozen=True, slots=True)
class Context:
    """What is watched, how it is written, time and chance.

    Attributes:
        orphans_after: seconds after which a request is withdrawn whose replica, or backing image, was never seen to exist
        clock: monotonic seconds
        random: a number in [0, 1)
    """

    namespace: str
    watches: Watches
    carrier: Carrier
    watcher: Watcher
    orphans_after: float
    clock: Callable[[], float]
    now: Callable[[], datetime]
    random: Callable[[], float]

    @property
    def time(self) -> str:
        """Now, as objects have it."""
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")


class Controller(ABC):
    """One per kind of object. What it knows between two looks is in the objects; the queue only says what to look at."""

    name: ClassVar[str]

    def __init__(self, context: Context, workers: int = _WORKERS) -> None:
        self.context = context
        self.watches = context.watches
        self.carrier = context.carrier
        self.queue = WorkQueue(self.name, self.reconcile, context.watcher, workers=workers, random=context.random)
        self._works = False
        self.listen()

    @abstractmethod
    def listen(self) -> None:
        """Registers for what makes this controller look again."""

    @abstractmethod
    def everything(self) -> Iterable[str]:
        """The keys to look at in the beginning."""

    @abstractmethod
    async def reconcile(self, key: str) -> Again | None:
        """Looks at one key; why to look again, None: not before something happens.

        Raises:
            ApiError: a call failed; on 409 and 404 the key is soon looked at again
        """

    async def run(self) -> None:
        """Works until cancelled."""
        self._works = True
        try:
            for key in self.everything():
                self.queue.add(key)
            await self.queue.run()
        finally:
            self._works = False

    def look(self, key: str) -> None:
        """Has a key looked at, if this controller works."""
        if self._works and key:
            self.queue.add(key)
