"""An API server's call to the placement guard: verified by the caBundle, over TLS on a real socket, through every layer."""

import asyncio
import http.client
import json
import signal
import socket
import ssl
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import uvloop

from app.api.placement_review import AdmissionState, guard_application
from app.extender.guard_certificate import NAME, CertificateOptions, GuardCertificate
from app.extender.metrics import Metrics
from app.kube.client import KubeClient
from app.memory_budget import MemoryBudget
from app.runtime.probes import PREFIX, Health, probe_application
from app.runtime.server import HttpServer, serve
from scheduler_core.convert.admission import AdmissionRequest, JsonPatch
from tests.worlds import fake_api
from tests.worlds.guard_api import NAMESPACE, GuardApi
from tests.worlds.tls import client_context

PATCH = [{"op": "replace", "path": "/spec/diskID", "value": "b"}]
REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u-1"}}


class Reviewer:
    """Changes every placement in the same way."""

    async def review(self, request: AdmissionRequest) -> JsonPatch:
        assert request.uid == "u-1"
        return PATCH


class CertificateService:
    """The service next to the servers."""

    def __init__(self, certificate: GuardCertificate) -> None:
        self._certificate = certificate

    async def run(self) -> None:
        await self._certificate.run()

    async def drain(self) -> None:
        """Does nothing."""

    def log_failure(self, error: BaseException) -> None:
        raise error

    def log_drain_failure(self, error: BaseException) -> None:
        raise error


class WebhookConnection(http.client.HTTPConnection):
    """A connection to a port of this machine that verifies the certificate of the webhook's Service."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        super().__init__("127.0.0.1", port, timeout=10)
        self._context = context

    def connect(self) -> None:
        super().connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=f"{NAME}.{NAMESPACE}.svc")


def ask(port: int, bundle: bytes, reviews: int) -> list[Any]:
    """POSTs reviews over one connection; returns the answers."""
    connection = WebhookConnection(port, client_context(bundle))
    answers = []
    for _ in range(reviews):
        connection.request("POST", "/review?timeout=1s", json.dumps(REVIEW), {"Content-Type": "application/json"})
        answers.append(json.loads(connection.getresponse().read()))
    connection.close()
    return answers


async def serve_and_ask(folder: Path) -> tuple[list[Any], float | None]:
    """Returns the answers to three reviews over TLS, and how many answers the metrics count."""
    api = GuardApi()
    metrics = Metrics()
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    async with fake_api.serve(api.handle, folder) as kubeconfig:
        client = await KubeClient.connect(str(kubeconfig))
        options = CertificateOptions(NAMESPACE, lambda: True, lambda: True, lambda: datetime.now(UTC))
        certificate = GuardCertificate(client, options, metrics)
        state = AdmissionState(cast("Any", Reviewer()), str, lambda: True, metrics, MemoryBudget(1 << 30))
        servers = [
            HttpServer(probe_application(lambda: Health(status="ok"), metrics.registry), listeners[0]),
            HttpServer(guard_application(state), listeners[1], lambda: certificate.context),
        ]
        serving = asyncio.create_task(serve(CertificateService(certificate), servers))
        await fake_api.until("the caBundle", lambda: api.bundle)
        answers = await asyncio.to_thread(ask, listeners[1].getsockname()[1], api.bundle, 3)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(serving, 10)
        await client.close()
    name = f"{PREFIX}_placement_guard_reviews_total"
    return answers, metrics.registry.get_sample_value(name, {"result": "answered"})


def test_an_api_server_gets_a_patch_over_tls(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answers, counted = runner.run(serve_and_ask(tmp_path))
    for answer in answers:
        assert json.loads(b64decode(answer["response"].pop("patch"))) == PATCH
        assert answer["response"] == {"uid": "u-1", "allowed": True, "patchType": "JSONPatch"}
    assert len(answers) == counted == 3
