"""Shapes: what is known of the type of keys and values on their way through a stream.

A topic declares its types. An operator changes them, and what comes out is known only if the
function says so in its annotations; of a lambda nothing is known. That matters where records
are written down: in a repartition topic, in a store. Rule of the file: a type that is not
known is written as MessagePack of plain values (`serdes.packed`), never guessed. Not done here:
type checking (mypy).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import msgspec

from streamlog.dsl.makers import Maker, maker_of
from streamlog.errors import SerdeError, TopologyError
from streamlog.serdes import (
    PACKED,
    Serde,
    WindowedSerde,
    declared_by,
    packed_by,
    schema_of,
    serde_for,
    type_name,
    wide,
)
from streamlog.windows.definitions import Windows
from streamlog.windows.keys import layout_of

T = TypeVar("T")
"""What is serialized."""

_encode = msgspec.msgpack.Encoder().encode


class TypedPackedSerde(Generic[T]):
    """Values of a declared type as MessagePack: states of aggregations.

    `pack` is `dumps` for whole columns, and tells less when it fails.
    """

    pack = staticmethod(_encode)

    def __init__(self, declared: object) -> None:
        self._declared = declared
        self._name = type_name(declared)
        self._decode = wide.decoder(declared)

    @property
    def form(self) -> object:
        """What the bytes look like, as plain data (`serdes.form_of`)."""
        return {"msgpack": schema_of(self._declared)}

    def dumps(self, obj: T) -> bytes:
        """The value as MessagePack."""
        try:
            return _encode(obj)
        except OverflowError:
            pass  # A whole number beyond 64 bits.
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise self._unwritable(error) from error
        try:
            return wide.dump_wide(obj)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise self._unwritable(error) from error

    def loads(self, data: bytes) -> T:
        """The value."""
        try:
            return cast("T", self._decode(data))
        except (msgspec.MsgspecError, ValueError) as error:
            raise SerdeError(f"not {self._name}: {error}; the data is {data[:48]!r}") from error

    def _unwritable(self, error: Exception) -> SerdeError:
        return SerdeError(f"{self._name} can't be written as MessagePack: {error}")


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of keys or of values, as far as it is known, and the serde that belongs to it."""

    declared: object = None
    """None: not known."""
    given: Serde[Any] | None = None
    """The serde of the topic that it came from."""
    maker: Maker | None = field(default=None, compare=False)
    """The function that values of an unknown type come from."""

    @property
    def serde(self) -> Serde[Any]:
        """How to write it down.

        Raises:
            SerdeError: the type can't be.
            TopologyError: the type is not declared, and is certain to be one that has to be.
        """
        if self.maker is not None and self.maker.gives:
            raise TopologyError(self.maker.refusal())
        return self.serde_if_needed

    @property
    def serde_if_needed(self) -> Serde[Any]:
        """The same, where values may never be written down."""
        if self.given is not None:
            return self.given
        if self.declared is not None:
            return serde_for(self.declared)
        return PACKED if self.maker is None else packed_by(self.maker.told)

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the type."""
        return self.declared is not None or self.given is not None

    @property
    def known(self) -> object:
        """The type, also where only the topic's serde knows it; None if nobody does."""
        return declared_by(self.given) if self.given is not None else self.declared

    def windowed(self, windows: Windows) -> Shape:
        """Of `Windowed` keys with such a key inside."""
        return Shape(given=WindowedSerde(self.serde, layout_of(windows)))


UNKNOWN = Shape()


def returned(
    fn: Callable[..., Any],
    *given: Shape,
    of: Callable[[object], object] | None = None,
) -> Shape:
    """The shape of what a function returns, by its annotation; a class returns its instances.

    Args:
        fn: the function.
        given: the shapes of its parameters, for what is certain of one that is not annotated.
        of: picks a part of the annotation, such as the second of a tuple.
    """
    try:
        declared = fn if isinstance(fn, type) else _hint(fn)
    except NameError as error:
        return Shape(maker=maker_of(fn, (), None, str(error)))
    if of is not None and declared is not None:
        declared = of(declared)
    shape = declared_shape(declared)
    if shape.is_known:
        return shape
    return Shape(maker=maker_of(fn, [each.known for each in given], of))


def declared_shape(declared: object) -> Shape:
    """The shape of a type as it was written down; of Any and type variables nothing is known."""
    if declared is None or declared is Any or _is_open(declared):
        return UNKNOWN
    return Shape(declared)


def element(index: int) -> Callable[[object], object]:
    """Picks a type out of tuple[K, V]."""

    def pick(declared: object) -> object:
        parts = typing.get_args(declared)
        pair = typing.get_origin(declared) is tuple and len(parts) > index
        return parts[index] if pair else None

    return pick


def item(declared: object) -> object:
    """Picks T out of Iterable[T], list[T] and the like."""
    parts = typing.get_args(declared)
    return parts[0] if len(parts) == 1 else None


def item_element(index: int) -> Callable[[object], object]:
    """Picks a type out of Iterable[tuple[K, V]]."""
    pick = element(index)
    return lambda declared: pick(item(declared))


def _hint(fn: Callable[..., Any]) -> object:
    """What a function is annotated to return.

    Raises:
        NameError: the annotation names what only a type checker sees.
    """
    try:
        hint: object = typing.get_type_hints(fn).get("return")
    except NameError:
        hint = _return_hint(fn)  # One of the parameters may be the reason.
    except (TypeError, AttributeError):
        return None
    return None if hint is type(None) else hint


def _return_hint(fn: Callable[..., Any]) -> object:
    said = getattr(fn, "__annotations__", {}).get("return")
    if said is None:
        return None

    def alone() -> None: ...

    alone.__annotations__ = {"return": said}
    around = getattr(inspect.unwrap(fn), "__globals__", {})
    return typing.get_type_hints(alone, globalns=around).get("return")


def _is_open(declared: object) -> bool:
    """Whether type variables are left in it."""
    return isinstance(declared, TypeVar) or any(map(_is_open, typing.get_args(declared)))
