"""The wiring for a live cluster: from options to an application, and the service that keeps it current."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from time import monotonic

from fastapi import FastAPI

from app.api.state import AppState
from app.bootstrap import application
from app.kube.caches import ClusterCache
from app.kube.client import KubeClient
from app.kube.config_map import ConfigMapCache
from app.kube.reflector import Timing
from app.metrics import Metrics
from app.services.leadership import Elector
from app.services.live import NAME, Live, LiveSettings, Parts
from app.services.offers import Offers
from app.services.publishing import Publisher
from app.services.reservation import NodeReservations
from app.services.scheduling import Scheduling
from app.services.verbs import Reservations, Verbs
from app.settings import LiveOptions, Reservation, Settings


async def live_application(options: LiveOptions, settings: Settings, port: int) -> tuple[FastAPI, Live, KubeClient]:
    """The HTTP service beside a cluster, reached at `port`; nothing runs before `Live.run`.

    Raises:
        ConnectError: there is no cluster to talk to
    """

    async def connect() -> KubeClient:
        return await KubeClient.connect(options.kubeconfig, options.context)

    client = await connect()
    timing = Timing(monotonic, random.uniform)
    cache = ClusterCache(client, options.namespace, timing, lambda: datetime.now(UTC), options.stale_after)
    config_map = ConfigMapCache(client, options.namespace, NAME, timing)
    metrics = Metrics()
    metrics.caches(lambda: cache.standings, monotonic)
    scheduling = Scheduling(cache, settings.options)
    live_settings = LiveSettings(cache, config_map, options.environment)
    kind: type[NodeReservations | Offers] = Offers if options.reservation is Reservation.CAPACITY else NodeReservations
    reservations: Reservations = kind(cache, scheduling, live_settings, metrics, monotonic)
    elector = Elector(connect, options.identity, options.namespace, options.timing)
    publisher = (
        Publisher(client, options.namespace, options.advertise, port, options.node_name, leading=elector.leading)
        if options.advertise
        else None
    )
    parts = Parts(
        cache=cache,
        config_map=config_map,
        elector=elector,
        publisher=publisher,
        metrics=metrics,
        environment=options.environment,
        node_name=options.node_name,
    )
    live = Live(parts, live_settings, reservations)
    verbs = Verbs(scheduling, live.refusal, reservations, live.late_refusal)
    return application(AppState(scheduling, verbs, metrics, settings.max_body, live)), live, client
