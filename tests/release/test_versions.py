"""The version stands in pyproject.toml; every other place has the same one."""

import re
from pathlib import Path

import yaml

from devcluster.chart import CHART
from devcluster.release import NAME, ROOT, VERSION

# How often the version stands in each file: a release changes all of these.
PLACES = {
    "CHANGELOG.md": 1,
    "Dockerfile": 1,
    "README.md": 1,
    "charts/longhorn-scheduler-extender/Chart.yaml": 3,
    "charts/longhorn-scheduler-extender/README.md": 4,
    "charts/longhorn-scheduler-extender/questions.yaml": 1,
    "charts/longhorn-scheduler-extender/values.yaml": 1,
    "compose.yaml": 2,
    "docs/SECURITY.md": 1,
    "docs/installation.md": 5,
    "docs/is-it-for-me.md": 1,
    "docs/platforms/managed.md": 1,
    "docs/quick-start.md": 2,
    "manifests/base/kustomization.yaml": 1,
    "manifests/disk-schedule/parts/kustomization.yaml": 1,
    "manifests/generic-scheduler/kustomization.yaml": 1,
}
KINDS_OF_CHANGES = {"added", "changed", "deprecated", "removed", "fixed", "security"}


def files() -> list[Path]:
    folders = [path for folder in ("charts", "docs", "manifests") for path in (ROOT / folder).rglob("*")]
    texts = {".md", ".yaml", ".json", ".txt", ".tpl"}
    return [*(path for path in folders if path.suffix in texts), *(path for path in ROOT.iterdir() if path.is_file())]


def test_every_place_has_the_version() -> None:
    pattern = re.compile(rf"(?<![\d.]){re.escape(VERSION)}(?!\d)")
    counts = {str(path.relative_to(ROOT)): len(pattern.findall(path.read_text())) for path in files()}
    assert {name: count for name, count in counts.items() if count} == {**PLACES, "pyproject.toml": 1}


def test_artifact_hub_can_read_what_the_chart_says_about_itself() -> None:
    """Its annotations are YAML in strings."""
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
    prefix = "artifacthub.io/"
    read = {
        name.removeprefix(prefix): yaml.safe_load(text)
        for name, text in metadata["annotations"].items()
        if name.startswith(prefix)
    }
    assert read["images"] == [{"name": NAME, "image": f"{NAME}:{VERSION}", "platforms": ["linux/amd64", "linux/arm64"]}]
    assert {change["kind"] for change in read["changes"]} <= KINDS_OF_CHANGES
    assert all(change["description"] for change in read["changes"])
    assert all(link["url"].startswith("https://") for link in read["links"])
    assert (read["license"], read["category"]) == ("Apache-2.0", "storage")
