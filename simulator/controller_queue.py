"""The work queues of the simulated controllers. Which of the waiting keys is next is drawn at random, as it is in Longhorn, where
several managers and Go's maps decide.
"""

import random
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from itertools import islice
from typing import ClassVar, TypeVar

import structlog

from app.kube.client import ApiError
from app.runtime.work_queue import Requeue, WorkQueue
from scheduler_core.backoff import Backoff

log = structlog.get_logger("simulator.queue")

_MIN_DELAY = 0.001
# Longhorn's maxRetries, and client-go's ItemExponentialFailureRateLimiter.
_MAX_RETRIES = 3
_RETRY = Backoff(0.005, 1000.0)

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
        return next(islice(due, self._rng.randrange(len(due)), None))

    async def _reconcile(self, key: _Key) -> Requeue | None:
        try:
            seconds = await self._decide(key)
        except ApiError as error:
            return self._handle_refusal(key, error)
        except Exception:  # a problem with one object must not stop the others; it is counted and shown
            self.failures += 1
            log.exception("could not be handled", queue=self.name, key=key)
            return Requeue.FAILED
        if seconds is not None:
            self.add_later(key, max(seconds, _MIN_DELAY))
        return None

    def _handle_refusal(self, key: _Key, error: ApiError) -> Requeue | None:
        """Decides when a key is handled again after the API server refused a write."""
        if error.conflict:  # another writer was quicker: the watch brings what it wrote
            return Requeue.CONFLICT
        log.warning("the API server refused", queue=self.name, key=key, error=str(error))
        return Requeue.FAILED


class LonghornQueue(ControllerQueue[_Key]):
    """Work queue of a Longhorn controller.

    A refused write is tried again three times, after 5, 10 and 20 ms.

    After that the key is dropped until its next event, or until the informers' resync. A conflict is tried again at once, and ends the
    count of refusals. Mirrors handleErr of Longhorn's controllers and client-go's rate limiter (measured with v1.12.1's control code).

    Attributes:
        resync_period: seconds between two resyncs; they are at a random time after the drop
    """

    def __init__(
        self,
        name: str,
        handle: Callable[[_Key], Awaitable[float | None]],
        rng: random.Random,
        *,
        workers: int,
        resync_period: float,
    ) -> None:
        super().__init__(name, handle, rng, workers=workers)
        self.resync_period = resync_period
        self._refusals: dict[_Key, int] = {}

    async def _reconcile(self, key: _Key) -> Requeue | None:
        before = self._refusals.get(key, 0)
        why = await super()._reconcile(key)
        if self._refusals.get(key, 0) == before:
            self._refusals.pop(key, None)
        return why

    def _handle_refusal(self, key: _Key, error: ApiError) -> Requeue | None:
        if error.conflict:
            self.add(key)
            return None
        refusals = self._refusals.get(key, 0)
        if refusals < _MAX_RETRIES:
            self._refusals[key] = refusals + 1
            self.add_later(key, _RETRY.delay(refusals))
            log.warning("the API server refused", queue=self.name, key=key, error=str(error))
        else:
            self.add_later(key, self._rng.uniform(0, self.resync_period))
            log.warning("the API server refused; dropped until an event", queue=self.name, key=key, error=str(error))
        return None


class _NoMetrics:
    """Ignores a queue's reports: the simulator has no metrics."""

    def depth(self, controller: str, keys: int, /) -> None:
        """Does nothing."""

    def note_retry(self, controller: str, why: Requeue, /) -> None:
        """Does nothing."""

    def note_reconciliation(self, controller: str, seconds: float, /) -> None:
        """Does nothing."""
