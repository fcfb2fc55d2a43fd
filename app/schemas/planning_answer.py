"""The stable JSON of `headroom` and `maintenance`."""

from __future__ import annotations

from pydantic import Field

from app.schemas.explain import Answer
from app.schemas.pod_explanation import API_VERSION
from scheduler_core.extender.planning.pod_headroom import ClosestNode, Headroom


class NodeHeadroomAnswer(Answer):
    """How many of the pods a node takes."""

    node: str
    least: int = Field(description="of all orders")
    most: int = Field(description="of all orders")


class ClosestNodeAnswer(Answer):
    """The node that came closest to a refused pod."""

    node: str
    reason: str
    detail: str = Field(description="the numbers, as a sentence")
    missing: int = Field(description="bytes that a disk lacks; 0 if that is not what is missing")


class RefusedPodAnswer(Answer):
    """The first pod that does not fit, in the order with the fewest pods."""

    pod: str = Field(description="namespace/name")
    reasons: dict[str, int] = Field(description="number of nodes per reason; 0 for one that is not about nodes")
    closest: ClosestNodeAnswer | None


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
            else ClosestNodeAnswer(
                node=closest.node, reason=closest.reason, detail=closest.detail, missing=closest.missing
            ),
        ),
        notes=[],
    )
