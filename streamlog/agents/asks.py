"""Asks: records that request an answer, and the address of the answer.

An asking program sets two headers: the topic for the answer, and a number that the answer repeats.
The answer is the first value that an agent yields for the record; if the agent handles the record
and yields nothing, the answer is None.

Rule: pure. Each agent that reads the record answers at most once, and does not answer a record on
which it has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from streamlog.record import Headers
from streamlog.records.batch import LogRecord

REPLY_TO = "streamlog.reply-to"
CORRELATION = "streamlog.correlation"


class Ask(NamedTuple):
    """A request for an answer, from the headers of a record."""

    reply_to: str
    """The topic for the answer."""
    number: bytes
    """A number that is unique among asks; the answer repeats it."""

    @property
    def headers(self) -> Headers:
        """The headers of the asking record."""
        return (REPLY_TO, self.reply_to.encode()), (CORRELATION, self.number)


Answer = Callable[[Ask, bytes | None], None]
"""Sends the serialized answer to an ask, without waiting; None is the answer None."""


def no_answer(_ask: Ask, _data: bytes | None) -> None:
    """Drop an answer, for agents that take no asks."""


def asks_of(records: Iterable[LogRecord]) -> dict[int, Ask]:
    """Return the asks of these records, by index."""
    asks: dict[int, Ask] = {}
    for row, record in enumerate(records):
        if record.headers:
            found = dict(record.headers)
            reply_to, number = found.get(REPLY_TO), found.get(CORRELATION)
            if reply_to is not None and number is not None:
                asks[row] = Ask(reply_to.decode(errors="replace"), number)
    return asks


def number_of(headers: Headers) -> bytes | None:
    """Return the number of an ask or an answer; None if the headers have none."""
    return dict(headers).get(CORRELATION)
