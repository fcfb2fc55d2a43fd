"""Whether questions about pods may be answered now. Asked before an answer is worked out, and again before it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final


class UnavailableError(Exception):
    """This process must not answer now; another one may. The text says why."""


class CallerGoneError(Exception):
    """Whoever asked has hung up, so nothing is decided."""

    def __init__(self) -> None:
        super().__init__("the caller hung up, nothing is decided")


HungUp = Callable[[], Awaitable[bool]]
"""Whether the caller has gone; asked before anything is promised. It may raise to refuse the question."""

Refusal = Callable[[], str]
"""Why nothing may be answered now, as one sentence; "" if it may."""


def always_open() -> str:
    """For a snapshot file: nobody else answers from it."""
    return ""


ALWAYS_OPEN: Final[Refusal] = always_open


def check(refusal: Refusal) -> None:
    """Passes, or does not.

    Raises:
        UnavailableError: nothing may be answered now
    """
    why = refusal()
    if why:
        raise UnavailableError(why)
