"""The cluster of the tests of DiskSchedules."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.dev_cluster import DevCluster
from tests.control_plane import ControlPlane
from tests.e2e.disk_schedule import MANIFESTS, Longhorn, install


@pytest.fixture(scope="module")
def installation(control_plane: ControlPlane) -> Iterator[tuple[DevCluster, Path]]:
    """A control plane with Longhorn's definitions and the controllers' manifests. No controller runs."""
    with control_plane.borrow() as cluster:
        yield cluster, install(cluster)


@pytest.fixture
def longhorn(installation: tuple[DevCluster, Path], request: pytest.FixtureRequest) -> Iterator[Longhorn]:
    """A namespace of its own, with the Role of the manifests in the parameter."""
    namespace = Longhorn(*installation, manifests=getattr(request, "param", MANIFESTS))
    yield namespace
    namespace.stop()
