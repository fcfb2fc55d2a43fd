"""Tokens, policies and pods of the tests on a real API server."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from app.kube.client import ApiError, KubeClient
from app.kube.resources import PODS
from devcluster.dev_cluster import DevCluster
from devcluster.polling import wait_until
from tests.manifests.load import NAME, NAMESPACE


@asynccontextmanager
async def client_of(cluster: DevCluster, account: str = NAME) -> AsyncIterator[KubeClient]:
    """A client with a program's token."""
    client = await KubeClient.connect(str(cluster.service_account_kubeconfig(NAMESPACE, account)))
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def refused(message: str | None = None) -> Iterator[None]:
    """The API server forbids what is called inside, with this message if it is given."""
    with pytest.raises(ApiError, match=message) as refusal:
        yield
    assert refusal.value.forbidden


def wait_for_policy(cluster: DevCluster, account: str, refusal: str, *command: str, body: str | None = None) -> None:
    """Returns once the API server enforces a policy, some time after its creation: RBAC alone allows the command."""
    user = ("--as", f"system:serviceaccount:{NAMESPACE}:{account}", "--as-group", "system:authenticated")
    dry_run = (*command, "--dry-run=server", *user)
    wait_until(f"the policy of {account}", lambda: refusal in cluster.kubectl(*dry_run, input=body, check=False))


def assert_types_checked(cluster: DevCluster, policy: str) -> None:
    """The API server would warn about a field that a kind does not have."""
    path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{policy}"
    wait_until("the types to be checked", lambda: "typeChecking" in cluster.api.get(path).get("status", {}))
    assert cluster.api.get(path)["status"]["typeChecking"] == {}


def pod(name: str, namespace: str = "default", *, resource: bool = False, **spec: Any) -> dict[str, Any]:
    """A pod that meets the restricted Pod Security Standard, and fits on any node; it may request the extender's resource."""
    requests = {"longhorn.io/scheduler-extender": "1"} if resource else {}
    container = {"name": "main", "image": "none", "resources": {"requests": requests, "limits": requests}}
    container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container], "securityContext": context, **spec},
    }


def node_of(cluster: DevCluster, name: str, namespace: str = "default") -> str:
    """The node of a pod, "" while it is pending."""
    return str(cluster.api.get(PODS.path(namespace, name))["spec"].get("nodeName", ""))
