"""`longhorn-extender scheduler-config`: the file that registers the extender with kube-scheduler. The file goes to
standard output, and what to do with it to standard error, so that `> FILE` writes a valid file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from app.cli.options import ContextOption, KubeconfigOption, LonghornNamespaceOption
from app.cli.terminal import print_line, print_result, warn, yaml_text
from app.settings import DEFAULT_NAMESPACE
from scheduler_core.errors import CoreError
from scheduler_core.installation.registration import (
    REGISTERED,
    Platform,
    Registration,
    SchedulerFlags,
    SentPods,
    certificate_steps,
    configuration,
    configuration_path,
    default_kubeconfig,
    printed_configuration,
    steps,
)
from scheduler_core.leadership.endpoint_slice import EXTENDER

_NO_CLUSTER_IP: Final = frozenset({"", "None"})


def scheduler_config(
    platform: Annotated[Platform, typer.Option("--platform", help="Where kube-scheduler runs.")],
    pods: Annotated[
        SentPods,
        typer.Option(
            "--pods",
            help="Which pods are sent: those that request longhorn.io/scheduler-extender, or all. With all, no pod of the "
            "cluster is scheduled while no extender answers. A second scheduler sends all of its own.",
        ),
    ] = SentPods.REQUESTING,
    scores: Annotated[  # noqa: FBT002 # --scores
        bool, typer.Option("--scores", help="Also ask for scores of the nodes that fit.")
    ] = False,
    url_prefix: Annotated[
        str,
        typer.Option(
            "--url-prefix", metavar="URL", help="Where kube-scheduler calls the extender; then no cluster is read."
        ),
    ] = "",
    tls: Annotated[  # noqa: FBT002 # --tls
        bool,
        typer.Option(
            "--tls",
            help="kube-scheduler calls by TLS, with a certificate; default: if --url-prefix begins with https, or the Service's "
            "port has that name.",
        ),
    ] = False,
    kubeconfig_path: Annotated[
        str,
        typer.Option(
            "--scheduler-kubeconfig",
            metavar="PATH",
            help="kube-scheduler's own kubeconfig, on its node; default: as its static pod names it, else the platform's.",
        ),
    ] = "",
    merge: Annotated[
        Path | None,
        typer.Option(
            "--merge",
            metavar="FILE",
            help="Print this KubeSchedulerConfiguration with the extender in it. Its other lines and comments stay.",
        ),
    ] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Print the file that registers the extender with kube-scheduler.

    The Service's address and the path of kube-scheduler's kubeconfig are read from the cluster. What to do with the file
    goes to standard error.

    Exit code 0: printed. 2: bad input, no cluster, no Service, or a file that cannot be merged.
    """
    _check(platform, url_prefix, merge, tls=tls)
    scheme = "https" if tls else "http"
    flags = SchedulerFlags()
    version = ""
    if platform is Platform.SECOND_SCHEDULER:
        # Its pods use the cluster's DNS.
        url_prefix = url_prefix or f"{scheme}://{EXTENDER.name}.{longhorn_namespace}.svc:{EXTENDER.port}"
    elif not url_prefix:
        url_prefix, flags, version = asyncio.run(_read(kubeconfig, context, longhorn_namespace))
        url_prefix = url_prefix if url_prefix.startswith("https:") else f"{scheme}{url_prefix.removeprefix('http')}"
    registration = Registration(
        platform,
        url_prefix.rstrip("/"),
        kubeconfig_path or flags.kubeconfig or default_kubeconfig(platform),
        pods,
        longhorn_namespace,
        scores,
    )
    print_result(_text(registration) if merge is None else _merge(merge, registration))
    if merge is None and platform in REGISTERED and flags.config not in ("", configuration_path(platform)):
        warn(f"kube-scheduler already reads {flags.config}: copy it here, and print it with --merge {flags.config}")
    for line in (*certificate_steps(registration), *steps(platform, pods, version)):
        print_line(line, err=True)


def _check(platform: Platform, url_prefix: str, merge: Path | None, *, tls: bool) -> None:
    """Raises a CoreError if the options do not go together."""
    if platform is Platform.TALOS and merge is not None:
        raise CoreError(
            "--merge: Talos keeps the configuration in its machine configuration; see docs/platforms/talos.md"
        )
    if url_prefix and not _is_http(url_prefix):
        raise CoreError(f"--url-prefix {url_prefix}: expected http://HOST:PORT")
    if tls and url_prefix.startswith("http://"):
        raise CoreError(f"--url-prefix {url_prefix}: with --tls it begins with https://")


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False


def _text(registration: Registration) -> str:
    import yaml

    if registration.platform is Platform.TALOS and registration.tls:
        raise CoreError(
            "--platform talos with TLS: write caData, certData and keyData of tlsConfig by hand (docs/platforms/talos.md)"
        )
    path = configuration_path(registration.platform)
    head = f"# {path} on every control-plane node. kube-scheduler reads it at its start only.\n" if path else ""
    return head + yaml_text(yaml.safe_dump, printed_configuration(registration))


def _merge(file: Path, registration: Registration) -> str:
    from app.cli.scheduler_config_merge import merge_configuration

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CoreError(f"--merge {file}: {getattr(error, 'strerror', None) or 'is not UTF-8'}") from error
    return merge_configuration(f"--merge {file}", text, configuration(registration))


async def _read(kubeconfig: str | None, context: str | None, namespace: str) -> tuple[str, SchedulerFlags, str]:
    """Returns the extender's address, the flags of kube-scheduler, and Kubernetes' version."""
    from app.extender.scheduler_reader import (
        read_loopback_port,
        read_scheduler_flags,
        read_service,
        read_version,
    )
    from app.kube.client import KubeClient

    client = await KubeClient.connect(kubeconfig, context)
    try:
        address = await read_service(client, namespace)
        if address is None or address.cluster_ip in _NO_CLUSTER_IP:
            raise CoreError(
                f"there is no Service {EXTENDER.name} with an address in {namespace}: install the extender first, or give "
                "--url-prefix"
            )
        host = f"[{address.cluster_ip}]" if ":" in address.cluster_ip else address.cluster_ip
        port = address.port or EXTENDER.port
        loopback_port = await read_loopback_port(client, namespace)
        if loopback_port is not None:
            # No process listens behind the Service.
            host = "127.0.0.1"
            port = loopback_port
        return (
            f"{'https' if address.tls else 'http'}://{host}:{port}",
            await read_scheduler_flags(client),
            await read_version(client),
        )
    finally:
        await client.close()
