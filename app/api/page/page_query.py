"""What a request for a page may ask for, checked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlencode

from fastapi import Request

from app.api.errors import RequestError

MAX_TEXT: Final = 100
_MAX_PAGE: Final = 1_000_000
_PARAMETERS: Final = frozenset({"q", "page", "group", "zone"})


@dataclass(frozen=True, slots=True)
class PageQuery:
    """Which rows of a page are shown."""

    path: str = "/"
    text: str = ""  # words that a row must have
    page: int = 1  # counted from 1
    by_zone: bool = False  # whether nodes are grouped by zone
    zone: str | None = field(default=None)  # None for every zone, "" for nodes without one

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

    def every_zone(self) -> PageQuery:
        return replace(self, zone=None)


def page_query(request: Request) -> PageQuery:
    """Reads the query of a request.

    Raises:
        RequestError: it has another parameter, one twice, or a value that is not valid
    """
    pairs = request.query_params.multi_items()
    values = dict(pairs)
    if len(pairs) != len(values):
        raise RequestError("a query parameter is given twice")
    unknown = sorted(values.keys() - _PARAMETERS)
    if unknown:
        raise RequestError(f"unknown query parameter {unknown[0][:MAX_TEXT]!r}, expected q, page, group or zone")
    for name in ("q", "zone"):
        if len(values.get(name, "")) > MAX_TEXT:
            raise RequestError(f"{name} has more than {MAX_TEXT} characters")
    if values.get("group", "") not in ("", "zone"):
        raise RequestError("group must be zone or empty")
    return PageQuery(
        path=request.url.path,
        text=values.get("q", "").strip(),
        page=_page(values.get("page", "1")),
        by_zone=values.get("group") == "zone",
        zone=values.get("zone"),
    )


def _page(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_PAGE)) and 1 <= int(text) <= _MAX_PAGE):
        raise RequestError(f"page must be a number from 1 to {_MAX_PAGE}")
    return int(text)
