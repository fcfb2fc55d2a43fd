"""Merges the extender into a KubeSchedulerConfiguration that exists. Only the extender's entries and
`percentageOfNodesToScore` are written; every other line stays as it is, with its comments. What the edited text says is
compared with what it should say, so that a text that is read otherwise is never printed.

Data flow: text → its nodes with their places → pieces of text to replace → the text, checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from scheduler_core.errors import CoreError
from scheduler_core.model.installation import EXTENDER_RESOURCE

_EXTENDERS: Final = "extenders"
_PERCENTAGE: Final = "percentageOfNodesToScore"


@dataclass(frozen=True, slots=True)
class _Edit:
    """A piece of the text, from `start` to `end`, with what replaces it."""

    start: int
    end: int
    text: str


def merge_configuration(name: str, text: str, wanted: Mapping[str, Any]) -> str:
    """Returns the text with the entries of `wanted`; one that has them stays as it is. `name` is that of the text's
    file.

    Raises:
        CoreError: the text is no KubeSchedulerConfiguration, or cannot be merged
    """
    text = text if text.endswith("\n") else f"{text}\n"
    root, data = _read(name, text)
    for problem in _problems(data, wanted):
        raise CoreError(f"{name}: {problem}")
    entries = data.get(_EXTENDERS) or []
    merged_entries = _merge_entries(entries, wanted)
    expected = {**data, _PERCENTAGE: wanted[_PERCENTAGE], _EXTENDERS: merged_entries}
    nodes = {key.value: value for key, value in root.value}
    edits = []
    if data.get(_PERCENTAGE) != wanted[_PERCENTAGE]:
        edits.append(_percentage_edit(text, root, nodes.get(_PERCENTAGE), wanted[_PERCENTAGE]))
    if merged_entries != entries:
        edits.append(_extenders_edit(text, root, nodes.get(_EXTENDERS), entries, wanted))
    merged = text
    for edit in sorted(edits, key=lambda each: each.start, reverse=True):
        merged = merged[: edit.start] + edit.text + merged[edit.end :]
    if _load(merged) != expected:
        raise CoreError(
            f"{name}: cannot be merged as it is written; its {_EXTENDERS} must be a list of blocks, this one's next to each other"
        )
    return merged


def _read(name: str, text: str) -> tuple[yaml.MappingNode, dict[str, Any]]:
    try:
        documents = list(yaml.compose_all(text, yaml.SafeLoader))
        data = _load(text) if len(documents) == 1 else None
    except yaml.YAMLError as error:
        raise CoreError(f"{name}: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or data.get("kind") != "KubeSchedulerConfiguration":
        raise CoreError(f"{name}: expected one KubeSchedulerConfiguration")
    root = documents[0]
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        raise CoreError(f"{name}: is written in braces; write it as a block, one key per line")
    return root, data


def _load(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _problems(data: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Returns what no edit of the extenders mends."""
    problems = []
    if data.get("apiVersion") != wanted["apiVersion"]:
        problems.append(f"apiVersion is {data.get('apiVersion')}, expected {wanted['apiVersion']}")
    entries = data.get(_EXTENDERS) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problems.append(f"{_EXTENDERS} is no list of extenders")
    profiles = data.get("profiles")
    for index, profile in enumerate(profiles if isinstance(profiles, list) else ()):
        own = profile.get(_PERCENTAGE) if isinstance(profile, dict) else None
        if own not in (None, wanted[_PERCENTAGE]):
            problems.append(f"profiles[{index}].{_PERCENTAGE} is {own}, which hides nodes from the extender: remove it")
    return problems


def _is_own(entry: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether an entry is the extender's: by its address, or by the resource that it manages."""
    managed = entry.get("managedResources")
    names = [each.get("name") for each in managed or () if isinstance(each, dict)] if isinstance(managed, list) else []
    addresses = {each["urlPrefix"] for each in wanted[_EXTENDERS]}
    return EXTENDER_RESOURCE in names or entry.get("urlPrefix") in addresses


def _merge_entries(entries: Sequence[dict[str, Any]], wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    own = [index for index, entry in enumerate(entries) if _is_own(entry, wanted)]
    place = own[0] if own else len(entries)
    others = [entry for index, entry in enumerate(entries) if index not in own]
    return [*others[:place], *wanted[_EXTENDERS], *others[place:]]


def _percentage_edit(text: str, root: yaml.Node, node: yaml.Node | None, percentage: int) -> _Edit:
    if node is None:
        return _append(text, root, f"{_PERCENTAGE}: {percentage}\n")
    space = "" if text[node.start_mark.index - 1 : node.start_mark.index].isspace() else " "
    return _Edit(node.start_mark.index, node.end_mark.index, f"{space}{percentage}")


def _extenders_edit(
    text: str, root: yaml.Node, node: yaml.Node | None, entries: Sequence[dict[str, Any]], wanted: Mapping[str, Any]
) -> _Edit:
    written = yaml.safe_dump(wanted[_EXTENDERS], sort_keys=False, allow_unicode=True)
    if node is None:
        return _append(text, root, f"{_EXTENDERS}:\n{written}")
    if not entries:
        # An empty list, or no value: what is behind it on its line stays.
        end = _line_end(text, node)
        return _Edit(node.start_mark.index, end, f"{text[node.end_mark.index : end].rstrip()}\n{written}")
    lines = "".join(f"{' ' * node.start_mark.column}{line}\n" for line in written.splitlines())
    own = [child for child, entry in zip(node.value, entries, strict=True) if _is_own(entry, wanted)]
    if not own:
        end = _line_end(text, node)
        return _Edit(end, end, lines)
    # Entries of the extender that are not one after the other are refused by the comparison.
    return _Edit(text.rfind("\n", 0, own[0].start_mark.index) + 1, _line_end(text, own[-1]), lines)


def _append(text: str, root: yaml.Node, lines: str) -> _Edit:
    end = _line_end(text, root)
    return _Edit(end, end, lines)


def _line_end(text: str, node: yaml.Node) -> int:
    """Returns where the last line of a node ends; comments behind a block do not belong to it."""
    while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    # A block of text ends at the beginning of the next line.
    if node.end_mark.index and text[node.end_mark.index - 1] == "\n" and node.start_mark.index != node.end_mark.index:
        return int(node.end_mark.index)
    end = text.find("\n", node.end_mark.index)
    return len(text) if end < 0 else end + 1
