"""Complete lists of a kind, page by page, as raw objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from app.kube.client import KubeClient

PAGE: Final = 500
LIST_SECONDS: Final = 60.0
_NO_QUERY: Final[Mapping[str, str]] = {}


class _Metadata(msgspec.Struct, rename={"resource_version": "resourceVersion", "next": "continue"}):
    resource_version: str = ""
    next: str | None = None


class _List(msgspec.Struct):
    metadata: _Metadata
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list, valid until the next part is asked for; the last one's resource version is where a watch begins."""

    items: list[msgspec.Raw]
    resource_version: str


async def pages(client: KubeClient, path: str, query: Mapping[str, str] = _NO_QUERY) -> AsyncIterator[Page]:
    """Every object of a collection.

    Raises:
        ApiError: the API server refused, or did not answer
    """
    token = ""
    while True:
        asked = {**query, "limit": str(PAGE), **({"continue": token} if token else {})}
        page = msgspec.json.decode(await client.get(path, asked, LIST_SECONDS), type=_List)
        yield Page(page.items or [], page.metadata.resource_version)
        token = page.metadata.next or ""
        if not token:
            return
