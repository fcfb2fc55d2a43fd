"""The ends of processes in a running stack."""

import signal

import pytest

from devcluster.watch import describe_end, is_external_end


@pytest.mark.parametrize(
    ("code", "words", "from_outside"),
    [
        (0, "ended with code 0", True),
        (1, "ended with code 1", False),
        (-signal.SIGKILL, "was ended by SIGKILL", True),
        (-signal.SIGTERM, "was ended by SIGTERM", True),
        (-signal.SIGSEGV, "was ended by SIGSEGV", False),
        (-200, "was ended by signal 200", False),
    ],
)
def test_an_end_is_described_in_words(code: int, words: str, from_outside: bool) -> None:
    """An end from outside restarts a candidate; any other end is a crash."""
    assert describe_end(code) == words
    assert is_external_end(code) is from_outside
