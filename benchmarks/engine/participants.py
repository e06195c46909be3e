"""Who takes part in which job, and how each one's rows are read.

Everybody gets one partition, commits every half second, and writes rows in the form that comes
naturally: a window stands in the key of ours, in the value of the others'. Guarantees are the
defaults: exactly once here, at least once in all others.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.engine.contest import Participant
from benchmarks.engine.environment import HERE, Environment
from benchmarks.engine.events import Row
from conformance.kafka import NEWEST
from streamlog.durations import when_ms
from streamlog.records.batch import LogRecord
from streamlog.serdes import WindowedSerde, serde_for
from streamlog.windows.definitions import tumbling
from streamlog.windows.window_assigner import layout_of

OURS = "streamlog"
QUIX = "Quix Streams"
FAUST = "Faust-streaming"
WAX = "Bytewax"
STREAMS = f"Kafka Streams {NEWEST}"
PEERS = HERE / "peers"

VARIANTS = {
    "j1": ("typed", "dicts"),
    "j2": ("built-in", "dicts"),
    "j2-final": ("built-in",),
    "j2-commit": ("built-in",),
    "agent": ("typed",),
    "j3": ("typed",),
}
"""Ours."""
ENTERED = {
    "j1": (QUIX, WAX, FAUST),
    "j2": (QUIX, WAX, FAUST),
    "j2-final": (QUIX,),
    "j2-commit": (),
    "agent": (),
    "j3": (QUIX, WAX, FAUST),
}
"""Our rows per commit are held against the final rows of others. Faust has no final rows;
Bytewax's cost is quoted from 5 to 112 us by the number of keys."""

_decode = msgspec.json.Decoder().decode
_windowed = WindowedSerde(serde_for(str), layout_of(tumbling("1m")))


def ours(job: str) -> Participant:
    """A worker process of this project."""
    command = (sys.executable, "-m", "streamlog", "-A", "benchmarks.engine.jobs", "worker")
    return Participant(OURS, command, rows_of(job))


def rows_of(job: str) -> Callable[[LogRecord], Row]:
    """How rows of ours are read, and those of Kafka Streams: its windowed keys have our bytes."""
    return _of_windowed_key if job.startswith("j2") else _ROWS[job]


def peer(name: str, job: str, where: Environment) -> Participant:
    """One of the others."""
    python = str(where.python)
    row: Callable[[LogRecord], Row] = _ROWS[job]
    if name == QUIX:
        return Participant(name, (python, str(PEERS / "quix.py")), row, share=5)
    if name == FAUST:
        return Participant(name, (python, str(PEERS / "faust_streaming.py")), row, share=20)
    command = (python, "-m", "bytewax.run", f"{PEERS / 'wax.py'}:flow")
    if job == "j1":
        return Participant(name, command, row, share=2)

    def make_recovery(directory: Path) -> None:
        subprocess.run((python, "-m", "bytewax.recovery", str(directory), "1"), check=True)

    kept = ("-r", "{state}", "-s", "1", "-b", "0")
    return Participant(name, (*command, *kept), row, share=5, prepare=make_recovery)


def _of_sale(record: LogRecord) -> Row:
    value = _value(record)
    return value["user"], value["amount"], value["ts"]


def _of_placed(record: LogRecord) -> Row:
    value = _value(record)
    return value["user"], value["amount"], value["ts"], value["country"]


def _of_total(record: LogRecord) -> Row:
    value = _value(record)
    return (record.key or b"").decode(), value["start"], value["events"], value["amount"]


def _of_windowed_key(record: LogRecord) -> Row:
    windowed, value = _windowed.loads(record.key or b""), _value(record)
    return windowed.key, when_ms(windowed.start), value["events"], value["amount"]


def _value(record: LogRecord) -> dict[str, Any]:
    value: dict[str, Any] = _decode(record.value or b"{}")
    return value


_ROWS = {
    "j1": _of_sale,
    "j2": _of_total,
    "j2-final": _of_total,
    "j2-commit": _of_total,
    "j3": _of_placed,
    "agent": _of_sale,
}
