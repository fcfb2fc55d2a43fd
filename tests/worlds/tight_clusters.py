"""Random tight clusters: nodes whose disks are nearly full, and more pods of several claims than find space there."""

import random
from dataclasses import dataclass
from typing import Self

from tests import builders as make
from tests.builders import Object
from tests.worlds.engines import engines

STRICT = "longhorn-strict"
_NODES = (8, 12)
_DISKS = (2, 4)
_DISK_SIZES = (100, 150, 200, 300)
_FULL = (0.60, 0.95)
# Of a disk that is less than a quarter available Longhorn takes nothing.
_MOST_WRITTEN = 0.7
_CLAIMS = (2, 4)
_CLAIM_SIZES = (2, 5, 8, 12, 20, 30, 45, 60)
_CLASSES = ("longhorn", STRICT)


@dataclass(frozen=True, slots=True)
class TightDisk:
    """A disk; sizes in Gi."""

    size: int
    booked: int  # what Longhorn has promised to replicas that are not part of the cluster here
    written: int  # what these have written; it makes Longhorn's choice of a disk depend on more than promised bytes

    @property
    def free(self) -> int:
        """Gi that can still be promised."""
        return self.size - self.booked

    @classmethod
    def draw(cls, chance: random.Random) -> Self:
        size = chance.choice(_DISK_SIZES)
        booked = round(size * chance.uniform(*_FULL))
        return cls(size, booked, min(booked, round(size * chance.uniform(0, _MOST_WRITTEN))))


@dataclass(frozen=True, slots=True)
class TightClaim:
    """A claim of some Gi; half of them are strict-local, the others best-effort."""

    name: str
    size: int
    storage_class: str

    @property
    def locality(self) -> str:
        return "strict-local" if self.storage_class == STRICT else "best-effort"


@dataclass(frozen=True, slots=True)
class TightCluster:
    """The nodes and pods of one seed, always the same."""

    seed: int
    nodes: dict[str, tuple[TightDisk, ...]]  # the disks of each node
    # The claims of each pod, in the order in which they are created; together they need at least as much as is free.
    pods: dict[str, tuple[TightClaim, ...]]

    @classmethod
    def draw(cls, seed: int) -> Self:
        """Draws the cluster of a seed."""
        chance = random.Random(seed)  # noqa: S311 # repeatable, not secret
        nodes = {
            f"n{number:02}": tuple(TightDisk.draw(chance) for _ in range(chance.randint(*_DISKS)))
            for number in range(chance.randint(*_NODES))
        }
        free = sum(disk.free for disks in nodes.values() for disk in disks)
        pods: dict[str, tuple[TightClaim, ...]] = {}
        while free > 0:
            name = f"p{len(pods):03}"
            pods[name] = tuple(
                TightClaim(f"{name}-{number}", chance.choice(_CLAIM_SIZES), chance.choice(_CLASSES))
                for number in range(chance.randint(*_CLAIMS))
            )
            free -= sum(claim.size for claim in pods[name])
        return cls(seed, nodes, pods)

    @property
    def first_pod(self) -> str:
        return next(iter(self.pods))

    def free_space(self, node: str) -> int:
        """Gi that a node's disks can take together."""
        return sum(disk.free for disk in self.nodes[node])

    def objects(self) -> list[Object]:
        """All objects before the first pod is scheduled."""
        return [
            make.storage_class("longhorn"),
            make.storage_class(STRICT, dataLocality="strict-local"),
            *engines(self.nodes),
            *map(make.kube_node, self.nodes),
            *(_longhorn_node(name, disks) for name, disks in self.nodes.items()),
            *(
                entry
                for number, name in enumerate(self.pods)
                for entry in self._pod(name, f"{number // 60:02}:{number % 60:02}")
            ),
        ]

    def _pod(self, name: str, created: str) -> list[Object]:
        """A pod with its claims, created so many minutes and seconds after midnight."""
        claims = [make.claim(claim.name, claim.size, storage_class=claim.storage_class) for claim in self.pods[name]]
        pod = make.pod(*(claim.name for claim in self.pods[name]), name=name, uid=f"uid-{name}")
        for raw in (*claims, pod):
            raw["metadata"]["creationTimestamp"] = f"2026-01-01T00:{created}Z"
        return [*claims, pod]


def _longhorn_node(name: str, disks: tuple[TightDisk, ...]) -> Object:
    raws = {}
    for number, disk in enumerate(disks):
        raw = make.disk(disk.size, scheduled=disk.booked, available=disk.size - disk.written)
        raw["spec"]["path"] = f"/data/{number}/"
        raws[f"d{number}"] = raw
    return make.longhorn_node(name, raws)
