"""Decisions as plain data: the stable JSON of `explain` and `/explain`, of `decisions` and `/decisions`, and of the policy in
`/state`; and what is wrong with a value that pydantic refuses, in this program's words.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Self

from pydantic import AliasGenerator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, to_json

from app import API_VERSION
from scheduler_core.decide import decision, explain
from scheduler_core.model import kube, longhorn
from scheduler_core.model.verdict import Verdict
from scheduler_core.packing.budget import give_way
from scheduler_core.volumes.resolve import PodVolume

_TEXTS = {
    "int_parsing": "expected a whole number",
    "int_parsing_size": "expected a smaller number",
    "float_parsing": "expected a number",
    "bool_parsing": "expected true or false",
    "enum": "expected {expected}",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "extra_forbidden": "there is no such parameter",
    "value_error": "{error}",
}


def value_problem(error: ErrorDetails) -> str:
    return _TEXTS.get(error["type"], "is not valid").format_map(error.get("ctx", {}))


def problem_of(error: BaseException | None, other: str) -> str:
    """Returns what is wrong with the first value that pydantic refuses; `other` for an error that is not pydantic's."""
    return value_problem(error.errors(include_url=False)[0]) if isinstance(error, ValidationError) else other


_DISK_NAME = "name of the disk on its node; empty if there is none"


class Answer(BaseModel):
    """Something that is answered; never changed once made."""

    model_config = ConfigDict(
        frozen=True, from_attributes=True, alias_generator=AliasGenerator(serialization_alias=to_camel)
    )

    @classmethod
    def of(cls, value: object, **others: object) -> Self:
        """Returns an answer with the attributes of a value, but for the fields in `others`; objects in them become
        answers in the same way.
        """
        own = {name: getattr(value, name) for name in cls.model_fields if name not in others}
        return cls.model_validate({**own, **others})


class ErrorAnswer(Answer):
    """Why there is no other answer."""

    error: str


class UnresolvedAnswer(Answer):
    """Why a pod cannot be explained, in the spelling of /filter."""

    error: str = Field(serialization_alias="Error")


class ReplicaAnswer(Answer):
    """A replica of one of the pod's volumes."""

    name: str
    node: str = Field(description="empty while it has no place")
    disk: str = Field(description="UUID of its disk, empty while it has no place")
    disk_name: str = Field(description=_DISK_NAME)
    healthy: bool
    failed: bool


class VolumeAnswer(Answer):
    """A Longhorn volume of the pod."""

    name: str = Field(description="the Longhorn volume; the claim while it is unbound")
    claim: str = Field(description="namespace/name")
    bound: bool = Field(description="whether the Longhorn volume exists")
    local: bool = Field(description="whether it needs room on the pod's own node")
    data_locality: str
    size: int = Field(description="bytes")
    actual_size: int = Field(description="bytes its data occupies")
    replicas: list[ReplicaAnswer]
    persistent_volume: str = Field(
        description="the existing PersistentVolume that kube-scheduler will bind the unbound claim to; empty for none"
    )
    nodes: list[str] | None = Field(description="where the claim is this volume; null for every node")


class PlacementAnswer(Answer):
    """One step of a placement order."""

    volume: str
    disk: str = Field(description="UUID of the disk Longhorn picks; empty for the volume that finds none")
    disk_name: str = Field(description=_DISK_NAME)


class MeetingAnswer(Answer):
    """Volumes that Longhorn may all place on one disk, which cannot take them together."""

    disk: str = Field(description="UUID of the disk")
    disk_name: str = Field(description=_DISK_NAME)
    volumes: list[str]


class CompetingVolumeAnswer(Answer):
    """A volume of another pod that takes space on the node."""

    pod: str = Field(description="namespace/name; empty if no pod is known to use the volume")
    claim: str = Field(description="namespace/name; empty for a volume without a claim")
    volume: str = Field(description="the Longhorn volume; the claim while it is unbound")
    size: int = Field(description="bytes")


class NodeAnswer(Answer):
    """What is said about one node."""

    fits: bool
    order_safe: bool = Field(
        serialization_alias="order_safe",
        description="whether Longhorn is proven to find room in whatever order it places the volumes",
    )
    stale_safe: bool = Field(
        serialization_alias="stale_safe",
        description="whether Longhorn is proven to find room even if it sees none of its latest placements",
    )
    reason: str
    detail: str
    plan: dict[str, str] = Field(description="the UUID of a disk for each volume that needs space here")
    counter_example: list[PlacementAnswer] = Field(
        description="an order that fails; empty if there is none or none was found"
    )
    stale_counter_example: MeetingAnswer | None = Field(
        description="volumes that outdated status may lead to one disk, which cannot take them together; null if the "
        "node is stale-safe, or was not examined"
    )
    missing: int = Field(
        description="the least bytes that, freed on one disk, would let all fit; a proven lower bound where the detail says "
        '"at least"; 0: not applicable, or no amount on a single disk is enough'
    )
    competing: list[CompetingVolumeAnswer] = Field(
        description="the volumes of other pods that were packed together with the pod's"
    )


class SkippedClaimAnswer(Answer):
    """A claim of the pod that is no Longhorn volume, so the decision leaves it out."""

    claim: str = Field(description="namespace/name")
    cause: str = Field(description="what it is: its StorageClass does not exist, or it is of another driver")


class ExplainAnswer(Answer):
    """Why a pod fits or does not fit on each node."""

    pod: str = Field(description="namespace/name")
    volumes: list[VolumeAnswer]
    skipped_claims: list[SkippedClaimAnswer]
    nodes: dict[str, NodeAnswer]


def explain_answer(pod: kube.Pod, explanation: explain.Explanation) -> ExplainAnswer:
    """Returns an explanation as data; nodes in the order asked."""
    nodes: dict[str, NodeAnswer] = {}
    for name, verdict in zip(explanation.decision.candidates, explanation.verdicts, strict=True):
        nodes[name] = _node(verdict, disk_names(explanation.longhorn_nodes, name))
    return _answer(pod, explanation, nodes)


def explain_json(pod: kube.Pod, explanation: explain.Explanation) -> list[bytes]:
    """Returns `explain_answer` as pieces of JSON text, one for each node: that of thousands at once would take too long."""
    head = _answer(pod, explanation, {}).model_dump_json(by_alias=True).removesuffix("}}").encode()
    nodes: dict[str, bytes] = {}
    for name, verdict in zip(explanation.decision.candidates, explanation.verdicts, strict=True):
        give_way()
        answer = _node(verdict, disk_names(explanation.longhorn_nodes, name)).model_dump_json(by_alias=True)
        nodes[name] = b"%s%s:%s" % (b"," if nodes else b"", to_json(name), answer.encode())
    return [head, *nodes.values(), b"}}"]


def _answer(pod: kube.Pod, explanation: explain.Explanation, nodes: dict[str, NodeAnswer]) -> ExplainAnswer:
    return ExplainAnswer.of(
        explanation,
        pod=pod.key,
        skipped_claims=explanation.skipped,
        volumes=[_volume(volume, explanation.longhorn_nodes) for volume in explanation.decision.resolution.volumes],
        nodes=nodes,
    )


def _volume(volume: PodVolume, longhorn_nodes: Mapping[str, longhorn.Node]) -> VolumeAnswer:
    return VolumeAnswer.of(
        volume,
        data_locality=volume.volume.data_locality,
        size=volume.volume.whole_size or volume.volume.size,
        actual_size=volume.volume.actual_size,
        replicas=[replica_answer(replica, longhorn_nodes) for replica in volume.replicas],
        nodes=None if volume.nodes is None else sorted(volume.nodes),
    )


def disk_names(longhorn_nodes: Mapping[str, longhorn.Node], node: str) -> dict[str, str]:
    longhorn_node = longhorn_nodes.get(node)
    return {} if longhorn_node is None else {disk.uuid: disk.name for disk in longhorn_node.disks}


def replica_answer(replica: longhorn.Replica, longhorn_nodes: Mapping[str, longhorn.Node]) -> ReplicaAnswer:
    """Returns a replica as data."""
    return ReplicaAnswer(
        name=replica.name,
        node=replica.node_id,
        disk=replica.disk_id,
        disk_name=disk_names(longhorn_nodes, replica.node_id).get(replica.disk_id, ""),
        healthy=bool(replica.healthy_at and not replica.failed_at),
        failed=bool(replica.failed_at),
    )


def _node(verdict: Verdict, names: Mapping[str, str]) -> NodeAnswer:
    meeting = verdict.meeting
    return NodeAnswer.of(
        verdict,
        reason=verdict.reason.text,
        counter_example=[
            PlacementAnswer(volume=volume, disk=disk, disk_name=names.get(disk, ""))
            for volume, disk in verdict.counter_example
        ],
        stale_counter_example=meeting and MeetingAnswer.of(meeting, disk_name=names.get(meeting.disk, "")),
    )


class PolicyAnswer(Answer):
    """The policy in force, and what is wrong with its file."""

    file: str
    predicates: list[str] = Field(description="by their names in the policy, in its order")
    priorities: dict[str, int] = Field(description="their weights, by their names in the policy")
    warnings: list[str] = Field(description="what was read but is odd")
    problem: str = Field(description="why the file as it is now was refused; empty if it was not")
    pending: bool = Field(description="whether a newer policy waits until everything that it reads is known")


class DecisionParameters(Answer):
    """The query of `/decisions`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: int = Field(default=100, ge=1, le=decision.MAX_DECISIONS, description="the most entries of the answer")
    before: int | None = Field(default=None, ge=0, description="only decisions with a smaller `number`")
    namespace: str | None = Field(default=None, description="only of pods in this namespace")
    pod: str | None = Field(default=None, description="only of pods with this name")
    outcome: decision.DecisionOutcome | None = Field(default=None, description="only with this outcome")

    @property
    def query(self) -> decision.DecisionQuery:
        return decision.DecisionQuery(self.limit, self.before, self.namespace, self.pod, self.outcome)


class DecisionAnswer(Answer):
    """One decision about a pod."""

    number: int = Field(description="microseconds since 1970; greater than that of every earlier decision")
    time: datetime
    verb: str = Field(description="filter or preempt")
    pod: str = Field(description="namespace/name")
    uid: str
    outcome: decision.DecisionOutcome = Field(
        description="fits: on some node; refused: on every node; error: the pod cannot be decided about"
    )
    observed: bool = Field(description="whether refusals were only counted and logged: the answer named every node")
    nodes: int = Field(description="number of nodes in the request")
    fits: int = Field(description="number of nodes that fit")
    offered: list[str] = Field(description=f"those nodes, in the order of the request; at most {decision.MAX_OFFERED}")
    refused: dict[str, int] = Field(
        description=f"numbers of nodes by the reason of their refusal, the most frequent first; at most {decision.MAX_REASONS}"
    )
    error: str = Field(description="why the pod cannot be decided about; empty if it can")
    milliseconds: float = Field(description="from the decoded request to the decision")


class DecisionListAnswer(Answer):
    """The latest decisions of one process, the latest first."""

    api_version: str = Field(default=API_VERSION)
    kind: str = "DecisionList"
    recorded: int = Field(
        description=f"number of decisions since the process began; the latest {decision.MAX_DECISIONS} are kept"
    )
    next_before: int | None = Field(description="`before` of the next page; null on the last page")
    items: list[DecisionAnswer]


def decision_list_answer(page: decision.DecisionPage) -> DecisionListAnswer:
    """Returns a page of decisions as data."""
    items = [
        DecisionAnswer.of(entry, pod=f"{entry.namespace}/{entry.pod}", refused=dict(entry.refused))
        for entry in page.entries
    ]
    return DecisionListAnswer(recorded=page.recorded, next_before=page.next_before, items=items)
