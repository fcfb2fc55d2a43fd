"""Debian's Chromium without a window, driven by Playwright. The tests of the pages use it, and so do their pictures."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

# Chromium itself asks for updates, field trials and the like at every start. The last two options hold whatever else it tries: names of
# hosts lead nowhere, and there is no proxy.
OPTIONS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--no-proxy-server",
)


def find_chromium() -> str | None:
    """Returns the path of Chromium; None if it is not on PATH."""
    return shutil.which("chromium")


@contextmanager
def start_chromium(program: str) -> Iterator[Browser]:
    """Runs Chromium with a new, empty profile. It reaches 127.0.0.1 and files, and nothing else. There is no sandbox, which root
    cannot have: open pages of this repository only.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS, chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()
