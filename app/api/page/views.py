"""GET /, /pods, /nodes, /decision-log and /assets: pages for people, and what each shows, as plain values for the templates. The page of a
pod shows why it waits, by node, the closest first.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from app.api import app_state, errors, extender, request_body
from app.api.page import rendering
from app.extender.status_page_results import COMPARED, NOT_COMPARED, StatusSources
from app.runtime.probes import UnavailableError
from app.schemas.decision import explain_answer
from app.schemas.state import ServiceState
from scheduler_core.decide.decision import MAX_DECISIONS, DecisionQuery, LoggedDecision
from scheduler_core.errors import ResolutionError
from scheduler_core.guard.placement_guard import GuardOutcome
from scheduler_core.model import kube, quantity
from scheduler_core.monitor import node_rows
from scheduler_core.monitor.report import StatusReport, WaitingRow, pods_on_node
from scheduler_core.predict.node_loss import NodeLossOutcome
from scheduler_core.structs import Struct, replace

# How long a page waits for a search of remedies.
_REMEDY_SECONDS = 0.25
_MAX_DECISIONS = 10
_MAX_REASONS = 10

Context = Mapping[str, Any]
_BADGES = {
    node_rows.NodeCondition.NO_DISKS: ("plain", "○"),
    node_rows.NodeCondition.OPEN: ("good", "●"),
    node_rows.NodeCondition.PARTLY_CLOSED: ("warn", "◐"),
    node_rows.NodeCondition.CLOSED: ("warn", "■"),
    node_rows.NodeCondition.OVER_LIMIT: ("bad", "▲"),
    node_rows.NodeCondition.NOT_READY: ("bad", "✕"),
}
_MAX_REMEDIES = 5
# Nodes of one page show so many disks in all, and each shows two at least.
_DISKS_PER_PAGE = 120
_MIN_DISKS = 2
# The first page has so many of the pods that wait.
_FIRST_WAITING = 5
_REFRESH_SECONDS = 10
# While something is being worked out.
_SOON_SECONDS = 1
_MAX_LISTED = 5


MAX_TEXT = 100
_MAX_PAGE = 1_000_000
_PARAMETERS = frozenset({"q", "page", "group", "zone"})


class PageQuery(Struct, frozen=True):
    """Which rows of a page are shown."""

    path: str = "/"
    text: str = ""  # words that a row must have
    page: int = 1  # counted from 1
    by_zone: bool = False  # whether nodes are grouped by zone
    zone: str | None = None  # None for every zone, "" for nodes without one

    def link(self, page: int = 1) -> str:
        """Returns the address of another page of the same rows."""
        parameters: dict[str, str] = {}
        if self.text:
            parameters["q"] = self.text
        if self.by_zone:
            parameters["group"] = "zone"
        if self.zone is not None:
            parameters["zone"] = self.zone
        if page > 1:
            parameters["page"] = str(page)
        return f"{self.path}?{urlencode(parameters)}" if parameters else self.path

    def every_zone(self) -> "PageQuery":
        return replace(self, zone=None)

    def selects(self, text: str) -> bool:
        return all(word in text.casefold() for word in self.text.casefold().split())


def _page_query(request: Request) -> PageQuery:
    """Reads the query of a request. Raises a RequestError if it has another parameter, one twice, or a value that is
    not valid.
    """
    pairs = request.query_params.multi_items()
    values = dict(pairs)
    if len(pairs) != len(values):
        raise errors.RequestError("a query parameter is given twice")
    unknown = sorted(values.keys() - _PARAMETERS)
    if unknown:
        raise errors.RequestError(f"unknown query parameter {unknown[0][:MAX_TEXT]!r}, expected q, page, group or zone")
    for name in ("q", "zone"):
        if len(values.get(name, "")) > MAX_TEXT:
            raise errors.RequestError(f"{name} has more than {MAX_TEXT} characters")
    if values.get("group", "") not in ("", "zone"):
        raise errors.RequestError("group must be zone or empty")
    page = values.get("page", "1")
    if not (page.isascii() and page.isdigit() and len(page) <= len(str(_MAX_PAGE)) and 1 <= int(page) <= _MAX_PAGE):
        raise errors.RequestError(f"page must be a number from 1 to {_MAX_PAGE}")
    return PageQuery(
        path=request.url.path,
        text=values.get("q", "").strip(),
        page=int(page),
        by_zone=values.get("group") == "zone",
        zone=values.get("zone"),
    )


class Site(Struct, frozen=True):
    """What every page is made of."""

    state: app_state.AppState
    sources: StatusSources
    service: ServiceState | None  # of a live cluster; None for a snapshot file

    @classmethod
    def of(cls, state: app_state.AppState) -> "Site":
        if state.status is None:
            raise TypeError("the application was made without a status page")
        return cls(state, state.status, state.lifecycle.state() if state.lifecycle else None)


def _frame(site: Site, title: str, current: str, refresh: int = _REFRESH_SECONDS) -> dict[str, Any]:
    """Returns what every page shows around its content: the title, the process that answers, and how fresh everything
    is.
    """
    now = monotonic()
    guard_problems: Sequence[str] = ()
    if site.service and site.service.guard:
        taken = site.service.guard.activity.outcomes.get(GuardOutcome.PROMISED_SPACE_TAKEN, 0)
        note = f"promised space was taken {quantity.format_count(taken, 'time')}" if taken else ""
        guard_problems = (site.service.guard.problem, note)
    caches = [(kind, status, status.behind(now)) for kind, status in sorted(site.sources.caches().items())]
    return {
        "title": title,
        "current": current,
        "refresh": refresh,
        "time": site.sources.now(),
        "identity": site.sources.identity,
        "service": site.service,
        "caches": caches,
        "behind": max((seconds for *_, seconds in caches), default=0.0),
        "unreadable": site.service.unreadable if site.service else (),
        "settings_refused": site.service.refused_settings if site.service else (),
        "guard_problem": "; ".join(filter(None, guard_problems)),
        "max_listed": _MAX_LISTED,
        "summary": "",
    }


class NodeLine(Struct, frozen=True):
    """A node of a page, its worst disks, the number of others."""

    row: node_rows.NodeRow
    disks: Sequence[rendering.DiskLine]
    more: int
    loss: NodeLossOutcome | None


class ZoneLines(Struct, frozen=True):
    """The nodes that a page shows, of one zone or all."""

    zone: str
    nodes: int  # of the whole group, also of nodes on other pages
    space: node_rows.SpaceTotal  # of the whole group, also of nodes on other pages
    lines: Sequence[NodeLine]


async def overview(site: Site, query: PageQuery) -> Context:
    """Returns the content of the first page: the tiles, the pods that wait longest, and the nodes, worst first."""
    report = await site.sources.reporter.status_report()
    waiting = await site.sources.reporter.waiting_rows(report.waiting[:_FIRST_WAITING])
    pods = await _with_remedies(site, report.waiting[:_FIRST_WAITING], waiting)
    losses = site.sources.losses.latest
    shown = rendering.tiles(report, site.service, losses)
    refresh = _SOON_SECONDS if any(row is None for row in waiting) else _REFRESH_SECONDS
    context = _frame(site, "Cluster", "/", refresh)
    return {
        **context,
        "query": query,
        "tiles": shown,
        "summary": ", ".join(f"{tile.label}: {tile.number}" for tile in shown),
        "pods": pods,
        "waiting_since": _waiting_since(site),
        "waiting_total": len(report.waiting),
        "total_bar": rendering.total_bar(report.space),
        "space": report.space,
        "conditions": [
            (each, report.count(each)) for each in sorted(node_rows.NodeCondition, reverse=True) if report.count(each)
        ],
        "badges": _BADGES,
        "all_nodes": len(report.rows),
        "disks": report.disks,
        **_nodes(report, query, losses),
    }


def _nodes(report: StatusReport, query: PageQuery, losses: Mapping[str, NodeLossOutcome]) -> dict[str, Any]:
    rows = node_rows.select_rows(report.rows, query.text, query.zone)
    zones = node_rows.group_by_zone(rows) if query.by_zone else ()
    ordered = [row for zone in zones for row in zone.rows] if zones else rows
    page: node_rows.RowPage[node_rows.NodeRow] = node_rows.page_of(ordered, query.page)
    per_row = max(_MIN_DISKS, _DISKS_PER_PAGE // max(1, len(page.rows)))
    lines = [
        NodeLine(row, rendering.lines_of(row.disks, per_row), max(0, len(row.disks) - per_row), losses.get(row.name))
        for row in page.rows
    ]
    groups = [ZoneLines("", len(rows), report.space, lines)]
    if query.by_zone:
        groups = [
            ZoneLines(zone.zone, len(zone.rows), zone.space, [line for line in lines if line.row.zone == zone.zone])
            for zone in zones
        ]
    return {"page": page, "groups": [group for group in groups if group.lines], "losses": losses}


def _waiting_since(site: Site) -> Mapping[str, float]:
    """Returns the seconds that refused pods have waited, by UID, without pods whose refusal this process has not seen."""
    waiting = site.service.outstanding.waiting if site.service else ()
    return {entry.pod.uid: entry.seconds for entry in waiting}


async def _with_remedies(
    site: Site, pods: Sequence[kube.Pod], rows: Sequence[WaitingRow | None]
) -> list[tuple[kube.Pod, WaitingRow | None, str | None]]:
    """Returns pods with their rows and their first remedies, "" where there is none, and None where that is not known."""
    pairs = list(zip(pods, rows, strict=True))
    refused = [pod for pod, row in pairs if row is not None and not row.fitting and not row.error]
    # A search takes longer than a decision, so remedies of only a few pods are looked for.
    first_refused = refused[:_MAX_REMEDIES]
    results = await site.sources.reporter.remedies(first_refused, wait=0)
    texts = {
        pod.key: remedies[0].text if remedies else ""
        for pod, remedies in zip(first_refused, results, strict=True)
        if remedies is not None
    }
    return [(pod, row, texts.get(pod.key)) for pod, row in pairs]


async def waiting_list(site: Site, query: PageQuery) -> Context:
    """Returns the pods that wait, the oldest first."""
    report = await site.sources.reporter.status_report()
    pods = [pod for pod in report.waiting if query.selects(pod.key)]
    page = node_rows.page_of(pods, query.page)
    rows = await site.sources.reporter.waiting_rows(page.rows)
    refresh = _SOON_SECONDS if any(row is None for row in rows) else _REFRESH_SECONDS
    context = _frame(site, "Waiting pods", "/pods", refresh)
    return {
        **context,
        "query": query,
        "page": page,
        "pods": await _with_remedies(site, page.rows, rows),
        "waiting_since": _waiting_since(site),
        "waiting_total": len(report.waiting),
        "summary": quantity.format_count(len(report.waiting), "pod waits", "pods wait"),
    }


async def decision_list(site: Site, query: PageQuery) -> Context:
    """Returns the latest decisions that have a text."""

    def text_of(entry: LoggedDecision) -> str:
        texts = (entry.namespace, entry.pod, entry.verb, entry.outcome.value, entry.error, *entry.offered)
        return "\n".join((*texts, *(reason for reason, _ in entry.refused)))

    log = site.state.decisions.page(DecisionQuery(limit=MAX_DECISIONS))
    entries = [entry for entry in log.entries if not query.text or query.selects(text_of(entry))]
    page = node_rows.page_of(entries, query.page)
    return {
        **_frame(site, "Decisions", "/decision-log"),
        "query": query,
        "page": page,
        "decisions": page.rows,
        "recorded": log.recorded,
        "summary": quantity.format_count(log.recorded, "decision"),
    }


async def node_view(site: Site, _: PageQuery, name: str) -> Context | None:
    """Returns a node with its disks and pods, None if there is no Longhorn node of this name."""
    report = await site.sources.reporter.status_report()
    row = next((each for each in report.rows if each.name == name), None)
    if row is None:
        return None
    state = site.sources.reporter.state
    pods = await site.sources.reporter.run(partial(pods_on_node, state.view, name))
    demands = state.demand.by_node.get(name) or ()
    return {
        **_frame(site, f"Node {name}", ""),
        "row": row,
        "disks": [rendering.disk_line(usage) for usage in row.disks],
        "bar": rendering.total_bar(row.space),
        "badges": _BADGES,
        "loss": site.sources.losses.latest.get(name),
        "pods": pods,
        "demands": demands,
        "max_rows": 50,
    }


async def drain_view(site: Site, _: PageQuery, name: str) -> Context | None:
    """Returns what a node's drain leads to, None for an unknown node."""
    snapshot = site.sources.reporter.state.view.snapshot
    if name not in snapshot.nodes and name not in snapshot.longhorn_nodes:
        return None
    report = await site.sources.reporter.drain(name)
    context = _frame(site, f"May I drain {name}?", "", _SOON_SECONDS if report is None else _REFRESH_SECONDS)
    prediction = report.prediction if report is not None else None
    problems = rendering.drain_problems(prediction) if prediction is not None else []
    return {
        **context,
        "node": name,
        "report": report,
        "prediction": prediction,
        "problems": problems,
        "safe": not problems,
        "moved": [] if prediction is None else [outcome for outcome in prediction.pods if outcome.left],
        "compared": COMPARED,
        "not_compared": NOT_COMPARED,
        "command": f"longhorn-extender what-if {'' if site.service else '--snapshot FILE '}--drain {name}",
        "is_longhorn": name in snapshot.longhorn_nodes,
        "max_rows": 50,
    }


async def pod_view(site: Site, query: PageQuery, namespace: str, name: str) -> Context | None:
    """Returns why a pod waits or fits, None if no pod with claims has this name."""
    pod = site.sources.reporter.state.view.snapshot.pods.get((namespace, name))
    if pod is None or not pod.volumes:
        return None
    decisions = site.state.decisions.page(DecisionQuery(limit=_MAX_DECISIONS, namespace=namespace, pod=name))
    context = {
        **_frame(site, pod.key, "/pods"),
        "pod": pod,
        "query": query,
        "since": _waiting_since(site).get(pod.uid),
        "decisions": decisions.entries,
        "looks_for_remedies": False,
        "remedies": None,
        "error": "",
    }
    try:
        details = await _decision(site, pod, query)
    except ResolutionError as error:
        nothing = {"fitting": 0, "nodes": 0, "counts": [], "volumes": [], "skipped": [], "lines": []}
        return {**context, **nothing, "error": str(error), "page": node_rows.page_of([], 1)}
    if details["fitting"] or pod.node_name:
        return {**context, **details}
    (remedies,) = await site.sources.reporter.remedies([pod], _REMEDY_SECONDS)
    refresh = _SOON_SECONDS if remedies is None else _REFRESH_SECONDS
    return {**context, **details, "looks_for_remedies": True, "remedies": remedies, "refresh": refresh}


async def _decision(site: Site, pod: kube.Pod, query: PageQuery) -> dict[str, Any]:
    """Returns the decision with the nodes of one page explained."""
    pages: list[node_rows.RowPage[str]] = []

    def select(texts: Mapping[str, str]) -> Sequence[str]:
        names = [name for name, text in texts.items() if query.selects(f"{name} {text}")]
        pages.append(node_rows.page_of(names, query.page))
        return pages[0].rows

    result = await site.sources.reporter.explain(pod, select)
    answer = await site.sources.reporter.run(partial(explain_answer, pod, result.explanation))
    longhorn_nodes = result.state.view.snapshot.longhorn_nodes
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
        "lines": [
            rendering.node_line(name, result.texts[name], longhorn_nodes, answer.nodes.get(name))
            for name in pages[0].rows
        ],
    }


# People find the pages by their links; they are no part of the API.
router = APIRouter(include_in_schema=False)


def _add_page(path: str, template: str, view: Callable[..., Awaitable[Context | None]]) -> None:
    """Adds a page: what `view` returns, given the parts of the path, or why there is nothing."""

    @router.get(path)
    async def page(request: Request, lease: request_body.RequestLease) -> Response:
        state: app_state.AppState = request.app.state.services
        site = Site.of(state)
        query = _page_query(request)
        status, shown = 200, template
        try:
            extender.readiness(state)
            context = await view(site, query, **request.path_params)
        except UnavailableError as error:
            status, shown = 503, "unavailable.html"
            context = {**_frame(site, "Not ready", "", _SOON_SECONDS), "problem": str(error)}
        if context is None:
            status, shown = 404, "absent.html"
            what = f"There is nothing at {request.url.path}: the pod or node does not exist, or has no Longhorn volumes or disks."
            context = {**_frame(site, "Not found", ""), "what": what}
        content = await site.sources.reporter.run(partial(rendering.render, shown, context))
        lease.charge(len(content))
        return Response(content, status, media_type="text/html; charset=utf-8")


_add_page("/", "overview.html", overview)
_add_page("/pods", "pods.html", waiting_list)
_add_page("/pods/{namespace}/{name}", "pod.html", pod_view)
_add_page("/nodes/{name}", "node.html", node_view)
_add_page("/nodes/{name}/drain", "drain.html", drain_view)
_add_page("/decision-log", "decisions.html", decision_list)


_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# The address of an asset has a hash of its content.
_ASSET_CACHE = "public, max-age=31536000, immutable"


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    """Sends a file that pages use."""
    content = rendering.assets().get(name)
    if content is None:
        raise HTTPException(404)
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
    return Response(content, headers={"Cache-Control": _ASSET_CACHE}, media_type=media_type)
