"""Writes the Grafana dashboard of the extender: `python -m devcluster.dashboard`. A table of panels becomes
`manifests/monitoring/dashboard.json`. Only the leader reports disks; `max by` keeps a change of the leader from counting them
twice.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard as builders, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueTextMode
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DataSourceRef,
    DataTransformerConfig,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

PREFIX = "longhorn_scheduler_extender"
FILE = Path(__file__).parents[1] / "manifests/monitoring/dashboard.json"
BYTES = "bytes"
SECONDS = "s"
NUMBER = "short"
PER_SECOND = "reqps"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_ON_PROCESS = f"and on (instance) {PREFIX}_heartbeat"
_SAFE_TO_LOSE = f'max by (node) ({PREFIX}_node_safe_to_lose{{node=~"$node"}})'
_STAT_HEIGHT = 4
_SERIES_HEIGHT = 8


@dataclass(frozen=True, slots=True)
class SeriesPanel:
    """A diagram over time.

    Attributes:
        queries: expressions of PromQL by legend; a legend may name labels, as ``{{node}}``
        span: width of the 24 columns
    """

    title: str
    description: str
    unit: str
    queries: Mapping[str, str]
    span: int = 8


@dataclass(frozen=True, slots=True)
class StatPanel:
    """A single number, or a text that the legend makes of labels."""

    title: str
    description: str
    unit: str
    query: str
    legend: str = field(default="")


def _of_disks(name: str) -> str:
    """Returns an expression for bytes of each of the chosen disks. The disks are those of the chosen nodes."""
    return f'max by (node, disk) ({PREFIX}_disk_{name}_bytes{{node=~"$node"}})'


def _rate(name: str, label: str = "") -> str:
    rate = f"rate({PREFIX}_{name}[$__rate_interval])"
    return f"sum by ({label}) ({rate})" if label else f"sum({rate})"


def _quantile(share: float) -> str:
    return f"histogram_quantile({share}, {_rate('filter_duration_seconds_bucket', 'le')})"


STATS = (
    StatPanel("Leaders", "Processes that answer kube-scheduler; it should be 1.", NUMBER, f"sum({PREFIX}_heartbeat)"),
    StatPanel(
        "Since the last request",
        "Since kube-scheduler was last answered about a pod.",
        SECONDS,
        f"time() - max({PREFIX}_last_filter_request_timestamp_seconds)",
    ),
    StatPanel("Waiting pods", "Pods refused on every node.", NUMBER, f"max({PREFIX}_waiting_pods)"),
    StatPanel(
        "Longest wait", "Of the pods refused on every node.", SECONDS, f"max({PREFIX}_oldest_waiting_pod_seconds)"
    ),
    StatPanel(
        "Closed disks",
        "Disks that take no new replica.",
        NUMBER,
        f"count(max by (node, disk) ({PREFIX}_disk_open) == 0) or vector(0)",
    ),
    StatPanel("Version", "Of every process.", NUMBER, f"count by (version) ({PREFIX}_build_info)", "{{version}}"),
)
REQUESTS = (
    SeriesPanel(
        "Requests", "Pods that kube-scheduler asked about, by result.", PER_SECOND,
        {"{{result}}": _rate("filter_requests_total", "result")},
    ),
    SeriesPanel(
        "Time of an answer", "kube-scheduler decides about one pod at a time and waits for each answer.", SECONDS,
        {"median": _quantile(0.5), "99 of 100": _quantile(0.99)},
    ),
    SeriesPanel(
        "Refused nodes", "Nodes by the reason of their refusal: docs/reasons.md.", PER_SECOND,
        {"{{reason}}": f"topk(10, {_rate('verdicts_total', 'reason')})"},
    ),
)  # fmt: skip
SPACE = (
    SeriesPanel(
        "Space of the chosen nodes", "Sums over their disks. Scheduled may exceed maximum: Longhorn over-provisions.",
        BYTES, {name: f"sum({_of_disks(name)})" for name in ("maximum", "reserved", "scheduled", "promised", "written")},
        12,
    ),
    SeriesPanel(
        "Largest volume that fits", "Of each StorageClass: a node can take a replica of it.", BYTES,
        {"{{storage_class}}": f"max by (storage_class) ({PREFIX}_largest_fitting_volume_bytes)"}, 12,
    ),
    SeriesPanel(
        "Disks with the least free space", "Free by the rules; negative while the limit is exceeded.", BYTES,
        {"{{node}} {{disk}}": f"bottomk(10, {_of_disks('free')})"},
    ),
    SeriesPanel(
        "Why disks are closed", "Disks by the reason why they take no new replica: docs/reasons.md.", NUMBER,
        {"{{reason}}": f'count by (reason) (max by (node, disk, reason) ({PREFIX}_disk_closed{{node=~"$node"}}))'},
    ),
    SeriesPanel(
        "Nodes with the most demand", "Volumes that will take space there and have no replica there yet.", BYTES,
        {"{{node}}": f'topk(10, max by (node) ({PREFIX}_node_demand_bytes{{node=~"$node"}}))'},
    ),
)  # fmt: skip
LOSSES = (
    SeriesPanel(
        "Nodes that can be lost", "Predicted for each node on its own: docs/planning.md. No data above 1,000 nodes.", NUMBER,
        {
            "can be lost": f"count({_SAFE_TO_LOSE} == 1) or 0 * count({_SAFE_TO_LOSE})",
            "cannot be lost": f"count({_SAFE_TO_LOSE} == 0) or 0 * count({_SAFE_TO_LOSE})",
        },
        12,
    ),
    SeriesPanel(
        "Nodes that cannot be lost", "1: without this node a pod would wait, or a volume would lack a replica or lose its data.",
        NUMBER, {"{{node}}": f"topk(10, 1 - {_SAFE_TO_LOSE})"}, 12,
    ),
)  # fmt: skip
OUTSTANDING = (
    SeriesPanel(
        "Demand and offers", "Volumes that will take space, by what ties them to a node, and pods with an open offer.",
        NUMBER, {"{{source}}": f"max by (source) ({PREFIX}_demands)", "offers": f"max({PREFIX}_offers)"},
    ),
    SeriesPanel(
        "What went wrong", "All of these should be 0: docs/runbook.md.", NUMBER,
        {
            "stuck pods": f"max({PREFIX}_stuck_pods)",
            "misplaced volumes": f"max({PREFIX}_misplaced_volumes)",
            "overbooked disks": f"max({PREFIX}_overbooked_disks)",
            "hopeless demands": f"max({PREFIX}_hopeless_demands)",
        },
    ),
    SeriesPanel(
        "Watches behind", "By kind: for how long the cache may have been behind the API server.", SECONDS,
        {"{{kind}}": f"max by (kind) ({PREFIX}_cache_behind_seconds)"},
    ),
    SeriesPanel(
        "Memory", "Resident, by process, and what requests hold.", BYTES,
        {
            "{{instance}}": f"process_resident_memory_bytes {_ON_PROCESS}",
            "requests of {{instance}}": f"{PREFIX}_request_memory_bytes",
        },
        12,
    ),
    SeriesPanel(
        "CPU", "Processors in use, by process.", NUMBER,
        {"{{instance}}": f"rate(process_cpu_seconds_total[$__rate_interval]) {_ON_PROCESS}"}, 12,
    ),
)  # fmt: skip
DISK_COLUMNS = ("maximum", "reserved", "scheduled", "promised", "free", "written")


def _references() -> Iterator[str]:
    return iter("ABCDEFGHIJ")


def _stat(panel: StatPanel) -> stat.Panel:
    query = prometheus.Dataquery().expr(panel.query).instant().ref_id("A").datasource(_SOURCE)
    builder = stat.Panel().title(panel.title).description(panel.description).datasource(_SOURCE).unit(panel.unit)
    if panel.legend:
        query = query.legend_format(panel.legend)
        builder = builder.text_mode(BigValueTextMode.NAME)
    return builder.with_target(query).span(24 // len(STATS)).height(_STAT_HEIGHT)


def _series(panel: SeriesPanel) -> timeseries.Panel:
    builder = timeseries.Panel().title(panel.title).description(panel.description).datasource(_SOURCE)
    for reference, (legend, expression) in zip(_references(), panel.queries.items(), strict=False):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).range().ref_id(reference)
        builder = builder.with_target(query.datasource(_SOURCE))
    return builder.unit(panel.unit).span(panel.span).height(_SERIES_HEIGHT)


def _disks() -> table.Panel:
    builder = table.Panel().title("Disks").description("Bytes, as decisions read them.").datasource(_SOURCE)
    names = {}
    for reference, column in zip(_references(), DISK_COLUMNS, strict=False):
        query = prometheus.Dataquery().expr(_of_disks(column)).instant().format(PromQueryFormat.TABLE)
        builder = builder.with_target(query.ref_id(reference).datasource(_SOURCE))
        names[f"Value #{reference}"] = column
    organise = DataTransformerConfig(
        id_val="organize", options={"excludeByName": {"Time": True}, "renameByName": names, "indexByName": {}}
    )
    merge = DataTransformerConfig(id_val="merge", options={})
    return builder.with_transformation(merge).with_transformation(organise).unit(BYTES).span(24).height(12)


def _variables(board: builders.Dashboard) -> builders.Dashboard:
    every = VariableOption(text="All", value="$__all")
    nodes = (
        builders.QueryVariable("node")
        .label("Node")
        .query(f"label_values({PREFIX}_disk_open, node)")
        .datasource(_SOURCE)
        .multi(True)  # noqa: FBT003 # the builder's only form
        .include_all(True)  # noqa: FBT003
        .all_value(".*")
        .current(every)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    source = builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
    return board.with_variable(source).with_variable(nodes)


def build() -> Dashboard:
    """Returns the dashboard."""
    board = (
        builders.Dashboard("Longhorn scheduler extender")
        .uid("longhorn-scheduler-extender")
        .description("Whether kube-scheduler is answered, and how much space volumes have.")
        .tags(["longhorn", "kubernetes"])
        .time("now-6h", "now")
        .refresh("1m")
        .readonly()
    )
    board = _variables(board)
    for entry in STATS:
        board = board.with_panel(_stat(entry))
    rows = (("Requests", REQUESTS), ("Space", SPACE), ("Losses", LOSSES), ("Outstanding, and the process", OUTSTANDING))
    for title, panels in rows:
        board = board.with_row(builders.Row(title))
        for panel in panels:
            board = board.with_panel(_series(panel))
        if panels is SPACE:
            board = board.with_panel(_disks())
    dashboard = board.build()
    for number, placed in enumerate(dashboard.panels or (), start=1):
        placed.id_val = number
    return dashboard


def render() -> str:
    """Returns the dashboard as JSON; equal panels give equal bytes."""
    return json.dumps(build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(render())
