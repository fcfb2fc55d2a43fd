"""The stable JSON of `headroom` and `maintenance`."""

from __future__ import annotations

from pydantic import Field

from app.schemas.explain import Answer
from app.schemas.pod_explanation import API_VERSION
from scheduler_core.predict.drain_order import DrainOrder, DrainStep
from scheduler_core.predict.pod_headroom import ClosestNode, Headroom


class NodeHeadroomAnswer(Answer):
    """How many of the pods a node takes."""

    node: str
    least: int = Field(description="of all orders")
    most: int = Field(description="of all orders")


class RefusingNodeAnswer(Answer):
    """The node that came closest to a refused pod."""

    node: str
    reason: str
    detail: str = Field(description="the numbers, as a sentence")
    missing: int = Field(description="bytes that a disk lacks; 0 if that is not what is missing")


class RefusedPodAnswer(Answer):
    """The first pod that does not fit.

    It is the one of the order with the fewest pods.
    """

    pod: str = Field(description="namespace/name")
    reasons: dict[str, int] = Field(description="number of nodes per reason; 0 for one that is not about nodes")
    closest: RefusingNodeAnswer | None


class HeadroomAnswer(Answer):
    """How many more pods of a template fit."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "Headroom"
    template: str = Field(description="as given")
    orders: int
    seed: int
    limit: int
    at_least: int = Field(serialization_alias="atLeast", description="how many were asked for")
    least: int = Field(description="how many fit, the least of all orders")
    most: int = Field(description="how many fit, the most of all orders")
    limit_reached: bool = Field(serialization_alias="limitReached", description="whether more may fit")
    succeeds: bool = Field(description="whether at least so many as were asked for always fit")
    nodes: list[NodeHeadroomAnswer]
    refusals: dict[str, int] = Field(
        description="why the first pod that does not fit is refused, with the number of orders"
    )
    refused: RefusedPodAnswer | None = Field(description="null if the limit was reached")
    notes: list[str] = Field(description="what was not taken into account")


def headroom_answer(
    headroom: Headroom, template: str, seed: int, at_least: int, closest: ClosestNode | None
) -> HeadroomAnswer:
    """Returns a headroom as plain data, without notes."""
    refused = headroom.tightest.refused
    return HeadroomAnswer(
        template=template,
        orders=headroom.orders,
        seed=seed,
        limit=headroom.limit,
        at_least=at_least,
        least=headroom.least,
        most=headroom.most,
        limit_reached=headroom.limit_reached,
        succeeds=headroom.least >= at_least,
        nodes=[NodeHeadroomAnswer(node=name, least=low, most=high) for name, (low, high) in headroom.nodes.items()],
        refusals=dict(headroom.refusals),
        refused=None
        if refused is None
        else RefusedPodAnswer(
            pod="/".join(refused.key),
            reasons=dict(refused.reasons),
            closest=None
            if closest is None
            else RefusingNodeAnswer(
                node=closest.node, reason=closest.reason, detail=closest.detail, missing=closest.missing
            ),
        ),
        notes=[],
    )


class DrainStepAnswer(Answer):
    """The maintenance of one node, over all orders of events."""

    node: str
    least_pods: int = Field(serialization_alias="leastPods", description="how many pods the drain moves")
    most_pods: int = Field(serialization_alias="mostPods")
    least_bytes: int = Field(serialization_alias="leastBytes", description="what rebuilds copy")
    most_bytes: int = Field(serialization_alias="mostBytes")
    least_seconds: float | None = Field(serialization_alias="leastSeconds", description="one rebuild after the other")
    most_seconds: float | None = Field(serialization_alias="mostSeconds", description="one rebuild after the other")
    least_reduced_volumes: int = Field(
        serialization_alias="leastReducedVolumes", description="volumes with fewer healthy replicas meanwhile"
    )
    most_reduced_volumes: int = Field(serialization_alias="mostReducedVolumes")
    wait_seconds: float = Field(
        serialization_alias="waitSeconds",
        description="for how long nothing is rebuilt where Longhorn could reuse a failed replica; 0 if it waits for none",
    )


class FailedDrainAnswer(Answer):
    """A node that the order does not drain."""

    node: str
    blocked: bool = Field(description="whether it cannot be drained in any order")
    problems: list[str] = Field(description="why its drain does not fit; after the steps if it is not blocked")
    first_problems: list[str] = Field(
        serialization_alias="firstProblems", description="why it does not fit even as the first one; empty if it does"
    )


class MaintenanceAnswer(Answer):
    """An order of nodes in which every drain fits.

    Where there is none, it is the longest one of the search.
    """

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "Maintenance"
    orders: int = Field(description="how many orders of events every drain must fit in")
    seed: int
    rate: int | None = Field(description="bytes per second of a rebuild, as given; null without")
    succeeds: bool = Field(description="whether all nodes can be drained")
    exhaustive: bool = Field(description="whether every order of nodes was tried, so that no longer one exists")
    tries: int = Field(description="how many orders of nodes ended in a dead end")
    steps: list[DrainStepAnswer]
    failed: list[FailedDrainAnswer]
    notes: list[str] = Field(description="what was not taken into account")


def maintenance_answer(order: DrainOrder, seed: int, rate: int | None, notes: list[str]) -> MaintenanceAnswer:
    """Returns an order of drains as plain data. `rate` is in bytes per second."""
    blocked = [
        FailedDrainAnswer(node=node, blocked=True, problems=list(texts), first_problems=list(texts))
        for node, texts in order.blocked.items()
    ]
    failed = [
        FailedDrainAnswer(
            node=entry.node, blocked=False, problems=list(entry.problems), first_problems=list(entry.first_problems)
        )
        for entry in order.failed
    ]
    return MaintenanceAnswer(
        orders=order.courses,
        seed=seed,
        rate=rate,
        succeeds=order.complete,
        exhaustive=order.exhaustive,
        tries=order.dead_ends,
        steps=[_step_answer(step, rate) for step in order.steps],
        failed=[*blocked, *failed],
        notes=notes,
    )


def _step_answer(step: DrainStep, rate: int | None) -> DrainStepAnswer:
    least, most = step.copied_bytes
    return DrainStepAnswer(
        node=step.node,
        least_pods=step.pods[0],
        most_pods=step.pods[1],
        least_bytes=least,
        most_bytes=most,
        least_seconds=None if rate is None else least / rate,
        most_seconds=None if rate is None else most / rate,
        least_reduced_volumes=step.reduced_volumes[0],
        most_reduced_volumes=step.reduced_volumes[1],
        wait_seconds=step.rebuild_wait,
    )
