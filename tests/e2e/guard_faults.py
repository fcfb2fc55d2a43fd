"""The report's faults of the placement guard: harsh bursts as installed, with one fault each while Longhorn places.

What goes wrong is counted from API objects and watches alone (`placement_audit.py`), and how many placements carry an answer of the guard.
"""

import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from app.kube.resources import LONGHORN_REPLICAS, MUTATING_WEBHOOKS, SECRETS
from devcluster.pki import CertificateAuthority
from devcluster.programs import NAMESPACE
from scheduler_core.leadership.endpoint_slice import PLACEMENT_GUARD
from scheduler_core.model.longhorn import REVIEWED
from tests.e2e.bursts import Outcome, settled_burst
from tests.e2e.harsh_burst import APP, HarshBurst, is_wrong
from tests.e2e.object_watch import ObjectWatch
from tests.e2e.objects import Object
from tests.e2e.repeated import Repeated
from tests.e2e.report import Options, Part, draw
from tests.e2e.rig import Rig

Fault = Callable[[Rig, str], AbstractContextManager[None]]
# The pods of a burst are decided about before the first volume is placed, as in a cluster with slow disks.
SIMULATOR = {"provision_seconds": [4.0, 5.0], "schedule_retry": 5, "strict_local_retry": 5, "resync_period": 5}
_WEBHOOK = MUTATING_WEBHOOKS.path(name=PLACEMENT_GUARD.name)
_SECRET = SECRETS.path(NAMESPACE, PLACEMENT_GUARD.name)
_BURSTS = 10


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

        with Repeated(stall, lambda: 1 - seconds):
            yield

    return stalled


slow = _stalled(0.9)


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

    with Repeated(distrust, lambda: 0.2):
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


FAULTS: dict[str, Fault] = {
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


def report(folder: Path, options: Options) -> Part:
    """Runs so many bursts with each fault, as installed."""
    bursts: list[FaultyBurst] = []
    with Rig(folder, candidates=2, simulator=SIMULATOR) as rig:
        for fault in FAULTS:
            for seed in range(1, (options.repetitions or _BURSTS) + 1):
                bursts.append(_run_once(rig, fault, seed))
                print(f"guard faults: {bursts[-1]}", file=sys.stderr)
                rig.restore_candidates()
    rows = [_row(fault, [each for each in bursts if each.fault == fault]) for fault in FAULTS]
    return Part([], [asdict(each) for each in bursts], [draw(rows)])


def wait_until_callable(rig: Rig) -> str:
    """The leader, once its guard and that of a standby can be called."""

    def callable_leader() -> str:
        leader = rig.leader()
        # A standby may still be listing the cluster.
        ready = leader and all(rig.request(name, "/readyz")[0] == 200 for name in rig.candidates)
        return (
            leader if ready and all(rig.service(name)["placementGuard"]["published"] for name in rig.candidates) else ""
        )

    return rig.until("the guard can be called", callable_leader)


def placed_replicas(rig: Rig) -> int:
    return sum(bool(raw["spec"].get("diskID")) for raw in rig.longhorn(LONGHORN_REPLICAS))


def _run_once(rig: Rig, fault: str, seed: int) -> FaultyBurst:
    leader = wait_until_callable(rig)
    burst = HarshBurst.of(seed)
    burst.add_nodes(rig)
    before = placed_replicas(rig)

    @contextmanager
    def break_guard() -> Iterator[None]:
        rig.until("the moment of the fault", lambda: placed_replicas(rig) - before >= 3)
        with FAULTS[fault](rig, leader):
            yield

    placements = _Placements()
    with (
        ObjectWatch(rig.cluster, LONGHORN_REPLICAS.path(NAMESPACE), placements.note),
        settled_burst(rig, APP, burst.objects(), burst.nodes, break_guard) as (audit, settled),
    ):
        outcome = Outcome.of(rig, APP, seed, audit, settled)
    reviewed = placements.reviewed.values()
    return FaultyBurst(fault, outcome, len(reviewed), len(reviewed) - sum(reviewed))


def _row(fault: str, bursts: Sequence[FaultyBurst]) -> dict[str, object]:
    outcomes = [each.outcome for each in bursts]
    return {
        "fault": fault,
        "bursts": len(bursts),
        "wrong": sum(map(is_wrong, outcomes)),
        "Gi overbooked": f"{sum(each.overbooked for each in outcomes):g}",
        "misplaced": sum(each.misplaced for each in outcomes),
        "mended": sum(each.mended for each in outcomes),
        "stuck": sum(each.stuck for each in outcomes),
        "waiting": sum(each.waiting for each in outcomes),
        "placements": sum(each.placements for each in bursts),
        "unreviewed": sum(each.unreviewed for each in bursts),
    }
