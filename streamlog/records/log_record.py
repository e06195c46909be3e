"""LogRecord: one record as bytes, for the log and for the engine.

`LogRecord` is a named tuple: callers unpack it, compare it and match on it. Named tuples are slow
to create, and a consumer creates a million per second; `new_record` is the fast way for the usual
record, which has no headers. Compiled, it also hides the record from the collector of cycles.

The rule of the file: `log_record.pxd` has `new_record` in C, for compiled callers to inline; change
both or neither. The typed record of the public API is `streamlog.record.Record`.
"""

from __future__ import annotations

from typing import NamedTuple


class LogRecord(NamedTuple):
    """One record as bytes, with its offset; the timestamp is in milliseconds since 1970."""

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
    """Create a record without headers; skips the named tuple's handling of keywords."""
    return _new_tuple(record_type, (offset, timestamp_ms, key, value, ()))


# Skips the keywords and defaults of the named tuple's own `__new__`.
_new_tuple = tuple.__new__
