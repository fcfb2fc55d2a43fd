"""`longhorn-extender what-if --html`: the report, which everybody can read. It needs nothing else than its one file."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from app.cli.what_if_html import line_plot, size_bar
from scheduler_core.model.quantity import format_bytes
from tests.builders import pod, write_list
from tests.worlds.command_line import Run
from tests.worlds.predicted_clusters import add_labels, disruption_budget, growing_class, node, running

VERBS = ("--drain", "a", "--lose", "c", "--rebuild-rate", "100Mi")


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """A snapshot file whose drain waits for a budget. Of the three pods on a only one finds room on b."""
    names = [f"web-{number}" for number in range(3)]
    pods = add_labels([raw for name in names for raw in running(name, "a", replicas=["a", "c"])], app="web")
    listed = {f"{name}-a": 30.0 for name in names}
    bare = pod(name="bare", node="c", phase="Running")
    objects = (growing_class(), node("a", listed=listed), node("b", 50), node("c"), pods, bare)
    file = tmp_path / "snapshot <i>&.json"
    return write_list(file, *objects, disruption_budget(maxUnavailable=1))


@pytest.fixture
def report(run: Run, cluster: str, tmp_path: Path) -> Page:
    file = tmp_path / "report.html"
    assert run("what-if", "--snapshot", cluster, *VERBS, "--html", str(file)).code == 1
    return Page(file.read_text())


def test_the_report_shows_what_the_table_shows(report: Page) -> None:
    for text in (
        "What-if: --drain a, --lose c",
        "snapshot <i>&.json",
        "Something does not always get its place: 0 of 3 pods are always placed, in 20 orders; 0 of 1 drain always finishes",
        "Rebuilds copy 30Gi to 60Gi, which takes 0:05:07 to 0:10:14 one after the other.",
        "default/web-0 a usually",
        "vol-data-web-0 2 1 incomplete in",
        "PodDisruptionBudget default/web needs 2 healthy pods and has 2",
        "Nothing creates them again: default/bare.",
        "It waits if the others are placed in this order first. default/web-0 default/web-",
        "b/disk-1 b/disk-1 before: 0 of 50Gi 0 b/disk-1 after: 30Gi to 60Gi, over the limit of 50Gi 30Gi to 60Gi, over the limit 50Gi",
        "What would help Each was checked at the end of order 1: after it, the pod fits. default/web-2 Grow disk b/disk-1",
        "to be evicted: 3 at first, 1 in the end, at least 1, at most 3.",
        "the first one in which something fails",
        "A node is chosen at random among those that kube-scheduler may choose.",
    ):
        assert text in report.words, report.words


def test_the_report_needs_nothing_else(report: Page) -> None:
    """No script, and no address of anything that would be loaded."""
    assert report.all("script", "img", "iframe", "object", "embed", "image", "use") == []
    assert [each["href"] for each in report.all("link", "a")] == ["data:,"]
    assert [attributes for _, attributes in report.elements if any(name.startswith("on") for name in attributes)] == []
    assert not re.search(r"url\(|@import", report.words)


def test_the_report_can_be_read_without_seeing_it(report: Page) -> None:
    levels = [int(tag[1]) for tag, _ in report.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 == levels.count(1)
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert len(report.all("caption")) == len(report.all("table")) == 4
    assert {each.get("scope") for each in report.all("th")} == {"col", "row"}
    images = [each for each in report.all("svg") if each.get("role") == "img"]
    assert all(each.get("aria-label") or each.get("aria-labelledby") for each in images)
    identifiers = [attributes["id"] for _, attributes in report.elements if attributes.get("id")]
    named = [name for each in images for name in (each.get("aria-labelledby") or "").split()]
    assert len(set(identifiers)) == len(identifiers)
    assert {*named} <= {*identifiers}
    assert len(named) == 8
    assert report.all("html") == [{"lang": "en"}]


def test_names_are_escaped(report: Page) -> None:
    assert report.all("i") == []


def test_a_report_without_pods_has_no_empty_parts(run: Run, tmp_path: Path) -> None:
    file = write_list(tmp_path / "empty.json", node("a"))
    assert run("what-if", "--snapshot", file, "--html", str(tmp_path / "empty.html")).code == 0
    page = Page((tmp_path / "empty.html").read_text())
    assert (page.all("table"), page.all("svg")) == ([], [])
    assert "What-if: the pods that wait" in page.words


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("no/folder.html", "cannot be written: there is no folder"),
        (".", "cannot be written: it is a folder"),
        ("snapshot <i>&.json/report.html", "cannot be written: there is no folder"),
        (f"{'x' * 300}.html", "cannot be written: File name too long"),
    ],
)
def test_a_file_that_cannot_be_written_is_bad_input(
    run: Run, cluster: str, tmp_path: Path, place: str, problem: str
) -> None:
    result = run("what-if", "--snapshot", cluster, "--html", str(tmp_path / place))
    assert (result.code, result.out) == (2, "")
    assert problem in result.err
    assert result.err.count("\n") == 1


@given(st.lists(st.lists(st.integers(0, 2**60), min_size=1, max_size=40), min_size=1, max_size=3))
def test_every_point_of_a_plot_is_within_its_axes(values: list[list[int]]) -> None:
    plot = line_plot("plot", {str(number): list(enumerate(each)) for number, each in enumerate(values)})
    for _, line in plot.lines:
        points = [tuple(map(float, pair.split(","))) for pair in line.split()]
        assert all(plot.left <= across <= plot.right and plot.top <= down <= plot.bottom for across, down in points)
        assert points == sorted(points, key=lambda point: point[0])
    ends = [int(text) for _, text in plot.y_ticks]
    assert ends[0] <= min(map(min, values)) <= max(map(max, values)) <= ends[-1]
    assert (plot.y_ticks[0][0], plot.y_ticks[-1][0]) == (plot.bottom, plot.top)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        pytest.param([0, 3, 1], ["0", "5"], id="from-zero"),
        pytest.param([0], ["0", "1"], id="nothing"),
        pytest.param([100, 97], ["95", "100"], id="far-from-zero"),
        pytest.param([18, 4], ["0", "10", "20"], id="with-a-middle"),
    ],
)
def test_the_axis_has_round_values(values: list[int], ticks: list[str]) -> None:
    assert [text for _, text in line_plot("plot", {"a": list(enumerate(values))}).y_ticks] == ticks


def test_bytes_have_round_values_of_their_unit() -> None:
    plot = line_plot("plot", {"a": [(0, 0), (1, 178 * 1024**3)]}, format_bytes)
    assert [text for _, text in plot.y_ticks] == ["0", "100Gi", "200Gi"]
    assert plot.description == "a: 0 at first, 178Gi in the end, at least 0, at most 178Gi."


def test_the_bars_of_a_disk_have_one_scale() -> None:
    before, after = size_bar(50, 50, 100, 200), size_bar(100, 200, 100, 200)
    assert (before.least, before.limit) == (60, 120)
    assert (after.least, after.most, after.limit) == (120, 240, 120)
    assert size_bar(0, 0, 0, 0).most == 0
