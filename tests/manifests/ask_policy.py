"""The pods and the policy overlays of the tests of manifests/overlays/ask-policy and scheduler-name-policy."""

from typing import Any

from devcluster.build import MODULE
from devcluster.kubernetes_version import choose, pinned_version
from tests.manifests.load import MANIFESTS, Object

RESOURCE = "longhorn.io/scheduler-extender"
OPT_OUT = "longhorn.io/scheduler-extender-ask"
OVERLAYS = MANIFESTS / "overlays"
ASK = "ask-policy"
SCHEDULER_NAME = "scheduler-name-policy"
BETA_ARGUMENTS = (
    "--feature-gates=MutatingAdmissionPolicy=true",
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
)
"""What an API server before 1.36 needs."""
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
EPHEMERAL = {
    "name": "scratch",
    "ephemeral": {
        "volumeClaimTemplate": {
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        }
    },
}


def is_beta() -> bool:
    version = choose(None, pinned_version((MODULE / "go.mod").read_text()))
    return int(version.split(".")[1]) < 36


def api_server_arguments() -> tuple[str, ...]:
    return BETA_ARGUMENTS if is_beta() else ()


def overlay_for_this_version(name: str) -> str:
    """The path of an overlay, of the variant for the tests' API server."""
    return str(OVERLAYS / (f"{name}-v1beta1" if is_beta() else name))


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "none", **fields}


def asking(name: str, *lists: str) -> dict[str, Any]:
    return container(name, resources={each: {RESOURCE: "1"} for each in lists or ("limits", "requests")})


def pod(metadata: Object | None = None, **spec: Any) -> dict[str, Any]:
    """A pod with a claim and one container, unless the spec says otherwise."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "db", **(metadata or {})},
        # Without a token's volume, whose name is random.
        "spec": {"containers": [container()], "volumes": [CLAIM], "automountServiceAccountToken": False, **spec},
    }


def asking_containers(raw: Object) -> list[str]:
    """The containers of a pod that request the resource, init containers first."""
    spec = raw["spec"]
    names = []
    for entry in (*spec.get("initContainers", ()), *spec["containers"]):
        resources = entry.get("resources", {})
        request, limit = (resources.get(each, {}).get(RESOURCE) for each in ("requests", "limits"))
        assert request == limit, entry
        if request is not None:
            names.append(entry["name"])
    return names


def without_the_resource(raw: Object) -> dict[str, Any]:
    """A pod's spec without the resource, and without the lists and maps that it leaves empty."""
    spec: dict[str, Any] = _pruned(raw["spec"])
    return spec


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        entries = {key: _pruned(entry) for key, entry in value.items() if key != RESOURCE}
        return {key: entry for key, entry in entries.items() if entry not in ({}, [])}
    return [_pruned(entry) for entry in value] if isinstance(value, list) else value
