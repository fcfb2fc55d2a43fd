"""The status page in Chromium: at 10 and at 1,000 nodes. It is tested for every way to read it."""

import http.client
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import checks
from tests.browser.clusters import HOSTILE_DISK, HOSTILE_TAG, mixed_cluster, node_name
from tests.browser.visit import LOOKS, WIDE, Look, visit
from tests.builders import pod
from tests.worlds.service import serve_snapshot

pytestmark = [pytest.mark.e2e]
SMALL = 10
LARGE = 1000
REFRESH_MILLISECONDS = 10_000
FINISH_SECONDS = 60
VISITS = 5


@dataclass(frozen=True)
class Site:
    """A process that serves a cluster and has decided about pods."""

    port: int
    nodes: int

    def address(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def views(self) -> Sequence[str]:
        """The path of every view; of a large cluster those that have more rows than in a small one."""
        growing = ("/", "/?group=zone", "/pods", "/pods/default/warehouse-0")
        if self.nodes > SMALL:
            return (*growing, f"/?page={self.nodes // 50}")
        node = quote(node_name(0), safe="")
        return (
            *growing,
            "/?q=no-such-node",
            "/pods/default/warehouse-2",
            f"/nodes/{node}",
            f"/nodes/{node}/drain",
            "/decision-log",
        )

    def views_in(self, look: Look) -> Sequence[str]:
        """Every view light and wide, and of the small cluster dark and narrow, too; otherwise the first."""
        return self.views if look == WIDE or self.nodes == SMALL else self.views[:1]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Site]]:
    """The sites by their number of nodes."""
    sizes = (SMALL, LARGE)
    folders = [tmp_path_factory.mktemp("site") for _ in sizes]
    # The processes start at once.
    with ExitStack() as stack, ThreadPoolExecutor(len(sizes)) as threads:
        started = threads.map(_serve, repeat(stack), folders, sizes)
        yield {site.nodes: site for site in started}


def _serve(stack: ExitStack, folder: Path, nodes: int) -> Site:
    process = stack.enter_context(serve_snapshot(folder, objects=mixed_cluster(nodes)))
    site = Site(process.port, nodes)
    for index in range(3):
        decide(site, f"decided-{index}")
    if nodes == SMALL:
        finish(site)
    return site


def finish(site: Site) -> None:
    """Waits until every view has what its process works out in the background."""
    deadline = time.monotonic() + FINISH_SECONDS
    for path in site.views:
        while "worked out" in urlopen(site.address(path), timeout=20).read().decode():  # noqa: S310 # http://127.0.0.1
            assert time.monotonic() < deadline, f"{path} is not finished"
            time.sleep(0.1)


def decide(site: Site, name: str) -> None:
    """Sends a pod without volumes to /filter."""
    names = [node_name(index) for index in range(site.nodes)]
    body = {"Pod": pod(name=name, uid=f"uid-{name}"), "Nodes": None, "NodeNames": names}
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    connection.request("POST", "/filter", json.dumps(body))
    assert connection.getresponse().status == 200
    connection.close()


Check = Callable[[Page], list[str]]


def problems_of(
    chromium: Browser, site: Site, look: Look, paths: Sequence[str], *each: Check, still: bool = False
) -> dict[str, list[str]]:
    """What is wrong with views, by their paths. Each check visits the view anew, which does not refresh itself if it is `still`."""
    problems: dict[str, list[str]] = {}
    with visit(chromium, site.address(), look) as opened:
        if still:
            stop_clock(opened.page)
        for path in paths:
            for check in each:
                opened.page.goto(site.address(path))
                problems.setdefault(path, []).extend(check(opened.page))
    return {path: lines for path, lines in problems.items() if lines}


@pytest.mark.smoke
@pytest.mark.parametrize("nodes", [SMALL, LARGE])
@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_every_view_is_readable(chromium: Browser, sites: dict[int, Site], nodes: int, look: Look) -> None:
    site = sites[nodes]
    views = site.views_in(look)
    assert problems_of(chromium, site, look, views, checks.axe_violations, checks.overflow_problems) == {}


def test_on_a_telephone_nothing_is_cut(chromium: Browser, sites: dict[int, Site]) -> None:
    """No table scrolls sideways, and no name ends in an ellipsis."""
    site = sites[SMALL]
    telephone = Look(width=390)
    assert problems_of(chromium, site, telephone, site.views, checks.cut_problems, checks.overflow_problems) == {}


@pytest.mark.parametrize("nodes", [SMALL, LARGE])
def test_everything_is_reached_by_keyboard(chromium: Browser, sites: dict[int, Site], nodes: int) -> None:
    """One also sees where one is, and can skip the head."""
    site = sites[nodes]
    views = site.views if nodes == SMALL else ("/", "/pods")
    each = (checks.keyboard_problems, checks.skip_link_problems)
    assert problems_of(chromium, site, WIDE, views, *each, still=True) == {}


@pytest.mark.parametrize("nodes", [SMALL, LARGE])
def test_zoom_and_print(chromium: Browser, sites: dict[int, Site], nodes: int) -> None:
    """At 200 % nothing is too wide, and paper has dark ink. That is so for a dark page, too."""
    site = sites[nodes]
    look = Look(zoom=2, dark=True)
    assert problems_of(chromium, site, look, site.views, checks.overflow_problems, checks.print_problems) == {}


@pytest.mark.parametrize("nodes", [SMALL, LARGE])
def test_the_page_has_everything_without_scripts(chromium: Browser, sites: dict[int, Site], nodes: int) -> None:
    site = sites[nodes]
    # Work in the background may change a number between two visits.
    assert any(
        _section_texts(chromium, site, scripts=False) == _section_texts(chromium, site, scripts=True)
        for _ in range(VISITS)
    )


def _section_texts(chromium: Browser, site: Site, *, scripts: bool) -> list[str]:
    with visit(chromium, site.address(), Look(scripts=scripts)) as opened:
        expect(opened.page.get_by_role("button", name="refresh")).to_have_count(int(scripts))
        # The head has the time.
        return opened.page.locator("main > section").all_inner_texts()


def test_links_and_the_filter_work_without_scripts(chromium: Browser, sites: dict[int, Site]) -> None:
    site = sites[LARGE]
    with visit(chromium, site.address(), Look(scripts=False)) as opened:
        page = opened.page
        page.get_by_role("link", name="Next page").first.click()
        assert page.url == site.address("/?page=2")
        page.get_by_role("searchbox").fill("10-0-3-7.")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name=node_name(757))).to_be_visible()
        page.get_by_role("link", name=node_name(757)).first.click()
        expect(page.get_by_role("heading", level=1)).to_contain_text(node_name(757))


@pytest.mark.smoke
def test_names_are_text(chromium: Browser, sites: dict[int, Site]) -> None:
    site = sites[SMALL]
    with visit(chromium, site.address(f"/nodes/{node_name(0)}")) as opened:
        text = opened.page.locator("main").inner_text()
        assert HOSTILE_DISK in text
        assert HOSTILE_TAG in text
        assert opened.page.locator("main img, main script").count() == 0


@pytest.mark.parametrize(
    "control", ["main", "main .scroll >> nth=-1", "main a >> nth=0", "main a >> nth=-3", "main button >> nth=0"]
)
def test_a_refresh_keeps_focus_and_scroll_position(chromium: Browser, sites: dict[int, Site], control: str) -> None:
    site = sites[SMALL]
    with visit(chromium, site.address(), Look(width=720, height=500)) as opened:
        page = opened.page
        stop_clock(page)
        page.goto(site.address())
        page.locator(control).focus()
        page.locator("main .scroll").last.evaluate("table => table.scrollLeft = 100")
        page.evaluate("scrollTo(0, 900)")
        before = _position(page)
        refresh(page)
        assert _position(page) == before
    assert (before["top"], before["left"]) == (900, [0, 100])
    assert before["focus"] != -1


def stop_clock(page: Page) -> None:
    """Keeps the next pages from refreshing themselves."""
    page.clock.install(time=0)
    page.clock.pause_at(1000)


def refresh(page: Page) -> None:
    page.locator("main").evaluate("main => main.classList.add('old')")
    page.clock.fast_forward(REFRESH_MILLISECONDS)
    expect(page.locator("main.old")).to_have_count(0)


def _position(page: Page) -> dict[str, object]:
    position: dict[str, object] = page.evaluate(
        """() => ({
            focus: [...document.querySelectorAll('main, main *')].indexOf(document.activeElement),
            top: scrollY,
            left: [...document.querySelectorAll('main .scroll')].map(element => element.scrollLeft),
        })"""
    )
    return position


def test_a_refresh_shows_what_has_changed(chromium: Browser, sites: dict[int, Site]) -> None:
    site = sites[SMALL]
    with visit(chromium, site.address("/decision-log")) as opened:
        stop_clock(opened.page)
        opened.page.goto(site.address("/decision-log"))
        expect(opened.page.get_by_text("decided-later")).to_have_count(0)
        decide(site, "decided-later")
        refresh(opened.page)
        expect(opened.page.get_by_text("decided-later")).not_to_have_count(0)
