"""The documentation site in Chromium: `make site`, every page in both colours, links, search, and the selector of versions."""

import re
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.checks import axe_violations, contrast_violations
from tests.browser.folders import serve_folder
from tests.browser.visit import visit

# The first test waits for the build.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
VERSION = "1.0.0"
OLDER = "0.9.0"
START = "README.html"
# The themes of the diagrams, by those of the page.
DRAWN = {"light": "neutral", "dark": "dark"}
IS_DRAWN = """theme => {
    const diagrams = [...document.querySelectorAll('.mermaid')];
    const isDrawn = document.documentElement.dataset.diagrams === theme && diagrams.every(each => each.querySelector(':scope > svg'));
    return diagrams.length === 0 || isDrawn;
}"""
_HREF = re.compile(r'<(?:a|link|script|img)\b[^>]*?\b(?:href|src)="([^"]*)"')
_ID = re.compile(r'\bid="([^"]*)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of the built version, and the address of its pages; an older version lies beside it."""
    if find_spec("sphinx") is None:
        pytest.skip("there is no Sphinx: `make site` installs it")
    folder = tmp_path_factory.mktemp("site")
    (folder / OLDER).mkdir()
    (folder / OLDER / START).write_text(
        '<!doctype html><html lang="en"><title>Older</title><link rel="icon" href="data:,">'
    )
    # `make` takes the packages as they are, whatever the times of the files.
    argv = ["make", "--old-file=.venv/site", "site", f"SITE={folder}", f"VERSION={VERSION}"]
    built = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert built.returncode == 0, built.stderr
    with serve_folder(folder) as address:
        yield folder / VERSION, f"{address}/{VERSION}/"


def pages_of(folder: Path) -> list[str]:
    """Returns the pages, without the one that only leads on to the start page, and the theme's own files."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.html")}
    return sorted(name for name in names if name != "index.html" and not name.startswith("_static/"))


def test_every_page_can_be_read(chromium: Browser, site: tuple[Path, str]) -> None:
    folder, address = site
    problems = []
    kinds = set()
    with visit(chromium, address + START) as opened:
        page = opened.page
        for name in pages_of(folder):
            page.goto(address + name)
            # Colours are compared when they are those of the theme, and not on the way there.
            page.add_style_tag(content="* { transition: none !important; }")
            kind = Path(name).with_suffix("").suffix if name.startswith("files/") else name
            if kind in kinds:
                continue
            kinds.add(kind)
            found = []
            for theme, check in (("light", axe_violations), ("dark", contrast_violations)):
                page.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
                page.wait_for_function(IS_DRAWN, arg=DRAWN[theme])
                found += check(page)
            problems += [f"{name}: {problem}" for problem in found]
    assert problems == []
    assert len(kinds) > len(list((ROOT / "docs").rglob("*.md")))


def test_links_lead_somewhere(site: tuple[Path, str]) -> None:
    folder, _ = site
    texts = {name: (folder / name).read_text() for name in pages_of(folder)}
    places = {name: {*_ID.findall(text), ""} for name, text in texts.items()}
    links: dict[str, set[str]] = {name: set() for name in texts}
    broken = []
    for name, text in texts.items():
        for href in _HREF.findall(text):
            target, place = urldefrag(unquote(urljoin(f"http://site/{name}", href)))
            if href.startswith(("http://", "https://", "data:")):
                continue
            target = target.removeprefix("http://site/").partition("?")[0]
            links[name].add(target)
            if not (folder / target).is_file() or place not in places.get(target, {place}):
                broken.append(f"{name}: {href}")
    assert broken == []
    near = {START, *links[START]}
    near.update(*(links[name] for name in links[START] if name in links))
    assert [name for name in texts if name not in near] == []


def test_search_finds_a_word(chromium: Browser, site: tuple[Path, str]) -> None:
    with visit(chromium, site[1] + START) as opened:
        opened.page.keyboard.press("Control+k")
        opened.page.locator("dialog input[type=search]").fill("stale-safe")
        opened.page.keyboard.press("Enter")
        expect(opened.page.locator("#search-results a[href*='docs/packing.html']").first).to_be_visible()


def test_the_theme_switches_diagrams_too(chromium: Browser, site: tuple[Path, str]) -> None:
    with visit(chromium, site[1] + START) as opened:
        root = opened.page.locator("html")
        expect(root).to_have_attribute("data-diagrams", "neutral")
        opened.page.locator(".theme-switch-button").first.click()
        opened.page.get_by_text("Dark", exact=True).first.click()
        expect(root).to_have_attribute("data-theme", "dark")
        expect(root).to_have_attribute("data-diagrams", "dark")


def test_another_version_can_be_selected(chromium: Browser, site: tuple[Path, str]) -> None:
    _, address = site
    with visit(chromium, address + START) as opened:
        opened.page.goto(address.removesuffix(f"{VERSION}/"))
        opened.page.wait_for_url(address + START)
        versions = opened.page.locator("select.versions").first
        expect(versions.locator("option")).to_have_text([VERSION, OLDER])
        versions.select_option(OLDER)
        opened.page.wait_for_url(f"**/{OLDER}/{START}")
