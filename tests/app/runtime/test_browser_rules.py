"""Which callers are answered by the name they use, the headers of every answer, and HEAD."""

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response

from app.runtime.server import HEADERS, BrowserRules
from app.settings import NO_BROWSER
from scheduler_core.leadership.endpoint_slice import EXTENDER, PLACEMENT_GUARD
from tests.worlds.service import application, http_client

NAMES = ["scheduler.example.com", *EXTENDER.host_names("longhorn-system"), *PLACEMENT_GUARD.host_names("storage")]


async def get(host: str | None, headers: dict[str, str] | None = None) -> Response:
    """The answer to GET / of an application with `NAMES`."""
    app = FastAPI()

    @app.get("/")
    async def names() -> str:
        return "names"

    async with AsyncClient(transport=ASGITransport(BrowserRules(app, NAMES)), base_url="http://a") as client:
        request = client.build_request(
            "GET", "/", headers={**({} if host is None else {"Host": host}), **(headers or {})}
        )
        if host is None:
            del request.headers["Host"]
        return await client.send(request)


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("10.0.0.1", id="a kubelet's"),
        pytest.param("10.0.0.1:9504", id="kube-scheduler's"),
        "[::1]:9504",
        "[fd00::1]",
        "127.0.0.1:9504",
        "localhost",
        "LOCALHOST:9504",
        "longhorn-scheduler-extender",
        "longhorn-scheduler-extender.longhorn-system:9504",
        "longhorn-scheduler-extender.longhorn-system.svc:9504",
        "longhorn-scheduler-extender.longhorn-system.svc.cluster.local.:9504",
        pytest.param("longhorn-scheduler-extender-placement-guard.storage.svc", id="an API server's"),
        pytest.param("longhorn-scheduler-extender-placement-guard.storage.svc:443", id="an API server's, with a port"),
        pytest.param("scheduler.example.com:80", id="allowed"),
        pytest.param(None, id="none"),
    ],
)
async def test_own_names_and_addresses_are_answered(host: str | None) -> None:
    assert (await get(host)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9504",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "longhorn-scheduler-extender.evil.svc",
        "[evil]",
        "",
    ],
)
async def test_other_names_are_refused(host: str) -> None:
    answer = await get(host)
    assert (answer.status_code, "names" in answer.text) == (421, False)


async def test_the_programs_own_commands_may_use_any_name() -> None:
    assert NO_BROWSER.startswith("Sec-")
    assert (await get("kubernetes.example.com:6443", {NO_BROWSER: "command"})).status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/docs", "/redoc", "/state", "/decisions", "/metrics", "/healthz", "/openapi.json"]
)
async def test_every_answer_has_the_headers_of_pages(path: str) -> None:
    async with http_client(application()) as client:
        headers = (await client.get(path)).headers
    for name, value in HEADERS.items():
        if name != "Content-Security-Policy" or path not in {"/docs", "/redoc"}:
            assert headers[name] == value
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "script-src 'self' 'unsafe" not in headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", ["/", "/docs", "/state", "/decisions", "/metrics", "/healthz", "/readyz", "/none"])
async def test_head_is_answered_as_get(path: str) -> None:
    async with http_client(application()) as client:
        get, head = await client.get(path), await client.head(path)
    volatile = {"content-length"} if path == "/metrics" else set[str]()
    assert (head.status_code, {**head.headers} | dict.fromkeys(volatile)) == (
        get.status_code,
        {**get.headers} | dict.fromkeys(volatile),
    )
