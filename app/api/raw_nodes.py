"""Full nodes inside a request's body, kept as bytes. They are located, named and sent back, never parsed into objects.
The JSON decoder delimits the items. `node_names` reads their names, and `locate_nodes` their positions in the body. So
the answer sends nodes as views of the request, byte for byte and without a copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from app.api.errors import RequestError
from app.runtime.turns import Turns

# How kube-scheduler starts a node: a first name that every reader of JSON sees.
_USUAL_START: Final = re.compile(rb'\{"metadata":\{"name":"([^"\\]+)"')
_SEPARATOR: Final = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
# Shorter runs are joined: copying them is cheaper than another write to the socket.
_JOIN_BELOW: Final = 1 << 16
# Longer runs are sent in parts: what the socket does not take waits in memory.
_MAX_PIECE: Final = 1 << 20


class _Metadata(msgspec.Struct, gc=False):
    name: str = ""


class _Node(msgspec.Struct, gc=False):
    metadata: _Metadata


_NODE: Final = msgspec.json.Decoder(_Node)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Runs of a body to send one after the other, separated by commas."""

    body: bytearray
    runs: list[tuple[int, int]]

    @property
    def size(self) -> int:
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
                for part in range(start, end, _MAX_PIECE):
                    yield view[part : min(part + _MAX_PIECE, end)]
                pending = []
                size = 0
                continue
            pending.append(view[start:end])
            size += end - start
            if size >= _JOIN_BELOW:
                yield b"".join(pending)
                pending = []
                size = 0
        yield b"".join(pending)


@dataclass(frozen=True, slots=True)
class NodeRuns:
    """Where the nodes of a body start and end in it."""

    body: bytearray
    starts: list[int]
    ends: list[int]

    def select(self, keep: Sequence[bool]) -> Pieces:
        """Returns the nodes to keep; neighbours are one run, with the separators of the request."""
        return Pieces(self.body, list(self._runs(keep)))

    def _runs(self, keep: Sequence[bool]) -> Iterator[tuple[int, int]]:
        first = -1
        last = -1
        for index, kept in enumerate(keep):
            if kept:
                if first < 0:
                    first = self.starts[index]
                last = self.ends[index]
            elif first >= 0:
                yield first, last
                first = -1
        if first >= 0:
            yield first, last


async def node_names(items: Sequence[msgspec.Raw], turns: Turns) -> list[str]:
    """Returns the names of the items of a node list.

    Raises:
        RequestError: an item is no node
    """
    names: list[str] = []
    for index, item in enumerate(items):
        names.append(_name(item, index))
        await turns.end_if_due()
    return names


async def locate_nodes(body: bytearray, items: Sequence[msgspec.Raw], turns: Turns) -> NodeRuns:
    """Returns where the items of a node list are in the body; no two items may be equal."""
    start = body.find(items[0]) if items else -1
    while start >= 0:
        # An occurrence of the first item is either the list or fails at its second item.
        bounds = await _bounds(body, items, start, turns)
        if bounds is not None:
            return NodeRuns(body, *bounds)
        start = body.find(items[0], start + 1)
    return NodeRuns(body, [], [])


async def _bounds(
    body: bytearray, items: Sequence[msgspec.Raw], start: int, turns: Turns
) -> tuple[list[int], list[int]] | None:
    """Returns starts and ends of the items from `start`, None if the body has other bytes there."""
    starts: list[int] = []
    ends: list[int] = []
    for item in items:
        if not body.startswith(item, start):
            return None
        await turns.end_if_due()
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
    try:
        name = _NODE.decode(item).metadata.name
        usual = _USUAL_START.match(item)
        names = {usual[1].decode()} if usual is not None else _all_names(bytes(item))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RequestError(f"Nodes.items[{index}] is not a node: {error}") from error
    # Of a key that comes twice the decoder reads the last value, as Go does; a caller that reads the first would mean
    # another node.
    if names and names != {name}:
        different = " and ".join(map(repr, sorted(names | {name})))
        raise RequestError(f"Nodes.items[{index}] has several names: {different}")
    return name


def _all_names(node: bytes) -> set[str]:
    # Most nodes have each key once, and need no slower look.
    if node.count(b'"metadata"') == node.count(b'"name"') == 1 and b"\\u" not in node:
        return set()
    names: set[str] = set()
    for key, metadata in json.loads(node, object_pairs_hook=list):
        if key == "metadata" and isinstance(metadata, list):
            names.update(value for key, value in metadata if key == "name" and isinstance(value, str))
    return names
