"""Kubernetes quantities (``100Gi``, ``1e3``, ``500m``) as exact whole numbers of bytes.

The grammar is that of `k8s.io/apimachinery/pkg/api/resource.ParseQuantity`: a decimal number with an optional sign, then
a binary suffix (Ki … Ei), a decimal suffix (n, u, m, k … E) or an exponent. `Quantity.Value` rounds up, so does this.
No floating point is involved anywhere.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from scheduler_core.errors import QuantityError

MAX_BYTES: Final = 2**63 - 1

_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?",
    re.ASCII,
)
_SUFFIXES: Final = {
    **{suffix + "i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", start=1)},
}
# The API server keeps a quantity as it was written, however many zeros it begins with.
_LEADING_ZEROS: Final = re.compile(r"\A([+-]?)0+(?=[0-9])", re.ASCII)
# Longer texts and exponents are not sizes of anything and would only cost time and memory to compute.
_LONGEST_TEXT: Final = 64
_LARGEST_EXPONENT: Final = 100


def parse_bytes(text: str) -> int:
    """The value of a Kubernetes quantity in bytes, rounded up (away from a fraction, as `Quantity.Value` does).

    Raises:
        QuantityError: the text is no quantity, or the value does not fit a signed 64-bit integer
    """
    size = _rounded_up(text, 1)
    if abs(size) > MAX_BYTES:
        raise QuantityError(f"{text!r} is more than 2^63-1 bytes")
    return size


def capped(text: str, scale: int = 1) -> int:
    """A Kubernetes quantity times `scale`, rounded up; what does not fit a signed 64-bit integer is the nearest that does.

    For quantities that anybody may write: the API server takes `cpu: 10P` and `memory: 1e30`.

    Raises:
        QuantityError: the text is no quantity

    >>> capped("1.5"), capped("1.5", 1000), capped("10P", 1000) == MAX_BYTES
    (2, 1500, True)
    """
    return max(-MAX_BYTES, min(_rounded_up(text, scale), MAX_BYTES))


def _rounded_up(text: str, scale: int) -> int:
    """The value times `scale`, without the limit of 64 bits; of absurdly large exponents just something that is beyond it.

    Raises:
        QuantityError: the text is no quantity
    """
    short = _LEADING_ZEROS.sub(r"\1", text)
    match = _GRAMMAR.fullmatch(short) if len(short) <= _LONGEST_TEXT else None
    if match is None:
        raise QuantityError(f"{text[:_LONGEST_TEXT]!r} is not a quantity such as 100Gi, 1e9 or 512")
    value = Fraction(match["number"] + "0" if match["number"].endswith(".") else match["number"]) * scale
    if match["suffix"]:
        value *= _SUFFIXES[match["suffix"]]
    elif match["exponent"]:
        exponent = int(match["exponent"])
        value *= Fraction(10) ** max(-_LARGEST_EXPONENT, min(exponent, _LARGEST_EXPONENT))
    whole = -(-value.numerator // value.denominator)
    return -whole if match["sign"] == "-" else whole


def format_bytes(size: int) -> str:
    """A size for people, exact: the largest binary unit that leaves a whole number, or one rounded figure with bytes.

    >>> format_bytes(107374182400), format_bytes(1610612736), format_bytes(1610612737)
    ('100Gi', '1536Mi', '1.5Gi+1')
    """
    sign, size = ("-", -size) if size < 0 else ("", size)
    for power, suffix in reversed([*enumerate("KMGTPE", start=1)]):
        unit = 1024**power
        if size >= unit and size % unit == 0:
            return f"{sign}{size // unit}{suffix}i"
    return f"{sign}{_rounded(size)}"


def _rounded(size: int) -> str:
    for power, suffix in reversed([*enumerate("KMGTPE", start=1)]):
        unit = 1024**power
        if size >= unit:
            tenths = size * 10 // unit
            rest = size - tenths * unit // 10
            return f"{tenths // 10}.{tenths % 10}{suffix}i" + (f"+{rest}" if rest < 1024 else "")
    return f"{size}"
