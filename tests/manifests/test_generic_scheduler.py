"""manifests/generic-scheduler: least privilege, and the default policy."""

import json

from app.kube.cluster_cache import WATCHED
from app.kube.resources import LONGHORN_NODES
from scheduler_core.generic.policy import DEFAULT_POLICY, parse_policy
from scheduler_core.generic.rule_registry import ALL_KINDS, SERVICES
from tests.manifests.load import MANIFESTS, only, permissions

FOLDER = MANIFESTS / "generic-scheduler"


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
