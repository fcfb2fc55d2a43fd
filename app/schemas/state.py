"""The cluster's state, demand and offers as plain data: the stable JSON of `/state`."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from app.schemas.decision import Answer, PolicyAnswer
from scheduler_core.cluster.free_space import unlisted_bytes
from scheduler_core.cluster.view import View
from scheduler_core.decide.extender_settings import Enforcement
from scheduler_core.decide.nudge_limits import WaitingPod
from scheduler_core.disk_schedule.allocation import claimed_bytes
from scheduler_core.evaluation.competing_volumes import identity
from scheduler_core.guard.placement_guard import GuardState
from scheduler_core.longhorn.space import DiskSpace
from scheduler_core.model import longhorn
from scheduler_core.model.disk_schedule import RequestKind
from scheduler_core.model.longhorn import Placement
from scheduler_core.monitor.demand_monitor import PlacementReport
from scheduler_core.monitor.overbooking_monitor import OverbookingReport
from scheduler_core.offers.ledger import Ledger
from scheduler_core.offers.outstanding_offer import Offer
from scheduler_core.structs import Struct, field
from scheduler_core.volumes.demand_index import DemandIndex
from scheduler_core.volumes.resolve import PodVolume

# Limits of each list; its count covers all entries.
MAX_LISTED = 1000
MAX_NODES_LISTED = 50
MAX_VOLUMES_LISTED = 50


class OutstandingState(Struct, frozen=True):
    """Demand, offers and refused pods; empty unless reservations are by capacity."""

    demand: DemandIndex | None = None  # of the current view; None for none
    ledger: Ledger = field(default_factory=Ledger)  # after a tick just now, because ages are counted until then
    # The latest report; a demand that it does not have yet is not hopeless.
    report: PlacementReport = field(default_factory=PlacementReport)
    overbookings: OverbookingReport = field(default_factory=OverbookingReport)  # the latest report on overbooked disks
    waiting: Sequence[WaitingPod] = ()  # refused pods, in the order of the answer


class GuardActivity(Struct, frozen=True):
    """What the placement guard did since this process leads."""

    health: GuardState | None = None  # what may be relied on; None while the guard is off or this process does not lead
    awaited: tuple[Placement, ...] = ()  # placements that it allowed and that no watch has shown yet, oldest first
    outcomes: Mapping[str, int] = {}  # how many placements it answered, by outcome
    # How many placements a watch has shown, by what they showed.
    observations: Mapping[str, int] = {}


class PlacementGuardState(Struct, frozen=True):
    """Whether API servers can call the placement guard, and what it did.

    /state shows it as `PlacementGuardAnswer`.
    """

    mode: str
    published: bool
    problem: str
    activity: GuardActivity = field(default_factory=GuardActivity)


class ServiceState(Struct, frozen=True):
    """Which process answers, and with which settings; /state shows it as `ServiceAnswer`."""

    answering: bool
    refusal: str
    leader: str
    enabled: bool
    enforcement: Enforcement
    pod_scheduling_timeout: int
    node_reservation_timeout: int
    origins: Mapping[str, str]
    refused_settings: Sequence[str]
    reserved_nodes: Sequence[str]
    outstanding: OutstandingState = field(default_factory=OutstandingState)
    unreadable: Sequence[str] = ()
    guard: PlacementGuardState | None = None


class DiskScheduleState(Answer):
    """What a disk's DiskSchedule holds, in bytes."""

    scheduled: int = Field(description="granted")
    pending: int = Field(description="asked for and not decided yet, growth included")
    grants: int = Field(
        description="what it would still grant in addition to both; less than 0 if it is over-allocated"
    )


class DiskState(Answer):
    """A disk and what counts on it, in bytes."""

    name: str
    uuid: str
    type: str
    tags: list[str]
    ready: bool
    schedulable: bool
    allow_scheduling: bool
    eviction_requested: bool
    storage_maximum: int
    storage_reserved: int
    storage_available: int
    storage_scheduled: int = Field(description="as Longhorn's status has it")
    free: int = Field(description="what may still be scheduled: size <= free")
    headroom: int = Field(description="what may still be written: actual size < headroom")
    replicas: dict[str, int] = Field(description="counted in storageScheduled, by name")
    backing_images: dict[str, int] = Field(description="likewise")
    not_yet_scheduled: dict[str, int] = Field(
        description="replicas placed here that Longhorn's status does not list yet"
    )
    disk_schedule: DiskScheduleState | None = Field(
        description="its limit holds in addition to Longhorn's; null without one"
    )


class NodeState(Answer):
    """A Longhorn node."""

    ready: bool
    schedulable: bool
    allow_scheduling: bool
    eviction_requested: bool
    zone: str
    tags: list[str]
    disks: list[DiskState]


class DemandAnswer(Answer):
    """Room that a volume will take on a node, where it has no replica yet."""

    volume: str = Field(description="the Longhorn volume; the claim while it is unbound")
    claim: str = Field(description="namespace/name; empty if it is gone")
    node: str
    source: str = Field(
        description="what ties it to the node: pod, selected_node, nomination, attachment, hard_node_affinity"
    )
    pod: str = Field(description="namespace/name; empty if none is left")
    size: int = Field(description="bytes")
    since: str = Field(description="when the claim was created; empty if it is gone")
    hopeless: bool = Field(
        description="whether it has no room in addition to older ones, and so does not count on this node"
    )
    roaming: bool = Field(description="whether Longhorn may place it on any node, so that it counts on all of them")


class OfferAnswer(Answer):
    """A pod with an outstanding offer: no decision about it was observed yet."""

    pod: str = Field(description="namespace/name")
    uid: str
    nodes: list[str] = Field(description=f"the first {MAX_NODES_LISTED} by name")
    node_count: int = Field(description="of all nodes")
    age_seconds: float
    narrowed: bool = Field(description="whether a nomination said which node it will be")
    held_from_priority: int | None = Field(
        description="set if preemption makes room for the pod: pods of at most this priority do not get it"
    )
    volumes: list[str] = Field(description="claims as namespace/name, or Longhorn volumes without one")


class WaitingAnswer(Answer):
    """A pod that was refused everywhere and is retried when it fits."""

    pod: str = Field(description="namespace/name")
    uid: str
    waited_seconds: float = Field(description="since it was refused first")
    nudges: int = Field(description="how often it was made to be retried")


class MisplacedAnswer(Answer):
    """A new volume that Longhorn placed on another node than its pod's.

    It is still not on the node where its pod needs it.
    """

    pod: str = Field(description="namespace/name; empty if none is known")
    volume: str = Field(description="the Longhorn volume")
    node: str = Field(description="where it is wanted")
    replicas_on: list[str] = Field(description="where it has replicas now")


class OverbookedAnswer(Answer):
    """A disk that exceeds Longhorn's limit because several volumes were placed there on the same status."""

    node: str
    disk: str
    volumes: list[str] = Field(
        description=f"those that met there, in order of placement; the first {MAX_VOLUMES_LISTED}"
    )
    volume_count: int = Field(description="of all that met")
    bytes_over: int = Field(description="how far it exceeds the limit now")
    within_milliseconds: int = Field(description="between the first and the last of these placements")


class StuckAnswer(Answer):
    """A bound pod that has waited for its volumes for a minute."""

    pod: str = Field(description="namespace/name")
    node: str
    volumes: list[str] = Field(description="those that are not on its node")
    waited_seconds: float = Field(description="since this process saw it begin")


class AwaitedPlacementAnswer(Answer):
    """A placement that the guard allowed and that no watch has shown yet."""

    replica: str
    volume: str
    node: str
    disk: str = Field(description="UUID of the disk, as it was to be written")
    size: int = Field(description="bytes")


class PlacementGuardAnswer(Answer):
    """Whether API servers can call the placement guard, and what it did.

    What it did, and what a watch has shown, is counted from when this process started.
    """

    mode: str = Field(description="the setting placement-guard: off, observe or enforce")
    published: bool = Field(description="whether its Service leads to this process")
    problem: str = Field(description="why it cannot be called, or soon cannot; empty if nothing is wrong")
    health: str = Field(description="unproven, proven or tampered; empty while the guard is off")
    outcomes: dict[str, int] = Field(
        description="placements that it was asked about, by outcome: left, changed, no-plan, refused-shape, "
        "not-guarded, promised-space-taken, late"
    )
    observations: dict[str, int] = Field(description="placements that a watch has shown: confirmed, bypassed, tampered")
    awaited: list[AwaitedPlacementAnswer] = Field(description="oldest first")
    awaited_count: int


class ServiceAnswer(Answer):
    """Who answers, by which settings, and what is not settled yet."""

    answering: bool = Field(description="whether this process answers kube-scheduler")
    refusal: str = Field(description="why it does not; empty if it does")
    leader: str = Field(description="who holds the Lease, as far as known")
    enabled: bool
    enforcement: Enforcement = Field(description="observe: every node fits, and refusals are only counted and logged")
    pod_scheduling_timeout: int = Field(description="seconds")
    node_reservation_timeout: int = Field(description="seconds")
    origins: dict[str, str] = Field(description="where each setting's value comes from")
    refused_settings: list[str] = Field(description="values that are not valid")
    unreadable: list[str] = Field(description="objects that are left out because they cannot be read, and why")
    reserved_nodes: list[str] = Field(description="nodes that take no new volumes now")
    demands: list[DemandAnswer] = Field(description=f"by node and age; at most {MAX_LISTED}, as in all lists here")
    demand_count: int = Field(description="of all demands")
    offers: list[OfferAnswer] = Field(description="oldest first")
    offer_count: int
    waiting: list[WaitingAnswer] = Field(description="the one refused first comes first")
    waiting_count: int
    misplaced: list[MisplacedAnswer] = Field(description="by node and age")
    misplaced_count: int
    overbooked: list[OverbookedAnswer] = Field(description="by node and disk")
    overbooked_count: int
    stuck: list[StuckAnswer] = Field(description="by node and name")
    stuck_count: int
    placement_guard: PlacementGuardAnswer | None = Field(description="null without one")


class CallerAnswer(Answer):
    """Where /filter was called from."""

    address: str
    form: str = Field(description="names, or nodes if whole nodes were sent")
    requests: int
    age_seconds: float = Field(description="since the last request")


class StateAnswer(Answer):
    """What decisions are based on at this moment."""

    version: int = Field(description="of the view; grows with every change")
    service: ServiceAnswer | None = Field(
        default=None, description="whether this process answers and why not; null over a snapshot file"
    )
    policy: PolicyAnswer | None = Field(default=None, description="of `serve --policy`; null without one")
    callers: list[CallerAnswer] = Field(
        default_factory=list[CallerAnswer], description="of /filter, by address and form; the latest 16"
    )
    nodes: dict[str, NodeState]


def state_answer(
    view: View,
    service: ServiceState | None = None,
    policy: PolicyAnswer | None = None,
    callers: Sequence[CallerAnswer] = (),
) -> StateAnswer:
    """Returns a view as data; nodes are ordered by name."""
    nodes = view.snapshot.longhorn_nodes
    return StateAnswer(
        version=view.version,
        service=_service_answer(service) if service else None,
        policy=policy,
        callers=list(callers),
        nodes={
            name: NodeState.of(
                node,
                tags=sorted(node.tags),
                disks=[_disk_state(view, disk, view.free_space(name)[disk.name]) for disk in node.disks],
            )
            for name, node in sorted(nodes.items())
        },
    )


def _service_answer(state: ServiceState) -> ServiceAnswer:
    outstanding = state.outstanding
    ledger = outstanding.ledger
    report = outstanding.report
    waiting = outstanding.waiting
    overbooked = outstanding.overbookings.overbooked
    demands = outstanding.demand.all if outstanding.demand else ()
    hopeless = {(demand.node, identity(demand.volume)) for demand in report.hopeless}
    return ServiceAnswer.of(
        state,
        demands=[
            DemandAnswer.of(
                demand,
                volume=demand.volume.name,
                claim=demand.volume.claim,
                source=demand.source.name.lower(),
                size=demand.volume.volume.size,
                hopeless=(demand.node, identity(demand.volume)) in hopeless,
                roaming=identity(demand.volume) in report.roaming,
            )
            for demand in demands[:MAX_LISTED]
        ],
        demand_count=len(demands),
        offers=[_offer_answer(offer, ledger.time) for offer in ledger.oldest_first()[:MAX_LISTED]],
        offer_count=ledger.outstanding,
        waiting=[
            WaitingAnswer.of(entry, pod=entry.pod.key, uid=entry.pod.uid, waited_seconds=round(entry.seconds, 3))
            for entry in waiting[:MAX_LISTED]
        ],
        waiting_count=len(waiting),
        misplaced=report.misplaced[:MAX_LISTED],
        misplaced_count=len(report.misplaced),
        overbooked=[
            OverbookedAnswer.of(
                entry,
                volumes=entry.volumes[:MAX_VOLUMES_LISTED],
                volume_count=len(entry.volumes),
                within_milliseconds=entry.milliseconds,
            )
            for entry in overbooked[:MAX_LISTED]
        ],
        overbooked_count=len(overbooked),
        stuck=[
            StuckAnswer.of(entry, waited_seconds=round(report.time - entry.since, 3))
            for entry in report.stuck[:MAX_LISTED]
        ],
        stuck_count=len(report.stuck),
        placement_guard=_guard_answer(state.guard) if state.guard is not None else None,
    )


def _offer_answer(offer: Offer, now: float) -> OfferAnswer:
    volumes = (*offer.volumes, *offer.unplaced_volumes)
    return OfferAnswer.of(
        offer,
        pod=f"{offer.pod.namespace}/{offer.pod.name}",
        nodes=sorted(offer.nodes)[:MAX_NODES_LISTED],
        node_count=len(offer.nodes),
        age_seconds=round(now - offer.made_at, 3),
        held_from_priority=offer.priority,
        volumes=[volume.claim or volume.name for volume in volumes if isinstance(volume, PodVolume)],
    )


def _guard_answer(state: PlacementGuardState) -> PlacementGuardAnswer:
    activity = state.activity
    return PlacementGuardAnswer.of(
        state,
        health=activity.health.value if activity.health is not None else "",
        outcomes=activity.outcomes,
        observations=activity.observations,
        awaited=activity.awaited[:MAX_LISTED],
        awaited_count=len(activity.awaited),
    )


def _disk_state(view: View, disk: longhorn.Disk, space: DiskSpace) -> DiskState:
    schedule = view.schedule_of(disk)
    grants = None
    if schedule is not None and space.grants is not None:
        granted = sum(entry.size for kind in RequestKind for entry in schedule.status.allocations(kind).values())
        pending = claimed_bytes(schedule) - granted
        grants = DiskScheduleState(scheduled=granted, pending=pending, grants=space.grants)
    return DiskState.of(
        disk,
        type=disk.spec_type,
        tags=sorted(disk.tags),
        free=space.free,
        headroom=space.headroom,
        replicas=dict(sorted(disk.scheduled_replicas.items())),
        backing_images=dict(sorted(disk.scheduled_backing_images.items())),
        not_yet_scheduled={
            replica.name: unlisted_bytes(disk, (replica,)) for replica in view.unlisted_replicas_on(disk)
        },
        disk_schedule=grants,
    )
