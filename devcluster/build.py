"""Builds the control plane and kwok once, into a cache that every cluster of this user shares.

The cache's key is a hash of everything that shapes the result. A build happens in a folder of its own which is renamed when it is
complete, under a lock: an interrupted one leaves nothing behind that looks finished, and a second one waits for the first. What
earlier ones left is removed by the next: folders of builds that were killed, and builds that nobody has used for a month.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from devcluster import toolchain
from devcluster.components import CONTROL_PLANE, KWOK
from devcluster.errors import BuildError
from devcluster.process import leashed
from devcluster.toolchain import UNFINISHED, Report

MODULE: Final = Path(__file__).parent / "controlplane"
KWOK_VERSION: Final = "v0.8.0"
_SOURCES: Final = ("go.mod", "go.sum", "main.go")
_FLAGS: Final = ("-trimpath", "-ldflags=-s -w")
# Without cgo no C compiler is needed; without a workspace nobody else's go.work is obeyed.
_ENV: Final = {"CGO_ENABLED": "0", "GOWORK": "off"}
_PROGRESS_SECONDS: Final = 15.0
_BUILD_SECONDS: Final = 3600.0
_ERROR_LINES: Final = 20
_KEY: Final = re.compile(r"[0-9a-f]{16}")
_UNUSED_SECONDS: Final = 30 * 24 * 3600.0


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where built programs and clusters started by hand are kept: $DEVCLUSTER_CACHE, or this project's XDG cache folder."""
    if environment.get("DEVCLUSTER_CACHE"):
        base = Path(environment["DEVCLUSTER_CACHE"])
    else:
        base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (base / "longhorn-scheduler-extender").absolute()


def key(module: Path = MODULE) -> str:
    """Names a build: equal for equal sources, versions, flags and machine type."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((module / name).read_bytes() + b"\0")
    digest.update("\0".join([KWOK_VERSION, *_FLAGS, platform.system(), platform.machine()]).encode())
    return digest.hexdigest()[:16]


def ensure_built(cache: Path | None = None, report: Report | None = None) -> Path:
    """The folder with etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and kwok; builds them if need be.

    Args:
        cache: instead of `cache_folder()`
        report: told about progress; None: standard error

    Raises:
        BuildError: they cannot be built
    """
    base = cache or cache_folder()
    folder = base / key()
    if folder.is_dir():
        with suppress(OSError):  # in an image it cannot be written to, and nobody removes it
            os.utime(folder)
        return folder
    tell = report or _to_stderr
    try:
        base.mkdir(parents=True, exist_ok=True)
        with _alone(base / "build.lock", tell):
            if not folder.is_dir():
                _tidy(base)
                _build(base, folder, tell)
    except OSError as error:
        raise BuildError(f"cannot build into {base}: {error.strerror or error}; see DEVCLUSTER_CACHE") from error
    return folder


def _tidy(base: Path) -> None:
    """Removes what killed builds left, and builds last used over 30 days ago; the caller holds the lock."""
    oldest = time.time() - _UNUSED_SECONDS
    for path in list(base.iterdir()):
        old = _KEY.fullmatch(path.name) and path.stat().st_mtime < oldest
        if old or path.name.startswith(UNFINISHED):
            shutil.rmtree(path, ignore_errors=True)


def _build(base: Path, folder: Path, report: Report) -> None:
    started = time.monotonic()
    go = toolchain.find(MODULE, base, report)
    report(
        f"building the control plane and kwok {KWOK_VERSION} with Go {go.version}: five to ten minutes on two cores, once; into {folder}"
    )
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=base) as temporary:
        made = Path(temporary) / "bin"
        made.mkdir()
        env = {**os.environ, **_ENV, **go.env}
        command = [
            str(go.go),
            "build",
            "-mod=readonly",
            "-buildvcs=false",
            *_FLAGS,
            "-o",
            str(made / "controlplane"),
            ".",
        ]
        _run("the control plane", command, env, Path(temporary), report)
        command = [str(go.go), "install", *_FLAGS, f"sigs.k8s.io/kwok/cmd/kwok@{KWOK_VERSION}"]
        _run(f"kwok {KWOK_VERSION}", command, {**env, "GOBIN": str(made)}, Path(temporary), report)
        for name in CONTROL_PLANE:
            (made / name).symlink_to("controlplane")
        _check(made)
        made.rename(folder)
    report(f"built in {time.monotonic() - started:.0f} s")


def _run(what: str, command: Sequence[str], env: Mapping[str, str], temporary: Path, report: Report) -> None:
    """Runs a build command, saying every now and then that it still does; compilers that it starts end with it."""
    log = temporary / "log"
    started = time.monotonic()
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603 # an argument list, no shell
            leashed(command),
            cwd=MODULE,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child,
    ):
        try:
            while (code := _ended(child)) is None:
                seconds = time.monotonic() - started
                report(f"  {what}: {seconds:.0f} s")
                if seconds > _BUILD_SECONDS:
                    raise BuildError(f"building {what} took longer than {_BUILD_SECONDS:g} s")
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
    if code:
        lines = log.read_text(errors="replace").splitlines()[-_ERROR_LINES:]
        raise BuildError("\n".join([f"building {what} failed:", *lines]))
    report(f"  {what}: done after {time.monotonic() - started:.0f} s")


def _ended(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(_PROGRESS_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _check(folder: Path) -> None:
    missing = [name for name in (*CONTROL_PLANE, KWOK) if shutil.which(folder / name) is None]
    if missing:
        raise BuildError(f"the build did not make {', '.join(missing)}")


@contextmanager
def _alone(lock: Path, report: Report) -> Iterator[None]:
    """Holds the lock, which ends with this process at the latest."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another build is running: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
