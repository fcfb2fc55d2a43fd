"""The stable JSON of `remedies`."""

from __future__ import annotations

import shlex

from pydantic import Field

from app.schemas.explain import Answer
from app.schemas.pod_explanation import API_VERSION, RemedyAnswer, RemedyStepAnswer
from app.schemas.remedy_commands import step_commands
from scheduler_core.extender.planning.remedies import RemedySearch
from scheduler_core.extender.planning.remedy import Remedy
from scheduler_core.extender.what_if.predicted_cluster import PredictedCluster


class RemediesAnswer(Answer):
    """The cheapest changes that make a pod fit."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "Remedies"
    pod: str = Field(description="namespace/name")
    fits: bool = Field(description="whether the pod fits as it is; then it needs no remedy")
    remedies: list[RemedyAnswer] = Field(description="the cheapest first")
    complete: bool = Field(
        description="whether everything was searched; if not, there may be cheaper remedies", default=True
    )


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
    pod: str, cluster: PredictedCluster, search: RemedySearch | None, longhorn_namespace: str
) -> RemediesAnswer:
    """Returns the result of a search as data; None stands for a pod that fits."""
    if search is None:
        return RemediesAnswer(pod=pod, fits=True, remedies=[])
    answers = [remedy_answer(cluster, remedy, longhorn_namespace) for remedy in search.remedies]
    return RemediesAnswer(pod=pod, fits=False, remedies=answers, complete=search.complete)
