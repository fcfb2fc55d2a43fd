"""Calls to the API server: every error is one line, every call has a time-out; objects that the process owns."""

import asyncio
import datetime as dt
import gc
import inspect
import json
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from app.kube.client import ApiError, CallLimits, ConnectError, KubeClient, create_owned
from app.kube.resources import LEASES
from devcluster.pki import CertificateAuthority
from tests.worlds.fake_api import KUBECONFIG, FakeApi, connect_client, failing, sending, serve, silent, write_kubeconfig
from tests.worlds.stopwatch import Stopwatch

PATH = "/api/v1/nodes"


@asynccontextmanager
async def client_of(handler: Any, folder: Path) -> AsyncIterator[KubeClient]:
    async with serve(handler, folder) as kubeconfig, await KubeClient.connect(str(kubeconfig)) as client:
        yield client


async def refusal(client: KubeClient, **options: Any) -> ApiError:
    """The error of a GET, which is one line."""
    with pytest.raises(ApiError) as refused:
        await client.get(PATH, **options)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"GET {PATH}: ")
    return refused.value


@pytest.mark.parametrize(
    ("status", "true"),
    [(401, "forbidden"), (403, "forbidden"), (404, "not_found"), (409, "conflict"), (429, "unreachable"),
     (500, "unreachable"), (503, "unreachable")],
)  # fmt: skip
async def test_a_refusal_has_its_kind_and_the_servers_message(status: int, true: str, tmp_path: Path) -> None:
    text = 'nodes is forbidden: User "it" cannot list resource "nodes"'
    async with client_of(failing(status, text, "Because"), tmp_path) as client:
        error = await refusal(client)
    assert (error.status, error.reason) == (status, "Because")
    assert str(error) == f"GET {PATH}: {text} (HTTP {status})"
    assert "secret-token" not in f"{error}{error!r}{error.__cause__!r}"
    kinds = ("unreachable", "not_found", "conflict", "forbidden")
    assert [kind for kind in kinds if getattr(error, kind)] == [true]


@pytest.mark.parametrize("body", ["<html>\n<b>Bad\nGateway</b>", "", "{", '{"message": 3}', "[]"])
async def test_an_error_without_a_status_shows_the_body(body: str, tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text=body)

    async with client_of(answer, tmp_path) as client:
        assert " ".join(body.split()) in str(await refusal(client))


@pytest.mark.parametrize(
    ("address", "cause"), [("127.0.0.1:9", "Connection refused"), ("no-such-host.invalid:6443", "")]
)
async def test_a_missing_server_is_an_error_with_address_and_cause(address: str, cause: str, tmp_path: Path) -> None:
    kubeconfig = write_kubeconfig(tmp_path, f"http://{address}")
    async with await KubeClient.connect(str(kubeconfig)) as client:
        error = await refusal(client)
    assert (error.status, error.unreachable) == (0, True)
    assert str(error).startswith(f"GET {PATH}: cannot connect to {address}: {cause}")


def without_end(status: int) -> Any:
    """Begins an answer and does not end it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"{")
        await asyncio.sleep(60)
        return response

    return answer


@pytest.mark.parametrize("handler", [silent, without_end(200)])
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get(PATH, seconds=0.1),
        lambda client: client.create(PATH, {}, 0.1),
        lambda client: client.replace(PATH, {}, 0.1),
        lambda client: client.patch(PATH, {}, seconds=0.1),
        lambda client: client.delete(PATH, seconds=0.1),
    ],
)
async def test_every_call_has_a_time_out(handler: Any, call: Callable[[KubeClient], Any], tmp_path: Path) -> None:
    """The answer may be missing or endless."""
    async with client_of(handler, tmp_path) as client:
        stopwatch = Stopwatch()
        with pytest.raises(ApiError, match=r"no answer within 0\.1 s") as refused:
            await call(client)
        assert stopwatch.seconds < 2
        assert refused.value.unreachable


async def _answer(request: web.Request) -> web.StreamResponse:
    return web.json_response({})


async def test_limits_hold_calls_back_and_each_client_counts_its_own(tmp_path: Path) -> None:
    async with serve(_answer, tmp_path) as kubeconfig:
        limits = CallLimits(qps=20, burst=3)

        async def get(caller: KubeClient, calls: int) -> Stopwatch:
            stopwatch = Stopwatch()
            await asyncio.gather(*(caller.get(PATH) for _ in range(calls)))
            return stopwatch

        async with await KubeClient.connect(str(kubeconfig), limits=limits) as client:
            assert (await get(client, 3)).seconds < 0.2
            began = time.monotonic()
            await get(client, 10)
            assert time.monotonic() - began >= 0.4
            assert (await get(client.with_own_limits(), 3)).seconds < 0.2


@pytest.mark.parametrize("handler", [silent, without_end(403)])
async def test_a_watch_has_to_begin_or_be_refused_within_the_time_out_of_a_call(
    handler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.kube.client.CALL_TIMEOUT", 0.3)
    async with client_of(handler, tmp_path) as client:
        with pytest.raises(ApiError, match=r"no answer within 0\.3 s"):
            async with client.watch(PATH, {"watch": "true"}, 300):
                pass


async def test_an_aborted_connection_is_an_api_error(tmp_path: Path) -> None:
    """It may be aborted before or within the answer."""
    async with client_of(sending(b'{"items":', abort=True), tmp_path) as client:
        assert (await refusal(client)).unreachable


async def test_requests_have_method_query_body_and_credentials(tmp_path: Path) -> None:
    requests: list[tuple[str, str, str, str, str, Any]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = request.headers
        requests.append((request.method, request.path_qs, headers["Authorization"], headers["User-Agent"].split("/")[0],
                     headers.get("Content-Type", ""), json.loads(body) if body else None))  # fmt: skip
        return web.json_response({})

    async with client_of(answer, tmp_path) as client:
        await client.get(PATH, {"limit": "1", "continue": "a b&c="})
        await client.create(PATH, {"a": 1})
        await client.replace(PATH, {"a": 2})
        await client.patch(PATH, {"a": None})
        await client.delete(PATH, {"preconditions": {"uid": "x"}})
    headers = ("Bearer secret-token", "longhorn-scheduler-extender")
    assert [(method, *details) for method, _, *details in requests] == [
        ("GET", *headers, "application/json", None),
        ("POST", *headers, "application/json", {"a": 1}),
        ("PUT", *headers, "application/json", {"a": 2}),
        ("PATCH", *headers, "application/merge-patch+json", {"a": None}),
        ("DELETE", *headers, "application/json", {"preconditions": {"uid": "x"}}),
    ]
    assert requests[0][1] == f"{PATH}?limit=1&continue=a%20b%26c%3D"


@pytest.mark.parametrize(
    ("no_proxy", "uses"), [("", True), ("api.example", False), ("other.example", True)], ids=["all", "not it", "it"]
)
async def test_the_environments_proxy_is_used_unless_the_server_is_excluded(
    no_proxy: str, uses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by other clients: HTTP_PROXY or HTTPS_PROXY by the server's scheme, and NO_PROXY."""
    hosts: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        hosts.append(request.host)
        return web.json_response({})

    async with serve(answer, tmp_path) as kubeconfig:
        proxy = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", no_proxy)
        server = write_kubeconfig(tmp_path, "http://api.example:1")
        async with await KubeClient.connect(str(server)) as client:
            if uses:
                await client.get(PATH)
            else:
                assert (await refusal(client)).unreachable
    assert hosts == (["api.example"] if uses else [])


async def test_a_closed_client_leaves_no_connection(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    async with client_of(sending(b'{"type":', b"x" * 100, hang=True), tmp_path) as client:
        async with client.watch(PATH, {"watch": "true"}, 30) as stream:
            assert await stream.read(8) == b'{"type":'
        with pytest.raises(ApiError):
            await client.get(PATH, seconds=0.1)
        # SLF001: nothing else shows which connections are in use.
        session = client._api.rest_client.pool_manager  # noqa: SLF001
        assert session is not None
        assert not session.connector._acquired  # type: ignore[union-attr] # noqa: SLF001
    gc.collect()
    assert session.closed
    assert [str(warning.message) for warning in recwarn if "nclosed" in str(warning.message)] == []


def _config(**parts: Any) -> str:
    return yaml.safe_dump({**KUBECONFIG, "clusters": [{"name": "it", "cluster": {"server": "http://x"}}], **parts})


def _config_of(cluster: Any, **user: Any) -> str:
    clusters = [{"name": "it", "cluster": cluster}]
    return _config(clusters=clusters, **({"users": [{"name": "it", "user": user}]} if user else {}))


_OTHER: Any = {"name": "it", "context": {"cluster": "other", "user": "it"}}
_TLS: Any = {"server": "https://x"}
BROKEN_CONFIGS = {
    "no YAML": "{",
    "a tab": "\tx",
    "empty": "",
    "a list": "- a",
    "a text": "text",
    "no contexts": _config(contexts=None),
    "cluster": _config(contexts=[_OTHER]),
    "no server": _config_of({}),
    "no cluster in the cluster": _config(clusters=[{"name": "it"}]),
    "CA is no base64": _config_of({**_TLS, "certificate-authority-data": "%%"}),
    "CA is no certificate": _config_of({**_TLS, "certificate-authority-data": "eA=="}),
    "CA is no file": _config_of({**_TLS, "certificate-authority": "/no/ca"}),
    "no client certificate": _config_of(_TLS, **{"client-certificate": "/no/a", "client-key": "/no/b"}),
    "no token file": _config_of({"server": "http://x"}, tokenFile="/no/token"),
    "unknown context": _config(),
}


@pytest.mark.parametrize("broken", BROKEN_CONFIGS)
async def test_a_broken_kubeconfig_is_an_error_of_one_line(broken: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(BROKEN_CONFIGS[broken])
    with pytest.raises(ConnectError) as refused:
        await KubeClient.connect(str(file), "elsewhere" if broken == "unknown context" else None)
    assert str(refused.value).startswith("no cluster to talk to: ")
    assert "--kubeconfig" in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_missing_kubeconfig_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConnectError, match=f"there is no file {tmp_path}/no"):
        await KubeClient.connect(f"{tmp_path}/no")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/a:{tmp_path}/b")
    with pytest.raises(ConnectError, match=f"there is no file {tmp_path}/a or {tmp_path}/b"):
        await KubeClient.connect()
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConnectError, match=f"there is no file {tmp_path}/.kube/config"):
        await KubeClient.connect()


def _tls(authority: CertificateAuthority, *hosts: str) -> ssl.SSLContext:
    pair = authority.server("server", hosts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    return context


def test_a_timed_out_call_leaves_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS would wait 30 s for the server's close message, which outlives the loop."""
    unraisable: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: unraisable.append(str(error.exc_value)))
    authority = CertificateAuthority.create(tmp_path / "ca")
    context = _tls(authority, "127.0.0.1")
    accepted: list[socket.socket] = []

    def shake_hands_and_hang(listener: socket.socket) -> None:
        accepted.append(context.wrap_socket(listener.accept()[0], server_side=True))

    async def time_out(port: int) -> None:
        trusted = {"certificate-authority": str(authority.bundle)}
        async with await KubeClient.connect(
            str(write_kubeconfig(tmp_path, f"https://127.0.0.1:{port}", **trusted))
        ) as client:
            with pytest.raises(ApiError, match="no answer"):
                await client.get(PATH, seconds=0.3)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=shake_hands_and_hang, args=(listener,))
        server.start()
        asyncio.run(time_out(listener.getsockname()[1]))
        server.join()
    gc.collect()
    accepted[0].close()
    assert unraisable == []


@pytest.mark.parametrize(
    ("host", "own", "problem"),
    [
        ("127.0.0.1", True, ""),
        ("127.0.0.1", False, "self-signed certificate|unable to get local issuer|signature failure"),
        ("10.0.0.1", True, "IP address mismatch"),
    ],
)
async def test_a_server_must_have_a_trusted_certificate(host: str, own: bool, problem: str, tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    trusted = authority if own else CertificateAuthority.create(tmp_path / "other")
    cluster = {"certificate-authority": str(trusted.bundle)}
    async with (
        serve(_answer, tmp_path, _tls(authority, host), **cluster) as file,
        await KubeClient.connect(str(file)) as client,
    ):
        if not problem:
            assert await client.get(PATH) == b"{}"
            return
        text = str(await refusal(client))
    assert re.search(rf"the certificate of 127\.0\.0\.1:\d+ is not trusted: .*({problem})", text)
    assert "0x" not in text


async def test_a_server_without_tls_is_an_error(tmp_path: Path) -> None:
    async with serve(_answer, tmp_path) as file:
        file.write_text(file.read_text().replace("http:", "https:"))
        async with await KubeClient.connect(str(file)) as client:
            assert "cannot connect to 127.0.0.1" in str(await refusal(client))


async def test_a_renewed_service_account_token_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    token = tmp_path / "token"
    token.write_text("first")
    monkeypatch.setattr("kubernetes.aio.config.incluster_config.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr("kubernetes.aio.config.incluster_config.SERVICE_CERT_FILENAME", str(authority.bundle))
    tokens: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        tokens.append(request.headers["Authorization"])
        return web.json_response({})

    async with serve(answer, tmp_path, _tls(authority, "127.0.0.1")) as file:
        host, _, port = yaml.safe_load(file.read_text())["clusters"][0]["cluster"]["server"][8:].partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        async with await KubeClient.connect() as client:
            await client.get(PATH)
            configuration = client._api.configuration  # noqa: SLF001 # the client reads its clock where no test reaches it
            loader = inspect.getclosurevars(configuration.refresh_api_key_hook).nonlocals["self"]
            loader.token_expires_at = dt.datetime(2000, 1, 1)  # noqa: DTZ001 # as the client has it
            token.unlink()
            assert (await refusal(client)).unreachable
            token.write_text("second")
            await client.get(PATH)
    assert [text.lower() for text in tokens] == ["bearer first", "bearer second"]


LEASE: Any = {"kind": "Lease", "metadata": {"name": "extender"}}


async def echo(request: web.Request) -> web.StreamResponse:
    return web.json_response(await request.json())


async def known_as_account(request: web.Request) -> web.StreamResponse:
    user = {"username": "system:serviceaccount:longhorn-system:extender", "uid": "u-1"}
    return web.json_response({**await request.json(), "status": {"userInfo": user}})


OWNER = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "extender", "uid": "u-1"}
OWNED = {"name": "extender", "ownerReferences": [OWNER]}


@pytest.mark.parametrize(
    ("review", "metadata"),
    [
        pytest.param(known_as_account, OWNED, id="the owner is added"),
        # An object without an owner is better than none.
        pytest.param(failing(403), LEASE["metadata"], id="forbidden to ask"),
        pytest.param(failing(404), LEASE["metadata"], id="no such review"),
        # The caller tries again: a moment's trouble must not leave an object behind for ever.
        pytest.param(failing(500), None, id="another error"),
    ],
)
async def test_an_object_is_created_with_its_owner(review: Any, metadata: Any, tmp_path: Path) -> None:
    api = FakeApi()
    api.plans["get"] = [review, echo]
    async with connect_client(api, tmp_path) as client:
        creating = create_owned(client, LEASES.path("longhorn-system"), "longhorn-system", LEASE, 5)
        if metadata is None:
            with pytest.raises(ApiError):
                await creating
        else:
            assert json.loads(await creating) == {**LEASE, "metadata": metadata}
