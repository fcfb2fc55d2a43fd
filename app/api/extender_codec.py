"""kube-scheduler's extender messages (k8s.io/kube-scheduler/extender/v1), decoded and encoded.

The Go types have no JSON tags, so kube-scheduler writes `Pod`, `Nodes` and `NodeNames`, with null for the form it does not use. Go reads any
case, so lower-case and camelCase are accepted too. Answers use Go's spelling.

Full nodes are kept as bytes: they are located, named and sent back, never parsed into objects. The JSON decoder delimits the items.
`node_names` reads their names, and `locate_nodes` their positions in the body. So the answer sends nodes as views of the request, byte
for byte and without a copy.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, starmap
from typing import Any, TypeVar

import msgspec

from app.api.errors import RequestError
from app.runtime.decision_thread import Turns
from scheduler_core import errors
from scheduler_core.convert import generic, kube
from scheduler_core.model.kube import Pod
from scheduler_core.structs import Struct

# How kube-scheduler starts a node: a first name that every reader of JSON sees.
_USUAL_START = re.compile(rb'\{"metadata":\{"name":"([^"\\]+)"')
_SEPARATOR = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
# Shorter runs are joined: copying them is cheaper than another write to the socket.
_JOIN_BELOW = 1 << 16
# Longer runs are sent in parts: what the socket does not take waits in memory.
_MAX_PIECE = 1 << 20


class _Metadata(msgspec.Struct, gc=False):
    name: str = ""


class _Node(msgspec.Struct, gc=False):
    metadata: _Metadata


_NODE = msgspec.json.Decoder(_Node)


class Pieces(Struct, frozen=True):
    """Runs of a body to send one after the other, separated by commas."""

    body: bytearray
    runs: list[tuple[int, int]]

    @property
    def size(self) -> int:
        return sum(end - start for start, end in self.runs) + max(0, len(self.runs) - 1)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        view = memoryview(self.body)
        pending: list[bytes | memoryview] = []
        size = 0
        separator = b""
        for start, end in self.runs:
            pending.append(separator)
            separator = b","
            large = end - start >= _JOIN_BELOW
            if not large:
                pending.append(view[start:end])
                size += end - start
            if large or size >= _JOIN_BELOW:
                yield b"".join(pending)
                pending = []
                size = 0
            if large:
                yield from (view[part : min(part + _MAX_PIECE, end)] for part in range(start, end, _MAX_PIECE))
        yield b"".join(pending)


class NodeRuns(Struct, frozen=True):
    """Where the nodes of a body start and end in it."""

    body: bytearray
    starts: list[int]
    ends: list[int]

    def select(self, keep: Sequence[bool]) -> Pieces:
        """Returns the nodes to keep; neighbours are one run, with the separators of the request."""
        runs: list[tuple[int, int]] = []
        for kept, group in groupby(range(len(keep)), keep.__getitem__):
            if kept:
                indexes = list(group)
                runs.append((self.starts[indexes[0]], self.ends[indexes[-1]]))
        return Pieces(self.body, runs)


async def node_names(items: Sequence[msgspec.Raw], turns: Turns) -> list[str]:
    """Returns the names of the items of a node list. Raises a RequestError if an item is no node."""
    names: list[str] = []
    for index, item in enumerate(items):
        names.append(_name(item, index))
        await turns.end_if_due()
    return names


async def locate_nodes(body: bytearray, items: Sequence[msgspec.Raw], turns: Turns) -> NodeRuns:
    """Returns where the items of a node list are in the body; no two items may be equal."""
    start = body.find(items[0]) if items else -1
    while start >= 0:
        # An occurrence of the first item is either the list or fails at its second item.
        bounds = await _bounds(body, items, start, turns)
        if bounds is not None:
            return NodeRuns(body, *bounds)
        start = body.find(items[0], start + 1)
    return NodeRuns(body, [], [])


async def _bounds(
    body: bytearray, items: Sequence[msgspec.Raw], start: int, turns: Turns
) -> tuple[list[int], list[int]] | None:
    """Returns starts and ends of the items from `start`, None if the body has other bytes there."""
    starts: list[int] = []
    ends: list[int] = []
    for item in items:
        if not body.startswith(item, start):
            return None
        await turns.end_if_due()
        starts.append(start)
        end = start + len(memoryview(item))
        ends.append(end)
        if body.startswith(b",{", end):
            start = end + 1
        else:
            separator = _SEPARATOR.match(body, end)
            start = separator.end() if separator else end
    return starts, ends


def _name(item: msgspec.Raw, index: int) -> str:
    try:
        name = _NODE.decode(item).metadata.name
        usual = _USUAL_START.match(item)
        names = {usual[1].decode()} if usual is not None else _all_names(bytes(item))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RequestError(f"Nodes.items[{index}] is not a node: {error}") from error
    # Of a key that comes twice the decoder reads the last value, as Go does; a caller that reads the first would mean
    # another node.
    if names and names != {name}:
        different = " and ".join(map(repr, sorted(names | {name})))
        raise RequestError(f"Nodes.items[{index}] has several names: {different}")
    return name


def _all_names(node: bytes) -> set[str]:
    # Most nodes have each key once, and need no slower look.
    if node.count(b'"metadata"') == node.count(b'"name"') == 1 and b"\\u" not in node:
        return set()
    names: set[str] = set()
    for key, metadata in json.loads(node, object_pairs_hook=list):
        if key == "metadata" and isinstance(metadata, list):
            names.update(value for key, value in metadata if key == "name" and isinstance(value, str))
    return names


_ABSENT = msgspec.Raw(b"null")
# Kubernetes supports clusters of up to 5,000 nodes.
MAX_CANDIDATES = 20_000
# Memory that decoding and deciding take at most, measured: for each comma of a body, of a pod and of victims, and for each node.
_ELEMENT_BYTES = 64
_POD_ELEMENT_BYTES = 512
_VICTIM_ELEMENT_BYTES = 256
_CANDIDATE_BYTES = 512
# What is counted of a large body.
_WINDOWS = 1024
_WINDOW_BYTES = 1024

Charge = Callable[[int], None]


class _NodeList(msgspec.Struct, gc=False):
    items: list[msgspec.Raw] | None = None


class _RawArgs(msgspec.Struct, gc=False):
    """ExtenderArgs with the spellings that callers use; the pod is decoded by itself."""

    Pod: msgspec.Raw = _ABSENT
    pod: msgspec.Raw = _ABSENT
    Nodes: _NodeList | None = None
    nodes: _NodeList | None = None
    NodeNames: list[str] | None = None
    nodeNames: list[str] | None = None
    nodenames: list[str] | None = None


class _Victims(msgspec.Struct, gc=False):
    """Victims or MetaVictims: pods as objects or by UID."""

    Pods: "list[_Victim] | None" = None
    pods: "list[_Victim] | None" = None
    NumPDBViolations: int = 0
    numPDBViolations: int = 0
    numpdbviolations: int = 0


class _VictimMetadata(msgspec.Struct, gc=False):
    uid: str = ""


class _Victim(msgspec.Struct, gc=False):
    UID: str = ""
    uid: str = ""
    metadata: _VictimMetadata | None = None


class _RawPreemptionArgs(msgspec.Struct, gc=False):
    """ExtenderPreemptionArgs with the spellings that callers use."""

    Pod: msgspec.Raw = _ABSENT
    pod: msgspec.Raw = _ABSENT
    NodeNameToVictims: dict[str, _Victims] | None = None
    nodeNameToVictims: dict[str, _Victims] | None = None
    nodenametovictims: dict[str, _Victims] | None = None
    NodeNameToMetaVictims: dict[str, _Victims] | None = None
    nodeNameToMetaVictims: dict[str, _Victims] | None = None
    nodenametometavictims: dict[str, _Victims] | None = None


class _HostPriority(msgspec.Struct, gc=False):
    Host: str
    Score: int


_ARGS = msgspec.json.Decoder(_RawArgs)
# By whether the rules of a policy file read the pod, too.
_PODS = {
    scheduling: (msgspec.json.Decoder[Any](fields.wire), fields)
    for scheduling, fields in ((False, kube.POD), (True, generic.SCHEDULED_POD))
}
_PREEMPTION_ARGS = msgspec.json.Decoder(_RawPreemptionArgs)
_Decoded = TypeVar("_Decoded")
_Value = TypeVar("_Value")
_encode = msgspec.json.Encoder().encode
_NONE: Mapping[str, str] = {}


class ExtenderArgs(Struct, frozen=True):
    """A pod and the nodes to decide about."""

    pod: Pod
    candidates: Sequence[str]  # names of the nodes, in the order of the request
    runs: NodeRuns | None = None  # where full nodes are in the body; None if the answer has names


class PreemptionArgs(Struct, frozen=True):
    """A pod and the victims on each node."""

    pod: Pod
    # UIDs of the pods and number of PDB violations, by name of the node.
    victims: Mapping[str, tuple[tuple[str, ...], int]]


async def decode_filter(
    body: bytearray, charge: Charge, *, scheduling: bool = False, names_only: bool = False
) -> ExtenderArgs:
    """Decodes the body of /filter, /prioritize and /explain. `charge` is called with the memory that this takes, before
    it is taken. `scheduling`: there is a policy file, whose rules read `Pod.scheduling`. `names_only`: the answer has
    no full nodes. Raises a RequestError, which names the field, if it
    is not JSON, has another shape, or contradicts itself.
    """
    turns = Turns()
    raw, names, items = await _pod_and_nodes(body, charge, turns)
    pod = _pod(raw, scheduling=scheduling)
    runs = None if items is None or names_only else (await locate_nodes(body, items, turns))
    return ExtenderArgs(pod, names, runs)


async def _pod_and_nodes(
    body: bytearray, charge: Charge, turns: Turns
) -> tuple[msgspec.Raw, list[str], list[msgspec.Raw] | None]:
    charge(_ELEMENT_BYTES * _commas(body))
    args = _decode(_ARGS, body)
    pod = _raw_pod(charge, args.Pod, args.pod)
    nodes = _one("Nodes", args.Nodes, args.nodes)
    names = _one("NodeNames", args.NodeNames, args.nodeNames, args.nodenames)
    _check_forms("Nodes and NodeNames", nodes, names)
    if nodes is None:
        names = names or []
        _check_count(len(names))
        charge(_CANDIDATE_BYTES * len(names))
        _check_names(names)
        return pod, names, None
    if nodes.items is None:
        raise RequestError("Nodes.items is missing or null, expected a list of nodes")
    _check_count(len(nodes.items))
    charge(_CANDIDATE_BYTES * len(nodes.items))
    names = await node_names(nodes.items, turns)
    _check_names(names)
    return pod, names, nodes.items


def _check_count(count: int) -> None:
    if count > MAX_CANDIDATES:
        raise RequestError(f"{count} nodes are asked about; one request may name {MAX_CANDIDATES}")


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise RequestError(f"node {twice!r} is asked about twice")
    if "" in names:
        raise RequestError(f"node {names.index('')} (counted from 0) has no name")


def decode_preempt(body: bytearray, charge: Charge, *, scheduling: bool) -> PreemptionArgs:
    """Decodes the body of /preempt; arguments as in decode_filter. Raises a RequestError, which names the
    field, if it is not JSON, has another shape, or contradicts itself.
    """
    charge(_VICTIM_ELEMENT_BYTES * _commas(body))
    args = _decode(_PREEMPTION_ARGS, body)
    raw = _raw_pod(charge, args.Pod, args.pod)
    victims = _one("NodeNameToVictims", args.NodeNameToVictims, args.nodeNameToVictims, args.nodenametovictims)
    meta = _one(
        "NodeNameToMetaVictims", args.NodeNameToMetaVictims, args.nodeNameToMetaVictims, args.nodenametometavictims
    )
    _check_forms("NodeNameToVictims and NodeNameToMetaVictims", victims, meta)
    _check_count(len(victims or meta or {}))
    by_node = {
        name: (
            tuple(
                pod.UID or pod.uid or (pod.metadata.uid if pod.metadata else "") for pod in each.Pods or each.pods or ()
            ),
            each.NumPDBViolations or each.numPDBViolations or each.numpdbviolations,
        )
        for name, each in (victims or meta or {}).items()
    }
    return PreemptionArgs(_pod(raw, scheduling=scheduling), by_node)


def _decode(decoder: msgspec.json.Decoder[_Decoded], text: bytearray | msgspec.Raw, place: str = "") -> _Decoded:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        field = f"{place}{path.rstrip('`')}".strip(".")
        raise RequestError(f"{field or 'the body'}: {problem}") from error
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


def _one(name: str, *spellings: _Value | None) -> _Value | None:
    values = [value for value in spellings if value is not None]
    if len(values) > 1:
        raise RequestError(f"{name} is given twice, in two spellings")
    return values[0] if values else None


def _check_forms(names: str, full: object, short: object) -> None:
    if (full is None) == (short is None):
        raise RequestError(f"expected one of {names}, got {'neither' if full is None else 'both'}")


def _commas(body: bytearray) -> int:
    """Returns how many commas a body has, of a large one an estimate."""
    # Counting 50 MB takes 30 ms. Windows at random places of equal parts miss no dense part that matters, wherever the
    # caller puts it.
    stride = len(body) // _WINDOWS
    if stride <= _WINDOW_BYTES:
        return body.count(b",")
    starts = (part * stride + secrets.randbelow(stride - _WINDOW_BYTES + 1) for part in range(_WINDOWS))
    counted = sum(body.count(b",", start, start + _WINDOW_BYTES) for start in starts)
    return counted * len(body) // (_WINDOWS * _WINDOW_BYTES)


def _raw_pod(charge: Charge, *spellings: msgspec.Raw) -> msgspec.Raw:
    raw = _one("Pod", *(None if spelling == _ABSENT else spelling for spelling in spellings))
    if raw is None:
        raise RequestError("Pod is missing or null")
    # To count, it is copied.
    charge(len(memoryview(raw)))
    charge(_POD_ELEMENT_BYTES * bytes(raw).count(b","))
    return raw


def _pod(raw: msgspec.Raw, *, scheduling: bool) -> Pod:
    decoder, fields = _PODS[scheduling]
    pod = _decode(decoder, raw, "Pod")
    if not pod.metadata.name:
        raise RequestError("Pod.metadata.name is missing")
    try:
        return fields.construct(pod)
    except errors.CoreError as error:
        raise RequestError(str(error)) from error


def filter_result(
    names: Sequence[str] | None, unresolvable: Mapping[str, str], error: str = "", failed: Mapping[str, str] = _NONE
) -> bytes:
    """Returns an ExtenderFilterResult with names; None and an error mean that nothing was decided. Preemption may help
    on the `failed` nodes, and cannot on the `unresolvable` ones.
    """
    return _encode(
        {
            "Nodes": None,
            "NodeNames": names,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": unresolvable,
            "Error": error,
        }
    )


def priority_list(scores: Mapping[str, int]) -> bytes:
    """Returns a HostPriorityList, in the order of the scores."""
    return _encode(list(starmap(_HostPriority, scores.items())))


def error_result(error: str) -> bytes:
    return _encode({"Error": error})


def filter_result_around(unresolvable: Mapping[str, str], failed: Mapping[str, str] = _NONE) -> tuple[bytes, bytes]:
    """Returns an ExtenderFilterResult with full nodes, as the bytes before and after the nodes."""
    tail = _encode({"NodeNames": None, "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable, "Error": ""})
    return b'{"Nodes":{"metadata":{},"items":[', b"]}," + tail[1:]


def preemption_result(victims: Mapping[str, tuple[tuple[str, ...], int]]) -> bytes:
    """Returns an ExtenderPreemptionResult, with victims by UID."""
    return _encode(
        {
            "NodeNameToMetaVictims": {
                name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
                for name, (uids, violations) in victims.items()
            }
        }
    )
