"""A rolling update to this version and back, in a burst: both versions run at once, and one takes over from the other."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator

import pytest

from app.kube.resources import LEASES
from devcluster.programs import NAMESPACE, SERVICE
from devcluster.stack import ROOT
from scheduler_core.structs import replace
from tests.control_plane import ControlPlane
from tests.e2e import hand_over
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
# The newest tag; as long as there is none, this commit stands for the previous version.
UNTAGGED = "419df765515c8ebc7eb35d5c693ae8daef898f97"
LOAD = replace(hand_over.SHORT, others=200)
OFFERS = 5


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the extender's program runs the previous version."""
    describe = _git("describe", "--tags", "--abbrev=0", "HEAD^")
    version = describe.stdout.decode().strip() or UNTAGGED
    archive = _git("archive", version, "app", "scheduler_core")
    if archive.returncode:
        pytest.skip(f"this clone has no {version}: {archive.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    environment = {"PYTHONPATH": str(folder)}
    program = [sys.executable, "-c", "import app; print(app.__file__)"]
    imported = subprocess.run(program, cwd=folder.parent, env=environment, check=True, capture_output=True, timeout=60)
    assert imported.stdout.decode().startswith(str(folder)), "the program runs this version all the same"
    return environment


@pytest.fixture(scope="module")
def rig(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two candidates of this version, and nodes that a burst fills exactly. Both versions read one file of settings."""
    folder = tmp_path_factory.mktemp("upgrade")
    settings = folder / "serve.yaml"
    settings.write_text("packing: auto\nstale-after: 60\nscheduler-extender-pod-scheduling-timeout: 5\n")
    options = ("--config", str(settings))
    simulator = hand_over.FAST_ATTACHER
    with Rig(folder, control_plane, candidates=2, simulator=simulator, more_arguments=options) as started:
        LOAD.add_nodes(started)
        yield started


@pytest.mark.parametrize("direction", ["downgrade", "upgrade"])
def test_a_rolling_update_in_a_burst_misplaces_nothing(rig: Rig, previous: dict[str, str], direction: str) -> None:
    """The former leader's record is read by a successor of the other version, and each node gets the pods that fit."""
    environment = previous if direction == "downgrade" else {}
    former = set(rig.candidates)
    transitions = _transitions(rig)
    try:
        outcome = hand_over.run(rig, LOAD, lambda rig: hand_over.update_candidates(rig, offers=OFFERS, env=environment))
    finally:
        hand_over.remove(rig)
    assert outcome.wrong == 0, outcome
    assert outcome.open_offers, "no leader was replaced"
    assert not former & set(rig.candidates)
    assert _transitions(rig) > transitions
    log = rig.cluster.processes[rig.leader()].log_text()
    assert "restored offers" in log
    assert "offers are unknown" not in log


def _transitions(rig: Rig) -> int:
    lease = rig.cluster.api.get(LEASES.path(NAMESPACE, SERVICE))
    return int(lease["spec"]["leaseTransitions"])


def _git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, timeout=60)  # no shell
