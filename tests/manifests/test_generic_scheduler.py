"""manifests/generic-scheduler: least privilege, and the default policy."""

import json

from app.kube.cluster_cache import WATCHED
from app.kube.resources import LONGHORN_NODES
from app.scheduler.lifecycle import LEASE
from scheduler_core.generic.policy import DEFAULT_POLICY, parse_policy
from scheduler_core.generic.rule_registry import ALL_KINDS, SERVICES
from tests.manifests.load import MANIFESTS, Permission, only, permissions

FOLDER = MANIFESTS / "generic-scheduler"
SCHEDULING_PERMISSIONS: frozenset[Permission] = frozenset(
    {(verb, "", kind, "") for kind in ("nodes", "services", "pods") for verb in ("list", "watch")}
    | {("get", "", "pods", ""), ("create", "", "pods/binding", ""), ("patch", "", "pods/status", "")}
    | {(verb, "", "events", "") for verb in ("create", "patch")}
    | {(verb, "", "persistentvolumeclaims", "") for verb in ("get", "patch")}
    | {("get", "storage.k8s.io", "storageclasses", "")}
)
ELECTION_PERMISSIONS: frozenset[Permission] = frozenset(
    {("create", "coordination.k8s.io", "leases", "")}
    | {(verb, "coordination.k8s.io", "leases", LEASE) for verb in ("get", "update")}
)


def test_the_scheduler_has_exactly_the_permissions_that_scheduling_needs() -> None:
    """A widened permission fails here and needs a reason."""
    for kind, expected in (("ClusterRole", SCHEDULING_PERMISSIONS), ("Role", ELECTION_PERMISSIONS)):
        granted = permissions(only(kind, FOLDER / "access"))
        assert frozenset(granted) == expected
        assert len(granted) == len(expected)


def test_longhorns_rules_read_what_the_caches_watch_and_write_nothing() -> None:
    """The classic rules watch nodes and pods already."""
    granted = [
        entry for kind in ("ClusterRole", "Role") for entry in permissions(only(kind, FOLDER / "longhorn-rules"))
    ]
    assert {verb for verb, *_ in granted} == {"get", "list", "watch"}
    watched = {(entry.resource.group, entry.resource.plural) for entry in WATCHED} - {("", "nodes"), ("", "pods")}
    assert {(group, kind) for verb, group, kind, _ in granted if verb == "watch"} == watched
    assert {group for _, group, *_ in permissions(only("Role", FOLDER / "longhorn-rules"))} == {LONGHORN_NODES.group}


def test_more_kinds_are_those_that_single_rules_read_besides() -> None:
    """Nodes, pods and services are always watched."""
    granted = permissions(only("ClusterRole", FOLDER / "more-kinds"))
    assert {verb for verb, *_ in granted} == {"list", "watch"}
    assert {kind for verb, _, kind, _ in granted if verb == "watch"} == ALL_KINDS - SERVICES


def test_its_policy_file_is_the_default_policy() -> None:
    """An administrator begins with the policy that is in force without a file."""
    text = (FOLDER / "policy.json").read_bytes()
    assert parse_policy(text) == DEFAULT_POLICY
    assert json.loads(text)["kind"] == "Policy"
