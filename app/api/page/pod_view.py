"""What the page of a pod shows: why it waits, by node, the closest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from app.api.page.views import REFRESH_SECONDS, SOON_SECONDS, Context, PageQuery, Site, frame, waiting_since
from app.extender.status_reporter import ExplainedDecision
from app.schemas.explain import NodeAnswer, explain_answer
from scheduler_core.errors import ResolutionError
from scheduler_core.extender.logged_decision import DecisionQuery
from scheduler_core.extender.status.row_page import RowPage, page_of
from scheduler_core.model.kube import Pod

# How long a page waits for a search of remedies.
_REMEDY_SECONDS: Final = 0.25
_MAX_DECISIONS: Final = 10
_MAX_REASONS: Final = 10


@dataclass(frozen=True, slots=True)
class CandidateLine:
    """What is said about one node."""

    name: str
    fits: bool
    reason: str
    missing: int
    detail: str
    longhorn: bool  # whether there is a page about the node


async def pod_view(site: Site, key: tuple[str, str], query: PageQuery) -> Context | None:
    """Returns why a pod waits or fits, None if no pod with claims has this name."""
    pod = site.sources.reporter.state.view.snapshot.pods.get(key)
    if pod is None or not pod.volumes:
        return None
    decisions = site.state.decisions.page(DecisionQuery(limit=_MAX_DECISIONS, namespace=key[0], pod=key[1]))
    context = {
        **frame(site, pod.key, "/pods"),
        "pod": pod,
        "query": query,
        "since": waiting_since(site).get(pod.uid),
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
    refresh = SOON_SECONDS if remedies is None else REFRESH_SECONDS
    return {**context, **details, "looks_for_remedies": True, "remedies": remedies, "refresh": refresh}


async def _decision(site: Site, pod: Pod, query: PageQuery) -> dict[str, Any]:
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
