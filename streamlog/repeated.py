"""Repeated: log lines of a failure that comes again and again, told once a minute.

What can't be done is tried again, often every second, and says why each time. So the loggers of
what runs for long have a filter: a warning or an error is written when it comes first, and then at
most once a minute, with how often it came meanwhile. Only lines that are equal to the letter, and
tell of equal errors, count as the same: nothing that is new is ever left out.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

INTERVAL_S = 60.0
"""Between two lines that are the same."""
LINES_MAX = 1_000
"""That are remembered, by each logger; the one that came first is forgotten first."""


@dataclass(slots=True)
class _Line:
    told_s: float
    left_out: int = 0


class Repeated(logging.Filter):
    """Leaves out what one logger has said less than a minute ago."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: OrderedDict[tuple[int, str, str], _Line] = OrderedDict()
        self._lock = Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; with how often it was left out before."""
        if record.levelno < logging.WARNING:
            return True
        text, now_s = record.getMessage(), record.created
        key = record.levelno, text, repr(record.exc_info and record.exc_info[1])
        with self._lock:
            line = self._lines.get(key)
            if line is not None and abs(now_s - line.told_s) < INTERVAL_S:
                line.left_out += 1
                return False
            self._lines.pop(key, None)
            self._lines[key] = _Line(now_s)
            if len(self._lines) > LINES_MAX:
                self._lines.popitem(last=False)
        if line is not None and line.left_out:
            record.msg, record.args = f"{text} ({line.left_out} times more since the last line)", ()
        return True

    def forget(self) -> None:
        """What failed works again: its next failure is a new one."""
        with self._lock:
            self._lines.clear()


_filters: dict[str, Repeated] = {}


def logger(name: str) -> logging.Logger:
    """The logger of a module, which tells of a failure that is repeated once a minute."""
    found = logging.getLogger(name)
    if name not in _filters:
        _filters[name] = Repeated()
        found.addFilter(_filters[name])
    return found


def forget(name: str | None = None) -> None:
    """What a module has told of works again; without a name, what all of them have."""
    for each, lines in _filters.items():
        if name in (None, each):
            lines.forget()
