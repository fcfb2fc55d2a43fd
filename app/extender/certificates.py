"""The placement guard's certificates: an authority, and what it signs. The time is an argument.

    an authority, for ten years → a serving certificate for one host name, for 90 days
    two thirds of a life are over → a new one; a new authority is trusted together with the previous ones

The keys are elliptic curve keys (P-256). No text of this module contains a key: neither an error nor the representation
of an object.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from scheduler_core.errors import CoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

AUTHORITY_VALIDITY: Final = timedelta(days=3650)
SERVING_VALIDITY: Final = timedelta(days=90)
# Clocks of nodes differ, and a certificate is used at once.
CLOCK_SKEW: Final = timedelta(hours=1)
_RENEWED_AFTER: Final = 2 / 3
# The organization in every certificate of this module, which tells them from those of others.
ORGANIZATION: Final = "longhorn-scheduler-extender-placement-guard"
# The keys of a Secret of the type kubernetes.io/tls, as cert-manager writes them, and the authority's key.
AUTHORITIES_KEY: Final = "ca.crt"
AUTHORITY_KEY_KEY: Final = "ca.key"
CHAIN_KEY: Final = "tls.crt"
SERVING_KEY_KEY: Final = "tls.key"
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


class CertificateError(CoreError):
    """Certificates cannot be used; the text says why, and holds no key."""


class Due(Enum):
    """What must be renewed now."""

    NOTHING = auto()
    SERVING = auto()
    AUTHORITY = auto()


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
        """Returns why the certificate is not valid now, or ""."""
        if now >= self.expires:
            return f"the serving certificate expired at {self.expires:%Y-%m-%dT%H:%M:%SZ}"
        if now < self.certificate.not_valid_before_utc:
            return f"the serving certificate is not valid before {self.certificate.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}"
        return ""

    def load_into(self, context: ssl.SSLContext) -> None:
        """Has new connections of the context use this certificate.

        Raises:
            CertificateError: OpenSSL refuses it
        """
        # Python reads certificates from files only. These are in memory, because no file may be written, least of all a
        # key.
        with _memory_file(self.chain) as chain, _memory_file(self.key) as key:
            try:
                context.load_cert_chain(chain, key)
            except (ssl.SSLError, OSError) as error:
                raise CertificateError(f"the serving certificate cannot be used: {error.__class__.__name__}") from error


@dataclass(frozen=True, slots=True)
class Certificates:
    """An authority and the serving certificate that it signed."""

    # The one that signs, then those that signed before and may still be needed.
    authorities: tuple[x509.Certificate, ...]
    authority_key: ec.EllipticCurvePrivateKey = field(repr=False)  # of the one that signs
    serving: ServingPair

    @property
    def bundle(self) -> bytes:
        """The certificates to trust, as PEM."""
        return b"".join(authority.public_bytes(Encoding.PEM) for authority in self.authorities)

    def due(self, host: str, now: datetime) -> Due:
        """Returns what must be renewed for a server that is called as `host`."""
        if _is_due(self.authorities[0], now):
            return Due.AUTHORITY
        if _is_due(self.serving.certificate, now) or self.serving.problem(host, now):
            return Due.SERVING
        return Due.NOTHING

    def renew_serving(self, host: str, now: datetime) -> Certificates:
        return replace(self, serving=_sign_serving(self.authorities[0], self.authority_key, host, now))

    def renew_authority(self, host: str, now: datetime) -> Certificates:
        """Returns a new authority with a serving certificate; the authorities before are trusted until they expire."""
        renewed = issue(host, now)
        valid = tuple(entry for entry in self.authorities if entry.not_valid_after_utc > now)
        return replace(renewed, authorities=(*renewed.authorities, *valid))

    def encode(self) -> dict[str, bytes]:
        """Returns the content of a Secret, which `decode_certificates` reads."""
        return {
            AUTHORITIES_KEY: self.bundle,
            AUTHORITY_KEY_KEY: private_pem(self.authority_key),
            CHAIN_KEY: self.serving.chain,
            SERVING_KEY_KEY: self.serving.key,
        }


def issue(host: str, now: datetime) -> Certificates:
    """Returns a new authority and a serving certificate for one host name."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Two authorities must not have the same name: OpenSSL would try only one of them.
    subject = _subject(f"authority {serial:x}"[:64])
    builder = (
        _builder(subject, subject, key.public_key(), now, now + AUTHORITY_VALIDITY)
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs_certificates=True), critical=True)
    )
    authority = builder.sign(key, hashes.SHA256())
    return Certificates((authority,), key, _sign_serving(authority, key, host, now))


def decode_serving(data: Mapping[str, bytes]) -> ServingPair:
    """Returns the serving certificate in the content of a Secret.

    Raises:
        CertificateError: it is missing, unreadable, or does not belong to its key
    """
    chain = Pem(CHAIN_KEY, _entry(data, CHAIN_KEY))
    return serving_pair(chain, Pem(SERVING_KEY_KEY, _entry(data, SERVING_KEY_KEY)))


def serving_pair(chain: Pem, key: Pem) -> ServingPair:
    """Returns a certificate and its key.

    Raises:
        CertificateError: one is unreadable, or they do not belong together
    """
    certificates = decode_chain(chain)
    if not _belongs(certificates[0], _decode_key(key)):
        raise CertificateError(f"{key.name} is not the key of {chain.name}")
    return ServingPair(certificates[0], chain.content, key.content)


def decode_certificates(data: Mapping[str, bytes]) -> Certificates:
    """Returns the certificates in the content of a Secret.

    Raises:
        CertificateError: some are missing or unreadable, do not belong together, or were not made by this program
    """
    authorities = decode_chain(Pem(AUTHORITIES_KEY, _entry(data, AUTHORITIES_KEY)))
    if any(_organization(authority) != ORGANIZATION for authority in authorities):
        raise CertificateError(f"{AUTHORITIES_KEY} holds an authority that is not the placement guard's own")
    authority_key = _decode_key(Pem(AUTHORITY_KEY_KEY, _entry(data, AUTHORITY_KEY_KEY)))
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey) or not _belongs(authorities[0], authority_key):
        raise CertificateError(f"{AUTHORITY_KEY_KEY} is not the key of {AUTHORITIES_KEY}")
    serving = decode_serving(data)
    try:
        serving.certificate.verify_directly_issued_by(authorities[0])
    except (*_UNREADABLE, InvalidSignature) as error:
        raise CertificateError(f"{CHAIN_KEY} is not signed by {AUTHORITIES_KEY}") from error
    return Certificates(tuple(authorities), authority_key, serving)


def server_context() -> ssl.SSLContext:
    """Returns a server's settings of TLS, without a certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _sign_serving(
    authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey, host: str, now: datetime
) -> ServingPair:
    key = ec.generate_private_key(ec.SECP256R1())
    expires = min(now + SERVING_VALIDITY, authority.not_valid_after_utc)
    builder = (
        _builder(_subject("serving"), authority.subject, key.public_key(), now, expires)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
    )
    certificate = builder.sign(authority_key, hashes.SHA256())
    return ServingPair(certificate, certificate.public_bytes(Encoding.PEM), private_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, expires: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Returns the key usage of an authority, or of a certificate that it signs."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    begin = certificate.not_valid_before_utc
    return not begin <= now < begin + _RENEWED_AFTER * (certificate.not_valid_after_utc - begin)


def _host_names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.DNSName)


def _organization(certificate: x509.Certificate) -> str:
    attributes = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(attributes[0].value) if attributes else ""


def _entry(data: Mapping[str, bytes], key: str) -> bytes:
    if not data.get(key):
        raise CertificateError(f"{key} is missing")
    return data[key]


def decode_chain(pem: Pem) -> list[x509.Certificate]:
    """Returns the certificates of a PEM text, at least one.

    Raises:
        CertificateError: there is none, or one cannot be read
    """
    try:
        certificates = x509.load_pem_x509_certificates(pem.content)
        for certificate in certificates:
            _read_parts(certificate)
    except _UNREADABLE as error:
        raise CertificateError(f"{pem.name} holds no certificate in PEM form that can be read") from error
    return certificates


def _read_parts(certificate: x509.Certificate) -> None:
    # The library parses the parts one by one, so that a later one may still raise.
    certificate.public_key()
    _organization(certificate)
    _host_names(certificate)
    _is_due(certificate, certificate.not_valid_after_utc)


def _decode_key(pem: Pem) -> PrivateKeyTypes:
    # The cause could quote the key.
    try:
        return load_pem_private_key(pem.content, None)
    except _UNREADABLE:
        raise CertificateError(f"{pem.name} holds no private key in PEM form without a password") from None


def _belongs(certificate: x509.Certificate, key: PrivateKeyTypes) -> bool:
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a private key in PEM form, without a password."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


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
