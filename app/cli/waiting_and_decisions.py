"""`longhorn-extender waiting`: pods that wait for a node, and why; `longhorn-extender decisions`: what the leader decided lately.

Data flow of `waiting`, for which no extender needs to run: a cluster or a snapshot file → kube-scheduler's own filters, then the decision of
`/filter`, for each waiting pod → rows. Of `decisions`: the leader's `/decisions`, through the API server or at a URL → as it came, or as a table.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode

import msgspec
import typer

from app.cli import options as flags
from app.cli.cluster_source import POD_PREFIXES, ClusterSource, ExplainedPod, Query, Rules
from app.cli.render import Cell, Console, ListOutput, Refreshing, document, shorten, show_progress
from app.settings import DEFAULT_NAMESPACE
from scheduler_core import errors
from scheduler_core.cluster.view import View
from scheduler_core.decide.decision import MAX_DECISIONS, Competing, DecisionOutcome, FilterOptions
from scheduler_core.decide.kube_scheduler_filters import kube_scheduler_refusals, pod_claims
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.longhorn.cluster import parse_time
from scheduler_core.model import quantity
from scheduler_core.monitor.report import NearestNode, WaitingRow, candidate_nodes, waiting_pods, waiting_row
from scheduler_core.structs import Struct

if TYPE_CHECKING:
    from app.schemas.remedies_answer import RemedyAnswer


SOME_WAIT = 1
_DEFAULT_REMEDIES = 10
_MAX_REASONS = 2


def waiting(
    *,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="The most pods; default: all.")] = None,
    remedies: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="For how many pods that fit nowhere, the oldest first, the cheapest remedy is sought.",
        ),
    ] = _DEFAULT_REMEDIES,
    refreshing: Refreshing,
    output: Annotated[
        ListOutput, typer.Option("--output", "-o", help="How to print; name prints the pods.")
    ] = ListOutput.TABLE,
    rules: Rules,
    query: Query,
    namespace: Annotated[str | None, flags.namespace_option("Namespace of the pods; default: all.")] = None,
) -> None:
    """Show the pods with claims that wait for a node.

    It shows since when and why they wait, the closest node and the cheapest remedy. Each pod is decided about as by
    explain: kube-scheduler's filters, then Longhorn's disks, with the space that other pods' volumes will take. No
    extender needs to run.

    Exit code 0: no pod waits. 1: some pod waits. 2: bad input, or no cluster.
    """
    query.check_standard_input(repeats=refreshing.watch)

    def read() -> dict[str, Any]:
        source = query.read()
        state = ClusterState.of(View.of(source.snapshot, flags.now()))
        pods = [pod for pod in waiting_pods(state.view) if namespace in (None, pod.namespace)]
        shown = show_progress(pods[:limit], "Deciding about pods")
        contenders = Competing.without_offers(state)
        rows = []
        for pod in shown:
            claims = pod_claims(pod, source.snapshot, source.objects.affinities)
            refusals = kube_scheduler_refusals(pod, candidate_nodes(state.view), source.objects.state, claims)
            texts = {name: refusal.text for name, refusal in refusals.items()}
            rows.append(waiting_row(pod, state, rules.options, contenders, texts))
        found = _remedies(rows, source, rules.options, remedies)
        items = [
            {
                "pod": row.pod.key,
                "since": row.pod.created,
                "size": row.size,
                "nodes": row.nodes,
                "fits": row.fitting,
                "reasons": row.reasons,
                "closest": row.closest,
                "remedy": found.get(row.pod.key),
                "error": row.error,
            }
            for row in rows
        ]
        return document("WaitingPodList", {"count": len(pods), "items": items})

    answer = refreshing.show(
        read, output, lambda answer, console: print_waiting(answer, console, flags.now()), _pod_names
    )
    if answer["count"]:
        raise typer.Exit(SOME_WAIT)


def _pod_names(answer: dict[str, Any]) -> Iterable[str]:
    return (f"pod/{item['pod'].partition('/')[2]}" for item in answer["items"])


def _remedies(
    rows: Sequence[WaitingRow], source: ClusterSource, options: FilterOptions, count: int
) -> "dict[str, RemedyAnswer]":
    from app.cli.remedies_and_rebalance import cheapest_remedies

    stuck = [row.pod for row in rows if not row.fitting and not row.error][:count]
    remedies = {}
    for pod in show_progress(stuck, "Searching for remedies"):
        for remedy in cheapest_remedies(ExplainedPod(pod, source.snapshot), source, options, 1):
            remedies[pod.key] = remedy
    return remedies


def print_waiting(answer: dict[str, Any], console: Console, now: datetime) -> None:
    """Prints one row per waiting pod; ages are those at `now`."""
    items = answer["items"]
    if not items:
        console.write("no pod with claims waits for a node")
        return
    headers = ("POD", "SINCE", "AGE", "SIZE", "FITS", "WHY", "CLOSEST NODE", "REMEDY")
    console.print(console.table_of(headers, (_waiting_cells(item, now) for item in items)))
    if len(items) < answer["count"]:
        console.print()
        console.write(f"{answer['count'] - len(items)} more; see --limit")


def _waiting_cells(item: dict[str, Any], now: datetime) -> Sequence[str]:
    created = parse_time(item["since"])
    closest: NearestNode | None = item["closest"]
    nearest = "-"
    if closest is not None:
        lack = f"lacks {quantity.format_bytes(closest.missing)}" if closest.missing else closest.reason.text
        nearest = f"{closest.node}: {lack}"
    return (
        item["pod"],
        item["since"] or "-",
        quantity.format_age((now - created).total_seconds()) if created is not None else "-",
        quantity.format_bytes(item["size"]) if item["size"] else "-",
        f"{item['fits']} of {item['nodes']}",
        _why(item),
        nearest,
        item["remedy"].text if item["remedy"] is not None else "-",
    )


def _why(item: dict[str, Any]) -> str:
    if item["error"]:
        return str(item["error"])
    if item["fits"]:
        return "fits now; kube-scheduler has not tried again"
    reasons: dict[str, int] = item["reasons"]
    shown = list(reasons.items())[:_MAX_REASONS]
    others = sum(reasons.values()) - sum(count for _, count in shown)
    return "; ".join(f"{reason} ({count})" for reason, count in [*shown, *([("others", others)] if others else [])])


_DEFAULT_LIMIT = 50
_MAX_NODES = 3
_STYLES = {"fits": "green", "refused": "red", "error": "red"}


class Leader(Struct, frozen=True):
    """How the leader is called. The files are named as the keys of `tlsConfig` in the file that registers the extender."""

    url: flags.LeaderUrlOption = ""
    ca_file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Authorities of the extender's TLS certificate, with an https --url; default: the system's.",
        ),
    ] = ""
    cert_file: Annotated[str, typer.Option(metavar="FILE", help="Certificate to show to an extender with TLS.")] = ""
    key_file: Annotated[str, typer.Option(metavar="FILE", help="Private key of --cert-file.")] = ""
    server_name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Name in the extender's TLS certificate, such as longhorn-scheduler-extender.longhorn-system.svc; default: the host "
            "of --url.",
        ),
    ] = ""

    def check(self) -> None:
        """Raises a CoreError if the URL has no scheme, a file or name is given and it has no TLS, or a certificate has no key."""
        flags.check_url(self.url)
        given = self.ca_file or self.cert_file or self.key_file or self.server_name
        if given and not self.url.startswith("https://"):
            raise errors.CoreError("--ca-file, --cert-file, --key-file and --server-name need --url https://HOST:PORT")
        if bool(self.cert_file) != bool(self.key_file):
            raise errors.CoreError("--cert-file and --key-file go together")


class _Decision(Struct):
    """A decision of the leader's answer, as far as the table shows it."""

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


class _Decisions(Struct, rename="camel"):
    """The leader's answer, as far as the table shows it."""

    kind: Literal["DecisionList"]
    recorded: int
    items: tuple[_Decision, ...]
    next_before: int | None = None


def decisions(
    *,
    pod: Annotated[
        str | None, typer.Argument(metavar="POD", help="NAME, NAMESPACE/NAME or pod/NAME. Without it: all pods.")
    ] = None,
    outcome: Annotated[DecisionOutcome | None, typer.Option(help="Only decisions that ended so.")] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_DECISIONS, help="The most decisions, the latest first.")
    ] = _DEFAULT_LIMIT,
    refreshing: Refreshing,
    leader: Leader,
    output: Annotated[
        ListOutput, typer.Option("--output", "-o", help="How to print; name prints the pods.")
    ] = ListOutput.TABLE,
    kubeconfig: flags.KubeconfigOption = None,
    context: flags.ContextOption = None,
    namespace: Annotated[str | None, flags.namespace_option("Namespace of the pods; default: all.")] = None,
    longhorn_namespace: flags.LonghornNamespaceOption = DEFAULT_NAMESPACE,
) -> None:
    """Show what the extender decided lately.

    It shows which nodes it offered to which pod, and why it refused the others. The leader keeps its latest 1,000
    decisions of /filter and /preempt. They are read through the API server, as by doctor, or at --url. An extender with
    TLS needs --url, --ca-file, --cert-file and --key-file: docs/tls.md.

    Exit code 0: printed. 2: bad input, or no leader.
    """
    import asyncio

    leader.check()
    query = _query(pod, namespace, outcome, limit)

    def read() -> dict[str, Any]:
        body = asyncio.run(_read(query, leader, kubeconfig, context, longhorn_namespace))
        try:
            data: dict[str, Any] = json.loads(body)
            msgspec.convert(data, type=_Decisions)
        except (ValueError, msgspec.ValidationError) as error:
            raise errors.CoreError(f"the answer is not the extender's: {error}") from error
        return data

    refreshing.show(read, output, _print, _pod_names)


def _query(pod: str | None, namespace: str | None, outcome: DecisionOutcome | None, limit: int) -> str:
    """Returns the parameters of the request, or raises a CoreError if the pod's name contradicts the namespace."""
    prefix, slash, name = (pod or "").partition("/")
    if pod is not None and (not pod or (slash and not (prefix and name))):
        raise errors.CoreError(f"'{pod}': the name of a pod is missing; see --help")
    if slash and prefix.lower() not in POD_PREFIXES:
        if namespace not in (None, prefix):
            raise errors.CoreError(f"{pod}: contradicts --namespace {namespace}")
        namespace = prefix
    parameters = {
        "limit": str(limit),
        "namespace": namespace,
        "pod": (name or prefix) or None,
        "outcome": outcome.value if outcome is not None else None,
    }
    return urlencode({key: value for key, value in parameters.items() if value is not None})


async def _read(query: str, leader: Leader, kubeconfig: str | None, context: str | None, namespace: str) -> bytes:
    """Returns the leader's answer, without a URL through the API server; raises a CoreError without a leader."""
    from app.extender.process_calls import direct_call, leader_call

    path = f"decisions?{query}"
    if leader.url:
        call = direct_call(leader.url, leader.ca_file, leader.cert_file, leader.key_file, leader.server_name)
        return await call(path)
    from app.kube.client import KubeClient

    async with await KubeClient.connect(kubeconfig, context) as client:
        return await (await leader_call(client, namespace))(path)


def _print(data: dict[str, Any], console: Console) -> None:
    answer = msgspec.convert(data, type=_Decisions)
    if not answer.items:
        recorded = f"none of the leader's {answer.recorded} decisions is selected"
        console.write(recorded if answer.recorded else "nothing is decided yet")
        return
    headers = ("TIME", "POD", "VERB", "RESULT", "FITS", "OFFERED, OR WHY NOT", "MS")
    console.print(console.table_of(headers, map(_cells, answer.items)))
    if answer.next_before is not None:
        console.print()
        console.write("there are older decisions; see --limit")


def _cells(entry: _Decision) -> list[Cell]:
    result = f"{entry.outcome} (observed)" if entry.observed else entry.outcome
    detail = entry.error or shorten(entry.offered, _MAX_NODES, total=entry.fits)
    if not entry.error and not entry.fits:
        detail = "; ".join(f"{reason} ({count})" for reason, count in entry.refused.items())
    return [
        f"{entry.time.partition('.')[0].removesuffix('Z')}Z",
        entry.pod,
        entry.verb,
        (result, _STYLES.get(entry.outcome, "")),
        f"{entry.fits} of {entry.nodes}",
        detail,
        f"{entry.milliseconds:.1f}",
    ]
