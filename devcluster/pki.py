"""A certificate authority for one cluster, and what it signs: the API server's certificate and those of its clients.

Keys are files of mode 0600 in a folder of mode 0700. Everything is made anew for every cluster, so nothing here is worth stealing
longer than the cluster lives; certificates are valid for a year.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID: Final = timedelta(days=365)
_CLOCK_SKEW: Final = timedelta(minutes=5)
SERVER_NAMES: Final = ("localhost", "127.0.0.1", "kubernetes.default.svc", "10.96.0.1")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates into one folder."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, folder: Path, name: str = "devcluster") -> Authority:
        """A new authority; its certificate is ``ca.crt`` in the folder, which is made if needed. Its key is kept in memory only."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = _usage(signs_certificates=True)
        builder = _builder(subject, subject, key.public_key()).add_extension(usage, critical=True)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        authority = cls(folder, builder.sign(key, hashes.SHA256()), key)
        authority.bundle.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
        return authority

    @property
    def bundle(self) -> Path:
        """The authority's certificate, for those who verify others."""
        return self.folder / "ca.crt"

    def client(self, user: str, groups: Sequence[str] = ()) -> Pair:
        """A client certificate: Kubernetes takes the user from the common name and the groups from the organisations."""
        names = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        names += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        return self._issue(user.replace(":", "-"), x509.Name(names), ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, name: str, hosts: Sequence[str] = SERVER_NAMES) -> Pair:
        """A certificate to serve with, for these host names and addresses."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._issue(name, subject, ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def _issue(self, file: str, subject: x509.Name, purpose: x509.ObjectIdentifier, hosts: Sequence[str]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self.certificate.subject, key.public_key())
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        pair.certificate.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))
        write_private(pair.key, _private_pem(key))
        return pair


@dataclass(frozen=True, slots=True)
class SigningKey:
    """What signs and verifies the tokens of service accounts."""

    private: Path
    public: Path

    @classmethod
    def create(cls, folder: Path) -> SigningKey:
        """A new one, as ``service-account.key`` and ``.pub``."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = cls(folder / "service-account.key", folder / "service-account.pub")
        write_private(made.private, _private_pem(key))
        made.public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return made


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that nobody else can read, not even for a moment."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
