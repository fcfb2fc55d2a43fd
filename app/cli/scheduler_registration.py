"""`longhorn-extender scheduler-config`: the file that registers the extender with kube-scheduler. The file goes to
standard output, and what to do with it to standard error, so that `> FILE` writes a valid file.

`--merge` writes the extender's entries and `percentageOfNodesToScore` into a file; every other line stays as it is, with
its comments. What the edited text says is compared with what it should say, so that a text that is read otherwise is
never printed.

Data flow: the Service, kube-scheduler's flags and the options → a registration → its file; with `--merge`: text → its
nodes with their places → pieces of text to replace → the text, checked.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
import yaml

from app.cli.options import ContextOption, KubeconfigOption, LonghornNamespaceOption
from app.cli.render import print_line, print_result, warn, yaml_text
from app.settings import DEFAULT_NAMESPACE
from scheduler_core.errors import CoreError
from scheduler_core.installation import kube_scheduler_config
from scheduler_core.leadership.endpoint_slice import EXTENDER
from scheduler_core.model.constraints import EXTENDER_RESOURCE

_EXTENDERS = "extenders"
_PERCENTAGE = "percentageOfNodesToScore"
_NO_CLUSTER_IP = frozenset({"", "None"})


def scheduler_config(
    platform: Annotated[kube_scheduler_config.Platform, typer.Option(help="Where kube-scheduler runs.")],
    pods: Annotated[
        kube_scheduler_config.SentPods,
        typer.Option(
            help="Which pods are sent: those that request longhorn.io/scheduler-extender, or all. With all, no pod of the "
            "cluster is scheduled while no extender answers. A second scheduler sends all of its own."
        ),
    ] = kube_scheduler_config.SentPods.REQUESTING,
    scores: Annotated[  # noqa: FBT002 # --scores
        bool, typer.Option("--scores", help="Also ask for scores of the nodes that fit.")
    ] = False,
    url_prefix: Annotated[
        str, typer.Option(metavar="URL", help="Where kube-scheduler calls the extender; then no cluster is read.")
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
    flags = kube_scheduler_config.SchedulerFlags()
    version = ""
    if platform is kube_scheduler_config.Platform.SECOND_SCHEDULER:
        # Its pods use the cluster's DNS.
        url_prefix = url_prefix or f"{scheme}://{EXTENDER.name}.{longhorn_namespace}.svc:{EXTENDER.port}"
    elif not url_prefix:
        url_prefix, flags, version = asyncio.run(_read(kubeconfig, context, longhorn_namespace))
        url_prefix = url_prefix if url_prefix.startswith("https:") else f"{scheme}{url_prefix.removeprefix('http')}"
    registration = kube_scheduler_config.Registration(
        platform,
        url_prefix.rstrip("/"),
        kubeconfig_path or flags.kubeconfig or kube_scheduler_config.DEFAULT_KUBECONFIGS.get(platform, ""),
        pods,
        longhorn_namespace,
        scores,
    )
    print_result(_text(registration) if merge is None else _merge(merge, registration))
    if (
        merge is None
        and platform in kube_scheduler_config.REGISTERED
        and flags.config not in ("", kube_scheduler_config.configuration_path(platform))
    ):
        warn(f"kube-scheduler already reads {flags.config}: copy it here, and print it with --merge {flags.config}")
    for line in (
        *kube_scheduler_config.certificate_steps(registration),
        *kube_scheduler_config.steps(platform, pods, version),
    ):
        print_line(line, err=True)


def _check(platform: kube_scheduler_config.Platform, url_prefix: str, merge: Path | None, *, tls: bool) -> None:
    if platform is kube_scheduler_config.Platform.TALOS and merge is not None:
        raise CoreError(
            "--merge: Talos keeps the configuration in its machine configuration; see docs/platforms/talos.md"
        )
    try:
        parts = urlsplit(url_prefix)
        complete = parts.scheme in {"http", "https"} and parts.hostname and parts.port is not None
    except ValueError:
        complete = False
    if url_prefix and not complete:
        raise CoreError(f"--url-prefix {url_prefix}: expected http://HOST:PORT")
    if tls and url_prefix.startswith("http://"):
        raise CoreError(f"--url-prefix {url_prefix}: with --tls it begins with https://")


def _text(registration: kube_scheduler_config.Registration) -> str:
    if registration.platform is kube_scheduler_config.Platform.TALOS and registration.tls:
        raise CoreError(
            "--platform talos with TLS: write caData, certData and keyData of tlsConfig by hand (docs/platforms/talos.md)"
        )
    path = kube_scheduler_config.configuration_path(registration.platform)
    head = f"# {path} on every control-plane node. kube-scheduler reads it at its start only.\n" if path else ""
    return head + yaml_text(yaml.safe_dump, kube_scheduler_config.printed_configuration(registration))


def _merge(file: Path, registration: kube_scheduler_config.Registration) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CoreError(f"--merge {file}: {getattr(error, 'strerror', None) or 'is not UTF-8'}") from error
    return merge_configuration(f"--merge {file}", text, kube_scheduler_config.configuration(registration))


async def _read(
    kubeconfig: str | None, context: str | None, namespace: str
) -> tuple[str, kube_scheduler_config.SchedulerFlags, str]:
    from app.extender.process_calls import read_loopback_port, read_scheduler_flags, read_service, read_version
    from app.kube.client import KubeClient

    async with await KubeClient.connect(kubeconfig, context) as client:
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
        url = f"{'https' if address.tls else 'http'}://{host}:{port}"
        return url, await read_scheduler_flags(client), await read_version(client)


# A piece of the text, by its start and its end, with what replaces it.
_Edit = tuple[int, int, str]


def merge_configuration(name: str, text: str, wanted: Mapping[str, Any]) -> str:
    """Returns the text with the entries of `wanted`; one that has them stays as it is. `name` is that of the text's
    file. Raises a CoreError if the text is no KubeSchedulerConfiguration, or cannot be merged.
    """
    text = text if text.endswith("\n") else f"{text}\n"
    root, data = _read_file(name, text)
    for problem in _problems(data, wanted):
        raise CoreError(f"{name}: {problem}")
    entries = data.get(_EXTENDERS) or []
    own = [index for index, entry in enumerate(entries) if _is_own(entry, wanted)]
    place = own[0] if own else len(entries)
    others = [entry for index, entry in enumerate(entries) if index not in own]
    merged_entries = [*others[:place], *wanted[_EXTENDERS], *others[place:]]
    expected = {**data, _PERCENTAGE: wanted[_PERCENTAGE], _EXTENDERS: merged_entries}
    nodes = {key.value: value for key, value in root.value}
    edits: list[_Edit] = []
    if data.get(_PERCENTAGE) != wanted[_PERCENTAGE]:
        percentage = f"{_PERCENTAGE}: {wanted[_PERCENTAGE]}\n"
        node = nodes.get(_PERCENTAGE)
        if node is None:
            edits.append((_line_end(text, root), _line_end(text, root), percentage))
        else:
            space = "" if text[node.start_mark.index - 1 : node.start_mark.index].isspace() else " "
            edits.append((node.start_mark.index, node.end_mark.index, f"{space}{wanted[_PERCENTAGE]}"))
    if merged_entries != entries:
        edits.append(_extenders_edit(text, root, nodes.get(_EXTENDERS), entries, wanted))
    merged = text
    for start, end, piece in sorted(edits, reverse=True):
        merged = merged[:start] + piece + merged[end:]
    if _load(merged) != expected:
        raise CoreError(
            f"{name}: cannot be merged as it is written; its {_EXTENDERS} must be a list of blocks, this one's next to each other"
        )
    return merged


def _read_file(name: str, text: str) -> tuple[yaml.MappingNode, dict[str, Any]]:
    try:
        documents = list(yaml.compose_all(text, yaml.SafeLoader))
        data = _load(text) if len(documents) == 1 else None
    except yaml.YAMLError as error:
        raise CoreError(f"{name}: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or data.get("kind") != "KubeSchedulerConfiguration":
        raise CoreError(f"{name}: expected one KubeSchedulerConfiguration")
    root = documents[0]
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        raise CoreError(f"{name}: is written in braces; write it as a block, one key per line")
    return root, data


def _load(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _problems(data: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Returns what no edit of the extenders mends."""
    problems = []
    if data.get("apiVersion") != wanted["apiVersion"]:
        problems.append(f"apiVersion is {data.get('apiVersion')}, expected {wanted['apiVersion']}")
    entries = data.get(_EXTENDERS) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        problems.append(f"{_EXTENDERS} is no list of extenders")
    profiles = data.get("profiles")
    for index, profile in enumerate(profiles if isinstance(profiles, list) else ()):
        own = profile.get(_PERCENTAGE) if isinstance(profile, dict) else None
        if own not in (None, wanted[_PERCENTAGE]):
            problems.append(f"profiles[{index}].{_PERCENTAGE} is {own}, which hides nodes from the extender: remove it")
    return problems


def _is_own(entry: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether an entry is the extender's: by its address, or by the resource that it manages."""
    managed = entry.get("managedResources")
    names = [each.get("name") for each in managed or () if isinstance(each, dict)] if isinstance(managed, list) else []
    addresses = {each["urlPrefix"] for each in wanted[_EXTENDERS]}
    return EXTENDER_RESOURCE in names or entry.get("urlPrefix") in addresses


def _extenders_edit(
    text: str, root: yaml.Node, node: yaml.Node | None, entries: Sequence[dict[str, Any]], wanted: Mapping[str, Any]
) -> _Edit:
    written = yaml.safe_dump(wanted[_EXTENDERS], sort_keys=False, allow_unicode=True)
    if node is None:
        end = _line_end(text, root)
        return end, end, f"{_EXTENDERS}:\n{written}"
    if not entries:
        # An empty list, or no value: what is behind it on its line stays.
        end = _line_end(text, node)
        return node.start_mark.index, end, f"{text[node.end_mark.index : end].rstrip()}\n{written}"
    lines = "".join(f"{' ' * node.start_mark.column}{line}\n" for line in written.splitlines())
    own = [child for child, entry in zip(node.value, entries, strict=True) if _is_own(entry, wanted)]
    if not own:
        end = _line_end(text, node)
        return end, end, lines
    # Entries of the extender that are not one after the other are refused by the comparison.
    return text.rfind("\n", 0, own[0].start_mark.index) + 1, _line_end(text, own[-1]), lines


def _line_end(text: str, node: yaml.Node) -> int:
    """Returns where the last line of a node ends; comments behind a block do not belong to it."""
    while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    # A block of text ends at the beginning of the next line.
    if node.end_mark.index and text[node.end_mark.index - 1] == "\n" and node.start_mark.index != node.end_mark.index:
        return int(node.end_mark.index)
    end = text.find("\n", node.end_mark.index)
    return len(text) if end < 0 else end + 1
