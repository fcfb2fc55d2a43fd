"""The placement guard's manifests on a real API server: its certificate is written under its permissions, and nothing else can be."""

import json
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from app.extender.endpoint_publisher import EndpointPublisher
from app.extender.guard_certificate import NAME, WEBHOOK, CertificateOptions, GuardCertificate, decode_certificates
from app.extender.metrics import Metrics
from app.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from app.kube.resources import ENDPOINT_SLICES, MUTATING_WEBHOOKS, SECRETS
from devcluster.dev_cluster import DevCluster
from scheduler_core.leadership.endpoint_slice import PLACEMENT_GUARD, Endpoint
from tests.control_plane import ControlPlane
from tests.manifests.clusters import assert_types_checked, client_of, refused, wait_for_policy
from tests.manifests.load import MANIFESTS, NAME as EXTENDER, NAMESPACE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
CONFIGURATION = MUTATING_WEBHOOKS.path(name=NAME)
SECRET = SECRETS.path(NAMESPACE, NAME)


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[DevCluster]:
    """An API server with the access of the extender and of its placement guard, whose policies are in force."""
    with control_plane.borrow() as running:
        running.kubectl("apply", "--server-side", "-k", str(MANIFESTS / "test-cluster"))
        label = ("label", "mutatingwebhookconfiguration", NAME, "a=b")
        wait_for_policy(running, EXTENDER, "may not change", *label)
        yield running


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[KubeClient]:
    async with client_of(cluster) as connected:
        yield connected


def certificate_of(client: KubeClient) -> GuardCertificate:
    options = CertificateOptions(NAMESPACE, lambda: True, lambda: True, lambda: datetime.now(UTC))
    return GuardCertificate(client, options, Metrics())


def secret_of(cluster: DevCluster) -> dict[str, bytes]:
    return {key: b64decode(text) for key, text in cluster.api.get(SECRET)["data"].items()}


def bundle_of(cluster: DevCluster) -> bytes:
    """The caBundle that API servers trust, whichever process they call."""
    (bundle,) = {webhook["clientConfig"].get("caBundle", "") for webhook in cluster.api.get(CONFIGURATION)["webhooks"]}
    return b64decode(bundle)


@pytest.mark.smoke
async def test_the_leader_makes_the_certificate_and_keeps_the_ca_bundle(
    cluster: DevCluster, client: KubeClient
) -> None:
    certificate = certificate_of(client)
    await certificate.check()
    assert (certificate.ready, certificate.problem) == (True, "")
    assert decode_certificates(secret_of(cluster)).bundle == bundle_of(cluster)
    assert ssl.create_default_context(cadata=bundle_of(cluster).decode()).cert_store_stats()["x509_ca"] >= 1
    before = cluster.api.get(CONFIGURATION)["webhooks"]
    cluster.kubectl("apply", "--server-side", "-k", str(MANIFESTS / "access"))
    assert cluster.api.get(CONFIGURATION)["webhooks"] == before
    version = cluster.api.get(SECRET)["metadata"]["resourceVersion"]
    await certificate.check()
    assert cluster.api.get(SECRET)["metadata"]["resourceVersion"] == version
    cluster.api.patch(SECRET, {"data": None})
    await certificate.check()
    assert decode_certificates(secret_of(cluster)).bundle == bundle_of(cluster)


async def test_the_slice_of_the_guards_service_is_written_under_its_permissions(
    cluster: DevCluster, client: KubeClient
) -> None:
    addresses = ("192.0.2.7", "2001:db8::7")
    publishers = [
        EndpointPublisher(client, NAMESPACE, Endpoint.at(address, 9507), lambda: True, PLACEMENT_GUARD)
        for address in addresses
    ]
    for address, publisher in zip(addresses, publishers, strict=True):
        assert await publisher.publish()
        current = cluster.api.get(ENDPOINT_SLICES.path(NAMESPACE, NAME))
        assert [entry["addresses"] for entry in current["endpoints"]] == [[address]]
        assert [(port["name"], port["port"]) for port in current["ports"]] == [("https", 9507)]
    await publishers[-1].withdraw()
    assert not cluster.api.get(ENDPOINT_SLICES.path(NAMESPACE, NAME))["endpoints"]
    await publishers[-1].publish()
    assert await publishers[0].empty()
    assert not cluster.api.get(ENDPOINT_SLICES.path(NAMESPACE, NAME))["endpoints"]


FORBIDDEN: dict[str, tuple[dict[str, Any], str]] = {
    "another service": ({"clientConfig": {"service": {"name": "other", "namespace": NAMESPACE}}}, "elsewhere"),
    "more objects": ({"namespaceSelector": {"matchLabels": None}}, "called for"),
    "other rules": (
        {"rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]},
        "called for",
    ),
    "failure policy": ({"failurePolicy": "Fail"}, "nothing of the webhook but its caBundle"),
    "time-out": ({"timeoutSeconds": 30}, "nothing of the webhook but its caBundle"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
async def test_nothing_of_the_webhook_but_its_ca_bundle_can_be_changed(
    cluster: DevCluster, client: KubeClient, what: str
) -> None:
    """RBAC allows it; the admission policy does not."""
    change, message = FORBIDDEN[what]
    before = cluster.api.get(CONFIGURATION)["webhooks"]
    with refused(message):
        await client.patch(CONFIGURATION, {"webhooks": [{"name": WEBHOOK, **change}]}, STRATEGIC_MERGE_PATCH)
    assert cluster.api.get(CONFIGURATION)["webhooks"] == before


async def test_no_other_webhook_and_no_other_secret_can_be_reached(client: KubeClient) -> None:
    for path in (MUTATING_WEBHOOKS.path(name="other"), SECRETS.path(NAMESPACE, "other"), SECRETS.path(NAMESPACE)):
        with refused():
            await client.get(path)
    webhook = {"name": "second.example.com", "clientConfig": {"url": "https://example.com"}, "sideEffects": "None"}
    body = {"webhooks": [{**webhook, "admissionReviewVersions": ["v1"]}]}
    with refused("may add and remove no webhook"):
        await client.patch(CONFIGURATION, body, STRATEGIC_MERGE_PATCH)


def test_the_admission_policy_passes_the_type_check(cluster: DevCluster) -> None:
    assert_types_checked(cluster, NAME)


def test_no_match_condition_is_refused(cluster: DevCluster) -> None:
    """The API server compiles it when the object is written."""
    webhooks = cluster.api.get(CONFIGURATION)["webhooks"]
    assert [json.dumps(webhook["matchConditions"]).count("diskID") for webhook in webhooks] == [2, 3]
