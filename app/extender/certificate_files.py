"""TLS of the port that kube-scheduler calls, from files that are read again whenever they change.

    files → a certificate that belongs to its key, and the authorities of callers → a TLS context → new connections use it
    a change that cannot be used → an error in the log, a count → the context before stays

Each change makes a new context: an authority cannot be taken out of one, and a session of the one before cannot be resumed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from cryptography.hazmat.primitives.serialization import Encoding

from app.extender.certificates import CertificateError, Pem, ServingPair, decode_chain, server_context, serving_pair
from app.extender.metrics import Metrics
from app.runtime.file_content import LOADED, REFUSED, RELOAD_INTERVAL, read_content
from app.settings import TlsFiles

log = structlog.get_logger("certificate")

_READS: Final = 4


@dataclass(frozen=True, slots=True)
class _Credentials:
    """What one version of the files holds."""

    serving: ServingPair
    authorities: bytes

    def require_validity(self, now: datetime) -> None:
        """Raises a CertificateError if the certificate has expired, or is not valid yet."""
        problem = self.serving.validity_problem(now)
        if problem:
            raise CertificateError(problem)

    def context(self) -> ssl.SSLContext:
        """Returns TLS with these credentials.

        Raises:
            CertificateError: OpenSSL refuses them
        """
        context = server_context()
        self.serving.load_into(context)
        if self.authorities:
            # The handshake fails without a certificate, before the first byte of a request is read.
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(cadata=self.authorities)
            except ssl.SSLError as error:
                raise CertificateError(f"the authorities of callers cannot be used: {error.reason}") from error
            # As in Go, an authority in the file is trusted, whichever authority has signed it.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


class CertificateFiles:
    """Owner of the TLS context that new connections use.

    Args:
        now: returns the time

    Raises:
        CertificateError: the files cannot be used now
    """

    def __init__(self, files: TlsFiles, metrics: Metrics, now: Callable[[], datetime]) -> None:
        self._files = files
        self._metrics = metrics
        self._now = now
        # The contents in use, and the latest ones that could not be used, with the reason.
        self._contents = _read(files)
        self._refused: tuple[tuple[bytes | str, ...], str] | None = None
        credentials = _decode(files, self._contents)
        self._context = credentials.context()
        # An expired certificate is better than no process: callers say why they refuse it, and a renewed one is used at once.
        problem = credentials.serving.validity_problem(now())
        if problem:
            log.error("no caller accepts the serving certificate", problem=problem, file=files.certificate)
        metrics.tls_certificate(credentials.serving.expires.timestamp())

    @property
    def context(self) -> ssl.SSLContext:
        return self._context

    async def run(self) -> None:
        """Reads the files every `RELOAD_INTERVAL` until cancelled."""
        while True:
            await asyncio.sleep(RELOAD_INTERVAL)
            await self.reload()

    async def reload(self) -> None:
        """Reads the files, and uses them if their content changed."""
        contents = await asyncio.to_thread(_read, self._files)
        if contents == self._contents:
            self._refused = None
            return
        try:
            credentials = _decode(self._files, contents)
            if contents[:2] != self._contents[:2]:
                credentials.require_validity(self._now())
            context = credentials.context()
        except CertificateError as error:
            # Such content is tried again: a certificate may become valid later.
            self._note_refusal(contents, str(error))
            return
        self._contents = contents
        self._context = context
        self._refused = None
        expires = credentials.serving.expires
        log.info("serving certificate in use", expires=expires.isoformat())
        self._metrics.tls_certificate(expires.timestamp())
        self._metrics.count_tls_reload(LOADED)

    def _note_refusal(self, contents: tuple[bytes | str, ...], problem: str) -> None:
        if self._refused == (contents, problem):
            return
        self._refused = (contents, problem)
        log.error("serving certificate refused, the one before stays", problem=problem)
        self._metrics.count_tls_reload(REFUSED)


def _read(files: TlsFiles) -> tuple[bytes | str, ...]:
    contents = _read_each(files)
    # The files of a Secret change together. Two equal reads have none from before and one from after.
    for _ in range(_READS):
        again = _read_each(files)
        if again == contents:
            break
        contents = again
    return contents


def _read_each(files: TlsFiles) -> tuple[bytes | str, ...]:
    return tuple(
        read_content(path) if path else b"" for path in (files.certificate, files.private_key, files.client_ca)
    )


def _decode(files: TlsFiles, contents: tuple[bytes | str, ...]) -> _Credentials:
    certificate, key, authorities = map(_pem, (files.certificate, files.private_key, files.client_ca), contents)
    serving = serving_pair(certificate, key)
    trusted = decode_chain(authorities) if files.client_ca else []
    return _Credentials(serving, b"".join(authority.public_bytes(Encoding.DER) for authority in trusted))


def _pem(path: str, content: bytes | str) -> Pem:
    if isinstance(content, str):
        raise CertificateError(f"{path}: {content}")
    return Pem(path, content)
