"""Tags and selectors (types/types.go:IsSelectorsInTags)."""

from __future__ import annotations

from scheduler_core.longhorn.refusal_rules import Refusal, Rule
from scheduler_core.model.longhorn import Disk, Node


def selectors_match(tags: tuple[str, ...], selectors: tuple[str, ...], allow_empty: bool) -> bool:  # noqa: FBT001 # as in Longhorn
    """Whether every selector equals some tag, exactly.

    An empty selector matches if that is allowed, or if there are no tags either.
    """
    if not selectors:
        return allow_empty or not tags
    return all(selector in tags for selector in selectors)


def selector_refusal(
    tagged: Node | Disk, selector: tuple[str, ...], owner: str, rule: Rule, *, allow_empty: bool
) -> Refusal | None:
    """Why a selector does not match tags, or None.

    `owner` names what selects: "the volume" or "backing image NAME".
    """
    if selectors_match(tagged.tags, selector, allow_empty):
        return None
    subject = f"{'node' if isinstance(tagged, Node) else 'disk'} {tagged.name}"
    return Refusal(rule, f"{subject} has tags {format_tags(tagged.tags)}, {owner} selects {format_tags(selector)}")


def format_tags(tags: tuple[str, ...]) -> str:
    """Tags for people: ``[]`` or ``[fast, ssd]``, sorted."""
    return f"[{', '.join(sorted(tags))}]"
