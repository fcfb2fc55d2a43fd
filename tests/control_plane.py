"""The control plane that the end-to-end tests of a worker share: started once, and emptied after each file.

Data flow: what exists when the control plane has started is its baseline. A file borrows the cluster, and whatever it started or created
beyond the baseline is stopped and deleted when it gives the cluster back: admission first, then workloads, then everything else. Namespaces
stay, without labels, because their deletion takes five seconds; definitions of custom resources stay, because controllers take half a minute
to notice that one is gone. Where emptying fails, the next file gets a new control plane.

Tests that break the control plane itself, need other flags, or need a cluster into which nothing was installed yet start their own.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from app.kube.client import ApiError
from app.kube.resources import EVENTS, NAMESPACES, Resource
from devcluster.build import CONTROLLER_MANAGER
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.errors import DevClusterError
from devcluster.stack import FAST_CLIENT

# Nothing changes these but the API server or a controller, which would do it again.
_LEFT = {
    "apiservices",
    "componentstatuses",
    "customresourcedefinitions",
    "endpoints",
    "events",
    "ipaddresses",
    NAMESPACES.plural,
}
# The controllers' own accounts and Leases, and what each namespace has.
_LEFT_IN_KUBE_SYSTEM = {"serviceaccounts", "leases", "configmaps"}
_LEFT_EVERYWHERE = {("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")}
# What would refuse or change the deletions that follow, and what would create again what they delete.
_FIRST = (
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicybindings",
    "validatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "statefulsets",
    "deployments",
    "daemonsets",
    "replicasets",
    "jobs",
)
_NAME_LABEL = "kubernetes.io/metadata.name"
_SECONDS = 60.0
_CALLERS = 8
_POLL = 0.1
_NOW = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}

_Key = tuple[Resource, str, str]


class ControlPlane:
    """A worker's control plane; it starts when it is borrowed first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cluster: DevCluster | None = None
        self._baseline: set[_Key] = set()
        self._starts = 0
        self._is_borrowed = False

    @contextmanager
    def borrow(self, *, nodes: int = 0) -> Iterator[DevCluster]:
        """The running cluster with as many nodes and nothing else; it is emptied at the end.

        Raises:
            DevClusterError: it could not be started, or a process of the control plane ended meanwhile
        """
        assert not self._is_borrowed, "one file at a time borrows the control plane"
        cluster = self._running()
        self._is_borrowed = True
        try:
            cluster.begin_audit()
            for number in range(1, nodes + 1):
                cluster.create_node(f"node-{number}")
            cluster.wait_nodes_ready()
            yield cluster
        finally:
            self._is_borrowed = False
            self._give_back(cluster)

    def stop(self) -> None:
        """Stops the control plane, if it runs."""
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None

    def _running(self) -> DevCluster:
        if self._cluster is None:
            self._starts += 1
            options = ClusterOptions(extra_args={CONTROLLER_MANAGER: FAST_CLIENT})
            cluster = DevCluster(self._folder / f"{self._starts}", options)
            cluster.start()
            self._cluster = cluster
            with ThreadPoolExecutor(_CALLERS) as pool:
                self._baseline = {key for key, _ in _objects(cluster, _resources(cluster), pool)}
        return self._cluster

    def _give_back(self, cluster: DevCluster) -> None:
        try:
            cluster.stop_programs()
            _empty(cluster, self._baseline)
            for raw in cluster.api.get(NAMESPACES.path())["items"]:
                # All at once: there may be thousands, of which `doctor` reads those of the last hour.
                cluster.api.delete(EVENTS.path(raw["metadata"]["name"]))
        except (ApiError, DevClusterError) as error:
            print(f"the control plane is replaced by a new one: {error}")
            self.stop()


def _empty(cluster: DevCluster, baseline: set[_Key]) -> None:
    """Deletes all objects beyond the baseline, finalizers included, because what would remove these does not run any more."""
    _remove_labels(cluster)
    resources = list(_resources(cluster))
    deadline = time.monotonic() + _SECONDS
    with ThreadPoolExecutor(_CALLERS) as pool:
        while True:
            surplus = {key: raw for key, raw in _objects(cluster, resources, pool) if key not in baseline}
            if not surplus:
                return
            if time.monotonic() > deadline:
                names = sorted(f"{resource.plural} {namespace}/{name}" for resource, namespace, name in surplus)
                raise DevClusterError(f"objects are left after {_SECONDS:g} s: {names[:10]}")
            keys = [key for key in surplus if key[0].plural in _FIRST] or list(surplus)
            for _ in pool.map(partial(_delete, cluster), keys, [surplus[key]["metadata"] for key in keys]):
                pass  # an error is raised here
            time.sleep(_POLL)


def _remove_labels(cluster: DevCluster) -> None:
    for raw in cluster.api.get(NAMESPACES.path())["items"]:
        name = raw["metadata"]["name"]
        labels = dict.fromkeys(raw["metadata"]["labels"].keys() - {_NAME_LABEL})
        if labels:
            cluster.api.patch(NAMESPACES.path(name=name), {"metadata": {"labels": labels}})


def _delete(cluster: DevCluster, key: _Key, metadata: Mapping[str, Any]) -> None:
    resource, namespace, name = key
    path = resource.path(namespace, name)
    try:
        if metadata.get("finalizers"):
            cluster.api.patch(path, {"metadata": {"finalizers": None}})
        if "deletionTimestamp" not in metadata:
            cluster.api.delete(path, _NOW)
    except ApiError as error:
        if not error.not_found and not error.conflict:
            raise


def _objects(
    cluster: DevCluster, resources: Iterable[Resource], pool: ThreadPoolExecutor
) -> Iterator[tuple[_Key, Mapping[str, Any]]]:
    resources = list(resources)
    for resource, answer in zip(resources, pool.map(lambda each: cluster.api.get(each.path()), resources), strict=True):
        for raw in answer["items"]:
            metadata = raw["metadata"]
            namespace = metadata.get("namespace", "")
            is_left = (resource.plural, metadata["name"]) in _LEFT_EVERYWHERE
            if not is_left and not (namespace == "kube-system" and resource.plural in _LEFT_IN_KUBE_SYSTEM):
                yield (resource, namespace, metadata["name"]), raw


def _resources(cluster: DevCluster) -> Iterator[Resource]:
    """The kinds whose objects can be listed and deleted, each in its preferred version."""
    groups = [("", "v1"), *_preferred_versions(cluster)]
    for group, version in groups:
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        for entry in cluster.api.get(path)["resources"]:
            if {"list", "delete"} <= set(entry["verbs"]) and entry["name"] not in _LEFT:
                yield Resource(group, version, entry["name"], entry["kind"], namespaced=entry["namespaced"])


def _preferred_versions(cluster: DevCluster) -> list[tuple[str, str]]:
    groups = cluster.api.get("/apis")["groups"]
    return [(group["name"], group["preferredVersion"]["version"]) for group in groups]
