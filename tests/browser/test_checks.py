"""The checks of this folder can fail. Each bad page breaks one of them, and the good page none."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.checks import (
    axe_violations,
    keyboard_problems,
    overflow_problems,
    print_problems,
    skip_link_problems,
    tab_stops,
)
from tests.browser.folders import serve_folder
from tests.browser.visit import LOOKS, NARROW, WIDE, Look, visit

pytestmark = [pytest.mark.e2e]

GOOD = Template("""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Nodes</title><link rel="icon" href="data:,">
<style>a:focus-visible, button:focus-visible { outline: 2px solid; } body { color: black; background: white; } $style</style></head>
<body><a href="#main">Skip to the nodes</a><header><a href="/">Home</a></header>
<main id="main" tabindex="-1"><h1>Nodes</h1><p><a href="/node-1">node-1</a> <button>Filter</button></p>$body</main></body>
</html>
""")


@dataclass
class Pages:
    """Writes pages into a folder that is served."""

    folder: Path
    address: str
    written: int = 0

    def write(self, body: str = "", style: str = "", old: str = "", new: str = "") -> str:
        self.written += 1
        name = f"page-{self.written}.html"
        (self.folder / name).write_text(GOOD.substitute(body=body, style=style).replace(old, new))
        return f"{self.address}/{name}"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """The pages of these tests."""
    folder = tmp_path_factory.mktemp("pages")
    with serve_folder(folder) as address:
        yield Pages(folder, address)


@pytest.fixture(scope="module")
def page(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    yield page
    page.close()


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_a_good_page_passes_every_check(chromium: Browser, pages: Pages, look: Look) -> None:
    with visit(chromium, pages.write(), look) as opened:
        assert axe_violations(opened.page) == []
        assert overflow_problems(opened.page) == []
        assert print_problems(opened.page) == []
        assert keyboard_problems(opened.page) == []
        assert [stop.name for stop in tab_stops(opened.page)] == [
            '<a> "Skip to the nodes"', '<a> "Home"', '<a> "node-1"', '<button> "Filter"',
        ]  # fmt: skip
    assert len(opened.requests) == 1


BAD_PARTS = {
    '<img alt="" src="http://example.com/a.png">': "request to another server: http://example.com/a.png",
    '<img alt="" src="http://localhost:1/a.png">': "request to another server: http://localhost:1/a.png",
    '<script src="https://example.com/a.js"></script>': "request to another server: https://example.com/a.js",
    "<style>@import url(//example.com/a.css);</style>": "request to another server: http://example.com/a.css",
    "<script>fetch('//example.com/x').catch(() => 0)</script>": "request to another server: http://example.com/x",
    "<script>new WebSocket('ws://example.com/x')</script>": "web socket: ws://example.com/x",
    '<link rel="preconnect" href="https://example.com">': 'connects in advance: <link rel="preconnect"',
    "<script>console.error('no nodes')</script>": "console error: no nodes",
    "<script>undefined.nodes</script>": "exception: .*Cannot read properties of undefined",
    "<script>Promise.reject(new Error('lost'))</script>": "exception: .*lost",
    '<img alt="" src="/missing.png">': "console error: .*404",
}


def test_errors_and_outside_requests_fail_a_visit(chromium: Browser, pages: Pages) -> None:
    with pytest.raises(AssertionError) as failure, visit(chromium, pages.write("".join(BAD_PARTS))):
        pass
    assert [problem for problem in BAD_PARTS.values() if not re.search(problem, str(failure.value))] == []


def test_a_broken_content_security_policy_fails_a_visit(chromium: Browser, pages: Pages) -> None:
    url = pages.write(
        "<script>1</script>", '</style><meta http-equiv="Content-Security-Policy" content="script-src \'none\'"><style>'
    )
    with pytest.raises(AssertionError, match=r"console error: .*Content Security Policy"), visit(chromium, url):
        pass


def test_a_file_asks_for_nothing_but_itself(chromium: Browser, tmp_path: Path) -> None:
    """A report must be readable wherever it is moved to."""
    (tmp_path / "style.css").write_text("")
    report = tmp_path / "report.html"
    report.write_text(GOOD.substitute(body='<link rel="stylesheet" href="style.css">', style=""))
    with (
        pytest.raises(AssertionError, match=r"request to another server: file:.*style\.css"),
        visit(chromium, report.as_uri()),
    ):
        pass


Check = Callable[[Page], list[str]]


@pytest.mark.parametrize(
    ("check", "added", "problem"),
    [
        (axe_violations, '<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">', "image-alt: "),
        (axe_violations, '<p style="color: #aaa">pale</p>', "color-contrast: "),
        (axe_violations, "<h3>too deep</h3>", "heading-order: "),
        (axe_violations, '<input type="search">', "label: "),
        (keyboard_problems, '<a href="/" tabindex="-1">hidden</a>', 'Tab never reaches <a> "hidden"'),
        (keyboard_problems, '<span onclick="1">row</span>', 'Tab never reaches <span> "row"'),
        (
            keyboard_problems,
            "<style>button:focus-visible { outline: none; }</style>",
            'nothing shows that <button> "Filter" has the focus',
        ),
        (
            keyboard_problems,
            '<button style="position: absolute; left: -99px">lost</button>',
            'one cannot see <button> "lost", which has the focus',
        ),
        (
            keyboard_problems,
            '<div style="position: fixed; inset: 0; background: white"></div>',
            'one cannot see <a> "Home", which has the focus',
        ),
        (keyboard_problems, '<button tabindex="1">first</button>', "the order of Tab is not the page's"),
        (overflow_problems, '<div style="width: 2000px">disks</div>', "pixels wide, the window 1280: .*disks"),
        (
            print_problems,
            "<style>@media print { p { color: #ccc; } }</style><p>pale</p>",
            'on paper <p> "pale" has a contrast of 1.6',
        ),
        (
            print_problems,
            '<p style="color: white; background: black">white on black</p>',
            'on paper <p> "white on black" has a contrast of 1.0',
        ),
    ],
)
def test_each_bad_page_breaks_its_check(page: Page, pages: Pages, check: Check, added: str, problem: str) -> None:
    page.goto(pages.write(added))
    problems = check(page)
    assert any(re.search(problem, line) for line in problems), problems


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "", ""),
        ('<a href="#main">Skip to the nodes</a>', "", "the first control leads to '/', not to a part of the page"),
        ('href="#main"', 'href="#nodes"', "after the skip link the focus is not in the main part"),
    ],
)
def test_a_page_needs_a_skip_link_that_works(page: Page, pages: Pages, old: str, new: str, problem: str) -> None:
    page.goto(pages.write(old=old, new=new))
    assert skip_link_problems(page) == problem.splitlines()


def test_zoom_halves_the_window(chromium: Browser, pages: Pages) -> None:
    url = pages.write('<div class="wide">disks</div>', ".wide { width: 700px; }")
    with visit(chromium, url, WIDE) as opened:
        assert overflow_problems(opened.page) == []
    with visit(chromium, url, Look(zoom=2)) as opened:
        assert len(overflow_problems(opened.page)) == 1
    with visit(chromium, url, NARROW) as opened:
        assert len(overflow_problems(opened.page)) == 1


def test_scripts_can_be_switched_off(chromium: Browser, pages: Pages) -> None:
    url = pages.write("<p id=text></p><script>text.textContent = 'written by a script'</script>")
    with visit(chromium, url) as opened:
        assert opened.page.get_by_text("written by a script").count() == 1
    with visit(chromium, url, Look(scripts=False)) as opened:
        assert opened.page.get_by_text("written by a script").count() == 0
