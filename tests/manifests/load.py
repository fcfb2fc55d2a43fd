"""Reads manifests, and lists exactly the permissions that they must grant."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from app.cli.commands import load_command

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
CONFIGS = ROOT / "kube-scheduler-config"
NAME = "longhorn-scheduler-extender"
GUARD = f"{NAME}-placement-guard"
OFFERS = f"{NAME}-offers"
OWN_OBJECTS = f"{NAME}-objects"
NAMESPACE = "longhorn-system"
SCORES = ("prioritizeVerb: prioritize", "weight: 1")
"""Lines that a recommended configuration of kube-scheduler has commented out."""

Object = Mapping[str, Any]
Built = dict[tuple[str, str], dict[str, Any]]
"""Objects by kind and name; in another namespace than Longhorn's by kind, namespace and name."""
Permission = tuple[str, str, str, str]
"""Verb, API group, resource, and name ("" for all names)."""

_CACHE = ("list", "watch")
_CLUSTER_KINDS = (
    ("", "nodes"),
    ("", "persistentvolumeclaims"),
    ("", "persistentvolumes"),
    ("", "pods"),
    ("snapshot.storage.k8s.io", "volumesnapshotcontents"),
    ("snapshot.storage.k8s.io", "volumesnapshots"),
    ("storage.k8s.io", "storageclasses"),
    ("storage.k8s.io", "volumeattachments"),
)
# Objects that a request names before a cache has them.
_FETCHED = ("persistentvolumeclaims", "persistentvolumes", "pods", "storageclasses")
CLUSTER_PERMISSIONS: frozenset[Permission] = frozenset(
    {(verb, group, resource, "") for group, resource in _CLUSTER_KINDS for verb in _CACHE}
    | {("get", group, resource, "") for group, resource in _CLUSTER_KINDS if resource in _FETCHED}
    | {("patch", "", "pods", "")}
    | {(verb, "admissionregistration.k8s.io", "mutatingwebhookconfigurations", GUARD) for verb in ("get", "patch")}
)
LONGHORN = (
    "backingimages", "backups", "diskschedules", "engineimages", "instancemanagers", "nodes", "replicas", "settings", "volumes",
)  # fmt: skip
NAMESPACE_PERMISSIONS: frozenset[Permission] = frozenset(
    {(verb, "longhorn.io", resource, "") for resource in LONGHORN for verb in _CACHE}
    | {("get", "longhorn.io", "volumes", "")}
    | {(verb, "", "configmaps", NAME) for verb in _CACHE}
    | {(verb, "", "configmaps", OFFERS) for verb in ("get", "patch")}
    | {(verb, "", "secrets", GUARD) for verb in ("get", "patch")}
    | {("create", "coordination.k8s.io", "leases", ""), ("create", "discovery.k8s.io", "endpointslices", "")}
    | {(verb, "coordination.k8s.io", "leases", NAME) for verb in ("get", "update")}
    | {
        (verb, "discovery.k8s.io", "endpointslices", name)
        for verb in ("delete", "get", "update")
        for name in (NAME, GUARD, f"{GUARD}-standby")
    }
)


def parse(text: str) -> list[Any]:
    # The loader in Python takes ten times as long.
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document is not None]


def documents(path: Path) -> list[Any]:
    return parse(path.read_text())


def yaml_blocks(document: str, start: str = "") -> list[str]:
    """The blocks of YAML in a page of docs/; those that begin with a comment `start`, if it is given."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [block for block in blocks if block.startswith(f"# {start}" if start else "")]


def by_name(entries: Iterable[dict[str, Any]]) -> Built:
    return {(entry["kind"], object_name(entry["metadata"])): entry for entry in entries}


def object_name(metadata: Object) -> str:
    namespace = metadata.get("namespace", NAMESPACE)
    return str(metadata["name"] if namespace == NAMESPACE else f"{namespace}/{metadata['name']}")


def pod_spec(built: Built, deployment: str = NAME) -> dict[str, Any]:
    spec: dict[str, Any] = built["Deployment", deployment]["spec"]["template"]["spec"]
    return spec


def assert_restricted(spec: Object) -> None:
    """A pod meets the restricted Pod Security Standard: it sets every required field, and has no forbidden one."""
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not any("hostPort" in port for port in container.get("ports", ()))


def flags_of(command: str) -> set[str]:
    return {option for parameter in load_command(command).params for option in parameter.opts}


def with_scores(config: Path) -> str:
    """Returns a configuration of kube-scheduler in which the lines for scores are uncommented."""
    text = config.read_text()
    for line in SCORES:
        assert text.count(f"    # {line}\n") == 1, line
        text = text.replace(f"    # {line}\n", f"    {line}\n")
    return text


def objects(directory: Path) -> Iterator[Object]:
    (kustomization,) = documents(directory / "kustomization.yaml")
    for entry in kustomization["resources"]:
        path = (directory / entry).resolve()
        yield from objects(path) if path.is_dir() else documents(path)


def only(kind: str, directory: Path = MANIFESTS / "base", *, name: str = "") -> Object:
    entries = (entry for entry in objects(directory) if entry["kind"] == kind)
    (only_object,) = (entry for entry in entries if name in ("", entry["metadata"]["name"]))
    return only_object


def permissions(role: Object) -> list[Permission]:
    """The permissions that a Role or ClusterRole grants."""
    return [
        (verb, group, resource, name)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    ]
