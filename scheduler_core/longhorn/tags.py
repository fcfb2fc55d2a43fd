"""Tags and selectors (types/types.go:IsSelectorsInTags)."""

from __future__ import annotations


def selectors_match(tags: tuple[str, ...], selectors: tuple[str, ...], allow_empty: bool) -> bool:  # noqa: FBT001 # as in Longhorn
    """Whether every selector equals some tag, exactly; no selector fits if allowed, or if there are no tags either."""
    if not selectors:
        return allow_empty or not tags
    return all(selector in tags for selector in selectors)


def listed(values: tuple[str, ...]) -> str:
    """Tags for people: ``[]`` or ``[fast, ssd]``, sorted."""
    return f"[{', '.join(sorted(values))}]"
