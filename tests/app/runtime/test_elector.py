"""The elector without a cluster: whatever fails, connection or thread, no process leads by accident."""

import asyncio
import threading
import time

import pytest

from app.kube.client import ConnectError, KubeClient
from app.runtime.elector import Elector, boot_clock
from tests.worlds.elector_process import IN_PROCESS, until
from tests.worlds.stopwatch import Stopwatch


async def hang() -> KubeClient:
    await asyncio.Event().wait()
    raise AssertionError


async def fail() -> KubeClient:
    raise ConnectError("no cluster to talk to: see --kubeconfig")


async def break_down() -> KubeClient:
    raise ZeroDivisionError("an unexpected error")


def test_the_boot_clock_advances_at_least_as_the_monotonic_clock() -> None:
    assert boot_clock() >= time.monotonic() - 1
    first = boot_clock()
    time.sleep(0.01)
    assert 0.005 < boot_clock() - first < 5


def test_an_elector_that_has_not_started_does_not_lead() -> None:
    elector = Elector(fail, "pod", "longhorn-system")
    assert not elector.leading()
    assert not elector.alive
    assert (elector.term, elector.holder, elector.problem) == (0, "", "")
    elector.stop(release=True, seconds=1)


def test_two_processes_of_one_name_are_two_candidates() -> None:
    first = Elector(fail, "pod", "longhorn-system")
    second = Elector(fail, "pod", "longhorn-system")
    assert first.identity != second.identity
    assert first.identity.startswith("pod_")


def test_without_a_cluster_an_elector_has_a_problem_and_goes_on_trying() -> None:
    elector = Elector(fail, "pod", "longhorn-system", IN_PROCESS)
    elector.start()
    until(lambda: elector.problem)
    assert elector.problem == "no cluster to talk to: see --kubeconfig"
    assert not elector.leading()
    assert elector.alive
    elector.stop(release=True, seconds=5)
    assert not elector.alive


def test_a_connection_that_hangs_times_out() -> None:
    elector = Elector(hang, "pod", "longhorn-system", IN_PROCESS)
    started = time.monotonic()
    stopwatch = Stopwatch()
    elector.start()
    until(lambda: elector.problem)
    assert time.monotonic() - started > 0.9
    assert stopwatch.seconds < 3
    assert "no answer from the API server in time" in elector.problem
    elector.stop(release=False, seconds=0)


@pytest.mark.parametrize("release", [True, False])
def test_an_elector_stops_in_time_while_a_call_hangs(release: bool) -> None:
    calling = threading.Event()

    async def connect() -> KubeClient:
        calling.set()
        return await hang()

    elector = Elector(connect, "pod", "longhorn-system")
    elector.start()
    assert calling.wait(10)
    stopwatch = Stopwatch()
    elector.stop(release=release, seconds=0.5)
    assert stopwatch.seconds < 2.5
    assert not elector.alive


def test_an_elector_whose_thread_dies_does_not_lead(capsys: pytest.CaptureFixture[str]) -> None:
    elector = Elector(break_down, "pod", "longhorn-system", IN_PROCESS)
    elector.start()
    until(lambda: not elector.alive)
    assert not elector.leading()
    assert "died" in elector.problem
    elector.stop(release=True, seconds=1)


def test_an_elector_disabled_before_its_start_does_not_compete() -> None:
    connected = threading.Event()

    async def connect() -> KubeClient:
        connected.set()
        return await fail()

    elector = Elector(connect, "pod", "longhorn-system", IN_PROCESS)
    elector.enable(False)
    elector.start()
    assert not connected.wait(0.5)
    elector.enable(True)
    assert connected.wait(5)
    elector.stop(release=True, seconds=1)
