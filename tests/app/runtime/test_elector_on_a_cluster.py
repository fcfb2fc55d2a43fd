"""Electors against a real API server: one leads, whatever happens, and its successor leads in time."""

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.kube.resources import LEASES
from app.runtime.elector import Elector, boot_clock
from devcluster.dev_cluster import DevCluster
from scheduler_core.leadership.election import LEASE_NAME, ElectionTiming
from tests.control_plane import ControlPlane
from tests.worlds.elector_process import TIMING, connect_with, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[3]
# Two busy cores: what a thread or process may need on top to be scheduled and to be answered.
SLACK = 1.0
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[DevCluster]:
    with control_plane.borrow() as started:
        yield started


class Election:
    """One namespace with its Lease and candidates."""

    def __init__(self, cluster: DevCluster) -> None:
        self.cluster = cluster
        self.namespace = f"election-{next(_numbers)}"
        self.electors: list[Elector] = []
        self.processes: list[subprocess.Popen[str]] = []
        cluster.api.create(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        )
        self.path = LEASES.path(self.namespace, LEASE_NAME)

    def candidate(
        self,
        name: str,
        kubeconfig: Path | None = None,
        timing: ElectionTiming = TIMING,
        clock: Callable[[], float] = boot_clock,
    ) -> Elector:
        """Starts a candidate in this process."""
        connect = connect_with(str(kubeconfig or self.cluster.kubeconfig))
        elector = Elector(connect, name, self.namespace, timing, clock=clock)
        self.electors.append(elector)
        elector.start()
        return elector

    def process(self, name: str, output: Path) -> subprocess.Popen[str]:
        """Starts a candidate in its own process, which writes its observations to a file."""
        argv = [sys.executable, "-m", "tests.worlds.elector_process"]
        with output.open("w") as file:
            process = subprocess.Popen(
                [*argv, str(self.cluster.kubeconfig), self.namespace, name], stdout=file, cwd=ROOT, text=True
            )
        self.processes.append(process)
        return process

    def lease(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.cluster.api.get(self.path)["spec"]
        return spec

    def leaders(self) -> list[Elector]:
        return [elector for elector in self.electors if elector.leading()]

    def end(self) -> None:
        """Stops every candidate."""
        for process in self.processes:
            process.kill()
            process.wait()
        for elector in self.electors:
            elector.stop(release=False, seconds=0)


@pytest.fixture
def election(cluster: DevCluster) -> Iterator[Election]:
    namespace = Election(cluster)
    yield namespace
    namespace.end()


def fail() -> None:
    raise ZeroDivisionError


def lines(output: Path) -> list[list[float]]:
    changes = [line.split() for line in output.read_text().splitlines() if line.startswith("seen ")]
    return [[float(word) for word in words] for _, *words in changes]


@pytest.mark.smoke
def test_exactly_one_of_three_leads(election: Election) -> None:
    electors = [election.candidate(f"pod-{number}") for number in range(3)]
    took = until(election.leaders)
    assert took < TIMING.lease_duration + 2 * TIMING.retry_period + 2 * SLACK
    [leader] = election.leaders()
    end = time.monotonic() + TIMING.lease_duration
    while time.monotonic() < end:  # without a pause: a thread that keeps the interpreter busy does not cost the Lease
        assert election.leaders() == [leader]
    assert {elector.holder for elector in electors} == {leader.identity}
    assert [elector.term for elector in electors] == [int(elector is leader) for elector in electors]
    assert election.lease()["holderIdentity"] == leader.identity
    assert not any(elector.problem for elector in electors)


def test_listeners_are_called_at_each_gain_and_loss(election: Election) -> None:
    calls: list[tuple[bool, int]] = []
    elector = Elector(connect_with(str(election.cluster.kubeconfig)), "pod", election.namespace, TIMING)
    election.electors.append(elector)
    elector.subscribe(fail)
    elector.subscribe(lambda: calls.append((elector.leading(), elector.term)))
    elector.start()
    until(elector.leading)
    until(lambda: calls == [(True, 1)], SLACK)
    elector.enable(False)
    until(lambda: calls == [(True, 1), (False, 1)], SLACK)
    elector.enable(True)
    until(lambda: len(calls) > 2, 2 * SLACK)
    assert calls == [(True, 1), (False, 1), (True, 2)]


def test_a_stopped_leader_does_not_lead_when_it_is_continued(election: Election, tmp_path: Path) -> None:
    output = tmp_path / "first"
    process = election.process("first", output)
    until(lambda: lines(output) and lines(output)[-1][1], 60)
    second = election.candidate("second")
    until(lambda: second.holder.startswith("first_"))
    process.send_signal(signal.SIGSTOP)
    until(second.leading)
    time.sleep(0.5)
    before = len(lines(output))
    process.send_signal(signal.SIGCONT)
    until(lambda: len(lines(output)) > before)
    time.sleep(2 * TIMING.lease_duration)
    after = lines(output)[before:]
    # It may have been stopped between reading the clock and reading whether it leads: then the second line has the gap.
    gaps = [gap for _, _, _, *line in after for gap in line]
    assert max(gaps, default=0) > TIMING.renew_deadline, "it was stopped"
    assert not any(leading for _, leading, *_ in after)
    assert second.leading()


def test_a_leader_cut_off_from_the_api_server_steps_down_in_time(election: Election) -> None:
    calls: list[float] = []
    electors = [election.candidate(name) for name in ("first", "second")]
    until(election.leaders)
    [leader] = election.leaders()
    term = leader.term
    leader.subscribe(lambda: calls.append(time.monotonic()))
    led: list[float] = []

    def does_not_lead() -> bool:
        asked = boot_clock()
        if leader.leading():
            led.append(asked)
            return False
        return True

    server = election.cluster.processes["kube-apiserver"]
    server.pause()
    paused = boot_clock()
    try:
        took = until(does_not_lead, TIMING.renew_deadline + SLACK)
        lost = time.monotonic()
        print(f"a leader steps down {took:.2f} s after the API server hung (deadline {TIMING.renew_deadline:g} s)")
        # The clock closes the fence, however late this thread asks.
        assert max(led, default=paused) <= paused + TIMING.renew_deadline
        until(lambda: calls, SLACK)
        assert calls[0] - lost < SLACK
        time.sleep(TIMING.lease_duration)
        assert election.leaders() == []
        assert all("no answer" in elector.problem for elector in electors)
    finally:
        server.resume()
    until(election.leaders, TIMING.lease_duration + 3 * TIMING.retry_period + 2 * SLACK)
    [successor] = election.leaders()
    assert successor is not leader or successor.term > term
    until(lambda: not any(elector.problem for elector in electors))


def test_a_clock_that_jumps_ahead_closes_the_fence(election: Election) -> None:
    ahead = [0.0]
    elector = election.candidate("pod", clock=lambda: boot_clock() + ahead[0])
    until(elector.leading)
    ahead[0] = TIMING.renew_deadline
    assert not elector.leading()
    assert elector.term == 1
    until(elector.leading)
    assert elector.term == 2


@pytest.mark.parametrize(
    "spec",
    [
        {"holderIdentity": ""},
        {"holderIdentity": None, "leaseDurationSeconds": None, "renewTime": None, "acquireTime": None},
        {"leaseDurationSeconds": 2**31 - 1, "leaseTransitions": 2**31 - 1},
    ],
)
def test_a_leader_repairs_an_edited_lease_and_leads_on(election: Election, spec: dict[str, Any]) -> None:
    elector = election.candidate("pod")
    follower = election.candidate("other")
    until(election.leaders)
    [leader] = election.leaders()
    election.cluster.api.patch(election.path, {"metadata": {"labels": {"team": "storage"}}, "spec": spec})
    until(lambda: election.lease().get("holderIdentity") == leader.identity)
    until(lambda: election.lease()["leaseDurationSeconds"] == TIMING.lease_duration)
    end = time.monotonic() + TIMING.lease_duration
    while time.monotonic() < end:
        assert election.leaders() == [leader]
        time.sleep(0.002)
    assert {elector.term, follower.term} == {0, 1}
    assert election.cluster.api.get(election.path)["metadata"]["labels"] == {"team": "storage"}


def test_a_deleted_lease_is_created_again_by_its_leader(election: Election) -> None:
    for name in ("pod", "other"):
        election.candidate(name)
    until(election.leaders)
    [leader] = election.leaders()
    for _ in range(3):
        election.cluster.api.delete(election.path)
        end = time.monotonic() + TIMING.retry_period + SLACK
        while time.monotonic() < end:
            assert election.leaders() == [leader]
            time.sleep(0.002)
    assert election.lease()["holderIdentity"] == leader.identity
    assert leader.term == 1


def test_a_replace_of_a_deleted_lease_is_refused(election: Election) -> None:
    """It has the uid; without it the API server would create a Lease."""
    elector = election.candidate("pod")
    until(elector.leading)
    body = election.cluster.api.get(election.path)
    elector.stop(release=False, seconds=0)
    election.cluster.api.delete(election.path)
    answer = election.cluster.kubectl("replace", "--raw", election.path, "-f", "-", input=json.dumps(body), check=False)
    assert "Conflict" in answer


def test_an_elector_without_permission_names_verb_and_resource_and_leads_once_they_are_granted(
    election: Election,
) -> None:
    namespace = election.namespace
    cluster = election.cluster
    cluster.kubectl("create", "serviceaccount", "extender", "-n", namespace)
    credentials = cluster.service_account_kubeconfig(namespace, "extender")
    elector = election.candidate("pod", credentials)
    until(lambda: elector.problem)
    for word in ("cannot get resource", '"leases"', namespace, "403"):
        assert word in elector.problem
    assert "\n" not in elector.problem
    cluster.kubectl("create", "role", "r", "-n", namespace, "--verb=get,create", "--resource=leases")
    cluster.kubectl("create", "rolebinding", "b", "-n", namespace, "--role=r", f"--serviceaccount={namespace}:extender")
    until(lambda: "cannot update resource" in elector.problem, TIMING.lease_duration + 20)
    assert not elector.leading()
    cluster.kubectl("create", "role", "s", "-n", namespace, "--verb=update", "--resource=leases")
    cluster.kubectl("create", "rolebinding", "c", "-n", namespace, "--role=s", f"--serviceaccount={namespace}:extender")
    until(elector.leading)
    assert elector.problem == ""


def test_a_namespace_that_is_missing_is_named(cluster: DevCluster) -> None:
    elector = Elector(connect_with(str(cluster.kubeconfig)), "pod", "nowhere", TIMING)
    elector.start()
    try:
        until(lambda: 'namespaces "nowhere" not found' in elector.problem)
        assert len(elector.problem.splitlines()) == 1
        assert not elector.leading()
    finally:
        elector.stop(release=False, seconds=0)
