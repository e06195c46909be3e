"""Who takes part in Nexmark, with which queries, and how each one's rows are read.

Peers run in the environment of `benchmarks/engine`, on the same topics. A query is left to those
that can express it; their rows are compared with the same answers. Guarantees are the defaults:
exactly once for us, at least once for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from benchmarks.engine.environment import Environment
from benchmarks.engine.participants import FAUST, OURS, PEERS, QUIX, WAX
from examples.nexmark.queries import QUERIES, Highest, Hottest, Query
from streamlog import Windowed
from streamlog.durations import when_ms
from streamlog.records.batch import LogRecord

Row: TypeAlias = tuple[Any, Any]
STATELESS = ("q0", "q1", "q2")
MEMBERS = {
    QUIX: (*STATELESS, "q7", "q12"),
    WAX: (*STATELESS, "q3"),
    FAUST: STATELESS,
}
"""What each of the peers can express. Quix Streams 3.28.1 has sessions, but of 14 that were over it
gave 3 final rows (q11), and neither foreign keys nor windows over rows of windows; Bytewax closes
windows by the time of each key and the clock on the wall; Faust has no final rows and no joins."""


@dataclass(frozen=True, slots=True)
class Participant:
    """Who does queries, and how it is started."""

    name: str
    command: tuple[str, ...]
    """"{state}" in it stands for the state directory."""
    queries: tuple[str, ...]
    row: Callable[[str, Query, LogRecord], Row]
    """A record of a query's output as the answers have it."""
    prepare: tuple[str, ...] = ()
    """To be run before, if anything."""


def participants(where: Environment) -> Iterator[Participant]:
    """Ours first; peers that can't be installed here are left out."""
    command = (sys.executable, "-u", "-m", "streamlog", "-A", "examples.nexmark.queries", "worker")
    yield Participant(OURS, command, tuple(QUERIES), _ours)
    python = str(where.python)
    wax = (python, "-m", "bytewax.run", f"{PEERS / 'nexmark_wax.py'}:flow")
    commands = {
        QUIX: ((python, str(PEERS / "nexmark_quix.py")), ()),
        WAX: (
            (*wax, "-r", "{state}", "-s", "1", "-b", "0"),
            (python, "-m", "bytewax.recovery", "{state}", "1"),
        ),
        FAUST: ((python, str(PEERS / "nexmark_faust.py")), ()),
    }
    for name, (run, prepare) in commands.items():
        if name not in where.missing:
            yield Participant(name, run, MEMBERS[name], _theirs, prepare)


def in_place(command: tuple[str, ...], state: Path) -> list[str]:
    """A command for this state directory."""
    return [part.replace("{state}", str(state)) for part in command]


def _ours(_name: str, query: Query, record: LogRecord) -> Row:
    row = query.output.decoded(record, 0)
    key, value = row.key, row.value
    if isinstance(key, Windowed):
        key = key.key, when_ms(key.start), when_ms(key.end)
    if isinstance(value, Hottest):
        value = Hottest(value.bids, sorted(value.auctions))
    return key, value


def _theirs(name: str, query: Query, record: LogRecord) -> Row:
    """Windows stand in the value, everything is JSON."""
    if name in {"q7", "q12"}:
        found = msgspec.json.decode(record.value or b"")
        value: Any = Highest([tuple(found["value"])]) if name == "q7" else found["value"]
        return (found["key"], found["start"], found["end"]), value
    if name == "q2":
        return query.output.spec.key.loads(record.key or b""), msgspec.json.decode(
            record.value or b""
        )
    row = query.output.decoded(record, 0)
    return row.key, row.value
