"""Asks: records that want an answer, and where it is to go.

Who asks says so in two headers: the topic that the answer is written to, and a number by which
it is recognised. The answer is the first thing that an agent yields for the record; a record
that is handled without is answered by nothing (None). Rule of the file: pure; an answer is
given at most once by each agent that reads the record, and not by one that has failed on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from streamlog.record import Headers
from streamlog.records.batch import LogRecord

REPLY_TO = "streamlog.reply-to"
CORRELATION = "streamlog.correlation"


class Ask(NamedTuple):
    """What a record wants."""

    reply_to: str
    """The topic of who asks."""
    number: bytes
    """Unique."""

    @property
    def headers(self) -> Headers:
        """As headers of the record that asks."""
        return (REPLY_TO, self.reply_to.encode()), (CORRELATION, self.number)


Answer = Callable[[Ask, bytes | None], None]
"""Sends an answer, without waiting for anything."""


def no_answer(_ask: Ask, _data: bytes | None) -> None:
    """For those whom nobody asks."""


def asks_of(records: Iterable[LogRecord]) -> dict[int, Ask]:
    """Those of the records that want an answer, by row."""
    asked: dict[int, Ask] = {}
    for row, record in enumerate(records):
        if record.headers:
            found = dict(record.headers)
            reply_to, number = found.get(REPLY_TO), found.get(CORRELATION)
            if reply_to is not None and number is not None:
                asked[row] = Ask(reply_to.decode(errors="replace"), number)
    return asked


def number_of(headers: Headers) -> bytes | None:
    """What an answer is recognised by."""
    return dict(headers).get(CORRELATION)
