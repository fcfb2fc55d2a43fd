"""The report's second part: the same pods placed in several ways. These are without the extender, with `reservation: node`, and with
`reservation: capacity`.
"""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from scheduler_core.decide.decision import Packing
from scheduler_core.decide.extender_settings import GuardMode
from scheduler_core.errors import CoreError
from tests.e2e import plan
from tests.e2e.bursts import BURST, EXACT, Burst, Result, columns
from tests.e2e.disk_schedule import started_controllers
from tests.e2e.report import Options, Part, draw
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig


class Way(StrEnum):
    """How pods are placed. Only order-safe nodes are offered, except in the last three ways, which have the extender's defaults."""

    NONE = "without"
    NODE = "node"
    CAPACITY = "capacity"
    AUTO = "capacity, packing auto"
    GUARDED = "capacity, packing auto, placement guard"
    SCHEDULES = "as installed, with DiskSchedules"


@dataclass(frozen=True)
class Comparison:
    """The same pods, placed in several ways."""

    name: str
    repetitions: int
    ways: Sequence[Way]
    prepare: Callable[[Rig], None]  # adds the nodes to a rig
    once: Callable[[Rig, bool], Result]  # runs one repetition; the flag says whether the pods request the extender
    simulator: Mapping[str, Any] = field(default_factory=dict)  # the simulator's configuration
    # The ways with an extender that must misplace nothing.
    expected: Sequence[Way] = (Way.NODE, Way.CAPACITY, Way.GUARDED)
    wrong: Sequence[Way] = ()  # the ways that must misplace something
    unbooked: Sequence[Way] = (Way.GUARDED,)  # of those expected, the ways that must overbook no disk
    # How many times as long as the first way the second one may take.
    timed: tuple[Way, Way] = (Way.NONE, Way.CAPACITY)
    longest: float = 1.15


@dataclass
class Compared:
    """The results of a comparison, by way."""

    name: str
    results: dict[Way, list[Result]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def median(self, way: Way) -> float | None:
        """Seconds until every pod ran, None if that never happened."""
        seconds = [result.seconds for result in self.results.get(way, ()) if result.seconds is not None]
        return statistics.median(seconds) if seconds else None

    def ratio(self, way: Way, to: Way) -> str:
        seconds = self.median(way)
        reference = self.median(to)
        return f"{seconds / reference:.2f}" if seconds and reference and way is not to else ""


def _burst(size: Burst) -> Callable[[Rig, bool], Result]:
    def once(rig: Rig, asks: bool) -> Result:
        try:
            return size.run(rig, asks=asks, must=asks)
        finally:
            rig.remove(BURST)

    return once


_HUNDRED = Burst(pods=100, nodes=10)
_TWO_HUNDRED = Burst()
_EXACT = Burst(disk=EXACT)
_ALL = tuple(way for way in Way if way is not Way.SCHEDULES)
# Which ways share a rig, the reservation it is given, which nodes with room it offers, and the mode of the placement guard.
_RIGS = (
    ((Way.NODE,), "node", Packing.ORDER_SAFE, GuardMode.OFF),
    ((Way.NONE, Way.CAPACITY), "capacity", Packing.ORDER_SAFE, GuardMode.OFF),
    ((Way.AUTO,), "capacity", Packing.AUTO, GuardMode.OFF),
    ((Way.GUARDED,), "capacity", Packing.AUTO, GuardMode.ENFORCE),
    ((Way.SCHEDULES,), "capacity", Packing.AUTO, GuardMode.ENFORCE),
)
GOAL_1 = Comparison(
    "goal 1: 16 pods on 4 nodes", 10, _ALL, plan.goal_1_nodes, lambda rig, asks: plan.goal_1(rig, asks=asks)
)
BURST_100 = Comparison("100 pods of 2 volumes on 10 nodes", 3, _ALL, _HUNDRED.add_nodes, _burst(_HUNDRED))
BURST_200 = Comparison(
    "200 pods of 2 volumes on 20 nodes", 3, (Way.NONE, Way.CAPACITY), _TWO_HUNDRED.add_nodes, _burst(_TWO_HUNDRED)
)
SLOW = Comparison(
    "goal 1, provisioning takes 12 to 14 s",
    2,
    (Way.NODE, Way.CAPACITY),
    plan.goal_1_nodes,
    lambda rig, asks: plan.goal_1(rig, asks=asks),
    {"provision_seconds": [12, 14]},
    expected=(Way.CAPACITY,),
    wrong=(Way.NODE,),
)

# Without DiskSchedules the simulator places replicas as Longhorn does; with them their controllers do, and a replica starts only when its
# bytes are granted.
SCHEDULES = Comparison(
    "200 pods that exactly fit",
    1,
    (Way.GUARDED, Way.SCHEDULES),
    _EXACT.add_nodes,
    _burst(_EXACT),
    expected=(Way.GUARDED, Way.SCHEDULES),
    unbooked=(Way.SCHEDULES,),
    timed=(Way.GUARDED, Way.SCHEDULES),
    longest=1.25,
)


def report(comparison: Comparison, folder: Path, options: Options) -> Part:
    """Runs every way of a comparison, on as few rigs as possible. Pods that do not request the extender share a rig
    with those that are offered capacity.
    """
    compared = Compared(comparison.name)
    for sharing, reservation, packing, placement_guard in _RIGS:
        ways = [way for way in comparison.ways if way in sharing]
        if not ways:
            continue
        with ExitStack() as stack:
            rig = stack.enter_context(
                Rig(
                    folder / ways[0],
                    config=_configuration(folder, reservation),
                    reservation=reservation,
                    simulator={**comparison.simulator, "disk_schedules": Way.SCHEDULES in ways},
                    more_arguments=("--packing", packing),
                    placement_guard=placement_guard,
                )
            )
            if Way.SCHEDULES in ways:
                stack.enter_context(started_controllers(rig))
            comparison.prepare(rig)
            for way in ways:
                repetitions = options.repetitions or comparison.repetitions
                compared.results[way] = _repeat(comparison, rig, way, repetitions, compared)
    compared.failures += _unexpected_results(comparison, compared)
    rows = [
        {
            "pods": compared.name,
            "extender": way.value,
            "runs": len(results),
            **columns(results),
            **{f"times {to.value}": compared.ratio(way, to) for to in comparison.timed},
        }
        for way, results in sorted(compared.results.items(), key=lambda entry: list(Way).index(entry[0]))
    ]
    return Part(compared.failures, asdict(compared), [draw(rows)])


def _configuration(folder: Path, reservation: str) -> Path:
    """Returns the recommended configuration of kube-scheduler. With reservation `node` an answer takes up to 5 s, so
    that the time-out is longer, as documented.
    """
    if reservation != "node":
        return RECOMMENDED_MANAGED
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{reservation}.yaml"
    path.write_text(RECOMMENDED_MANAGED.read_text().replace("httpTimeout: 3s", "httpTimeout: 10s"))
    return path


def _repeat(comparison: Comparison, rig: Rig, way: Way, repetitions: int, compared: Compared) -> list[Result]:
    results = []
    for number in range(repetitions):
        try:
            results.append(comparison.once(rig, way is not Way.NONE))
        except (AssertionError, CoreError) as error:
            compared.failures.append(f"{comparison.name}, {way}: {str(error)[:300]}")
            continue
        seconds = results[-1].seconds
        outcome = "not all ready" if seconds is None else f"ready in {seconds:.1f} s"
        print(f"{comparison.name}, {way}, {number + 1} of {repetitions}: {outcome}", file=sys.stderr)
    return results


def _unexpected_results(comparison: Comparison, compared: Compared) -> list[str]:
    problems = []
    for way, results in compared.results.items():
        wrong = sum(len(result.misplaced) + result.mended + len(result.stuck) for result in results)
        if way in comparison.unbooked:
            wrong += sum(len(result.overbooked) for result in results)
        if way in comparison.expected and wrong:
            problems.append(f"{comparison.name}, {way}: {wrong} misplaced, overbooked or stuck")
        elif way in comparison.wrong and not wrong:
            problems.append(f"{comparison.name}, {way}: nothing went wrong, which this comparison is there to show")
    first, second = map(compared.median, comparison.timed)
    if first and second and second > comparison.longest * first:
        problems.append(
            f"{comparison.name}: {second:.1f} s instead of {first:.1f} s, more than {comparison.longest:g} times"
        )
    return problems
