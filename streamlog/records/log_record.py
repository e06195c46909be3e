"""One record as bytes, the same for the log and for the engine.

`Record` is a named tuple: users unpack it, compare it and match on it. Named tuples are slow to
make, and a consumer makes a million a second; `new_record` is the short cut for the usual record,
one without headers.

The rule of the file: `record.pxd` says in C what `new_record` says here, for compiled callers to
inline; change both or neither. The user's record, with types and a topic, is `streamlog.record`.
"""

from __future__ import annotations

from typing import NamedTuple


class LogRecord(NamedTuple):
    """One record as bytes; the timestamp is in milliseconds since 1970."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def new_record(
    record_type: type[LogRecord],
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
) -> LogRecord:
    """A record without headers, past the named tuple's handling of keywords and defaults."""
    return _new_tuple(record_type, (offset, timestamp_ms, key, value, ()))


_new_tuple = tuple.__new__
