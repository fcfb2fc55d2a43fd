"""Fixtures of the development cluster's own tests."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from devcluster.build import ensure_built
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from tests.devcluster.go_stand_in import Go


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[DevCluster]]:
    """Two clusters that start at the same moment; tests leave them unchanged."""
    pair = [
        DevCluster(tmp_path_factory.mktemp("first"), ClusterOptions(nodes=3)),
        DevCluster(tmp_path_factory.mktemp("second"), ClusterOptions(nodes=1, audit=False)),
    ]
    ensure_built()
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        started = time.monotonic()
        for cluster in pair:
            stack.callback(cluster.stop)
        list(pool.map(DevCluster.start, pair))
        print(f"two clusters started at once were ready after {time.monotonic() - started:.1f} s")
        yield pair


@pytest.fixture(scope="module")
def cluster(clusters: list[DevCluster]) -> DevCluster:
    """A cluster with three nodes; tests leave it unchanged."""
    return clusters[0]


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    folder = tmp_path / "go"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return Go(folder)
