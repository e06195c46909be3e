"""Plain text: what comes from others, without the characters that a terminal or a log obeys.

Names, keys, values and errors may hold what a client has sent: escape sequences that clear a
screen, carriage returns that overwrite what was there, line breaks that forge a line of a log,
marks that turn the direction of writing. Each is shown as an escape of Python instead.
"""

from __future__ import annotations

import logging
import re

_DIRECTION = "\u200e\u200f\u202a-\u202e\u2066-\u2069"
_OBEYED = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_DIRECTION}]")
_BREAKS = re.compile(rf"[\x00-\x1f\x7f-\x9f\u2028\u2029{_DIRECTION}]")


def several_lines(text: str) -> str:
    """The text with its line breaks and tabs, and without anything else that is obeyed."""
    return _OBEYED.sub(_escape, text)


def one_line(text: str) -> str:
    """The text as a part of one line."""
    return _BREAKS.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class OneLineFormatter(logging.Formatter):
    """One record is one line, but for a traceback behind it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line."""
        record.message = one_line(record.message)
        return super().formatMessage(record)
