"""Takes the pictures of README and docs. `python -m devcluster.screenshots` writes them into docs/images. The extender serves the
bundled example and is asked about a few of its pods, and Chromium opens its pages.
"""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from playwright.sync_api import Browser, Page

from devcluster.chromium import find_chromium, start_chromium
from devcluster.errors import DevClusterError
from devcluster.http_check import http_request, is_filtered
from devcluster.ports import Ports
from devcluster.process import Process, http_ok
from devcluster.programs import find_extender

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/images"
EXAMPLE = ROOT / "examples/mixed-cluster"
PODS = ("ephemeral", "plain", "rwx", "strict-local")
# They are in the repository's history for ever.
MAX_BYTES = 150_000


@dataclass(frozen=True)
class Picture:
    """A page and how it is seen. The height is that of the window, or that of the page if it is less."""

    name: str
    path: str
    width: int = 1200
    height: int = 800
    dark: bool = False

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.png"


PICTURES = (
    Picture("status-page", "/"),
    Picture("status-page-dark", "/", dark=True),
    Picture("status-page-narrow", "/", width=400),
    Picture("pod-page", "/pods/shop/orders-0"),
    Picture("drain-page", "/nodes/west-3/drain"),
)
REPORT = Picture("what-if-report", "", width=1000, height=1280)
WHAT_IF = ("--drain", "west-3")
# Predictions appear on the pages when they are made.
UNFINISHED = ("worked out", "nodes so far", "not predicted yet")
FINISH_SECONDS = 120


def main() -> None:
    """Takes every picture. It ends with code 1 and one line if one cannot be taken."""
    program = find_chromium()
    if program is None:
        sys.exit("screenshots: there is no chromium on PATH: install Debian's package chromium")
    try:
        with serve_example() as address, start_chromium(program) as browser:
            for picture in PICTURES:
                take_picture(browser, address + picture.path, picture)
            with tempfile.TemporaryDirectory() as folder:
                take_picture(browser, write_report(Path(folder)), REPORT)
    except DevClusterError as error:
        sys.exit(f"screenshots: {error}")


@contextmanager
def serve_example() -> Iterator[str]:
    """Runs the extender over the bundled example. It makes decisions about the example's pods, and yields the address."""
    with ExitStack() as stack:
        ports = Ports()
        stack.callback(ports.release)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = f"http://127.0.0.1:{ports.take()}"
        port = address.rpartition(":")[2]
        argv = [str(find_extender()), "serve", "--snapshot", str(EXAMPLE / "snapshot.yaml"), "--port", port]
        extender = Process("the extender", argv, folder / "extender.log", ready=http_ok(f"{address}/readyz"))
        stack.callback(extender.stop)
        extender.start()
        for pod in example_pods():
            request_decision(address, pod)
        yield address


def example_pods() -> list[dict[str, Any]]:
    pods = [yaml.safe_load((EXAMPLE / f"pods/{name}.yaml").read_text()) for name in PODS]
    for pod in pods:
        pod["metadata"]["uid"] = f"uid-{pod['metadata']['name']}"
    return pods


def request_decision(address: str, pod: dict[str, Any]) -> None:
    """Sends a pod with the names of all nodes to /filter."""
    _, state = http_request(f"{address}/state")
    body = {"Pod": pod, "Nodes": None, "NodeNames": sorted(state["nodes"])}
    status, answer = http_request(f"{address}/filter", body)
    if not is_filtered(status, answer):
        raise DevClusterError(f"/filter answered {status} about {pod['metadata']['name']}: {json.dumps(answer)[:200]}")


def write_report(folder: Path) -> str:
    """Writes a what-if report about the example, and returns its address."""
    file = folder / "report.html"
    argv = [
        str(find_extender()),
        "what-if",
        "--snapshot",
        str((EXAMPLE / "snapshot.yaml").relative_to(ROOT)),
        *WHAT_IF,
        "--html",
        str(file),
    ]
    # The report names the snapshot as the command does: not by a path of this machine.
    result = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 # an argument list, no shell
    if not file.exists():
        raise DevClusterError(f"what-if ended with code {result.returncode}: {result.stderr.strip()}")
    return file.as_uri()


def open_finished(page: Page, address: str) -> None:
    """Opens a page, again and again until nothing on it is unfinished."""
    deadline = time.monotonic() + FINISH_SECONDS
    while time.monotonic() < deadline:
        answer = page.goto(address)
        if answer is not None and not answer.ok:
            raise DevClusterError(f"{address} answered {answer.status}")
        text = page.locator("body").inner_text()
        if not any(words in text for words in UNFINISHED):
            return
        time.sleep(1)
    raise DevClusterError(f"{address} is not finished after {FINISH_SECONDS} s")


def take_picture(browser: Browser, address: str, picture: Picture) -> None:
    """Writes a picture."""
    page = browser.new_page(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme="dark" if picture.dark else "light",
        reduced_motion="reduce",
    )
    open_finished(page, address)
    height = min(picture.height, math.ceil(page.evaluate("document.body.getBoundingClientRect().height")))
    image = page.screenshot(clip={"x": 0, "y": 0, "width": picture.width, "height": height})
    page.close()
    if len(image) > MAX_BYTES:
        raise DevClusterError(f"{picture.name} has {len(image):,} bytes, more than {MAX_BYTES:,}")
    picture.file.parent.mkdir(exist_ok=True)
    picture.file.write_bytes(image)
    print(f"{picture.file.relative_to(ROOT)}: {len(image):,} bytes")


if __name__ == "__main__":
    main()
