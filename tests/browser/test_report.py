"""The report of `longhorn-extender what-if --html` in Chromium, opened as a file: of a small and of a large cluster."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.checks import axe_violations, keyboard_problems, overflow_problems, print_problems
from tests.browser.clusters import MIN_WAITING, mixed_cluster, node_name
from tests.browser.visit import DARK_NARROW, LOOKS, Look, visit
from tests.builders import write_list
from tests.worlds.service import EXTENDER

pytestmark = [pytest.mark.e2e]

SMALL = 10
LARGE = 1000
# Drains of so many nodes of a cluster: each has a pod, and replicas of two volumes.
DRAINED = {SMALL: 1, LARGE: 6}
ZOOMED = Look(zoom=2)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, str]:
    """The address of the report about a cluster, by its number of nodes; both are written at once."""
    folder = tmp_path_factory.mktemp("reports")
    commands = {nodes: _start_command(folder, nodes) for nodes in DRAINED}
    for nodes, command in commands.items():
        _, errors = command.communicate(timeout=120)
        # Only the small cluster has pods that fit nowhere.
        assert command.returncode == (1 if nodes == SMALL else 0), errors
    return {nodes: (folder / f"{nodes}.html").as_uri() for nodes in DRAINED}


def _start_command(folder: Path, nodes: int) -> subprocess.Popen[str]:
    snapshot = write_list(folder / f"{nodes}.json", mixed_cluster(nodes, waiting=MIN_WAITING if nodes == SMALL else 0))
    drained = ",".join(node_name(index) for index in range(1, 1 + DRAINED[nodes]))
    argv = [EXTENDER, "what-if", "--snapshot", snapshot, "--drain", drained]
    argv += ["--orders", "5" if nodes == SMALL else "1", "--html", str(folder / f"{nodes}.html")]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("nodes", DRAINED)
@pytest.mark.parametrize("look", [*LOOKS, ZOOMED], ids=str)
def test_a_report_is_readable(chromium: Browser, reports: Mapping[int, str], nodes: int, look: Look) -> None:
    with visit(chromium, reports[nodes], look) as opened:
        problems = [
            *(axe_violations(opened.page) if look != ZOOMED else ()),
            *overflow_problems(opened.page),
            *print_problems(opened.page),
        ]
    assert problems == []
    assert opened.requests == [reports[nodes]]


@pytest.mark.parametrize("nodes", DRAINED)
def test_a_table_that_is_wider_than_the_window_scrolls_by_keyboard(
    chromium: Browser, reports: Mapping[int, str], nodes: int
) -> None:
    with visit(chromium, reports[nodes], DARK_NARROW) as opened:
        page = opened.page
        assert keyboard_problems(page) == []
        tables = page.locator(".scroll")
        assert tables.count() == page.locator("table").count() >= 4
        pods = page.get_by_role("region", name="Table: Pods that move or are new")
        pods.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("table => table.scrollLeft > 0", arg=pods.element_handle())


@pytest.mark.smoke
def test_a_report_needs_no_scripts(chromium: Browser, reports: Mapping[int, str]) -> None:
    """It has none, so that mail programs and wikis show all of it."""
    with visit(chromium, reports[SMALL], Look(scripts=False)) as opened:
        page = opened.page
        assert page.locator("script").count() == 0
        assert "pods are always placed" in page.locator(".outcome").inner_text()
        assert page.locator("figure svg").count() >= 4
