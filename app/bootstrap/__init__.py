"""The wiring: from a snapshot file and settings to an application. `live_wiring.py` does it for a live cluster."""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from fastapi_offline import FastAPIOffline

from app import DISTRIBUTION
from app.api import errors, extender, prioritize
from app.api import health as operation
from app.api.dependencies import AppState
from app.decisions.evaluator import Scheduling
from app.decisions.state_source import FixedView
from app.extender.metrics import Metrics
from app.extender.verbs import Verbs
from app.policy.file import PolicyFile
from app.policy.in_force import FixedState, PolicyInForce, PolicyVerbs
from app.settings import Enforcement, Settings
from scheduler_core.cluster.view import View
from scheduler_core.generic.cluster_state import State
from scheduler_core.model.snapshot import Snapshot


def create_app(
    snapshot: Snapshot, settings: Settings, now: datetime, generic: State | None = None, file: PolicyFile | None = None
) -> FastAPI:
    """The HTTP service over one snapshot, as it was at `now`.

    `generic` has what the rules of a policy file read of it; `file` is that file, which the caller keeps looking at.

    Raises:
        SettingError: a Longhorn setting in the snapshot cannot be read
    """
    scheduling = Scheduling(FixedView(View.of(snapshot, now)), settings.options)
    verbs, metrics = Verbs(scheduling), Metrics()
    policy = PolicyVerbs(verbs, scheduling, PolicyInForce(file, FixedState(generic or State())))
    if file is not None:
        file.tell(metrics.policy_reloaded)
    observes = settings.enforcement is Enforcement.OBSERVE
    return application(AppState(scheduling, verbs, metrics, settings.max_body, policy, observes=observes))


def application(state: AppState) -> FastAPI:
    """The routes around some services."""
    app = FastAPIOffline(
        title="Longhorn scheduler extender",
        version=version(DISTRIBUTION),
        description="Offers a pod only the nodes whose Longhorn disks can hold all of its volumes.",
    )
    app.state.extender = state
    app.include_router(extender.router)
    app.include_router(prioritize.router)
    app.include_router(operation.router)

    @app.get("/", include_in_schema=False)
    async def root() -> RedirectResponse:
        return RedirectResponse("/docs")

    errors.install(app)
    state.metrics.instrument(app)
    return app
