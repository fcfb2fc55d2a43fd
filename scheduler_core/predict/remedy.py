"""What makes a pod fit, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from scheduler_core.model.quantity import format_bytes, parse_bytes
from scheduler_core.predict.replica_moves import ReplicaMove


class RemedyKind(StrEnum):
    """What a remedy changes; of equal cost the first kind is preferred."""

    UNCORDON = "uncordon"
    ALLOW_DEGRADED = "allow-degraded"
    SOFTEN_ANTI_AFFINITY = "soften-anti-affinity"
    ALLOW_NODE = "allow-node"
    ALLOW_DISK = "allow-disk"
    TAG_NODE = "tag-node"
    TAG_DISK = "tag-disk"
    LOWER_RESERVE = "lower-reserve"
    FREE_SCHEDULED = "free-scheduled"
    FREE_AVAILABLE = "free-available"
    GROW_DISK = "grow-disk"
    MOVE_REPLICA = "move-replica"

    @property
    def rank(self) -> int:
        return _KINDS.index(self)


class Intervention(IntEnum):
    """How much a step interferes with the cluster, least first."""

    SETTING = 0
    SPACE = 1
    MOVE = 2


_INTERVENTIONS = {
    RemedyKind.LOWER_RESERVE: Intervention.SPACE,
    RemedyKind.FREE_SCHEDULED: Intervention.SPACE,
    RemedyKind.FREE_AVAILABLE: Intervention.SPACE,
    RemedyKind.GROW_DISK: Intervention.SPACE,
    RemedyKind.MOVE_REPLICA: Intervention.MOVE,
}
_KINDS = tuple(RemedyKind)


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """The cost of a remedy. Remedies are compared field by field, in this order."""

    intervention: Intervention
    size: int  # bytes that are freed, added or copied
    tags: int  # how many tags are added


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the cluster; a remedy is one after which a pod fits."""

    kind: RemedyKind
    node: str
    disk: str = ""  # its name, "" for a change of the node
    size: int = 0  # bytes to free, to add or to copy
    tags: tuple[str, ...] = ()  # the tags that are added
    text: str = ""  # the change as a part of a sentence
    move: ReplicaMove | None = None  # of the kind `MOVE_REPLICA`; `node` and `disk` are what the replica leaves
    setting: str = ""  # Longhorn's setting that becomes true; `node` is "" then

    @property
    def cost(self) -> Cost:
        """What the change costs, least interference with the cluster first."""
        return Cost(_INTERVENTIONS.get(self.kind, Intervention.SETTING), self.size, len(self.tags))

    @property
    def order(self) -> tuple[object, ...]:
        """Sorts remedies: by cost, then by kinds, nodes and disks."""
        return self.cost, self.kind.rank, self.node, self.disk, self.tags


def exact_bytes(size: int) -> str:
    """Returns a size for people. It is in bytes where a unit would round it.

    >>> exact_bytes(2 * 1024**3), exact_bytes(2 * 1024**3 + 1)
    ('2Gi', '2147483649 bytes (2Gi + 1)')
    """
    text = format_bytes(size)
    return text if "+" not in text and parse_bytes(text) == size else f"{size} bytes ({text})"


def move_step(move: ReplicaMove) -> Step:
    origin = "/".join(move.origin)
    text = f"move replica {move.replica} off disk {origin} ({exact_bytes(move.copied_bytes)} are copied)"
    return Step(RemedyKind.MOVE_REPLICA, *move.origin, move.copied_bytes, text=text, move=move)
