"""Runs reflectors as a group, and reports whether their caches can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from app.kube.reflector import CacheStatus, Phase, Reflector

MAX_UNREADABLE_LISTED: Final = 50


@dataclass(frozen=True, slots=True)
class Member:
    """A reflector of a group."""

    reflector: Reflector[Any]
    label: str  # its name in problems
    required: bool = True  # whether the API server must know the kind; otherwise an unknown kind counts as empty
    # What to do if the API server does not know a required kind, "" for nothing in particular; None if such a kind
    # counts as not listed yet.
    hint: str | None = None
    # The beginning of the problem, if one object that cannot be read makes the whole kind unusable; None if it does
    # not.
    unreadable: str | None = None


def cache_problem(label: str, status: CacheStatus, now: float, stale_after: float) -> str:
    """Returns why a cache is not listed or too stale, or "". `now` and `stale_after` are seconds on the reflector's
    clock.
    """
    if status.phase is Phase.STARTING:
        return _unlisted_problem(label, status)
    behind = status.behind(now)
    if status.phase is Phase.SYNCED and behind > stale_after:
        return f"{label} not heard of for {behind:.0f} s: {status.problem}"
    return ""


def _unlisted_problem(label: str, status: CacheStatus) -> str:
    return f"{label} not listed yet" + (f": {status.problem}" if status.problem else "")


class ReflectorGroup:
    """Reflectors by key; members may come and go while the group runs."""

    def __init__(self, clock: Callable[[], float], stale_after: float) -> None:
        self._clock = clock
        self._stale_after = stale_after
        self._members: dict[str, Member] = {}
        self._changed = asyncio.Event()

    def __contains__(self, key: str) -> bool:
        return key in self._members

    def __getitem__(self, key: str) -> Reflector[Any]:
        return self._members[key].reflector

    def keys(self) -> Iterable[str]:
        return self._members.keys()

    def add(self, key: str, member: Member) -> None:
        self._members[key] = member
        self._changed.set()

    def remove(self, key: str) -> None:
        del self._members[key]
        self._changed.set()

    async def run(self) -> None:
        """Runs every member until cancelled."""
        tasks: dict[Reflector[Any], asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                reflectors = {member.reflector for member in self._members.values()}
                for reflector in tasks.keys() - reflectors:
                    tasks.pop(reflector).cancel()
                for reflector in reflectors - tasks.keys():
                    tasks[reflector] = group.create_task(reflector.run(), name=f"watch {reflector.label}")
                await self._changed.wait()

    async def catch_up(self) -> None:
        async with asyncio.TaskGroup() as group:
            for member in self._members.values():
                group.create_task(member.reflector.catch_up())

    @property
    def versions(self) -> Mapping[str, str]:
        statuses = {key: member.reflector.status for key, member in self._members.items()}
        return {key: status.changed_version for key, status in statuses.items() if status.phase is Phase.SYNCED}

    def reaches(self, versions: Mapping[str, str]) -> bool:
        """Whether each cache that is listed has everything up to its version."""
        return all(
            key in versions and member.reflector.reaches(versions[key])
            for key, member in self._members.items()
            if member.reflector.status.phase is not Phase.MISSING
        )

    @property
    def statuses(self) -> Mapping[str, CacheStatus]:
        return {member.label: member.reflector.status for member in self._members.values()}

    @property
    def unreadable(self) -> list[str]:
        """The objects that are left out because they cannot be read, and why; at most `MAX_UNREADABLE_LISTED`."""
        problems = (
            f"{member.label}: {problem}"
            for member in self._members.values()
            for problem in member.reflector.status.unreadable.values()
        )
        return list(islice(problems, MAX_UNREADABLE_LISTED))

    def problem(self, keys: Iterable[str] | None = None) -> str:
        """Returns why a member cannot be used now, or "". With `keys` only these members are checked."""
        now = self._clock()
        for key in self._members if keys is None else keys:
            problem = self._problem(key, now)
            if problem:
                return problem
        return ""

    def _problem(self, key: str, now: float) -> str:
        member = self._members.get(key)
        if member is None:
            return f"{key} not listed yet"
        status = member.reflector.status
        if status.phase is Phase.MISSING and member.required:
            if member.hint is None:
                return _unlisted_problem(member.label, status)
            return f"the API server knows no {member.label}" + (f": {member.hint}" if member.hint else "")
        if status.phase is not Phase.STARTING and member.unreadable is not None and status.unreadable:
            return member.unreadable + next(iter(status.unreadable.values()))
        return cache_problem(member.label, status, now, self._stale_after)
