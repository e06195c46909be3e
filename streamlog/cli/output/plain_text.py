"""Plain text: texts of clients, without the characters that control a terminal or a log.

Names, keys, values and errors may hold what a client has sent: escape sequences that clear a
screen, carriage returns that overwrite a line, line breaks that forge a line of a log, marks that
turn the direction of writing. Each is shown as an escape of Python instead.
"""

from __future__ import annotations

import logging
import re

_DIRECTION = "\u200e\u200f\u202a-\u202e\u2066-\u2069"
# Without tab (09) and line feed (0a), which `several_lines` keeps.
_CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_DIRECTION}]")
_BREAKS = re.compile(rf"[\x00-\x1f\x7f-\x9f\u2028\u2029{_DIRECTION}]")


def several_lines(text: str) -> str:
    """Return the text with control characters escaped, except line breaks and tabs."""
    return _CONTROLS.sub(_escape, text)


def one_line(text: str) -> str:
    """Return the text with all control characters escaped, line breaks and tabs included."""
    return _BREAKS.sub(_escape, text)


def text_of(data: bytes | None) -> str:
    """Return bytes as printable text; `-` for None."""
    if data is None:
        return "-"
    text = data.decode(errors="backslashreplace")
    return text if text.isprintable() else repr(data)[2:-1]


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class OneLineFormatter(logging.Formatter):
    """Formats a record as one line; only a traceback after it has lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Format the line, with the control characters of its message escaped."""
        record.message = one_line(record.message)
        return super().formatMessage(record)
