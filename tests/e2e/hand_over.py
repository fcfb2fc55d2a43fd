"""Bursts during which leaders end, for `test_faults.py` and `test_upgrade.py`.

There is space for exactly these pods, and the nodes are unequal, so that any forgotten offer shows. kube-scheduler has its default client
limits: it writes its decisions seconds after the answers that they follow from.
"""

import itertools
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from app.extender.offer_store import CONFIG_MAP, KEY
from app.kube.resources import CONFIG_MAPS
from devcluster.build import SCHEDULER
from devcluster.programs import NAMESPACE
from scheduler_core.offers.handover_record import decode_record
from tests.e2e.bursts import Result, split, wait_for_result
from tests.e2e.leader_monitor import LeaderMonitor
from tests.e2e.objects import Volume, Workload
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.rig import Rig

GROUP = "handover"
_OTHERS = "handover-others"
_SIZE_GI = 10
# Of a node, as in most clusters; a few stay free.
_MAX_PODS = 100
_SETTLE_SECONDS = 300.0
# Two clusters on two processors may take a minute to create the pods alone.
_OFFERS_SECONDS = 240.0
# With ten workers, attaching 120 volumes is what takes longest.
FAST_ATTACHER = {"attach_workers": 10_000}
_POLL = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Pods that fill the nodes, and pods without volumes before them."""

    nodes: Mapping[str, int]  # how many of the pods fit on each node
    others: int  # pods without volumes, whose Bindings keep kube-scheduler's client busy

    @property
    def pods(self) -> int:
        return sum(self.nodes.values())

    def add_nodes(self, rig: Rig) -> None:
        """Adds nodes for the pods that fill them, and for others. Each of the former has one disk."""
        rig.add_nodes(GROUP, {name: [f"{2 * _SIZE_GI * count}Gi"] for name, count in self.nodes.items()})
        rig.add_nodes(_OTHERS, {f"{_OTHERS}-{number}": ["1Gi"] for number in range(self.others // _MAX_PODS)})

    def create(self, rig: Rig) -> None:
        """Creates all pods, those with volumes last, while kube-scheduler stands still. So it finds all of them at once."""
        workload = Workload(app=GROUP, group=GROUP, volumes=[Volume(f"{_SIZE_GI}Gi")] * 2)
        others = Workload(app=_OTHERS, group=_OTHERS, volumes=(), asks=False)
        claims, pods = split(entry for number in range(self.pods) for entry in workload.loose(number))
        rig.post(claims)
        scheduler = rig.cluster.processes[SCHEDULER]
        scheduler.pause()
        try:
            rig.post(others.loose(number)[-1] for number in range(self.others))
            rig.post(pods)
        finally:
            scheduler.resume()


SHORT = Load(nodes={f"handover-{number}": 5 if number <= 4 else 20 for number in range(1, 7)}, others=800)


@dataclass(frozen=True, slots=True)
class HandOver:
    """What happened when leaders ended in a burst."""

    result: Result  # where pods and replicas are at the end
    open_offers: Sequence[int]  # the number of offers that each ending leader had
    longest_silence: float  # the longest time in which no candidate answered, in seconds
    two_leaders: int  # how often two candidates answered at once
    full: bool  # whether every node has the pods that fit

    @property
    def wrong(self) -> int:
        """How many pods and volumes are not where they should be."""
        result = self.result
        return len(result.misplaced) + result.mended + len(result.stuck) + (not self.full) + self.two_leaders


def run(rig: Rig, load: Load, end_leaders: Callable[[Rig], list[int]]) -> HandOver:
    """Creates the pods, and ends leaders while they are placed. It waits until all pods run. `end_leaders` returns the
    number of offers that each of them had.
    """
    with LeaderMonitor(rig) as monitor, PlacementAudit(rig) as audit:
        creating = threading.Thread(target=load.create, args=(rig,))
        creating.start()
        offers = end_leaders(rig)
        creating.join()
        result = wait_for_result(rig, GROUP, load.pods, audit, must=False, settle=_SETTLE_SECONDS)
    return HandOver(
        result, offers, monitor.longest_silence, len(monitor.double_answers), result.per_node == dict(load.nodes)
    )


def terminate_leader(rig: Rig, *, offers: int) -> list[int]:
    """Sends SIGTERM to the leader once it has so many offers. Returns how many it had. The leader hands them over, so
    that its successor need not wait until the Lease has run out.
    """
    leader, count = _wait_for_offers(rig, offers)
    process = rig.cluster.processes[leader]
    process.stop()
    assert "offers handed over" in process.log_text()
    return [count]


def kill_leader(rig: Rig, *, offers: int, recorded: bool = False) -> list[int]:
    """Kills the leader once it has so many offers. Returns how many it had. With `recorded` once its record has them,
    too: a killed leader's offers of the last third of a second are lost.
    """
    leader, count = _wait_for_offers(rig, offers)
    while recorded and _count_recorded(rig) < count:
        time.sleep(_POLL)
        count = _count_offers(rig, leader)
    rig.cluster.processes[leader].kill()
    return [count]


def _count_recorded(rig: Rig) -> int:
    data = rig.cluster.api.get(CONFIG_MAPS.path(NAMESPACE, CONFIG_MAP)).get("binaryData") or {}
    return len(decode_record(b64decode(data[KEY])).offers) if KEY in data else 0


def update_candidates(rig: Rig, *, offers: int, env: Mapping[str, str] | None = None) -> list[int]:
    """Replaces all candidates one by one, as a Deployment does; the new ones have `env`. It begins once there are so
    many offers. The leader goes first, so that another candidate leads before it is replaced, too.
    """
    leader, count = _wait_for_offers(rig, offers)
    counts = []
    former = sorted(rig.candidates, key=lambda name: name != leader)
    numbers = (f"extender-{number}" for number in itertools.count(1))
    names = [name for name in itertools.islice(numbers, 2 * len(former)) if name not in former]
    for name, old in zip(names, former, strict=False):
        rig.start_candidate(name, env)
        rig.until(f"{name} is ready", partial(_is_ready, rig, name))
        if rig.leader() == old:
            count = _count_offers(rig, old)
            counts.append(count)
        rig.cluster.processes[old].stop()
    return counts


def _wait_for_offers(rig: Rig, count: int) -> tuple[str, int]:
    deadline = time.monotonic() + _OFFERS_SECONDS
    most = 0
    while True:
        leader = rig.leader()
        offers = _count_offers(rig, leader) if leader else 0
        if offers >= count:
            return leader, offers
        most = max(most, offers)
        assert time.monotonic() < deadline, f"the leader never had {count} offers, at most {most}"
        time.sleep(_POLL)


def _is_ready(rig: Rig, name: str) -> bool:
    return rig.request(name, "/readyz")[0] == 200


def _count_offers(rig: Rig, leader: str) -> int:
    return int(rig.metric(leader, "longhorn_scheduler_extender_offers"))


def remove(rig: Rig) -> None:
    rig.remove(GROUP, _OTHERS)
