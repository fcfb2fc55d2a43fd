"""Kubernetes quantities are read exactly."""

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from scheduler_core.errors import QuantityError
from scheduler_core.model.quantity import MAX_BYTES, format_bytes, parse_bytes, parse_clamped

SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("100Gi", 100 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("12e-1", 2),
        ("500m", 1),
        ("1500m", 2),
        ("1n", 1),
        ("1u", 1),
        (".5Ki", 512),
        ("5.", 5),
        ("+3k", 3000),
        ("-1Gi", -(2**30)),
        ("-500m", -1),
        ("007", 7),
        ("-" + "0" * 100 + "7", -7),
        ("0e999999999999", 0),
        ("1e-99999999999", 1),
        (str(MAX_BYTES), MAX_BYTES),
        ("8796093022207.999999Mi", MAX_BYTES),
    ],
)
def test_a_quantity_has_an_exact_value_rounded_up(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1Gb",
        "1i",
        "1KiB",
        "NaN",
        "Infinity",
        "1_000",
        "٣",
        "0x10",
        "1e",
        "--1",
        "1.1.1",
        "e3",
        ".",
        "Gi",
        "1 Gi",
        "much",
        "m",
        "1mm",
    ],
)
def test_a_text_that_is_no_quantity_is_refused(text: str) -> None:
    """Python would read some of these as numbers; Kubernetes does not."""
    with pytest.raises(QuantityError, match="is not a quantity"):
        parse_bytes(text)
    with pytest.raises(QuantityError, match="is not a quantity"):
        parse_clamped(text, 1000)


@pytest.mark.parametrize("text", ["9223372036854775808", "9Ei", "10E", "1e30", "1e999999999999"])
def test_a_quantity_of_more_than_64_bits_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="more than"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "scale", "value"),
    [
        ("1.5", 1, 2),
        ("1.5", 1000, 1500),
        ("9Ei", 1, MAX_BYTES),
        ("-9Ei", 1, -MAX_BYTES),
        ("10P", 1000, MAX_BYTES),
        ("1e999999999999", 1, MAX_BYTES),
        ("-1e999999999999", 1000, -MAX_BYTES),
        ("1e-999999999999", 1000, 1),
        ("999999999999999999E", 1000, MAX_BYTES),
        ("9223372036854775807500m", 1000, MAX_BYTES),
        ("1000000000000000000001m", 1, 10**18 + 1),
        ("9223372036854775", 1000, 9223372036854775000),
        ("0.0001", 1000, 1),
        ("1500u", 1000, 2),
        ("1.5e-1", 1000, 150),
        ("-1", 1000, -1000),
    ],
)
def test_a_clamped_value_fits_64_bits(text: str, scale: int, value: int) -> None:
    assert parse_clamped(text, scale) == value


@given(st.integers(0, 10**9), st.integers(0, 999), st.sampled_from(sorted(SUFFIXES)))
def test_a_decimal_number_equals_its_fraction(whole: int, thousandths: int, suffix: str) -> None:
    exact = (Fraction(whole) + Fraction(thousandths, 1000)) * SUFFIXES[suffix]
    text = f"{whole}.{thousandths:03}{suffix}"
    millis = exact * 1000
    assert parse_clamped(text, 1000) == min(MAX_BYTES, -(-millis.numerator // millis.denominator))
    if exact > MAX_BYTES:
        with pytest.raises(QuantityError):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == -(-exact.numerator // exact.denominator)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1024, "1Ki"),
        (512 * 2**20, "512Mi"),
        (100 * 2**30, "100Gi"),
        (3 * 2**29, "1.5Gi"),
        (2**40, "1Ti"),
        (1100 * 2**30, "1100Gi"),
        (925300 * 2**20, "903.61Gi"),
        (100 * 2**30 - 1, "99.99Gi"),
        (100 * 2**30 + 4096, "100Gi + 4Ki"),
        (-(2**30), "-1Gi"),
    ],
)
def test_a_size_of_a_gibibyte_or_more_is_printed_in_gibibytes(size: int, text: str) -> None:
    """So the sizes of one sentence compare; none is rounded up, and a hidden rest is added in bytes."""
    assert format_bytes(size) == text


@given(st.integers(-MAX_BYTES, MAX_BYTES))
def test_only_an_exact_multiple_is_printed_as_a_bare_unit(size: int) -> None:
    """So no size is mistaken for a rounder one."""
    text = format_bytes(size)
    if text.endswith("i") and "." not in text and "+" not in text:
        assert parse_bytes(text) == size
