"""The EndpointSlice on a real API server: written by the leader only, and never over its successor's."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from app.extender.endpoint_publisher import EndpointPublisher
from app.kube.client import KubeClient
from app.kube.resources import ENDPOINT_SLICES
from devcluster.dev_cluster import DevCluster
from scheduler_core.leadership.endpoint_slice import EXTENDER, Endpoint
from tests.control_plane import ControlPlane

pytestmark = [pytest.mark.e2e]

NAME = EXTENDER.name
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[DevCluster]:
    with control_plane.borrow() as started:
        yield started


class Namespace:
    """A namespace and its slice."""

    def __init__(self, cluster: DevCluster, client: KubeClient) -> None:
        self.api = cluster.api
        self._client = client
        self.name = f"publishing-{next(_numbers)}"
        self.path = ENDPOINT_SLICES.path(self.name, NAME)
        self.may_lead = True
        self.api.create(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}
        )

    def publisher(self, address: str = "10.1.2.3", leading: Callable[[], bool] | None = None) -> EndpointPublisher:
        endpoint = Endpoint.at(address, 9504, "node-1")
        return EndpointPublisher(self._client, self.name, endpoint, leading or (lambda: self.may_lead))

    def slice(self) -> dict[str, Any]:
        current: dict[str, Any] = self.api.get(self.path)
        return current

    def addresses(self) -> list[str]:
        return [address for endpoint in self.slice()["endpoints"] or () for address in endpoint["addresses"]]


@pytest.fixture
async def namespace(cluster: DevCluster) -> AsyncIterator[Namespace]:
    async with await KubeClient.connect(str(cluster.kubeconfig)) as client:
        yield Namespace(cluster, client)


@pytest.mark.smoke
async def test_the_first_leader_creates_the_slice_and_does_not_write_it_again(namespace: Namespace) -> None:
    publisher = namespace.publisher()
    assert await publisher.publish()
    current = namespace.slice()
    assert current["metadata"]["labels"] == {
        "kubernetes.io/service-name": NAME,
        "endpointslice.kubernetes.io/managed-by": NAME,
    }
    assert current["addressType"] == "IPv4"
    assert current["endpoints"] == [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}, "nodeName": "node-1"}]
    assert current["ports"] == [{"name": "http", "port": 9504, "protocol": "TCP"}]
    assert await publisher.publish()
    assert namespace.slice()["metadata"]["resourceVersion"] == current["metadata"]["resourceVersion"]


async def test_a_successor_replaces_the_endpoint_for_good_and_keeps_foreign_labels(namespace: Namespace) -> None:
    """A former leader that learns late that it lost leaves it there."""
    former = namespace.publisher("10.1.2.4")
    await former.publish()
    namespace.api.patch(namespace.path, {"metadata": {"labels": {"team": "storage"}}})
    uid = namespace.slice()["metadata"]["uid"]
    await namespace.publisher("10.1.2.5").publish()
    await former.withdraw()
    assert namespace.addresses() == ["10.1.2.5"]
    assert namespace.slice()["metadata"]["uid"] == uid
    assert namespace.slice()["metadata"]["labels"]["team"] == "storage"


async def test_withdrawing_leaves_an_empty_slice_and_can_be_repeated(namespace: Namespace) -> None:
    publisher = namespace.publisher()
    await publisher.withdraw()
    await publisher.publish()
    await publisher.withdraw()
    await publisher.withdraw()
    assert namespace.addresses() == []
    assert await publisher.publish()
    assert namespace.addresses() == ["10.1.2.3"]


async def test_the_leader_empties_a_slice_wherever_it_points(namespace: Namespace) -> None:
    publisher = namespace.publisher("10.1.2.4")
    assert await publisher.empty()
    await namespace.publisher("10.1.2.5").publish()
    elsewhere = [{"addresses": ["10.1.2.6", "10.1.2.7"]}, {"addresses": ["10.1.2.8"], "conditions": {"ready": False}}]
    for endpoints in (namespace.slice()["endpoints"], elsewhere):
        namespace.api.patch(namespace.path, {"endpoints": endpoints})
        namespace.may_lead = False
        assert not await publisher.empty()
        assert namespace.addresses()
        namespace.may_lead = True
        assert await publisher.empty()
        assert namespace.addresses() == []
    version = namespace.slice()["metadata"]["resourceVersion"]
    assert await publisher.empty()
    assert namespace.slice()["metadata"]["resourceVersion"] == version


async def test_a_leader_overtaken_between_reading_and_writing_does_not_overwrite(namespace: Namespace) -> None:
    await namespace.publisher("10.1.2.4").publish()
    calls = []

    def leading() -> bool:
        calls.append(1)
        if len(calls) == 1:
            endpoints = [{"addresses": ["10.1.2.9"], "conditions": {"ready": True}}]
            namespace.api.patch(namespace.path, {"endpoints": endpoints})
            return True
        return False

    assert not await namespace.publisher("10.1.2.5", leading).publish()
    assert namespace.addresses() == ["10.1.2.9"]


async def test_a_leader_tries_again_after_a_conflict(namespace: Namespace) -> None:
    await namespace.publisher("10.1.2.4").publish()
    calls = []

    def leading() -> bool:
        calls.append(1)
        if len(calls) < 3:
            namespace.api.patch(namespace.path, {"metadata": {"labels": {"touched": str(len(calls))}}})
        return True

    assert await namespace.publisher("10.1.2.5", leading).publish()
    assert namespace.addresses() == ["10.1.2.5"]
    assert len(calls) == 3


async def test_a_leader_of_the_other_ip_family_creates_a_new_slice(namespace: Namespace) -> None:
    await namespace.publisher().publish()
    assert await namespace.publisher("2001:DB8::7").publish()
    assert namespace.slice()["addressType"] == "IPv6"
    assert namespace.addresses() == ["2001:db8::7"]
