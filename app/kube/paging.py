"""Lists a collection page by page; objects stay undecoded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from app.kube.client import ApiError, KubeClient
from app.memory import AnswerTooLargeError

PAGE_SIZE: Final = 500
LIST_TIMEOUT: Final = 60.0
_NO_QUERY: Final[Mapping[str, str]] = {}


class _Metadata(msgspec.Struct, rename={"resource_version": "resourceVersion", "next": "continue"}):
    resource_version: str = ""
    next: str | None = None


class _List(msgspec.Struct):
    metadata: _Metadata
    items: list[msgspec.Raw] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, valid until the next page is requested."""

    items: list[msgspec.Raw]
    resource_version: str  # the list's resourceVersion; a watch begins at that of the last page


async def pages(client: KubeClient, path: str, query: Mapping[str, str] = _NO_QUERY) -> AsyncIterator[Page]:
    """Yields a collection page by page. Raises an ApiError if the API server refused, did not answer, or answered with
    something other than a list.
    """
    token = ""
    objects = 0
    while True:
        page = await _page(client, path, {**query, "limit": str(PAGE_SIZE), **({"continue": token} if token else {})})
        yield Page(page.items or [], page.metadata.resource_version)
        token = page.metadata.next or ""
        if not token:
            return
        objects += len(page.items or [])
        try:
            client.memory.check(objects)
        except AnswerTooLargeError as error:
            raise ApiError(f"GET {path}", 0, "", str(error)) from error


async def newest_version(client: KubeClient, path: str, query: Mapping[str, str] = _NO_QUERY) -> str:
    """Returns the current resourceVersion of a collection. Everything that happened to the collection before this call
    has a resourceVersion up to it. Raises an ApiError as `pages` does.
    """
    return (await _page(client, path, {**query, "limit": "1"})).metadata.resource_version


async def _page(client: KubeClient, path: str, query: Mapping[str, str]) -> _List:
    body = await client.get(path, query, LIST_TIMEOUT)
    try:
        return msgspec.json.decode(body, type=_List)
    except msgspec.DecodeError as error:
        raise ApiError(f"GET {path}", 200, "", f"the answer is no list of objects: {error}") from error
