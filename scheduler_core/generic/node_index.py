"""The nodes of the latest state that was read, by name in a plain dictionary.

A persistent map shares what states have in common, but reading it costs ten times as much as reading a dictionary, and a decision
reads every node. So the dictionary is kept, and only the nodes that changed since are read from the map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rpds import HashTrieMap

from scheduler_core.generic.node_info import NodeInfo

# A longer chain is cut, so that it does not keep every change since the start.
_MAX_CHAIN: Final = 1000


@dataclass(frozen=True, slots=True, eq=False)
class NodeChange:
    """A change of a node."""

    name: str = ""  # of the node that was added, changed or removed; "" where a chain begins
    previous: NodeChange | None = None  # the change before, None where a chain begins
    number: int = 0  # how many changes the chain has before this one

    def then(self, name: str) -> NodeChange:
        return NodeChange(name, self, self.number + 1) if self.number < _MAX_CHAIN else NodeChange()


class NodeIndex:
    """The nodes as of one change."""

    def __init__(self) -> None:
        self._as_of: NodeChange | None = None
        self._node_infos: dict[str, NodeInfo] = {}

    def update(self, nodes: HashTrieMap[str, NodeInfo], latest: NodeChange) -> None:
        """Reads the nodes as of this change."""
        names = self._names_since(latest)
        self._as_of = latest
        if names is None:
            self._node_infos = dict(nodes.items())
            return
        for name in names:
            node_info = nodes.get(name)
            if node_info is None:
                self._node_infos.pop(name, None)
            else:
                self._node_infos[name] = node_info

    def get(self, names: Sequence[str]) -> list[NodeInfo | None]:
        return list(map(self._node_infos.get, names))

    def _names_since(self, latest: NodeChange) -> set[str] | None:
        names: set[str] = set()
        change: NodeChange | None = latest
        while change is not None:
            if change is self._as_of:
                return names
            names.add(change.name)
            change = change.previous
        return None
