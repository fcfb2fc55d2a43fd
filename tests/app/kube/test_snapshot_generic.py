"""What the generic scheduler reads of a snapshot, and errors that name line, column, object and field."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.kube.snapshot_file import LoadedCluster, SnapshotFileError, load_cluster
from scheduler_core.generic.policy import DEFAULT_POLICY, Policy, parse_policy
from tests.worlds.generic_objects import ready_node, requesting_pod

NODE = """\
apiVersion: v1
kind: Node
metadata:
  name: a
status:
  capacity:
    pods: "10"
    cpu: many
"""
POD = """\
apiVersion: v1
kind: List
items:
- kind: Node
  apiVersion: v1
  metadata: {name: web}
- kind: Pod
  apiVersion: v1
  metadata: {name: web, namespace: shop}
  spec:
    containers:
    - name: first
    - name: second
      resources:
        requests:
          memory: 1Gi
          cpu: 1 core
"""


def load(folder: Path, content: str | list[dict[str, Any]], policy: Policy = DEFAULT_POLICY) -> LoadedCluster:
    file = folder / "snapshot.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump_all(content))
    return load_cluster(str(file), policy, longhorn=False)


def error(folder: Path, content: str | list[dict[str, Any]]) -> str:
    """The error about a file, without its name."""
    with pytest.raises(SnapshotFileError) as caught:
        load(folder, content)
    return str(caught.value).removeprefix(f"{folder / 'snapshot.yaml'}: ")


def as_json(text: str) -> str:
    return json.dumps(yaml.safe_load(text), indent=1)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        pytest.param(NODE, "line 8, column 10", "Node a: status.capacity[cpu]: 'many' is not", id="node"),
        pytest.param(f"---\n{NODE}", "line 9, column 10", "Node a: status.capacity[cpu]: 'many' is not", id="document"),
        pytest.param(as_json(NODE), "line 10, column 11", "Node a: status.capacity[cpu]: 'many' is not", id="JSON"),
        pytest.param(
            POD,
            "line 17, column 16",
            "Pod shop/web: spec.containers[1].resources.requests[cpu]: '1 core' is not",
            id="container of an item",
        ),
        pytest.param(
            as_json(POD),
            "line 29, column 16",
            "Pod shop/web: spec.containers[1].resources.requests[cpu]: '1 core' is not",
            id="item of a JSON list",
        ),
        pytest.param(
            POD.replace("containers:\n", "nodeSelector: [a]\n    containers:\n"),
            "line 11, column 19",
            "Pod shop/web: spec.nodeSelector: Expected `object | null`, got `array`",
            id="wrong type",
        ),
    ],
)
def test_an_error_names_line_column_object_and_field(text: str, place: str, problem: str, tmp_path: Path) -> None:
    message = error(tmp_path, text)
    assert message.startswith(f"{place}: {problem}")


@pytest.mark.parametrize(
    ("raw", "name"), [(ready_node("a"), "Node a"), (requesting_pod(name="web"), "Pod default/web")], ids=["node", "pod"]
)
def test_an_object_that_is_in_the_file_twice_is_named(raw: dict[str, Any], name: str, tmp_path: Path) -> None:
    message = error(tmp_path, [raw, raw])
    assert message.endswith(f"{name}: is in the file twice")
    line = int(message.partition(",")[0].removeprefix("line "))
    assert line > yaml.safe_dump(raw).count("\n")


@pytest.mark.parametrize("time", ["yesterday", "2026-02-30T00:00:00Z", "2026-01-01", "2026-01-01 00:00:00Z"])
@pytest.mark.parametrize("spec", [{}, {"nodeName": "a"}], ids=["pending", "placed"])
def test_a_creation_time_that_is_none_is_named(time: str, spec: dict[str, Any], tmp_path: Path) -> None:
    raw = requesting_pod(name="web")
    raw["metadata"]["creationTimestamp"] = time
    raw["spec"] |= spec
    assert f"Pod default/web: metadata.creationTimestamp: {time!r} is no time such as" in error(tmp_path, [raw])


@pytest.mark.parametrize("time", ["2026-01-01T01:30:00+01:30", "2026-01-01T00:00:00.75Z", "2026-01-01T00:00:00Z"])
def test_a_creation_time_may_have_an_offset_and_fractions(time: str, tmp_path: Path) -> None:
    raw = requesting_pod(name="web")
    raw["metadata"]["creationTimestamp"] = time
    (pending,) = load(tmp_path, [ready_node("a"), raw]).pods.values()
    assert pending.created == "2026-01-01T00:00:00Z"


def test_a_file_that_is_no_json_is_an_error_with_line_and_column(tmp_path: Path) -> None:
    assert error(tmp_path, '{"kind": "List",\n "items": [,]}').endswith("invalid character (line 2, column 12)")


def test_controllers_and_namespaces_are_read(tmp_path: Path) -> None:
    selector = {"matchLabels": {"app": "web"}}
    objects = [
        ready_node("a"),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "a"}}},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "rs"}, "spec": {"selector": selector}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "st"}, "spec": {"selector": selector}},
        {"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "rc"}, "spec": {"selector": {}}},
        {"apiVersion": "odd.example/v1", "kind": "ReplicaSet", "metadata": {"name": "odd"}},
    ]
    state = load(tmp_path, objects).state
    labels = frozenset({("app", "web")})
    controllers = {key: entry.selects(labels) for key, entry in state.controllers["default"].items()}
    assert controllers == {
        ("ReplicaSet", "default", "rs"): True,
        ("StatefulSet", "default", "st"): True,
        ("ReplicationController", "default", "rc"): False,
    }
    assert dict(state.namespaces) == {"shop": frozenset({("team", "a")})}


def test_missing_namespaces_are_named_if_a_pod_selects_some(tmp_path: Path) -> None:
    """Their labels would count as absent."""
    policy = parse_policy(b'{"predicates": [{"name": "MatchInterPodAffinity"}]}')
    raw = requesting_pod(name="web")
    term = {"topologyKey": "zone", "namespaceSelector": {"matchLabels": {"team": "a"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    objects = [ready_node("a"), raw]
    assert load(tmp_path, objects, policy).warnings == ()
    raw["spec"]["affinity"] = {"podAffinity": required}
    (warning,) = load(tmp_path, objects, policy).warnings
    assert "no namespaces" in warning


def test_a_node_without_allocatable_pods_is_named_if_the_policy_counts_them(tmp_path: Path) -> None:
    policy = parse_policy(b'{"predicates": [{"name": "NodeResourcesFit"}]}')
    raw = ready_node("a")
    assert load(tmp_path, [raw], policy).warnings == ()
    raw["status"]["allocatable"] = {"cpu": "1"}
    (warning,) = load(tmp_path, [raw], policy).warnings
    assert "NodeResourcesFit lets none on any" in warning
