"""The order of a pod's candidates for people: those that fit, then those that come closest."""

from __future__ import annotations

from typing import Final

from scheduler_core.cluster.view import View
from scheduler_core.extender.decision import Decision
from scheduler_core.model.listing import natural_key
from scheduler_core.model.verdict import Reason

# A node that they refuse lacks nothing but space.
LACKING_SPACE: Final = frozenset({Reason.INSUFFICIENT_STORAGE, Reason.NOT_TOGETHER, Reason.SPOKEN_FOR})
# Reasons are listed roughly in the order in which rules are checked.
_ORDER: Final = {reason: position for position, reason in enumerate(Reason)}


def reason_order(reason: Reason) -> int:
    """Returns how late the rule of a reason is checked; the rules before it were passed."""
    return _ORDER[reason]


def sort_candidates(view: View, decision: Decision) -> list[str]:
    """Returns the candidates of a decision, the closest first. Those that fit come first, then those that another
    packing mode would offer, then those that lack space alone, the one with the most free bytes on one disk first; then
    the others by the rule that refuses them, and by name.
    """
    fitting: list[str] = []
    never_safe: list[str] = []
    lacking: list[tuple[int, object, str]] = []
    others: list[tuple[int, object, str]] = []
    for name, reason in zip(decision.candidates, decision.reasons, strict=True):
        if reason.fits:
            fitting.append(name)
        elif reason is Reason.NEVER_SAFE:
            never_safe.append(name)
        elif reason in LACKING_SPACE:
            lacking.append((-_largest_free_space(view, name), natural_key(name), name))
        else:
            others.append((-reason_order(reason), natural_key(name), name))
    ordered = (name for *_, name in (*sorted(lacking), *sorted(others)))
    return [*sorted(fitting, key=natural_key), *sorted(never_safe, key=natural_key), *ordered]


def _largest_free_space(view: View, name: str) -> int:
    if name not in view.cluster.nodes:
        return 0
    return max((space.free for space in view.free_space(name).values()), default=0)
