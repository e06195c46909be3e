"""Java values: how Kafka Connect writes and converts the values of Java, for values of Python.

Transforms and headers show numbers and dates as text, and cut numbers to narrower types. What they
leave in a topic has to be what Kafka Connect leaves there, so its rules hold, to the last digit:
`Double.toString`, narrowing conversions, `parseInt`, and the formats of `Values`.
"""

from __future__ import annotations

import math
import re
import struct
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.row_schema import Kind

DAY_MS: Final = 86_400_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
INTEGER_BITS: Final[Mapping[str, int]] = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_INTEGER: Final = re.compile(r"[+-]?\d+")
_FLOAT: Final = re.compile(r"[+-]?(NaN|Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_MAX_PLAIN: Final = 1e7
_MIN_PLAIN: Final = 1e-3
_SHORTEST: Final = range(6, 10)
"""The numbers of digits to try: the text of a float32 is the shortest that reads back as it."""
_SINGLE_MIN: Final = 1.2e-38
"""The smallest float32 with all its digits; those below it have fewer, down to one."""


def kind_of(value: object) -> Kind | None:
    """Return the kind that a value of Python has without a schema; None: Connect has none."""
    for python, kind in _KINDS:
        if isinstance(value, python):
            return kind
    return None


_KINDS: Final[tuple[tuple[type | tuple[type, ...], Kind], ...]] = (
    # `bool` is an `int` of Python, but not a number of Java.
    (bool, "boolean"),
    (int, "int64"),
    (float, "float64"),
    (str, "string"),
    ((bytes, bytearray, memoryview), "bytes"),
    ((list, tuple), "array"),
    (Mapping, "map"),
)


def is_moment(value: object) -> bool:
    """Return whether a value is what Java has as `java.util.Date`."""
    return isinstance(value, date | time)


def moment_ms(value: object) -> int:
    """Return the milliseconds of a date, a time of day or a datetime since 1970."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (aware - EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, date):
        return (value - EPOCH.date()).days * DAY_MS
    if isinstance(value, time):
        seconds = value.hour * 3600 + value.minute * 60 + value.second
        return seconds * 1000 + value.microsecond // 1000
    raise BadRecord(f"{type(value).__name__} is no date or time")


def moment_of(ms: int) -> datetime:
    """Return the datetime of milliseconds since 1970.

    Raises:
        BadRecord: the year is not one of Python's, 1 to 9999.
    """
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        raise BadRecord(f"{ms} ms since 1970 is not in the years 1 to 9999") from None


def time_of(ms: int) -> time:
    """Return the time of day of milliseconds since midnight, 0 to a day."""
    return (EPOCH + timedelta(milliseconds=ms % DAY_MS)).time()


# ------------------------------------------------------------------------------ texts


def java_text(value: object, kind: Kind | None = None) -> str:
    """Return a value as Java's `toString` and Connect's Cast write it.

    Args:
        value: a scalar, a date or a time.
        kind: the kind of its schema; None: by the value.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return float_text(value, is_single=kind == "float32")
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    if is_moment(value):
        return moment_text(moment_ms(value))
    return str(value)


def float_text(value: float, *, is_single: bool = False) -> str:
    """Return a number as `Double.toString` or `Float.toString` writes it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value == math.inf else "-Infinity"
    if value == 0:
        return str(value)
    shortest = Decimal(single_text(value) if is_single else repr(value))
    if len(shortest.as_tuple().digits) == 1:
        # Java writes a second digit in any case, the one that is closest: 4.9E-324, not 5.0E-324.
        shortest = Decimal(f"{value:.1e}")
    sign, digits, exponent = shortest.as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)
    minus = "-" if sign else ""
    if _MIN_PLAIN <= abs(value) < _MAX_PLAIN:
        if point <= 0:
            return f"{minus}0.{'0' * -point}{text}"
        return f"{minus}{text[:point].ljust(point, '0')}.{text[point:] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"


def single_text(value: float) -> str:
    """Return the shortest text that gives a float32 back; JSON and Python read it."""
    for digits in _SHORTEST if abs(value) >= _SINGLE_MIN else range(1, 10):
        text = f"{value:.{digits}g}"
        if single(float(text)) == value:
            return text
    return repr(value)


def date_text(ms: int) -> str:
    """Return a `java.util.Date` as its `toString` writes it, in UTC."""
    when = moment_of(ms)
    # Not by strftime: the names are English whatever the locale, and the year is not filled up.
    day, month = _DAYS[when.weekday()], _MONTHS[when.month - 1]
    return f"{day} {month} {when:%d %H:%M:%S} UTC {when.year}"


_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)


def moment_text(ms: int) -> str:
    """Return a `java.util.Date` as Connect's `Values` writes it: by its number, not by its type."""
    # 1. A Time is a Date of the first day. 2. A Date has no time of day. 3. So Connect takes the
    # number for the type, and a timestamp of 1969 is shown as a time of day.
    if ms < DAY_MS:
        return f"{time_of(ms).isoformat('milliseconds')}Z"
    when = moment_of(ms)
    if ms % DAY_MS == 0:
        return when.strftime("%Y-%m-%d")
    return f"{when.replace(tzinfo=None).isoformat('T', 'milliseconds')}Z"


# ------------------------------------------------------------------------------ numbers


def wrapped(number: int, kind: Kind) -> int:
    """Return the low bits of a whole number, as a narrowing conversion of Java keeps them."""
    bits = INTEGER_BITS[kind]
    low = number % (1 << bits)
    # The highest bit is the sign.
    return low - (low >> bits - 1 << bits)


def signed_bytes(number: int) -> bytes:
    """Return a number as `BigInteger.toByteArray` does: highest byte first, as few as it needs."""
    # One bit more than the number has, for its sign: 128 takes two bytes, -128 takes one.
    return number.to_bytes(max(number, ~number).bit_length() // 8 + 1, "big", signed=True)


def truncated(value: float, kind: Kind) -> int:
    """Return a number without its fraction, as Java narrows a double to a whole number."""
    if math.isnan(value):
        return 0
    # By way of int32 for the narrower kinds: 3e9 becomes 2,147,483,647, whose low byte is -1.
    bits = 64 if kind == "int64" else 32
    limit = 1 << bits - 1
    return wrapped(int(max(-limit, min(limit - 1, value))), kind)


def single(value: float) -> float:
    """Return the float32 that is next to a number."""
    try:
        found: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return found


def parse_integer(text: str, kind: Kind) -> int:
    """Return a whole number as `Integer.parseInt` and its like read it.

    Raises:
        BadRecord: it is none, or out of the kind's range.
    """
    if _INTEGER.fullmatch(text) and len(text) <= 80:  # noqa: PLR2004 - leading zeros are allowed
        number = int(text)
        if wrapped(number, kind) == number:
            return number
    raise _out_of_range(text)


def parse_float(text: str) -> float:
    """Return a number as `Double.parseDouble` reads it; no hexadecimal ones.

    Raises:
        BadRecord: it is none.
    """
    # Java trims characters up to the space, and takes a trailing f or d for a type.
    stripped = text.strip("".join(map(chr, range(33))))
    if not _FLOAT.fullmatch(stripped):
        raise _out_of_range(text)
    is_word = stripped.lstrip("+-") in ("NaN", "Infinity")
    return float(stripped if is_word else stripped.rstrip("fFdD"))


def parse_decimal(text: str) -> Decimal:
    """Return a number as `new BigDecimal` reads it.

    Raises:
        BadRecord: it is none.
    """
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise _out_of_range(text) from None
    # Python takes "NaN", " 1 " and "1_000" as well.
    if not number.is_finite() or not set(text).issubset("+-.0123456789eE"):
        raise _out_of_range(text)
    return number


def _out_of_range(text: str) -> BadRecord:
    return BadRecord(f"Value ({text[:80]}) was out of range for requested data type")


# ------------------------------------------------------------------------------ headers
