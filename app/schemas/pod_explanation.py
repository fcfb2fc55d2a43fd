"""The stable JSON of `explain` about pods: the answer of `/explain`, and what kube-scheduler filters first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import Field

from app.schemas.explain import Answer, ExplainAnswer, NodeAnswer, SkippedClaimAnswer, VolumeAnswer, disk_names
from scheduler_core.extender.kube_scheduler_filters import PluginRefusal
from scheduler_core.model.longhorn import Node

API_VERSION: Final = "longhorn-extender/v1"


class KubeSchedulerAnswer(Answer):
    """Whether kube-scheduler's own plugins admit a node."""

    fits: bool
    plugin: str = Field(description="the first plugin that refuses the node; empty if all admit it")
    reason: str


class LonghornAnswer(Answer):
    """Whether Longhorn's disks have room."""

    fits: bool
    reason: str


class PlannedDiskAnswer(Answer):
    """A disk that the plan uses."""

    node: str
    name: str
    uuid: str


class CandidateNodeAnswer(NodeAnswer):
    """What is said about one node.

    It fits if kube-scheduler's own plugins admit it and Longhorn's disks have room; `reason` is that of the first that refuses.
    """

    schedulable: bool = Field(description="as fits")
    longhorn: LonghornAnswer
    kube_scheduler: KubeSchedulerAnswer | None = Field(
        serialization_alias="kubeScheduler", description="null where it was not asked, or the node is not in the source"
    )
    is_order_safe: bool = Field(serialization_alias="orderSafe", description="as order_safe")
    is_stale_safe: bool = Field(serialization_alias="staleSafe", description="as stale_safe")
    disks: dict[str, PlannedDiskAnswer] = Field(description="the plan, with the disks by node and name")


class RemedyStepAnswer(Answer):
    """One change of the cluster."""

    kind: str = Field(description="what is changed, such as uncordon or free-scheduled")
    text: str
    node: str
    disk: str = Field(description="its name; empty for a change of the node")
    size: int = Field(description="bytes to free, to add or to copy")
    tags: list[str] = Field(description="the tags to add")
    replica: str = Field(description="the replica to move; empty for other kinds")
    commands: list[str] = Field(description="for a shell, in order; empty where kubectl cannot make the change")


class RemedyAnswer(Answer):
    """Steps after which a pod fits that fits nowhere now."""

    text: str
    kind: str = Field(description="that of the step that interferes most")
    size: int = Field(description="bytes to free, to add or to copy, over all steps")
    steps: list[RemedyStepAnswer]


class PodExplanation(Answer):
    """Why a pod can or cannot run on each node."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "PodExplanation"
    pod: str = Field(description="namespace/name")
    selection: str = Field(description="why it is this pod, where a workload or a claim was named; otherwise empty")
    volumes: list[VolumeAnswer]
    skipped_claims: list[SkippedClaimAnswer] = Field(serialization_alias="skippedClaims")
    resources_compared: bool = Field(
        serialization_alias="resourcesCompared", description="false where no node says what is allocatable"
    )
    nodes: dict[str, CandidateNodeAnswer]
    remedy: RemedyAnswer | None = Field(
        default=None,
        description="the cheapest change that makes a pod fit; null if it fits, or if none was sought or found",
    )
    remedies: list[RemedyAnswer] = Field(default=[], description="the cheapest ones, as many as were asked for")
    error: str = Field(default="", description="why nothing can be decided about the pod; empty if it can")

    @property
    def schedulable(self) -> bool:
        """Whether some node is left."""
        return any(entry.fits for entry in self.nodes.values())


class PodExplanationList(Answer):
    """Explanations of several pods."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "PodExplanationList"
    items: list[PodExplanation]


def candidate_answer(
    name: str, entry: NodeAnswer, kube_scheduler: KubeSchedulerAnswer | None, longhorn_nodes: Mapping[str, Node]
) -> CandidateNodeAnswer:
    """Returns both answers about a node."""
    names = disk_names(longhorn_nodes, name)
    admitted = kube_scheduler is None or kube_scheduler.fits
    fits = admitted and entry.fits
    reason = entry.reason if kube_scheduler is None or admitted else kube_scheduler.reason
    return CandidateNodeAnswer(
        **{**dict(entry), "fits": fits, "reason": reason},
        schedulable=fits,
        longhorn=LonghornAnswer(fits=entry.fits, reason=entry.reason),
        kube_scheduler=kube_scheduler,
        is_order_safe=entry.order_safe,
        is_stale_safe=entry.stale_safe,
        disks={
            volume: PlannedDiskAnswer(node=name, name=names.get(uuid, uuid), uuid=uuid)
            for volume, uuid in entry.plan.items()
        },
    )


def kube_scheduler_answer(refusal: PluginRefusal | None) -> KubeSchedulerAnswer:
    if refusal is None:
        return KubeSchedulerAnswer(fits=True, plugin="", reason="")
    return KubeSchedulerAnswer(fits=False, plugin=refusal.plugin, reason=refusal.text)


def pod_explanation(
    answers: list[ExplainAnswer], nodes: dict[str, CandidateNodeAnswer], selection: str, *, resources_compared: bool
) -> PodExplanation:
    """Returns the explanation of a pod. `answers` are about different nodes; volumes are those of the first."""
    first = answers[0]
    return PodExplanation(
        pod=first.pod,
        selection=selection,
        volumes=first.volumes,
        skipped_claims=first.skipped_claims,
        resources_compared=resources_compared,
        nodes=nodes,
    )
