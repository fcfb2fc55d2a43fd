"""The service that every file of these tests abuses."""

from collections.abc import Iterator

import pytest

from tests.worlds.abuse import AbusedService, abused_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AbusedService]:
    """One service for all tests of a file: it survives them."""
    with abused_service(tmp_path_factory.mktemp("service")) as service:
        yield service
