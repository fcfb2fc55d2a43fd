"""The report's faults of the placement guard: harsh bursts as installed, with one fault each while Longhorn places.

What goes wrong is counted from API objects and watches alone (`placement_audit.py`), and how many placements carry an answer of the guard.
"""

import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.table import Table

from app.kube.resources import CLAIMS, LONGHORN_REPLICAS, MUTATING_WEBHOOKS, PODS, SECRETS
from devcluster.pki import CertificateAuthority
from devcluster.programs import NAMESPACE
from scheduler_core.leadership.endpoint_slice import PLACEMENT_GUARD
from scheduler_core.model.longhorn import REVIEWED
from tests.e2e.harsh_burst import APP, HarshBurst, Outcome, outcome_of
from tests.e2e.object_watch import ObjectWatch
from tests.e2e.objects import Object
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.pod_states import wait_until_quiet
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig

Fault = Callable[[Rig, str], AbstractContextManager[None]]
# The pods of a burst are decided about before the first volume is placed, as in a cluster with slow disks.
SIMULATOR: Final = {"provision_seconds": [4.0, 5.0], "schedule_retry": 5, "strict_local_retry": 5, "resync_period": 5}
_WEBHOOK: Final = MUTATING_WEBHOOKS.path(name=PLACEMENT_GUARD.name)
_SECRET: Final = SECRETS.path(NAMESPACE, PLACEMENT_GUARD.name)


@contextmanager
def killed(rig: Rig, leader: str) -> Iterator[None]:
    rig.cluster.processes[leader].kill()
    yield


@contextmanager
def terminated(rig: Rig, leader: str) -> Iterator[None]:
    """The leader ends in order, as in a rolling update."""
    rig.cluster.processes[leader].stop()
    yield


@contextmanager
def stopped(rig: Rig, leader: str) -> Iterator[None]:
    """The leader's connections stay open and silent."""
    process = rig.cluster.processes[leader]
    process.pause()
    try:
        yield
    finally:
        process.resume()


def _stalled(seconds: float) -> Fault:
    @contextmanager
    def stalled(rig: Rig, leader: str) -> Iterator[None]:
        process = rig.cluster.processes[leader]

        def stall() -> None:
            process.pause()
            time.sleep(seconds)
            process.resume()

        with repeat(stall, seconds=1 - seconds):
            yield

    return stalled


slow: Final = _stalled(0.9)


@contextmanager
def distrusted(rig: Rig, leader: str) -> Iterator[None]:
    """API servers do not accept the certificate: they trust another authority, whatever the leader writes."""
    del leader
    authority = CertificateAuthority.create(rig.cluster.directory / "another-authority", "another authority")
    bundle = b64encode(authority.bundle.read_bytes()).decode()

    def distrust() -> None:
        webhooks = rig.cluster.api.get(_WEBHOOK)["webhooks"]
        for webhook in webhooks:
            webhook["clientConfig"]["caBundle"] = bundle
        rig.cluster.api.patch(_WEBHOOK, {"webhooks": webhooks})

    with repeat(distrust, seconds=0.2):
        yield


@contextmanager
def uninstalled(rig: Rig, leader: str) -> Iterator[None]:
    """The webhook configuration is deleted."""
    del leader
    configuration = rig.cluster.api.get(_WEBHOOK)
    rig.cluster.api.delete(_WEBHOOK)
    try:
        yield
    finally:
        for field in ("resourceVersion", "uid", "creationTimestamp", "managedFields", "generation"):
            configuration["metadata"].pop(field, None)
        rig.cluster.api.create(MUTATING_WEBHOOKS.path(), configuration)


@contextmanager
def broken_secret(rig: Rig, leader: str) -> Iterator[None]:
    """The certificate's Secret holds something else."""
    del leader
    rig.cluster.api.patch(_SECRET, {"data": {"tls.crt": b64encode(b"damaged").decode()}})
    try:
        yield
    finally:
        rig.cluster.api.patch(_SECRET, {"data": None})


@contextmanager
def api_server_restarted(rig: Rig, leader: str) -> Iterator[None]:
    """The API server ends and comes back."""
    del leader
    rig.cluster.processes["kube-apiserver"].restart()
    yield


@contextmanager
def repeat(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Repeats an action in another thread, so many seconds after its last end."""
    ended = threading.Event()

    def run_repeatedly() -> None:
        while not ended.wait(seconds):
            action()

    with ThreadPoolExecutor(1) as pool:
        repetition = pool.submit(run_repeatedly)
        try:
            yield
        finally:
            ended.set()
            repetition.result()


FAULTS: Final[dict[str, Fault]] = {
    "leader killed": killed,
    "leader stopped": stopped,
    "leader stalls for 0.85 s of each second": _stalled(0.85),
    "leader ended by SIGTERM": terminated,
    "API server restarted": api_server_restarted,
    "Secret damaged": broken_secret,
    "another authority in the caBundle": distrusted,
    "webhook deleted": uninstalled,
    "none": lambda _rig, _leader: nullcontext(),
}


@dataclass(frozen=True, slots=True)
class FaultyBurst:
    """What happened in one burst with a fault."""

    fault: str
    outcome: Outcome
    placements: int  # replicas that got a disk
    unreviewed: int  # those of them without an answer of the guard


class _Placements:
    """The replicas that got a disk while it is watched, and which of them were reviewed."""

    def __init__(self) -> None:
        self.reviewed: dict[str, bool] = {}

    def note(self, kind: str, raw: Object, _at: float) -> None:
        spec = raw["spec"]
        if kind != "DELETED" and spec.get("diskID"):
            place = f"{spec['nodeID']}/{spec['diskID']}{spec['diskPath']}"
            annotations = raw["metadata"].get("annotations") or {}
            self.reviewed.setdefault(raw["metadata"]["name"], annotations.get(REVIEWED) == place)


def run(folder: Path, repetitions: int, faults: Sequence[str] = tuple(FAULTS)) -> list[FaultyBurst]:
    """Runs so many bursts with each fault, as installed."""
    bursts: list[FaultyBurst] = []
    with Rig(folder, candidates=2, config=RECOMMENDED_MANAGED, simulator=SIMULATOR) as rig:
        for fault in faults:
            for seed in range(1, repetitions + 1):
                bursts.append(_run_once(rig, fault, seed))
                print(f"guard faults: {bursts[-1]}", file=sys.stderr)
                for name in ("extender-1", "extender-2"):
                    if name not in rig.candidates:
                        rig.start_candidate(name)
    return bursts


def wait_until_callable(rig: Rig) -> str:
    """The leader, once its guard and that of a standby can be called."""

    def callable_leader() -> str:
        leader = rig.leader()
        states = [rig.request(name, "/state") for name in rig.candidates]
        published = [code == 200 and answer["service"]["placementGuard"]["published"] for code, answer in states]
        return leader if leader and all(published) else ""

    return rig.until("the guard can be called", callable_leader)


def _run_once(rig: Rig, fault: str, seed: int) -> FaultyBurst:
    leader = wait_until_callable(rig)
    burst = HarshBurst.of(seed)
    burst.add_nodes(rig)
    objects = burst.objects()
    replicas = LONGHORN_REPLICAS.path(NAMESPACE)
    before = len(rig.items(replicas))
    rig.post(entry for entry in objects if entry["kind"] == CLAIMS.kind)
    placements = _Placements()
    try:
        with PlacementAudit(rig) as audit, ObjectWatch(rig.cluster, replicas, placements.note):
            rig.post(entry for entry in objects if entry["kind"] == PODS.kind)

            def some_are_placed() -> bool:
                return sum(bool(raw["spec"].get("diskID")) for raw in rig.items(replicas)) - before >= 3

            rig.until("the moment of the fault", some_are_placed)
            with FAULTS[fault](rig, leader):
                settled = wait_until_quiet(rig, APP, audit.started)
            outcome = outcome_of(rig, seed, audit, settled)
    finally:
        rig.remove(APP)
        rig.remove_nodes(*burst.nodes)
    reviewed = placements.reviewed.values()
    return FaultyBurst(fault, outcome, len(reviewed), len(reviewed) - sum(reviewed))


def table(bursts: Sequence[FaultyBurst]) -> Table:
    """The faults as a table for people."""
    columns = (
        "fault",
        "bursts",
        "wrong",
        "Gi overbooked",
        "misplaced",
        "mended",
        "stuck",
        "waiting",
        "placements",
        "unreviewed",
    )
    drawn = Table(*columns)
    for fault in dict.fromkeys(each.fault for each in bursts):
        own = [each for each in bursts if each.fault == fault]
        outcomes = [each.outcome for each in own]
        counts = (
            sum(each.misplaced for each in outcomes),
            sum(each.mended for each in outcomes),
            sum(each.stuck for each in outcomes),
            sum(each.waiting for each in outcomes),
            sum(each.placements for each in own),
            sum(each.unreviewed for each in own),
        )
        wrong = sum(each.wrong for each in outcomes)
        over = sum(each.overbooked for each in outcomes)
        drawn.add_row(fault, str(len(own)), str(wrong), f"{over:g}", *map(str, counts))
    return drawn
