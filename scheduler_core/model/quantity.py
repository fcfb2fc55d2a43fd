"""Kubernetes quantities (``100Gi``, ``1e3``, ``500m``) as exact whole numbers of bytes.

The grammar is that of `k8s.io/apimachinery/pkg/api/resource.ParseQuantity`: a decimal number with an optional sign, then
a binary suffix (Ki … Ei), a decimal suffix (n, u, m, k … E) or an exponent. Fractions are rounded away from zero, as by
`Quantity.Value`. No floating point is involved anywhere.

After them: numbers, durations and lists for people, in sentences and in their order.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from scheduler_core.errors import QuantityError, QuantityOverflowError

MAX_BYTES = 2**63 - 1
# What objects hold: a text, or a number in files.
Amount = str | int | float

_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+\.?[0-9]*|\.[0-9]+)(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?",
    re.ASCII,
)
_SUFFIXES = {
    **{suffix + "i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", start=1)},
}
_DURATIONS = ((86_400, "d"), (3600, "h"), (60, "min"))
_PRINTED_UNITS = ((1024**4, "Ti"), (1024**3, "Gi"), (1024**2, "Mi"), (1024, "Ki"))
_WHOLE_SUFFIXES = {"": 1} | {suffix: int(size) for suffix, size in _SUFFIXES.items() if size >= 1}
# The API server keeps a quantity as it was written, however many zeros it begins with.
_LEADING_ZEROS = re.compile(r"\A([+-]?)0+(?=[0-9])", re.ASCII)
# Longer texts and exponents are not sizes of anything; they would only cost time and memory.
_MAX_TEXT_LENGTH = 64
_MAX_EXPONENT = 100


def parse_bytes(text: str) -> int:
    """Parses a Kubernetes quantity as bytes, with fractions rounded away from zero, as by `Quantity.Value`.

    Raises:
        QuantityError: the text is no quantity
        QuantityOverflowError: the value does not fit a signed 64-bit integer
    """
    size = _parse_rounded_up(text, 1)
    if abs(size) > MAX_BYTES:
        raise QuantityOverflowError(f"{text!r} is more than 2^63-1 bytes")
    return size


def parse_clamped(text: str, scale: int = 1) -> int:
    """Parses a Kubernetes quantity times `scale`, clamped to 64 bits. Fractions are rounded away from zero. A value
    that does not fit a signed 64-bit integer becomes the nearest one that does. For quantities in objects of users: the
    API server accepts `cpu: 10P` and `memory: 1e30`.

    Raises:
        QuantityError: the text is no quantity

    >>> parse_clamped("1.5"), parse_clamped("1.5", 1000), parse_clamped("10P", 1000) == MAX_BYTES
    (2, 1500, True)
    """
    return max(-MAX_BYTES, min(_parse_rounded_up(text, scale), MAX_BYTES))


def read_quantity(value: Amount | None) -> int:
    """A size in bytes as objects hold it; 0 if it is absent.

    Raises:
        QuantityError: it is no quantity, or negative
        QuantityOverflowError: it does not fit 64 bits
    """
    if value is None or value == "":
        return 0
    size = parse_bytes(value if isinstance(value, str) else str(value))
    if size < 0:
        raise QuantityError(f"{value!r} is negative")
    return size


def read_size(value: str | int | None) -> int:
    return read_quantity(value)


def read_byte_count(value: int | None) -> int:
    return read_quantity(value)


def read_clamped(value: Amount | None) -> int:
    """The same without limits: a size that does not fit 64 bits becomes the largest that does."""
    return parse_clamped("0" if value is None else str(value))


def read_counter(value: int | None) -> int:
    """A byte count as Longhorn reports it: any 64-bit integer, negative ones included.

    Raises:
        QuantityError: it does not fit 64 bits
    """
    if value is None:
        return 0
    if not -MAX_BYTES - 1 <= value <= MAX_BYTES:
        raise QuantityError(f"{value} does not fit a signed 64-bit integer")
    return value


# Objects of one workload have the same sizes.
@lru_cache(4096)
def _parse_rounded_up(text: str, scale: int) -> int:
    """The value times `scale`, rounded away from zero and not limited to 64 bits; an absurdly large exponent gives just
    some value beyond that limit.
    """
    stripped = _LEADING_ZEROS.sub(r"\1", text)
    match = _GRAMMAR.fullmatch(stripped) if len(stripped) <= _MAX_TEXT_LENGTH else None
    if match is None:
        raise QuantityError(f"{text[:_MAX_TEXT_LENGTH]!r} is not a quantity such as 100Gi, 1e9 or 512")
    suffix = match["suffix"] or ""
    if match["number"].isdigit() and not match["exponent"] and suffix in _WHOLE_SUFFIXES:
        whole = int(match["number"]) * _WHOLE_SUFFIXES[suffix] * scale
        return -whole if match["sign"] == "-" else whole
    value = Fraction(match["number"] + "0" if match["number"].endswith(".") else match["number"]) * scale
    if suffix:
        value *= _SUFFIXES[suffix]
    elif match["exponent"]:
        exponent = int(match["exponent"])
        value *= Fraction(10) ** max(-_MAX_EXPONENT, min(exponent, _MAX_EXPONENT))
    whole = -(-value.numerator // value.denominator)
    return -whole if match["sign"] == "-" else whole


def format_bytes(size: int) -> str:
    """Formats a size for people, to two decimals. Sizes from 1Gi on are in Gi, so that those of one sentence compare,
    unless two decimals of a Ti are exact; smaller ones in Mi, Ki or bytes. Nothing is rounded up. A rest that the
    decimals would hide entirely is added.

    >>> format_bytes(107374182400), format_bytes(1610612736), format_bytes(53689188352), format_bytes(20 * 1024**4)
    ('100Gi', '1.5Gi', '50Gi + 2Mi', '20Ti')
    """
    sign = "-" if size < 0 else ""
    size = abs(size)
    for unit, suffix in _PRINTED_UNITS:
        if size >= unit and (suffix != "Ti" or size * 100 % unit == 0):
            whole, rest = divmod(size, unit)
            decimals = f"{rest * 100 // unit:02}".rstrip("0")
            if decimals:
                return f"{sign}{whole}.{decimals}{suffix}"
            return f"{sign}{whole}{suffix}" + (f" + {format_bytes(rest)}" if rest else "")
    return f"{sign}{size}"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Formats a number with its noun for people.

    >>> format_count(1, "pod"), format_count(1200, "pod"), format_count(1, "pod waits", "pods wait")
    ('1 pod', '1,200 pods', '1 pod waits')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_age(seconds: float) -> str:
    """Formats a duration in its largest unit.

    >>> format_age(3.2), format_age(90), format_age(200_000)
    ('3 s', '1 min', '2 d')
    """
    for length, unit in _DURATIONS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


MAX_LISTED = 5
_DIGITS = re.compile("([0-9]+)")


def join_first(parts: Sequence[str], separator: str, total: int | None = None) -> str:
    """Joins the first few parts and says how many more there are.

    `total`: how many there are, if `parts` are only the first of them.

    >>> join_first(["a", "b"], "; "), join_first(["a", "b", "c", "d", "e", "f", "g"], ", ")
    ('a; b', 'a, b, c, d, e, and 2 more')
    """
    shown = separator.join(parts[:MAX_LISTED])
    more = (len(parts) if total is None else total) - MAX_LISTED
    return f"{shown}{separator}and {more} more" if more > 0 else shown


# Names of nodes are sorted again for every row, and hardly change.
@lru_cache(maxsize=16_384)
def natural_key(name: str) -> tuple[object, ...]:
    """Returns the sort key of a name, by which numbers in it count as numbers.

    >>> sorted(["wait-10", "wait-2", "wait-02", "wait"], key=natural_key)
    ['wait', 'wait-02', 'wait-2', 'wait-10']
    """
    # Texts and numbers alternate. A number is compared by its length first, since one of thousands of digits is no int.
    parts = _DIGITS.split(name)
    keys = [(len(part.lstrip("0")), part.lstrip("0")) if index % 2 else part for index, part in enumerate(parts)]
    return tuple(keys), name
