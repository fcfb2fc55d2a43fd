"""The player of timelines, on which hundreds of tests rest: a wrong answer, or nothing to answer, fails."""

import asyncio

import pytest

from tests.worlds.timeline import play


class _World:
    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    async def delayed(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    def refuse(self) -> None:
        raise ValueError("no room left")

    async def end(self) -> None:
        assert self.count < 100, "too many"


def test_a_timeline_with_the_right_answers_passes() -> None:
    play(
        _World,
        "0 add 2 -> 2; count -> 2; set count=7; delayed 3 -> waits\n2.9 count -> 7\n3.1 answer delayed 3 -> done",
    )


@pytest.mark.parametrize(
    ("timeline", "problem"),
    [
        ("0 add 2 -> 3", "0 add 2 -> 2, not 3"),
        ("0 count -> 0\n1 add 1 -> 0", "1 add 1 -> 1, not 0"),
        ("0 add 1", "it checks nothing"),
        ("0 set cuont=1; count -> 0", "nothing reads cuont"),
        ("0 count -> 0; delayed 3", "not answered"),
        ("0 delayed 3 -> waits\n1 answer delayed 3 -> done", "answer delayed 3 -> waits, not done"),
        ("0 add 100 -> 100", "too many"),
    ],
)
def test_a_timeline_with_a_wrong_answer_fails(timeline: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        play(_World, timeline)


def test_an_error_that_is_not_expected_fails() -> None:
    with pytest.raises(ValueError, match="no room left"):
        play(_World, "0 count -> 0; refuse")
