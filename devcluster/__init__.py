"""A real Kubernetes control plane on this machine, for development and end-to-end tests (docs/architecture.md).

etcd, kube-apiserver, kube-controller-manager and kube-scheduler are the real ones, built once; kwok plays the kubelets.
"""

from __future__ import annotations

from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.errors import BuildError, ConfigError, DevClusterError, KubectlError, ProcessError
from devcluster.process import Process, http_ok, log_has

__all__ = [
    "BuildError",
    "ClusterOptions",
    "ConfigError",
    "DevCluster",
    "DevClusterError",
    "KubectlError",
    "Process",
    "ProcessError",
    "http_ok",
    "log_has",
]
