"""kube-scheduler's extender messages (k8s.io/kube-scheduler/extender/v1), decoded and encoded.

The Go types have no JSON tags, so kube-scheduler writes `Pod`, `Nodes`, `NodeNames`, null for the form it does not use;
Go reads any case, so lower-case and camelCase are accepted too. Answers use the Go form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from app.api.errors import RequestError
from app.api.raw_nodes import NodeRuns, locate_nodes, node_names
from scheduler_core.convert import generic
from scheduler_core.convert import kube as wire
from scheduler_core.errors import CoreError
from scheduler_core.model.generic import Pod as WholePod
from scheduler_core.model.kube import Pod


class _NodeList(msgspec.Struct, gc=False):
    items: list[msgspec.Raw] | None = None


class _Args(msgspec.Struct, gc=False):
    """ExtenderArgs, each key in the spellings met."""

    Pod: wire.Pod | None = None
    pod: wire.Pod | None = None
    Nodes: _NodeList | None = None
    nodes: _NodeList | None = None
    NodeNames: list[str] | None = None
    nodeNames: list[str] | None = None
    nodenames: list[str] | None = None


class _PodArgs(msgspec.Struct, gc=False):
    """The pod of ExtenderArgs as a policy's rules read it."""

    Pod: generic.GenericPod | None = None
    pod: generic.GenericPod | None = None


class _Victims(msgspec.Struct, gc=False):
    """Victims or MetaVictims: pods as objects or by UID."""

    Pods: list[_Victim] | None = None
    pods: list[_Victim] | None = None
    NumPDBViolations: int = 0
    numPDBViolations: int = 0
    numpdbviolations: int = 0


class _VictimMetadata(msgspec.Struct, gc=False):
    uid: str = ""


class _Victim(msgspec.Struct, gc=False):
    UID: str = ""
    uid: str = ""
    metadata: _VictimMetadata | None = None


class _PreemptionArgs(msgspec.Struct, gc=False):
    """ExtenderPreemptionArgs."""

    Pod: wire.Pod | None = None
    pod: wire.Pod | None = None
    NodeNameToVictims: dict[str, _Victims] | None = None
    nodeNameToVictims: dict[str, _Victims] | None = None
    nodenametovictims: dict[str, _Victims] | None = None
    NodeNameToMetaVictims: dict[str, _Victims] | None = None
    nodeNameToMetaVictims: dict[str, _Victims] | None = None
    nodenametometavictims: dict[str, _Victims] | None = None


_ARGS: Final = msgspec.json.Decoder(_Args)
_POD_ARGS: Final = msgspec.json.Decoder(_PodArgs)
_PREEMPTION_ARGS: Final = msgspec.json.Decoder(_PreemptionArgs)
_Decoded = TypeVar("_Decoded")
_Given = TypeVar("_Given")
_encode: Final = msgspec.json.Encoder().encode
_NONE: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class FilterQuestion:
    """A decoded ExtenderArgs.

    Attributes:
        candidates: the names of the nodes in the order asked
        runs: where full nodes are in the body; None where they are not sent back
        whole: the pod as the rules of a policy file read it; None where there is no such file
    """

    pod: Pod
    candidates: Sequence[str]
    runs: NodeRuns | None = None
    whole: WholePod | None = None


@dataclass(frozen=True, slots=True)
class PreemptQuestion:
    """A decoded ExtenderPreemptionArgs; `victims` are (UIDs, PDB violations) by node name, `whole` as in FilterQuestion."""

    pod: Pod
    victims: Mapping[str, tuple[tuple[str, ...], int]]
    whole: WholePod | None = None


def decode_filter(body: bytearray, *, whole: bool = False) -> FilterQuestion:
    """Reads the body of /filter and /explain; `whole` says that there is a policy file, whose rules read the whole pod.

    Raises:
        RequestError: it is not JSON, has another shape, or contradicts itself; names the field
    """
    pod, names, items = _asked(body)
    runs = None if items is None else locate_nodes(body, items)
    return FilterQuestion(pod, names, runs, _whole_pod(body) if whole else None)


def decode_prioritize(body: bytearray, *, whole: bool) -> FilterQuestion:
    """Reads the body of /prioritize, whose answer sends no node back; `whole` as in decode_filter.

    Raises:
        RequestError: as decode_filter
    """
    pod, names, _ = _asked(body)
    return FilterQuestion(pod, names, whole=_whole_pod(body) if whole else None)


def _whole_pod(body: bytearray) -> WholePod:
    args = _decode(_POD_ARGS, body)
    found = args.Pod or args.pod
    if found is None:
        raise RequestError("Pod is missing or null")
    try:
        return generic.generic_pod(found)
    except CoreError as error:
        raise RequestError(str(error)) from error


def _asked(body: bytearray) -> tuple[Pod, list[str], list[msgspec.Raw] | None]:
    """The pod, the names of the nodes, and the nodes where they were sent whole."""
    args = _decode(_ARGS, body)
    pod = _pod(args.Pod, args.pod)
    nodes = _one("Nodes", args.Nodes, args.nodes)
    names = _one("NodeNames", args.NodeNames, args.nodeNames, args.nodenames)
    _check_forms("Nodes and NodeNames", nodes, names)
    if nodes is None:
        _check_names(names or [])
        return pod, names or [], None
    if nodes.items is None:
        raise RequestError("Nodes.items is missing or null, expected a list of nodes")
    names = node_names(nodes.items)
    _check_names(names)
    return pod, names, nodes.items


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise RequestError(f"node {twice!r} is asked about twice")
    if "" in names:
        raise RequestError(f"node {names.index('')} (counted from 0) has no name")


def decode_preempt(body: bytearray, *, whole: bool) -> PreemptQuestion:
    """Reads the body of /preempt; `whole` as in decode_filter.

    Raises:
        RequestError: it is not JSON, has another shape, or contradicts itself; names the field
    """
    args = _decode(_PREEMPTION_ARGS, body)
    victims = _one("NodeNameToVictims", args.NodeNameToVictims, args.nodeNameToVictims, args.nodenametovictims)
    meta = _one(
        "NodeNameToMetaVictims", args.NodeNameToMetaVictims, args.nodeNameToMetaVictims, args.nodenametometavictims
    )
    _check_forms("NodeNameToVictims and NodeNameToMetaVictims", victims, meta)
    asked = {name: _victims(found) for name, found in (victims or meta or {}).items()}
    return PreemptQuestion(_pod(args.Pod, args.pod), asked, _whole_pod(body) if whole else None)


def _victims(found: _Victims) -> tuple[tuple[str, ...], int]:
    pods = found.Pods or found.pods or ()
    uids = tuple(pod.UID or pod.uid or (pod.metadata.uid if pod.metadata else "") for pod in pods)
    return uids, found.NumPDBViolations or found.numPDBViolations or found.numpdbviolations


def _decode(decoder: msgspec.json.Decoder[_Decoded], body: bytearray) -> _Decoded:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise RequestError(f"{path.strip('`.') or 'the body'}: {problem}") from error
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


def _one(name: str, *spellings: _Given | None) -> _Given | None:
    given = [value for value in spellings if value is not None]
    if len(given) > 1:
        raise RequestError(f"{name} is given twice, in two spellings")
    return given[0] if given else None


def _check_forms(names: str, full: object, short: object) -> None:
    if (full is None) == (short is None):
        raise RequestError(f"expected one of {names}, got {'neither' if full is None else 'both'}")


def _pod(*spellings: wire.Pod | None) -> Pod:
    found = _one("Pod", *spellings)
    if found is None:
        raise RequestError("Pod is missing or null")
    if not found.metadata.name:
        raise RequestError("Pod.metadata.name is missing")
    try:
        return wire.pod(found)
    except CoreError as error:
        raise RequestError(str(error)) from error


def filter_result(
    names: Sequence[str] | None, unresolvable: Mapping[str, str], error: str = "", failed: Mapping[str, str] = _NONE
) -> bytes:
    """An ExtenderFilterResult in the names form; `names` None together with an error means that nothing was decided.

    Evicting pods may help on the `failed` nodes, and does not on the `unresolvable` ones.
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
    """A HostPriorityList, in the order of the scores."""
    return _encode([{"Host": name, "Score": score} for name, score in scores.items()])


def error_result(error: str) -> bytes:
    """An answer to /explain that could not be decided."""
    return _encode({"Error": error})


def filter_result_around(unresolvable: Mapping[str, str], failed: Mapping[str, str] = _NONE) -> tuple[bytes, bytes]:
    """An ExtenderFilterResult in the full form, as what comes before and after the nodes."""
    tail = _encode({"NodeNames": None, "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable, "Error": ""})
    return b'{"Nodes":{"metadata":{},"items":[', b"]}," + tail[1:]


def preemption_result(victims: Mapping[str, tuple[tuple[str, ...], int]]) -> bytes:
    """An ExtenderPreemptionResult; it always names victims by UID."""
    return _encode(
        {
            "NodeNameToMetaVictims": {
                name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
                for name, (uids, violations) in victims.items()
            }
        }
    )
