"""Snapshot and pod files: the forms they may have, what the generic scheduler reads of them, and one clear line about broken ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.kube.snapshot_file import (
    LoadedCluster,
    LoadedSnapshot,
    SnapshotFileError,
    load_cluster,
    load_snapshot,
    named_pod,
    pod_in_file,
)
from scheduler_core.generic.policy import DEFAULT_POLICY, Policy, parse_policy
from scheduler_core.model.snapshot import Snapshot
from tests.builders import Object, claim, disk, longhorn_node, pod, setting
from tests.worlds.command_line import Run
from tests.worlds.generic_objects import ready_node, requesting_pod
from tests.worlds.service import db_pod, small_cluster


def _load(folder: Path, text: str | bytes) -> LoadedSnapshot:
    file = folder / "snapshot"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_snapshot(str(file))


def _error_line(run: Run, *command: str) -> str:
    result = run(*command)
    assert (result.code, result.out) == (2, "")
    (line,) = result.err.splitlines()
    return line


def _list(objects: list[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects}


def _typed_lists(objects: list[Object], *, bare: bool) -> list[Object]:
    """One list per kind, as `kubectl get --raw` prints them: their items have neither kind nor apiVersion."""
    lists: dict[tuple[str, str], list[Object]] = {}
    for entry in objects:
        item = {key: value for key, value in entry.items() if not bare or key not in {"kind", "apiVersion"}}
        lists.setdefault((entry["apiVersion"], entry["kind"]), []).append(item)
    return [{"apiVersion": group, "kind": f"{kind}List", "items": items} for (group, kind), items in lists.items()]


# `longhorn-extender snapshot` writes namespaces, too, of which no warning says that they are ignored.
CLUSTER = [*small_cluster(), db_pod(), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}]
FORMS = [
    pytest.param(json.dumps(_list(CLUSTER)), id="a JSON list"),
    pytest.param(json.dumps(_list(CLUSTER), indent=4) + "\n\n", id="an indented JSON list"),
    pytest.param(yaml.safe_dump(_list(CLUSTER)), id="a YAML list"),
    pytest.param(yaml.safe_dump_all(CLUSTER), id="YAML documents"),
    pytest.param("---\n" + "\n---\n---\n".join(map(yaml.safe_dump, CLUSTER)) + "...\n", id="empty documents between"),
    pytest.param(yaml.safe_dump_all(_typed_lists(CLUSTER, bare=False)), id="typed lists"),
    pytest.param(yaml.safe_dump_all(_typed_lists(CLUSTER, bare=True)), id="typed lists of bare items"),
    pytest.param(json.dumps(_list(_typed_lists(CLUSTER, bare=True))), id="lists in a list"),
    pytest.param("\ufeff" + yaml.safe_dump(_list(CLUSTER)), id="byte order mark"),
    pytest.param(yaml.safe_dump(_list(CLUSTER)).replace("\n", "\r\n"), id="Windows line ends"),
]


@pytest.mark.parametrize("text", FORMS)
def test_every_output_of_kubectl_is_the_same_snapshot(tmp_path: Path, text: str) -> None:
    """Lists, typed lists and documents may be YAML or JSON."""
    loaded = _load(tmp_path, text)
    assert loaded.snapshot == _load(tmp_path, json.dumps(_list(CLUSTER))).snapshot
    assert loaded.warnings == ()
    assert len(loaded.snapshot.longhorn_nodes) == 4


@pytest.mark.parametrize("items", ["[]", "null"])
def test_an_empty_list_is_an_empty_cluster(tmp_path: Path, items: str) -> None:
    loaded = _load(tmp_path, f'{{"apiVersion":"v1","kind":"List","items":{items}}}')
    assert loaded.snapshot == Snapshot()
    assert loaded.warnings == (f"{tmp_path}/snapshot: no nodes.longhorn.io: no node can take a Longhorn volume",)


def test_unknown_kinds_are_ignored_with_a_warning(tmp_path: Path, run: Run) -> None:
    """It is on standard error, so that standard output stays the answer."""
    unknown = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}},
        {"apiVersion": "longhorn.io/v1beta2", "kind": "Orphan", "metadata": {"name": "c"}},
        {"apiVersion": "example.com/v1", "kind": "Node", "metadata": {"name": "d"}},
    ]
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps(_list([*CLUSTER, *unknown])))
    result = run("explain", "--snapshot", str(file), "--pod", "db-0", "-o", "json")
    assert result.code == 0
    assert json.loads(result.out)["pod"] == "default/db-0"
    assert result.err.splitlines() == [
        f"warning: {file}: ignored 2 of kind ConfigMap",
        f"warning: {file}: ignored 1 of kind Node.example.com",
        f"warning: {file}: ignored 1 of kind Orphan.longhorn.io",
    ]


@pytest.mark.parametrize(
    "text",
    ["no", "off", "y", "2026-01-01", "2026-01-01T00:00:00Z", "1e3", "012", "0x1f", "1_000", "12:30:45", "=", ".inf"],
)
def test_plain_texts_that_yaml_1_1_would_change_stay_texts(tmp_path: Path, text: str) -> None:
    node = f"apiVersion: v1\nkind: Node\nmetadata:\n  name: n\n  labels: {{a: {text}}}\n"
    assert _load(tmp_path, node).snapshot.nodes["n"].labels == {"a": text}


@pytest.mark.parametrize(
    ("text", "size"), [("1e3", 1000), ("100Gi", 100 * 1024**3), ("1000", 1000), ("0.5Ki", 512), ("1500m", 2)]
)
def test_a_quantity_may_be_written_without_quotes(tmp_path: Path, text: str, size: int) -> None:
    written = yaml.safe_dump(claim("c", "SIZE")).replace("SIZE", text)
    assert _load(tmp_path, written).snapshot.claims["default", "c"].spec.request == size


def test_anchors_and_merge_keys_are_resolved(tmp_path: Path) -> None:
    text = """\
    apiVersion: v1
    kind: List
    items:
    - &first {apiVersion: v1, kind: Node, metadata: &metadata {name: a, labels: {zone: east}}}
    - {<<: *first, metadata: {<<: *metadata, name: b}}
    """
    nodes = _load(tmp_path, text).snapshot.nodes
    assert {name: node.labels for name, node in nodes.items()} == {"a": {"zone": "east"}, "b": {"zone": "east"}}


@pytest.mark.parametrize("dump", [json.dumps, yaml.safe_dump])
@pytest.mark.parametrize("number", ["4.398046511104e+12", "4398046511104.0"])
def test_a_whole_number_may_have_an_exponent_or_a_fraction(
    tmp_path: Path, number: str, dump: Callable[[Object], str]
) -> None:
    """Kubectl prints large numbers so (longhorn/longhorn#10436)."""
    text = dump(longhorn_node("node-1", {"disk-1": disk(4321)})).replace(str(4321 * 2**30), number)
    assert number in text
    [found] = _load(tmp_path, text).snapshot.longhorn_nodes["node-1"].disks
    assert found.storage_maximum == 4398046511104


def test_outputs_that_were_appended_without_a_line_between_are_refused(tmp_path: Path) -> None:
    """The last list would win, and half of the cluster would be gone."""
    text = yaml.safe_dump(_list([pod("a")]), sort_keys=False) + yaml.safe_dump(_list([pod("b")]), sort_keys=False)
    with pytest.raises(SnapshotFileError, match=r"'apiVersion' is written twice; between two outputs .* at line \d+"):
        _load(tmp_path, text)


def _broken_disk(**status: Any) -> Object:
    node = longhorn_node("node-1", {"disk-1": disk()})
    node["status"]["diskStatus"]["disk-1"] |= status
    return node


BROKEN = [
    pytest.param(
        "a: b: c", "is not YAML: mapping values are not allowed in this context at line 1, column 5", id="YAML"
    ),
    pytest.param(
        "kind: Node\nmetadata:\n  name: x\n bad: y\n", "is not YAML: did not find expected key at line 4", id="indent"
    ),
    pytest.param("kind: [", "is not YAML: did not find expected node content", id="open bracket"),
    pytest.param("a: &x\nb: *y", "is not YAML: found undefined alias at line 2", id="undefined alias"),
    pytest.param(
        "!!python/object:os.system {}", "is not YAML: could not determine a constructor", id="a Python object"
    ),
    pytest.param("a: \x01", "is not YAML: unacceptable character", id="control character"),
    pytest.param(b"a: \xff", "is not YAML: unacceptable character", id="YAML that is no UTF-8"),
    pytest.param(b"\xff\xfea", "is not YAML: ", id="half of UTF-16"),
    pytest.param('{"kind":', "is not JSON: Input data was truncated", id="JSON cut off"),
    pytest.param('{"kind":"Node",\n"kind":"Pod"}', "line 2, column 1: 'kind' is written twice", id="a JSON key twice"),
    pytest.param(
        '{"kind":"Node",\n"kind":"P\\u003Ad"}',
        "line 2, column 1: 'kind' is written twice",
        id="a JSON key twice, and an escaped colon",
    ),
    pytest.param(
        "kind: Node\nmetadata: {name: a}\nspec: {x: 1, x: 2}",
        "'x' is written twice; between two outputs of kubectl there must be a line --- at line 3, column 14",
        id="a YAML key twice",
    ),
    pytest.param(
        "kind: Node\napiVersion: longhorn.io/v1beta1\nmetadata: {name: a, namespace: b}",
        "Node.longhorn.io b/a: longhorn.io/v1beta1 is not read, longhorn.io/v1beta2 is: kubectl get nodes.v1beta2",
        id="another version of Longhorn's API",
    ),
    pytest.param('{"kind":"List",}', "is not JSON: JSON is malformed", id="JSON"),
    pytest.param('{"kind": "List",\n "items": [,]}', "invalid character (line 2, column 12)", id="a place in JSON"),
    pytest.param('{"kind":"Node","x":NaN}', "is not JSON: JSON is malformed", id="NaN"),
    pytest.param(b'{"kind":"\xff"}', "is not JSON: 'utf-8' codec", id="JSON that is no UTF-8"),
    pytest.param("[" * 100_000, "is nested too deeply", id="YAML brackets"),
    pytest.param("- " * 100_000, "is nested too deeply", id="YAML lists"),
    pytest.param('{"a":' * 100_000, "is nested too deeply", id="JSON objects"),
    pytest.param("&a {kind: List, items: [*a]}", "lists are nested too deeply", id="a list that holds itself"),
    pytest.param("hello", "is no Kubernetes object", id="a text"),
    pytest.param("[1, 2]", "is no Kubernetes object", id="an array"),
    pytest.param(
        "kind: Node\nmetadata: {name: a}\n---\nfoo: bar",
        "document 2: is no Kubernetes object: it has no kind",
        id="no kind",
    ),
    pytest.param("kind: 5", "is no Kubernetes object: it has no kind", id="kind a number"),
    pytest.param("kind: List\nitems: {}", "List: items: expected a list of objects", id="items an object"),
    pytest.param(
        "kind: NodeList\nitems: [{metadata: {name: a}}, null]", "NodeList: items[1]: is no Kubernetes", id="item null"
    ),
    pytest.param(
        "kind: List\nitems: [{metadata: {name: a}}]",
        "List: items[0]: is no Kubernetes object: it has no kind",
        id="bare item",
    ),
    pytest.param("kind: Node", "Node (no name): Object missing required field `metadata`", id="no metadata"),
    pytest.param("kind: Node\nmetadata: {}", "Node: metadata.name: is missing", id="no name"),
    pytest.param("kind: Node\nmetadata: {name: [a]}", "metadata.name: Expected `str`, got `array`", id="name a list"),
    pytest.param(
        "kind: Pod\nmetadata: {name: p, namespace: shop}\nspec: {volumes: 5}",
        "Pod shop/p: spec.volumes: Expected `array | null`, got `int`",
        id="volumes a number",
    ),
    pytest.param(
        json.dumps(_broken_disk(storageMaximum="100Gi")),
        "Node.longhorn.io longhorn-system/node-1: status.diskStatus[...].storageMaximum: Expected `int | null`, got `str`",
        id="field of another type",
    ),
    pytest.param(
        json.dumps(_broken_disk(storageMaximum=2**63)),
        "Node.longhorn.io longhorn-system/node-1: status.diskStatus.disk-1.storageMaximum: 9223372036854775808 does not fit",
        id="more than 64 bits",
    ),
    pytest.param(
        json.dumps(claim("c", "-1Gi", namespace="shop")),
        "PersistentVolumeClaim shop/c: spec.resources.requests.storage: '-1Gi' is negative",
        id="negative quantity",
    ),
    pytest.param(
        json.dumps(claim("c", "lots")),
        "PersistentVolumeClaim default/c: spec.resources.requests.storage: 'lots' is not a quantity",
        id="no quantity",
    ),
    pytest.param(
        yaml.safe_dump_all([claim("c", 1), claim("c", 2)]),
        "PersistentVolumeClaim default/c: appears twice with different contents",
        id="one name twice",
    ),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN)
def test_a_broken_snapshot_is_an_error_of_one_line(tmp_path: Path, run: Run, text: str | bytes, problem: str) -> None:
    file = tmp_path / "snapshot"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    line = _error_line(run, "explain", "--snapshot", str(file), "--pod", "x")
    assert line.startswith(f"longhorn-extender: {file}: ")
    assert problem in line


@pytest.mark.parametrize("command", [["explain", "--pod", "x"], ["serve", "--port", "0"]])
def test_a_setting_that_longhorn_cannot_read_is_an_error_of_one_line(
    tmp_path: Path, run: Run, command: list[str]
) -> None:
    """Longhorn would place nothing. The line names file, setting and value."""
    file = tmp_path / "snapshot.json"
    name = "storage-over-provisioning-percentage"
    file.write_text(json.dumps(_list([*CLUSTER, pod(name="x"), setting(name, "lots")])))
    line = _error_line(run, *command, "--snapshot", str(file))
    assert line.startswith(f"longhorn-extender: {file}: Setting.longhorn.io {name}: value: 'lots' is not ")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param("missing.yaml", "cannot be read: No such file or directory", id="missing"),
        pytest.param(".", "cannot be read: Is a directory", id="a folder"),
        pytest.param("x" * 5000, "cannot be read: File name too long", id="too long a name"),
    ],
)
def test_a_snapshot_that_cannot_be_read_is_named(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(SnapshotFileError, match=problem):
        load_snapshot(str(tmp_path / name))


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        pytest.param([], "holds no pod, expected exactly one of CronJob, DaemonSet, Deployment", id="none"),
        pytest.param([claim("c")], "holds no pod", id="claims only"),
        pytest.param([pod(name="a"), pod(name="b")], "holds 2 pods, expected exactly one", id="two"),
        pytest.param(
            [{"kind": "Deployment", "metadata": {"name": "d"}}],
            "Deployment d: spec.template: is missing",
            id="no template",
        ),
        pytest.param([{"kind": "Pod", "metadata": {"name": 5}}], "Pod 5: metadata.name: Expected `str`", id="name 5"),
    ],
)
def test_a_pods_file_must_have_one_pod(tmp_path: Path, objects: list[Object], problem: str) -> None:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(_list(objects)))
    with pytest.raises(SnapshotFileError) as raised:
        pod_in_file(str(file), Snapshot())
    assert str(raised.value).startswith(f"{file}: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize("name", ["nothing", "x" * 5000, "a\0b", "shop/nothing"])
def test_a_pod_that_is_neither_file_nor_in_the_snapshot_is_named(name: str) -> None:
    """The text says what may be given instead."""
    with pytest.raises(SnapshotFileError) as raised:
        named_pod(name, Snapshot())
    assert str(raised.value).startswith(f"{name}: there is neither such a file nor such a pod")


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


def _load_generic(folder: Path, content: str | list[dict[str, Any]], policy: Policy = DEFAULT_POLICY) -> LoadedCluster:
    file = folder / "snapshot.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump_all(content))
    return load_cluster(str(file), policy, longhorn=False)


def _generic_error(folder: Path, content: str | list[dict[str, Any]]) -> str:
    """The error about a file, without its name."""
    with pytest.raises(SnapshotFileError) as caught:
        _load_generic(folder, content)
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
    message = _generic_error(tmp_path, text)
    assert message.startswith(f"{place}: {problem}")


@pytest.mark.parametrize(
    ("raw", "name"), [(ready_node("a"), "Node a"), (requesting_pod(name="web"), "Pod default/web")], ids=["node", "pod"]
)
def test_an_object_that_is_in_the_file_twice_is_named(raw: dict[str, Any], name: str, tmp_path: Path) -> None:
    message = _generic_error(tmp_path, [raw, raw])
    assert message.endswith(f"{name}: is in the file twice")
    line = int(message.partition(",")[0].removeprefix("line "))
    assert line > yaml.safe_dump(raw).count("\n")


@pytest.mark.parametrize("time", ["yesterday", "2026-02-30T00:00:00Z", "2026-01-01", "2026-01-01 00:00:00Z"])
@pytest.mark.parametrize("spec", [{}, {"nodeName": "a"}], ids=["pending", "placed"])
def test_a_creation_time_that_is_none_is_named(time: str, spec: dict[str, Any], tmp_path: Path) -> None:
    raw = requesting_pod(name="web")
    raw["metadata"]["creationTimestamp"] = time
    raw["spec"] |= spec
    assert f"Pod default/web: metadata.creationTimestamp: {time!r} is no time such as" in _generic_error(
        tmp_path, [raw]
    )


@pytest.mark.parametrize("time", ["2026-01-01T01:30:00+01:30", "2026-01-01T00:00:00.75Z", "2026-01-01T00:00:00Z"])
def test_a_creation_time_may_have_an_offset_and_fractions(time: str, tmp_path: Path) -> None:
    raw = requesting_pod(name="web")
    raw["metadata"]["creationTimestamp"] = time
    (pending,) = _load_generic(tmp_path, [ready_node("a"), raw]).pods.values()
    assert pending.created == "2026-01-01T00:00:00Z"


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
    state = _load_generic(tmp_path, objects).state
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
    assert _load_generic(tmp_path, objects, policy).warnings == ()
    raw["spec"]["affinity"] = {"podAffinity": required}
    (warning,) = _load_generic(tmp_path, objects, policy).warnings
    assert "no namespaces" in warning


def test_a_node_without_allocatable_pods_is_named_if_the_policy_counts_them(tmp_path: Path) -> None:
    policy = parse_policy(b'{"predicates": [{"name": "NodeResourcesFit"}]}')
    raw = ready_node("a")
    assert _load_generic(tmp_path, [raw], policy).warnings == ()
    raw["status"]["allocatable"] = {"cpu": "1"}
    (warning,) = _load_generic(tmp_path, [raw], policy).warnings
    assert "NodeResourcesFit lets none on any" in warning
