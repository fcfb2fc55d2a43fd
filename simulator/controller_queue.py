"""The work queue of one simulated controller.

Which of the waiting keys is next is drawn at random, as it is in Longhorn, where several managers and Go's maps decide.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from itertools import islice
from typing import ClassVar, Final, TypeVar

import structlog

from app.kube.client import ApiError
from app.runtime.work_queue import Requeue, WorkQueue
from scheduler_core.backoff import Backoff

log = structlog.get_logger("simulator.queue")

_MIN_DELAY: Final = 0.001

_Key = TypeVar("_Key", bound=Hashable)


class ControllerQueue(WorkQueue[_Key]):
    """Work queue of one controller, whose handler returns its next delay.

    The delay is in seconds; None: the key is handled again after an event. As in client-go, an event does not cancel a delay.

    Attributes:
        failures: how often the handler raised an error that is not the API server's
    """

    backoffs: ClassVar[Mapping[Requeue, Backoff]] = {
        Requeue.CONFLICT: Backoff(0.08, 0.08),
        Requeue.WAITING: Backoff(0.1, 30.0),
        Requeue.FAILED: Backoff(0.1, 30.0),
    }
    events_end_delays: ClassVar[bool] = False

    def __init__(
        self, name: str, handle: Callable[[_Key], Awaitable[float | None]], rng: random.Random, *, workers: int
    ) -> None:
        super().__init__(name, self._reconcile, _NoMetrics(), workers=workers, random=rng.random)
        self.failures = 0
        self._decide = handle
        self._rng = rng

    def choose(self, due: Collection[_Key]) -> _Key:
        """Returns one of these keys, all equally likely."""
        return next(islice(due, self._rng.randrange(len(due)), None))

    async def _reconcile(self, key: _Key) -> Requeue | None:
        try:
            seconds = await self._decide(key)
        except ApiError as error:
            if error.conflict:  # another writer was quicker: the watch brings what it wrote
                return Requeue.CONFLICT
            log.warning("the API server refused", queue=self.name, key=key, error=str(error))
            return Requeue.FAILED
        except Exception:  # a problem with one object must not stop the others; it is counted and shown
            self.failures += 1
            log.exception("could not be handled", queue=self.name, key=key)
            return Requeue.FAILED
        if seconds is not None:
            self.add_later(key, max(seconds, _MIN_DELAY))
        return None


class _NoMetrics:
    """Ignores a queue's reports: the simulator has no metrics."""

    def depth(self, controller: str, keys: int, /) -> None:
        """Does nothing."""

    def retried(self, controller: str, why: Requeue, /) -> None:
        """Does nothing."""

    def reconciled(self, controller: str, seconds: float, /) -> None:
        """Does nothing."""
