"""A key that cannot sign is refused before anything is made, and is never quoted."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from devcluster.errors import ConfigError
from devcluster.release import read_key

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def pem(key: PrivateKey, encryption: KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SIGNING_KEY_PASSWORD", "open")
    return "open"


def test_an_encrypted_key_is_decrypted_by_the_password(tmp_path: Path, password: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    file = tmp_path / "key.pem"
    file.write_bytes(pem(key, BestAvailableEncryption(password.encode())))
    assert read_key(file).private_numbers() == key.private_numbers()
    assert "SIGNING_KEY_PASSWORD" not in os.environ, "programs that are run later see it"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(lambda: b"secret", "no private key in PEM", id="no-key"),
        pytest.param(
            lambda: pem(ec.generate_private_key(ec.SECP256R1()), BestAvailableEncryption(b"open")),
            "SIGNING_KEY_PASSWORD does not decrypt it",
            id="no-password",
        ),
        pytest.param(lambda: pem(ec.generate_private_key(ec.SECP384R1())), "not an ECDSA key of P-256", id="curve"),
        pytest.param(lambda: pem(rsa.generate_private_key(65537, 2048)), "not an ECDSA key of P-256", id="rsa"),
    ],
)
def test_other_keys_are_refused(tmp_path: Path, content: Callable[[], bytes], problem: str) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(content())
    with pytest.raises(ConfigError, match=problem) as refused:
        read_key(file)
    assert "secret" not in str(refused.value)


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"key\.pem: No such file or directory"):
        read_key(tmp_path / "key.pem")
