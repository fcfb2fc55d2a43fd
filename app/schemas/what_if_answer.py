"""The stable JSON of `what-if`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from pydantic import Field

from app.schemas.explain import Answer
from app.schemas.pod_explanation import API_VERSION, RemedyAnswer
from scheduler_core.predict.prediction import OrderPoint, Prediction

NOTES = ("a node is chosen at random among those that kube-scheduler may choose",)


class PlacedPodAnswer(Answer):
    """A pod with the node that it gets."""

    pod: str
    node: str


class PodOutcomeAnswer(Answer):
    """What becomes of a pod without a node."""

    pod: str = Field(description="namespace/name")
    origin: str = Field(description="moved, new, or waiting (in the snapshot already)")
    left: str = Field(description="the node that it ran on, empty for none")
    outcome: str = Field(description="always, usually or never placed")
    placed: int = Field(description="in how many orders it is placed")
    not_running: int = Field(
        serialization_alias="notRunning",
        description="in how many orders it is bound and does not run, because its volumes are not ready",
    )
    nodes: dict[str, int] = Field(description="in how many orders it gets each node")
    reasons: dict[str, int] = Field(description="why it waits, with the number of orders")
    unlucky_order: list[PlacedPodAnswer] = Field(
        serialization_alias="unluckyOrder", description="the pods of the first order in which it waits, as decided"
    )


class DrainOutcomeAnswer(Answer):
    """Whether the drain of a node can finish."""

    node: str
    outcome: str = Field(description="always, usually or never finished")
    finished: int = Field(description="in how many orders it finishes")
    blockers: dict[str, int] = Field(description="what holds it up, with the number of orders")


class DiskOutcomeAnswer(Answer):
    """A disk whose scheduled bytes change."""

    node: str
    disk: str
    before: int | None = Field(description="scheduled bytes, null for a new disk")
    least: int = Field(description="scheduled bytes in the end, the least of all orders")
    most: int = Field(description="scheduled bytes in the end, the most of all orders")
    limit: int = Field(description="up to how many bytes Longhorn schedules there")


class VolumeOutcomeAnswer(Answer):
    """A volume that lacks healthy replicas, meanwhile or in the end."""

    name: str
    replicas: int = Field(description="how many it should have")
    least_healthy: int = Field(serialization_alias="leastHealthy", description="the least number meanwhile")
    incomplete: int = Field(description="in how many orders a replica is missing in the end")
    problem: str = Field(description="why it is missing")
    pods: list[str] = Field(description="the pods that use it")
    rebuild_after_seconds: float = Field(
        serialization_alias="rebuildAfterSeconds",
        description="how long Longhorn waits for a failed replica before it rebuilds one elsewhere; 0 if it does not wait",
    )


class ExpansionAnswer(Answer):
    """Whether a volume may grow."""

    claim: str
    size: int = Field(description="bytes")
    fits: bool
    refusals: list[str] = Field(description="its StorageClass, or every reason that Longhorn may give")
    refused_by: str = Field(
        serialization_alias="refusedBy",
        description="the admission plugin or webhook that refuses the claim's update; empty if it is admitted",
    )


class RebuildAnswer(Answer):
    """What rebuilds copy, over all orders."""

    least_bytes: int = Field(serialization_alias="leastBytes")
    most_bytes: int = Field(serialization_alias="mostBytes")
    wait_seconds: float = Field(
        serialization_alias="waitSeconds",
        description="for how long nothing is rebuilt where Longhorn could reuse a failed replica; 0 if it waits for none",
    )
    rate: int | None = Field(description="bytes per second, as given; null without")
    least_seconds: float | None = Field(serialization_alias="leastSeconds", description="one rebuild after the other")
    most_seconds: float | None = Field(serialization_alias="mostSeconds", description="one rebuild after the other")


class StepAnswer(Answer):
    """The cluster after one step of an order."""

    step: int = Field(description="its number; 0 is before the first one")
    waiting: int = Field(description="pods without a node, or whose volumes are not attached yet")
    to_evict: int = Field(
        serialization_alias="toEvict", description="pods of drained nodes that a PodDisruptionBudget keeps for now"
    )
    misplaced: int = Field(description="attached volumes without the local replica that data locality wants")
    overbooked: int = Field(description="disks with more scheduled than Longhorn's limit")
    free_bytes: int = Field(serialization_alias="freeBytes", description="what the ready disks can still take")
    copied_bytes: int = Field(serialization_alias="copiedBytes", description="what rebuilds have copied")


class PodRemedyAnswer(Answer):
    """What would make a pod fit."""

    pod: str = Field(description="namespace/name")
    remedy: RemedyAnswer = Field(description="the cheapest one that a short search finds")


class OrderAnswer(Answer):
    """How one order goes on.

    Of a long order not every step is listed.
    """

    number: int = Field(description="from 0; it determines the order together with the seed")
    fails: bool = Field(description="whether something does not get its place in it")
    steps: list[StepAnswer]
    remedies: list[PodRemedyAnswer] = Field(
        default_factory=list[PodRemedyAnswer],
        description="what would help the first pods that no node fits in the end; drained and lost nodes stay so",
    )


class WhatIfAnswer(Answer):
    """What some changes of the cluster lead to."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "WhatIf"
    orders: int
    seed: int
    succeeds: bool = Field(description="whether everything always gets its place")
    pods: list[PodOutcomeAnswer]
    gone_pods: list[str] = Field(serialization_alias="gonePods", description="pods that nothing creates again")
    drains: list[DrainOutcomeAnswer]
    expansions: list[ExpansionAnswer]
    rebuilds: RebuildAnswer
    disks: list[DiskOutcomeAnswer]
    volumes: list[VolumeOutcomeAnswer]
    shown_order: OrderAnswer = Field(
        serialization_alias="shownOrder", description="the first order in which something fails, or the first one"
    )
    notes: list[str] = Field(description="what was not taken into account")


def order_answer(number: int, *, fails: bool, points: Iterable[OrderPoint]) -> OrderAnswer:
    steps = [StepAnswer(**{field.name: getattr(point, field.name) for field in fields(OrderPoint)}) for point in points]
    return OrderAnswer(number=number, fails=fails, steps=steps)


def what_if_answer(
    prediction: Prediction, order: OrderAnswer, seed: int, rate: int | None, notes: tuple[str, ...]
) -> WhatIfAnswer:
    """Returns a prediction as plain data; `rate` is in bytes per second."""
    return WhatIfAnswer(
        orders=prediction.orders,
        seed=seed,
        succeeds=prediction.succeeds,
        pods=_pod_answers(prediction),
        gone_pods=list(prediction.gone_pods),
        drains=[
            DrainOutcomeAnswer(
                node=outcome.node,
                outcome=outcome.certainty,
                finished=outcome.finished,
                blockers=dict(outcome.blockers),
            )
            for outcome in prediction.drains
        ],
        expansions=[
            ExpansionAnswer(
                claim=entry.claim,
                size=entry.size,
                fits=not entry.refusals,
                refusals=list(entry.refusals),
                refused_by=entry.refused_by,
            )
            for entry in prediction.expansions
        ],
        rebuilds=_rebuild_answer(prediction, rate),
        disks=[
            DiskOutcomeAnswer(
                node=disk.node,
                disk=disk.disk,
                before=disk.before,
                least=disk.least,
                most=disk.most,
                limit=disk.limit,
            )
            for disk in prediction.disks
        ],
        volumes=[
            VolumeOutcomeAnswer(
                name=volume.name,
                replicas=volume.wanted,
                least_healthy=volume.least,
                incomplete=volume.incomplete,
                problem=volume.problem,
                pods=list(volume.pods),
                rebuild_after_seconds=volume.rebuild_after,
            )
            for volume in prediction.volumes
        ],
        shown_order=order,
        notes=list(notes),
    )


def _pod_answers(prediction: Prediction) -> list[PodOutcomeAnswer]:
    return [
        PodOutcomeAnswer(
            pod="/".join(outcome.entry.key),
            origin=outcome.entry.origin,
            left=outcome.entry.left,
            outcome=outcome.certainty,
            placed=outcome.placed,
            not_running=outcome.not_running,
            nodes=dict(outcome.nodes),
            reasons=dict(outcome.reasons),
            unlucky_order=[PlacedPodAnswer(pod=pod, node=node) for pod, node in outcome.unlucky_order],
        )
        for outcome in prediction.pods
    ]


def _rebuild_answer(prediction: Prediction, rate: int | None) -> RebuildAnswer:
    least, most = prediction.copied_bytes
    return RebuildAnswer(
        least_bytes=least,
        most_bytes=most,
        wait_seconds=prediction.rebuild_wait,
        rate=rate,
        least_seconds=None if rate is None else least / rate,
        most_seconds=None if rate is None else most / rate,
    )
