"""The report's burst with DiskSchedules: 200 pods that exactly fit, placed by Longhorn itself and with DiskSchedules.

Both ways have the extender. Without DiskSchedules the simulator places replicas as Longhorn does; with them their controllers do, and a
replica starts only when its bytes are granted.
"""

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from rich.table import Table

from devcluster.stack import FAST_LEASE
from tests.e2e.burst import APP, EXACT, Burst
from tests.e2e.disk_schedule import ACCOUNT, CRD, LONGHORN, MANIFESTS, Longhorn
from tests.e2e.goals import counts, times
from tests.e2e.plan import Result
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

WITHOUT: Final = "without DiskSchedules"
WITH: Final = "with DiskSchedules"
MAX_RATIO: Final = 1.25
_BURST: Final = Burst(disk=EXACT)


def run(folder: Path, repetitions: int, burst: Burst = _BURST) -> dict[str, list[Result]]:
    """Runs the burst in both ways; returns the results by way."""
    results: dict[str, list[Result]] = {}
    for way, start in _WAYS.items():
        with start(folder / way.replace(" ", "-")) as rig:
            burst.add_nodes(rig)
            for number in range(repetitions):
                result = burst.run(rig, asks=True, must=True)
                results.setdefault(way, []).append(result)
                print(f"burst {way}, {number + 1} of {repetitions}: {result.seconds:.1f} s", file=sys.stderr)
                rig.remove(APP)
    return results


@contextmanager
def rig_without_schedules(folder: Path) -> Iterator[Rig]:
    """A rig whose simulator places replicas."""
    with Rig(folder, config=RECOMMENDED_MANAGED) as rig:
        yield rig


@contextmanager
def rig_with_schedules(folder: Path) -> Iterator[Rig]:
    """A rig where the DiskSchedule controllers place replicas."""
    with Rig(folder, config=RECOMMENDED_MANAGED, simulator={"disk_schedules": True}) as rig:
        rig.cluster.apply(CRD)
        rig.cluster.apply(MANIFESTS)
        longhorn = Longhorn(rig.cluster, rig.cluster.service_account_kubeconfig(LONGHORN, ACCOUNT), LONGHORN)
        longhorn.wait_working(longhorn.start("controllers", *FAST_LEASE))
        try:
            yield rig
        finally:
            longhorn.stop()


_WAYS: Final[Mapping[str, Callable[[Path], AbstractContextManager[Rig]]]] = {
    WITHOUT: rig_without_schedules,
    WITH: rig_with_schedules,
}


def ratio(results: Mapping[str, Sequence[Result]]) -> float:
    """How many times as long the pods take to run with DiskSchedules as without."""
    return _median(results[WITH]) / _median(results[WITHOUT])


def failures(results: Mapping[str, Sequence[Result]]) -> list[str]:
    """What differs from the goal, as sentences."""
    texts = [
        f"burst {way}: {result}"
        for way, runs in results.items()
        for result in runs
        if result.misplaced or result.mended or result.stuck or (way == WITH and result.overbooked)
    ]
    times_as_long = ratio(results)
    if times_as_long > MAX_RATIO:
        texts.append(f"burst {WITH}: {times_as_long:.2f} times as long as without, more than {MAX_RATIO:g}")
    return texts


def table(results: Mapping[str, Sequence[Result]]) -> Table:
    """The results as a table for people."""
    drawn = Table(
        "burst that exactly fits",
        "runs",
        "s to ready: median (min-max)",
        "times without",
        "misplaced",
        "mended",
        "overbooked disks",
        "stuck",
    )
    for way, runs in results.items():
        times_as_long = f"{ratio(results):.2f}" if way == WITH else ""
        drawn.add_row(way, str(len(runs)), times(runs), times_as_long, *counts(runs))
    return drawn


def _median(runs: Sequence[Result]) -> float:
    return statistics.median(result.seconds for result in runs if result.seconds is not None)
