"""A visit to a page in Chromium that fails at any error. It also fails if the page requests anything from another server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Route, WebError, WebSocketRoute

# These links open connections that a route does not see.
_PREPARED_LINKS = """() => [...document.querySelectorAll(
    'link[rel~=preconnect], link[rel~=dns-prefetch], link[rel~=prefetch], link[rel~=prerender]')].map(link => link.outerHTML)"""


@dataclass(frozen=True)
class Look:
    """How a person sees a page."""

    width: int = 1280  # of the window, in CSS pixels
    height: int = 800
    dark: bool = False
    zoom: int = 1  # 2 is 200 %: a window holds half as many CSS pixels, each of two screen pixels
    scripts: bool = True  # whether JavaScript runs

    def __str__(self) -> str:
        words = (
            "dark" if self.dark else "light",
            str(self.width),
            f"zoom-{self.zoom}00" if self.zoom > 1 else "",
            "" if self.scripts else "no-scripts",
        )
        return "-".join(word for word in words if word)


WIDE = Look()
NARROW = Look(width=400)
DARK_NARROW = Look(width=400, dark=True)
# Colours do not depend on the width, nor widths on the colours, so that two looks are enough.
LOOKS = (WIDE, DARK_NARROW)


@dataclass
class Visit:
    """An open page."""

    page: Page
    url: str
    requests: list[str] = field(default_factory=list)  # the addresses that the page asked for, its own first
    problems: list[str] = field(default_factory=list)  # what is wrong with the page, one line each

    def is_own(self, url: str) -> bool:
        """Whether a page of its server may ask for an address. A file asks for nothing but itself."""
        own = urlsplit(self.url)
        other = urlsplit(url)
        if own.scheme == "file":
            return url == self.url
        return (own.scheme, own.netloc) == (other.scheme, other.netloc)

    def answer_request(self, route: Route) -> None:
        """Lets requests to the page's own server through."""
        url = route.request.url
        self.requests.append(url)
        if self.is_own(url):
            route.continue_()
        else:
            self.problems.append(f"request to another server: {url}")
            route.abort()

    def refuse_web_socket(self, socket: WebSocketRoute) -> None:
        """No page of this repository opens one."""
        self.problems.append(f"web socket: {socket.url}")
        socket.close()

    def note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.problems.append(f"console {message.type}: {message.text}")

    def note_exception(self, exception: WebError) -> None:
        self.problems.append(f"exception: {exception.error}")

    def note_prepared_links(self) -> None:
        self.problems += [f"connects in advance: {link}" for link in self.page.evaluate(_PREPARED_LINKS)]


@contextmanager
def visit(browser: Browser, url: str, look: Look = WIDE) -> Iterator[Visit]:
    """Opens a page in a new profile."""
    context = browser.new_context(
        viewport={"width": look.width // look.zoom, "height": look.height // look.zoom},
        device_scale_factor=look.zoom,
        color_scheme="dark" if look.dark else "light",
        java_script_enabled=look.scripts,
        service_workers="block",
    )
    try:
        opened = Visit(context.new_page(), url)
        context.route("**/*", opened.answer_request)
        context.route_web_socket("**/*", opened.refuse_web_socket)
        context.on("console", opened.note_message)
        context.on("weberror", opened.note_exception)
        opened.page.goto(url)
        yield opened
        opened.note_prepared_links()
        assert not opened.problems, "\n".join(opened.problems)
    finally:
        context.close()
