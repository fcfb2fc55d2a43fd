"""What a reader needs from a page. This is axe-core's rules, the keyboard, a narrow window, and paper. Each check returns what is wrong,
one line each.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped] # it has no types
from playwright.sync_api import Page, ViewportSize

_SCRIPTS = Path(__file__).with_name("checks.js").read_text()
_MAX_TAB_STOPS = 600
# A4 without Chromium's margins of a centimetre, at 96 pixels an inch.
_PAPER: ViewportSize = {"width": 718, "height": 1047}


def axe_violations(page: Page) -> list[str]:
    """Returns the elements that break one of axe-core's rules, its best practices included."""
    return _run_axe(page, "runAxe")


def contrast_violations(page: Page) -> list[str]:
    """Returns the texts that axe-core finds too pale: the rule that other colours of the same page may break."""
    return _run_axe(page, "runContrast")


def _run_axe(page: Page, function: str) -> list[str]:
    page.evaluate(AXE_SCRIPT)
    page.evaluate(_SCRIPTS)
    violations: list[dict[str, Any]] = page.evaluate(f"() => checks.{function}()")
    return [
        f"{violation['id']}: {violation['help']}: {' '.join(map(str, node['target']))}: {node['html'][:120]}"
        for violation in violations
        for node in violation["nodes"]
    ]


@dataclass(frozen=True)
class TabStop:
    """An element that the Tab key reached."""

    index: int  # its number in the page's list of links and controls; -1 for other elements, as a table that scrolls
    name: str
    has_outline: bool  # whether one sees that it has the focus
    covered: bool  # whether it is outside of the window, or below another element


def tab_stops(page: Page) -> list[TabStop]:
    """Presses Tab through the page, and returns what got the focus."""
    page.evaluate(_SCRIPTS)
    page.evaluate("() => checks.listControls()")
    stops: list[TabStop] = []
    while len(stops) < _MAX_TAB_STOPS:
        page.keyboard.press("Tab")
        focus: dict[str, Any] | None = page.evaluate("() => checks.describeFocus()")
        stop = TabStop(focus["index"], focus["name"], focus["hasOutline"], focus["covered"]) if focus else None
        # Chromium has no controls of its own here, so that the focus may return to the first element.
        if stop is None or (stops and stop == stops[0]):
            return stops
        stops.append(stop)
    raise AssertionError(f"the focus never leaves the page; it was last on {stops[-1].name}")


def keyboard_problems(page: Page) -> list[str]:
    """Returns what a person cannot do with the keyboard alone."""
    stops = tab_stops(page)
    controls: list[str] = page.evaluate("() => checks.nameControls()")
    reached = {stop.index for stop in stops}
    order = [stop.index for stop in stops if stop.index >= 0]
    return [
        *(f"Tab never reaches {name}" for index, name in enumerate(controls) if index not in reached),
        *(f"nothing shows that {stop.name} has the focus" for stop in stops if not stop.has_outline),
        *(f"one cannot see {stop.name}, which has the focus" for stop in stops if stop.covered),
        *([] if order == sorted(order) else [f"the order of Tab is not the page's: {order}"]),
    ]


def skip_link_problems(page: Page) -> list[str]:
    """Returns why the skip link does not lead past the page's head. It is reached by the first press of Tab, and followed by Enter."""
    page.evaluate(_SCRIPTS)
    page.keyboard.press("Tab")
    first: str = page.evaluate("() => document.activeElement.getAttribute('href') ?? ''")
    if not first.startswith("#"):
        return [f"the first control leads to {first!r}, not to a part of the page"]
    page.keyboard.press("Enter")
    inside: bool = page.evaluate("() => document.querySelector('main')?.contains(document.activeElement) ?? false")
    return [] if inside else ["after the skip link the focus is not in the main part"]


def overflow_problems(page: Page) -> list[str]:
    """Returns the elements that make the whole page scroll sideways."""
    page.evaluate(_SCRIPTS)
    problems: list[str] = page.evaluate("() => checks.findOverflow()")
    return problems


def cut_problems(page: Page) -> list[str]:
    """Returns the elements that do not show all of their text."""
    page.evaluate(_SCRIPTS)
    problems: list[str] = page.evaluate("() => checks.findCut()")
    return problems


def print_problems(page: Page) -> list[str]:
    """Returns texts that are unreadable on white paper, or cut off. Browsers print no backgrounds, except where
    `print-color-adjust` is `exact`.
    """
    window = page.viewport_size
    page.set_viewport_size(_PAPER)
    page.emulate_media(media="print")
    page.evaluate(_SCRIPTS)
    problems: list[str] = page.evaluate("() => [...checks.findPaleText(), ...checks.findOverflow()]")
    page.emulate_media(media="screen")
    if window is not None:
        page.set_viewport_size(window)
    return problems
