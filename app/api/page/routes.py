"""GET /, /pods, /nodes, /decision-log and /assets: pages for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from app.api.dependencies import AppState, RequestLease, state_of
from app.api.page.pod_view import pod_view
from app.api.page.rendering import asset_response, page_response, render
from app.api.page.views import (
    Context,
    Site,
    absent,
    decision_list,
    drain_view,
    node_view,
    not_ready,
    overview,
    page_query,
    waiting_list,
)
from app.api.state import readiness
from app.runtime.memory_budget import Lease
from app.runtime.probes import UnavailableError

# People find the pages by their links; they are no part of the API.
router = APIRouter(include_in_schema=False)


@router.get("/")
async def cluster_page(request: Request, lease: RequestLease) -> Response:
    """The cluster: tiles, pods that wait, nodes and disks."""
    query = page_query(request)
    return await _answer(request, lease, "overview.html", lambda site: overview(site, query))


@router.get("/pods")
async def waiting_page(request: Request, lease: RequestLease) -> Response:
    """The pods that wait."""
    query = page_query(request)
    return await _answer(request, lease, "pods.html", lambda site: waiting_list(site, query))


@router.get("/pods/{namespace}/{name}")
async def pod_page(request: Request, lease: RequestLease, namespace: str, name: str) -> Response:
    """Why a pod waits, node by node."""
    query = page_query(request)
    return await _answer(request, lease, "pod.html", lambda site: pod_view(site, (namespace, name), query))


@router.get("/nodes/{name}")
async def node_page(request: Request, lease: RequestLease, name: str) -> Response:
    """A node with its disks."""
    page_query(request)
    return await _answer(request, lease, "node.html", lambda site: node_view(site, name))


@router.get("/nodes/{name}/drain")
async def drain_page(request: Request, lease: RequestLease, name: str) -> Response:
    """What the drain of a node leads to."""
    page_query(request)
    return await _answer(request, lease, "drain.html", lambda site: drain_view(site, name))


@router.get("/decision-log")
async def decision_page(request: Request, lease: RequestLease) -> Response:
    """The latest decisions."""
    query = page_query(request)
    return await _answer(request, lease, "decisions.html", lambda site: decision_list(site, query))


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    """A file that pages use."""
    response = asset_response(name)
    if response is None:
        raise HTTPException(404)
    return response


async def _answer(
    request: Request, lease: Lease, template: str, view: Callable[[Site], Awaitable[Context | None]]
) -> Response:
    """Returns a page: what `view` returns, or why there is nothing."""
    state = state_of(request, AppState)
    status = 200
    site = Site.of(state)
    try:
        readiness(state)
        context = await view(site)
    except UnavailableError as error:
        status = 503
        template = "unavailable.html"
        context = not_ready(site, str(error))
    if context is None:
        status = 404
        template = "absent.html"
        context = absent(site, request.url.path)
    page = await site.sources.reporter.run(partial(render, template, context))
    lease.charge(len(page))
    return page_response(page, status)
