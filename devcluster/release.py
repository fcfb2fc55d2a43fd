"""``python -m devcluster.release``: makes everything that a release consists of, in one folder.

Wheel and sdist, chart, kubectl's plugin with its manifest for krew, man pages and the SBOM are the same bytes for the same sources: all
times in them are $SOURCE_DATE_EPOCH. The image is not, because Debian's packages change. Checksums and signatures come last.

A signature is that of `cosign sign-blob --key`: ECDSA P-256 with SHA-256, in base64. OpenSSL verifies it, too.
"""

import base64
import gzip
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from devcluster.build import ensure_helm_built
from devcluster.chart import CHART
from devcluster.errors import BuildError, ConfigError, DevClusterError
from devcluster.man_pages import pages

ROOT = Path(__file__).parents[1]
NAME = "longhorn-scheduler-extender"
PLUGIN = "kubectl-longhorn_extender"
SUMS = "SHA256SUMS"
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
_LOCK = ROOT / ".ci/requirements/runtime.lock"
_PLUGIN_FILES = ROOT / ".ci/plugin"
_EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "1580601600"))  # hatchling's own default
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_CANNOT_RUN = 75
_PASSWORD = "SIGNING_KEY_PASSWORD"  # noqa: S105 # the variable's name


class _Release:
    """The files made so far, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []
        self._started = time.monotonic()

    def step(self, text: str) -> None:
        typer.echo(f"{time.monotonic() - self._started:6.1f} s  {text}", err=True)

    def add(self, *names: str) -> None:
        self.files += [self.folder / name for name in names]

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.add(name)


def make(folder: Path, url: str, key: ec.EllipticCurvePrivateKey | None, *, with_image: bool) -> None:
    """Makes a release.

    Args:
        folder: where; files of the same names are overwritten
        url: where users will find the files
        key: signs them; None: there are no signatures
        with_image: whether the image is built, if that can be done here
    """
    release = _Release(folder)
    folder.mkdir(parents=True, exist_ok=True)
    release.step("wheel and sdist")
    _run([sys.executable, "-m", "hatchling", "build", "-d", str(folder.absolute())])
    distribution = f"{NAME.replace('-', '_')}-{VERSION}"
    wheel = f"{distribution}-py3-none-any.whl"
    release.add(wheel, f"{distribution}.tar.gz")
    release.step("locked packages and SBOM")
    release.write(f"{NAME}-{VERSION}.lock", _LOCK.read_bytes())
    _write_sbom(release)
    release.step("chart")
    _package_chart(release)
    release.step("kubectl's plugin and man pages")
    _package_plugin(release, wheel, url)
    for name, text in pages(VERSION):
        release.write(f"man/{name}", text.encode())
    if with_image:
        release.step("image: about two minutes")
        _build_image(release)
    release.step("checksums" if key is None else "checksums and signatures")
    _finish(release, key)
    release.step(f"{len(release.files)} files in {folder}")


def _run(command: Sequence[str], *, cwd: Path = ROOT) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout).strip()}")


def _write_sbom(release: _Release) -> None:
    program = str(Path(sys.executable).with_name("cyclonedx-py"))
    name = f"{NAME}-{VERSION}.cdx.json"
    options = [
        "--pyproject",
        "pyproject.toml",
        "--output-reproducible",
        "--output-file",
        str(release.folder.absolute() / name),
    ]
    _run([program, "requirements", str(_LOCK), *options])
    release.add(name)


def _package_chart(release: _Release) -> None:
    """Helm keeps the files' times, which are those of the checkout, so it packages a copy."""
    helm = ensure_helm_built(report=release.step)
    with tempfile.TemporaryDirectory() as temporary:
        chart = Path(shutil.copytree(CHART, Path(temporary) / NAME))
        for path in chart.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
            os.utime(path, (_EPOCH, _EPOCH))
        _run([str(helm), "package", str(chart), "--destination", str(release.folder.absolute())])
    release.add(f"{NAME}-{VERSION}.tgz")


def _package_plugin(release: _Release, wheel: str, url: str) -> None:
    """Krew unpacks files and folders, but no links, so the launcher is there twice."""
    launcher = (_PLUGIN_FILES / "launcher").read_bytes()
    members = {
        PLUGIN: launcher,
        PLUGIN.replace("kubectl", "kubectl_complete"): launcher,
        wheel: (release.folder / wheel).read_bytes(),
        "requirements.lock": _LOCK.read_bytes(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    archive = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=archive, mtime=_EPOCH) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mtime = _EPOCH
            member.mode = 0o755 if content is launcher else 0o644
            tar.addfile(member, io.BytesIO(content))
    release.write(f"{PLUGIN}-{VERSION}.tar.gz", archive.getvalue())
    manifest = (_PLUGIN_FILES / "longhorn-extender.yaml").read_text().partition("\n")[2]
    digest = hashlib.sha256(archive.getvalue()).hexdigest()
    for name, value in {"@VERSION@": VERSION, "@URL@": url, "@SHA256@": digest}.items():
        manifest = manifest.replace(name, value)
    release.write("longhorn-extender.yaml", manifest.encode())


def _build_image(release: _Release) -> None:
    name = f"{NAME}-{VERSION}-image-{_MACHINES.get(platform.machine(), platform.machine())}"
    done = subprocess.run([ROOT / ".ci/image/build", release.folder.absolute() / name], check=False)  # noqa: S603
    if done.returncode == _CANNOT_RUN:
        release.step("image: not made, because it cannot be built here (see above)")
    elif done.returncode:
        raise BuildError("the image cannot be built; --without-image leaves it out")
    else:
        release.add(f"{name}.tar.gz", f"{name}.cdx.json")


def _finish(release: _Release, key: ec.EllipticCurvePrivateKey | None) -> None:
    if key is not None:
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        release.write(f"{NAME}.pub", public)
    names = sorted(str(path.relative_to(release.folder)) for path in release.files)
    sums = [f"{hashlib.sha256((release.folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    release.write(SUMS, "".join(sums).encode())
    for path in list(release.files):
        signature = path.with_name(f"{path.name}.sig")
        # One of an earlier run would not fit.
        signature.unlink(missing_ok=True)
        # The sums cover the man pages.
        if key is not None and path.parent == release.folder:
            signed = key.sign(path.read_bytes(), ec.ECDSA(hashes.SHA256()))
            release.write(signature.name, base64.b64encode(signed) + b"\n")


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Returns a signing key; $SIGNING_KEY_PASSWORD decrypts it."""
    # No program that is run later sees it.
    password = os.environ.pop(_PASSWORD, None)
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password.encode() if password else None)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (TypeError, ValueError):
        # The library's text may quote the file.
        raise ConfigError(f"{path}: no private key in PEM, or {_PASSWORD} does not decrypt it") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(
            f"{path}: not an ECDSA key of P-256; openssl ecparam -name prime256v1 -genkey -noout makes one"
        )
    return key


def main(
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the files go.")] = Path("dist"),
    signing_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"ECDSA P-256 key in PEM that signs the files, man pages by their sums; ${_PASSWORD} decrypts it.",
            show_default="nothing is signed",
        ),
    ] = None,
    url: Annotated[
        str, typer.Option(help="Where users will find the files; krew's manifest has it.")
    ] = f"https://example.com/v{VERSION}",
    without_image: Annotated[  # noqa: FBT002 # an option
        bool, typer.Option("--without-image", help="Leave out the image, which takes about two minutes.")
    ] = False,
) -> None:
    """Make what a release consists of: packages, chart, plugin, man pages, image, SBOMs, checksums and signatures."""
    try:
        key = None if signing_key is None else read_key(signing_key)
        make(output, url.rstrip("/"), key, with_image=not without_image)
    except DevClusterError as error:
        typer.echo(f"release: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None


if __name__ == "__main__":
    cli = typer.Typer(
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    cli.command()(main)
    cli()
