"""The wiring for a live cluster: from options to an application, and the service that keeps it current."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

from fastapi import FastAPI

from app.api.dependencies import AppState
from app.bootstrap import application
from app.decisions.evaluator import Scheduling
from app.extender.endpoint_publisher import Publisher
from app.extender.lifecycle import NAME, Companion, Live, LiveSettings, Parts
from app.extender.metrics import Metrics
from app.extender.node_reservation import NodeReservations
from app.extender.nudge_patch import PodNudge
from app.extender.nudger import Nudger
from app.extender.offers import Offers
from app.extender.placements import Placements
from app.extender.verbs import Reservations, Verbs
from app.kube.client import KubeClient
from app.kube.cluster_cache import ClusterCache
from app.kube.config_map_cache import ConfigMapCache
from app.kube.generic_cache import GenericCache
from app.kube.reflector import Timing
from app.policy.file import PolicyFile
from app.policy.in_force import PolicyInForce, PolicyVerbs
from app.runtime.elector import Elector
from app.schemas.explain import Unsettled
from app.settings import Enforcement, LiveOptions, Reservation, Settings


async def live_application(options: LiveOptions, settings: Settings, port: int) -> tuple[FastAPI, Live, KubeClient]:
    """The HTTP service beside a cluster, reached at `port`; nothing runs before `Live.run`.

    Raises:
        ConnectError: there is no cluster to talk to
        PolicyFileError: the policy file cannot be used
    """

    async def connect() -> KubeClient:
        return await KubeClient.connect(options.kubeconfig, options.context)

    file = PolicyFile(settings.policy) if settings.policy is not None else None
    client = await connect()
    timing = Timing(monotonic, random.uniform)
    cache = ClusterCache(client, options.namespace, timing, lambda: datetime.now(UTC), options.stale_after)
    config_map = ConfigMapCache(client, options.namespace, NAME, timing)
    metrics = Metrics()
    scheduling = Scheduling(cache, settings.options)
    live_settings = LiveSettings(cache, config_map, options.environment)
    kept = _kept(options, settings, client, cache, scheduling, live_settings, metrics)
    elector = Elector(connect, options.identity, options.namespace, options.timing)
    publisher = (
        Publisher(client, options.namespace, options.advertise, port, options.node_name, leading=elector.leading)
        if options.advertise
        else None
    )
    generic = GenericCache(client, timing, options.stale_after)
    in_force = PolicyInForce(file, generic)
    metrics.caches(lambda: {**cache.standings, **generic.standings}, monotonic)
    also: list[Companion] = [generic, file] if file else []
    if file is not None:
        file.tell(metrics.policy_reloaded)
    parts = Parts(
        cache=cache,
        config_map=config_map,
        elector=elector,
        publisher=publisher,
        metrics=metrics,
        environment=options.environment,
        node_name=options.node_name,
        policy_problem=lambda: in_force.problem,
    )
    live = Live(parts, live_settings, kept.reservations, (*kept.companions, *also), kept.unsettled)
    verbs = Verbs(scheduling, live.refusal, kept.reservations, live.late_refusal)
    observes = settings.enforcement is Enforcement.OBSERVE
    policy = PolicyVerbs(verbs, scheduling, in_force)
    state = AppState(scheduling, verbs, metrics, settings.max_body, policy, live, observes)
    return application(state), live, client


@dataclass(frozen=True, slots=True)
class _Kept:
    """What keeps pods from taking the same room, what goes on beside it, and what /state says of it."""

    reservations: Reservations
    companions: tuple[Companion, ...] = ()
    unsettled: Callable[[], Unsettled] = Unsettled


def _kept(  # noqa: PLR0913, PLR0917 # the parts it connects
    options: LiveOptions,
    settings: Settings,
    client: KubeClient,
    cache: ClusterCache,
    scheduling: Scheduling,
    live_settings: LiveSettings,
    metrics: Metrics,
) -> _Kept:
    if options.reservation is Reservation.NODE:
        return _Kept(NodeReservations(cache, scheduling, live_settings, metrics, monotonic))
    offers = Offers(cache, scheduling, live_settings, metrics, monotonic)
    placements = Placements(cache, scheduling, offers.others, metrics, monotonic)
    patch = PodNudge(client)
    nudger = Nudger(cache, scheduling, offers.others, patch, metrics, clock=monotonic, now=lambda: datetime.now(UTC))
    nudges = options.nudge and settings.enforcement is Enforcement.ENFORCE  # who only observes refuses nobody
    offers.tell(nudger if nudges else None, placements)
    companions: list[Companion] = [placements, nudger] if nudges else [placements]
    metrics.outstanding(lambda: placements.outstanding(offers=offers.outstanding, waiting=nudger.remembered))
    return _Kept(
        offers,
        tuple(companions),
        lambda: Unsettled(cache.demands(), offers.ledger, placements.report, nudger.waiting),
    )
