"""The image: what is removed from it is not used, and what it says about itself is true."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import kubernetes
import pytest

from tests.contract.frozen import help_page
from tests.manifests.load import NAME, ROOT, documents

PRUNE = ROOT / ".ci/image/prune.py"
PIN = ROOT / ".ci/image/pin"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLIENT = Path(str(kubernetes.__file__)).parent


def run_prune(site_packages: Path, *packages: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with the client in a folder instead of the installed one."""
    return subprocess.run(
        [sys.executable, PRUNE, site_packages, *packages],
        env=environment_with(site_packages),
        capture_output=True,
        text=True,
        check=False,
    )


def environment_with(site_packages: Path) -> Mapping[str, str]:
    """Returns variables by which the modules of a folder are imported first."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(site_packages), str(ROOT)]),
        # Compiled once, and not in the folder, whose size counts.
        "PYTHONPYCACHEPREFIX": str(site_packages.with_name(f"{site_packages.name}-compiled")),
    }


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the client, without what the program does not import."""
    folder = tmp_path_factory.mktemp("site-packages")
    shutil.copytree(CLIENT, folder / CLIENT.name, ignore=shutil.ignore_patterns("__pycache__"))
    done = run_prune(folder, "app", "scheduler_core")
    assert done.returncode == 0, done.stderr
    return folder


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.e2e
def test_the_client_in_the_image_is_small(pruned: Path) -> None:
    """A release of the client that is laid out differently would fill the image again."""
    assert size(pruned) < 5_000_000


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_client_in_the_image_does_all_that_its_tests_ask_for(pruned: Path) -> None:
    tests = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "tests/app/kube/test_client.py"]
    done = subprocess.run(
        [sys.executable, *tests], cwd=ROOT, env=environment_with(pruned), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.e2e
@pytest.mark.smoke
@pytest.mark.parametrize("package", ["app", "scheduler_core"])
def test_every_module_of_the_program_can_be_imported_in_the_image(pruned: Path, package: str) -> None:
    done = run_prune(pruned, package)
    assert done.stdout == "removed 0 modules of the Kubernetes client, 0 MB\n"


@pytest.mark.e2e
def test_the_program_starts_in_the_image(pruned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads what all commands declare; what a command imports once it is called is in the test of all modules."""
    for name, value in environment_with(pruned).items():
        monkeypatch.setenv(name, value)
    assert "Usage: longhorn-extender" in help_page("")


@pytest.mark.e2e
def test_a_client_in_use_elsewhere_is_not_touched(tmp_path: Path) -> None:
    """The folder of the client has to be named, so that a wrong call does not damage an environment."""
    done = run_prune(tmp_path, "scheduler_core")
    assert done.returncode == 1
    assert done.stderr == f"prune: the client in use is {CLIENT}, not the one of {tmp_path}\n"


@pytest.mark.e2e
def test_a_client_with_different_folders_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kubernetes").mkdir()
    (tmp_path / "kubernetes/__init__.py").touch()
    done = run_prune(tmp_path, "scheduler_core")
    assert done.returncode == 1
    assert "has no modules in client/api: the client has changed" in done.stderr


def test_labels_have_the_projects_values() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.([a-z.]+)="([^"]*)"', DOCKERFILE))
    project = PYPROJECT["project"]
    assert labels["title"] == project["name"] == NAME
    assert labels["version"] == project["version"]
    assert labels["licenses"] == project["license"]
    assert labels["description"] == project["description"]


def test_all_manifests_name_the_same_image() -> None:
    """It is the name that `docker build` and compose.yaml give it, so an image that was loaded into a node is found."""
    image = f"{NAME}:{PYPROJECT['project']['version']}"
    deployments = "\n".join(path.read_text() for path in (ROOT / "manifests").rglob("deployment.yaml"))
    names = set(re.findall(rf"image: (\S*{NAME}\S*)$", deployments, re.MULTILINE))
    kustomizations = [documents(path)[0] for path in (ROOT / "manifests").rglob("kustomization.yaml")]
    images = [entry for kustomization in kustomizations for entry in kustomization.get("images", [])]
    own = [entry for entry in images if NAME in entry["name"]]
    assert names == {NAME}
    assert {f"{entry['name']}:{entry['newTag']}" for entry in own} == {image}
    assert documents(ROOT / "compose.yaml")[0]["services"]["snapshot"]["image"] == image


def test_the_wheels_that_are_checked_are_those_of_the_images_python() -> None:
    """`make wheels`, the Dockerfile and the build without a container engine agree about Python's version."""
    version = re.search(r"PYTHON_IMAGE=\S+:(\d+\.\d+)", DOCKERFILE)
    assert version is not None
    assert f"--python-version {version[1]} " in (ROOT / ".ci/requirements/check-wheels").read_text()
    assert f"\nPYTHON={version[1]}\n" in (ROOT / ".ci/image/build").read_text()


SKOPEO = """#!/bin/sh
test "$1 $2" = "inspect --raw" && printf 'manifest of %s' "$3"
"""


def test_base_images_are_pinned_by_the_digest_of_their_manifest(tmp_path: Path) -> None:
    """An image's digest is the SHA-256 of its manifest; tags stay, for people."""
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    stand_in = tmp_path / "skopeo"
    stand_in.write_text(SKOPEO)
    stand_in.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    for _ in range(2):  # a second call replaces the digest
        subprocess.run(["sh", PIN, tmp_path / "Dockerfile"], env=environment, check=True)
    image = "docker.io/library/python:3.13-slim"
    manifest = f"manifest of docker://{image}"
    digest = subprocess.run(["sha256sum"], input=manifest, capture_output=True, text=True, check=True).stdout.split()[0]
    pinned = (tmp_path / "Dockerfile").read_text()
    assert f"\nARG PYTHON_IMAGE={image}@sha256:{digest}\n" in pinned
    assert len(re.findall(r"^ARG [A-Z]+_IMAGE=\S+@sha256:[0-9a-f]{64}$", pinned, re.MULTILINE)) == 3
