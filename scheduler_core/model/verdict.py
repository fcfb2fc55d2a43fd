"""The result for one node: a `Reason` of a small fixed set, and the numbers behind it."""

from collections.abc import Mapping
from enum import Enum

from scheduler_core.structs import Struct


class Reason(Enum):
    """Why a node fits or does not. A member's value is (text, fits). The texts hold no names and no numbers, because
    kube-scheduler counts equal ones together. Preemption resolves no refusal: evicting pods frees no Longhorn space.
    """

    NO_VOLUMES = ("the pod has no Longhorn volumes", True)
    HOME = ("holds the replicas of all local volumes", True)
    ROOM = ("has room for all local volumes", True)
    ATTACHABLE = ("can attach all volumes, which need no local room", True)

    NOT_A_LONGHORN_NODE = ("node is not a Longhorn node", False)
    NODE_NOT_READY = ("Longhorn node is not ready", False)
    NODE_NOT_READY_YET = ("Longhorn node is not ready yet", False)
    ENGINE_NOT_READY = ("Longhorn engine is not ready on the node", False)
    CLAIM_IN_USE = ("volume claim is in use by a pod on another node", False)
    STRICT_LOCAL_ELSEWHERE = ("strict-local volume has its replica on another node", False)
    TOO_MANY_VOLUMES = ("the pod has more volumes than a node can attach", False)
    UNCERTAIN_VOLUME = ("it is uncertain which PersistentVolume is bound, and not each one fits the node", False)
    HOME_ELSEWHERE = ("volume replicas are on another node", False)
    NODE_RESERVED = ("node is reserved for another pod's volumes", False)
    NODE_EVICTING = ("Longhorn node is being evicted", False)
    NODE_SCHEDULING_DISABLED = ("Longhorn node does not allow scheduling", False)
    NODE_CORDONED = ("Longhorn node is cordoned", False)
    NODE_TAGS = ("Longhorn node tags do not match", False)
    TOPOLOGY = ("volume topology requirement does not match", False)
    ANTI_AFFINITY = ("replica anti-affinity does not allow the node", False)
    NO_DISK = ("no Longhorn disk on the node allows scheduling", False)
    DISK_PRESSURE = ("Longhorn disks are under disk pressure", False)
    DISK_TYPE = ("no Longhorn disk of the volume's data engine", False)
    DISK_TAGS = ("Longhorn disk tags do not match", False)
    VOLUME_TOO_LARGE = ("volume is too large for the disk's file system", False)
    LINKED_CLONE = ("linked clone must stay with its source replica", False)
    LOW_AVAILABLE = ("Longhorn disks have too little available space", False)
    INSUFFICIENT_STORAGE = ("insufficient Longhorn storage", False)
    NOT_TOGETHER = ("insufficient Longhorn storage for all volumes together", False)
    STALE_UNSAFE = ("volumes may not fit when Longhorn places them on outdated status", False)
    ORDER_UNSAFE = ("volumes may not fit in every order Longhorn places them", False)
    NEVER_SAFE = (
        "volumes fit, but this packing mode never offers the node: use auto with the placement guard, or add space", False
    )  # fmt: skip
    SPOKEN_FOR = ("Longhorn storage is taken by other pods' volumes", False)
    NOT_OFFERED = ("other nodes with more room are offered to the pod", False)
    WAITING = ("waiting for other pods' placement", False)
    NO_ROOM_IN_CLUSTER = ("no Longhorn disk in the cluster can take the volume", False)
    TOO_FEW_NODES = ("too few nodes or zones for the volume's replicas", False)
    NOT_TOGETHER_IN_CLUSTER = ("insufficient Longhorn storage in the cluster for all replicas together", False)
    VOLUME_DELETING = ("Longhorn volume is being deleted", False)
    VOLUME_FAULTED = ("Longhorn volume is faulted and has no replica to salvage", False)
    VOLUME_STANDBY = ("Longhorn volume is on standby until it is activated", False)
    VOLUME_RESTORING = ("Longhorn volume is still being restored", False)
    VOLUME_CLONING = ("Longhorn volume is still being cloned", False)
    UNDECIDED = ("packing the volumes took too long to decide", False)
    NO_BACKING_IMAGE = ("the volume's backing image does not exist", False)
    BAD_VOLUME = ("Longhorn volume cannot be read", False)
    BAD_SETTING = ("Longhorn setting cannot be read", False)

    def __init__(self, text: str, fits: bool) -> None:  # noqa: FBT001 # members are written as tuples
        self.text = text
        self.fits = fits

    # Enum's own hash is a Python function of the name. Thousands of nodes are counted by reason, and members are singletons,
    # so the built-in hash by identity is equivalent and faster.
    __hash__ = object.__hash__


UNSAFE = frozenset({Reason.STALE_UNSAFE, Reason.ORDER_UNSAFE})
"""With these a packing exists, but Longhorn may miss it. A node that is not order-safe is not stale-safe either."""


class Meeting(Struct, frozen=True):
    """Volumes that Longhorn may all place on one disk, which cannot take them together."""

    disk: str  # its UUID
    volumes: tuple[str, ...]  # their names


class CompetingVolume(Struct, frozen=True):
    """A volume of another pod that takes space on the node."""

    pod: str  # ``namespace/name``; "" if no pod is known to use it
    claim: str  # ``namespace/name``; "" for a volume without a claim
    volume: str  # the name of the Longhorn volume, or of the claim while there is none
    size: int  # bytes


class Verdict(Struct, frozen=True):
    """The result for one node, with details for people."""

    reason: Reason
    detail: str = ""  # the numbers, as a sentence; it may name nodes, disks and volumes
    # The UUID of a disk for each local volume that needs space on the node, by the volume's name.
    plan: Mapping[str, str] = {}
    order_safe: bool = False  # whether Longhorn is proven to find space in whatever order it places the volumes
    stale_safe: bool = False  # whether it also finds space if it sees none of its latest placements
    meeting: Meeting | None = None  # where it is not stale-safe, the volumes that outdated status may lead to one disk
    # An order that fails, as (volume, disk UUID); "" for the last volume, which finds no disk.
    counter_example: tuple[tuple[str, str], ...] = ()
    # The least bytes that a single open disk would have to have more so that all volumes fit, or a proven lower bound
    # of them, which `detail` then says; 0 if not applicable, or if no amount on a single disk is enough.
    missing: int = 0
    # The volumes of other pods that the pod's volumes were packed together with.
    competing: tuple[CompetingVolume, ...] = ()

    @property
    def fits(self) -> bool:
        return self.reason.fits
