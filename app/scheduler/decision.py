"""The decision about a pod by a policy, and the what-if, which schedules the pending pods of a snapshot one after the other."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler_core import errors
from scheduler_core.convert.generic import PendingPod
from scheduler_core.generic import cluster_state, scheduler
from scheduler_core.generic.policy import (
    Policy,
    UnsupportedConstraint,
    UnsupportedMode,
    ignored_constraints,
    node_refusals,
    unsupported_constraints,
    unsupported_message,
)
from scheduler_core.model.kube import Pod
from scheduler_core.structs import Struct, replace

if TYPE_CHECKING:
    from app.scheduler.cache import LonghornSnapshot


def decide(  # noqa: PLR0913, PLR0917 # the inputs of a decision
    pod: Pod,
    state: cluster_state.GenericClusterState,
    policy: Policy,
    select_host: scheduler.SelectHost,
    facts_for: scheduler.FactsFor | None,
    unsupported: UnsupportedMode,
) -> scheduler.ScheduleResult:
    """Selects a node for the pod. Nodes that only an unsupported constraint closes are left out, each with its reason, if
    such constraints refuse. Raises a ResolutionError if `facts_for` fails, because the pod names an object that does not
    exist or contradicts it.
    """
    closed = node_refusals(pod, state, policy) if unsupported is UnsupportedMode.REFUSE else {}
    open_nodes = [name for name in state.node_names if name not in closed] if closed else None
    result = scheduler.schedule(pod, open_nodes, state, policy, select_host, facts_for)
    return replace(result, unavailable={**result.unavailable, **closed}) if closed else result


class PlacedPod(Struct, frozen=True, rename={"best": "equallyGood"}):
    """A pod with its node."""

    pod: str
    node: str
    score: int  # the node's total
    scores: Mapping[str, int]  # what each priority gives the node, unweighted, by its name in the policy
    best: int  # how many nodes have the same total, this one included
    refused: Mapping[str, int]  # number of nodes per reason; a node with several reasons counts for each
    unsupported: tuple[UnsupportedConstraint, ...] = ()  # constraints that the policy did not read

    def data(self) -> dict[str, Any]:
        """Returns what is printed."""
        return {**msgspec.to_builtins(self), "unsupported": [constraint.field for constraint in self.unsupported]}


class UnplacedPod(Struct, frozen=True):
    """A pod that no node fits."""

    pod: str
    message: str  # why, as one line
    reasons: Mapping[str, int]  # number of nodes per reason


class WhatIfReport(Struct, frozen=True):
    """The result for each pod, in the order they were scheduled."""

    placed: tuple[PlacedPod, ...]
    unplaced: tuple[UnplacedPod, ...]

    def data(self) -> dict[str, Any]:
        """Returns what is printed; stable, and documented in docs/generic-scheduler.md."""
        return {"bindings": [pod.data() for pod in self.placed], "unschedulable": msgspec.to_builtins(self.unplaced)}


def what_if(  # noqa: PLR0913, PLR0917 # the inputs of all decisions
    pods: Iterable[PendingPod],
    state: cluster_state.GenericClusterState,
    policy: Policy,
    select_host: scheduler.SelectHost,
    longhorn: "LonghornSnapshot | None",
    unsupported: UnsupportedMode = UnsupportedMode.WARN,
) -> WhatIfReport:
    """Schedules the pods in their order, and binds each before the next decision."""
    placed: list[PlacedPod] = []
    unplaced: list[UnplacedPod] = []
    for pending in pods:
        name = pending.pod.key
        refuses = unsupported is UnsupportedMode.REFUSE
        constraints = unsupported_constraints(pending.pod, policy) if refuses else ()
        if constraints:
            why = unsupported_message(constraints)
            unplaced.append(UnplacedPod(name, why, {why: len(state.node_names)}))
            continue
        facts_for = None if longhorn is None else longhorn.facts_for(pending)
        try:
            result = decide(pending.pod, state, policy, select_host, facts_for, unsupported)
        except errors.ResolutionError as error:
            unplaced.append(UnplacedPod(name, str(error), {str(error): len(state.node_names)}))
            continue
        if not result.node:
            unplaced.append(UnplacedPod(name, result.message, result.count_by_reason()))
            continue
        warns = unsupported is UnsupportedMode.WARN
        placed.append(
            PlacedPod(
                pod=name,
                node=result.node,
                score=result.ranking.totals[result.node],
                scores={priority: scores[result.node] for priority, scores in result.ranking.scores.items()},
                best=len(result.best),
                refused=result.count_by_reason(),
                unsupported=ignored_constraints(pending.pod, result.node, state, policy) if warns else (),
            )
        )
        state = state.with_binding(pending.pod, result.node)
        if longhorn is not None:
            longhorn.bind(pending, result.node)
    return WhatIfReport(tuple(placed), tuple(unplaced))
