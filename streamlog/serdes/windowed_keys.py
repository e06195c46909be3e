"""Serdes of keys with a window, in Kafka Streams' layouts.

The bytes of the key come first and the window follows. If the end of a window follows from its
start, only the start is written (`StartOnly`: windows of time). Windows that end at a record have
their end and then their start (`EndAndStart`: sessions and the like). Tools for Kafka Streams can
read both. If the kind of the windows is not known, start and end are written in an order of our
own (`StartAndEnd`).

Rule: each time is a signed, big-endian number of 8 bytes, in milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from streamlog.durations import moment, when_ms
from streamlog.errors import ConfigError, SerdeError, UsageError
from streamlog.record import Windowed
from streamlog.serdes.erased_types import AnySerde
from streamlog.serdes.serde import Serde, form_of, unreadable_error, wrong_type_error

K = TypeVar("K")
"""The key inside a windowed key."""

_SPAN = struct.Struct(">qq")
_TIME = struct.Struct(">q")
_START = itemgetter(slice(_TIME.size))


class Layout(Protocol):
    """Port: how a window is written after its key."""

    @property
    def form(self) -> object:
        """The layout as plain data, equal if the bytes are equal; None for `StartAndEnd`."""

    @property
    def size_bytes(self) -> int:
        """The number of bytes after the key."""

    def of(self, span: bytes) -> bytes:
        """Return the bytes of this layout for start and end in the layout of `StartAndEnd`."""

    def dumps(self, start_ms: int, end_ms: int) -> bytes:
        """Serialize a window.

        Raises:
            SerdeError: the declared windows do not include it.
        """

    def loads(self, data: bytes) -> tuple[int, int]:
        """Return the start and the end of a window, in milliseconds.

        Raises:
            SerdeError: none of the declared windows has these bytes.
        """


class StartAndEnd:
    """Start and end, so that a reader needs no definition of the windows. A layout of our own."""

    form = None
    size_bytes = _SPAN.size

    def of(self, span: bytes) -> bytes:
        """Return the argument: it is in this layout."""
        return span

    def dumps(self, start_ms: int, end_ms: int) -> bytes:
        """Serialize the start, then the end."""
        return _SPAN.pack(start_ms, end_ms)

    def loads(self, data: bytes) -> tuple[int, int]:
        """Return the start and the end, in milliseconds."""
        start_ms, end_ms = _SPAN.unpack(data)
        return start_ms, end_ms


class EndAndStart:
    """The end, then the start: Kafka Streams' layout of sessions."""

    form = "end, start"
    size_bytes = _SPAN.size

    def of(self, span: bytes) -> bytes:
        """Swap the two times."""
        return span[_TIME.size :] + span[: _TIME.size]

    def dumps(self, start_ms: int, end_ms: int) -> bytes:
        """Serialize the end, then the start."""
        return _SPAN.pack(end_ms, start_ms)

    def loads(self, data: bytes) -> tuple[int, int]:
        """Return the start and the end, in milliseconds."""
        end_ms, start_ms = _SPAN.unpack(data)
        return start_ms, end_ms


class StartOnly:
    """The start alone: Kafka Streams' layout of windows of time, whose definition has the end."""

    form = "start"
    size_bytes = _TIME.size
    of = staticmethod(_START)

    def __init__(self, described: str, end_of: Callable[[int], int]) -> None:
        """`end_of` returns the end of the window that begins at a time, both in milliseconds.

        `described` describes the windows, for messages; equal descriptions mean equal layouts.
        """
        self._described = described
        self._end_of = end_of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StartOnly) and other._described == self._described

    def __hash__(self) -> int:
        return hash(self._described)

    def dumps(self, start_ms: int, end_ms: int) -> bytes:
        """Serialize the start; a window of another definition would be read with a wrong end."""
        if self._end(start_ms) != end_ms:
            raise SerdeError(
                f"[{start_ms} ms, {end_ms} ms) is not one of the declared {self._described}: only "
                f"the start is written, and the window with this start ends at "
                f"{self._end(start_ms)} ms"
            )
        return _TIME.pack(start_ms)

    def loads(self, data: bytes) -> tuple[int, int]:
        """Return the start and, from the definition, the end, in milliseconds."""
        (start_ms,) = _TIME.unpack(data)
        return start_ms, self._end(start_ms)

    def _end(self, start_ms: int) -> int:
        try:
            return self._end_of(start_ms)
        except UsageError as error:
            raise SerdeError(f"no window begins at {start_ms} ms: {error}") from error


START_AND_END = StartAndEnd()
END_AND_START = EndAndStart()


class WindowedSerde(Generic[K]):
    """`Windowed[K]`: the bytes of the key, then the window in a layout.

    While `layout` is None, because no operator has determined it yet, reading and writing raise
    SerdeError.
    """

    __slots__ = ("key_serde", "layout")

    def __init__(self, key_serde: Serde[K], layout: Layout | None = START_AND_END) -> None:
        self.key_serde = key_serde
        self.layout = layout

    @property
    def form(self) -> object:
        """The form of the key, and the form of the layout if it is one of Kafka Streams."""
        inner = {"windowed": form_of(self.key_serde)}
        kind = None if self.layout is None else self.layout.form
        return inner if kind is None else inner | {"window": kind}

    def dumps(self, obj: Windowed[K]) -> bytes:
        """Serialize the key, then the window."""
        if not isinstance(obj, Windowed):
            raise wrong_type_error("Windowed", obj)
        try:
            start_ms, end_ms = when_ms(obj.start), when_ms(obj.end)
        except ConfigError as error:
            raise SerdeError(f"the window of {obj!r}: {error}") from error
        return self.key_serde.dumps(obj.key) + self._known().dumps(start_ms, end_ms)

    def loads(self, data: bytes) -> Windowed[K]:
        """Return the key with its window."""
        layout = self._known()
        # The window has a fixed size and the key has none: the key is everything before the window.
        key_bytes = len(data) - layout.size_bytes
        if key_bytes < 0:
            raise unreadable_error("Windowed", data, f"at least {layout.size_bytes} bytes expected")
        try:
            start_ms, end_ms = layout.loads(data[key_bytes:])
            start, end = moment(start_ms), moment(end_ms)
        except (ConfigError, SerdeError) as error:
            raise unreadable_error("Windowed", data, str(error)) from error
        return Windowed(self.key_serde.loads(data[:key_bytes]), start, end)

    def _known(self) -> Layout:
        if self.layout is None:
            raise SerdeError(
                "Kafka's windowed keys don't say where the window ends, and this app doesn't "
                "either: declare the topic with its windows, as in windows=tumbling('1h')"
            )
        return self.layout


def window_bytes(serde: AnySerde) -> int:
    """Return how many bytes at the end of a key are a window; partitioners hash the others."""
    # By the key alone, all windows of a key are in one partition.
    layout = serde.layout if isinstance(serde, WindowedSerde) else None
    return 0 if layout is None else layout.size_bytes


def span_of(data: bytes) -> tuple[int, int]:
    """Return start and end, in milliseconds, from the bytes that `windowed_bytes` appends."""
    start_ms, end_ms = _SPAN.unpack(data)
    return start_ms, end_ms


def windowed_bytes(key: bytes, start_ms: int, end_ms: int) -> bytes:
    """Append start and end, in milliseconds, to the bytes of a key, as `StartAndEnd` does."""
    return key + _SPAN.pack(start_ms, end_ms)
