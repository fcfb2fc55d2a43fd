"""Sentences about nodes where a pod's volumes fit, but where Longhorn may miss that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_core.extender.decision import Packing
from scheduler_core.model.listing import join_first
from scheduler_core.model.quantity import format_bytes
from scheduler_core.model.verdict import Meeting


def failing_order(placed: Sequence[tuple[str, int | None]], disks: Sequence[str]) -> str:
    """Says on which disks an unlucky order puts volumes, and which one is left over.

    `placed`: volumes with the indexes of their disks; the last one has none.
    """
    if not placed:
        return ""
    steps = [f"{volume} on disk {disks[disk]}" for volume, disk in placed if disk is not None]
    return f"unlucky order: {join_first(steps, ', ')}, then no disk is left for {placed[-1][0]}"


def meeting_on(disks: Mapping[str, str], meeting: Meeting | None) -> str:
    """Says which volumes may meet on a disk; `disks` has the names by UUID."""
    if meeting is None:
        return ""
    return f"on outdated status all of these may go to disk {disks[meeting.disk]}: {join_first(meeting.volumes, ', ')}"


def never_offered(packing: Packing, missing: Sequence[int], disks: Sequence[str]) -> str:
    """Says that a packing mode never offers a node, and what would end that.

    `missing`: the least bytes that each disk lacks for stale safety, in the order of their names; empty if unknown.
    """
    ends = ["--packing auto, best with the placement guard, which keeps Longhorn to the plan"]
    lacking = [f"{format_bytes(size)} on disk {disk}" for size, disk in zip(missing, disks, strict=False) if size]
    if lacking:
        # A node that is order-safe need not be stale-safe.
        at_most = "at most " if packing is Packing.ORDER_SAFE else ""
        ends.append(f"{at_most}{format_bytes(sum(missing))} more space: {join_first(lacking, ', ')}")
    return f"--packing {packing} never offers the node to these volumes; what would end that: {', or '.join(ends)}"
