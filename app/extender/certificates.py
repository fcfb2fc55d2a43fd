"""The certificate that a server shows, and how it takes another one.

    files, or the placement guard's Secret → a certificate that belongs to its key → a TLS context → new connections use it
    a change that cannot be used → a problem in the log → the context before stays

Each change makes a new context: an authority cannot be taken out of one, and a session of the one before cannot be resumed. No text of this
module contains a key: neither an error nor the representation of an object.
"""

import asyncio
import os
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.extender.metrics import Metrics
from app.runtime import wait_at_most
from app.settings import LOADED, REFUSED, RELOAD_INTERVAL, TlsFiles, read_content
from scheduler_core.errors import CoreError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

log = structlog.get_logger("certificate")

UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_NO_OTHER_USAGE = dict.fromkeys(
    ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"),
    False,
)
_READS = 5
_Contents = tuple[bytes | str, ...]


class CertificateError(CoreError):
    """Certificates cannot be used; the text says why, and holds no key."""


@dataclass(frozen=True, slots=True)
class Pem:
    """A PEM text, and what messages call it."""

    name: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServingPair:
    """A certificate that a server shows, and its key."""

    certificate: x509.Certificate  # the server's own
    chain: bytes = field(repr=False)  # PEM; the certificate, and those that lead to its authority
    key: bytes = field(repr=False)  # PEM

    @classmethod
    def decode(cls, chain: Pem, key: Pem) -> "ServingPair":
        """Returns a certificate and its key. Raises a CertificateError if one is unreadable, or they do not belong
        together.
        """
        certificates = decode_chain(chain)
        if not belongs(certificates[0], decode_key(key)):
            raise CertificateError(f"{key.name} is not the key of {chain.name}")
        return cls(certificates[0], chain.content, key.content)

    @property
    def expires(self) -> datetime:
        return self.certificate.not_valid_after_utc

    def problem(self, host: str, now: datetime) -> str:
        """Returns why a client that calls `host` would refuse the certificate now, or ""."""
        problem = self.validity_problem(now)
        if problem:
            return problem
        names = _host_names(self.certificate)
        if not {host, f"*.{host.partition('.')[2]}"} & set(names):
            return f"the serving certificate is for {', '.join(names) or 'no host name'}, not for {host}"
        return ""

    def validity_problem(self, now: datetime) -> str:
        begins = self.certificate.not_valid_before_utc
        if now >= self.expires:
            return f"the serving certificate expired at {self.expires:%Y-%m-%dT%H:%M:%SZ}"
        return f"the serving certificate is not valid before {begins:%Y-%m-%dT%H:%M:%SZ}" if now < begins else ""


def certificate_builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: tuple[datetime, datetime], *, ca: bool
) -> x509.CertificateBuilder:
    """Returns a certificate, of an authority or of a client or server, that its issuer has yet to sign."""
    usage = x509.KeyUsage(digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, **_NO_OTHER_USAGE)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity[0])
        .not_valid_after(validity[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.BasicConstraints(ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def server_context(serving: ServingPair | None = None, authorities: bytes = b"") -> ssl.SSLContext:
    """Returns a server's TLS. With `authorities` of callers (DER) the handshake fails without a certificate of one of
    them, before the first byte of a request is read. Raises a CertificateError if OpenSSL refuses what it is given.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if serving is not None:
        # Python reads certificates from files only. These are in memory, because no file may be written, least of all a key.
        with _memory_file(serving.chain) as chain, _memory_file(serving.key) as key:
            try:
                context.load_cert_chain(chain, key)
            except (ssl.SSLError, OSError) as error:
                raise CertificateError(f"the serving certificate cannot be used: {error.__class__.__name__}") from error
    if authorities:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cadata=authorities)
        except ssl.SSLError as error:
            raise CertificateError(f"the authorities of callers cannot be used: {error.reason}") from error
        # As in Go, an authority in the file is trusted, whichever authority has signed it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


@contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    """Provides the path of a file in memory, which only this process can open."""
    descriptor = os.memfd_create("certificate")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def decode_chain(pem: Pem) -> list[x509.Certificate]:
    """Returns the certificates of a PEM text, at least one. Raises a CertificateError if there is none, or one cannot
    be read.
    """
    try:
        certificates = x509.load_pem_x509_certificates(pem.content)
        for certificate in certificates:
            # The library parses the parts one by one, so that a later one may still raise.
            _ = (certificate.public_key(), certificate.subject, certificate.not_valid_before_utc)
            _ = (certificate.not_valid_after_utc, _host_names(certificate))
    except UNREADABLE as error:
        raise CertificateError(f"{pem.name} holds no certificate in PEM form that can be read") from error
    return certificates


def decode_key(pem: Pem) -> "PrivateKeyTypes":
    # The cause could quote the key.
    try:
        return serialization.load_pem_private_key(pem.content, None)
    except UNREADABLE:
        raise CertificateError(f"{pem.name} holds no private key in PEM form without a password") from None


def belongs(certificate: x509.Certificate, key: "PrivateKeyTypes") -> bool:
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)


def _host_names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.DNSName)


class CertificateReloader(ABC):
    """Owner of the TLS context that new connections of a port use.

    Args:
        note_expiry: receives when the certificate in use expires, in seconds since 1970
    """

    def __init__(self, context: ssl.SSLContext, note_expiry: Callable[[float], None]) -> None:
        self.context = context
        self.serving: ServingPair | None = None  # the certificate in use, if another one than at the start
        self._note_expiry = note_expiry
        self._wake = asyncio.Event()

    @abstractmethod
    async def check(self) -> float:
        """Looks once for another certificate; returns the seconds until the next time."""

    async def run(self) -> None:
        while True:
            await wait_at_most(self._wake, await self.check())
            self._wake.clear()

    def _use(self, serving: ServingPair, authorities: bytes = b"") -> None:
        self.context = server_context(serving, authorities)
        self.serving = serving
        self._note_expiry(serving.expires.timestamp())
        log.info("serving certificate in use", expires=serving.expires.isoformat())


class CertificateFiles(CertificateReloader):
    """TLS of the port that kube-scheduler calls, from files. Raises a CertificateError if the files cannot be used now.

    Args:
        now: returns the time
    """

    def __init__(self, files: TlsFiles, metrics: Metrics, now: Callable[[], datetime]) -> None:
        self._files = files
        self._metrics = metrics
        self._now = now
        # The contents in use, and the latest ones that could not be used, with the reason.
        self._contents = _read(files)
        self._refused: tuple[_Contents, str] | None = None
        serving, authorities = _decode(files, self._contents)
        super().__init__(server_context(serving, authorities), metrics.tls_certificate_expiry.set)
        # An expired certificate is better than no process: callers say why they refuse it, and a renewed one is used at once.
        problem = serving.validity_problem(now())
        if problem:
            log.error("no caller accepts the serving certificate", problem=problem, file=files.certificate)
        metrics.tls_certificate_expiry.set(serving.expires.timestamp())

    async def check(self) -> float:
        """Reads the files, and uses them if their content changed."""
        contents = await asyncio.to_thread(_read, self._files)
        problem = ""
        if contents != self._contents:
            try:
                serving, authorities = _decode(self._files, contents)
                # An authority of callers may change beside a certificate that has expired.
                problem = serving.validity_problem(self._now()) if contents[:2] != self._contents[:2] else ""
                if not problem:
                    self._use(serving, authorities)
                    self._contents = contents
                    self._metrics.tls_reloads.count(LOADED)
            except CertificateError as error:
                problem = str(error)
        if problem and self._refused != (contents, problem):
            log.error("serving certificate refused, the one before stays", problem=problem)
            self._metrics.tls_reloads.count(REFUSED)
        # Such content is tried again: a certificate may become valid later.
        self._refused = (contents, problem) if problem else None
        return RELOAD_INTERVAL


def _read(files: TlsFiles) -> _Contents:
    paths = (files.certificate, files.private_key, files.client_ca)
    contents: _Contents = ()
    # The files of a Secret change together. Two equal reads have none from before and one from after.
    for _ in range(_READS):
        before = contents
        contents = tuple(read_content(path) if path else b"" for path in paths)
        if contents == before:
            break
    return contents


def _decode(files: TlsFiles, contents: _Contents) -> tuple[ServingPair, bytes]:
    pems: list[Pem] = []
    for path, content in zip((files.certificate, files.private_key, files.client_ca), contents, strict=True):
        if isinstance(content, str):
            raise CertificateError(f"{path}: {content}")
        pems.append(Pem(path, content))
    certificate, key, authorities = pems
    serving = ServingPair.decode(certificate, key)
    trusted = decode_chain(authorities) if files.client_ca else []
    return serving, b"".join(authority.public_bytes(serialization.Encoding.DER) for authority in trusted)
