"""The report's tight nodes: how many pods find a place in random tight clusters, and what goes wrong, by packing mode and placement guard.

This part is computed, without a cluster (`tests/worlds/placement_bursts.py`). Every way gets the same clusters, and the same random numbers for
kube-scheduler, Longhorn and the delays.
"""

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from scheduler_core.decide.decision import Packing
from tests.e2e.report import Options, Part, draw
from tests.worlds.placement_bursts import BurstOutcome, Way, run_burst
from tests.worlds.tight_clusters import TightCluster

_CLUSTERS = 100
EXACT = "exact"
ORDER_SAFE = "order-safe"
STALE_SAFE = "stale-safe"
GUARD = "exact, guard"
WAYS = {
    EXACT: Way(Packing.EXACT),
    ORDER_SAFE: Way(Packing.ORDER_SAFE),
    STALE_SAFE: Way(Packing.STALE_SAFE),
    "auto": Way(Packing.AUTO),
    GUARD: Way(Packing.EXACT, guard=True),
    "auto, guard proven": Way(Packing.AUTO, guard=True),
    "exact, guard, slow watches": Way(Packing.EXACT, guard=True, watch_seconds=1.0),
}


@dataclass(slots=True)
class Tally:
    """What came of the bursts of one way, see `BurstOutcome`."""

    clusters: int = 0
    usable_nodes: int = 0
    usable_tight_nodes: int = 0
    placed: int = 0
    misplaced: int = 0
    stuck: int = 0
    overbooked_disks: int = 0
    overbooked_gi: int = 0
    changed: int = 0
    unproven: int = 0  # bursts after which the guard was not proven, or that it was bypassed in

    def add(self, outcome: BurstOutcome) -> None:
        """Counts one burst."""
        self.clusters += 1
        self.usable_nodes += outcome.usable_nodes
        self.usable_tight_nodes += outcome.usable_tight_nodes
        self.placed += outcome.placed
        self.misplaced += outcome.misplaced
        self.stuck += outcome.stuck
        self.overbooked_disks += outcome.overbooked_disks
        self.overbooked_gi += outcome.overbooked_gi
        self.changed += outcome.changed
        self.unproven += not outcome.proven

    @property
    def wrong(self) -> bool:
        """Whether a placement failed a pod or a disk."""
        return bool(self.misplaced or self.stuck or self.overbooked_disks)


def report(_folder: Path, options: Options) -> Part:
    """Runs every burst in every way."""
    seeds = range(1, (options.repetitions or _CLUSTERS) + 1)
    tallies = run(seeds)
    caption = (
        f"{len(seeds)} clusters, seeds {seeds[0]} to {seeds[-1]}. Usable: of the {tallies[EXACT].usable_nodes} nodes with an exact packing "
        f"for the first pod, of which {tallies[EXACT].usable_tight_nodes} are tight: they have at most 40 % more space than it needs. "
        "Slow watches are up to 1 s behind, otherwise 0.1 s."
    )
    rows = [_row(name, tally, tallies[EXACT]) for name, tally in tallies.items()]
    return Part(failures(tallies), {way: asdict(tally) for way, tally in tallies.items()}, [draw(rows, caption)])


def run(seeds: Iterable[int]) -> dict[str, Tally]:
    """Runs every burst in every way; returns the tallies by way."""
    tallies = {name: Tally() for name in WAYS}
    for seed in seeds:
        cluster = TightCluster.draw(seed)
        for name, way in WAYS.items():
            tallies[name].add(run_burst(cluster, way))
        placed = ", ".join(f"{name}: {tally.placed}" for name, tally in tallies.items())
        print(f"tight nodes, seed {seed}: pods placed so far: {placed}", file=sys.stderr)
    return tallies


def failures(tallies: dict[str, Tally]) -> list[str]:
    """What happened against expectation: something wrong where nothing must be, or fewer pods with the guard than order-safe."""
    texts = []
    for name, tally in tallies.items():
        guard = WAYS[name].guard
        if tally.wrong and (guard or name == STALE_SAFE):
            texts.append(f"tight nodes, {name}: {tally}")
        if guard and tally.unproven:
            texts.append(f"tight nodes, {name}: the guard was not proven after {tally.unproven} bursts")
        if guard and tally.placed < tallies[ORDER_SAFE].placed:
            texts.append(f"tight nodes, {name}: {tally.placed} pods, {tallies[ORDER_SAFE].placed} with order-safe")
    if not tallies[EXACT].wrong:
        texts.append("tight nodes: nothing went wrong without the guard")
    return texts


def _row(way: str, tally: Tally, exact: Tally) -> dict[str, object]:
    return {
        "tight nodes": way,
        "pods placed per cluster": f"{tally.placed / max(1, tally.clusters):.1f}",
        "nodes usable at the first pod": f"{tally.usable_nodes / max(1, exact.usable_nodes):.0%}",
        "of these, tight ones": f"{tally.usable_tight_nodes / max(1, exact.usable_tight_nodes):.0%}",
        "volumes misplaced": tally.misplaced,
        "pods stuck": tally.stuck,
        "disks overbooked": tally.overbooked_disks,
        "Gi overbooked": tally.overbooked_gi,
        "placements changed": tally.changed,
    }
