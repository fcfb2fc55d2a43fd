"""Metrics of the extender, of which four have the names and labels of Longhorn's scheduler-extender proposal."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import prometheus_client
from fastapi import FastAPI
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_fastapi_instrumentator import Instrumentator, metrics

from app import memory_budget, settings
from app.extender.node_loss_prediction import capacity_metrics, node_loss_metrics
from app.runtime import probes
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.guard.placement_guard import GuardOutcome, Observation
from scheduler_core.model.verdict import UNSAFE, Reason
from scheduler_core.offers.outstanding_offer import OutcomeKind
from scheduler_core.predict.node_loss import NodeLossOutcome
from scheduler_core.structs import Struct
from scheduler_core.volumes.outstanding_demand import DemandSource

if TYPE_CHECKING:  # the Kubernetes client takes a second to import; a snapshot file needs none
    from app.kube.reflector import CacheStatus

# From what a small cluster takes to bind a pod, to the longest time-out an administrator may set.
WAIT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0)
_BOOLEANS = ("false", "true")
_SOURCES = tuple(source.name.lower() for source in DemandSource)
# A narrowed offer has not ended.
_OFFER_ENDS = tuple(kind.value for kind in OutcomeKind if kind is not OutcomeKind.NARROWED)


class Outstanding(Struct, frozen=True):
    """Numbers of what is outstanding at one time, as `_OUTSTANDING` says."""

    demands: Mapping[str, int]  # by the lower-case name of their `DemandSource`; a missing name counts as 0
    offers: int
    hopeless_demands: int
    misplaced_volumes: int
    overbooked_disks: int
    stuck_pods: int
    waiting_pods: int
    oldest_waiting_pod_seconds: float


_OUTSTANDING = {
    "offers": "Pods with an outstanding offer: kube-scheduler has an answer, and no decision was observed yet",
    "hopeless_demands": "Demands without room on their node in addition to older ones",
    "misplaced_volumes": "Volumes that Longhorn placed elsewhere when they were fresh, and that are not on their pod's node yet",
    "overbooked_disks": "Disks that exceed Longhorn's limit because volumes were placed there at once",
    "stuck_pods": "Bound pods whose volumes have not been on their node for a minute",
    "waiting_pods": "Pods refused on every node that are retried as soon as they fit",
    "oldest_waiting_pod_seconds": "Time since the first refusal of the pod that waits longest; 0 without one",
}


def _outstanding_metrics(now: Outstanding) -> Iterable[Metric]:
    text = "Volumes that will take room on a node and have no replica there yet, by what ties them to it"
    yield probes.gauge_family(
        "demands", text, ["source"], (([source], now.demands.get(source, 0)) for source in _SOURCES)
    )
    for name, text in _OUTSTANDING.items():
        yield GaugeMetricFamily(f"{probes.PREFIX}_{name}", text, value=getattr(now, name))


def _budget_metrics(budget: memory_budget.MemoryBudget) -> Iterable[Metric]:
    text = "Memory that requests hold, as charged"
    yield GaugeMetricFamily(f"{probes.PREFIX}_request_memory_bytes", text, value=budget.used)
    text = "Memory that all requests together may hold"
    yield GaugeMetricFamily(f"{probes.PREFIX}_request_memory_limit_bytes", text, value=budget.total)
    text = "Requests that were refused, or gave way to others, because requests together may not hold more memory"
    yield CounterMetricFamily(f"{probes.PREFIX}_requests_over_budget", text, value=budget.refusals)


class Metrics:
    """This process's metrics, in a registry of their own; what has happened is counted by its attribute."""

    def __init__(self) -> None:
        self.registry = probes.process_registry()
        self._add_answers()
        self._add_outcomes()
        self._add_guard()
        self.policy_refusals = self._counter(
            "policy_refusals", "Nodes that a predicate of the policy file refused in /filter"
        )
        self.policy_reloads = self._labelled_counter(
            "policy_reloads",
            "Other contents of the policy file, by result: loaded, or refused (the policy before stays)",
            result=(settings.LOADED, settings.REFUSED),
        )
        self.tls_reloads = self._labelled_counter(
            "tls_reloads",
            "Changes of the certificate files, by result: loaded, or refused (the certificate before stays)",
            result=(settings.LOADED, settings.REFUSED),
        )
        self.tls_certificate_expiry = self._gauge(
            "tls_certificate_expiry_timestamp_seconds",
            "When the certificate that kube-scheduler is shown expires; 0 without TLS",
        )
        self.heartbeat = self._gauge(
            "heartbeat", "1 while this process is the leader and answers, 0 otherwise; node is where it runs", "node"
        )

    def _add_answers(self) -> None:
        self.filter_duration = self._histogram(
            "filter_duration_seconds", "Time from request decode to response sent", probes.BUCKETS
        )
        self._verdicts = self._labelled_counter(
            "verdicts", "Nodes judged by /filter, by reason", reason=[reason.name.lower() for reason in Reason]
        )
        self._results = self._labelled_counter(
            "filter_requests",
            "Pods asked about, by result: fits (on some node), refused (on all), error (nothing decided)",
            result=("fits", "refused", "error"),
        )
        self._last_request = self._gauge(
            "last_filter_request_timestamp_seconds", "When kube-scheduler was last answered about a pod; 0 if never"
        )
        self._gave_up = self._counter(
            "packing_gave_up",
            "Searches, for a packing or for order safety, that ran out of their budget; the answer is then no",
        )
        self._unsafe_answers = self._labelled_counter(
            "unsafe_answers",
            "Pods that were sent to nodes of which some are not stale-safe, by the worst reason that applies",
            reason=[reason.name.lower() for reason in UNSAFE],
        )
        self.would_refuse = self._counter(
            "would_refuse", "Pods that would have been refused on every node, were refusals not only observed"
        )

    def _add_outcomes(self) -> None:
        self.misplacements = self._counter(
            "misplacements",
            "Fresh volumes that Longhorn placed on another node than their pod's, once per pod and volume",
        )
        self.overbookings = self._counter(
            "overbookings",
            "Disks that exceeded Longhorn's limit because volumes were placed there at once, each time they began to",
        )
        self.nudges = self._labelled_counter(
            "nudges",
            "Refused pods that fit now and were to be retried at once, by result: patched, gone (the pod is), failed",
            result=("patched", "gone", "failed"),
        )
        self.offers_ended = self._labelled_counter("offers_ended", "Offers that ended, by outcome", became=_OFFER_ENDS)
        self._scheduling_wait = self._histogram(
            "pod_scheduling_wait_duration_seconds",
            "Time waiting for pod spec.nodeName to be populated",
            WAIT_BUCKETS,
            "pod_scheduled",
        )
        self._node_reservation = self._histogram(
            "node_reservation_duration_seconds",
            "Time waiting for replicas to appear as scheduled on the reserved node",
            WAIT_BUCKETS,
            "replicas_scheduled",
        )
        for value in _BOOLEANS:
            self._scheduling_wait.labels(value)
            self._node_reservation.labels(value)

    def _add_guard(self) -> None:
        self.guarded_placements = self._labelled_counter(
            "placement_guard_placements",
            "Placements of replicas that the API server asked about, by outcome",
            outcome=[outcome.value for outcome in GuardOutcome],
        )
        self.guard_observations = self._labelled_counter(
            "placement_guard_observations",
            "Placements that a watch has shown: confirmed, bypassed (not asked about, or answered too late) or tampered",
            observation=[observation.value for observation in Observation],
        )
        self.guard_duration = self._histogram(
            "placement_guard_duration_seconds", "Time from the API server's question to the answer", probes.BUCKETS
        )
        self.guard_reviews = self._labelled_counter(
            "placement_guard_reviews",
            "Reviews that the API server asked for, by result: answered, idle (this process does not lead), "
            "failed (allowed as they were), refused (not readable)",
            result=("answered", "idle", "failed", "refused"),
        )
        self.guard_certificate_expiry = self._gauge(
            "placement_guard_certificate_expiry_timestamp_seconds",
            "When the certificate that the placement guard shows expires; 0 without one",
        )

    def _counter(self, name: str, text: str) -> prometheus_client.Counter:
        return prometheus_client.Counter(f"{probes.PREFIX}_{name}", text, registry=self.registry)

    def _labelled_counter(self, name: str, text: str, **values: Collection[str]) -> probes.LabelledCounter:
        ((label, label_values),) = values.items()
        return probes.LabelledCounter(f"{probes.PREFIX}_{name}", text, label, label_values, self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> prometheus_client.Gauge:
        return prometheus_client.Gauge(f"{probes.PREFIX}_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> prometheus_client.Histogram:
        return prometheus_client.Histogram(
            f"{probes.PREFIX}_{name}", text, labels, buckets=buckets, registry=self.registry
        )

    def _read(self, read: Callable[[], Iterable[Metric]]) -> None:
        self.registry.register(probes.Reading(read))

    def count_decision(self, reasons: Iterable[Reason], gave_up: int) -> Counter[Reason]:
        """Counts one answer of /filter; returns how often each reason occurred."""
        counted = Counter(reasons)
        for reason, count in counted.items():
            self._verdicts.count(reason.name.lower(), count)
        self.count_request("fits" if any(reason.fits for reason in counted) else "refused")
        if gave_up:
            self._gave_up.inc(gave_up)
        return counted

    def count_request(self, result: str) -> None:
        self._results.count(result)
        self._last_request.set_to_current_time()

    def count_unsafe_answer(self, reasons: Collection[Reason]) -> None:
        """Counts one answer of /filter by its worst `UNSAFE` reason, if it has one."""
        if reasons:
            worst = Reason.ORDER_UNSAFE if Reason.ORDER_UNSAFE in reasons else Reason.STALE_UNSAFE
            self._unsafe_answers.count(worst.name.lower())

    def guard_proven(self) -> prometheus_client.Gauge:
        """Adds whether the placement guard is proven, which the event loop sets before each scrape."""
        text = "1 while every placement was answered lately and is kept to the plan, 0 otherwise"
        return self._gauge("placement_guard_proven", text)

    def pod_scheduling_wait(self, seconds: float, *, scheduled: bool) -> None:
        self._scheduling_wait.labels(_BOOLEANS[scheduled]).observe(seconds)

    def node_reservation(self, seconds: float, *, listed: bool) -> None:
        self._node_reservation.labels(_BOOLEANS[listed]).observe(seconds)

    def outstanding(self, read: Callable[[], Outstanding]) -> None:
        """Adds gauges of demand, offers, misplaced volumes, overbooked disks and waiting pods. `read` is called in another
        thread when Prometheus scrapes, as are those of the other methods, and must change nothing.
        """
        self._read(lambda: _outstanding_metrics(read()))

    def capacity(self, read: Callable[[], ClusterState | None], *, with_disks: bool = True) -> None:
        """Adds the space of disks, nodes and StorageClasses. `read` returns the current state, None while another
        process reports it. Without `with_disks` disks have no series.
        """
        self._read(lambda: capacity_metrics(read(), with_disks=with_disks))

    def node_losses(self, read: Callable[[], Mapping[str, NodeLossOutcome]]) -> None:
        self._read(lambda: node_loss_metrics(read()))

    def request_memory(self, budget: memory_budget.MemoryBudget) -> None:
        self._read(lambda: _budget_metrics(budget))

    def caches(self, statuses: "Callable[[], Mapping[str, CacheStatus]]", clock: Callable[[], float]) -> None:
        self._read(lambda: probes.cache_metrics(statuses(), clock()))

    def instrument(self, app: FastAPI) -> None:
        instrumentator = Instrumentator(excluded_handlers=["/metrics", "/healthz", "/readyz"], registry=self.registry)
        instrumentator.add(metrics.default(latency_lowr_buckets=probes.BUCKETS, registry=self.registry))
        instrumentator.instrument(app)
