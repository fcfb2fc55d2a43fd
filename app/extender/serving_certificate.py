"""The placement guard's serving certificate, which the leader renews. A Secret keeps it, and the webhook's caBundle
trusts it.

    Secret empty → the leader makes an authority and a serving certificate → Secret → every candidate serves it → caBundle
    two thirds of its life over → the leader signs a new one → Secret → new connections get it
    two thirds of the authority's life over → caBundle with both authorities → a while later: Secret with the new one
    cert-manager's annotation on the Secret → it is only read, and the caBundle is left to cert-manager

Secret and caBundle are compared at an interval, because they may be edited by hand. A write is based on the version
that was read, and on this process leading after that, so that a former leader cannot overwrite its successor's
certificates.

A Secret that holds something else is never overwritten. Its content, and what the API server answers to a write of it,
is in no text.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import structlog

from app.extender.certificates import (
    CertificateError,
    Certificates,
    Due,
    ServingPair,
    decode_certificates,
    decode_serving,
    issue,
    server_context,
)
from app.extender.metrics import Metrics
from app.kube.client import STRATEGIC_MERGE_PATCH, ApiError, KubeClient
from app.kube.resources import MUTATING_WEBHOOKS, SECRETS
from scheduler_core.convert.meta import Metadata, Wire, decode_json
from scheduler_core.errors import ObjectError
from scheduler_core.leadership.endpoint_slice import PLACEMENT_GUARD

log = structlog.get_logger("certificate")

NAME: Final = PLACEMENT_GUARD.name
WEBHOOK: Final = "placement-guard.longhorn-scheduler-extender.longhorn.io"
STANDBY_WEBHOOK: Final = "placement-guard-standby.longhorn-scheduler-extender.longhorn.io"
WEBHOOKS: Final = frozenset({WEBHOOK, STANDBY_WEBHOOK})
CERT_MANAGER: Final = "cert-manager.io/certificate-name"
CALL_SECONDS: Final = 5.0
# How long API servers may take until they trust a new authority.
TRUSTED_AFTER: Final = timedelta(seconds=20)
_MANIFESTS: Final = "apply manifests/base"
_CHECK_INTERVAL: Final = 10.0
RETRY_INTERVAL: Final = 2.0
# How soon it is noticed that the guard is switched on.
_IDLE_INTERVAL: Final = 1.0


class _Secret(Wire):
    metadata: Metadata
    data: dict[str, str] | None = None

    @property
    def content(self) -> dict[str, bytes]:
        """Returns the decoded entries.

        Raises:
            CertificateError: one is no base64
        """
        try:
            return {key: b64decode(text, validate=True) for key, text in (self.data or {}).items()}
        except ValueError:
            raise CertificateError("an entry is no base64") from None

    @property
    def by_cert_manager(self) -> bool:
        return CERT_MANAGER in (self.metadata.annotations or {})


class _ClientConfig(Wire):
    ca_bundle: str | None = None


class _Webhook(Wire):
    name: str = ""
    client_config: _ClientConfig = msgspec.field(default_factory=_ClientConfig)


class _WebhookConfiguration(Wire):
    metadata: Metadata
    webhooks: list[_Webhook] | None = None


@dataclass(frozen=True, slots=True)
class CertificateOptions:
    """Where and when the certificate is needed."""

    namespace: str  # of Secret and Service
    wanted: Callable[[], bool]  # returns whether the guard is switched on; otherwise nothing is read or written
    leading: Callable[[], bool]  # returns whether this process leads; only the leader writes
    now: Callable[[], datetime]  # returns the time

    @property
    def host(self) -> str:
        return f"{NAME}.{self.namespace}.svc"


class ServingCertificate:
    """Owner of the certificate that the placement guard's server shows."""

    def __init__(self, client: KubeClient, options: CertificateOptions, metrics: Metrics) -> None:
        self._client = client
        self._options = options
        self._metrics = metrics
        self._secret_path = SECRETS.path(options.namespace, NAME)
        self._webhook_path = MUTATING_WEBHOOKS.path(name=NAME)
        self.ssl_context = server_context()  # what new connections use; its certificate is replaced by a newer one
        self._loaded: ServingPair | None = None
        # An authority that API servers are to trust before it signs what this server shows.
        self._next: Certificates | None = None
        self._trusted_at: datetime | None = None
        self._problem = "the certificate was not read yet"
        self._logged_problem = ""
        self._wake = asyncio.Event()

    @property
    def problem(self) -> str:
        """Why the certificate is missing, or cannot be renewed or trusted; "" if nothing is wrong or no certificate is
        wanted.
        """
        return self._problem if self._options.wanted() else ""

    @property
    def ready(self) -> bool:
        """Whether clients accept the certificate that this process shows."""
        return self._loaded is not None and not self._loaded.problem(self._options.host, self._options.now())

    async def run(self) -> None:
        """Keeps the certificate current until cancelled."""
        while True:
            seconds = await self.check() if self._options.wanted() else _IDLE_INTERVAL
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    def adopt(self) -> None:
        """Checks at once: this process leads, and may write."""
        self._wake.set()

    def clear(self) -> None:
        """Forgets an authority that is not in the Secret yet: another process leads."""
        self._next = None
        self._trusted_at = None

    async def check(self) -> float:
        """Compares everything once; returns the seconds until the next time."""
        try:
            await self._synchronize()
        except ApiError as error:
            self._note(_sentence(error))
            return RETRY_INTERVAL
        except CertificateError as error:
            self._note(f"Secret {NAME}: {error}")
            return RETRY_INTERVAL
        except ObjectError as error:
            self._note(str(error))
            return RETRY_INTERVAL
        self._note("")
        return _CHECK_INTERVAL

    async def _synchronize(self) -> None:
        secret = await self._read_secret()
        if secret.by_cert_manager:
            self._use(decode_serving(secret.content))
            if self._options.leading():
                await self._read_webhooks()  # cert-manager writes the caBundle, but not a webhook that is missing
            return
        leading = self._options.leading()
        certificates = await self._certificates(secret, leading=leading)
        self._use(certificates.serving)
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
        stored = decode_certificates(secret.content)
        due = stored.due(host, now) if leading else Due.NOTHING
        if due is Due.SERVING:
            return await self._write(secret, stored.renew_serving(host, now))
        if due is Due.AUTHORITY:
            return await self._replace_authority(secret, stored, now)
        return stored

    async def _replace_authority(self, secret: _Secret, stored: Certificates, now: datetime) -> Certificates:
        """Returns what is in force: the stored certificates until the new authority is trusted."""
        host = self._options.host
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

    def _use(self, serving: ServingPair) -> None:
        problem = serving.problem(self._options.host, self._options.now())
        if problem:
            raise CertificateError(problem)
        if serving == self._loaded:
            return
        serving.load_into(self.ssl_context)
        self._loaded = serving
        self._metrics.guard_certificate(serving.expires.timestamp())
        log.info("serving certificate in use", expires=serving.expires.isoformat())

    async def _read_secret(self) -> _Secret:
        return decode_json("Secret", await self._client.get(self._secret_path, seconds=CALL_SECONDS), _Secret)

    async def _write(self, secret: _Secret, certificates: Certificates) -> Certificates:
        if not self._options.leading():
            raise CertificateError("another process leads now, and renews the certificate")
        body = {
            "metadata": {"resourceVersion": secret.metadata.resource_version},
            "data": {key: b64encode(value).decode() for key, value in certificates.encode().items()},
        }
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
            webhook.name for webhook in configuration.webhooks or () if webhook.client_config.ca_bundle != bundle
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

    def _note(self, problem: str) -> None:
        self._problem = problem
        if problem == self._logged_problem:
            return
        self._logged_problem = problem
        if problem:
            log.warning("the placement guard's certificate is in trouble", problem=problem)
        else:
            log.info("the placement guard's certificate is in order")


def _sentence(error: ApiError) -> str:
    return f"{error}; {_MANIFESTS}" if error.not_found or error.forbidden else str(error)
