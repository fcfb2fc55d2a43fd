"""What makes a pod fit, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from scheduler_core.model.quantity import format_bytes, parse_bytes
from scheduler_core.predict.replica_moves import ReplicaMove


class RemedyKind(StrEnum):
    """What one step of a remedy changes; of equal cost the first kind is preferred."""

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

    steps: int  # how many steps it has
    intervention: Intervention  # that of its step that interferes most
    size: int  # bytes that are freed, added or copied, over all steps
    tags: int  # how many tags are added


@dataclass(frozen=True, slots=True)
class Step:
    """One change of the cluster."""

    kind: RemedyKind
    node: str
    disk: str = ""  # its name, "" for a change of the node
    size: int = 0  # bytes to free, to add or to copy
    tags: tuple[str, ...] = ()  # the tags that are added
    text: str = ""  # the change as a part of a sentence
    move: ReplicaMove | None = None  # of the kind `MOVE_REPLICA`; `node` and `disk` are what the replica leaves
    setting: str = ""  # Longhorn's setting that becomes true; `node` is "" then

    @property
    def intervention(self) -> Intervention:
        """How much the change interferes with the cluster."""
        return _INTERVENTIONS.get(self.kind, Intervention.SETTING)


@dataclass(frozen=True, slots=True)
class Remedy:
    """Steps after which a pod fits, none of which can be left out."""

    steps: tuple[Step, ...]

    @property
    def text(self) -> str:
        return ", and ".join(step.text for step in self.steps)

    @property
    def kind(self) -> RemedyKind:
        """The kind of the step that interferes most."""
        return max(self.steps, key=lambda step: (step.intervention, step.kind.rank)).kind

    @property
    def cost(self) -> Cost:
        """What the remedy costs."""
        return Cost(
            steps=len(self.steps),
            intervention=max(step.intervention for step in self.steps),
            size=sum(step.size for step in self.steps),
            tags=sum(len(step.tags) for step in self.steps),
        )

    @property
    def order(self) -> tuple[object, ...]:
        """Sorts remedies: by cost, then by kinds, nodes and disks."""
        return self.cost, [(step.kind.rank, step.node, step.disk, step.tags) for step in self.steps]


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
