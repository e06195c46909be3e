"""The events that every participant reads, and the rows that must come out.

An event is about 200 bytes of JSON, {user, item, amount, ts}, keyed by its user, at 100,000 a
second of event time, in order. The oracle counts and joins in plain Python over all of them:
what a participant writes is compared with that, row by row. Amounts are whole cents, so sums do
not depend on the order of additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

USERS = 10_000
START_MS = 1_700_000_000_000
"""Divisible by the window. Events before it are for warming up, and are not compared."""
EVENTS_PER_MS = 100
WINDOW_MS = 10_000
CLOSING_MS = 10 * WINDOW_MS
"""An event so much later than the last one closes its window everywhere."""
ITEM = "an item whose description fills the event up to two hundred bytes".ljust(128, ".")
PAUSE_MS = 360 * WINDOW_MS
"""An hour between two rounds: longer than a closing event, and than any pause."""
COUNTRIES = ("DE", "FR", "PL", "US", "JP")
NOBODY = "nobody"

Loaded: TypeAlias = tuple[int, bytes | None, bytes | None, tuple[()]]
"""Timestamp, key, value, headers: what our producer takes in bulk."""
Row: TypeAlias = tuple[str | int, ...]
"""What a participant wrote, in plain values."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything."""

    users: int = USERS
    windows: int = 1
    """That events fall into in turn, so that all of them are open at a time."""
    partitions: int = 1

    @property
    def grace_ms(self) -> int:
        """For which windows are kept open."""
        return (self.windows - 1) * WINDOW_MS


PLAIN = Size()


def user_of(number: int, users: int = USERS) -> int:
    """Scattered over all users, the same in every run."""
    return number * 2_654_435_761 % 2**32 * users >> 32


def amount_of(number: int) -> int:
    """Cents."""
    return number * 7_919 % 1_000


def ts_of(number: int, windows: int = 1) -> int:
    """Event time."""
    return START_MS + number // EVENTS_PER_MS + number % windows * WINDOW_MS


def event(number: int, size: Size = PLAIN) -> Loaded:
    """The event with this number."""
    user, at_ms = user_of(number, size.users), ts_of(number, size.windows)
    return _event(f"user-{user:05d}", amount_of(number), at_ms)


def partition_of(number: int, size: Size) -> int:
    """Where the event with this number goes: all of a user to one partition."""
    return user_of(number, size.users) % size.partitions


def closing_event(number: int) -> Loaded:
    """Comes before the event with this number, belongs to nobody, and closes the last window."""
    return _event(NOBODY, 1, ts_of(number) + CLOSING_MS)


def rounds_of(records: int, rounds: int) -> list[range]:
    """The numbers of the events of each round, so far apart that none is late after a closing one.

    Final rows of ours also count the time that passes without events, so that a round has to come
    later in event time than the pause before it takes. Each round begins with a window.
    """
    per_window = WINDOW_MS * EVENTS_PER_MS
    apart = -(-records // per_window) * per_window + PAUSE_MS * EVENTS_PER_MS
    return [range(number * apart, number * apart + records) for number in range(rounds)]


def warm_up_event(number: int) -> Loaded:
    """Before the start; each of these opens another window and closes the one before."""
    return _event(f"user-{USERS - 1:05d}", 2, START_MS - 1_000 * WINDOW_MS + number * WINDOW_MS)


def users() -> Iterator[Loaded]:
    """The table that is joined with: known long before the first event."""
    for number in range(USERS):
        user = {"name": f"The user with number {number}", "country": country_of(number)}
        since_ms = START_MS - 100_000 * WINDOW_MS
        yield since_ms, b"user-%05d" % number, _encode(user), ()


def country_of(user: int) -> str:
    """Where a user lives."""
    return COUNTRIES[user % len(COUNTRIES)]


def filtered_and_mapped(numbers: Iterable[int]) -> list[Row]:
    """J1: events with an even number of cents, doubled."""
    return [
        (f"user-{user_of(number):05d}", 2 * amount_of(number), ts_of(number))
        for number in numbers
        if amount_of(number) % 2 == 0
    ]


def updates(numbers: Iterable[int], size: Size = PLAIN) -> list[Row]:
    """J2: after each event, how many there are of its user and window, and their sum."""
    totals: dict[tuple[int, int], tuple[int, int]] = {}
    rows: list[Row] = []
    for number in numbers:
        at_ms = ts_of(number, size.windows)
        key = user_of(number, size.users), at_ms // WINDOW_MS * WINDOW_MS
        count, total = totals.get(key, (0, 0))
        totals[key] = count + 1, total + amount_of(number)
        rows.append((f"user-{key[0]:05d}", key[1], *totals[key]))
    return rows


def final_rows(numbers: Iterable[int]) -> list[Row]:
    """J2: the last of the updates of every user and window."""
    last = {row[:2]: row for row in updates(numbers)}
    return list(last.values())


def joined(numbers: Iterable[int]) -> list[Row]:
    """J3: each event with the country of its user."""
    return [
        (
            f"user-{user_of(number):05d}",
            amount_of(number),
            ts_of(number),
            country_of(user_of(number)),
        )
        for number in numbers
    ]


EXPECTED: dict[str, Callable[[Iterable[int]], list[Row]]] = {
    "j1": filtered_and_mapped,
    "j2": updates,
    "j2-final": final_rows,
    "j2-commit": final_rows,
    "agent": filtered_and_mapped,
    "j3": joined,
}
"""By job; of rows per commit, the last ones."""


def _event(user: str, amount: int, ts: int) -> Loaded:
    value = _encode({"user": user, "item": ITEM, "amount": amount, "ts": ts})
    return ts, user.encode(), value, ()
