"""Metrics of the extender, of which four have the names and labels of Longhorn's scheduler-extender proposal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_fastapi_instrumentator import Instrumentator, metrics

from app.extender.capacity import CapacityCollector, NodeLossCollector
from app.memory import MemoryBudget
from app.runtime.probes import BUCKETS, PREFIX, CacheCollector, process_registry
from app.settings import LOADED, REFUSED
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.guard.placement_guard import GuardOutcome, Observation
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.offers.outstanding_offer import OutcomeKind
from scheduler_core.predict.node_loss import NodeLossOutcome
from scheduler_core.volumes.demand import DemandSource

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.kube.reflector import CacheStatus

# From what a small cluster takes to bind a pod, to the longest time-out an administrator may set.
WAIT_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0)
_BOOLEANS: Final = ("false", "true")
_SOURCES: Final = tuple(source.name.lower() for source in DemandSource)
# A narrowed offer has not ended.
_OFFER_ENDS: Final = tuple(kind.value for kind in OutcomeKind if kind is not OutcomeKind.NARROWED)


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Numbers of what is outstanding at one time."""

    # Number of demands by the lower-case name of their `DemandSource`; a missing name counts as 0.
    demands: Mapping[str, int]
    offers: int  # pods that were offered nodes and whose decision was not seen yet
    hopeless_demands: int  # demands that do not fit together with older ones
    # Volumes that Longhorn placed on other nodes when they were new, and that are still not on their pod's node.
    misplaced_volumes: int
    overbooked_disks: int  # disks that placements overbooked, and that are still overbooked
    stuck_pods: int  # bound pods that have waited for their volumes for a minute
    waiting_pods: int  # refused pods that are retried when they fit
    oldest_wait: float  # seconds since the first refusal of the one that waits longest, 0 without one


class _OutstandingCollector(Collector):
    """What is outstanding now, read when Prometheus scrapes."""

    def __init__(self, read: Callable[[], Outstanding]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
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
            (
                "offers",
                "Pods with an outstanding offer: kube-scheduler has an answer, and no decision was observed yet",
                now.offers,
            ),
            ("hopeless_demands", "Demands without room on their node in addition to older ones", now.hopeless_demands),
            (
                "misplaced_volumes",
                "Volumes that Longhorn placed elsewhere when they were fresh, and that are not on their pod's node yet",
                now.misplaced_volumes,
            ),
            (
                "overbooked_disks",
                "Disks that exceed Longhorn's limit because volumes were placed there at once",
                now.overbooked_disks,
            ),
            ("stuck_pods", "Bound pods whose volumes have not been on their node for a minute", now.stuck_pods),
            ("waiting_pods", "Pods refused on every node that are retried as soon as they fit", now.waiting_pods),
            (
                "oldest_waiting_pod_seconds",
                "Time since the first refusal of the pod that waits longest; 0 without one",
                now.oldest_wait,
            ),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", help_text, value=value)


class _BudgetCollector(Collector):
    """The memory budget of requests, read when Prometheus scrapes."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget

    def collect(self) -> Iterable[Metric]:
        for name, help_text, value in (
            ("request_memory_bytes", "Memory that requests hold, as charged", self._budget.used),
            ("request_memory_limit_bytes", "Memory that all requests together may hold", self._budget.total),
        ):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", help_text, value=value)
        yield CounterMetricFamily(
            f"{PREFIX}_requests_over_budget",
            "Requests that were refused, or gave way to others, because requests together may not hold more memory",
            value=self._budget.refusals,
        )


def _labelled_counter(
    registry: CollectorRegistry, name: str, text: str, label: str, values: Iterable[str]
) -> CounterMetric:
    """Returns a counter that shows 0 for each value of its label."""
    counter = CounterMetric(f"{PREFIX}_{name}", text, [label], registry=registry)
    for value in values:
        counter.labels(value)
    return counter


class _RequestMetrics:
    """How requests to /filter ended, and when the last one did."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._results = _labelled_counter(
            registry,
            "filter_requests",
            "Pods asked about, by result: fits (on some node), refused (on all), error (nothing decided)",
            "result",
            ("fits", "refused", "error"),
        )
        self._last = Gauge(
            f"{PREFIX}_last_filter_request_timestamp_seconds",
            "When kube-scheduler was last answered about a pod; 0 if never",
            registry=registry,
        )

    def count(self, result: str) -> None:
        """Counts one request: ``fits``, ``refused`` or ``error``."""
        self._results.labels(result=result).inc()
        self._last.set_to_current_time()


class _OutcomeCounters:
    """Counters of how pods, volumes and offers ended."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.misplacements = CounterMetric(
            f"{PREFIX}_misplacements",
            "Fresh volumes that Longhorn placed on another node than their pod's, once per pod and volume",
            registry=registry,
        )
        self.overbookings = CounterMetric(
            f"{PREFIX}_overbookings",
            "Disks that exceeded Longhorn's limit because volumes were placed there at once, each time they began to",
            registry=registry,
        )
        self.nudges = _labelled_counter(
            registry,
            "nudges",
            "Refused pods that fit now and were to be retried at once, by result: patched, gone (the pod is), failed",
            "result",
            ("patched", "gone", "failed"),
        )
        self.would_refuse = CounterMetric(
            f"{PREFIX}_would_refuse",
            "Pods that would have been refused on every node, were refusals not only observed",
            registry=registry,
        )
        self.offers_ended = _labelled_counter(
            registry, "offers_ended", "Offers that ended, by outcome", "became", _OFFER_ENDS
        )


class _PolicyCounters:
    """Counters of the policy file."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.refusals = CounterMetric(
            f"{PREFIX}_policy_refusals",
            "Nodes that a predicate of the policy file refused in /filter",
            registry=registry,
        )
        self.reloads = _labelled_counter(
            registry,
            "policy_reloads",
            "Other contents of the policy file, by result: loaded, or refused (the policy before stays)",
            "result",
            (LOADED, REFUSED),
        )


class _TlsMetrics:
    """Metrics of the certificate files."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.certificate_expiry = Gauge(
            f"{PREFIX}_tls_certificate_expiry_timestamp_seconds",
            "When the certificate that kube-scheduler is shown expires; 0 without TLS",
            registry=registry,
        )
        self.reloads = _labelled_counter(
            registry,
            "tls_reloads",
            "Changes of the certificate files, by result: loaded, or refused (the certificate before stays)",
            "result",
            (LOADED, REFUSED),
        )


class _GuardMetrics:
    """Metrics of the placement guard: what it was asked, what it did, what came of it, and how long its certificate
    holds.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.placements = _labelled_counter(
            registry,
            "placement_guard_placements",
            "Placements of replicas that the API server asked about, by outcome",
            "outcome",
            (outcome.value for outcome in GuardOutcome),
        )
        self.observations = _labelled_counter(
            registry,
            "placement_guard_observations",
            "Placements that a watch has shown: confirmed, bypassed (not asked about, or answered too late) or tampered",
            "observation",
            (observation.value for observation in Observation),
        )
        self.duration = Histogram(
            f"{PREFIX}_placement_guard_duration_seconds",
            "Time from the API server's question to the answer",
            buckets=BUCKETS,
            registry=registry,
        )
        self.reviews = _labelled_counter(
            registry,
            "placement_guard_reviews",
            "Reviews that the API server asked for, by result: answered, idle (this process does not lead), "
            "failed (allowed as they were), refused (not readable)",
            "result",
            ("answered", "idle", "failed", "refused"),
        )
        self.certificate_expiry = Gauge(
            f"{PREFIX}_placement_guard_certificate_expiry_timestamp_seconds",
            "When the certificate that the placement guard shows expires; 0 without one",
            registry=registry,
        )


class Metrics:
    """This process's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = process_registry()
        self.filter_duration = Histogram(
            f"{PREFIX}_filter_duration_seconds",
            "Time from request decode to response sent",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._verdicts = _labelled_counter(
            self.registry,
            "verdicts",
            "Nodes judged by /filter, by reason",
            "reason",
            (reason.name.lower() for reason in Reason),
        )
        self._requests = _RequestMetrics(self.registry)
        self._gave_up = CounterMetric(
            f"{PREFIX}_packing_gave_up",
            "Searches, for a packing or for order safety, that ran out of their budget; the answer is then no",
            registry=self.registry,
        )
        self._unsafe_answers = _labelled_counter(
            self.registry,
            "unsafe_answers",
            "Pods that were sent to nodes of which some are not stale-safe, by the worst reason that applies",
            "reason",
            (reason.name.lower() for reason in UNSAFE),
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
        self._outcomes = _OutcomeCounters(self.registry)
        self._policy = _PolicyCounters(self.registry)
        self._guard = _GuardMetrics(self.registry)
        self._tls = _TlsMetrics(self.registry)
        for label in _BOOLEANS:
            self._scheduling_wait.labels(pod_scheduled=label)
            self._node_reservation.labels(replicas_scheduled=label)

    def count_decision(self, reasons: Iterable[Reason], gave_up: int) -> Counter[Reason]:
        """Counts one answer of /filter; returns how often each reason occurred."""
        counted = Counter(reasons)
        for reason, count in counted.items():
            self._verdicts.labels(reason=reason.name.lower()).inc(count)
        fits = any(reason.fits for reason in counted)
        self._requests.count("fits" if fits else "refused")
        if gave_up:
            self._gave_up.inc(gave_up)
        return counted

    def count_policy_refusals(self, nodes: int) -> None:
        """Counts nodes that a predicate of the policy refused, for which Longhorn's rules were not evaluated."""
        self._policy.refusals.inc(nodes)

    def count_policy_reload(self, result: str) -> None:
        """Counts one change of the policy file: ``loaded`` or ``refused``."""
        self._policy.reloads.labels(result=result).inc()

    def count_unsafe_answer(self, reasons: Collection[Reason]) -> None:
        """Counts one answer of /filter by its worst `UNSAFE` reason, if it has one."""
        if reasons:
            worst = Reason.ORDER_UNSAFE if Reason.ORDER_UNSAFE in reasons else Reason.STALE_UNSAFE
            self._unsafe_answers.labels(reason=worst.name.lower()).inc()

    def count_undecided(self) -> None:
        self._requests.count("error")

    def count_guarded_placement(self, outcome: str) -> None:
        """Counts one placement that the guard decided; `outcome` is the value of its `GuardOutcome`."""
        self._guard.placements.labels(outcome=outcome).inc()

    def count_guard_observation(self, observation: str) -> None:
        """Counts one placement that a watch has shown; `observation` is the value of its `Observation`."""
        self._guard.observations.labels(observation=observation).inc()

    def observe_guard_answer(self, seconds: float) -> None:
        self._guard.duration.observe(seconds)

    def guard_proven(self) -> Gauge:
        """Adds whether the placement guard is proven, which the event loop sets before each scrape."""
        return Gauge(
            f"{PREFIX}_placement_guard_proven",
            "1 while every placement was answered lately and is kept to the plan, 0 otherwise",
            registry=self.registry,
        )

    def heartbeat(self, node: str, *, leading: bool) -> None:
        self._heartbeat.labels(node=node).set(leading)

    def pod_scheduling_wait(self, seconds: float, *, scheduled: bool) -> None:
        self._scheduling_wait.labels(pod_scheduled=_BOOLEANS[scheduled]).observe(seconds)

    def node_reservation(self, seconds: float, *, listed: bool) -> None:
        self._node_reservation.labels(replicas_scheduled=_BOOLEANS[listed]).observe(seconds)

    def count_misplaced(self) -> None:
        """Counts one new volume that Longhorn placed on another node."""
        self._outcomes.misplacements.inc()

    def count_overbooked(self) -> None:
        self._outcomes.overbookings.inc()

    def count_nudge(self, result: str) -> None:
        """Counts one pod that was to be retried: ``patched``, ``gone`` or ``failed``."""
        self._outcomes.nudges.labels(result=result).inc()

    def count_would_refuse(self) -> None:
        """Counts one pod that would have been refused on every node."""
        self._outcomes.would_refuse.inc()

    def count_offer_end(self, kind: str) -> None:
        """Counts one offer that ended, by the value of its `OutcomeKind`."""
        self._outcomes.offers_ended.labels(became=kind).inc()

    def count_review(self, result: str) -> None:
        """Counts one review of a placement: ``answered``, ``idle``, ``failed`` or ``refused``."""
        self._guard.reviews.labels(result=result).inc()

    def guard_certificate(self, expires: float) -> None:
        """Sets when the placement guard's certificate expires, in seconds since 1970."""
        self._guard.certificate_expiry.set(expires)

    def tls_certificate(self, expires: float) -> None:
        """Sets when the serving certificate expires, in seconds since 1970."""
        self._tls.certificate_expiry.set(expires)

    def count_tls_reload(self, result: str) -> None:
        """Counts one change of the certificate files: ``loaded`` or ``refused``."""
        self._tls.reloads.labels(result=result).inc()

    def outstanding(self, read: Callable[[], Outstanding]) -> None:
        """Adds gauges of demand, offers, misplaced volumes, overbooked disks and waiting pods. `read` returns their
        values. It is called in another thread when Prometheus scrapes, and must change nothing.
        """
        self.registry.register(_OutstandingCollector(read))

    def capacity(self, read: Callable[[], ClusterState | None], *, with_disks: bool = True) -> None:
        """Adds the space of disks, nodes and StorageClasses. `read` returns the current state, None while another
        process reports it. It is called in another thread when Prometheus scrapes, and must change nothing. Without
        `with_disks` disks have no series.
        """
        self.registry.register(CapacityCollector(read, with_disks=with_disks))

    def node_losses(self, read: Callable[[], Mapping[str, NodeLossOutcome]]) -> None:
        """Adds whether each node can be lost. `read` is called in another thread when Prometheus scrapes."""
        self.registry.register(NodeLossCollector(read))

    def request_memory(self, budget: MemoryBudget) -> None:
        """Adds what requests hold of their memory budget, and how many were refused for it."""
        self.registry.register(_BudgetCollector(budget))

    def caches(self, statuses: Callable[[], Mapping[str, CacheStatus]], clock: Callable[[], float]) -> None:
        """Adds the status of each watch cache, read when Prometheus scrapes."""
        self.registry.register(CacheCollector(statuses, clock))

    def instrument(self, app: FastAPI) -> None:
        """Adds the HTTP metrics of every route."""
        instrumentator = Instrumentator(
            excluded_handlers=["/metrics", "/healthz", "/readyz"],
            registry=self.registry,
        )
        instrumentator.add(metrics.default(latency_lowr_buckets=BUCKETS, registry=self.registry))
        instrumentator.instrument(app)
