"""The EndpointSlice on a real API server: written by the leader only, and never over its successor's."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from app.extender.endpoint_publisher import Publisher
from app.kube.client import KubeClient
from app.kube.resources import ENDPOINT_SLICES
from devcluster import DevCluster, Options
from scheduler_core.errors import CoreError
from scheduler_core.leadership.endpoint_slice import NAME

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("publishing")]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """An API server."""
    with DevCluster(tmp_path_factory.mktemp("publishing"), Options(audit=False)) as started:
        yield started


class Namespace:
    """One namespace and its slice."""

    def __init__(self, cluster: DevCluster, client: KubeClient) -> None:
        self.api, self._client = cluster.api, client
        self.name = f"publishing-{next(_numbers)}"
        self.path = ENDPOINT_SLICES.path(self.name, NAME)
        self.may_lead = True
        self.api.create(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}
        )

    def publisher(self, address: str = "10.1.2.3", node: str = "node-1") -> Publisher:
        """One process's."""
        return Publisher(self._client, self.name, address, 9504, node, leading=lambda: self.may_lead)

    def slice(self) -> dict[str, Any]:
        """As it is now."""
        current: dict[str, Any] = self.api.get(self.path)
        return current

    def addresses(self) -> list[str]:
        """Where it leads."""
        return [address for endpoint in self.slice()["endpoints"] or () for address in endpoint["addresses"]]


@pytest.fixture
async def namespace(cluster: DevCluster) -> AsyncIterator[Namespace]:
    """One of its own."""
    client = await KubeClient.connect(str(cluster.kubeconfig))
    yield Namespace(cluster, client)
    await client.close()


async def test_the_first_leader_creates_the_slice(namespace: Namespace) -> None:
    """As the API server prints it."""
    assert await namespace.publisher().publish()
    current = namespace.slice()
    assert current["metadata"]["labels"] == {
        "kubernetes.io/service-name": NAME,
        "endpointslice.kubernetes.io/managed-by": NAME,
    }
    assert current["addressType"] == "IPv4"
    assert current["endpoints"] == [{"addresses": ["10.1.2.3"], "conditions": {"ready": True}, "nodeName": "node-1"}]
    assert current["ports"] == [{"name": "http", "port": 9504, "protocol": "TCP"}]


async def test_publishing_again_writes_nothing(namespace: Namespace) -> None:
    """The version stays."""
    publisher = namespace.publisher()
    await publisher.publish()
    before = namespace.slice()["metadata"]["resourceVersion"]
    assert await publisher.publish()
    assert namespace.slice()["metadata"]["resourceVersion"] == before


async def test_a_successor_replaces_and_others_labels_stay(namespace: Namespace) -> None:
    """One write, without a moment of nothing."""
    await namespace.publisher("10.1.2.4").publish()
    namespace.api.patch(namespace.path, {"metadata": {"labels": {"team": "storage"}}})
    uid = namespace.slice()["metadata"]["uid"]
    await namespace.publisher("10.1.2.5").publish()
    assert namespace.addresses() == ["10.1.2.5"]
    assert namespace.slice()["metadata"]["uid"] == uid
    assert namespace.slice()["metadata"]["labels"]["team"] == "storage"


async def test_withdrawing_leaves_an_empty_slice_and_can_be_repeated(namespace: Namespace) -> None:
    """Before anything was published, too."""
    publisher = namespace.publisher()
    await publisher.withdraw()
    await publisher.publish()
    await publisher.withdraw()
    await publisher.withdraw()
    assert namespace.addresses() == []
    assert await publisher.publish()
    assert namespace.addresses() == ["10.1.2.3"]


async def test_withdrawing_leaves_a_successors_slice_alone(namespace: Namespace) -> None:
    """A leader that hears late that it lost."""
    former = namespace.publisher("10.1.2.4")
    await former.publish()
    await namespace.publisher("10.1.2.5").publish()
    await former.withdraw()
    assert namespace.addresses() == ["10.1.2.5"]


async def test_who_does_not_lead_writes_nothing(namespace: Namespace) -> None:
    """And is told."""
    await namespace.publisher("10.1.2.4").publish()
    namespace.may_lead = False
    assert not await namespace.publisher("10.1.2.5").publish()
    assert namespace.addresses() == ["10.1.2.4"]


async def test_a_leader_overtaken_between_reading_and_writing_does_not_overwrite(
    namespace: Namespace, cluster: DevCluster
) -> None:
    """The successor writes at the worst moment: after the former leader has looked and found itself leading."""
    client = await KubeClient.connect(str(cluster.kubeconfig))
    await namespace.publisher("10.1.2.4").publish()
    asked = []

    def leading() -> bool:
        asked.append(1)
        if len(asked) == 1:
            endpoints = [{"addresses": ["10.1.2.9"], "conditions": {"ready": True}}]
            namespace.api.patch(namespace.path, {"endpoints": endpoints})
            return True
        return False

    assert not await Publisher(client, namespace.name, "10.1.2.5", 9504, "", leading=leading).publish()
    assert namespace.addresses() == ["10.1.2.9"]
    await client.close()


async def test_a_leader_goes_on_when_somebody_else_touches_the_slice(namespace: Namespace, cluster: DevCluster) -> None:
    """A conflict is looked at again."""
    client = await KubeClient.connect(str(cluster.kubeconfig))
    await namespace.publisher("10.1.2.4").publish()
    asked = []

    def leading() -> bool:
        asked.append(1)
        if len(asked) < 3:
            namespace.api.patch(namespace.path, {"metadata": {"labels": {"touched": str(len(asked))}}})
        return True

    assert await Publisher(client, namespace.name, "10.1.2.5", 9504, "", leading=leading).publish()
    assert namespace.addresses() == ["10.1.2.5"]
    assert len(asked) == 3
    await client.close()


async def test_a_leader_of_the_other_ip_family_makes_a_new_slice(namespace: Namespace) -> None:
    """The address type of a slice cannot be changed."""
    await namespace.publisher().publish()
    assert await namespace.publisher("2001:DB8::7").publish()
    assert namespace.slice()["addressType"] == "IPv6"
    assert namespace.addresses() == ["2001:db8::7"]


@pytest.mark.parametrize("address", ["127.0.0.1", "pod-1", ""])
async def test_an_address_that_cannot_be_published_is_refused_at_once(namespace: Namespace, address: str) -> None:
    """Not when the first leader is elected."""
    with pytest.raises(CoreError, match="the leader's address"):
        namespace.publisher(address)
