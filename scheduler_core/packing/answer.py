"""The three answers a bounded search can give."""

from __future__ import annotations

from enum import Enum


class Answer(Enum):
    """What a search found out; UNDECIDED means that its budget ran out first, never that it guessed."""

    YES = "yes"
    NO = "no"
    UNDECIDED = "undecided"
