"""Reads the output of `kubectl get -A -o yaml` into a `Snapshot`.

Data flow: text → documents (YAML or JSON) → objects (Lists taken apart) → `scheduler_core.convert` →
one Snapshot. Every problem is one `SnapshotFileError` that names file, object and field, and the line and column.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from app.kube.resources import LONGHORN_NODES
from scheduler_core import errors
from scheduler_core.convert import generic, json_text, kubectl, snapshot_kinds, wire_types
from scheduler_core.decide.kube_scheduler_filters import VolumeAffinity
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import Policy
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.generic import Namespace, Node, PodKey
from scheduler_core.model.kube import Pod
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.structs import Struct

STDIN = "-"
# `longhorn-extender snapshot` writes them for `explain` and predictions.
_SILENTLY_IGNORED = frozenset({("Namespace", ""), ("StatefulSet", "apps")})
_Result = TypeVar("_Result")


class SnapshotFileError(errors.CoreError):
    """A file cannot be read as Kubernetes objects. The text names file, object and field."""


class LoadedSnapshot(Struct, frozen=True):
    """A snapshot read from a file."""

    snapshot: Snapshot
    warnings: tuple[str, ...] = ()  # what was ignored or looks wrong, as sentences for the administrator


def load_snapshot(source: str) -> LoadedSnapshot:
    return snapshot_of(source, read_objects(source), _SILENTLY_IGNORED)


def snapshot_of(
    source: str,
    objects: Iterable[tuple[str, str, object]],
    skipped_kinds: frozenset[tuple[str, str]] = frozenset(),
    kinds: Mapping[tuple[str, str], snapshot_kinds.SnapshotKind] = snapshot_kinds.KINDS,
) -> LoadedSnapshot:
    """Returns the snapshot of objects that were read from `source`, as `kinds` reads them.

    The caller reads `skipped_kinds`, by kind and API group, so no warning says that they are ignored. Raises a
    SnapshotFileError if an object cannot be read.
    """
    entries: list[tuple[snapshot_kinds.SnapshotKind, object]] = []
    ignored: Counter[str] = Counter()
    for kind, group, raw in objects:
        if (kind, group) in skipped_kinds:
            continue
        entry = kinds.get((group, kind))
        if entry is None:
            ignored[f"{kind}.{group}" if group else kind] += 1
        else:
            _check_version(source, entry, raw)
            entries.append((entry, raw))
    snapshot = read_from(source, lambda: snapshot_kinds.build_snapshot(entries))
    read_from(source, lambda: Settings.parse(snapshot.settings))
    warnings = [f"ignored {count} of kind {kind}" for kind, count in sorted(ignored.items())]
    if not snapshot.longhorn_nodes:
        warnings.append("no nodes.longhorn.io: no node can take a Longhorn volume")
    return LoadedSnapshot(snapshot, tuple(f"{source}: {warning}" for warning in warnings))


def _check_version(source: str, kind: snapshot_kinds.SnapshotKind, raw: Any) -> None:
    expected = f"{LONGHORN_NODES.group}/{LONGHORN_NODES.version}"
    version = raw.get("apiVersion") if isinstance(raw, dict) else None
    if kind.group == LONGHORN_NODES.group and version != expected:
        command = f"kubectl get {kind.kind.lower()}s.{LONGHORN_NODES.version}.{LONGHORN_NODES.group} -A -o yaml"
        raise SnapshotFileError(
            f"{source}: {wire_types.object_name(kind.label, raw)}: {version} is not read, {expected} is: {command}"
        )


def pod_in_file(source: str, snapshot: Snapshot) -> tuple[Pod, Snapshot, tuple[str, object]]:
    """Returns the pod that a file describes, the snapshot with the file's other objects, and the undecoded pod or
    workload with its kind. Raises a SnapshotFileError if the file cannot be read, or holds none or several pods.
    """
    pods: list[tuple[str, object]] = []
    other_objects: list[tuple[snapshot_kinds.SnapshotKind, object]] = []
    for kind, group, raw in read_objects(source):
        entry = snapshot_kinds.KINDS.get((group, kind))
        if kind in snapshot_kinds.WORKLOADS:
            pods.append((kind, raw))
        elif entry is not None:
            other_objects.append((entry, raw))
    if len(pods) != 1:
        count = "no pod" if not pods else f"{len(pods)} pods"
        expected = ", ".join(sorted(snapshot_kinds.WORKLOADS))
        raise SnapshotFileError(f"{source}: holds {count}, expected exactly one of {expected}")
    kind, raw = pods[0]
    pod = read_from(source, lambda: kubectl.read_pod(kind, raw))
    return pod, read_from(source, lambda: snapshot_kinds.build_snapshot(other_objects, base=snapshot)), (kind, raw)


def is_file(source: str) -> bool:
    """Whether a text names a file or standard input."""
    try:
        return source == STDIN or Path(source).exists()
    except OSError:
        # The text is too long for the name of a file.
        return False


def named_pod(name: str, snapshot: Snapshot, namespace: str | None = None) -> Pod:
    """Returns the pod of a name or ``namespace/name``. A name alone is sought in `namespace`, if given. Raises a
    SnapshotFileError if there is no such pod, or there are several.
    """
    matches = [
        pod
        for pod in snapshot.pods.values()
        if name == pod.key or (name == pod.name and namespace in (None, pod.namespace))
    ]
    if len(matches) != 1:
        place = "" if namespace is None else f" in namespace {namespace}"
        problem = (
            f"there is neither such a file nor such a pod{place}" if not matches else "several pods have this name"
        )
        raise SnapshotFileError(f"{name}: {problem}; give a file, or namespace/name of a pod")
    return matches[0]


def read_objects(source: str) -> Iterator[tuple[str, str, object]]:
    """Yields each object of a file as (kind, API group, undecoded object). Raises a SnapshotFileError if the file is
    missing, or is neither YAML nor JSON.
    """
    documents = [document for document in _documents(source) if document is not None]
    for index, document in enumerate(documents):
        place = f"{source}: document {index + 1}" if len(documents) > 1 else source
        try:
            yield from _flatten(place, document)
        except RecursionError as error:
            raise SnapshotFileError(f"{place}: lists are nested too deeply") from error


def _flatten(place: str, document: object) -> Iterator[tuple[str, str, object]]:
    if not isinstance(document, dict):
        raise SnapshotFileError(f"{place}: is no Kubernetes object")
    kind = document.get("kind")
    if not isinstance(kind, str) or not kind:
        raise SnapshotFileError(f"{place}: is no Kubernetes object: it has no kind")
    api_version = document.get("apiVersion")
    group = snapshot_kinds.group_of(api_version if isinstance(api_version, str) else "v1")
    if not kind.endswith("List") or "items" not in document:
        yield kind, group, document
        return
    # Go writes an empty list as null.
    items = document["items"] if document["items"] is not None else []
    if not isinstance(items, list):
        raise SnapshotFileError(f"{place}: {kind}: items: expected a list of objects")
    # kubectl get --raw prints typed lists whose items carry neither kind nor apiVersion.
    defaults = {} if kind == "List" else {"kind": kind.removesuffix("List"), "apiVersion": api_version}
    for index, item in enumerate(items):
        complete_item = {**defaults, **item} if defaults and isinstance(item, dict) else item
        yield from _flatten(f"{place}: {kind}: items[{index}]", complete_item)


def _documents(source: str) -> Iterable[Any]:
    text = _read_bytes(source)
    try:
        if text.lstrip()[:1] == b"{":
            document = _JSON.decode(text)
            # A repeated key is lost in the values, and its colon with it; a text may escape a colon (\u003a). Python's decoder, which
            # looks at each key, takes six times as long.
            if text.count(b":") != msgspec.json.encode(document).count(b":") or b"\\u003" in text:
                json.loads(text, object_pairs_hook=_check_keys)
            return [document]
    except json_text.RepeatedKeyError as error:
        content = text.decode()
        offset = json_text.JsonPlaces.of(content).duplicates[0].offsets[1]
        raise SnapshotFileError(f"{source}: {json_text.line_and_column(content, offset)}: {error}") from error
    except RecursionError as error:
        raise SnapshotFileError(f"{source}: is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SnapshotFileError(f"{source}: is not JSON: {json_text.describe_syntax_error(text, error)}") from error
    # Its import brings PyYAML, which a JSON file does not need.
    from app.kube.yaml_text import load_yaml

    try:
        return load_yaml(text)
    except ValueError as error:
        raise SnapshotFileError(f"{source}: is not YAML: {error}") from error
    except RecursionError as error:
        raise SnapshotFileError(f"{source}: is nested too deeply") from error


def _read_bytes(source: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    except OSError as error:
        raise SnapshotFileError(f"{source}: cannot be read: {error.strerror}") from error


_JSON = msgspec.json.Decoder(float_hook=json_text.read_number)


def _check_keys(pairs: Sequence[tuple[str, object]]) -> None:
    # Decoders keep the last value, so that the objects of an earlier list would be lost.
    if len({key for key, _ in pairs}) < len(pairs):
        keys = Counter(key for key, _ in pairs)
        raise json_text.RepeatedKeyError(next(key for key, count in keys.items() if count > 1))


def read_from(source: str, read: Callable[[], _Result]) -> _Result:
    """Returns the result of `read`, whose errors get the file's name, line and column. Raises a SnapshotFileError if an
    object or a setting cannot be read.
    """
    try:
        return read()
    except errors.ObjectError as error:
        from app.kube.yaml_text import position

        # Standard input cannot be read a second time.
        place = "" if source == STDIN else position(_read_bytes(source), error)
        raise SnapshotFileError(": ".join(part for part in (source, place, str(error)) if part)) from error
    except errors.SettingError as error:
        raise SnapshotFileError(f"{source}: {error}") from error


# This predicate also limits the number of pods on a node.
_POD_COUNT_RULE = "PodFitsResources"
# The same, as kube-scheduler counts today.
_ALLOCATABLE_RULE = "NodeResourcesFit"
_NAMESPACE_RULE = "MatchInterPodAffinity"
_GENERIC_KINDS = frozenset({("Service", ""), ("Namespace", ""), *generic.CONTROLLERS})


class LoadedCluster(Struct, frozen=True):
    """The content of a snapshot file."""

    state: GenericClusterState
    pods: Mapping[PodKey, generic.PendingPod]  # all pods, by namespace and name
    snapshot: Snapshot  # what Longhorn's rules read; empty unless requested
    warnings: tuple[str, ...]  # what was ignored or looks wrong, as sentences for the administrator


def load_cluster(source: str, policy: Policy, *, longhorn: bool) -> LoadedCluster:
    """Reads a snapshot file ("-" for standard input) for a policy. With `longhorn` the objects that Longhorn's rules
    read are included. Raises a SnapshotFileError if the file is missing, is neither YAML nor JSON, or holds an object
    that cannot be read.
    """
    objects = list(read_objects(source))
    state, pods = read_from(source, lambda: _read_generic(objects))
    warnings = tuple(f"{source}: {problem}" for problem in _policy_warnings(state, pods.values(), policy))
    loaded = snapshot_of(source, objects, skipped_kinds=_GENERIC_KINDS) if longhorn else LoadedSnapshot(Snapshot())
    return LoadedCluster(state, pods, loaded.snapshot, warnings + loaded.warnings)


def _read_generic(
    objects: Iterable[tuple[str, str, object]],
) -> tuple[GenericClusterState, dict[PodKey, generic.PendingPod]]:
    """Reads the objects that the generic scheduler reads, and no others. Raises an ObjectError if an object cannot be
    read, or a node or pod is among them twice.
    """
    nodes: dict[str, Node] = {}
    pods: dict[PodKey, generic.PendingPod] = {}
    by_kind: dict[tuple[str, str], list[object]] = {}
    for kind, group, raw in objects:
        if (kind, group) == ("Node", ""):
            node = generic.NODE.read(raw)
            _check_new(node.name, nodes, kind, raw)
            nodes[node.name] = node
        elif (kind, group) == ("Pod", ""):
            pending = generic.read_pending_pod(raw)
            _check_new(pending.pod.namespaced_name, pods, kind, raw)
            pods[pending.pod.namespaced_name] = pending
        else:
            by_kind.setdefault((kind, group), []).append(raw)
    services = map(generic.SERVICE.read, by_kind.get(("Service", ""), ()))
    state = GenericClusterState.of(nodes.values(), (entry.pod for entry in pods.values()), services)
    for key, fields in generic.CONTROLLERS.items():
        state = reduce(GenericClusterState.with_controller, map(fields.read, by_kind.get(key, ())), state)
    namespaces = map(generic.NAMESPACE.read, by_kind.get(("Namespace", ""), ()))
    return reduce(GenericClusterState.with_namespace, namespaces, state), pods


def _check_new(key: object, known: Mapping[Any, object], kind: str, raw: object) -> None:
    if key in known:
        raise errors.ObjectError(wire_types.object_name(kind, raw), "", "is in the file twice")


def _policy_warnings(state: GenericClusterState, pods: Iterable[generic.PendingPod], policy: Policy) -> Iterator[str]:
    if not state.nodes:
        yield "no nodes: no pod can go anywhere"
        return
    nodes = [info.node for info in state.nodes.values()]
    rules = {entry.rule for entry in policy.predicates}
    problem = "no node says how many pods it takes (status.{0}), so {1} lets none on any"
    if _POD_COUNT_RULE in rules and not any(node.pods for node in nodes):
        yield problem.format("capacity", _POD_COUNT_RULE)
    if _ALLOCATABLE_RULE in rules and not any(node.allocatable.get("pods") for node in nodes):
        yield problem.format("allocatable", _ALLOCATABLE_RULE)
    constraints = (pending.pod.scheduling.constraints for pending in pods)
    terms = (term for each in constraints for term in (*each.pod_affinity, *each.pod_anti_affinity))
    selectors = (term.namespace_selector for term in terms)
    selective = (selector for selector in selectors if selector is not None and not selector.matches_everything)
    if _NAMESPACE_RULE in rules and not state.namespaces and any(True for _ in selective):
        yield f"no namespaces, whose labels {_NAMESPACE_RULE} reads for these pods: add them to the file"


_WORKLOAD_GROUPS = frozenset({"apps", "batch"})
SCHEDULING_KINDS = frozenset(
    {("Namespace", "")} | {(kind, group) for kind in snapshot_kinds.WORKLOADS - {"Pod"} for group in _WORKLOAD_GROUPS}
)
"""Kinds by API group that this module reads, and decisions do not."""


class SchedulingObjects(Struct, frozen=True):
    """A cluster as kube-scheduler's filters read it."""

    state: GenericClusterState
    affinities: Mapping[str, VolumeAffinity]  # the required node affinity of PersistentVolumes, by name
    # Undecoded Deployments, StatefulSets and the like, by kind, namespace and name.
    workloads: Mapping[tuple[str, str, str], Any]

    @classmethod
    def of(cls, objects: Iterable[tuple[str, str, Any]], pods: Iterable[Pod]) -> "SchedulingObjects":
        """Reads the objects of a snapshot, except for its pods. Each is (kind, API group, undecoded object); other
        kinds are left out. Raises an ObjectError if an object cannot be read.
        """
        nodes: list[Node] = []
        namespaces: list[Namespace] = []
        affinities: dict[str, VolumeAffinity] = {}
        workloads: dict[tuple[str, str, str], Any] = {}
        for kind, group, raw in objects:
            if (kind, group) == ("Node", ""):
                nodes.append(generic.NODE.read(raw))
            elif (kind, group) == ("Namespace", ""):
                namespaces.append(generic.NAMESPACE.read(raw))
            elif (kind, group) == ("PersistentVolume", ""):
                affinity = generic.VOLUME_NODE_AFFINITY.read(raw)
                if affinity.terms is not None:
                    affinities[affinity.volume] = affinity.terms
            elif (kind, group) in SCHEDULING_KINDS:
                metadata = raw.get("metadata") or {}
                workloads[kind, metadata.get("namespace") or "default", metadata.get("name", "")] = raw
        state = reduce(GenericClusterState.with_namespace, namespaces, GenericClusterState.of(nodes, pods, ()))
        return cls(state, affinities, workloads)
