"""Wires the HTTP service over a snapshot file. `app/bootstrap/live.py` does so for a live cluster."""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import version

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.responses import RedirectResponse
from fastapi_offline import FastAPIOffline

from app import DISTRIBUTION, memory_budget
from app.api import app_state, errors, extender
from app.api.page import views
from app.api.page.rendering import compile_templates
from app.evaluator import Evaluator, SnapshotState
from app.extender.certificates import CertificateFiles
from app.extender.metrics import Metrics
from app.extender.node_loss_prediction import NodeLosses
from app.extender.status_page_results import StatusReporter, StatusSources
from app.extender.verbs import Verbs, WithoutReservations
from app.policy import PolicyFile, PolicyInForce, SnapshotGenericState
from app.runtime import probes
from app.runtime.decision_thread import DecisionRunner, DecisionThread
from app.runtime.server import HEADERS
from app.settings import Settings
from scheduler_core.cluster.view import View
from scheduler_core.decide import decision, extender_settings
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.predict.predicted_cluster import persistent_state

_DOCS_FILES = "/static-offline-docs"


def create_app(  # noqa: PLR0913 # what is served, and by what
    snapshot: Snapshot,
    settings: Settings,
    now: datetime,
    generic: GenericClusterState | None = None,
    file: PolicyFile | None = None,
    *,
    runner: DecisionRunner | None = None,
) -> FastAPI:
    """Returns the HTTP service over one snapshot, as it was at `now`. Raises a SettingError if a Longhorn setting in
    the snapshot cannot be read.

    Args:
        snapshot: the cluster
        settings: of the service
        now: the time that decisions assume
        generic: the objects of the snapshot that the rules of a policy file read
        file: the policy file, which the caller keeps reading again
        runner: where decisions run; by default a thread of their own
    """
    source = SnapshotState(View.of(snapshot, now))
    evaluator = Evaluator(source, settings.options, runner or DecisionThread())
    contenders = decision.NO_CONTENDERS if settings.alone else decision.Competing.without_offers(source.state())
    metrics = Metrics()
    metrics.capacity(source.state, with_disks=settings.disk_metrics)
    policy = PolicyInForce(file, SnapshotGenericState(generic or GenericClusterState()))
    if file is not None:
        file.subscribe(metrics.policy_reloads.count)
    verbs = Verbs(evaluator, policy, decider=WithoutReservations(evaluator, contenders))
    observes = settings.enforcement is extender_settings.Enforcement.OBSERVE
    budget = memory_budget.MemoryBudget(settings.request_memory)
    metrics.request_memory(budget)
    persistent = cache(lambda: persistent_state(snapshot, now))
    losses = NodeLosses(evaluator, persistent)
    metrics.node_losses(lambda: losses.latest)
    reporter = StatusReporter(evaluator, persistent, lambda: contenders)
    state = app_state.AppState(
        evaluator,
        verbs,
        metrics,
        settings.max_body,
        budget,
        observes=lambda: observes,
        node_losses=losses,
        status=StatusSources(reporter, losses) if settings.status_page else None,
    )
    return application(state)


def application(state: app_state.AppState, before_scrape: Callable[[], None] | None = None) -> FastAPI:
    """Returns the application with all routes; `before_scrape` is called in the event loop before the metrics are
    computed in another thread.
    """
    app = FastAPIOffline(
        docs_url=None,
        redoc_url=None,
        static_url=_DOCS_FILES,
        title="Longhorn scheduler extender",
        version=version(DISTRIBUTION),
        description="Offers a pod only the nodes whose Longhorn disks can hold all of its volumes.",
    )
    _install_docs(app)
    app.state.services = state
    app.include_router(extender.router)
    probes.install_probes(app, lambda: extender.readiness(state), probes.CacheHealth)
    probes.install_metrics(app, state.metrics.registry, in_thread=True, prepare=before_scrape)
    app.include_router(extender.operation_router)

    if state.status is None:

        @app.get("/", include_in_schema=False)
        async def root() -> RedirectResponse:
            return RedirectResponse("/docs")

    else:
        app.include_router(views.router)
        compile_templates()
    errors.install_error_handlers(app)
    state.metrics.instrument(app)
    return app


def _install_docs(app: FastAPI) -> None:
    """Adds /docs and /redoc, each of which may run its own script alone."""
    icon = f"{_DOCS_FILES}/favicon.png"
    pages = {
        "/docs": get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=app.title,
            swagger_js_url=f"{_DOCS_FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{_DOCS_FILES}/swagger-ui.css",
            swagger_favicon_url=icon,
        ),
        "/redoc": get_redoc_html(
            openapi_url="/openapi.json",
            title=app.title,
            redoc_js_url=f"{_DOCS_FILES}/redoc.standalone.js",
            redoc_favicon_url=icon,
            with_google_fonts=False,
        ),
    }
    for path, page in pages.items():
        script = bytes(page.body).partition(b"<script>")[2].partition(b"</script>")[0]
        digest = b64encode(sha256(script).digest()).decode()
        policy = HEADERS["Content-Security-Policy"].replace("script-src 'self'", f"script-src 'self' 'sha256-{digest}'")
        # Both write styles into the page, and have icons as data; ReDoc searches in a worker.
        policy = policy.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
        policy = policy.replace("img-src 'self'", "img-src 'self' data:; worker-src blob:")
        page.headers["Content-Security-Policy"] = policy
        app.add_api_route(path, _static_page(page), include_in_schema=False)


def _static_page(page: Response) -> Callable[[], Awaitable[Response]]:
    async def static_page() -> Response:
        return page

    return static_page


def plain_probes(app: FastAPI) -> FastAPI:
    """Returns an application that says only whether an `application` is well, for a kubelet, which has no certificate,
    so any other caller may ask it as well.
    """
    state: app_state.AppState = app.state.services

    def readiness() -> probes.Health:
        try:
            extender.readiness(state)
        except probes.UnavailableError:
            raise probes.UnavailableError("not ready") from None
        return probes.Health(status="ok")

    return probes.probe_application(readiness, None)


class SnapshotService:
    """The service that runs next to the HTTP server over a snapshot. It reads the policy file and the certificate files
    again whenever they change, and predicts which nodes can be lost.
    """

    def __init__(
        self, file: PolicyFile | None, certificate: CertificateFiles | None, losses: NodeLosses | None = None
    ) -> None:
        self._tasks = [task for task in (file, certificate, losses) if task is not None]
        if losses is not None:
            losses.adopt()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.Event().wait())
            for task in self._tasks:
                tasks.create_task(task.run())

    async def drain(self) -> None:
        """Does nothing: nothing is reserved over a snapshot."""

    def log_failure(self, error: BaseException) -> None:
        """Raises the error: only a bug ends the service, not a policy file that cannot be read."""
        raise error

    def log_drain_failure(self, error: BaseException) -> None:
        """Logs nothing: `drain` cannot fail."""
