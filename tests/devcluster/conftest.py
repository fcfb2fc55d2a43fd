"""Fixtures of the development cluster's own tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from devcluster import ClusterOptions, DevCluster
from devcluster.build import ensure_built


@pytest.fixture
def anyio_backend() -> str:
    """The event loop the forwarder runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[DevCluster]]:
    """Two clusters that were started at the same moment, for tests that leave them as they are."""
    made = [
        DevCluster(tmp_path_factory.mktemp("first"), ClusterOptions(nodes=3)),
        DevCluster(tmp_path_factory.mktemp("second"), ClusterOptions(nodes=1, audit=False)),
    ]
    ensure_built()
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        started = time.monotonic()
        for cluster in made:
            stack.callback(cluster.stop)
        list(pool.map(DevCluster.start, made))
        print(f"two clusters started at once were ready after {time.monotonic() - started:.1f} s")
        yield made


@pytest.fixture(scope="session")
def cluster(clusters: list[DevCluster]) -> DevCluster:
    """One cluster with three nodes, for tests that leave it as it is."""
    return clusters[0]
