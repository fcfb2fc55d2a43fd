"""The programs are built once per version, completely or not at all."""

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devcluster import build, kubernetes_version
from devcluster.errors import BuildError
from devcluster.polling import wait_until
from tests.devcluster.go_stand_in import Go, ignore


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def start_build(cache: Path) -> subprocess.Popen[str]:
    """Starts `python -m devcluster build`."""
    return subprocess.Popen(
        [sys.executable, "-m", "devcluster", "build"],
        env={**os.environ, "DEVCLUSTER_CACHE": str(cache)},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_existing_build_is_reused_and_renewed_and_the_first_is_said_to_be_slow(go: Go, tmp_path: Path) -> None:
    lines: list[str] = []
    first = build.ensure_built(tmp_path, lines.append)
    assert "five to ten minutes on two cores, once" in lines[0]
    os.utime(first, (0, 0))
    assert (build.ensure_built(tmp_path, ignore), go.builds()) == (first, ["build", "install"])
    assert time.time() - first.stat().st_mtime < 60


def test_helm_has_a_build_of_its_own(go: Go, tmp_path: Path) -> None:
    """A cluster needs none, so that only its tests build it; the second call finds it."""
    cache = tmp_path / "cache"
    assert build.helm(cache) is None
    program = build.ensure_helm_built(cache, ignore)
    assert (build.ensure_helm_built(cache, ignore), build.helm(cache), go.builds()) == (program, program, ["install"])
    assert shutil.which(program)
    assert program.parent != build.ensure_built(cache, ignore)


def test_concurrent_builds_build_once(go: Go, tmp_path: Path) -> None:
    lines: list[str] = []
    with ThreadPoolExecutor() as pool:
        folders = set(pool.map(lambda _: build.ensure_built(tmp_path / "cache", lines.append), range(2)))
    assert (len(folders), go.builds()) == (1, ["build", "install"])
    assert "another build is running: waiting for it" in lines


def test_each_version_of_kubernetes_has_a_build_of_its_own(go: Go, tmp_path: Path) -> None:
    pinned = build.ensure_built(tmp_path / "cache", ignore)
    other = build.ensure_built(tmp_path / "cache", ignore, "1.35.4")
    assert other != pinned
    assert build.ensure_built(tmp_path / "cache", ignore, "v1.35.4") == other
    assert go.builds() == ["build", "install", "mod", "mod", "build", "install"]
    assert "k8s.io/kubernetes v1.35.4" in (other / "go.mod").read_text()


def test_the_environment_names_the_version_for_every_cluster(
    go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kubernetes_version.VARIABLE, "1.35.4")
    folder = build.ensure_built(tmp_path, ignore)
    assert folder.name == build.key(version="1.35.4")
    assert build.ensure_built(tmp_path, ignore, build.pinned_version()).name == build.key()


def test_the_key_of_another_version_does_not_depend_on_the_pinned_modules(tmp_path: Path) -> None:
    module = tmp_path / "module"
    shutil.copytree(build.MODULE, module)
    (module / "go.sum").write_text("")
    assert build.key(module, "1.35.4") == build.key(version="1.35.4")
    assert build.key(version="1.35.4") != build.key(version="1.35.5")


def test_a_failed_build_leaves_no_files_and_shows_the_error_of_go(go: Go, tmp_path: Path) -> None:
    go.behave(broken=True)
    with pytest.raises(BuildError, match=r"main\.go:1: broken"):
        build.ensure_built(tmp_path / "cache", ignore)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["build.lock"]


def test_a_changed_source_changes_the_key(tmp_path: Path) -> None:
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
def test_the_cache_follows_the_users_environment(environment: dict[str, str], folder: str) -> None:
    assert build.cache_folder(environment) == Path(folder) / "longhorn-scheduler-extender"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_build_ends_its_compilers_and_leaves_no_files(
    tmp_path: Path, go: Go, number: signal.Signals
) -> None:
    go.behave(hangs=True)
    with start_build(tmp_path) as child:
        wait_until("the compiler", go.pids)
        child.send_signal(number)
        stderr = child.communicate(timeout=20)[1]
    assert (child.returncode, stderr.splitlines()[-1]) == (130, "devcluster: interrupted")
    wait_until("their end", lambda: all(has_ended(pid) for pid in go.pids()))
    assert [path.name for path in build.cache_folder({"DEVCLUSTER_CACHE": str(tmp_path)}).iterdir()] == ["build.lock"]


def test_the_next_build_removes_what_a_killed_one_left(tmp_path: Path, go: Go) -> None:
    """A killed build leaves no finished folder; on Linux its go ends, too."""
    go.behave(hangs=True)
    with start_build(tmp_path) as child:
        wait_until("the compiler", go.pids)
        child.kill()
    cache = build.cache_folder({"DEVCLUSTER_CACHE": str(tmp_path)})
    assert not (cache / build.key()).exists()
    assert list(cache.glob("building-*"))
    program, compiler = go.pids()
    wait_until("its end", lambda: has_ended(program))
    os.kill(compiler, signal.SIGKILL)  # a real compiler ends by itself
    go.behave()
    build.ensure_built(cache, ignore)
    assert sorted(path.name for path in cache.iterdir()) == sorted(["build.lock", build.key()])


def test_builds_unused_for_a_month_are_removed(tmp_path: Path, go: Go) -> None:
    cache = tmp_path / "cache"
    for name in ("0123456789abcdef", "fedcba9876543210", "dev"):
        (cache / name).mkdir(parents=True)
    for name in ("0123456789abcdef", "dev"):
        os.utime(cache / name, (time.time() - 31 * 24 * 3600,) * 2)
    build.ensure_built(cache, ignore)
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        ["build.lock", "dev", "fedcba9876543210", build.key()]
    )
