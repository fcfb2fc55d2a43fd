"""Longhorn's nodes in the order of their names, which most decisions go through them in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scheduler_core.model import longhorn


class NodesByName(Mapping[str, longhorn.Node]):
    """Longhorn's nodes, sorted by name. A changed node costs nothing, an added or deleted node costs a sort."""

    __slots__ = ("_names", "_nodes")

    def __init__(self, names: tuple[str, ...], nodes: Mapping[str, longhorn.Node]) -> None:
        self._names = names
        self._nodes = nodes

    def __getitem__(self, name: str) -> longhorn.Node:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def with_nodes(
        self, nodes: Mapping[str, longhorn.Node], changed: Mapping[str, longhorn.Node | None]
    ) -> NodesByName:
        """Returns the mapping over `nodes`, of which only the `changed` ones may be new or deleted."""
        same_names = all((name in self._nodes) == (node is not None) for name, node in changed.items())
        return NodesByName(self._names if same_names else tuple(sorted(nodes)), nodes)
