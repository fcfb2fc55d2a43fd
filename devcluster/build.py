"""Builds the control plane, kwok and helm once per version.

All clusters of this user share the cache of builds.

The cache's key is a hash of everything that determines the result. A build happens under a lock, in a temporary folder that is
renamed when it is complete: an interrupted build leaves nothing that looks finished, and a second build waits for the first. Each
build removes the folders of builds that were killed, and builds that have not been used for a month.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from devcluster import kubernetes_version, toolchain
from devcluster.errors import BuildError
from devcluster.process import with_parent_death
from devcluster.toolchain import UNFINISHED, Report, Toolchain

MODULE = Path(__file__).parent / "controlplane"
ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KUBECTL = "kubectl"
KWOK = "kwok"
CONTROL_PLANE = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KUBECTL)
KWOK_VERSION = "v0.8.0"
HELM = "helm"
HELM_VERSION = "v4.3.1"
_SOURCES = ("go.mod", "go.sum", "main.go")
_FLAGS = ("-trimpath", "-ldflags=-s -w")
# Without cgo no C compiler is needed; with GOWORK=off no go.work file of a parent folder has an effect.
_BUILD_ENVIRONMENT = {"CGO_ENABLED": "0", "GOWORK": "off"}
_PROGRESS_INTERVAL = 15.0
_BUILD_TIMEOUT = 3600.0
_MAX_ERROR_LINES = 20
_KEY_PATTERN = re.compile(r"[0-9a-f]{16}")
_MAX_UNUSED_SECONDS = 30 * 24 * 3600.0


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The cache folder of built programs and of clusters started by hand. It is below $DEVCLUSTER_CACHE, or below the XDG cache folder."""
    if environment.get("DEVCLUSTER_CACHE"):
        base = Path(environment["DEVCLUSTER_CACHE"])
    else:
        base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (base / "longhorn-scheduler-extender").absolute()


def pinned_version() -> str:
    """The version of Kubernetes whose modules and sums are in the repository."""
    return kubernetes_version.pinned_version((MODULE / "go.mod").read_text())


def key(module: Path = MODULE, version: str | None = None) -> str:
    """A build's name: a hash of sources, versions, flags and machine type.

    Args:
        module: the folder of the sources
        version: another version than the pinned one, whose go.mod and go.sum are no sources; None: the pinned one
    """
    digest = hashlib.sha256()
    for name in _SOURCES if version is None else ("main.go",):
        digest.update((module / name).read_bytes() + b"\0")
    versions = [KWOK_VERSION] if version is None else [KWOK_VERSION, version]
    digest.update("\0".join([*versions, *_FLAGS, platform.system(), platform.machine()]).encode())
    return digest.hexdigest()[:16]


def ensure_built(cache: Path | None = None, report: Report | None = None, version: str | None = None) -> Path:
    """Builds the programs if necessary; returns their folder.

    These are etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl and kwok.

    Args:
        cache: the cache folder; None: `cache_folder()`
        report: receives lines about the progress; None: standard error
        version: of Kubernetes; None: that of $DEVCLUSTER_KUBERNETES_VERSION, or the pinned one
    """
    base = cache or cache_folder()
    chosen = kubernetes_version.choose(version, pinned_version())
    other = None if chosen == pinned_version() else chosen
    return _build_once(base / key(version=other), report, partial(_build, version=other))


def helm(cache: Path | None = None) -> Path | None:
    folder = (cache or cache_folder()) / _helm_key()
    return folder / HELM if folder.is_dir() else None


def ensure_helm_built(cache: Path | None = None, report: Report | None = None) -> Path:
    """Builds helm if necessary; returns the program. No cluster needs it, so it has a build of its own."""
    return _build_once((cache or cache_folder()) / _helm_key(), report, _build_helm) / HELM


def _helm_key() -> str:
    text = "\0".join([HELM, HELM_VERSION, *_FLAGS, platform.system(), platform.machine()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _build_once(folder: Path, report: Report | None, build: Callable[[Path, Path, Report], None]) -> Path:
    """Calls `build` with the cache folder and the new folder, unless that exists; returns it."""
    base = folder.parent
    if folder.is_dir():
        with suppress(OSError):  # in a container image the folder is read-only, and no build removes it
            os.utime(folder)
        return folder
    report = report or _to_stderr
    try:
        base.mkdir(parents=True, exist_ok=True)
        with _hold_lock(base / "build.lock", report):
            if not folder.is_dir():
                _remove_leftovers(base)
                build(base, folder, report)
    except OSError as error:
        raise BuildError(f"cannot build into {base}: {error.strerror or error}; see DEVCLUSTER_CACHE") from error
    return folder


def _remove_leftovers(base: Path) -> None:
    """Removes killed builds, and builds unused for 30 days. The caller holds the lock."""
    oldest = time.time() - _MAX_UNUSED_SECONDS
    for path in list(base.iterdir()):
        old = _KEY_PATTERN.fullmatch(path.name) and path.stat().st_mtime < oldest
        if old or path.name.startswith(UNFINISHED):
            shutil.rmtree(path, ignore_errors=True)


def _build_helm(base: Path, folder: Path, report: Report) -> None:
    go = toolchain.find(MODULE, base, report)
    report(f"building helm {HELM_VERSION} with Go {go.version}: a few minutes, once; into {folder}")
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=base) as temporary:
        binaries = Path(temporary) / "bin"
        command = [str(go.go), "install", *_FLAGS, f"helm.sh/helm/v4/cmd/helm@{HELM_VERSION}"]
        env = {**os.environ, **_BUILD_ENVIRONMENT, **go.env, "GOBIN": str(binaries)}
        _run(f"helm {HELM_VERSION}", command, env, module=MODULE, log=Path(temporary) / "log", report=report)
        if shutil.which(binaries / HELM) is None:
            raise BuildError("the build did not make helm")
        binaries.rename(folder)


def _build(base: Path, folder: Path, report: Report, version: str | None) -> None:
    started = time.monotonic()
    go = toolchain.find(MODULE, base, report)
    report(
        f"building the control plane {version or pinned_version()} and kwok {KWOK_VERSION} with Go {go.version}: "
        f"five to ten minutes on two cores, once; into {folder}"
    )
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=base) as temporary:
        binaries = Path(temporary) / "bin"
        binaries.mkdir()
        module = MODULE
        if version is not None:
            module = Path(temporary) / "module"
            _resolve_module(module, version, go, report)
            go = toolchain.find(module, base, report)
        run = partial(_run, module=module, log=Path(temporary) / "log", report=report)
        env = {**os.environ, **_BUILD_ENVIRONMENT, **go.env}
        command = [
            str(go.go),
            "build",
            "-mod=readonly",
            "-buildvcs=false",
            *_FLAGS,
            "-o",
            str(binaries / "controlplane"),
            ".",
        ]
        run("the control plane", command, env)
        command = [str(go.go), "install", *_FLAGS, f"sigs.k8s.io/kwok/cmd/kwok@{KWOK_VERSION}"]
        run(f"kwok {KWOK_VERSION}", command, {**env, "GOBIN": str(binaries)})
        for name in CONTROL_PLANE:
            (binaries / name).symlink_to("controlplane")
        for name in ("go.mod", "go.sum"):  # what it was built from, for the reader
            shutil.copyfile(module / name, binaries / name)
        _check_programs(binaries)
        binaries.rename(folder)
    report(f"built in {time.monotonic() - started:.0f} s")


def _resolve_module(module: Path, version: str, go: Toolchain, report: Report) -> None:
    """Writes the sources of a version that is not pinned into a new folder."""
    module.mkdir()
    shutil.copyfile(MODULE / "main.go", module / "main.go")
    log = module.with_name("log")
    env = {**os.environ, **_BUILD_ENVIRONMENT, **go.env}
    name = f"{kubernetes_version.KUBERNETES}@v{version}"
    (module / "go.mod").write_text(
        f"module downloads\n\ngo {toolchain.required_version((MODULE / 'go.mod').read_text())}\n"
    )
    _run(
        f"downloading {name}",
        [str(go.go), "mod", "download", "-json", name],
        env,
        module=module,
        log=log,
        report=report,
    )
    kubernetes = json.loads(log.read_text()[log.read_text().index("{") :])
    (module / "go.mod").write_text(kubernetes_version.go_mod(version, Path(kubernetes["GoMod"]).read_text()))
    _run("the module", [str(go.go), "mod", "tidy"], env, module=module, log=log, report=report)


def _run(  # noqa: PLR0913 # each has a meaning of its own
    what: str, command: Sequence[str], env: Mapping[str, str], *, module: Path, log: Path, report: Report
) -> None:
    """Runs a build command in a module's folder, and reports progress at intervals. The compilers that it starts end with it."""
    started = time.monotonic()
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603 # an argument list, no shell
            with_parent_death(command),
            cwd=module,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child,
    ):
        try:
            while (code := _wait_briefly(child)) is None:
                seconds = time.monotonic() - started
                report(f"  {what}: {seconds:.0f} s")
                if seconds > _BUILD_TIMEOUT:
                    raise BuildError(f"building {what} took longer than {_BUILD_TIMEOUT:g} s")
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
    if code:
        lines = log.read_text(errors="replace").splitlines()[-_MAX_ERROR_LINES:]
        raise BuildError("\n".join([f"building {what} failed:", *lines]))
    report(f"  {what}: done after {time.monotonic() - started:.0f} s")


def _wait_briefly(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(_PROGRESS_INTERVAL)
    except subprocess.TimeoutExpired:
        return None


def _check_programs(folder: Path) -> None:
    missing = [name for name in (*CONTROL_PLANE, KWOK) if shutil.which(folder / name) is None]
    if missing:
        raise BuildError(f"the build did not make {', '.join(missing)}")


@contextmanager
def _hold_lock(lock: Path, report: Report) -> Iterator[None]:
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
