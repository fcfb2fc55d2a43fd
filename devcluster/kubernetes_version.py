"""Which Kubernetes the control plane is, and the go.mod of a version that is not pinned. One version is pinned: its go.mod and
go.sum are part of the repository. For any other version the requirements follow from Kubernetes' own go.mod, with the etcd that
it names; `go mod tidy` does the rest, and Go's checksum database verifies what it downloads.
"""

import os
import re
from collections.abc import Mapping

from devcluster import toolchain
from devcluster.errors import BuildError, ConfigError

VARIABLE = "DEVCLUSTER_KUBERNETES_VERSION"
KUBERNETES = "k8s.io/kubernetes"
_ETCD_SERVER = "go.etcd.io/etcd/server/v3"
_PATTERN = re.compile(r"v?(1\.\d+\.\d+)")


def pinned_version(go_mod: str) -> str:
    return _version_of(go_mod, KUBERNETES).removeprefix("v")


def choose(wanted: str | None, default: str, environment: Mapping[str, str] = os.environ) -> str:
    """The version to use, without ``v``: the wanted one, that of the environment, or the default."""
    text = wanted or environment.get(VARIABLE) or default
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is no release of Kubernetes; write one such as {default}")
    return match.group(1)


def go_mod(version: str, kubernetes_go_mod: str) -> str:
    """The go.mod of a control plane of some version, before ``go mod tidy``.

    Kubernetes' own go.mod replaces its staging modules by folders. They are published as v0.x with the same minor and patch.

    Raises:
        BuildError: that file names no version of Go or etcd
    """
    staging = f"v0.{version.removeprefix('1.')}"
    modules = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", kubernetes_go_mod, re.MULTILINE)
    required = {
        _ETCD_SERVER: _version_of(kubernetes_go_mod, _ETCD_SERVER),
        "k8s.io/component-base": staging,
        "k8s.io/kubectl": staging,
        KUBERNETES: f"v{version}",
    }
    return "\n".join(
        [
            "module longhorn-extender/devcluster/controlplane",
            f"go {toolchain.required_version(kubernetes_go_mod)}",
            "require (",
            *(f"\t{module} {release}" for module, release in required.items()),
            ")",
            "replace (",
            *(f"\t{module} => {module} {staging}" for module in modules),
            ")",
            "",
        ]
    )


def _version_of(go_mod_text: str, module: str) -> str:
    match = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", go_mod_text, re.MULTILINE)
    if match is None:
        raise BuildError(f"go.mod does not require {module}")
    return match.group(1)
