"""`longhorn-extender decisions`: what the leader decided lately.

Data flow: the leader's `/decisions`, through the API server or at a URL → as it came, or as a table.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
import typer

from app.cli.options import ContextOption, KubeconfigOption, LeaderUrlOption, LonghornNamespaceOption, check_url
from app.cli.render import Cell, ListOutput, Refreshing, Table, shorten, show
from app.cli.subjects import POD_PREFIXES
from app.settings import DEFAULT_NAMESPACE
from scheduler_core.decide.decision import MAX_DECISIONS, DecisionOutcome
from scheduler_core.errors import CoreError

if TYPE_CHECKING:
    from app.cli.console import EscapingConsole
    from app.extender.process_call import CallerFiles

_KIND: Final = "DecisionList"
_DEFAULT_LIMIT: Final = 50
_MAX_NODES: Final = 3
_STYLES: Final = {"fits": "green", "refused": "red", "error": "red"}


@dataclass(frozen=True, slots=True)
class Leader:
    """How the leader is called. The files are named as the keys of `tlsConfig` in the file that registers the extender."""

    url: LeaderUrlOption = ""
    ca_file: Annotated[
        str,
        typer.Option(
            "--ca-file",
            metavar="FILE",
            help="Authorities of the extender's TLS certificate, with an https --url; default: the system's.",
        ),
    ] = ""
    cert_file: Annotated[
        str, typer.Option("--cert-file", metavar="FILE", help="Certificate to show to an extender with TLS.")
    ] = ""
    key_file: Annotated[str, typer.Option("--key-file", metavar="FILE", help="Private key of --cert-file.")] = ""
    server_name: Annotated[
        str,
        typer.Option(
            "--server-name",
            metavar="NAME",
            help="Name in the extender's TLS certificate, such as longhorn-scheduler-extender.longhorn-system.svc; default: the host "
            "of --url.",
        ),
    ] = ""

    def files(self) -> CallerFiles:
        """Returns the files for a call of an extender with TLS.

        Raises:
            CoreError: a file or name is given and the URL has no TLS, or a certificate has no key
        """
        from app.extender.process_call import CallerFiles

        files = CallerFiles(self.ca_file, self.cert_file, self.key_file, self.server_name)
        if files != CallerFiles() and not self.url.startswith("https://"):
            raise CoreError("--ca-file, --cert-file, --key-file and --server-name need --url https://HOST:PORT")
        if bool(self.cert_file) != bool(self.key_file):
            raise CoreError("--cert-file and --key-file go together")
        return files


class DecisionEntry(msgspec.Struct):
    """A decision of the answer, as far as the table shows it."""

    time: str = ""
    verb: str = ""
    pod: str = ""
    outcome: str = ""
    observed: bool = False
    nodes: int = 0
    fits: int = 0
    offered: tuple[str, ...] = ()
    refused: dict[str, int] = {}
    error: str = ""
    milliseconds: float = 0.0


class DecisionEntries(msgspec.Struct, rename="camel"):
    """The answer, as far as the table shows it."""

    kind: str
    recorded: int
    items: tuple[DecisionEntry, ...]
    next_before: int | None = None


def decisions(
    *,
    pod: Annotated[
        str | None, typer.Argument(metavar="POD", help="NAME, NAMESPACE/NAME or pod/NAME. Without it: all pods.")
    ] = None,
    outcome: Annotated[DecisionOutcome | None, typer.Option("--outcome", help="Only decisions that ended so.")] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", metavar="N", min=1, max=MAX_DECISIONS, help="The most decisions, the latest first."),
    ] = _DEFAULT_LIMIT,
    refreshing: Refreshing,
    leader: Leader,
    output: Annotated[
        ListOutput, typer.Option("--output", "-o", help="How to print; name prints the pods.")
    ] = ListOutput.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the pods; default: all.")
    ] = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Show what the extender decided lately.

    It shows which nodes it offered to which pod, and why it refused the others. The leader keeps its latest 1,000
    decisions of /filter and /preempt. They are read through the API server, as by doctor, or at --url. An extender with
    TLS needs --url, --ca-file, --cert-file and --key-file: docs/tls.md.

    Exit code 0: printed. 2: bad input, or no leader.
    """
    check_url(leader.url)
    files = leader.files()
    query = _query(pod, namespace, outcome, limit)

    def read() -> dict[str, Any]:
        if leader.url:
            return asyncio.run(_read_directly(query, leader.url, files))
        return asyncio.run(_read(query, kubeconfig, context, longhorn_namespace))

    if refreshing.watch:
        refreshing.run(lambda: _table(_entries(read())), output)
        return
    data = read()
    entries = _entries(data)
    show(data, output, _table(entries), (f"pod/{entry.pod.partition('/')[2]}" for entry in entries.items))


def _query(pod: str | None, namespace: str | None, outcome: DecisionOutcome | None, limit: int) -> str:
    """Returns the parameters of the request, or raises a CoreError if the pod's name contradicts the namespace."""
    prefix, slash, name = (pod or "").partition("/")
    if pod is not None and (not pod or (slash and not (prefix and name))):
        raise CoreError(f"'{pod}': the name of a pod is missing; see --help")
    if slash and prefix.lower() not in POD_PREFIXES:
        if namespace not in (None, prefix):
            raise CoreError(f"{pod}: contradicts --namespace {namespace}")
        namespace = prefix
    parameters = {
        "limit": str(limit),
        "namespace": namespace,
        "pod": (name or prefix) or None,
        "outcome": outcome.value if outcome is not None else None,
    }
    return urlencode({key: value for key, value in parameters.items() if value is not None})


async def _read_directly(query: str, url: str, files: CallerFiles) -> dict[str, Any]:
    """Returns the answer of a process at a URL, or raises a CoreError if it is none of the extender's."""
    from app.extender.process_call import direct_call

    return _decode(await direct_call(url, files)(f"decisions?{query}"))


async def _read(query: str, kubeconfig: str | None, context: str | None, namespace: str) -> dict[str, Any]:
    """Returns the leader's answer through the API server, or raises a CoreError without a leader."""
    from app.extender.process_call import leader_call
    from app.kube.client import KubeClient

    client = await KubeClient.connect(kubeconfig, context)
    try:
        return _decode(await (await leader_call(client, namespace))(f"decisions?{query}"))
    finally:
        await client.close()


def _decode(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except ValueError as error:
        raise CoreError(f"the answer is not the extender's: {error}") from error
    if not isinstance(data, dict) or data.get("kind") != _KIND:
        raise CoreError("the answer is not the extender's: it is no DecisionList")
    return data


def _entries(data: dict[str, Any]) -> DecisionEntries:
    try:
        return msgspec.convert(data, type=DecisionEntries)
    except msgspec.ValidationError as error:
        raise CoreError(f"the answer is not the extender's: {error}") from error


def _table(answer: DecisionEntries) -> Table:
    return lambda console: _print(answer, console)


def _print(answer: DecisionEntries, console: EscapingConsole) -> None:
    if not answer.items:
        recorded = f"none of the leader's {answer.recorded} decisions is selected"
        console.write(recorded if answer.recorded else "nothing is decided yet")
        return
    headers = ("TIME", "POD", "VERB", "RESULT", "FITS", "OFFERED, OR WHY NOT", "MS")
    console.print(console.table_of(headers, map(_cells, answer.items)))
    if answer.next_before is not None:
        console.print()
        console.write("there are older decisions; see --limit")


def _cells(entry: DecisionEntry) -> list[Cell]:
    result = f"{entry.outcome} (observed)" if entry.observed else entry.outcome
    return [
        f"{entry.time.partition('.')[0].removesuffix('Z')}Z",
        entry.pod,
        entry.verb,
        (result, _STYLES.get(entry.outcome, "")),
        f"{entry.fits} of {entry.nodes}",
        _detail(entry),
        f"{entry.milliseconds:.1f}",
    ]


def _detail(entry: DecisionEntry) -> str:
    """The offered nodes; without any, why the others are refused."""
    if entry.error:
        return entry.error
    if not entry.fits:
        return "; ".join(f"{reason} ({count})" for reason, count in entry.refused.items())
    return shorten(entry.offered, _MAX_NODES, total=entry.fits)
