"""Takes the pictures of README and docs: `python -m devcluster.screenshots` writes them into docs/images.

The extender serves the bundled example and is asked about a few of its pods, and Chromium opens its pages.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from playwright.sync_api import Browser

from devcluster.chromium import find_chromium, start_chromium
from devcluster.errors import DevClusterError
from devcluster.http_check import http_request, is_filtered
from devcluster.ports import Ports
from devcluster.process import Process, http_ok
from devcluster.programs import find_extender

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs/images"
EXAMPLE: Final = ROOT / "examples/mixed-cluster"
PODS: Final = ("ephemeral", "plain", "rwx", "strict-local")
# They are in the repository's history for ever.
MAX_BYTES: Final = 150_000


@dataclass(frozen=True)
class Picture:
    """A page and how it is seen; the height is that of the window, or that of the page if it is less."""

    name: str
    path: str
    width: int = 1200
    height: int = 800
    dark: bool = False

    @property
    def file(self) -> Path:
        """Where the picture is written."""
        return FOLDER / f"{self.name}.png"


PICTURES: Final = (
    Picture("status-page", "/"),
    Picture("status-page-dark", "/", dark=True),
    Picture("status-page-narrow", "/", width=400, height=900),
    Picture("waiting-pods", "/pods"),
    Picture("node-page", "/nodes/west-3"),
)


def main() -> None:
    """Takes every picture; ends with code 1 and one line if one cannot be taken."""
    program = find_chromium()
    if program is None:
        sys.exit("screenshots: there is no chromium on PATH: install Debian's package chromium")
    try:
        with serve_example() as address, start_chromium(program) as browser:
            for picture in PICTURES:
                take_picture(browser, address, picture)
    except DevClusterError as error:
        sys.exit(f"screenshots: {error}")


@contextmanager
def serve_example() -> Iterator[str]:
    """Runs the extender over the bundled example, with decisions about its pods; yields its address.

    Raises:
        DevClusterError: it does not start, or does not answer
    """
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
    """Returns pods of the example, as kube-scheduler would send them."""
    pods = [yaml.safe_load((EXAMPLE / f"pods/{name}.yaml").read_text()) for name in PODS]
    for pod in pods:
        pod["metadata"]["uid"] = f"uid-{pod['metadata']['name']}"
    return pods


def request_decision(address: str, pod: dict[str, Any]) -> None:
    """Sends a pod with the names of all nodes to /filter.

    Raises:
        DevClusterError: there is no decision
    """
    _, state = http_request(f"{address}/state")
    body = {"Pod": pod, "Nodes": None, "NodeNames": sorted(state["nodes"])}
    status, answer = http_request(f"{address}/filter", body)
    if not is_filtered(status, answer):
        raise DevClusterError(f"/filter answered {status} about {pod['metadata']['name']}: {json.dumps(answer)[:200]}")


def take_picture(browser: Browser, address: str, picture: Picture) -> None:
    """Writes a picture.

    Raises:
        DevClusterError: there is no such page, or its picture is too large
    """
    page = browser.new_page(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme="dark" if picture.dark else "light",
        reduced_motion="reduce",
    )
    answer = page.goto(address + picture.path)
    if answer is None or not answer.ok:
        raise DevClusterError(f"{picture.path} answered {answer.status if answer else 'nothing'}")
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
