"""Complete lists of a kind, page by page, as raw objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from app.kube.client import ApiError, KubeClient

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
        ApiError: the API server refused, or did not answer, or what answered is none
    """
    token = ""
    while True:
        page = await _page(client, path, {**query, "limit": str(PAGE), **({"continue": token} if token else {})})
        yield Page(page.items or [], page.metadata.resource_version)
        token = page.metadata.next or ""
        if not token:
            return


async def newest_version(client: KubeClient, path: str, query: Mapping[str, str] = _NO_QUERY) -> str:
    """The resource version of a collection now: everything that happened to it before this call has one up to that.

    Raises:
        ApiError: as pages
    """
    return (await _page(client, path, {**query, "limit": "1"})).metadata.resource_version


async def _page(client: KubeClient, path: str, query: Mapping[str, str]) -> _List:
    body = await client.get(path, query, LIST_SECONDS)
    try:
        return msgspec.json.decode(body, type=_List)
    except msgspec.DecodeError as error:
        raise ApiError(f"GET {path}", 200, "", f"the answer is no list of objects: {error}") from error
