"""Guards a placement: Longhorn's disk stays if everything that is still to come to the node fits with it.

Data flow: a placement that Longhorn is about to write → the view, with what was allowed a moment ago and no watch has
shown yet → the volume's demand on that node, or the offer of it that has the volume → everything still to come to the
node. If all of it packs with the volume on Longhorn's disk, the placement is left. Otherwise the disk is changed to
that of a packing of all of it, among the disks of the same node that Longhorn's own rules allow for this replica.
Otherwise there is no plan to keep, and Longhorn's choice stays. Of volumes that do not fit together, hopeless demand is
left out first, then offers (`evaluation/competing_volumes.py`).

Which writes of Longhorn are placements at all, `convert/admission.py` decides.

A replica that no pod needs on the node is steered to a disk with which everything that was promised there still fits
(`replica_steering.py`).

Longhorn's rules are asked as Longhorn's scheduler asks them (`longhorn/placement.py`), with every disk's true load:
what its status counts and what it does not count yet. So a disk that is allowed here is within Longhorn's limit by its
status, too. If the view has Longhorn's disk closed to the volume, Longhorn has read other objects than the watches have
shown, and nothing is changed. A search without an answer never changes anything by itself: a disk is only written if it
is proven to keep the plan.

The guard's health is whether it is asked about every placement, and whether its answers are used. Data flow: the guard writes the place that it allowed into an annotation of the replica, in the same patch → a watch shows the replica
with its first disk → the place is compared with the annotation → confirmed, bypassed or tampered, and the next state. So every process
sees what any process answered. The API server admits a placement without an answer if none comes in time, and notes that in its audit
log alone: the object is the only witness.

Only an update that gives an existing replica its first disk is something that the guard must have been asked about. A replica that the
watch shows with a disk from the start may be a restore, which is created with its disk, or a placement whose earlier event was missed
(after a relist, or between two views). Its generation tells the first from the second as long as its spec was never changed. In all other
cases it counts as bypassed: a needless fallback to safer packing costs some nodes until the next confirmed placement, while a bypass
that goes unnoticed would break the promise.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from functools import cache, partial

from scheduler_core.cluster.view import View
from scheduler_core.evaluation import competing_volumes, single_node
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.fit import plan
from scheduler_core.guard import replica_steering
from scheduler_core.model import longhorn, verdict
from scheduler_core.model.longhorn import Placement, Replica
from scheduler_core.model.quantity import format_bytes, format_count
from scheduler_core.offers.ledger import Ledger
from scheduler_core.packing.budget import Budget
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.resolve import PodVolume

# About 20 ms: the API server, and Longhorn behind it, wait for the answer.
STEPS_PER_PLACEMENT = 20_000


class GuardOutcome(StrEnum):
    """What the guard does about a placement. The value is a metric's label."""

    LEFT = "left"
    CHANGED = "changed"
    NO_PLAN = "no-plan"
    REFUSED_SHAPE = "refused-shape"
    NOT_GUARDED = "not-guarded"  # nothing is promised to pods on its node
    PROMISED_SPACE_TAKEN = "promised-space-taken"  # by it, and there is no other place for it
    LATE = "late"  # it was not decided in time, and is left


class GuardDecision(Struct, frozen=True):
    """The decision about one placement."""

    outcome: GuardOutcome
    allowance: Placement  # the placement as it will be written; it takes space until a watch shows it, guarded or not
    pod: str = ""  # the pod that needs the volume on the node, as ``namespace/name``; "" without one
    detail: str = ""  # a sentence why, for people


class Search(Struct, frozen=True):
    """How far to look for another disk."""

    budget: Budget  # limits the searches, see `STEPS_PER_PLACEMENT`
    other_nodes: bool = False  # whether a replica that no pod needs on its node may be moved to another one


def guard_placement(
    placement: Placement, state: ClusterState, ledger: Ledger, allowances: Iterable[Placement], search: Search
) -> GuardDecision:
    """Decides about a placement that Longhorn asks the API server to write. `allowances` are placements as they were allowed before.
    Those that a watch has shown since count once, and an earlier one of the same replica does not count, because this placement
    replaces it.
    """
    problem = _disk_problem(placement, state.view)
    if problem:
        return GuardDecision(GuardOutcome.REFUSED_SHAPE, placement, detail=problem)
    scheduled = replica_steering.disk_with_schedule(placement.node, state.view)
    if scheduled:
        detail = f"the space of disk {scheduled} of node {placement.node} is allocated through a DiskSchedule"
        return GuardDecision(GuardOutcome.NOT_GUARDED, placement, detail=detail)
    others = (entry for entry in allowances if entry.replica != placement.replica)
    pending = replica_steering.pending_allowances(others, state.view)
    view = replica_steering.with_placements(state.view, pending)

    @cache
    def to_come(node: str) -> replica_steering.VolumesToCome:
        return replica_steering.VolumesToCome.of(view, state.demand.by_node.get(node) or (), ledger, node)

    def competing_on(node: str, counted: Collection[str] = ()) -> competing_volumes.CompetingVolumes:
        placed = {entry.volume for entry in pending if entry.node == node} | {placement.volume}
        competing = to_come(node).competing(placed, view)
        return competing.without(replica_steering.placed_identities(competing, placed.difference(counted), view))

    on_node = {entry.volume for entry in pending if entry.node == placement.node}
    need = None if placement.volume in on_node else to_come(placement.node).need_of(placement.volume, view)
    if need is None:
        steering = replica_steering.Steering(
            placement, view, competing_on, search.budget, other_nodes=search.other_nodes
        )
        return _steer(steering, placement)
    volume, pod = need
    guard = _Guard(view, placement, volume, search.budget)
    return replace(guard.decide(competing_on(placement.node, {placement.volume})), pod=pod)


def _steer(steering: replica_steering.Steering, placement: Placement) -> GuardDecision:
    place = steering.place()
    promised = steering.promised
    if place == placement and not promised:
        detail = f"no pod needs volume {placement.volume} on node {placement.node}, and none was promised space there"
        return GuardDecision(GuardOutcome.NOT_GUARDED, placement, detail=detail)
    what = f"{format_count(promised, 'volume')} that pods were promised space for on node {placement.node}"
    problem = (
        f"{what} fit no more" if steering.breaks_promise else f"what is placed on disk {placement.disk} leaves no space"
    )
    if place is None:
        outcome = GuardOutcome.PROMISED_SPACE_TAKEN if steering.breaks_promise else GuardOutcome.NO_PLAN
        return GuardDecision(outcome, placement, detail=f"{problem}, and there is no other place that Longhorn allows")
    if place == placement and steering.keeps_offers:
        return GuardDecision(GuardOutcome.LEFT, placement, detail=f"{what} still fit")
    if place == placement:
        detail = f"what undecided pods were offered on node {placement.node} fits no more, and there is no other place"
        return GuardDecision(GuardOutcome.PROMISED_SPACE_TAKEN, placement, detail=detail)
    detail = f"{problem}; on disk {place.disk} of node {place.node} volume {placement.volume} takes no promised space"
    return GuardDecision(GuardOutcome.CHANGED, place, detail=detail)


def guards_every_node(view: View) -> bool:
    """Whether the guard keeps the plans of all nodes."""
    # It leaves nodes alone where a disk's space is allocated through a DiskSchedule.
    return all(schedule.mirrored for schedule in view.snapshot.disk_schedules.values())


def _disk_problem(placement: Placement, view: View) -> str:
    node = view.snapshot.longhorn_nodes.get(placement.node)
    if node is None:
        return f"there is no nodes.longhorn.io {placement.node}"
    disk = next((disk for disk in node.disks if disk.uuid == placement.disk), None)
    if disk is None:
        return f"node {node.name} has no disk with UUID {placement.disk}"
    if disk.path != placement.disk_path:
        return f"disk {disk.name} of node {node.name} has path {disk.path}, not {placement.disk_path}"
    return ""


class _Guard:
    def __init__(self, view: View, placement: Placement, volume: PodVolume, budget: Budget) -> None:
        self._view = view
        self._placement = placement
        self._volume = volume
        self._budget = budget
        self._node = view.snapshot.longhorn_nodes[placement.node]

    def decide(self, competing: competing_volumes.CompetingVolumes) -> GuardDecision:
        everything = competing_volumes.all_volumes(competing)
        decision = self._keep(everything.volumes)
        if decision is not None:
            return decision
        fitting = competing_volumes.fitting_volumes(
            competing, partial(replica_steering.may_fit, self._view, name=self._node.name, budget=self._budget)
        )
        if competing_volumes.identity(self._volume) not in fitting.demanded:
            return self._no_plan(f"volume {self._placement.volume} does not fit there together with older demand")
        for volumes in (fitting.volumes, fitting.demanded):
            if len(volumes) < len(everything.volumes):
                decision = self._keep(volumes)
                if decision is not None:
                    return decision
        where = f"with volume {self._placement.volume} on no disk that Longhorn allows"
        return self._no_plan(f"{self._sentence(fitting.demanded)} is proven to fit {where}")

    def _keep(self, volumes: Mapping[str, PodVolume]) -> GuardDecision | None:
        evaluation = replica_steering.evaluate_volumes(self._view, list(volumes.values()), self._node.name)
        key = competing_volumes.identity(self._volume)
        if evaluation.refused is not None or key not in volumes:
            return None
        index = [competing_volumes.identity(volume) for volume in evaluation.required.volumes].index(key)
        open_disks = evaluation.masks[index]

        def on(uuids: Collection[str]) -> single_node.NodeEvaluation | None:
            # The volume may use these disks alone.
            bits = (1 << position for position, disk in enumerate(evaluation.disks) if disk.uuid in uuids)
            mask = open_disks & sum(bits)
            return replace(evaluation, allowed={**evaluation.allowed, index: mask}) if mask else None

        disk = self._disk(self._placement.disk)
        on_longhorns_disk = on({disk.uuid})
        if on_longhorns_disk is None:
            return self._no_plan(f"the watches show disk {disk.name} as closed to volume {self._placement.volume}")
        everything = self._sentence(volumes)
        if replica_steering.reason_by_half(on_longhorns_disk, self._budget) is verdict.Reason.ROOM:
            detail = f"{everything} fits with volume {self._placement.volume} on disk {disk.name}"
            return GuardDecision(GuardOutcome.LEFT, self._placement, detail=detail)
        elsewhere = on(replica_steering.legal_disks(self._view, self._placement, self._volume.volume) - {disk.uuid})
        if elsewhere is None:
            return None
        disks = plan(elsewhere.required, elsewhere.profile, self._budget, elsewhere.allowed)
        if disks is None:
            return None
        other = self._disk(evaluation.disks[disks[index]].uuid)
        changed = replace(self._placement, disk=other.uuid, disk_path=other.path)
        fit = f"is proven to fit with volume {self._placement.volume} on disk {other.name}, not on disk {disk.name}"
        return GuardDecision(GuardOutcome.CHANGED, changed, detail=f"{everything} {fit}")

    def _no_plan(self, detail: str) -> GuardDecision:
        return GuardDecision(GuardOutcome.NO_PLAN, self._placement, detail=detail)

    def _disk(self, uuid: str) -> longhorn.Disk:
        return next(disk for disk in self._node.disks if disk.uuid == uuid)

    def _sentence(self, volumes: Mapping[str, PodVolume]) -> str:
        total = format_bytes(sum(volume.volume.size for volume in volumes.values()))
        return f"everything to come to node {self._node.name} ({format_count(len(volumes), 'volume')}, {total})"


class GuardState(StrEnum):
    """What may be relied on. The value is a metric's label."""

    UNPROVEN = "unproven"  # no placement was confirmed since this process started, or since one was bypassed
    PROVEN = "proven"  # the last ones were confirmed
    TAMPERED = "tampered"  # what the guard wrote was found half changed; final until the process starts again


class Observation(StrEnum):
    """What the watch showed about one placement. The value is a metric's label."""

    CONFIRMED = "confirmed"  # it is as the guard answered
    BYPASSED = "bypassed"  # the guard was not asked, or its answer was not used
    TAMPERED = "tampered"  # the guard's change is there in part only


_NEXT_STATE = {
    Observation.CONFIRMED: GuardState.PROVEN,
    Observation.BYPASSED: GuardState.UNPROVEN,
    Observation.TAMPERED: GuardState.TAMPERED,
}


def observe_placement(before: Replica | None, after: Replica) -> Observation | None:
    """Compares a replica that a watch has shown with what was answered; returns None if this is no placement that the
    guard must have been asked about. `before` is what the watch had shown last, None if it had not.
    """
    if not after.disk_id or (before is not None and before.disk_id):
        return None
    # A CREATE with a disk is a restore; its generation is 1 until the spec is changed.
    if before is None and not after.reviewed_place and after.spec_is_original:
        return None
    whole = (after.node_label, after.disk_label) == (after.node_id, after.disk_id)
    if whole and after.reviewed_place == after.place:
        return Observation.CONFIRMED
    # Another disk than the one answered, but all of it: a placement about which the guard was not asked.
    chosen_anew = whole and not after.reviewed_place.startswith(f"{after.node_id}/{after.disk_id}/")
    return Observation.BYPASSED if chosen_anew or not after.reviewed_place else Observation.TAMPERED


def next_state(state: GuardState, observation: Observation) -> GuardState:
    return state if state is GuardState.TAMPERED else _NEXT_STATE[observation]
