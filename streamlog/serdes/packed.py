"""Plain values as MessagePack, for what is written down without a declared type.

Rule of the file: values come back exactly as they were, and anything else is refused with what to
do, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

import msgspec

from streamlog.errors import SerdeError

_TUPLE = 1
"""MessagePack has no tuples: they are an extension, so that they come back as tuples."""

_encode = msgspec.msgpack.Encoder().encode


class PackedSerde:
    """Plain values of any kind: str, bytes, numbers, aware datetimes, tuples, lists, dicts.

    `encode` is `dumps` for values of the `exact` types, and `decode` is `loads`; both tell less
    when they fail.
    """

    exact = frozenset({str, bytes, int, float, bool, type(None)})
    encode = staticmethod(_encode)

    @property
    def decode(self) -> Callable[[bytes], Any]:
        """See `loads`."""
        return _decode

    def dumps(self, obj: object) -> bytes:
        """The value as MessagePack."""
        try:
            return _encode(obj if type(obj) in self.exact else _packable(obj))
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise SerdeError(f"{obj!r} can't be written: {error}") from error

    def loads(self, data: bytes) -> Any:  # noqa: ANN401 - that is the point
        """The value, as it was."""
        try:
            return _decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise SerdeError(f"not a packed value: {error}; the data is {data[:48]!r}") from error


PACKED = PackedSerde()


def _packable(obj: object) -> object:
    """The value with its tuples marked; refused if it would come back as something else."""
    kind = type(obj)
    if kind in PackedSerde.exact:
        return obj
    if isinstance(obj, datetime) and obj.tzinfo is not None:
        return obj
    if kind is tuple:
        items = cast("tuple[object, ...]", obj)
        return msgspec.msgpack.Ext(_TUPLE, _encode([_packable(item) for item in items]))
    if kind is list:
        return [_packable(item) for item in cast("list[object]", obj)]
    if kind is dict:
        pairs = cast("dict[object, object]", obj).items()
        return {_packable(key): _packable(value) for key, value in pairs}
    raise SerdeError(
        f"a {kind.__name__} has to be written down here, but its type is not known: annotate "
        "what the function before returns, as in `def to_sale(...) -> Sale` (a lambda can't be "
        "annotated), or send it through a topic with declared types"
    )


def _unpacked(code: int, data: memoryview) -> object:
    if code != _TUPLE:
        raise SerdeError(f"unknown extension {code} in a packed value")
    return tuple(_decode(data))


_decode = msgspec.msgpack.Decoder(ext_hook=_unpacked).decode
