"""`longhorn-extender explain`: why a pod can or cannot run on each node or, with `--volume`, why a volume's replica can
or cannot be placed.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.explain_subject import (
    ClusterSource,
    ExplainedPod,
    claim_pod,
    read_source,
    select_pod,
    waiting_pods,
)
from app.cli.options import (
    AloneOption,
    BestEffortOption,
    ContextOption,
    KubeconfigOption,
    LonghornNamespaceOption,
    PackingOption,
    SnapshotOption,
    check_standard_input,
    filter_options,
    now,
)
from app.cli.terminal import json_text, print_line, print_result, warn, yaml_text
from app.schemas.explain import explain_answer
from app.schemas.pod_explanation import (
    API_VERSION,
    PodExplanation,
    PodExplanationList,
    candidate_answer,
    kube_scheduler_answer,
    pod_explanation,
)
from app.settings import DEFAULT_NAMESPACE, BestEffort
from scheduler_core.cluster.view import View
from scheduler_core.errors import CoreError, ResolutionError
from scheduler_core.evaluation.state import ClusterState
from scheduler_core.extender.decision import NO_CONTENDERS, Competing, Contenders, FilterOptions, Packing
from scheduler_core.extender.explain import explain_nodes
from scheduler_core.extender.kube_scheduler_filters import compares_resources, kube_scheduler_refusals, pod_claims
from scheduler_core.model.listing import natural_key
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.volumes.csi_drivers import NO_DRIVER, NO_DRIVER_DETAIL, lacks_driver

if TYPE_CHECKING:
    from rich.console import Console

DOES_NOT_FIT: Final = 1
MAX_REMEDIES: Final = 100
_UNLIMITED_WIDTH: Final = 2**16

_Remedies = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, max=MAX_REMEDIES, help="How many remedies of a named pod that fits nowhere are printed."
    ),
]


class Output(StrEnum):
    """The format in which a result is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class ExplainOutput(StrEnum):
    """The format in which an explanation is printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def explain(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="POD",
            help="NAME, NAMESPACE/NAME or pod/NAME of a pod; deploy/NAME, sts/NAME, ... for the first pod of a workload that waits; or "
            "a file as for --pod. Without it: all waiting pods.",
        ),
    ] = None,
    snapshot: SnapshotOption = None,
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
    all_nodes: Annotated[  # noqa: FBT002 # --all-nodes
        bool, typer.Option("--all-nodes", help="Longhorn's rules alone: leave out what kube-scheduler filters first.")
    ] = False,
    output: Annotated[
        ExplainOutput,
        typer.Option("--output", "-o", help="How to print; wide adds plans and details, name prints what fits."),
    ] = ExplainOutput.TABLE,
    best_effort: BestEffortOption = BestEffort.REQUIRE,
    packing: PackingOption = Packing.AUTO,
    remedies: _Remedies = 1,
    alone: AloneOption = False,  # noqa: FBT002 # --alone
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the pod or claim.")
    ] = None,
    longhorn_namespace: LonghornNamespaceOption = DEFAULT_NAMESPACE,
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
    check_standard_input(snapshot, *given)
    source = read_source(snapshot, kubeconfig, context, longhorn_namespace)
    _warn_of_unknown_nodes(node, source.snapshot)
    if volume is not None:
        succeeds = _explain_volume(volume, source, node, output)
    else:
        question = _Question(node, filter_options(best_effort, packing), alone=alone, all_nodes=all_nodes)
        if given:
            named = (
                claim_pod(claim, namespace, source) if claim is not None else select_pod(given[0], namespace, source)
            )
            succeeds = _print_pod(question.ask_with_remedies(named, source, longhorn_namespace, remedies), output)
        else:
            succeeds = _print_pods(
                [question.try_to_ask(entry, source) for entry in waiting_pods(namespace, source)], output
            )
    if not succeeds:
        raise typer.Exit(DOES_NOT_FIT)


class _Question:
    """The nodes and options of an explanation."""

    def __init__(self, nodes: list[str] | None, options: FilterOptions, *, alone: bool, all_nodes: bool) -> None:
        self._nodes = nodes
        self._options = options
        self._alone = alone
        self._all_nodes = all_nodes
        self._latest: tuple[Snapshot, ClusterState, Contenders] | None = None

    def _state(self, snapshot: Snapshot) -> tuple[ClusterState, Contenders]:
        if self._latest is None or self._latest[0] is not snapshot:
            state = ClusterState.of(View.of(snapshot, now()))
            self._latest = snapshot, state, NO_CONTENDERS if self._alone else Competing.without_offers(state)
        return self._latest[1:]

    def try_to_ask(self, pod: ExplainedPod, source: ClusterSource) -> PodExplanation:
        try:
            return self.ask(pod, source)
        except ResolutionError as error:
            return PodExplanation(
                pod=pod.pod.key,
                selection=pod.selection,
                volumes=[],
                skipped_claims=[],
                resources_compared=True,
                nodes={},
                error=str(error),
            )

    def ask_with_remedies(
        self, pod: ExplainedPod, source: ClusterSource, longhorn_namespace: str, limit: int
    ) -> PodExplanation:
        answer = self.try_to_ask(pod, source)
        # A remedy is for the whole cluster, so none is sought for some nodes, for the pod alone, or without
        # kube-scheduler.
        if answer.schedulable or answer.error or self._nodes or self._alone or self._all_nodes:
            return answer
        from app.cli.remedies_command import cheapest_remedies

        found = cheapest_remedies(pod, source, self._options, longhorn_namespace, limit)
        return answer.model_copy(update={"remedy": found[0] if found else None, "remedies": found})

    def ask(self, pod: ExplainedPod, source: ClusterSource) -> PodExplanation:
        """Returns the explanation of a pod. As in the cluster, Longhorn's rules decide about the nodes that
        kube-scheduler's plugins admit; what they say about the other nodes is decided apart.

        Raises:
            ResolutionError: an object that the pod names does not exist or contradicts it
        """
        snapshot = pod.snapshot
        cluster = source.objects.state
        # A snapshot without Kubernetes nodes has Longhorn's.
        candidates = sorted(set(self._nodes or snapshot.nodes or snapshot.longhorn_nodes), key=natural_key)
        refusals = {}
        if not self._all_nodes:
            claims = pod_claims(pod.pod, snapshot, source.objects.affinities)
            refusals = kube_scheduler_refusals(pod.pod, candidates, cluster, claims)
        state, contenders = self._state(snapshot)
        admitted = [name for name in candidates if name not in refusals]
        groups = [names for names in (admitted, list(refusals)) if names] or [[]]
        explanations = [explain_nodes(pod.pod, names, state, self._options, contenders) for names in groups]
        answers = [explain_answer(pod.pod, explanation) for explanation in explanations]
        entries = {name: entry for answer in answers for name, entry in answer.nodes.items()}
        for name, entry in entries.items():
            if entry.fits and answers[0].volumes and lacks_driver(snapshot, name):
                update = {"fits": False, "reason": NO_DRIVER, "detail": NO_DRIVER_DETAIL, "plan": {}}
                entries[name] = entry.model_copy(update=update)
        judged = set() if self._all_nodes else set(cluster.node_names)
        nodes = {
            name: candidate_answer(
                name,
                entries[name],
                kube_scheduler_answer(refusals.get(name)) if name in judged else None,
                snapshot.longhorn_nodes,
            )
            for name in candidates
        }
        compared = self._all_nodes or not judged or compares_resources(cluster)
        return pod_explanation(answers, nodes, pod.selection, resources_compared=compared)


def _warn_of_unknown_nodes(names: Iterable[str] | None, snapshot: Snapshot) -> None:
    """Warns of nodes that do not exist; the answer has them, too."""
    for name in names or ():
        if name not in snapshot.nodes and name not in snapshot.longhorn_nodes:
            warn(f"--node {name}: there is no such node")


def _print_pod(answer: PodExplanation, output: ExplainOutput) -> bool:
    def table(console: Console) -> None:
        from app.cli.explain_tables import print_pod

        print_pod(answer, console, wide=output is ExplainOutput.WIDE)

    _print(answer.model_dump(by_alias=True), output, table, _node_names(answer))
    return answer.schedulable


def _node_names(answer: PodExplanation) -> list[str]:
    return [f"node/{name}" for name, entry in answer.nodes.items() if entry.fits]


def _print_pods(answers: list[PodExplanation], output: ExplainOutput) -> bool:
    def table(console: Console) -> None:
        from app.cli.explain_tables import print_pods

        print_pods(answers, console, wide=output is ExplainOutput.WIDE)

    names = [f"pod/{answer.pod.partition('/')[2]}" for answer in answers if answer.schedulable]
    _print(PodExplanationList(items=answers).model_dump(by_alias=True), output, table, names)
    return all(answer.schedulable for answer in answers)


def _explain_volume(name: str, source: ClusterSource, nodes: list[str] | None, output: ExplainOutput) -> bool:
    from app.schemas.volume import explain_volume

    answer = explain_volume(View.of(source.snapshot, now()), name, nodes)

    def table(console: Console) -> None:
        from app.cli.explain_tables import print_volume

        print_volume(answer, console)

    data = {"apiVersion": API_VERSION, "kind": "VolumeExplanation", **answer.model_dump(by_alias=True)}
    _print(data, output, table, [f"{entry.node}/{entry.disk}" for entry in answer.candidates])
    return bool(answer.candidates)


def _print(data: dict[str, Any], output: ExplainOutput, table: Callable[[Console], None], names: Iterable[str]) -> None:
    if output is ExplainOutput.NAME:
        for name in names:
            print_line(name)
    elif output in (ExplainOutput.JSON, ExplainOutput.YAML):
        show(data, Output(output.value), table)
    else:
        # As kubectl's, the wide table has one line per row, however wide the terminal is.
        show(data, Output.TABLE, table, wrapped=output is ExplainOutput.TABLE)


def show(data: dict[str, Any], output: Output, table: Callable[[Console], None], *, wrapped: bool = True) -> None:
    """Prints a result as JSON, as YAML, or by calling `table`, which fits the width of a terminal unless `wrapped` is
    false.
    """
    # When the reader of a pipe, such as `head`, closes its end, this program ends as any filter does.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if output is Output.JSON:
        print_result(json_text(data))
    elif output is Output.YAML:
        import yaml

        print_result(yaml_text(yaml.safe_dump, data))
    elif wrapped and sys.stdout.isatty():
        table(_console())
    else:
        # Lines that need not fit any width end where their text ends.
        text = io.StringIO()
        table(_console(file=text, width=_UNLIMITED_WIDTH))
        print_result("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def _console(**options: Any) -> Console:
    # rich takes long to import.
    from app.cli.console import EscapingConsole

    return EscapingConsole(**options)
