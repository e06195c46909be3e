"""Keys with times in them, in the order of key and time, whatever bytes a key is made of.

A key that others follow is escaped: a zero byte becomes 00 FF, and 00 01 ends it. So no key is the
beginning of another one, and the order of the escaped ones is that of the keys. Times are signed
milliseconds of 64 bits, shifted so that their bytes are in order. Rule of the file: what is written
here is in changelogs, so a layout never changes. Not done here: keys of windows that close
(`store.window_key`, the end of the window first).
"""

from __future__ import annotations

import struct

TIME_MS_MAX = 2**63 - 1
TIME_MS_MIN = -(2**63)

_TIME = struct.Struct(">Q")
_TIMES = struct.Struct(">QQ")
_SHIFT = 1 << 63
_ZERO, _ESCAPED, _END = b"\x00", b"\x00\xff", b"\x00\x01"


def escaped(key: bytes) -> bytes:
    """A key that may be followed by something."""
    return key.replace(_ZERO, _ESCAPED) + _END


def unescaped(data: bytes) -> tuple[bytes, int]:
    """The key at the beginning of these bytes, and where it ends."""
    end = data.index(_END)  # In the key itself FF follows every zero.
    return data[:end].replace(_ESCAPED, _ZERO), end + len(_END)


def time_bytes(time_ms: int) -> bytes:
    """A time; what is beyond 64 bits counts as the first or the last time there is."""
    return _TIME.pack(min(max(time_ms, TIME_MS_MIN), TIME_MS_MAX) + _SHIFT)


def time_at(data: bytes, position: int = 0) -> int:
    """The time that `time_bytes` has written there."""
    time_ms: int = _TIME.unpack_from(data, position)[0]
    return time_ms - _SHIFT


def span_bytes(first_ms: int, second_ms: int) -> bytes:
    """Two times, in the order of both; both have to be within 64 bits."""
    return _TIMES.pack(first_ms + _SHIFT, second_ms + _SHIFT)


def span_at(data: bytes, position: int) -> tuple[int, int]:
    """The times that `span_bytes` has written there."""
    first, second = _TIMES.unpack_from(data, position)
    return first - _SHIFT, second - _SHIFT
