"""Reads YAML as Kubernetes prints it, and finds where an object's field is in a file of YAML or JSON.

For the latter the file is read a second time, only after an error: the error's object and field → the object's path in the file, and the
field's path in the object → the value's line and column.
"""

import re
from itertools import chain
from typing import Any

import msgspec
import yaml

from app.kube.resources import LONGHORN_NODES
from scheduler_core.convert import json_text, wire_types
from scheduler_core.errors import ObjectError

# No Kubernetes object is nested nearly as deeply.
_MAX_DEPTH = 200
_TEXT = "tag:yaml.org,2002:str"


class _KubernetesLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loads YAML as Kubernetes prints it: `no` and dates stay texts, and numbers are decimal. PyYAML by itself reads
    YAML 1.1.
    """

    _depth = 0

    def descend_resolver(self, _node: object, _index: object) -> None:
        """Called when the composer enters a node of the tree. libyaml's composer recurses in C, where nothing else
        limits the depth. Raises a RecursionError if the text is nested too deeply.
        """
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RecursionError

    def ascend_resolver(self) -> None:
        self._depth -= 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 # PyYAML's signature
        """Returns a node's value: nearly all are texts, which PyYAML takes three times as long for."""
        text = node.tag == _TEXT and isinstance(node, yaml.ScalarNode)
        return node.value if text else super().construct_object(node, deep)

    def construct_mapping(  # PyYAML's signature
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[Any, Any]:
        """Returns a mapping, once its own keys are compared: those of a merge key may be written again.

        Raises:
            yaml.MarkedYAMLError: a key is written twice
        """
        keys = [(key.value, key.start_mark) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(dict(keys)) < len(keys):
            written: set[str] = set()
            for key, mark in keys:
                if key in written:
                    raise yaml.MarkedYAMLError(problem=str(json_text.RepeatedKeyError(key)), problem_mark=mark)
                written.add(key)
        return dict(super().construct_mapping(node, deep))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> int | float:
        """Returns a number; a whole one is an int."""
        return json_text.read_number(node.value)


_KubernetesLoader.add_constructor("tag:yaml.org,2002:float", _KubernetesLoader.construct_yaml_float)


_KubernetesLoader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("merge", r"^<<$", ["<"]),
    ("float", r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
):
    _KubernetesLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def load_yaml(text: bytes) -> list[Any]:
    """Returns the documents of a text.

    Raises:
        ValueError: it is not YAML
        RecursionError: it is nested too deeply
    """
    try:
        return list(yaml.load_all(text, Loader=_KubernetesLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ValueError(f"{error.problem or error.context}{place}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error


# Reading a larger file again takes too long for the sake of a line number.
MAX_BYTES = 64 * 1024**2
_FIELD_PART = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")


def position(text: bytes, error: ObjectError) -> str:
    """Returns the position of an object's wrong field: ``line 5, column 7``. It is "" if the field cannot be located.
    The last of several objects of the name counts, because only a duplicate makes that an error.
    """
    if len(text) > MAX_BYTES:
        return ""
    field = _field_path(error.field)
    is_json = text.lstrip()[:1] == b"{"
    documents = [msgspec.json.decode(text)] if is_json else load_yaml(text)
    objects = ((number, *each) for number, document in enumerate(documents) for each in _objects(document, ()))
    paths = [(number, (*path, *field)) for number, path, raw in objects if _matches_subject(raw, error.subject)]
    if not paths:
        return ""
    number, path = paths[-1]
    if is_json:
        content = text.decode()
        return json_text.line_and_column(content, json_text.find_offset(content, path))
    node = list(yaml.compose_all(text, Loader=_KubernetesLoader))[number]
    # The node of the path, or the innermost one around it that exists.
    for part in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            continue
        entries = node.value if isinstance(node, yaml.MappingNode) else ()
        following = next((value for key, value in entries if str(key.value) == str(part)), None)
        if following is None:
            break
        node = following
    mark = node.start_mark
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _field_path(field: str) -> json_text.Path:
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
    return version != "" and any(subject == wire_types.object_name(name, raw) for name in kinds)


def _objects(value: object, path: json_text.Path) -> list[tuple[json_text.Path, object]]:
    items = value.get("items") if isinstance(value, dict) else None
    if isinstance(value, dict) and isinstance(items, list):
        nested = (_objects(item, (*path, "items", index)) for index, item in enumerate(items))
        return list(chain.from_iterable(nested))
    return [(path, value)]
