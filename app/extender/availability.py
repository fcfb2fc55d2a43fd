"""Whether requests about pods may be answered now, which is checked before a decision is made, and again before it is
answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from app.runtime.probes import SwitchedOffError, UnavailableError

Availability = Callable[[], str]
"""Returns why no request may be answered now, as one sentence; "" if requests may be answered."""


class SwitchedOff(str):
    """Why no process answers: an administrator has switched the extender off."""

    __slots__ = ()


HungUp = Callable[[], Awaitable[bool]]
"""Returns whether the caller has gone; checked before anything is promised. It may raise to refuse the request."""


class CallerGoneError(Exception):
    """The caller hung up, so nothing is decided."""

    def __init__(self) -> None:
        super().__init__("the caller hung up, nothing is decided")


def always_available() -> str:
    """Returns "": a snapshot file has no other process that answers from it."""
    return ""


ALWAYS_AVAILABLE: Final[Availability] = always_available


def check(availability: Availability) -> None:
    """Raises an UnavailableError if requests may not be answered; SwitchedOffError if no process may."""
    why = availability()
    if why:
        raise SwitchedOffError(why) if isinstance(why, SwitchedOff) else UnavailableError(why)


async def check_caller(hung_up: HungUp) -> None:
    """Raises a CallerGoneError if the caller does not wait any more."""
    if await hung_up():
        raise CallerGoneError
