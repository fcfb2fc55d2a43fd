"""The placement guard's certificates: what is signed, when it is due, and which Secrets are refused."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from hypothesis import given, strategies as st

from app.extender.certificates import CertificateError
from app.extender.guard_certificate import (
    AUTHORITIES_KEY,
    AUTHORITY_KEY_KEY,
    AUTHORITY_VALIDITY,
    CHAIN_KEY,
    CLOCK_SKEW,
    SERVING_KEY_KEY,
    SERVING_VALIDITY,
    Certificates,
    decode_certificates,
    decode_serving,
    issue,
)
from devcluster.pki import CertificateAuthority
from tests.worlds.tls import shake_hands

HOST = "longhorn-scheduler-extender-placement-guard.longhorn-system.svc"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
MADE = issue(HOST, NOW)
OTHER = issue(HOST, NOW)
KEYS = (AUTHORITIES_KEY, AUTHORITY_KEY_KEY, CHAIN_KEY, SERVING_KEY_KEY)


def test_a_client_with_the_bundle_accepts_the_server() -> None:
    made = issue(HOST, datetime.now(UTC))
    assert shake_hands(made.serving, made.bundle, HOST) == made.serving.certificate.serial_number


@pytest.mark.parametrize(
    ("bundle", "host"),
    [
        pytest.param(OTHER.bundle, HOST, id="another authority"),
        pytest.param(b"", "other.longhorn-system.svc", id="another name"),
    ],
)
def test_other_clients_refuse_the_server(bundle: bytes, host: str) -> None:
    made = issue(HOST, datetime.now(UTC))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(made.serving, bundle or made.bundle, host)


def test_a_renewed_authority_and_the_previous_one_are_trusted_together() -> None:
    now = datetime.now(UTC)
    before = issue(HOST, now - timedelta(days=60))
    after = before.renew_authority(HOST, now)
    for certificates in (before, after):
        assert shake_hands(certificates.serving, after.bundle, HOST) == certificates.serving.certificate.serial_number
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(after.serving, before.bundle, HOST)


def test_an_expired_authority_is_not_trusted_any_more() -> None:
    """The bundle does not grow for ever."""
    later = NOW + AUTHORITY_VALIDITY
    assert len(MADE.renew_authority(HOST, later - timedelta(seconds=1)).authorities) == 2
    assert len(MADE.renew_authority(HOST, later).authorities) == 1


def test_a_clock_that_is_behind_accepts_a_new_certificate() -> None:
    assert MADE.serving.problem(HOST, NOW - CLOCK_SKEW) == ""
    assert "is not valid before" in MADE.serving.problem(HOST, NOW - CLOCK_SKEW - timedelta(seconds=1))


SERVING_LIFE = SERVING_VALIDITY + CLOCK_SKEW
AUTHORITY_LIFE = AUTHORITY_VALIDITY + CLOCK_SKEW
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("certificates", "age", "due"),
    [
        pytest.param(MADE, timedelta(0), "", id="new"),
        pytest.param(MADE, SERVING_LIFE * 2 / 3 - CLOCK_SKEW - SECOND, "", id="before two thirds"),
        pytest.param(MADE, SERVING_LIFE * 2 / 3 - CLOCK_SKEW + SECOND, "serving", id="after two thirds"),
        pytest.param(MADE, SERVING_VALIDITY + SECOND, "serving", id="expired"),
        pytest.param(MADE, -CLOCK_SKEW - SECOND, "authority", id="made by a clock that was ahead"),
        pytest.param(MADE, AUTHORITY_LIFE * 2 / 3 - CLOCK_SKEW + SECOND, "authority", id="authority due"),
        pytest.param(issue("other.svc", NOW), timedelta(0), "serving", id="another name"),
    ],
)
def test_what_is_due_follows_from_the_age(certificates: Certificates, age: timedelta, due: str) -> None:
    assert certificates.due(HOST, NOW + age) == due


def test_nothing_is_due_after_a_renewal() -> None:
    late = NOW + AUTHORITY_VALIDITY - timedelta(days=1)
    assert MADE.renew_serving(HOST, late).serving.expires == MADE.authorities[0].not_valid_after_utc
    for now in (NOW + SERVING_VALIDITY, late):
        assert MADE.renew_authority(HOST, now).due(HOST, now) == ""
    assert MADE.renew_serving(HOST, NOW + SERVING_VALIDITY).due(HOST, NOW + SERVING_VALIDITY) == ""


def test_what_is_written_to_a_secret_is_read_from_it() -> None:
    renewed = MADE.renew_authority(HOST, NOW)
    decoded = decode_certificates(renewed.encode())
    assert decoded.encode() == renewed.encode()
    assert decoded.serving == renewed.serving == decode_serving(renewed.encode())


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        *(pytest.param({key: b""}, f"{key} is missing", id=f"no {key}") for key in KEYS),
        *(pytest.param({key: b"garbage"}, f"{key} holds no", id=f"garbage in {key}") for key in KEYS),
        pytest.param(
            {SERVING_KEY_KEY: OTHER.encode()[SERVING_KEY_KEY]}, "tls.key is not the key of tls.crt", id="other key"
        ),
        pytest.param(
            {AUTHORITY_KEY_KEY: OTHER.encode()[AUTHORITY_KEY_KEY]}, "ca.key is not the key of ca.crt", id="other ca.key"
        ),
        pytest.param(
            {key: OTHER.encode()[key] for key in (CHAIN_KEY, SERVING_KEY_KEY)},
            "tls.crt is not signed by ca.crt",
            id="of another authority",
        ),
    ],
)
def test_certificates_that_do_not_belong_together_are_refused(edit: dict[str, bytes], problem: str) -> None:
    with pytest.raises(CertificateError, match=problem):
        decode_certificates({**MADE.encode(), **edit})


def test_an_authority_of_others_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = CertificateAuthority.create(tmp_path_factory.mktemp("pki"))
    pair = authority.server("guard", (HOST,))
    data = {CHAIN_KEY: pair.certificate.read_bytes(), SERVING_KEY_KEY: pair.key.read_bytes()}
    foreign = {**MADE.encode(), **data, AUTHORITIES_KEY: authority.bundle.read_bytes()}
    with pytest.raises(CertificateError, match=r"ca\.crt holds an authority that is not the placement guard's own"):
        decode_certificates(foreign)
    assert decode_serving(data).problem(HOST, datetime.now(UTC)) == ""


@given(st.sampled_from(KEYS), st.integers(0, 4000), st.binary(min_size=1, max_size=4))
def test_a_damaged_secret_is_refused_and_its_keys_are_quoted_nowhere(key: str, place: int, damage: bytes) -> None:
    data = MADE.encode()
    place %= len(data[key])
    data[key] = data[key][:place] + damage + data[key][place + len(damage) :]
    problem = ""
    try:
        decoded = decode_certificates(data)
        problem = decoded.serving.problem(HOST, NOW)
    except CertificateError as error:
        problem = str(error)
    assert not [line for line in MADE.encode()[SERVING_KEY_KEY].splitlines() if line.decode() in problem]
    assert len(problem) < 200


def test_no_representation_holds_a_key() -> None:
    """An object may be logged by mistake."""
    secrets = [
        line.decode() for key in (AUTHORITY_KEY_KEY, SERVING_KEY_KEY) for line in MADE.encode()[key].splitlines()
    ]
    text = f"{MADE!r} {MADE} {MADE.serving!r}"
    assert not any(line in text for line in secrets)


def test_a_wildcard_is_good_for_the_name() -> None:
    wildcard = issue("*.longhorn-system.svc", NOW).serving
    assert wildcard.problem(HOST, NOW) == ""
    assert "is for *.longhorn-system.svc, not for" in wildcard.problem("a.other.svc", NOW)


def test_the_authority_can_sign_no_other_authority() -> None:
    constraints = MADE.authorities[0].extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
