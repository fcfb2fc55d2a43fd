"""Answers over random clusters change only on purpose: `python -m tests.contract.answers --show N` prints one in full."""

import pytest

from tests.contract.answers import ANSWERS, GOLDENS, frozen_answers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_2000_answers_are_the_same() -> None:
    """Byte for byte, over clusters in which pods are offered all nodes, some, none, or cannot be decided about."""
    for name, now in frozen_answers().items():
        before = (GOLDENS / name).read_text()
        assert sorted(set(now.splitlines()) - set(before.splitlines())) == []
        assert now == before
    assert len((GOLDENS / "lines.txt").read_text().splitlines()) == ANSWERS
