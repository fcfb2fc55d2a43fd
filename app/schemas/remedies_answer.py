"""The stable JSON of `remedies`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pydantic import Field

from app.schemas.explain import Answer
from app.schemas.pod_explanation import API_VERSION, RemedyAnswer, RemedyStepAnswer
from app.schemas.remedy_commands import step_commands
from scheduler_core.extender.planning.remedy import Remedy
from scheduler_core.extender.what_if.predicted_cluster import PredictedCluster


class RemediesAnswer(Answer):
    """The cheapest changes that make a pod fit."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "Remedies"
    pod: str = Field(description="namespace/name")
    fits: bool = Field(description="whether the pod fits as it is; then it needs no remedy")
    remedies: list[RemedyAnswer] = Field(description="the cheapest first")


def remedy_answer(cluster: PredictedCluster, remedy: Remedy, longhorn_namespace: str) -> RemedyAnswer:
    """Returns a remedy as data, with the commands that it needs."""
    cost = remedy.cost
    return RemedyAnswer(
        text=remedy.text,
        kind=remedy.kind.value,
        size=cost.size,
        steps=[
            RemedyStepAnswer(
                kind=step.kind.value,
                text=step.text,
                node=step.node,
                disk=step.disk,
                size=step.size,
                tags=list(step.tags),
                replica=step.move.replica if step.move is not None else "",
                commands=[shlex.join(command) for command in step_commands(cluster, step, longhorn_namespace)],
            )
            for step in remedy.steps
        ],
    )


def remedies_answer(
    pod: str, cluster: PredictedCluster, remedies: Sequence[Remedy] | None, longhorn_namespace: str
) -> RemediesAnswer:
    """Returns remedies as data; None for a pod that fits."""
    answers = [remedy_answer(cluster, remedy, longhorn_namespace) for remedy in remedies or ()]
    return RemediesAnswer(pod=pod, fits=remedies is None, remedies=answers)
