"""Where a value of a snapshot file is: line and column, for error messages.

The file is read a second time, and only after an error. Data flow: the error's object and field → the object's path in the file, and
the field's path in the object → the value's line and column.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Final

import msgspec
import yaml

from app.kube.resources import LONGHORN_NODES
from scheduler_core.convert.json_text import Path, find_offset, line_and_column
from scheduler_core.convert.meta import object_name
from scheduler_core.errors import ObjectError

# Reading a larger file again takes too long for the sake of a line number.
MAX_BYTES: Final = 64 * 1024**2
_FIELD_PART: Final = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")


def position(text: bytes, loader: type, error: ObjectError) -> str:
    """Returns the position of an object's wrong field: ``line 5, column 7``. It is "" if the field cannot be located.
    The last of several objects of the name counts, because only a duplicate makes that an error.

    Args:
        text: the file
        loader: reads its YAML
        error: what is wrong
    """
    if len(text) > MAX_BYTES:
        return ""
    field = _field_path(error.field)
    if text.lstrip()[:1] == b"{":
        paths = [path for path, raw in _objects(msgspec.json.decode(text), ()) if _matches_subject(raw, error.subject)]
        content = text.decode()
        return line_and_column(content, find_offset(content, (*paths[-1], *field))) if paths else ""
    documents = yaml.compose_all(text, Loader=loader)
    nodes = [
        node for document in documents for node in _nodes(document) if _matches_subject(_plain(node), error.subject)
    ]
    if not nodes:
        return ""
    mark = _descend(nodes[-1], field).start_mark
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _field_path(field: str) -> Path:
    """Returns the path of a field as errors write it: ``spec.containers[0].resources.requests[cpu]``."""
    parts: list[str | int] = []
    for name, index in _FIELD_PART.findall(field):
        if index == "...":
            break
        parts.append(int(index) if index.isdigit() else index or name)
    return tuple(parts)


def _matches_subject(raw: object, subject: str) -> bool:
    if not isinstance(raw, dict):
        return False
    kind = str(raw.get("kind"))
    group, _, version = str(raw.get("apiVersion") or "v1").rpartition("/")
    kinds = [f"{kind}.{group}"] if group else [kind]
    # Messages name the group of Longhorn's kinds only.
    if group and group != LONGHORN_NODES.group:
        kinds.append(kind)
    return version != "" and any(subject == object_name(name, raw) for name in kinds)


def _objects(value: object, path: Path) -> list[tuple[Path, object]]:
    """Returns every object of a decoded file with its path; Lists are taken apart."""
    items = value.get("items") if isinstance(value, dict) else None
    if isinstance(value, dict) and isinstance(items, list):
        nested = (_objects(item, (*path, "items", index)) for index, item in enumerate(items))
        return list(chain.from_iterable(nested))
    return [(path, value)]


def _nodes(node: yaml.Node | None) -> list[yaml.Node]:
    """Returns the node of every object of a YAML document; Lists are taken apart."""
    items = _descend(node, ("items",)) if isinstance(node, yaml.MappingNode) else None
    if isinstance(items, yaml.SequenceNode):
        return list(chain.from_iterable(map(_nodes, items.value)))
    return [] if node is None else [node]


def _plain(node: yaml.Node) -> object:
    entries = _entries(node)
    metadata = _entries(entries.get("metadata"))
    names = {key: value.value for key, value in metadata.items() if key in ("name", "namespace")}
    plain: dict[str, object] = {key: entries[key].value for key in ("kind", "apiVersion") if key in entries}
    return {**plain, "metadata": names}


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value}


def _descend(node: yaml.Node, path: Path) -> yaml.Node:
    """Returns the node of a path, or the innermost one around it that exists."""
    for part in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        elif str(part) in _entries(node):
            node = _entries(node)[str(part)]
        else:
            break
    return node
