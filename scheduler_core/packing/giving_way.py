"""Where a long computation lets a more urgent one go first.

A computation calls `give_way` every few milliseconds, where what it has stored in caches is whole. The program that runs it decides what
happens there (`app/runtime/decision_thread.py`); by default nothing does. No result depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final


def _nothing() -> None:
    return


_act: Final[ContextVar[Callable[[], None]]] = ContextVar("give_way", default=_nothing)


def give_way() -> None:
    _act.get()()


@contextmanager
def giving_way(act: Callable[[], None]) -> Iterator[None]:
    """What the block computes calls `act` wherever it gives way."""
    token = _act.set(act)
    try:
        yield
    finally:
        _act.reset(token)
