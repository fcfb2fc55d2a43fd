"""The numbers behind a reason: a plan where the node fits, and where it does not what is missing, for people to read."""

from __future__ import annotations

from typing import Final

from scheduler_core.cluster.view import View
from scheduler_core.evaluation.fit import allowed_masks, missing_alone
from scheduler_core.evaluation.single_node import LocalNode, local_node, stop
from scheduler_core.model.quantity import format_bytes
from scheduler_core.model.verdict import Reason, Verdict
from scheduler_core.packing.answer import Answer
from scheduler_core.packing.budget import Budget
from scheduler_core.packing.feasible import fits
from scheduler_core.volumes.local_replicas import Standing, standings
from scheduler_core.volumes.resolve import PodVolume, Resolution

_STEPS_A_TRY: Final = 10


def describe(  # noqa: PLR0913, PLR0917
    view: View, resolution: Resolution, name: str, reason: Reason, budget: Budget, beside: tuple[PodVolume, ...] = ()
) -> Verdict:
    """A node's verdict with its detail and plan; `reason` is what was decided and is not questioned here.

    `beside` are the volumes of others that were counted.
    """
    if reason is Reason.NO_VOLUMES:
        return Verdict(reason, order_safe=True)
    if reason is Reason.HOME:
        return Verdict(reason, _kept(view, resolution, name), order_safe=True)
    if reason in (Reason.HOME_ELSEWHERE, Reason.CLAIM_IN_USE, Reason.STRICT_LOCAL_ELSEWHERE):
        return Verdict(reason, _tied(resolution, reason))
    if reason is Reason.NO_ROOM_IN_CLUSTER:
        return Verdict(reason, _nowhere(resolution))
    stopped = stop(view, resolution)
    if stopped is not None and stopped.reason is reason:
        return Verdict(reason, stopped.detail)
    node = local_node(view, resolution, name, beside)
    if node.blocked is not None:
        return Verdict(reason, node.blocked.detail)
    if reason.fits or reason is Reason.ORDER_UNSAFE:
        return _with_room(view, resolution, node, name, reason, budget)
    missing, detail = _missing(view, node, name, reason, budget)
    return Verdict(reason, detail, missing=missing)


def _with_room(  # noqa: PLR0913, PLR0917
    view: View, resolution: Resolution, node: LocalNode, name: str, reason: Reason, budget: Budget
) -> Verdict:
    """A node where a packing exists: the plan, and whether every placement order succeeds."""
    plan = node.plan(budget)
    safety = node.safety(budget)
    disks = dict(enumerate(zip((disk.uuid for disk in node.disks), _labels(view, node, name), strict=True)))
    order = [
        (node.needs.volumes[at].name, disks[disk] if disk is not None else None) for at, disk in safety.counter_example
    ]
    parts = [_kept(view, resolution, name), _unlucky(order) if order else ""]
    if plan is None:
        parts.append("a packing exists, but the budget did not suffice to write it out")
    if safety.answer is Answer.UNDECIDED:
        parts.append("not proven to fit in every order")
    return Verdict(
        reason,
        "; ".join(part for part in parts if part),
        plan or {},
        order_safe=safety.answer is Answer.YES,
        counter_example=tuple((volume, disk[0] if disk else "") for volume, disk in order),
    )


def _unlucky(order: list[tuple[str, tuple[str, str] | None]]) -> str:
    placed = ", ".join(f"{volume} on disk {disk[1]}" for volume, disk in order if disk)
    return f"unlucky order: {placed}, then no disk is left for {order[-1][0]}"


def _kept(view: View, resolution: Resolution, name: str) -> str:
    """Which volumes need nothing new on the node, because a replica there is kept."""
    kept = [
        f"{volume.name} keeps its {found.value} replica"
        for volume in resolution.local
        if (found := standings(volume, view.cluster).get(name, Standing.NONE)) is not Standing.NONE
    ]
    return "; ".join(kept)


def _tied(resolution: Resolution, reason: Reason) -> str:
    if reason is Reason.CLAIM_IN_USE:
        return "; ".join(
            f"claim {volume.claim} is in use on {', '.join(sorted(volume.in_use_on))}"
            for volume in resolution.volumes
            if volume.in_use_on
        )
    placed = (
        (volume.name, sorted({replica.node_id for replica in volume.replicas if replica.node_id}))
        for volume in resolution.local
    )
    return "; ".join(f"{name} has replicas on {', '.join(nodes)}" for name, nodes in placed if nodes)


def _nowhere(resolution: Resolution) -> str:
    waiting = (volume for volume in resolution.remote if not any(replica.node_id for replica in volume.replicas))
    return "no disk can take " + ", or no disk ".join(
        f"{volume.name} ({format_bytes(volume.volume.size)})" for volume in waiting
    )


def _missing(view: View, node: LocalNode, name: str, reason: Reason, budget: Budget) -> tuple[int, str]:
    """The least bytes that, freed on one disk, would let everything fit (0 if unknown), and the sentence saying so."""
    disks = "; ".join(
        f"disk {label} has {format_bytes(disk.free)} left to schedule"
        for disk, label in zip(node.disks, _labels(view, node, name), strict=True)
    )
    if reason is Reason.LOW_AVAILABLE:
        return 0, _too_full(node, _labels(view, node, name))
    if reason is Reason.INSUFFICIENT_STORAGE:
        missing, index = max(
            (missing_alone(node.needs, node.profile, index, mask), -index)
            for index, mask in enumerate(allowed_masks(node.needs, node.profile, node.only))
        )
        volume = node.needs.volumes[-index]
        return missing, f"{volume.name} needs {format_bytes(volume.volume.size)}; {disks}"
    needed = f"{len(node.needs.sizes)} volumes need {format_bytes(node.needs.load.total)} together; {disks}"
    missing = _least_missing(node, budget)
    return missing, needed


def _labels(view: View, node: LocalNode, name: str) -> list[str]:
    names = {disk.uuid: disk.name for disk in view.snapshot.longhorn_nodes[name].disks}
    return [names[disk.uuid] for disk in node.disks]


def _too_full(node: LocalNode, labels: list[str]) -> str:
    masks = allowed_masks(node.needs, node.profile, node.only)
    parts = []
    for index, mask in enumerate(masks):
        if not mask:
            volume = node.needs.volumes[index]
            room = ", ".join(
                f"disk {label} {format_bytes(disk.headroom)}" for disk, label in zip(node.disks, labels, strict=True)
            )
            parts.append(f"{volume.name} has {format_bytes(node.needs.required[index])} of data; to spare: {room}")
    return "; ".join(parts)


def _least_missing(node: LocalNode, budget: Budget) -> int:
    """The least bytes more on one disk with which the needs pack; 0 if no amount helps, or the budget ends before."""
    best = 0
    for disk in range(len(node.disks)):
        found = _least_on(node, disk, best or node.needs.load.total, budget)
        if found is None:
            return 0
        best = found or best
    return best


def _least_on(node: LocalNode, disk: int, most: int, budget: Budget) -> int | None:
    """By halving: the least bytes, at most `most`, that would help on this disk; 0 if they do not, None if undecided."""
    allowed = allowed_masks(node.needs, node.profile, node.only)
    low, high = 0, most
    middle = most
    while True:
        free = tuple(size + middle * (index == disk) for index, size in enumerate(node.profile.free))
        answer = fits(node.needs.load, free, allowed, budget) if budget.spend(_STEPS_A_TRY) else Answer.UNDECIDED
        if answer is Answer.UNDECIDED:
            return None
        if answer is Answer.NO and middle == most:
            return 0
        low, high = (low, middle) if answer is Answer.YES else (middle, high)
        if high - low <= 1:
            return high
        middle = (low + high) // 2
