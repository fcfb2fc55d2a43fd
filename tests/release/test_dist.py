"""What `make dist` makes: the same bytes twice, with checksums and signatures that other programs verify, and everything in it runs."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from app.kube.resources import LONGHORN_NODES
from devcluster.build import KUBECTL, ensure_built, helm
from devcluster.chart import CHART
from devcluster.dev_cluster import DevCluster
from devcluster.programs import NAMESPACE, start_simulator
from devcluster.release import NAME, PLUGIN, ROOT, SUMS, VERSION
from tests.control_plane import ControlPlane
from tests.manifests.helm import RELEASE, Helm
from tests.manifests.load import parse

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
EXPLAIN = ("explain", "--snapshot", str(ROOT / "examples/mixed-cluster/snapshot.yaml"), "--pod", "shop/orders-0")
RESULT = "3 of 12 nodes fit\n"


def run(
    folder: Path, *command: str | Path, environment: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder; asserts that it succeeds."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def program(name: str) -> str:
    """Returns the path of a program of the environment or of the machine, or skips the test."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key to throw away, made by OpenSSL."""
    path = tmp_path_factory.mktemp("key") / "key.pem"
    run(path.parent, program("openssl"), "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
    return path


def make_dist(folder: Path, key: Path) -> str:
    """Makes a release without the image; returns what is printed."""
    if helm() is None:
        pytest.skip("helm is not built: make controlplane")
    options = ("--without-image", "--output", folder, "--signing-key", key, "--url", "https://example.com/here/")
    done = run(ROOT, sys.executable, "-m", "devcluster.release", *options)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    """A release, signed by the key."""
    folder = tmp_path_factory.mktemp("dist")
    said = make_dist(folder, key)
    assert key.read_text().splitlines()[1] not in said
    return folder


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[DevCluster]:
    """A node with a disk of simulated Longhorn."""
    with control_plane.borrow() as running:
        start_simulator(running)
        running.create_node("node-2", annotations={"simulator/disks": '[{"name": "disk-1", "size": "10Gi"}]'})
        nodes = LONGHORN_NODES.path(NAMESPACE)
        running.wait_until("Longhorn to have the node", lambda: bool(running.api.get(nodes)["items"]), 60)
        yield running


def test_checksums_and_signatures_hold(dist: Path, key: Path, tmp_path: Path) -> None:
    run(dist, "sha256sum", "--check", "--strict", "--quiet", SUMS)
    files = {path for path in dist.rglob("*") if path.is_file() and path.suffix != ".sig"}
    listed = {dist / line.split()[1] for line in (dist / SUMS).read_text().splitlines()}
    assert listed == files - {dist / SUMS}
    for path in files:
        assert key.read_bytes() not in path.read_bytes()
        assert path.parent != dist or is_signed(path, path.read_bytes(), tmp_path)
    assert not is_signed(dist / SUMS, b"other bytes", tmp_path)


def is_signed(file: Path, content: bytes, folder: Path) -> bool:
    """Whether OpenSSL finds that the signature of a file is one of this content."""
    openssl = program("openssl")
    (folder / "content").write_bytes(content)
    run(folder, openssl, "base64", "-d", "-in", f"{file}.sig", "-out", "signature")
    options = ("-sha256", "-verify", file.parent / f"{NAME}.pub", "-signature", "signature", "content")
    return run(folder, openssl, "dgst", *options, check=False).returncode == 0


def test_the_same_sources_make_the_same_bytes(dist: Path, key: Path, tmp_path: Path) -> None:
    make_dist(tmp_path, key)
    assert (tmp_path / SUMS).read_text().split() == (dist / SUMS).read_text().split()


@pytest.mark.parametrize("package", ["*.whl", "*_*_*.tar.gz"])
def test_a_package_runs_in_an_empty_environment(dist: Path, package: str, tmp_path: Path) -> None:
    (file,) = (path for path in dist.glob(package) if not path.name.startswith(PLUGIN))
    command = (program("uv"), "tool", "run", "--no-config", "--from", file, "longhorn-extender")
    assert run(tmp_path, *command, "--version").stdout == f"{VERSION}\n"
    assert run(tmp_path, *command, *EXPLAIN).stdout.endswith(RESULT)


def test_the_packaged_chart_is_the_chart(dist: Path, tmp_path: Path) -> None:
    helm = Helm(tmp_path)
    packaged = str(dist / f"{NAME}-{VERSION}.tgz")
    assert parse(helm.run("template", RELEASE, packaged)) == parse(helm.run("template", RELEASE, str(CHART)))
    assert helm.run("show", "readme", packaged).strip() == (CHART / "README.md").read_text().strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("krew")


@pytest.fixture(scope="module")
def kubectl(dist: Path, folder: Path) -> Callable[..., str]:
    """The real kubectl, which finds the plugin as krew installs it: an unpacked archive, and a link from a folder on PATH."""
    (manifest,) = parse((dist / "longhorn-extender.yaml").read_text())
    (platform,) = manifest["spec"]["platforms"]
    archive = dist / platform["uri"].removeprefix("https://example.com/here/")
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == platform["sha256"]
    assert manifest["spec"]["version"] == f"v{VERSION}"
    with tarfile.open(archive) as members:
        members.extractall(folder / "store", filter="data")
    (folder / "bin").mkdir()
    for name in (platform["bin"], PLUGIN.replace("kubectl", "kubectl_complete")):
        (folder / "bin" / name).symlink_to(folder / "store" / name)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    program = ensure_built() / KUBECTL

    def call(*arguments: str, kubeconfig: Path | str = "") -> str:
        environment = {"PATH": path, "KUBECONFIG": str(kubeconfig)}
        done = run(folder, program, *arguments, environment=environment)
        return done.stderr * (arguments[0] != "__complete") + done.stdout

    # Completion alone installs nothing.
    assert "waiting" not in call("__complete", "longhorn-extender", "wai")
    first = call("longhorn-extender", "--version")
    assert first == f"kubectl longhorn-extender: installing its packages into {folder / 'store'}, once\n{VERSION}\n"
    return call


def test_the_plugin_runs_as_krew_installs_it(kubectl: Callable[..., str]) -> None:
    assert kubectl("longhorn-extender", *EXPLAIN).endswith(RESULT)
    assert kubectl("__complete", "longhorn-extender", "wai").startswith("waiting\t")


def test_another_wheel_gets_an_environment_of_its_own(kubectl: Callable[..., str], folder: Path) -> None:
    """Without the mark of the wheel that it was made from, an environment is that of another one, and goes."""
    (former,) = (folder / "store").glob("environment.*")
    assert former.stat().st_mode & 0o755 == 0o755
    (mark,) = former.glob("*.whl")
    mark.unlink()
    assert kubectl("longhorn-extender", "--version").endswith(f", once\n{VERSION}\n")
    assert former not in (folder / "store").glob("environment.*")


def test_the_plugin_reads_the_cluster_that_kubectl_talks_to(kubectl: Callable[..., str], cluster: DevCluster) -> None:
    assert "node-2" in kubectl("longhorn-extender", "top", kubeconfig=cluster.kubeconfig)


def test_man_pages_have_no_errors(dist: Path) -> None:
    groff = program("groff")
    pages = sorted((dist / "man").iterdir())
    assert {"longhorn-extender.1", "longhorn-extender-policy-check.1", "longhorn-extender-serve.1"} <= {
        page.name for page in pages
    }
    for page in pages:
        assert run(dist, groff, "-man", "-Tutf8", "-ww", "-z", page).stderr == ""
    shown = run(dist, groff, "-man", "-Tascii", "-P-cbou", "man/longhorn-extender-explain.1").stdout
    assert "longhorn-extender explain [OPTIONS] [POD]" in shown
    assert "--all-nodes" in shown
