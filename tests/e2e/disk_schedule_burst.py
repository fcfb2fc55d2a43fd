"""The report's burst with DiskSchedules: 200 pods that exactly fit, placed by Longhorn itself and with DiskSchedules.

Both ways have the extender. Without DiskSchedules the simulator places replicas as Longhorn does; with them their controllers do, and a
replica starts only when its bytes are granted.
"""

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from devcluster.stack import FAST_LEASE
from tests.control_plane import ControlPlane
from tests.e2e.bursts import BURST, EXACT, Burst, Result, columns
from tests.e2e.disk_schedule import ACCOUNT, CRD, LONGHORN, MANIFESTS, Longhorn
from tests.e2e.report import Options, Part, draw
from tests.e2e.rig import Rig

WITHOUT: Final = "without DiskSchedules"
WITH: Final = "with DiskSchedules"
MAX_RATIO: Final = 1.25
_BURST: Final = Burst(disk=EXACT)


def report(folder: Path, options: Options) -> Part:
    results = run(folder, options.repetitions or 1)
    rows = (
        {
            "burst that exactly fits": way,
            "runs": len(runs),
            **columns(runs),
            "times without": f"{ratio(results):.2f}" if way == WITH else "",
        }
        for way, runs in results.items()
    )
    content = {way: [asdict(each) for each in runs] for way, runs in results.items()}
    return Part(failures(results), content, [draw(rows)])


def run(folder: Path, repetitions: int) -> dict[str, list[Result]]:
    """Runs the burst in both ways; returns the results by way."""
    results: dict[str, list[Result]] = {}
    for way, start in _WAYS.items():
        with start(folder / way.replace(" ", "-")) as rig:
            _BURST.add_nodes(rig)
            for number in range(repetitions):
                result = _BURST.run(rig, asks=True, must=True)
                results.setdefault(way, []).append(result)
                print(f"burst {way}, {number + 1} of {repetitions}: {result.seconds:.1f} s", file=sys.stderr)
                rig.remove(BURST)
    return results


@contextmanager
def rig_with_schedules(folder: Path, shared: ControlPlane | None = None) -> Iterator[tuple[Rig, Longhorn]]:
    """A rig where a DiskSchedule controller places replicas."""
    with Rig(folder, shared, simulator={"disk_schedules": True}) as rig:
        rig.cluster.apply(CRD)
        rig.cluster.apply(MANIFESTS)
        longhorn = Longhorn(rig.cluster, rig.cluster.service_account_kubeconfig(LONGHORN, ACCOUNT), LONGHORN)
        longhorn.wait_working(longhorn.start("controllers", *FAST_LEASE))
        try:
            yield rig, longhorn
        finally:
            longhorn.stop()


@contextmanager
def _rig_of_the_burst(folder: Path) -> Iterator[Rig]:
    with rig_with_schedules(folder) as (rig, _):
        yield rig


_WAYS: Final[Mapping[str, Callable[[Path], AbstractContextManager[Rig]]]] = {WITHOUT: Rig, WITH: _rig_of_the_burst}


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


def _median(runs: Sequence[Result]) -> float:
    return statistics.median(result.seconds for result in runs if result.seconds is not None)
