"""Both IP families: one listener for all addresses, and one for a single address of either family."""

import socket
from pathlib import Path

import pytest

from scheduler_core.structs import replace
from tests.worlds.abuse import FITTING, abused_service

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")]


@pytest.mark.parametrize(
    ("host", "answers", "refuses"),
    [
        ("::", ["127.0.0.1", "::1"], []),
        ("::1", ["::1"], ["127.0.0.1"]),
        ("127.0.0.1", ["127.0.0.1"], ["::1"]),
        ("0.0.0.0", ["127.0.0.1"], ["::1"]),  # noqa: S104 # under test
    ],
)
def test_the_service_listens_where_it_is_told(
    tmp_path: Path, host: str, answers: list[str], refuses: list[str]
) -> None:
    """`::` is every address of both families."""
    with abused_service(tmp_path, "--host", host) as service:
        for address in answers:
            assert replace(service, host=address).filter() == FITTING
        for address in refuses:
            with pytest.raises(OSError, match="refused"):
                replace(service, host=address).dial()
