"""Chromium, for the tests of the pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from devcluster.chromium import find_chromium, start_chromium


# Playwright's event loop runs as long as the browser, and no other test of the process could run one meanwhile: hence one browser for
# each module.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; without it the test is skipped."""
    program = find_chromium()
    if program is None:
        pytest.skip("there is no chromium on PATH: install Debian's package chromium")
    with start_chromium(program) as browser:
        yield browser
