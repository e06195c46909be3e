"""Keys with a window: the key's bytes, then the window's start and end."""

from __future__ import annotations

import struct
from typing import Generic, TypeVar

from streamlog.durations import moment, when_ms
from streamlog.errors import ConfigError, SerdeError
from streamlog.record import Windowed
from streamlog.serdes.serde import Serde, form_of, unexpected, unreadable

K = TypeVar("K")
"""The key inside a windowed key."""

_SPAN = struct.Struct(">qq")


class WindowedSerde(Generic[K]):
    """`Windowed[K]`: the key's bytes, then start and end in milliseconds, 8 bytes each.

    Big-endian, signed. Kafka Streams leaves the end out for windows of a fixed size; with it
    the key can be read without knowing the window's definition.
    """

    __slots__ = ("key_serde",)

    def __init__(self, key_serde: Serde[K]) -> None:
        self.key_serde = key_serde

    @property
    def form(self) -> object:
        """See `form_of`."""
        return {"windowed": form_of(self.key_serde)}

    def dumps(self, obj: Windowed[K]) -> bytes:
        """The key's bytes, start and end."""
        if not isinstance(obj, Windowed):
            raise unexpected("Windowed", obj)
        try:
            start_ms, end_ms = when_ms(obj.start), when_ms(obj.end)
        except ConfigError as error:
            raise SerdeError(f"the window of {obj!r}: {error}") from error
        return windowed_bytes(self.key_serde.dumps(obj.key), start_ms, end_ms)

    def loads(self, data: bytes) -> Windowed[K]:
        """The key with its window."""
        key_bytes = len(data) - _SPAN.size
        if key_bytes < 0:
            raise unreadable("Windowed", data, f"at least {_SPAN.size} bytes expected")
        start_ms, end_ms = _SPAN.unpack_from(data, key_bytes)
        try:
            start, end = moment(start_ms), moment(end_ms)
        except ConfigError as error:
            raise unreadable("Windowed", data, str(error)) from error
        return Windowed(self.key_serde.loads(data[:key_bytes]), start, end)


def windowed_bytes(key: bytes, start_ms: int, end_ms: int) -> bytes:
    """What WindowedSerde writes, for a key that is bytes already."""
    return key + _SPAN.pack(start_ms, end_ms)
