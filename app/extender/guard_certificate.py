"""The placement guard's certificate, which the leader makes and renews. A Secret keeps it, and the webhook's caBundle trusts it.

    Secret empty → the leader makes an authority and a serving certificate → Secret → every candidate serves it → caBundle
    two thirds of its life over → the leader signs a new one → Secret → new connections get it
    two thirds of the authority's life over → caBundle with both authorities → a while later: Secret with the new one
    cert-manager's annotation on the Secret → it is only read, and the caBundle is left to cert-manager

Secret and caBundle are compared at an interval, because they may be edited by hand. A write is based on the version that was read, and on
this process leading after that, so that a former leader cannot overwrite its successor's certificates. A Secret that holds something else
is never overwritten. Its content, and what the API server answers to a write of it, is in no text.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import msgspec
import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.extender.certificates import (
    UNREADABLE,
    CertificateError,
    CertificateReloader,
    Pem,
    ServingPair,
    belongs,
    certificate_builder,
    decode_chain,
    decode_key,
    private_pem,
    server_context,
)
from app.extender.metrics import Metrics
from app.kube.client import STRATEGIC_MERGE_PATCH, ApiError, KubeClient
from app.kube.resources import MUTATING_WEBHOOKS, SECRETS
from app.runtime.logs import ProblemLog
from scheduler_core import errors
from scheduler_core.convert.wire_types import Metadata, Wire, decode_json
from scheduler_core.leadership.endpoint_slice import PLACEMENT_GUARD
from scheduler_core.structs import Struct, replace

log = structlog.get_logger("certificate")

# Also the organization in every certificate of this module, which tells them from those of others.
NAME = PLACEMENT_GUARD.name
WEBHOOK = "placement-guard.longhorn-scheduler-extender.longhorn.io"
STANDBY_WEBHOOK = "placement-guard-standby.longhorn-scheduler-extender.longhorn.io"
WEBHOOKS = frozenset({WEBHOOK, STANDBY_WEBHOOK})
CERT_MANAGER = "cert-manager.io/certificate-name"
AUTHORITY_VALIDITY = timedelta(days=3650)
SERVING_VALIDITY = timedelta(days=90)
# Clocks of nodes differ, and a certificate is used at once.
CLOCK_SKEW = timedelta(hours=1)
# For the serving certificate 30 days before its end. The alert two weeks before the end thus means that renewing fails.
_RENEWED_AFTER = 2 / 3
# How long API servers may take until they trust a new authority.
TRUSTED_AFTER = timedelta(seconds=20)
CALL_SECONDS = 5.0
_CHECK_INTERVAL = 10.0
RETRY_INTERVAL = 2.0
# How soon it is noticed that the guard is switched on.
_IDLE_INTERVAL = 1.0
_MANIFESTS = "apply manifests/base"
# The keys of a Secret of the type kubernetes.io/tls, as cert-manager writes them, and the authority's key.
AUTHORITIES_KEY = "ca.crt"
AUTHORITY_KEY_KEY = "ca.key"
CHAIN_KEY = "tls.crt"
SERVING_KEY_KEY = "tls.key"


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority and the serving certificate that it signed."""

    # The one that signs, then those that signed before and may still be needed.
    authorities: tuple[x509.Certificate, ...]
    authority_key: ec.EllipticCurvePrivateKey = field(repr=False)  # of the one that signs
    serving: ServingPair

    @property
    def bundle(self) -> bytes:
        return b"".join(authority.public_bytes(Encoding.PEM) for authority in self.authorities)

    def due(self, host: str, now: datetime) -> str:
        """Returns what must be renewed for a server that is called as `host`: "authority", "serving", or ""."""
        if _is_due(self.authorities[0], now):
            return "authority"
        return "serving" if _is_due(self.serving.certificate, now) or self.serving.problem(host, now) else ""

    def renew_serving(self, host: str, now: datetime) -> "Certificates":
        return replace(self, serving=_sign_serving(self.authorities[0], self.authority_key, host, now))

    def renew_authority(self, host: str, now: datetime) -> "Certificates":
        """Returns a new authority with a serving certificate; the authorities before are trusted until they expire."""
        renewed = issue(host, now)
        valid = tuple(entry for entry in self.authorities if entry.not_valid_after_utc > now)
        return replace(renewed, authorities=(*renewed.authorities, *valid))

    def encode(self) -> dict[str, bytes]:
        authority = {AUTHORITIES_KEY: self.bundle, AUTHORITY_KEY_KEY: private_pem(self.authority_key)}
        return {**authority, CHAIN_KEY: self.serving.chain, SERVING_KEY_KEY: self.serving.key}


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    begin = certificate.not_valid_before_utc
    return not begin <= now < begin + _RENEWED_AFTER * (certificate.not_valid_after_utc - begin)


def issue(host: str, now: datetime) -> Certificates:
    """Returns a new authority and a serving certificate for one host name."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities must not have the same name: OpenSSL would try only one of them.
    name = _name(f"authority {x509.random_serial_number():x}"[:64])
    validity = (now - CLOCK_SKEW, now + AUTHORITY_VALIDITY)
    authority = certificate_builder(name, name, key.public_key(), validity, ca=True).sign(key, hashes.SHA256())
    return Certificates((authority,), key, _sign_serving(authority, key, host, now))


def _sign_serving(
    authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey, host: str, now: datetime
) -> ServingPair:
    key = ec.generate_private_key(ec.SECP256R1())
    validity = (now - CLOCK_SKEW, min(now + SERVING_VALIDITY, authority.not_valid_after_utc))
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        certificate_builder(_name("serving"), authority.subject, key.public_key(), validity, ca=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return ServingPair(certificate, certificate.public_bytes(Encoding.PEM), private_pem(key))


def _name(text: str) -> x509.Name:
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, NAME)
    return x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, text)])


def decode_serving(data: Mapping[str, bytes]) -> ServingPair:
    """Returns the serving certificate in the content of a Secret, or raises as `decode_certificates`."""
    return ServingPair.decode(_entry(data, CHAIN_KEY), _entry(data, SERVING_KEY_KEY))


def decode_certificates(data: Mapping[str, bytes]) -> Certificates:
    """Returns the certificates in the content of a Secret. Raises a CertificateError if some are missing or unreadable,
    do not belong together, or were not made by this program.
    """
    authorities = decode_chain(_entry(data, AUTHORITIES_KEY))
    for authority in authorities:
        organizations = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        if not organizations or organizations[0].value != NAME:
            raise CertificateError(f"{AUTHORITIES_KEY} holds an authority that is not the placement guard's own")
    authority_key = decode_key(_entry(data, AUTHORITY_KEY_KEY))
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey) or not belongs(authorities[0], authority_key):
        raise CertificateError(f"{AUTHORITY_KEY_KEY} is not the key of {AUTHORITIES_KEY}")
    serving = decode_serving(data)
    try:
        serving.certificate.verify_directly_issued_by(authorities[0])
    except (*UNREADABLE, InvalidSignature) as error:
        raise CertificateError(f"{CHAIN_KEY} is not signed by {AUTHORITIES_KEY}") from error
    return Certificates(tuple(authorities), authority_key, serving)


def _entry(data: Mapping[str, bytes], key: str) -> Pem:
    if not data.get(key):
        raise CertificateError(f"{key} is missing")
    return Pem(key, data[key])


class _Secret(Wire):
    metadata: Metadata
    data: dict[str, bytes] | None = None  # decoded


class _Webhook(Wire):
    name: str = ""
    client_config: dict[str, Any] = msgspec.field(default_factory=dict)


class _WebhookConfiguration(Wire):
    metadata: Metadata
    webhooks: list[_Webhook] | None = None


class CertificateOptions(Struct, frozen=True):
    """Where and when the certificate is needed."""

    namespace: str  # of Secret and Service
    wanted: Callable[[], bool]  # returns whether the guard is switched on; otherwise nothing is read or written
    leading: Callable[[], bool]  # returns whether this process leads; only the leader writes
    now: Callable[[], datetime]  # returns the time

    @property
    def host(self) -> str:
        return f"{NAME}.{self.namespace}.svc"


class GuardCertificate(CertificateReloader):
    """Owner of the certificate that the placement guard's server shows."""

    def __init__(self, client: KubeClient, options: CertificateOptions, metrics: Metrics) -> None:
        super().__init__(server_context(), metrics.guard_certificate_expiry.set)
        self._client = client
        self._options = options
        self._secret_path = SECRETS.path(options.namespace, NAME)
        self._webhook_path = MUTATING_WEBHOOKS.path(name=NAME)
        # An authority that API servers are to trust before it signs what this server shows.
        self._next: Certificates | None = None
        self._trusted_at: datetime | None = None
        self._problem = "the certificate was not read yet"
        self._log = ProblemLog(
            log, "the placement guard's certificate is in trouble", "the placement guard's certificate is in order"
        )

    @property
    def problem(self) -> str:
        """Why the certificate is missing, or cannot be renewed or trusted; "" if nothing is wrong or no certificate is wanted."""
        return self._problem if self._options.wanted() else ""

    @property
    def ready(self) -> bool:
        """Whether clients accept the certificate that this process shows."""
        return self.serving is not None and not self.serving.problem(self._options.host, self._options.now())

    def adopt(self) -> None:
        """Checks at once: this process leads, and may write."""
        self._wake.set()

    def clear(self) -> None:
        """Forgets an authority that is not in the Secret yet: another process leads."""
        self._next = None
        self._trusted_at = None

    async def check(self) -> float:
        """Compares Secret and caBundle once with what they must be."""
        if not self._options.wanted():
            return _IDLE_INTERVAL
        problem = ""
        try:
            await self._synchronize()
        except ApiError as error:
            problem = f"{error}; {_MANIFESTS}" if error.not_found or error.forbidden else str(error)
        except CertificateError as error:
            problem = f"Secret {NAME}: {error}"
        except errors.ObjectError as error:
            problem = str(error)
        self._problem = problem
        self._log.note(problem)
        return RETRY_INTERVAL if problem else _CHECK_INTERVAL

    async def _synchronize(self) -> None:
        secret = decode_json("Secret", await self._client.get(self._secret_path, seconds=CALL_SECONDS), _Secret)
        if CERT_MANAGER in (secret.metadata.annotations or {}):
            self._show(decode_serving(secret.data or {}))
            if self._options.leading():
                await self._read_webhooks()  # cert-manager writes the caBundle, but not a webhook that is missing
            return
        leading = self._options.leading()
        certificates = await self._certificates(secret, leading=leading)
        self._show(certificates.serving)
        if leading:
            await self._write_ca_bundle(self._next or certificates)

    async def _certificates(self, secret: _Secret, *, leading: bool) -> Certificates:
        """Returns what the Secret holds, after what must be made or renewed."""
        host = self._options.host
        now = self._options.now()
        if not secret.data:
            if not leading:
                raise CertificateError("it is empty; the leader makes the certificate")
            return await self._write(secret, issue(host, now))
        stored = decode_certificates(secret.data)
        due = stored.due(host, now) if leading else ""
        if not due:
            return stored
        if due == "serving":
            return await self._write(secret, stored.renew_serving(host, now))
        # The stored certificates stay in force until the new authority is trusted.
        if self._next is None:
            self._next = stored.renew_authority(host, now)
            self._trusted_at = None
        usable = not stored.serving.problem(host, now) and now < stored.authorities[0].not_valid_after_utc
        trusted = self._trusted_at is not None and now - self._trusted_at >= TRUSTED_AFTER
        if usable and not trusted:
            return stored
        written = await self._write(secret, self._next)
        self.clear()
        return written

    def _show(self, serving: ServingPair) -> None:
        if problem := serving.problem(self._options.host, self._options.now()):
            raise CertificateError(problem)
        if serving != self.serving:
            self._use(serving)

    async def _write(self, secret: _Secret, certificates: Certificates) -> Certificates:
        if not self._options.leading():
            raise CertificateError("another process leads now, and renews the certificate")
        data = {key: b64encode(value).decode() for key, value in certificates.encode().items()}
        body = {"metadata": {"resourceVersion": secret.metadata.resource_version}, "data": data}
        try:
            await self._client.patch(self._secret_path, body, seconds=CALL_SECONDS)
        except ApiError as error:
            # The answer may quote what was sent.
            reason = f"HTTP {error.status} {error.reason}".strip() if error.status else "no answer"
            raise CertificateError(f"it cannot be written: {reason}") from None
        log.info("serving certificate renewed", expires=certificates.serving.expires.isoformat())
        return certificates

    async def _read_webhooks(self) -> _WebhookConfiguration:
        """Returns the guard's webhooks of the configuration; both must be there."""
        raw = await self._client.get(self._webhook_path, seconds=CALL_SECONDS)
        configuration = decode_json(MUTATING_WEBHOOKS.kind, raw, _WebhookConfiguration)
        configuration.webhooks = [webhook for webhook in configuration.webhooks or () if webhook.name in WEBHOOKS]
        missing = WEBHOOKS - {webhook.name for webhook in configuration.webhooks}
        if missing:
            text = f"it has no webhook {min(missing)}; {_MANIFESTS}"
            raise ApiError(f"GET {self._webhook_path}", 404, "NotFound", text)
        return configuration

    async def _write_ca_bundle(self, certificates: Certificates) -> None:
        configuration = await self._read_webhooks()
        bundle = b64encode(certificates.bundle).decode()
        outdated = [
            entry.name for entry in configuration.webhooks or () if entry.client_config.get("caBundle") != bundle
        ]
        if outdated:
            if not self._options.leading():
                return
            # By the webhooks' names, so that nothing else of them is written.
            change: dict[str, Any] = {
                "metadata": {"resourceVersion": configuration.metadata.resource_version},
                "webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in outdated],
            }
            await self._client.patch(self._webhook_path, change, STRATEGIC_MERGE_PATCH, CALL_SECONDS)
            log.info("caBundle written", authorities=len(certificates.authorities))
        if certificates is self._next and self._trusted_at is None:
            self._trusted_at = self._options.now()
