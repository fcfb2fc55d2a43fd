"""A mutating admission webhook for placements, served by this process: a Service without selector leads to it."""

import base64
import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from app.kube.resources import ENDPOINT_SLICES, LONGHORN_NAMESPACE, LONGHORN_REPLICAS
from devcluster.dev_cluster import DevCluster
from devcluster.pki import CertificateAuthority
from devcluster.programs import primary_address

Json = dict[str, Any]
Answer = tuple[bool, list[Json]]
"""Whether a request is allowed, and a JSON patch."""

_NAME = "placement-webhook"
_PORT_NAME = "https"
_SECONDS = 10
# Longhorn's scheduler writes a place: spec.diskID was empty, and is not any more.
_IS_PLACEMENT = 'object.spec.diskID != "" && (!has(oldObject.spec.diskID) || oldObject.spec.diskID == "")'


class PlacementWebhook:
    """The webhook, registered for every placement while it is entered."""

    def __init__(self, cluster: DevCluster, folder: Path, decide: Callable[[Json], Answer]) -> None:
        self.requests: list[Json] = []  # the requests of the reviews so far
        self._cluster = cluster
        self._decide = decide
        authority = CertificateAuthority.create(folder)
        pair = authority.server(_NAME, [f"{_NAME}.{LONGHORN_NAMESPACE}.svc"])
        self._ca_bundle = base64.b64encode(authority.bundle.read_bytes()).decode()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server = ThreadingHTTPServer((primary_address(), 0), self._handler())
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, name=_NAME)

    def __enter__(self) -> Self:
        self._thread.start()
        self._apply(self._service(), self._endpoint_slice(), self._configuration())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cluster.kubectl("delete", "mutatingwebhookconfiguration", _NAME)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = json.dumps(webhook._answer(review)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # as the base class calls it
                pass

        return Handler

    def _answer(self, review: Json) -> Json:
        request = review["request"]
        self.requests.append(request)
        allowed, patch = self._decide(request)
        response: Json = {"uid": request["uid"], "allowed": allowed}
        if patch:
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}

    def _apply(self, *objects: Json) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": objects}
        self._cluster.kubectl("apply", "-f", "-", input=json.dumps(items))

    @property
    def _port(self) -> int:
        return int(self._server.server_address[1])

    def _service(self) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": _NAME, "namespace": LONGHORN_NAMESPACE},
            "spec": {"ports": [{"name": _PORT_NAME, "port": 443}]},
        }

    def _endpoint_slice(self) -> Json:
        labels = {"kubernetes.io/service-name": _NAME}
        return {
            "apiVersion": ENDPOINT_SLICES.api_version,
            "kind": ENDPOINT_SLICES.kind,
            "metadata": {"name": _NAME, "namespace": LONGHORN_NAMESPACE, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [primary_address()], "conditions": {"ready": True}}],
            "ports": [{"name": _PORT_NAME, "port": self._port}],
        }

    def _configuration(self) -> Json:
        service = {"namespace": LONGHORN_NAMESPACE, "name": _NAME, "path": "/review"}
        rule = {
            "apiGroups": [LONGHORN_REPLICAS.group],
            "apiVersions": [LONGHORN_REPLICAS.version],
            "resources": [LONGHORN_REPLICAS.plural],
            "operations": ["UPDATE"],
        }
        webhook = {
            "name": f"{_NAME}.longhorn.io",
            "clientConfig": {"service": service, "caBundle": self._ca_bundle},
            "rules": [rule],
            "matchConditions": [{"name": "placement", "expression": _IS_PLACEMENT}],
            "failurePolicy": "Ignore",
            "timeoutSeconds": _SECONDS,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": _NAME},
            "webhooks": [webhook],
        }
