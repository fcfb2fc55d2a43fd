"""Longhorn's validating webhook for claims: the API server refuses a growth that does not fit, and the claim keeps its request."""

import base64
import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from tempfile import NamedTemporaryFile

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from app.kube.resources import CLAIMS, Resource
from scheduler_core.model.quantity import parse_bytes
from simulator.controllers import Controllers
from simulator.expander import expansion_problem
from simulator.objects import DRIVER, Json
from simulator.status import HOST

VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"
)
_GROWS = "object.spec.resources.requests.storage != oldObject.spec.resources.requests.storage"
_VALIDITY = timedelta(days=365)


class ClaimWebhook:
    """Answers the API server, which must run on this machine, at a free port of the loopback address."""

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        application = web.Application()
        application.router.add_post("/", self._review)
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self) -> Json:
        """Starts to listen; returns the ValidatingWebhookConfiguration."""
        context, bundle = _create_certificate()
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0, ssl_context=context).start()
        rule = {
            "apiGroups": [CLAIMS.group],
            "apiVersions": [CLAIMS.version],
            "resources": [CLAIMS.plural],
            "operations": ["UPDATE"],
        }
        webhook = {
            "name": "validator.longhorn.io",
            "clientConfig": {
                "url": f"https://{HOST}:{self._runner.addresses[0][1]}/",
                "caBundle": base64.b64encode(bundle).decode(),
            },
            "rules": [rule],
            "matchConditions": [{"name": "grows", "expression": _GROWS}],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        return {"metadata": {"name": "longhorn-webhook-validator"}, "webhooks": [webhook]}

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _review(self, message: web.Request) -> web.Response:
        review: Json = await message.json()
        request: Json = review["request"]
        problem = self._problem(request)
        response: Json = {"uid": request["uid"], "allowed": not problem}
        if problem:
            response["status"] = {"code": 403, "reason": "Forbidden", "message": problem}
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})

    def _problem(self, request: Json) -> str:
        """Why Longhorn refuses a growth; "" if it does not, or the claim's volume is not its own."""
        claim = self._controllers.store.claims.get((request["namespace"], request["name"]))
        observation = self._controllers.observe_expansion(claim) if claim is not None else None
        if observation is None or observation.persistent_volume.model.driver != DRIVER:
            return ""
        old, new = (
            parse_bytes(request[key]["spec"]["resources"]["requests"]["storage"]) for key in ("oldObject", "object")
        )
        return expansion_problem(observation, old, new)


def _create_certificate() -> tuple[ssl.SSLContext, bytes]:
    """A server's settings with a new certificate, and the certificate, which signs itself, as PEM."""
    now = datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "longhorn-simulator")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + _VALIDITY)
    certificate = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    bundle = certificate.public_bytes(Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with NamedTemporaryFile() as file:  # Python reads certificates from files only
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + bundle)
        file.flush()
        context.load_cert_chain(file.name)
    return context, bundle
