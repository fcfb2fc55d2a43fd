"""Wires the HTTP service for a live cluster: options become an application, and a lifecycle that runs next to it."""

import random
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from time import monotonic

from fastapi import FastAPI
from prometheus_client import Gauge

from app.api import app_state, placement_review
from app.bootstrap import application
from app.evaluator import Evaluator, no_contenders
from app.extender import certificates, node_loss_prediction
from app.extender.endpoint_publisher import EndpointPublisher, GuardEndpoint
from app.extender.guard import GuardContext, PlacementGuard, written_replicas
from app.extender.guard_certificate import CertificateOptions, GuardCertificate
from app.extender.leadership_lifecycle import NAME, ExtenderLifecycle, ExtenderParts, LeaderTask, LiveSettings
from app.extender.metrics import Metrics
from app.extender.nudger import Nudger, write_nudge
from app.extender.offer_store import OfferStore
from app.extender.offers import Offers
from app.extender.placement_monitor import Placements
from app.extender.status_page_results import StatusReporter, StatusSources
from app.extender.verbs import Reservations, Verbs
from app.extender.whole_node_reservation import NodeReservations
from app.kube.client import KubeClient
from app.kube.cluster_cache import ClusterCache
from app.kube.generic_cache import GenericCache
from app.kube.reflector import Timing
from app.kube.store import ConfigMapCache
from app.memory_budget import MemoryBudget
from app.policy import PolicyFile, PolicyInForce, load_plugins
from app.runtime.decision_thread import DecisionThread
from app.runtime.elector import Elector
from app.schemas.state import OutstandingState
from app.settings import LiveOptions, Reservation, Settings
from scheduler_core.decide.decision import Competing, Contenders
from scheduler_core.decide.extender_settings import GuardMode
from scheduler_core.decide.offered_nodes import offers_on_node
from scheduler_core.leadership import endpoint_slice
from scheduler_core.structs import Struct, replace

_TIMING = Timing(monotonic, random.uniform)
_now = partial(datetime.now, UTC)


class _Reservation(Struct, frozen=True):
    """How pods are kept from taking the same space."""

    reservations: Reservations
    tasks: tuple[LeaderTask, ...] = ()  # what works while this process leads
    outstanding: Callable[[], OutstandingState] = OutstandingState  # returns what /state shows of demand and offers
    store: OfferStore | None = None  # where offers are recorded for a successor
    contenders: Callable[[], Contenders] = no_contenders  # returns the demand and offers of other pods
    has_adopted: Callable[[], bool] = lambda: False  # returns whether this process makes the offers


class LiveExtender(Struct, frozen=True):
    """The extender of a live cluster, in which nothing runs before `ExtenderLifecycle.run`."""

    app: FastAPI  # what kube-scheduler calls
    guard_app: FastAPI  # what API servers call, with TLS
    guard_tls: Callable[[], ssl.SSLContext]  # returns what `guard_app` uses; its certificate comes later
    lifecycle: ExtenderLifecycle
    client: KubeClient
    tls: Callable[[], ssl.SSLContext] | None = None  # returns what `app` uses; None for plain HTTP


async def live_application(options: LiveOptions, settings: Settings, port: int) -> LiveExtender:
    """Returns the extender; callers reach it at `port`.

    Raises:
        ConnectError: there is no cluster to connect to
        CoreError: address or port are none that an EndpointSlice can hold
        PolicyFileError: the policy file cannot be used
        CertificateError: the certificate files cannot be used
    """
    connect = partial(KubeClient.connect, options.kubeconfig, options.context, memory=options.memory)
    file = PolicyFile(settings.policy, load_plugins(settings.plugins)) if settings.policy is not None else None
    elector = Elector(connect, options.identity, options.namespace, options.timing)
    return _Wiring(options, settings, await connect(), elector).extender(port, file)


class _Wiring:
    """The parts that the others share, and how these are made."""

    def __init__(self, options: LiveOptions, settings: Settings, client: KubeClient, elector: Elector) -> None:
        self._options = options
        self._settings = settings
        self._client = client
        self._elector = elector
        self._cache = ClusterCache(client, options.namespace, _TIMING, _now, options.stale_after)
        self._config_map = ConfigMapCache(client, options.namespace, NAME, _TIMING)
        self._live_settings = LiveSettings(self._cache, self._config_map, options.environment)
        self._evaluator = Evaluator(self._cache, settings.options, DecisionThread())
        self._metrics = Metrics()

    def extender(self, port: int, file: PolicyFile | None) -> LiveExtender:
        options = self._options
        settings = self._settings
        cache = self._cache
        metrics = self._metrics
        elector = self._elector
        reservation = self._reservation()
        generic = GenericCache(self._client, _TIMING, options.stale_after)
        policy = PolicyInForce(file, generic)
        metrics.caches(lambda: {**cache.statuses, **generic.statuses}, monotonic)
        metrics.capacity(lambda: cache.latest_state if elector.leading() else None, with_disks=settings.disk_metrics)
        if file is not None:
            file.subscribe(metrics.policy_reloads.count)
        files = certificates.CertificateFiles(settings.tls, metrics, _now) if settings.tls is not None else None
        service = endpoint_slice.EXTENDER if files is None else endpoint_slice.EXTENDER_WITH_TLS
        certificate = self._certificate()
        guard = self._placement_guard(reservation, certificate)
        parts = ExtenderParts(
            cache=cache,
            config_map=self._config_map,
            elector=elector,
            publisher=self._publisher(elector.leading, port, service),
            metrics=metrics,
            node_name=options.node_name,
            policy_problem=lambda: policy.problem,
            offer_store=reservation.store,
            guard=self._guard_endpoint(certificate, guard),
            background=[task.run for task in (generic if file is not None else None, file, files) if task is not None],
        )
        losses = node_loss_prediction.NodeLosses(self._evaluator, cache.state)
        metrics.node_losses(lambda: losses.latest)
        tasks = (*reservation.tasks, guard, certificate, losses)
        reservations = reservation.reservations
        lifecycle = ExtenderLifecycle(parts, self._live_settings, reservations, tasks, reservation.outstanding)
        verbs = Verbs(self._evaluator, policy, lifecycle.refusal, reservations, lifecycle.late_refusal)
        budget = MemoryBudget(settings.request_memory)
        metrics.request_memory(budget)
        status = None
        if settings.status_page:
            reporter = StatusReporter(self._evaluator, cache.state, reservation.contenders, options.namespace)
            status = StatusSources(reporter, losses, lambda: cache.statuses, options.identity)
        state = app_state.AppState(
            self._evaluator,
            verbs,
            metrics,
            settings.max_body,
            budget,
            lifecycle,
            lambda: self._live_settings().observes,
            node_losses=losses,
            status=status,
        )
        guard_state = placement_review.AdmissionState(
            guard, lifecycle.review_refusal, lifecycle.keeps_guard_connections, metrics, budget
        )
        app = application(state, partial(_prepare_scrape, cache, elector, guard, metrics.guard_proven()))
        tls = None if files is None else lambda: files.context
        guard_app = placement_review.guard_application(guard_state)
        return LiveExtender(app, guard_app, lambda: certificate.context, lifecycle, self._client, tls)

    def _guard_endpoint(self, certificate: GuardCertificate, guard: PlacementGuard) -> GuardEndpoint:
        port = self._options.guard_port
        leader = self._publisher(self._elector.leading, port, endpoint_slice.PLACEMENT_GUARD)
        # Any process that does not lead may take this port, and the leader empties it.
        standby = self._publisher(lambda: True, port, endpoint_slice.PLACEMENT_GUARD_STANDBY)
        publishers = (leader, standby) if leader is not None and standby is not None else None
        problem = self._options.guard_problem
        return GuardEndpoint(certificate, publishers, self._elector.leading, lambda: guard.activity, problem)

    def _placement_guard(self, reservation: _Reservation, certificate: GuardCertificate) -> PlacementGuard:
        """Returns what decides about Longhorn's placements, whose health `--packing auto` follows from then on."""
        cache = self._cache
        evaluator = self._evaluator

        async def recorded(node: str) -> Contenders:
            contenders = reservation.contenders()
            if reservation.store is None or not isinstance(contenders, Competing):
                return contenders
            offers = await reservation.store.read_offers()
            view = cache.state().view
            return replace(contenders, ledger=offers_on_node(offers, node, view, evaluator.options, monotonic()))

        context = GuardContext(
            settings=self._live_settings,
            leads=reservation.has_adopted,
            contenders=reservation.contenders,
            recorded=recorded,
            written=partial(written_replicas, self._client, self._options.namespace),
            obstacle=lambda: certificate.problem,
        )
        guard = PlacementGuard(cache, evaluator, context, self._metrics, monotonic)
        cache.subscribe("replicas", guard.note_delivery)
        evaluator.follow_guard(lambda: guard.proven, lambda: guard.allowances)
        return guard

    def _certificate(self) -> GuardCertificate:
        options = CertificateOptions(
            self._options.namespace,
            wanted=lambda: self._live_settings().placement_guard is not GuardMode.OFF,
            leading=self._elector.leading,
            now=_now,
        )
        return GuardCertificate(self._client, options, self._metrics)

    def _publisher(
        self, allowed: Callable[[], bool], port: int, service: endpoint_slice.LeaderService
    ) -> EndpointPublisher | None:
        options = self._options
        if not options.advertise or not port:
            return None
        endpoint = endpoint_slice.Endpoint.at(options.advertise, port, options.node_name)
        return EndpointPublisher(self._client, options.namespace, endpoint, allowed, service)

    def _reservation(self) -> _Reservation:
        cache = self._cache
        evaluator = self._evaluator
        metrics = self._metrics
        if self._options.reservation is Reservation.NODE:
            return _Reservation(NodeReservations(cache, evaluator, self._live_settings, metrics, monotonic))
        store = OfferStore(self._client, self._options.namespace, self._elector, lambda: cache.versions, monotonic)
        offers = Offers(cache, evaluator, self._live_settings, metrics, monotonic, store=store)
        placements = Placements(cache, evaluator, offers.contenders, metrics, monotonic)
        cache.subscribe("replicas", placements.note_delivery)
        patch = partial(write_nudge, self._client)
        nudger = Nudger(cache, evaluator, offers.contenders, patch, metrics.nudges.count, clock=monotonic, now=_now)
        nudges = self._options.nudge
        offers.subscribe(nudger if nudges else None, placements)
        metrics.outstanding(
            lambda: placements.outstanding(
                offers=offers.outstanding, waiting=nudger.remembered, oldest_wait=nudger.oldest_wait
            )
        )

        def outstanding() -> OutstandingState:
            return OutstandingState(
                cache.state().demand,
                offers.observed_ledger(),
                placements.report,
                placements.overbookings,
                nudger.waiting,
            )

        tasks = (placements, nudger, store) if nudges else (placements, store)
        return _Reservation(offers, tasks, outstanding, store, offers.contenders, lambda: offers.adopted)


def _prepare_scrape(cache: ClusterCache, elector: Elector, guard: PlacementGuard, proven: Gauge) -> None:
    # Only the event loop may read what these depend on. A process that does not lead has no metrics of disks.
    proven.set(guard.proven)
    if elector.leading() and cache.has_synced:
        cache.state()
