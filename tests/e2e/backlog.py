"""More pods in flight than kube-scheduler can write about, for the report and `test_campaigns.py`.

kube-scheduler decides in memory and writes 50 requests a second by default, so it gets more than a minute behind. Unequal nodes have
exact room for three quarters of the pods, which are asked about within seconds. The others are asked about later, some of them while
the writes are behind: kube-scheduler writes a refusal before it looks at the next pod.

What happened is counted from the API's objects, from watches, and by the simulator. None of the deciding code takes part.
"""

import itertools
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from app.kube.resources import PODS
from devcluster.build import SCHEDULER
from tests.e2e.bursts import is_decided
from tests.e2e.journal import Journal, events, quantiles
from tests.e2e.object_watch import ObjectWatch
from tests.e2e.objects import Object, Volume, Workload, name_of, node_of, runs
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.report import Figures, Options, Part
from tests.e2e.rig import Rig

APP = "backlog"
_SIZES = (1500, 3000)  # of the bursts of the report
_GIBIBYTES = 10
# kube-scheduler writes a nomination, then each claim, then the binding: more claims make the decision visible later.
_VOLUMES = (Volume("5Gi"), Volume("5Gi"))
# The slots of nodes, in turns; kwok's nodes take 200 pods.
_SLOTS = (2, 5, 10, 20, 40, 60)
_SHARE_WITH_ROOM = 0.75
# kube-scheduler writes some six objects for each pod.
_REST_SECONDS_PER_POD = 0.6
_MIN_REST_SECONDS = 300.0
# With ten workers the attacher would be what takes longest.
_SIMULATOR = {"status_period": 5, "capacity_period": 10, "workers": 16, "attach_workers": 10_000}


@dataclass(frozen=True, slots=True)
class Backlog:
    """The size of a burst."""

    pods: int  # the number of pods
    # The burst is over if no pod changed for this time, in seconds; Longhorn retries a replica after 30.
    quiet: float = 40.0

    def slots(self) -> dict[str, int]:
        """How many pods each node has room for, by the node's name. Together they have room for three quarters of the pods."""
        room = int(self.pods * _SHARE_WITH_ROOM)
        slots: dict[str, int] = {}
        for number, wanted in enumerate(itertools.cycle(_SLOTS), start=1):
            if not room:
                return slots
            slots[f"{APP}-{number:03d}"] = min(wanted, room)
            room -= min(wanted, room)
        raise AssertionError("unreachable")


class _Record:
    """The pods and the replicas that the watches have delivered so far."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.decision_times: dict[str, float] = {}
        self.binding_times: dict[str, float] = {}
        self.changed = time.time()

    def note_pod(self, kind: str, pod: Object, at: float) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self.pods.pop(uid, None)
            return
        node = node_of(pod)
        before = self.pods.get(uid)
        self.pods[uid] = pod
        if node or pod["status"].get("nominatedNodeName"):
            self.decision_times.setdefault(uid, at)
        if node:
            self.binding_times.setdefault(uid, at)
        if before is None or _state(before) != _state(pod):
            self.changed = at


def report(folder: Path, _options: Options) -> Part:
    outcomes = {pods: run(folder / str(pods), Backlog(pods)) for pods in _SIZES}
    problems = [problem for outcome in outcomes.values() for problem in outcome.problems]
    content = {pods: asdict(outcome) for pods, outcome in outcomes.items()}
    return Part(problems, content, [outcome.text() for outcome in outcomes.values()])


def run(folder: Path, backlog: Backlog) -> Figures:
    """Runs one burst on a rig of its own."""
    outcome = Figures()
    slots = backlog.slots()
    with Rig(folder, simulator=_SIMULATOR) as rig:
        rig.add_nodes(APP, {name: [f"{count * _GIBIBYTES}Gi"] for name, count in slots.items()})
        record = _Record()
        with ObjectWatch(rig.cluster, PODS.path("default"), record.note_pod), PlacementAudit(rig) as audit:
            started = _create(rig, backlog.pods)
            _wait_for_rest(record, backlog)
            _check(rig, slots, audit, outcome)
        outcome.figures.append(
            ("all that fit were bound after", f"{max(record.binding_times.values()) - started:.0f} s")
        )
        _note_lags(rig, record, outcome)
    return outcome


def _create(rig: Rig, pods: int) -> float:
    """Creates all pods while kube-scheduler is paused; returns when it goes on."""
    workload = Workload(app=APP, group=APP, volumes=_VOLUMES)
    scheduler = rig.cluster.processes[SCHEDULER]
    scheduler.pause()
    rig.post(entry for number in range(pods) for entry in workload.loose(number))
    scheduler.resume()
    return time.time()


def _wait_for_rest(record: _Record, backlog: Backlog) -> None:
    seconds = max(_MIN_REST_SECONDS, _REST_SECONDS_PER_POD * backlog.pods)
    deadline = time.time() + seconds
    # A busy machine may bind no pod for a while: the quiet counts from when kube-scheduler has decided about each pod, and bound one.
    while (
        len(record.pods) < backlog.pods
        or not record.binding_times
        or not all(map(is_decided, record.pods.values()))
        or time.time() - record.changed < backlog.quiet
    ):
        assert time.time() < deadline, f"not at rest after {seconds:g} s"
        time.sleep(1)


def _check(rig: Rig, slots: Mapping[str, int], audit: PlacementAudit, outcome: Figures) -> None:
    pods = rig.pods(APP)
    bound = [pod for pod in pods if node_of(pod)]
    per_node = Counter(map(node_of, bound))
    crowded = {node: count for node, count in per_node.items() if count > slots[node]}
    free = sum(max(0, count - per_node[node]) for node, count in slots.items())
    waiting = min(free, len(pods) - len(bound))
    stuck = [name_of(pod) for pod in bound if not runs(pod)]
    misplaced = rig.misplaced_pods(APP)
    overbooked = audit.overbooked
    outcome.figures += [
        ("pods / room for / bound", f"{len(pods)} / {sum(slots.values())} / {len(bound)}"),
        ("misplaced, mended ones included", str(max(len(misplaced), audit.misplacements))),
        ("nodes with more pods than room", str(len(crowded))),
        ("overbooked disks", str(len(overbooked))),
        ("bound pods that do not run", str(len(stuck))),
        ("pods waiting for which there is room", str(waiting)),
    ]
    problems = {
        "misplaced": misplaced,
        "mended": audit.misplacements,
        "more pods than room": crowded,
        "overbooked disks": overbooked,
        "stuck": stuck,
        "waiting for which there is room": waiting,
    }
    outcome.problems += [
        f"{len(pods)} pods in flight, {name}: {str(value)[:500]}" for name, value in problems.items() if value
    ]


def _note_lags(rig: Rig, record: _Record, outcome: Figures) -> None:
    """Notes how far kube-scheduler's writes were behind its questions."""
    ended = events(rig.cluster.logs, rig.candidates, "offer")
    journal = Journal(rig.cluster.logs, rig.candidates)
    first = journal.first_calls()
    asked = sorted(call.at for call in first.values() if call.fits)
    offered: dict[str, float] = {}
    for call in journal.calls:
        # A decision follows from the last question before it.
        if call.fits and call.at <= record.decision_times.get(call.uid, 0.0):
            offered[call.uid] = call.at
    decisions = [record.decision_times[uid] - at for uid, at in offered.items()]
    bindings = [record.binding_times[uid] - at for uid, at in offered.items() if uid in record.binding_times]
    times = sorted(call.milliseconds for call in journal.calls)
    outcome.figures += [
        ("pods that were offered nodes at once were asked about within", f"{asked[-1] - asked[0]:.1f} s"),
        ("from the answer to a visible decision, at most", f"{max(decisions, default=0.0):.0f} s"),
        ("from the answer to the binding, at most", f"{max(bindings, default=0.0):.0f} s"),
        ("first question had a node", f"{sum(1 for call in first.values() if call.fits)} of {len(first)}"),
        ("questions", str(len(journal.calls))),
        ("offers that expired", str(sum(1 for entry in ended if entry["became"] == "expired"))),
        ("ms per question: median / p99 / most", quantiles(times)),
    ]


def _state(pod: Object) -> tuple[str, str, str]:
    return (node_of(pod), pod["status"].get("nominatedNodeName", ""), pod["status"].get("phase", ""))
