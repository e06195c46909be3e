"""Keys with a window, in the layouts that Kafka Streams has for them.

The bytes of the key come first. Behind them stands the window's start, if its end follows from
that (`StartOnly`: windows of time), or its end and then its start (`EndAndStart`: windows that end
where records do), so that tools made for Kafka Streams can read them. Where nobody can tell what
kind of windows there are, both stand there in our own order (`StartAndEnd`). Rule of the file: all
numbers are signed, big-endian, 8 bytes, in milliseconds.
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
    """What stands behind the key."""

    @property
    def form(self) -> object:
        """As plain data: equal if the bytes are the same; None for `StartAndEnd`."""

    @property
    def size_bytes(self) -> int:
        """How many bytes that are."""

    def of(self, span: bytes) -> bytes:
        """Made of start and end, as `windowed_bytes` writes them."""

    def dumps(self, start_ms: int, end_ms: int) -> bytes:
        """Of a window.

        Raises:
            SerdeError: it is no window of this kind.
        """

    def loads(self, data: bytes) -> tuple[int, int]:
        """The window's start and end.

        Raises:
            SerdeError: there is no such window.
        """


class StartAndEnd:
    """Both: the window can be read by who knows nothing of its definition. Ours."""

    form = None
    size_bytes = _SPAN.size

    def of(self, span: bytes) -> bytes:
        """As it is."""
        return span

    def dumps(self, start_ms: int, end_ms: int) -> bytes:
        """Start and end."""
        return _SPAN.pack(start_ms, end_ms)

    def loads(self, data: bytes) -> tuple[int, int]:
        """Start and end."""
        start_ms, end_ms = _SPAN.unpack(data)
        return start_ms, end_ms


class EndAndStart:
    """The end, then the start, as Kafka Streams has sessions."""

    form = "end, start"
    size_bytes = _SPAN.size

    def of(self, span: bytes) -> bytes:
        """The other way round."""
        return span[_TIME.size :] + span[: _TIME.size]

    def dumps(self, start_ms: int, end_ms: int) -> bytes:
        """End and start."""
        return _SPAN.pack(end_ms, start_ms)

    def loads(self, data: bytes) -> tuple[int, int]:
        """Start and end."""
        end_ms, start_ms = _SPAN.unpack(data)
        return start_ms, end_ms


class StartOnly:
    """The start alone, as Kafka Streams has windows of time: the definition tells the end."""

    form = "start"
    size_bytes = _TIME.size
    of = staticmethod(_START)

    def __init__(self, described: str, end_of: Callable[[int], int]) -> None:
        """`end_of` gives the end of the window that begins at a time; `described` names them."""
        self._described = described
        self._end_of = end_of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StartOnly) and other._described == self._described

    def __hash__(self) -> int:
        return hash(self._described)

    def dumps(self, start_ms: int, end_ms: int) -> bytes:
        """The start."""
        if self._end(start_ms) != end_ms:
            raise SerdeError(
                f"[{start_ms} ms, {end_ms} ms) is none of the {self._described} that are declared "
                f"here: only the start is written, and the one from there on ends at "
                f"{self._end(start_ms)} ms"
            )
        return _TIME.pack(start_ms)

    def loads(self, data: bytes) -> tuple[int, int]:
        """The start, and the end that belongs to it."""
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
    """`Windowed[K]`: the key's bytes, and behind them the window.

    `layout` says how; None: nobody has said so yet, and till then nothing can be read or written.
    """

    __slots__ = ("key_serde", "layout")

    def __init__(self, key_serde: Serde[K], layout: Layout | None = START_AND_END) -> None:
        self.key_serde = key_serde
        self.layout = layout

    @property
    def form(self) -> object:
        """See `form_of`."""
        inner = {"windowed": form_of(self.key_serde)}
        kind = None if self.layout is None else self.layout.form
        return inner if kind is None else inner | {"window": kind}

    def dumps(self, obj: Windowed[K]) -> bytes:
        """The key's bytes and the window."""
        if not isinstance(obj, Windowed):
            raise wrong_type_error("Windowed", obj)
        try:
            start_ms, end_ms = when_ms(obj.start), when_ms(obj.end)
        except ConfigError as error:
            raise SerdeError(f"the window of {obj!r}: {error}") from error
        return self.key_serde.dumps(obj.key) + self._known().dumps(start_ms, end_ms)

    def loads(self, data: bytes) -> Windowed[K]:
        """The key with its window."""
        layout = self._known()
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
                "Kafka's windowed keys don't say where the window ends, and nothing in this app "
                "does: declare the topic with its windows, as in windows=tumbling('1h')"
            )
        return self.layout


def window_bytes(serde: AnySerde) -> int:
    """How many bytes at the end of a key are those of a window; the others tell the partition."""
    layout = serde.layout if isinstance(serde, WindowedSerde) else None
    return 0 if layout is None else layout.size_bytes


def span_of(data: bytes) -> tuple[int, int]:
    """Start and end, of the bytes that `windowed_bytes` puts behind the key."""
    start_ms, end_ms = _SPAN.unpack(data)
    return start_ms, end_ms


def windowed_bytes(key: bytes, start_ms: int, end_ms: int) -> bytes:
    """The key, start and end: `StartAndEnd`, for a key that is bytes already."""
    return key + _SPAN.pack(start_ms, end_ms)
