"""The runner of the test tiers: what fails once and passes alone is flaky, what fails twice is a failure."""

import sys
from pathlib import Path

import pytest

from tests import tiers

ONCE = """
from pathlib import Path

def test_once():
    marker = Path(__file__).with_name("ran")
    if not marker.exists():
        marker.touch()
        raise AssertionError("the first time")
"""
STALLS_ONCE = "import pathlib, time; ran = pathlib.Path('ran'); ran.exists() or ran.touch() or time.sleep(600)"
ALWAYS = "def test_always():\n    raise AssertionError\n"
NEVER = "def test_never():\n    pass\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tests of its own, which the tiers run in place of this project's."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p xdist\n")
    # Loading the other plug-ins takes longer than such tests.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "tests").mkdir()
    known = tmp_path / "flaky.txt"
    known.write_text("# a comment\n")
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    monkeypatch.setattr(tiers, "KNOWN_FLAKY", known)
    monkeypatch.setattr(tiers, "TIERS", {"toy": tiers.Tier(proves="a rule", commands=[toy_command()])})
    return tmp_path


def toy_command() -> list[str]:
    return [*tiers.PYTEST, "-m", "not e2e"]


def add(project: Path, name: str, text: str) -> None:
    (project / "tests" / f"test_{name}.py").write_text(text)


def test_a_tier_that_passes_says_how_long_it_took(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add(project, "never", NEVER)
    assert tiers.run(["toy"]) == 0
    output = capfd.readouterr().out
    assert "== 1 of 1: toy: a rule" in output
    assert "== toy 0 min " in output


def test_a_test_that_passes_alone_is_flaky(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add(project, "once", ONCE)
    add(project, "never", NEVER)
    assert tiers.run(["toy"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "flaky: tests/test_once.py::test_once"


def test_a_flaky_test_that_is_known_says_so(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add(project, "once", ONCE)
    tiers.KNOWN_FLAKY.write_text("tests/test_once.py::test_once\n")
    assert tiers.run(["toy"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "flaky: tests/test_once.py::test_once (known)"


def test_a_test_that_fails_twice_fails_the_run(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    add(project, "once", ONCE)
    add(project, "always", ALWAYS)
    assert tiers.run(["toy"]) == 1
    assert capfd.readouterr().out.splitlines()[-2:] == ["flaky: tests/test_once.py::test_once", "== toy failed"]


def test_a_run_that_stands_still_begins_once_more(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-S", "-c", STALLS_ONCE]
    monkeypatch.setattr(tiers, "TIERS", {"toy": tiers.Tier(proves="a rule", commands=[command], limit=3)})
    assert tiers.run(["toy"]) == 0
    assert (project / "ran").exists()
    assert capfd.readouterr().out.splitlines()[-1] == f"flaky: {Path(sys.executable).name}: no end after 3 s"


def test_a_worker_that_dies_ends_the_run(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No second attempt hides that other tests were never run."""
    (project / "conftest.py").write_text("from tests.conftest import pytest_handlecrashitem\n")
    add(project, "dies", "import os\n\ndef test_dies():\n    os._exit(1)\n")
    options = ["-n", "1", "--dist=loadfile", "-o", f"pythonpath={Path(tiers.__file__).parents[1]}"]
    command = [*tiers.PYTEST, *options, *toy_command()[1:]]
    monkeypatch.setattr(tiers, "TIERS", {"toy": tiers.Tier(proves="a rule", commands=[command])})
    assert tiers.run(["toy"]) == 1
    output = capfd.readouterr().out
    assert "the worker of tests/test_dies.py::test_dies died" in output
    assert "once more" not in output


def test_a_file_that_cannot_be_loaded_fails_the_run(project: Path) -> None:
    add(project, "broken", "import nothing_like_this\n")
    assert tiers.run(["toy"]) == 1


def test_no_flaky_test_waits_to_be_mended() -> None:
    assert tiers.known_flaky() == set()
