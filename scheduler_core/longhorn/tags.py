"""Tags and selectors (types/types.go:IsSelectorsInTags)."""

from __future__ import annotations

import re
from typing import Final

from scheduler_core.longhorn.refusal_rules import Refusal, Rule
from scheduler_core.model.longhorn import Disk, Node

_PLAIN_TAG: Final = re.compile(r"[^\s,'\"\[\]]+")


def selectors_match(tags: tuple[str, ...], selectors: tuple[str, ...], allow_empty: bool) -> bool:  # noqa: FBT001 # as in Longhorn
    """Whether every selector equals some tag, exactly."""
    # An empty selector matches if that is allowed, or if there are no tags either.
    if not selectors:
        return allow_empty or not tags
    return all(selector in tags for selector in selectors)


def selector_refusal(
    tagged: Node | Disk, selector: tuple[str, ...], owner: str, rule: Rule, *, allow_empty: bool
) -> Refusal | None:
    """Why a selector does not match tags, or None. `owner` names what selects: "the volume" or "backing image NAME".
    Where an empty selector is refused, the sentence names the setting that decides.
    """
    if selectors_match(tagged.tags, selector, allow_empty):
        return None
    kind = "node" if isinstance(tagged, Node) else "disk"
    tags = format_tags(tagged.tags)
    detail = f"{kind} {tagged.name} has tags {tags}, {owner} selects {format_tags(selector)}"
    return Refusal(rule, detail if selector else f"{detail}, and allow-empty-{kind}-selector-volume is false")


def format_tags(tags: tuple[str, ...]) -> str:
    """Tags for people, sorted: ``[]`` or ``[fast, ssd]``."""
    # A tag that is empty, or has blanks or punctuation of lists, is quoted: ``['']``.
    return f"[{', '.join(tag if _PLAIN_TAG.fullmatch(tag) else repr(tag) for tag in sorted(tags))}]"
