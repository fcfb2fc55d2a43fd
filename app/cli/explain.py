"""`longhorn-extender explain`: why a pod can or cannot run on each node or, with `--volume`, why a volume's replica can
or cannot be placed.

Data flow: a pod and its cluster → kube-scheduler's own filters → Longhorn's rules for the nodes that these admit, and apart for
the others → its JSON, or a line for each node.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any

import typer

from app.cli.cluster_source import (
    NO_RESOURCES,
    ClusterSource,
    ExplainedPod,
    Query,
    Rules,
    claim_pod,
    select_pod,
    waiting_pods,
)
from app.cli.options import namespace_option, now
from app.cli.render import NO, YES, Cell, Console, ExplainOutput, document, show, warn
from app.schemas.decision import NodeAnswer, VolumeAnswer, disk_names, explain_answer
from scheduler_core.cluster.view import View
from scheduler_core.decide import decision, kube_scheduler_filters
from scheduler_core.decide.explain import explain_nodes
from scheduler_core.errors import CoreError, ResolutionError
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.model.quantity import format_bytes, format_count, natural_key
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.volumes.resolve import NO_DRIVER, NO_DRIVER_DETAIL, lacks_driver

DOES_NOT_FIT = 1
_MAX_REMEDIES = 100
_MAX_COMPETING_VOLUMES = 4
_MIN_GROUPED_NODES = 30
_MAX_NAMES = 3
_MAX_NAMES_WIDTH = 12
_MAX_REASONS = 2
# Of all columns but the nodes' names.
_MIN_TEXT_WIDTH = 56
# With it, the longest texts of kube-scheduler and Longhorn share a line.
_FULL_WIDTH = 140
# It leaves room for "has room for all local volumes" on a terminal of 80 columns.
_NARROW_TEXT_WIDTH = 24

_Remedies = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, max=_MAX_REMEDIES, help="How many remedies of a named pod that fits nowhere are printed."
    ),
]


def explain(
    *,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="POD",
            help="NAME, NAMESPACE/NAME or pod/NAME of a pod; deploy/NAME, sts/NAME, ... for the first pod of a workload that waits; or "
            "a file as for --pod. Without it: all waiting pods.",
        ),
    ] = None,
    pod: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="The same as the argument. A file has a Pod, or a Deployment, StatefulSet, ... whose template is taken.",
        ),
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="The pod that uses a PersistentVolumeClaim, or one that would mount it alone.",
        ),
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Instead of a pod: a Longhorn volume whose next replica is to be placed."),
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Ask about this node only; may be repeated.")
    ] = None,
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="Longhorn's rules alone: leave out what kube-scheduler filters first.")
    ] = False,
    output: Annotated[
        ExplainOutput,
        typer.Option("--output", "-o", help="How to print; wide adds plans and details, name prints what fits."),
    ] = ExplainOutput.TABLE,
    rules: Rules,
    remedies: _Remedies = 1,
    alone: Annotated[
        bool, typer.Option("--alone", help="Leave out the space that other pods' volumes in the snapshot will take.")
    ] = False,
    query: Query,
    namespace: Annotated[str | None, namespace_option("Namespace of the pod or claim.")] = None,
) -> None:
    """Tell on which nodes a pod can run, and why not elsewhere.

    First what kube-scheduler filters: cordon, taints, node affinity, resources, volumes. Then Longhorn's disks.

    Space that other pods' volumes will take counts, as it does in /filter; --alone leaves it out.

    With --volume: by which rules Longhorn would place the volume's next replica, disk by disk, with the numbers.

    Exit code 0: every pod has a node (the volume a disk). 1: one has none. 2: bad input.
    """
    given = [entry for entry in (subject, pod, claim, volume) if entry is not None]
    if len(given) > 1:
        raise CoreError("explain takes one of a pod, --claim and --volume; see --help")
    query.check_standard_input(*given)
    source = query.read()
    for name in node or ():
        if name not in source.snapshot.nodes and name not in source.snapshot.longhorn_nodes:
            warn(f"--node {name}: there is no such node")
    if volume is not None:
        succeeds = _show_volume(volume, source, node, output)
    elif given:
        named = claim_pod(claim, namespace, source) if claim is not None else select_pod(given[0], namespace, source)
        answer = _Question(source, named.snapshot, node, rules.options, alone=alone, all_nodes=all_nodes).ask(named)
        # A remedy is for the whole cluster, so none is sought for some nodes, for the pod alone, or without
        # kube-scheduler.
        if not (node or alone or all_nodes or _fitting(answer) or answer["error"]):
            answer |= _remedies(named, source, rules.options, remedies)
        succeeds = _show_pod(answer, output)
    else:
        question = _Question(source, source.snapshot, node, rules.options, alone=alone, all_nodes=all_nodes)
        succeeds = _show_pods([question.ask(entry) for entry in waiting_pods(namespace, source)], output)
    if not succeeds:
        raise typer.Exit(DOES_NOT_FIT)


def _remedies(pod: ExplainedPod, source: ClusterSource, options: decision.FilterOptions, limit: int) -> dict[str, Any]:
    from app.cli.remedies_and_rebalance import cheapest_remedies

    remedies = cheapest_remedies(pod, source, options, limit)
    return {"remedy": remedies[0] if remedies else None, "remedies": remedies}


class _Question:
    """The cluster, the nodes and the options of an explanation."""

    def __init__(
        self,
        source: ClusterSource,
        snapshot: Snapshot,
        nodes: list[str] | None,
        options: decision.FilterOptions,
        *,
        alone: bool,
        all_nodes: bool,
    ) -> None:
        self._objects = source.objects
        self._nodes = nodes
        self._options = options
        self._all_nodes = all_nodes
        self._state = ClusterState.of(View.of(snapshot, now()))
        self._contenders = decision.NO_CONTENDERS if alone else decision.Competing.without_offers(self._state)

    def ask(self, pod: ExplainedPod) -> dict[str, Any]:
        """Returns the explanation of a pod, which has an error if an object that the pod names does not exist or contradicts
        it. As in the cluster, Longhorn's rules decide about the nodes that kube-scheduler's plugins admit; what they say
        about the other nodes is decided apart.
        """
        snapshot = pod.snapshot
        cluster = self._objects.state
        # A snapshot without Kubernetes nodes has Longhorn's.
        candidates = sorted(set(self._nodes or snapshot.nodes or snapshot.longhorn_nodes), key=natural_key)
        refusals = {}
        if not self._all_nodes:
            claims = kube_scheduler_filters.pod_claims(pod.pod, snapshot, self._objects.affinities)
            refusals = kube_scheduler_filters.kube_scheduler_refusals(pod.pod, candidates, cluster, claims)
        admitted = [name for name in candidates if name not in refusals]
        groups = [names for names in (admitted, list(refusals)) if names] or [[]]
        try:
            explanations = [
                explain_nodes(pod.pod, names, self._state, self._options, self._contenders) for names in groups
            ]
        except ResolutionError as error:
            return _explanation(pod, error=str(error))
        answers = [explain_answer(pod.pod, explanation) for explanation in explanations]
        entries = {name: entry for answer in answers for name, entry in answer.nodes.items()}
        for name, entry in entries.items():
            if entry.fits and answers[0].volumes and lacks_driver(snapshot, name):
                update = {"fits": False, "reason": NO_DRIVER, "detail": NO_DRIVER_DETAIL, "plan": {}}
                entries[name] = entry.model_copy(update=update)
        asked = set() if self._all_nodes else set(cluster.node_names)
        nodes = {}
        for name in candidates:
            disks = disk_names(snapshot.longhorn_nodes, name)
            nodes[name] = _node_data(name, entries[name], disks, refusals.get(name), asked=name in asked)
        return _explanation(
            pod,
            volumes=answers[0].volumes,
            skippedClaims=answers[0].skipped_claims,
            resourcesCompared=self._all_nodes or not asked or kube_scheduler_filters.compares_resources(cluster),
            nodes=nodes,
        )


def _explanation(pod: ExplainedPod, **known: Any) -> dict[str, Any]:
    """Returns what JSON has: `error` is why nothing can be decided about the pod, `selection` why it is this pod, where a workload or
    a claim was named; resources are not compared where no node says what is allocatable.
    """
    unknown = {
        "volumes": (),
        "skippedClaims": (),
        "resourcesCompared": True,
        "nodes": {},
        "remedy": None,
        "remedies": (),
        "error": "",
    }
    return document("PodExplanation", {"pod": pod.pod.key, "selection": pod.selection, **unknown, **known})


def _fitting(answer: dict[str, Any]) -> list[str]:
    return [name for name, node in answer["nodes"].items() if node["fits"]]


def _node_data(
    name: str,
    longhorn: NodeAnswer,
    disks: Mapping[str, str],
    refusal: kube_scheduler_filters.PluginRefusal | None,
    *,
    asked: bool,
) -> dict[str, Any]:
    """Returns what JSON has of a node: it fits if kube-scheduler's own plugins, if `asked`, admit it and Longhorn's disks have
    room. `refusal` is that of the first plugin; `disks` are names by UUID.
    """
    admitted = not asked or refusal is None
    plugin, text = (refusal.plugin, refusal.text) if refusal is not None else ("", "")
    fits = longhorn.fits and admitted
    return {
        **longhorn.model_dump(by_alias=True),
        "fits": fits,
        # That of the first that refuses, or Longhorn's.
        "reason": longhorn.reason if admitted else text,
        "schedulable": fits,
        "longhorn": {"fits": longhorn.fits, "reason": longhorn.reason},
        "kubeScheduler": {"fits": admitted, "plugin": plugin, "reason": text} if asked else None,
        "orderSafe": longhorn.order_safe,
        "staleSafe": longhorn.stale_safe,
        "disks": {
            volume: {"node": name, "name": disks.get(uuid, uuid), "uuid": uuid}
            for volume, uuid in longhorn.plan.items()
        },
    }


def _show_volume(name: str, source: ClusterSource, nodes: list[str] | None, output: ExplainOutput) -> bool:
    from app.cli.explain_volume import explain_volume, print_volume

    answer = explain_volume(View.of(source.snapshot, now()), name, nodes)
    names = [f"{entry['node']}/{entry['disk']}" for entry in answer["candidates"]]
    show(document("VolumeExplanation", answer), output, lambda console: print_volume(answer, console), names)
    return bool(answer["candidates"])


def _show_pod(answer: dict[str, Any], output: ExplainOutput) -> bool:
    wide = output is ExplainOutput.WIDE
    names = [f"node/{name}" for name in _fitting(answer)]
    show(answer, output, lambda console: _print_pod(answer, console, wide=wide), names)
    return bool(_fitting(answer))


def _show_pods(answers: Sequence[dict[str, Any]], output: ExplainOutput) -> bool:
    wide = output is ExplainOutput.WIDE
    names = [f"pod/{answer['pod'].partition('/')[2]}" for answer in answers if _fitting(answer)]
    data = document("PodExplanationList", {"items": answers})
    show(data, output, lambda console: _print_pods(answers, console, wide=wide), names)
    return all(_fitting(answer) for answer in answers)


def _print_pod(answer: dict[str, Any], console: Console, *, wide: bool) -> None:
    """Prints the pod's volumes and one line per node. From 30 nodes on, nodes that are refused alike share a line,
    unless `wide` is set, which adds plans and details.
    """
    console.write(f"pod {answer['pod']}", "bold")
    if answer["selection"]:
        console.paragraph(answer["selection"])
    if answer["error"]:
        console.paragraph(f"fits nowhere: {answer['error']}")
        return
    for volume in answer["volumes"]:
        console.paragraph(_volume_line(volume))
    if not answer["volumes"]:
        console.paragraph("no Longhorn volumes")
    for skipped in answer["skippedClaims"]:
        console.paragraph(f"claim {skipped.claim.partition('/')[2]} is skipped: {skipped.cause}")
    console.print()
    headers = ("NODE", "FITS", "KUBE-SCHEDULER", "LONGHORN", "MISSING", *(["PLAN AND DETAIL"] if wide else []))
    table = console.table_of(headers, _node_rows(answer, wide=wide))
    table.columns[0].no_wrap = True
    # Where names are long, the terminal breaks the lines: narrower columns of text cannot be read.
    console.width = max(console.width, max(len(str(cell)) for cell in table.columns[0].cells) + _MIN_TEXT_WIDTH)
    if console.width < _FULL_WIDTH:
        table.columns[2].max_width = _NARROW_TEXT_WIDTH
    console.print(table)
    console.print()
    if not answer["resourcesCompared"]:
        console.write(NO_RESOURCES)
    nodes = format_count(len(answer["nodes"]), "node fits", "nodes fit")
    console.write(f"{len(_fitting(answer))} of {nodes}", "bold")
    for number, remedy in enumerate(answer["remedies"], start=1):
        which = "cheapest" if number == 1 else "next"
        more = "; commands and others: longhorn-extender remedies" if number == len(answer["remedies"]) else ""
        console.paragraph(f"{which} remedy: {remedy.text}{more}")


def _node_rows(answer: dict[str, Any], *, wide: bool) -> Iterator[Sequence[Cell]]:
    grouped = len(answer["nodes"]) >= _MIN_GROUPED_NODES and not wide
    groups: dict[object, list[str]] = {}
    for name, node in answer["nodes"].items():
        alike = grouped and not node["fits"]
        key = (_kube_scheduler(node), *node["longhorn"].values()) if alike else name
        groups.setdefault(key, []).append(name)
    for names in groups.values():
        node = answer["nodes"][names[0]]
        sizes = [answer["nodes"][name]["missing"] for name in names]
        missing = "-".join(format_bytes(size) for size in sorted({min(sizes), max(sizes)}) if size)
        cells = (_names(names), YES if node["fits"] else NO, _kube_scheduler(node), node["longhorn"]["reason"], missing)
        plan = ", ".join(f"{volume} on {disk['name']}" for volume, disk in node["disks"].items())
        details = (plan, node["detail"], _competing_volumes(node["competing"]))
        yield (*cells, "; ".join(filter(None, details))) if wide else cells


def _kube_scheduler(node: dict[str, Any]) -> str:
    result = node["kubeScheduler"]
    return "-" if result is None else "ok" if result["fits"] else result["reason"]


def _names(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    shown = max(1, sum(width <= _MAX_NAMES_WIDTH for width in accumulate(map(len, names[:_MAX_NAMES]))))
    return f"{len(names)} nodes: {', '.join(names[:shown])}" + (", ..." if len(names) > shown else "")


def _volume_line(volume: VolumeAnswer) -> str:
    claim = volume.claim.partition("/")[2]
    name = f"claim {claim}" + (f" ({volume.name})" if volume.bound else " (not bound yet)")
    if volume.persistent_volume:
        name = f"claim {claim} (not bound yet, matches PersistentVolume {volume.persistent_volume})"
    if volume.nodes is not None:
        name += f" on {', '.join(volume.nodes)}"
    where = "needs room on the pod's node" if volume.local else "may be anywhere"
    replicas = ", ".join(
        f"{replica.node or 'no node yet'}{' failed' if replica.failed else '' if replica.healthy else ' not healthy'}"
        for replica in volume.replicas
    )
    line = f"{name}: {format_bytes(volume.size)}, {volume.data_locality}, {where}"
    return f"{line}; replicas: {replicas}" if replicas else line


def _competing_volumes(competing: Sequence[dict[str, Any]]) -> str:
    volumes = [
        f"{each['volume']}{f' of pod {pod}' if (pod := each['pod']) else ''} ({format_bytes(each['size'])})"
        for each in competing
    ]
    more = len(volumes) - _MAX_COMPETING_VOLUMES
    first = ", ".join(volumes[:_MAX_COMPETING_VOLUMES])
    return f"counted with {first}{f' and {more} more' if more > 0 else ''}" if volumes else ""


def _print_pods(answers: Sequence[dict[str, Any]], console: Console, *, wide: bool) -> None:
    """Prints one line per pod; `wide` adds all reasons."""
    if not answers:
        console.write("no pod waits for a node")
        return
    rows: list[Sequence[Cell]] = []
    for answer in answers:
        reasons = Counter(node["reason"] for node in answer["nodes"].values() if not node["fits"])
        shown = reasons.most_common(None if wide else _MAX_REASONS)
        others = reasons.total() - sum(count for _, count in shown)
        shown += [("other reasons", others)] if others else []
        texts = ", ".join(f"{reason} ({count})" for reason, count in shown)
        fitting = len(_fitting(answer))
        counts = (f"{fitting}/{len(answer['nodes'])}", "green" if fitting else "red")
        rows.append((answer["pod"], counts, answer["error"] or texts))
    console.section(("POD", "NODES", "REASONS"), rows)
    waiting = sum(not _fitting(answer) for answer in answers)
    console.write(f"{format_count(len(answers), 'waiting pod')}, {waiting} without a node that fits", "bold")
