"""What Prometheus is told. Names and labels of the filter histogram are those of Longhorn's scheduler-extender proposal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Gauge, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_fastapi_instrumentator import Instrumentator, metrics

from scheduler_core.demand.derive import Source
from scheduler_core.model.verdict import Reason
from scheduler_core.offers.ledger import Became

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.kube.reflector import Standing

PREFIX: Final = "longhorn_scheduler_extender"
# From half a millisecond, what a small cluster takes, to kube-scheduler's own time-out in the proposal.
BUCKETS: Final = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

# From what a small cluster takes to bind a pod, to the longest time-out an administrator may set.
WAIT_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0)
_BOOLEANS: Final = ("false", "true")
_SOURCES: Final = tuple(source.name.lower() for source in Source)
# A narrowed offer has not ended.
_ENDS: Final = tuple(became.value for became in Became if became is not Became.NARROWED)


@dataclass(frozen=True, slots=True)
class Outstanding:
    """What is not settled at a moment.

    Attributes:
        demands: volumes that will take room on a node, by the lower-case name of the `Source` that ties them to it; others are 0
        offers: pods that were told which nodes fit, and of which no decision was seen yet
        hopeless_demands: demands without room beside older ones
        misplaced_volumes: fresh volumes that Longhorn placed elsewhere, and that are not where they are wanted yet
        stuck_pods: bound pods that have waited for their volumes for a minute
        waiting_pods: refused pods that are retried when they fit
    """

    demands: Mapping[str, int]
    offers: int
    hopeless_demands: int
    misplaced_volumes: int
    stuck_pods: int
    waiting_pods: int


class _Unsettled(Collector):
    """What is outstanding now, as metrics."""

    def __init__(self, read: Callable[[], Outstanding]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """One sample per number."""
        now = self._read()
        demands = GaugeMetricFamily(
            f"{PREFIX}_demands",
            "Volumes that will take room on a node and have no replica there yet, by what ties them to it",
            labels=["source"],
        )
        for source in _SOURCES:
            demands.add_metric([source], now.demands.get(source, 0))
        yield demands
        for name, help_text, value in (
            ("offers", "Pods that were told which nodes fit, while no decision was seen yet", now.offers),
            ("hopeless_demands", "Demands without room on their node beside older ones", now.hopeless_demands),
            (
                "misplaced_volumes",
                "Volumes that Longhorn placed elsewhere when they were fresh, and that are not on their pod's node yet",
                now.misplaced_volumes,
            ),
            ("stuck_pods", "Bound pods whose volumes have not been on their node for a minute", now.stuck_pods),
            ("waiting_pods", "Pods refused on every node that are retried as soon as they fit", now.waiting_pods),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", help_text, value=value)


class _Caches(Collector):
    """What the reflectors say of themselves, as metrics."""

    def __init__(self, standings: Callable[[], Mapping[str, Standing]], clock: Callable[[], float]) -> None:
        self._standings = standings
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """One sample per kind and metric."""
        now = self._clock()
        behind = GaugeMetricFamily(
            f"{PREFIX}_cache_behind_seconds",
            "How long the cache may have been behind: cut off, or silent for longer than bookmarks take",
            labels=["kind"],
        )
        lists = CounterMetricFamily(f"{PREFIX}_cache_lists", "Complete lists of a kind", labels=["kind"])
        events = CounterMetricFamily(f"{PREFIX}_cache_events", "Watch events of a kind", labels=["kind"])
        unreadable = GaugeMetricFamily(
            f"{PREFIX}_cache_unreadable_objects", "Objects left out because they cannot be read", labels=["kind"]
        )
        for kind, standing in self._standings().items():
            behind.add_metric([kind], standing.behind(now))
            lists.add_metric([kind], standing.lists)
            events.add_metric([kind], standing.events)
            unreadable.add_metric([kind], len(standing.unreadable))
        return behind, lists, events, unreadable


class _Fates:
    """Counters of what became of pods and volumes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.misplacements = CounterMetric(
            f"{PREFIX}_misplacements",
            "Fresh volumes that Longhorn placed on another node than their pod's, once per pod and volume",
            registry=registry,
        )
        self.nudges = CounterMetric(
            f"{PREFIX}_nudges",
            "Refused pods that fit now and were to be retried at once, by result: patched, gone (the pod is), failed",
            ["result"],
            registry=registry,
        )
        self.would_refuse = CounterMetric(
            f"{PREFIX}_would_refuse",
            "Pods that would have been refused on every node, were refusals not only observed",
            registry=registry,
        )
        self.offers_ended = CounterMetric(
            f"{PREFIX}_offers_ended", "Offers that ended, by what became of them", ["became"], registry=registry
        )
        for result in ("patched", "gone", "failed"):
            self.nudges.labels(result=result)
        for became in _ENDS:
            self.offers_ended.labels(became=became)


class _Policy:
    """Counters of the policy file."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.refusals = CounterMetric(
            f"{PREFIX}_policy_refusals",
            "Nodes that a predicate of the policy file refused in /filter",
            registry=registry,
        )
        self.reloads = CounterMetric(
            f"{PREFIX}_policy_reloads",
            "Other contents of the policy file, by result: loaded, or refused (the policy before stays)",
            ["result"],
            registry=registry,
        )
        for result in ("loaded", "refused"):
            self.reloads.labels(result=result)


class Metrics:
    """This process's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.filter_duration = Histogram(
            f"{PREFIX}_filter_duration_seconds",
            "Time from request decode to response sent",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._verdicts = CounterMetric(
            f"{PREFIX}_verdicts", "Nodes judged by /filter, by reason", ["reason"], registry=self.registry
        )
        self._requests = CounterMetric(
            f"{PREFIX}_filter_requests",
            "Pods asked about, by result: fits (on some node), refused (on all), error (nothing decided)",
            ["result"],
            registry=self.registry,
        )
        self._gave_up = CounterMetric(
            f"{PREFIX}_packing_gave_up",
            "Searches, for a packing or for order safety, that ran out of their budget; the answer is then no",
            registry=self.registry,
        )
        self._heartbeat = Gauge(
            f"{PREFIX}_heartbeat",
            "1 while this process is the leader and answers, 0 otherwise; node is where it runs",
            ["node"],
            registry=self.registry,
        )
        self._scheduling_wait = Histogram(
            f"{PREFIX}_pod_scheduling_wait_duration_seconds",
            "Time waiting for pod spec.nodeName to be populated",
            ["pod_scheduled"],
            buckets=WAIT_BUCKETS,
            registry=self.registry,
        )
        self._node_reservation = Histogram(
            f"{PREFIX}_node_reservation_duration_seconds",
            "Time waiting for replicas to appear as scheduled on the reserved node",
            ["replicas_scheduled"],
            buckets=WAIT_BUCKETS,
            registry=self.registry,
        )
        self._fates = _Fates(self.registry)
        self._policy = _Policy(self.registry)
        for happened in _BOOLEANS:
            self._scheduling_wait.labels(pod_scheduled=happened)
            self._node_reservation.labels(replicas_scheduled=happened)
        for reason in Reason:
            self._verdicts.labels(reason=reason.name.lower())
        for result in ("fits", "refused", "error"):
            self._requests.labels(result=result)

    def decided(self, reasons: Iterable[Reason], gave_up: int) -> Counter[Reason]:
        """Counts one answer of /filter; returns how often each reason occurred."""
        counted = Counter(reasons)
        for reason, count in counted.items():
            self._verdicts.labels(reason=reason.name.lower()).inc(count)
        fits = any(reason.fits for reason in counted)
        self._requests.labels(result="fits" if fits else "refused").inc()
        if gave_up:
            self._gave_up.inc(gave_up)
        return counted

    def refused_by_policy(self, nodes: int) -> None:
        """Counts nodes that a policy's predicate refuses, and that Longhorn's rules were not asked about."""
        self._policy.refusals.inc(nodes)

    def policy_reloaded(self, result: str) -> None:
        """Counts one other content of the policy file: ``loaded`` or ``refused``."""
        self._policy.reloads.labels(result=result).inc()

    def undecided(self) -> None:
        """Counts one question of /filter that could not be decided."""
        self._requests.labels(result="error").inc()

    def heartbeat(self, node: str, *, leading: bool) -> None:
        """Tells whether this process answers."""
        self._heartbeat.labels(node=node).set(leading)

    def pod_scheduling_wait(self, seconds: float, *, scheduled: bool) -> None:
        """One wait for spec.nodeName is over."""
        self._scheduling_wait.labels(pod_scheduled=_BOOLEANS[scheduled]).observe(seconds)

    def node_reservation(self, seconds: float, *, listed: bool) -> None:
        """One reservation of a node is over."""
        self._node_reservation.labels(replicas_scheduled=_BOOLEANS[listed]).observe(seconds)

    def misplaced(self) -> None:
        """Counts one fresh volume that Longhorn placed elsewhere."""
        self._fates.misplacements.inc()

    def nudged(self, result: str) -> None:
        """Counts one pod that was to be retried: ``patched``, ``gone`` or ``failed``."""
        self._fates.nudges.labels(result=result).inc()

    def would_refuse(self) -> None:
        """Counts one pod that would have been refused on every node."""
        self._fates.would_refuse.inc()

    def offer_ended(self, became: str) -> None:
        """Counts one offer that ended, by the value of its `Became`."""
        self._fates.offers_ended.labels(became=became).inc()

    def outstanding(self, read: Callable[[], Outstanding]) -> None:
        """Adds what is not settled, read when Prometheus asks: in another thread, so `read` must change nothing."""
        self.registry.register(_Unsettled(read))

    def caches(self, standings: Callable[[], Mapping[str, Standing]], clock: Callable[[], float]) -> None:
        """Adds what is known of each watch cache, read when Prometheus asks."""
        self.registry.register(_Caches(standings, clock))

    def instrument(self, app: FastAPI) -> None:
        """Adds the HTTP metrics of every route, and GET /metrics."""
        instrumentator = Instrumentator(
            excluded_handlers=["/metrics", "/healthz", "/readyz"],
            registry=self.registry,
        )
        instrumentator.add(metrics.default(latency_lowr_buckets=BUCKETS, registry=self.registry))
        instrumentator.instrument(app)
        instrumentator.expose(app, include_in_schema=True, tags=["operation"])
