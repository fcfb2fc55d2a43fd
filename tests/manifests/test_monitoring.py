"""The alerts, the dashboard and the PodMonitor. They name what the program exposes, and alerts begin when they should."""

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from app.runtime.probes import PREFIX
from tests.contract.frozen import extender_registry
from tests.manifests.load import MANIFESTS, ROOT, documents, only

MONITORING = MANIFESTS / "monitoring"
DASHBOARD = MONITORING / "dashboard.json"
(RULE,) = documents(MONITORING / "prometheusrule.yaml")
(GROUP,) = RULE["spec"]["groups"]
ALERTS: Mapping[str, dict[str, Any]] = {rule["alert"]: rule for rule in GROUP["rules"]}
_KEYWORDS = frozenset({"and", "by", "or", "unless", "on", "ignoring", "group_left", "group_right", "without"})
_GIB = 1024**3
_WEEK = 7 * 86400


@dataclass(frozen=True)
class Scenario:
    """What Prometheus reads from minute 0 on, and when it alerts.

    Attributes:
        series: promtool's notation by series, without the metrics' prefix; one value per minute
        quiet_at, firing_at: minutes
        labels: those of the alert in addition to its severity
    """

    series: Mapping[str, str]
    quiet_at: int
    firing_at: int
    labels: Mapping[str, str] = field(default_factory=dict)


SCENARIOS = {
    "LonghornExtenderAbsent": Scenario({"heartbeat{node='a'}": "1x10 stale"}, quiet_at=10, firing_at=30),
    "LonghornExtenderNoLeader": Scenario(
        {"heartbeat{node='a'}": "1x10 0x20", "heartbeat{node='b'}": "0x30"}, quiet_at=12, firing_at=14
    ),
    "LonghornExtenderNotAsked": Scenario(
        {"waiting_pods": "0x20 1x40", "last_filter_request_timestamp_seconds": "0x60"}, quiet_at=30, firing_at=32
    ),
    "LonghornExtenderErrors": Scenario(
        {"filter_requests_total{result='fits'}": "0+100x60", "filter_requests_total{result='error'}": "0x20 0+10x40"},
        quiet_at=20,
        firing_at=40,
    ),
    "LonghornExtenderSlow": Scenario(
        {
            "filter_duration_seconds_bucket{le='1.0'}": "0+100x20 2000+90x40",
            "filter_duration_seconds_bucket{le='2.5'}": "0+100x60",
            "filter_duration_seconds_bucket{le='+Inf'}": "0+100x60",
        },
        quiet_at=20,
        firing_at=40,
    ),
    "LonghornExtenderCacheBehind": Scenario(
        {"cache_behind_seconds{kind='nodes'}": "0x10 70+60x20", "cache_behind_seconds{kind='pods'}": "0x30"},
        quiet_at=14,
        firing_at=18,
        labels={"kind": "nodes"},
    ),
    "LonghornExtenderObjectsUnreadable": Scenario(
        {"cache_unreadable_objects{kind='nodes'}": "0x10 1x20"}, quiet_at=20, firing_at=22, labels={"kind": "nodes"}
    ),
    # The certificates expire after two weeks and 20 minutes, in a year, and never.
    "LonghornExtenderCertificateExpires": Scenario(
        {
            "tls_certificate_expiry_timestamp_seconds{node='a'}": f"{_WEEK * 2 + 1200}x60",
            "tls_certificate_expiry_timestamp_seconds{node='b'}": f"{_WEEK * 52}x60",
            "placement_guard_certificate_expiry_timestamp_seconds": "0x60",
        },
        quiet_at=30,
        firing_at=32,
    ),
    "LonghornPodWaiting": Scenario({"oldest_waiting_pod_seconds": "0+60x60"}, quiet_at=34, firing_at=37),
    "LonghornPodStuck": Scenario({"stuck_pods": "0x10 1x20"}, quiet_at=14, firing_at=17),
    "LonghornVolumeMisplaced": Scenario({"misplacements_total": "0x20 1x20"}, quiet_at=20, firing_at=23),
    "LonghornDiskOverbooked": Scenario({"overbooked_disks": "0x10 2x20"}, quiet_at=20, firing_at=22),
    "LonghornStorageClassFull": Scenario(
        {
            "largest_fitting_volume_bytes{storage_class='fast'}": f"{_GIB}x10 {_GIB - 1}x30",
            "largest_fitting_volume_bytes{storage_class='slow'}": f"{_GIB}x40",
        },
        quiet_at=25,
        firing_at=27,
        labels={"storage_class": "fast"},
    ),
    # Node a changes, node b never could be lost, and node c can be.
    "LonghornNodeNotSafeToLose": Scenario(
        {
            "node_safe_to_lose{node='a'}": "1x10 0x80",
            "node_safe_to_lose{node='b'}": "0x90",
            "node_safe_to_lose{node='c'}": "1x90",
        },
        quiet_at=70,
        firing_at=72,
        labels={"node": "a"},
    ),
}


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression of PromQL with its alert or panel."""
    yield from ((name, rule["expr"]) for name, rule in ALERTS.items())
    yield from dashboard_queries()


def dashboard_panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return panels


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Every expression of the dashboard with its panel. It is as Grafana sends it to Prometheus."""
    for panel in dashboard_panels():
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m").replace("$node", ".*")


def selectors(expression: str) -> list[str]:
    """The series that an expression reads, with their labels."""
    return [
        f"{name}{labels}"
        for name, labels in re.findall(r"\b([a-zA-Z_:][\w:]*)(\{[^}]*\})?", expression)
        if name in metric_names(expression)
    ]


def metric_names(expression: str) -> set[str]:
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]|\b(?:by|without|on|ignoring) *\([^)]*\)', " ", expression)
    return set(re.findall(r"\b[a-zA-Z_:][\w:]*\b(?! *\()", bare)) - _KEYWORDS


@pytest.fixture(scope="module")
def exposed() -> set[str]:
    return {sample.name for family in extender_registry().collect() for sample in family.samples}


def test_every_expression_names_metrics_that_the_program_exposes(exposed: set[str]) -> None:
    """A renamed metric would leave a panel empty, and an alert silent."""
    unknown = [(title, name) for title, text in expressions() for name in sorted(metric_names(text) - exposed)]
    assert unknown == []
    assert all(metric_names(text) for _, text in expressions())


def test_metric_names_are_found_in_an_expression() -> None:
    text = f'sum by (le) (rate({PREFIX}_a_bucket{{x="y"}}[5m])) > 1.5 and time() - max({PREFIX}_b) > 900'
    assert metric_names(text) == {f"{PREFIX}_a_bucket", f"{PREFIX}_b"}
    assert selectors(text) == [f'{PREFIX}_a_bucket{{x="y"}}', f"{PREFIX}_b"]


def test_there_are_fourteen_alerts_and_each_has_a_scenario() -> None:
    """An alert that was never seen firing may never fire."""
    assert len(ALERTS) == len(GROUP["rules"]) == 14
    assert set(SCENARIOS) == set(ALERTS)


def test_no_alert_reads_the_series_of_disks() -> None:
    """`--no-disk-metrics` leaves them out, and must silence nothing."""
    names = {name for rule in ALERTS.values() for name in metric_names(rule["expr"])}
    assert f"{PREFIX}_heartbeat" in names
    assert [name for name in names if name.startswith(f"{PREFIX}_disk_")] == []


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_leads_to_its_section_of_the_runbook(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{alert.lower()}"
    assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_runbook_has_the_sections_of_all_alerts_and_no_other() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert sections == list(ALERTS)


def rule_test(alert: str) -> dict[str, Any]:
    """A file for `promtool test rules` about one alert."""
    scenario = SCENARIOS[alert]
    rule = ALERTS[alert]
    firing = {"exp_labels": {**rule["labels"], **scenario.labels}, "exp_annotations": rule["annotations"]}
    return {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": f"{PREFIX}_{series}", "values": values} for series, values in scenario.series.items()
                ],
                "alert_rule_test": [
                    {"eval_time": f"{scenario.quiet_at}m", "alertname": alert, "exp_alerts": []},
                    {"eval_time": f"{scenario.firing_at}m", "alertname": alert, "exp_alerts": [firing]},
                ],
            }
        ],
    }


def find_promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool on PATH: install prometheus, for example Debian's package")
    return program


def run_promtool(folder: Path, rules: Mapping[str, Any], test: Mapping[str, Any]) -> str:
    """Runs `promtool test rules`, and returns what is wrong. It is "" if nothing is."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    (folder / "test.yaml").write_text(yaml.safe_dump(test))
    argv = [find_promtool(), "test", "rules", str(folder / "test.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_when_it_should_and_not_before(alert: str, tmp_path: Path) -> None:
    assert run_promtool(tmp_path, RULE["spec"], rule_test(alert)) == ""


@pytest.mark.parametrize(
    ("series", "alerts"),
    [
        pytest.param({"placement_guard_certificate_expiry_timestamp_seconds": f"{_WEEK}x20"}, 1, id="placement guard"),
        pytest.param(
            {
                "placement_guard_certificate_expiry_timestamp_seconds": f"{_WEEK}x20",
                "tls_certificate_expiry_timestamp_seconds": f"{_WEEK}x20",
            },
            1,
            id="both",
        ),
        pytest.param({"tls_certificate_expiry_timestamp_seconds": "0x20"}, 0, id="no TLS"),
    ],
)
def test_each_certificate_is_watched(tmp_path: Path, series: Mapping[str, str], alerts: int) -> None:
    test = rule_test("LonghornExtenderCertificateExpires")
    (group,) = test["tests"]
    group["input_series"] = [{"series": f"{PREFIX}_{name}", "values": values} for name, values in series.items()]
    (_, firing) = group["alert_rule_test"]
    group["alert_rule_test"] = [{**firing, "eval_time": "15m", "exp_alerts": firing["exp_alerts"] * alerts}]
    assert run_promtool(tmp_path, RULE["spec"], test) == ""


@pytest.mark.parametrize(
    ("values", "minute"),
    [
        pytest.param("0x200", 150, id="never safe"),
        pytest.param("1x10 0x50 1x10 0x50", 110, id="safe again within the hour"),
        pytest.param("1x10 0x1600", 1600, id="unsafe for more than a day"),
        pytest.param("1x10 _x200", 200, id="no longer predicted"),
    ],
)
def test_a_node_that_is_as_safe_as_before_is_no_alert(tmp_path: Path, values: str, minute: int) -> None:
    """Three nodes with three replicas of each volume can lose none. That is no news."""
    test = rule_test("LonghornNodeNotSafeToLose")
    (group,) = test["tests"]
    group["input_series"] = [{"series": f"{PREFIX}_node_safe_to_lose{{node='a'}}", "values": values}]
    group["alert_rule_test"] = [{"eval_time": f"{minute}m", "alertname": "LonghornNodeNotSafeToLose", "exp_alerts": []}]
    assert run_promtool(tmp_path, RULE["spec"], test) == ""


def test_what_the_program_exposes_follows_the_conventions_of_prometheus() -> None:
    exposition = generate_latest(extender_registry()).decode()
    argv = [find_promtool(), "check", "metrics"]
    done = subprocess.run(argv, input=exposition, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def exposed_series() -> Iterator[str]:
    for family in extender_registry().collect():
        for sample in family.samples:
            labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sample.labels.items())
            yield f"{sample.name}{{{labels}}}"


def test_every_expression_of_the_dashboard_has_data(tmp_path: Path) -> None:
    """Each becomes an alert that fires if the expression has data. The data is from what the extender exposes."""
    queries = list(dashboard_queries())
    rules = [{"alert": f"panel{number}", "expr": f"count({text}) > 0"} for number, (_, text) in enumerate(queries)]
    alerts = [
        {"eval_time": "10m", "alertname": rule["alert"], "exp_alerts": [{"exp_labels": {}, "exp_annotations": {}}]}
        for rule in rules
    ]
    series = [{"series": name, "values": "1+1x10"} for name in sorted(exposed_series())]
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": alerts}],
    }
    assert run_promtool(tmp_path, {"groups": [{"name": "panels", "rules": rules}]}, test) == ""


def test_the_pod_monitor_selects_the_extenders_pods() -> None:
    (monitor,) = documents(MONITORING / "podmonitor.yaml")
    template = only("Deployment")["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    ports = [port["name"] for container in template["spec"]["containers"] for port in container["ports"]]
    assert endpoint["port"] in ports
    assert endpoint["path"] == "/metrics"


def test_the_dashboard_is_what_its_table_of_panels_makes() -> None:
    """After a change: `python -m devcluster.dashboard`."""
    pytest.importorskip("grafana_foundation_sdk", reason="the Grafana Foundation SDK is not installed: make check does")
    dashboard = importlib.import_module("devcluster.dashboard")
    assert DASHBOARD.read_text() == dashboard.render()


def test_every_panel_reads_the_chosen_data_source_and_says_what_it_shows() -> None:
    panels = [panel for panel in dashboard_panels() if panel["type"] != "row"]
    assert {target["datasource"]["uid"] for panel in panels for target in panel["targets"]} == {"${datasource}"}
    assert all(panel["title"] and panel["description"] for panel in panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert len({panel["id"] for panel in dashboard_panels()}) == len(dashboard_panels())


def test_grafana_finds_the_dashboard_by_its_label() -> None:
    """The sidecar of Grafana's chart looks for this one."""
    (kustomization,) = documents(MONITORING / "kustomization.yaml")
    (generator,) = kustomization["configMapGenerator"]
    assert generator["options"]["labels"] == {"grafana_dashboard": "1"}
    assert [entry.partition("=")[2] for entry in generator["files"]] == [DASHBOARD.name]
