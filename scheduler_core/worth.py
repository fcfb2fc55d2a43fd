"""What each profile is worth to some needs: remembered, or found out now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_core.cooperative import Steps
from scheduler_core.evaluation.disk_profile import Profile
from scheduler_core.evaluation.fit import reasons_for, safeties_for
from scheduler_core.evaluation.profile_cache import Memory
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import Budget
from scheduler_core.volumes.requirements import Needs


def worth(
    memory: Memory, wanted: Needs, profiles: Sequence[Profile], budget: Budget, *, examine: bool
) -> Steps[Mapping[Profile, Reason]]:
    """The reason for each profile.

    With `examine` a profile has ROOM only if every placement order is proven to succeed, otherwise it is ORDER_UNSAFE. What
    the budget did not suffice for is not remembered, because another request may have more to spend.
    """
    known = memory.known(wanted, examine)
    unknown = [profile for profile in profiles if profile not in known] if known else profiles
    if not unknown:
        return known
    unknown = list(dict.fromkeys(unknown))
    reasons = yield from reasons_for(wanted, unknown, budget)
    found = dict(zip(unknown, reasons, strict=True))
    passing = set()
    if Reason.UNDECIDED in reasons:
        passing = {profile for profile, reason in found.items() if reason is Reason.UNDECIDED}
    if examine and Reason.ROOM in reasons:
        passing |= yield from _examined(wanted, found, budget)
    known.update(found if not passing else ((key, found[key]) for key in unknown if key not in passing))
    return {**known, **found} if passing else known


def _examined(wanted: Needs, found: dict[Profile, Reason], budget: Budget) -> Steps[set[Profile]]:
    """Turns ROOM into ORDER_UNSAFE where some order fails or none was proven to; returns the profiles left unproven."""
    room = [profile for profile, reason in found.items() if reason is Reason.ROOM]
    answers = yield from safeties_for(wanted, room, budget)
    if answers.count(Answer.YES) == len(answers):
        return set()
    doubtful = {profile: answer for profile, answer in zip(room, answers, strict=True) if answer is not Answer.YES}
    found.update(dict.fromkeys(doubtful, Reason.ORDER_UNSAFE))
    return {profile for profile, answer in doubtful.items() if answer is Answer.UNDECIDED}
