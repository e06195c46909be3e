"""Repeated: writes a log line that repeats itself at most once a minute.

A failed action is retried, often every second, and logs the reason each time. So the loggers of
long-running code have a filter: a warning or an error is written when it first occurs, and then at
most once a minute, with the number of lines that were left out. Only lines with equal text and
equal errors count as repeated, so new information is never left out.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

INTERVAL_S = 60.0
"""Seconds between two equal lines."""
LINES_MAX = 1_000
"""Lines that each logger remembers; the oldest is forgotten first."""


@dataclass(slots=True)
class _Line:
    time_s: float
    left_out: int = 0


class Repeated(logging.Filter):
    """A filter of one logger that drops lines which it has written less than a minute ago."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: OrderedDict[tuple[int, str, str], _Line] = OrderedDict()
        self._lock = Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a line; append how many equal ones were left out before it."""
        if record.levelno < logging.WARNING:
            return True
        text, now_s = record.getMessage(), record.created
        key = record.levelno, text, repr(record.exc_info and record.exc_info[1])
        with self._lock:
            line = self._lines.get(key)
            # `abs`: a wall clock that was set back must not silence a line until it has caught up.
            if line is not None and abs(now_s - line.time_s) < INTERVAL_S:
                line.left_out += 1
                return False
            self._lines.pop(key, None)
            # At the end of the order, as `pop` has removed it: the oldest line is forgotten first.
            self._lines[key] = _Line(now_s)
            if len(self._lines) > LINES_MAX:
                self._lines.popitem(last=False)
        if line is not None and line.left_out:
            times = "once" if line.left_out == 1 else f"{line.left_out} times"
            record.msg, record.args = f"{text} (repeated {times} since the last line)", ()
        return True

    def forget(self) -> None:
        """Write the next line even if it repeats an earlier one: the action has succeeded since."""
        with self._lock:
            self._lines.clear()


_filters: dict[str, Repeated] = {}


def logger(name: str) -> logging.Logger:
    """Return the logger of a module, with the filter for repeated lines."""
    found = logging.getLogger(name)
    if name not in _filters:
        _filters[name] = Repeated()
        found.addFilter(_filters[name])
    return found


def forget(name: str | None = None) -> None:
    """Write the next lines of a module's logger even if they repeat; without a name, of all."""
    for each, lines in _filters.items():
        if name in (None, each):
            lines.forget()
