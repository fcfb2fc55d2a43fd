"""A certificate authority for one cluster, which signs the API server's certificate and its clients' certificates. Keys are files
of mode 0600 in a folder of mode 0700. Every cluster gets new keys, so a stolen one is useless when the cluster is gone;
certificates are valid for a year.
"""

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.extender.certificates import certificate_builder, private_pem

_VALIDITY = timedelta(days=365)
_CLOCK_SKEW = timedelta(minutes=5)
SERVER_NAMES = ("localhost", "127.0.0.1", "kubernetes.default.svc", "10.96.0.1")


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """Signs certificates into one folder."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(
        cls, folder: Path, name: str = "devcluster", issuer: "CertificateAuthority | None" = None
    ) -> "CertificateAuthority":
        """Creates an authority whose key is in memory only; it signs itself, or `issuer` signs it. Its certificate is ``ca.crt``
        in the folder, which is created if necessary.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer = issuer.certificate.subject if issuer is not None else subject
        builder = certificate_builder(subject, signer, key.public_key(), _validity(), ca=True)
        signing_key = issuer.key if issuer is not None else key
        authority = cls(folder, builder.sign(signing_key, hashes.SHA256()), key)
        authority.bundle.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
        return authority

    @property
    def bundle(self) -> Path:
        return self.folder / "ca.crt"

    def client(self, user: str, groups: Sequence[str] = ()) -> CertificatePair:
        """Issues a client certificate. Kubernetes takes the user from the common name and the groups from the organisations."""
        names = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        names += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        return self._issue(user.replace(":", "-"), x509.Name(names), ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, name: str, hosts: Sequence[str] = SERVER_NAMES) -> CertificatePair:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._issue(name, subject, ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def _issue(
        self, file: str, subject: x509.Name, purpose: x509.ObjectIdentifier, hosts: Sequence[str]
    ) -> CertificatePair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = certificate_builder(subject, self.certificate.subject, key.public_key(), _validity(), ca=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        pair = CertificatePair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        pair.certificate.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))
        write_private(pair.key, private_pem(key))
        return pair


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The keys that sign and verify tokens of service accounts."""

    private: Path
    public: Path

    @classmethod
    def create(cls, folder: Path) -> "SigningKey":
        """Creates a key pair, ``service-account.key`` and ``.pub`` in the folder."""
        key = ec.generate_private_key(ec.SECP256R1())
        paths = cls(folder / "service-account.key", folder / "service-account.pub")
        write_private(paths.private, private_pem(key))
        paths.public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return paths


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that other users can never read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _validity() -> tuple[datetime, datetime]:
    now = datetime.now(UTC)
    return now - _CLOCK_SKEW, now + _VALIDITY


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
