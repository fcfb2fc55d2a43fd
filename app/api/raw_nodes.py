"""Full nodes inside a request's body: found, named and echoed as bytes, never parsed into objects.

The JSON decoder delimits the items; `node_names` reads what each is called and `locate_nodes` where each lies in the body,
so that the answer can send the kept ones as views of the request, byte for byte, without a copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from app.api.errors import RequestError

# How kube-scheduler starts a node; anything else is decoded properly.
_USUAL_START: Final = re.compile(rb'\{"metadata":\{"name":"([^"\\]+)"')
_SEPARATOR: Final = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
# Runs shorter than this are joined: below it a copy is cheaper than one more write to the socket.
_JOIN_BELOW: Final = 1 << 16


class _Metadata(msgspec.Struct, gc=False):
    name: str = ""


class _Node(msgspec.Struct, gc=False):
    metadata: _Metadata


_NODE: Final = msgspec.json.Decoder(_Node)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Runs of a body to be sent one after the other with commas between; short ones are joined as they are sent."""

    body: bytearray
    runs: list[tuple[int, int]]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(end - start for start, end in self.runs) + max(0, len(self.runs) - 1)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        view = memoryview(self.body)
        pending: list[bytes | memoryview] = []
        size = 0
        separator = b""
        for start, end in self.runs:
            pending.append(separator)
            separator = b","
            if end - start >= _JOIN_BELOW:
                yield b"".join(pending)
                yield view[start:end]
                pending, size = [], 0
                continue
            pending.append(view[start:end])
            size += end - start
            if size >= _JOIN_BELOW:
                yield b"".join(pending)
                pending, size = [], 0
        yield b"".join(pending)


@dataclass(frozen=True, slots=True)
class NodeRuns:
    """The nodes of a body: where each starts and ends in it."""

    body: bytearray
    starts: list[int]
    ends: list[int]

    def keep(self, kept: Sequence[bool]) -> Pieces:
        """The kept nodes as a comma-separated sequence; neighbours are one run, separators as they were sent."""
        return Pieces(self.body, list(self._runs(kept)))

    def _runs(self, kept: Sequence[bool]) -> Iterator[tuple[int, int]]:
        first = -1
        last = -1
        for index, keep in enumerate(kept):
            if keep:
                if first < 0:
                    first = self.starts[index]
                last = self.ends[index]
            elif first >= 0:
                yield first, last
                first = -1
        if first >= 0:
            yield first, last


def node_names(items: Sequence[msgspec.Raw]) -> list[str]:
    """The names of the items of a node list.

    Raises:
        RequestError: an item is no node
    """
    return [_name(item, index) for index, item in enumerate(items)]


def locate_nodes(body: bytearray, items: Sequence[msgspec.Raw]) -> NodeRuns:
    """Where the items of a node list lie in the body they were decoded from.

    No two items may be equal: then each place where the first one occurs is left at once, or is the right one.
    """
    start = body.find(items[0]) if items else -1
    while start >= 0:
        found = _walk(body, items, start)
        if found is not None:
            return NodeRuns(body, *found)
        start = body.find(items[0], start + 1)
    return NodeRuns(body, [], [])


def _walk(body: bytearray, items: Sequence[msgspec.Raw], start: int) -> tuple[list[int], list[int]] | None:
    """Where each item lies if the first one starts at `start`; None if the bytes there are not the items."""
    starts, ends = [], []
    for item in items:
        if not body.startswith(item, start):
            return None
        starts.append(start)
        end = start + len(memoryview(item))
        ends.append(end)
        if body.startswith(b",{", end):
            start = end + 1
        else:
            separator = _SEPARATOR.match(body, end)
            start = separator.end() if separator else end
    return starts, ends


def _name(item: msgspec.Raw, index: int) -> str:
    usual = _USUAL_START.match(item)
    if usual is not None:
        return usual[1].decode()
    try:
        return _NODE.decode(item).metadata.name
    except msgspec.DecodeError as error:
        raise RequestError(f"Nodes.items[{index}] is not a node: {error}") from error
