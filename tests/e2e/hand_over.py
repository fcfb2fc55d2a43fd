"""Bursts during which the leader ends, for `test_hand_over.py` and the report.

kube-scheduler has its default client limits, so that it writes many decisions only seconds after the answers that they follow from.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.e2e.leader_monitor import LeaderMonitor
from tests.e2e.objects import Volume, Workload
from tests.e2e.plan import Result, wait_for_result
from tests.e2e.rig import Rig

GROUP: Final = "handover"
_OTHERS: Final = "handover-others"
_SETTLE_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Pods that fit exactly, and pods without volumes before them.

    Attributes:
        nodes: how many of the pods fit on each node
        claims: the number of claims of each pod
        others: pods without volumes, whose Bindings keep kube-scheduler's client busy
    """

    nodes: Mapping[str, int]
    claims: int = 2
    others: int = 0

    @property
    def pods(self) -> int:
        """The number of pods with volumes."""
        return sum(self.nodes.values())

    def add_nodes(self, rig: Rig) -> None:
        """Adds the nodes, each with one disk that the pods fill."""
        rig.add_nodes(GROUP, {name: [f"{10 * count * self.claims}Gi"] for name, count in self.nodes.items()})

    def create(self, rig: Rig) -> None:
        """Creates all pods; those with volumes last."""
        workload = Workload(app=GROUP, group=GROUP, volumes=[Volume("10Gi")] * self.claims)
        others = Workload(app=_OTHERS, group=GROUP, volumes=(), asks=False)
        objects = [entry for number in range(self.pods) for entry in workload.loose(number)]
        rig.post(entry for entry in objects if entry["kind"] != "Pod")
        rig.post(others.loose(number)[-1] for number in range(self.others))
        rig.post(entry for entry in objects if entry["kind"] == "Pod")


UNEVEN: Final = Load(
    nodes={**{f"handover-{number}": 5 for number in range(1, 5)}, "handover-5": 20, "handover-6": 20},
    others=300,
)


@dataclass(frozen=True, slots=True)
class HandOver:
    """What happened when leaders ended in a burst.

    Attributes:
        result: where pods and replicas are at the end
        open_offers: the number of offers that each ending leader had
        longest_silence: the longest time without an answer, in seconds
        two_leaders: how often two candidates answered at once
    """

    result: Result
    open_offers: list[int]
    longest_silence: float
    two_leaders: int


def run(rig: Rig, load: Load, end_leaders: Callable[[Rig], list[int]]) -> HandOver:
    """Creates the pods, ends leaders while they are being placed, and waits until all pods run.

    `end_leaders` returns the number of offers that each of them had.
    """
    before = rig.misplacements()
    started = time.monotonic()
    with LeaderMonitor(rig) as monitor:
        creating = threading.Thread(target=load.create, args=(rig,))
        creating.start()
        offers = end_leaders(rig)
        creating.join()
        result = wait_for_result(rig, GROUP, load.pods, started, must=False, before=before, settle=_SETTLE_SECONDS)
    return HandOver(result, offers, monitor.longest_silence, len(monitor.double_answers))


def terminate_leader(rig: Rig, *, offers: int) -> int:
    """Sends SIGTERM to the leader once it has so many offers; returns how many it had."""
    leader, count = _wait_for_offers(rig, offers)
    rig.cluster.processes[leader].stop()
    return count


def kill_leader(rig: Rig, *, offers: int) -> int:
    """Kills the leader once it has so many offers; returns how many it had."""
    leader, count = _wait_for_offers(rig, offers)
    rig.cluster.processes[leader].kill()
    return count


def _wait_for_offers(rig: Rig, count: int) -> tuple[str, int]:
    def leader_with_offers() -> tuple[str, int]:
        leader = rig.leader()
        return leader, int(rig.metric(leader, "longhorn_scheduler_extender_offers")) if leader else 0

    deadline = time.monotonic() + 60
    while True:
        leader, offers = leader_with_offers()
        if offers >= count:
            return leader, offers
        assert time.monotonic() < deadline, f"the leader never had {count} offers"
        time.sleep(0.02)


def remove(rig: Rig) -> None:
    """Removes all pods."""
    rig.remove(GROUP)
    rig.remove(_OTHERS)
