"""What the routes share: parts that `bootstrap` puts into the application once, and the latest decisions and callers.

Data flow of decisions: /filter and /preempt decide → the routes write a line of the log and add the decision here → /decisions, the
status page and `longhorn-extender decisions` read it. /prioritize decides nothing, so it is not here.
"""

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from heapq import nlargest
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING

from app.evaluator import Evaluator
from app.extender import status_page_results
from app.extender.metrics import Metrics
from app.extender.node_loss_prediction import NodeLosses
from app.extender.verbs import Verbs
from app.memory_budget import MemoryBudget
from app.schemas.state import CallerAnswer
from scheduler_core import caches
from scheduler_core.decide import decision
from scheduler_core.model.kube import Pod
from scheduler_core.structs import Struct, field

if TYPE_CHECKING:
    from app.extender.leadership_lifecycle import ExtenderLifecycle


_now = partial(datetime.now, UTC)


class DecisionLog:
    """Owner of the latest `MAX_DECISIONS` decisions of this process.

    Args:
        now: returns the wall-clock time
    """

    def __init__(self, now: Callable[[], datetime] = _now) -> None:
        self._now = now
        self._entries: deque[decision.LoggedDecision] = deque(maxlen=decision.MAX_DECISIONS)
        self._recorded = 0

    def record(self, verb: str, pod: Pod, result: decision.DecisionResult) -> None:
        """Adds a decision; the oldest one makes room."""
        time = self._now()
        previous = self._entries[-1].number if self._entries else 0
        most_frequent = nlargest(decision.MAX_REASONS, ((count, text) for text, count in result.refused.items()))
        entry = decision.LoggedDecision(
            number=max(int(time.timestamp() * 1_000_000), previous + 1),
            time=time,
            verb=verb,
            namespace=pod.namespace[: decision.MAX_LENGTH],
            pod=pod.name[: decision.MAX_LENGTH],
            uid=pod.uid[: decision.MAX_LENGTH],
            nodes=result.nodes,
            offered=tuple(
                name[: decision.MAX_LENGTH] for name in islice(result.fitting, min(result.fits, decision.MAX_OFFERED))
            ),
            fits=result.fits,
            refused=tuple((text[: decision.MAX_LENGTH], count) for count, text in most_frequent),
            error=result.error[: decision.MAX_ERROR_LENGTH],
            milliseconds=round(result.seconds * 1000, 3),
            observed=result.observed,
        )
        self._entries.append(entry)
        self._recorded += 1

    def page(self, query: decision.DecisionQuery) -> decision.DecisionPage:
        entries = tuple(islice(filter(query.selects, reversed(self._entries)), query.limit + 1))
        shown = entries[: query.limit]
        further = len(entries) > query.limit
        return decision.DecisionPage(shown, shown[-1].number if further and shown else None, self._recorded)


# Kubernetes has a handful of kube-schedulers; any client may call.
MAX_CALLERS = 16


class RecentCallers:
    """The latest callers of /filter, bounded in number.

    Args:
        clock: returns seconds that never go back
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._calls: caches.LruMap[tuple[str, str], tuple[int, float]] = caches.LruMap(MAX_CALLERS)

    def record(self, address: str, *, whole_nodes: bool) -> None:
        key = (address, "nodes" if whole_nodes else "names")
        requests, _ = self._calls.get(key) or (0, 0.0)
        self._calls.put(key, (requests + 1, self._clock()))

    def answers(self) -> list[CallerAnswer]:
        """Returns the callers as data, by address and form."""
        now = self._clock()
        return [
            CallerAnswer(address=address, form=form, requests=requests, age_seconds=round(now - last, 3))
            for (address, form), (requests, last) in sorted(self._calls.items())
        ]


class AppState(Struct, frozen=True):
    """The services and limits of one application."""

    evaluator: Evaluator
    verbs: Verbs
    metrics: Metrics
    max_body: int  # the largest body of a request, in bytes
    budget: MemoryBudget  # the memory that all requests together may hold
    lifecycle: "ExtenderLifecycle | None" = None  # of a live cluster; None for a snapshot file
    observes: Callable[[], bool] = lambda: False  # returns whether refusals are only counted and logged now
    callers: RecentCallers = field(default_factory=RecentCallers)  # from where /filter is called
    decisions: DecisionLog = field(default_factory=DecisionLog)  # the latest decisions
    node_losses: NodeLosses | None = None  # which nodes can be lost; None if that is not predicted
    status: status_page_results.StatusSources | None = None  # what the status page reads; None without a status page
