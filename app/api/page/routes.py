"""GET /, /pods, /nodes, /decision-log and /assets: pages for people. The page of a pod shows why it waits, by node, the
closest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from msgspec import Struct
from starlette.exceptions import HTTPException

from app.api.dependencies import AppState, RequestLease, state_of
from app.api.extender import readiness
from app.api.page import views
from app.api.page.rendering import asset_response, render
from app.extender.status_reporter import ExplainedDecision
from app.memory import Lease
from app.runtime.probes import UnavailableError
from app.schemas.decision import NodeAnswer, explain_answer
from scheduler_core.decide.decision import DecisionQuery
from scheduler_core.errors import ResolutionError
from scheduler_core.model.kube import Pod
from scheduler_core.monitor.node_rows import RowPage, page_of

# How long a page waits for a search of remedies.
_REMEDY_SECONDS: Final = 0.25
_MAX_DECISIONS: Final = 10
_MAX_REASONS: Final = 10


class CandidateLine(Struct, frozen=True):
    """What is said about one node."""

    name: str
    fits: bool
    reason: str
    missing: int
    detail: str
    longhorn: bool  # whether there is a page about the node


async def pod_view(site: views.Site, key: tuple[str, str], query: views.PageQuery) -> views.Context | None:
    """Returns why a pod waits or fits, None if no pod with claims has this name."""
    pod = site.sources.reporter.state.view.snapshot.pods.get(key)
    if pod is None or not pod.volumes:
        return None
    decisions = site.state.decisions.page(DecisionQuery(limit=_MAX_DECISIONS, namespace=key[0], pod=key[1]))
    context = {
        **views.frame(site, pod.key, "/pods"),
        "pod": pod,
        "query": query,
        "since": views.waiting_since(site).get(pod.uid),
        "decisions": decisions.entries,
        "looks_for_remedies": False,
        "remedies": None,
        "error": "",
    }
    try:
        details = await _decision(site, pod, query)
    except ResolutionError as error:
        nothing = {"fitting": 0, "nodes": 0, "counts": [], "volumes": [], "skipped": [], "lines": []}
        return {**context, **nothing, "error": str(error), "page": page_of([], 1)}
    if details["fitting"] or pod.node_name:
        return {**context, **details}
    (remedies,) = await site.sources.reporter.remedies([pod], _REMEDY_SECONDS)
    refresh = views.SOON_SECONDS if remedies is None else views.REFRESH_SECONDS
    return {**context, **details, "looks_for_remedies": True, "remedies": remedies, "refresh": refresh}


async def _decision(site: views.Site, pod: Pod, query: views.PageQuery) -> dict[str, Any]:
    """Returns the decision with the nodes of one page explained."""
    pages: list[RowPage[str]] = []

    def select(texts: Mapping[str, str]) -> Sequence[str]:
        words = query.text.casefold().split()
        names = [name for name, text in texts.items() if all(word in f"{name} {text}".casefold() for word in words)]
        pages.append(page_of(names, query.page))
        return pages[0].rows

    result = await site.sources.reporter.explain(pod, select)
    answer = await site.sources.reporter.run(partial(explain_answer, pod, result.explanation))
    reasons = Counter(result.texts.values())
    fitting = len(result.decision.fitting_nodes)
    fits = {reason.text for reason in result.decision.reasons if reason.fits}
    return {
        "fitting": fitting,
        "nodes": len(result.texts),
        "counts": [(text, number) for text, number in reasons.most_common() if text not in fits][:_MAX_REASONS],
        "volumes": answer.volumes,
        "skipped": answer.skipped_claims,
        "page": pages[0],
        "lines": [_line(name, result, answer.nodes.get(name)) for name in pages[0].rows],
    }


def _line(name: str, result: ExplainedDecision, answer: NodeAnswer | None) -> CandidateLine:
    longhorn = result.state.view.snapshot.longhorn_nodes.get(name)
    if answer is None:
        return CandidateLine(
            name, fits=False, reason=result.texts[name], missing=0, detail="", longhorn=longhorn is not None
        )
    names = {disk.uuid: disk.name for disk in longhorn.disks} if longhorn is not None else {}
    plan = ", ".join(f"{volume} on {names.get(disk, disk)}" for volume, disk in answer.plan.items())
    parts = [plan, answer.detail, _competing(answer)]
    detail = "; ".join(part for part in parts if part)
    return CandidateLine(name, answer.fits, answer.reason, answer.missing, detail, longhorn is not None)


def _competing(answer: NodeAnswer) -> str:
    if not answer.competing:
        return ""
    first = answer.competing[0]
    more = len(answer.competing) - 1
    owner = f" of pod {first.pod}" if first.pod else ""
    return f"counted with {first.volume}{owner}" + (f" and {more} more" if more else "")


# People find the pages by their links; they are no part of the API.
router = APIRouter(include_in_schema=False)


@router.get("/")
async def cluster_page(request: Request, lease: RequestLease) -> Response:
    return await _answer(request, lease, "overview.html", views.overview)


@router.get("/pods")
async def waiting_page(request: Request, lease: RequestLease) -> Response:
    return await _answer(request, lease, "pods.html", views.waiting_list)


@router.get("/pods/{namespace}/{name}")
async def pod_page(request: Request, lease: RequestLease, namespace: str, name: str) -> Response:
    return await _answer(request, lease, "pod.html", lambda site, query: pod_view(site, (namespace, name), query))


@router.get("/nodes/{name}")
async def node_page(request: Request, lease: RequestLease, name: str) -> Response:
    return await _answer(request, lease, "node.html", lambda site, _: views.node_view(site, name))


@router.get("/nodes/{name}/drain")
async def drain_page(request: Request, lease: RequestLease, name: str) -> Response:
    return await _answer(request, lease, "drain.html", lambda site, _: views.drain_view(site, name))


@router.get("/decision-log")
async def decision_page(request: Request, lease: RequestLease) -> Response:
    return await _answer(request, lease, "decisions.html", views.decision_list)


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    response = asset_response(name)
    if response is None:
        raise HTTPException(404)
    return response


async def _answer(
    request: Request,
    lease: Lease,
    template: str,
    view: Callable[[views.Site, views.PageQuery], Awaitable[views.Context | None]],
) -> Response:
    """Returns a page: what `view` returns, or why there is nothing."""
    state = state_of(request, AppState)
    status = 200
    query = views.page_query(request)
    site = views.Site.of(state)
    try:
        readiness(state)
        context = await view(site, query)
    except UnavailableError as error:
        status = 503
        template = "unavailable.html"
        context = {**views.frame(site, "Not ready", "", views.SOON_SECONDS), "problem": str(error)}
    if context is None:
        status = 404
        template = "absent.html"
        path = request.url.path
        what = f"There is nothing at {path}: the pod or node does not exist, or has no Longhorn volumes or disks."
        context = {**views.frame(site, "Not found", ""), "what": what}
    page = await site.sources.reporter.run(partial(render, template, context))
    lease.charge(len(page))
    return Response(page, status, media_type="text/html; charset=utf-8")
