"""DateFormat: the patterns of Java's SimpleDateFormat, in UTC and in English.

Text that is read is taken leniently, as Java does it: month 13 is January of the next year, and
what stands behind the match is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final, NamedTuple

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.java_values import EPOCH, moment_of
from streamlog.errors import ConfigError

_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ABBREVIATED: Final = 3
_PART: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'")
_LONG: Final = 4
"""From this many letters on, a name is written whole."""
_ZONE: Final = re.compile(r"Z|(?:GMT|UTC|UT)?(?:([+-])(\d\d?):?(\d\d)?)?")
_NUMBERS: Final[Mapping[str, Callable[[datetime], int]]] = {
    "y": lambda when: when.year,
    "u": lambda when: when.isoweekday(),
    "d": lambda when: when.day,
    "D": lambda when: when.timetuple().tm_yday,
    "H": lambda when: when.hour,
    "k": lambda when: when.hour or 24,
    "K": lambda when: when.hour % 12,
    "h": lambda when: when.hour % 12 or 12,
    "m": lambda when: when.minute,
    "s": lambda when: when.second,
    "S": lambda when: when.microsecond // 1000,
}
_CENTURY: Final = 100
_NOON: Final = 12


class _Piece(NamedTuple):
    letter: str
    """The letter of a field; empty for text that stands as it is."""
    text: str


class DateFormat:
    """One pattern.

    Raises:
        ConfigError: it has a letter that is not supported, or an open quote.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._pieces = [self._piece(found) for found in _PART.finditer(pattern)]

    def text(self, ms: int) -> str:
        """Return the text of milliseconds since 1970."""
        when = moment_of(ms)
        return "".join(
            _written(each.letter, len(each.text), when) if each.letter else each.text
            for each in self._pieces
        )

    def milliseconds(self, text: str, now_year: int) -> int:
        """Return the milliseconds since 1970 that a text says.

        Args:
            text: the text.
            now_year: the year from which years of two digits are at most 80 before or 20 behind.

        Raises:
            BadRecord: it does not match the pattern.
        """
        found = self._reader.match(text)
        if found is None:
            raise BadRecord(
                f"Could not parse timestamp: value ({text[:80]}) does not match pattern"
                f" ({self.pattern})"
            )
        values: dict[str, str] = {}
        for number, piece in enumerate(self._pieces):
            if piece.letter:
                values[piece.letter] = found[f"p{number}"] or ""
        # A letter that is there twice counts with its last value, as Java sets its calendar.
        try:
            return self._from(values, now_year)
        except (OverflowError, ValueError):
            raise BadRecord(f"timestamp {text[:80]} is not in the years 1 to 9999") from None

    @cached_property
    def _reader(self) -> re.Pattern[str]:
        parts = []
        for number, piece in enumerate(self._pieces):
            if not piece.letter:
                parts.append(re.escape(piece.text))
                continue
            # Numbers that stand side by side share no digit: each has as many as it has letters.
            behind = self._pieces[number + 1 :]
            is_next_number = bool(behind) and _is_number(behind[0])
            width = str(len(piece.text)) if is_next_number else "1,19"
            parts.append(f"(?P<p{number}>{_pattern_of(piece, width)})")
        return re.compile("".join(parts), re.IGNORECASE)

    def _piece(self, found: re.Match[str]) -> _Piece:
        quoted, letter = found[1], found[2]
        if quoted is not None:
            return _Piece("", quoted.replace("''", "'") or "'")
        if letter is None:
            if found[0] == "'":
                raise ConfigError(f"format {self.pattern!r}: Unterminated quote")
            return _Piece("", found[0])
        if letter not in _NUMBERS and letter not in "MLEaZXz":
            raise ConfigError(f"format {self.pattern!r}: Illegal pattern character '{letter}'")
        return _Piece(letter, found[0])

    def _from(self, values: Mapping[str, str], now_year: int) -> int:
        year = self._year(values.get("y", "1970"), now_year)
        month = _month(values.get("M") or values.get("L") or "1")
        # Lenient: months, days and hours beyond their ends run on into what comes behind them.
        year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
        # The day is added, and not given to the constructor: February 31 is March 3, or 2.
        first = datetime(year, month, 1, tzinfo=UTC)
        days = int(values.get("d") or 1) - 1
        if "D" in values:
            first, days = datetime(year, 1, 1, tzinfo=UTC), int(values["D"]) - 1
        hours = int(values.get("H") or 0)
        if "k" in values:
            hours = int(values["k"]) if values["k"] != "24" else 0
        if "h" in values or "K" in values:
            # Noon and midnight are 12 of "h". More than 12 is an hour of the day, as 13 of "hh:mm".
            hours = int(values.get("h") or values["K"])
            hours = 0 if hours == _NOON and "h" in values else hours
            hours += _NOON if values.get("a", "").lower() == "pm" else 0
        when = first + timedelta(
            days=days,
            hours=hours,
            minutes=int(values.get("m") or 0) - _zone_minutes(values),
            seconds=int(values.get("s") or 0),
            milliseconds=int(values.get("S") or 0),
        )
        return (when - EPOCH) // timedelta(milliseconds=1)

    def _year(self, text: str, now_year: int) -> int:
        letters = next((len(each.text) for each in self._pieces if each.letter == "y"), _LONG)
        year = int(text)
        if letters != 2 or len(text) != 2:  # noqa: PLR2004 - "yy", and two digits for it
            return year
        first = now_year - 80
        return first + (year - first) % _CENTURY


def _is_number(piece: _Piece) -> bool:
    return piece.letter in _NUMBERS or (
        piece.letter in ("M", "L") and len(piece.text) < _ABBREVIATED
    )


def _pattern_of(piece: _Piece, width: str) -> str:
    if _is_number(piece):
        return rf"\d{{{width}}}"
    names = {"M": _MONTHS, "L": _MONTHS, "E": _DAYS, "a": ("AM", "PM")}.get(piece.letter)
    if names is None:
        return _ZONE.pattern.replace("(\\d", "(?:\\d").replace("([+-])", "[+-]")
    short = [each[:_ABBREVIATED] for each in names]
    return "|".join((*names, *short))


def _written(letter: str, count: int, when: datetime) -> str:
    fixed = {"a": "AM" if when.hour < _NOON else "PM", "Z": "+0000", "X": "Z"}
    if letter in fixed:
        return fixed[letter]
    if letter == "z":
        return "UTC" if count < _LONG else "Coordinated Universal Time"
    if letter == "y" and count == 2:  # noqa: PLR2004 - a year of two digits
        return f"{when.year % _CENTURY:02}"
    name = {"E": _DAYS[when.weekday()], "M": _MONTHS[when.month - 1]}.get(letter.replace("L", "M"))
    if name is None or (letter != "E" and count < _ABBREVIATED):
        number = when.month if name is not None else _NUMBERS[letter](when)
        return str(number).zfill(count)
    return name if count >= _LONG else name[:_ABBREVIATED]


def _month(text: str) -> int:
    if text.isdecimal():
        return int(text)
    return next(at for at, name in enumerate(_MONTHS, 1) if name.lower().startswith(text.lower()))


def _zone_minutes(values: Mapping[str, str]) -> int:
    text = values.get("Z") or values.get("X") or values.get("z") or ""
    found = _ZONE.fullmatch(text.upper())
    if found is None or found[2] is None:
        return 0
    minutes = int(found[2]) * 60 + int(found[3] or 0)
    return -minutes if found[1] == "-" else minutes
