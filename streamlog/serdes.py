"""Serdes: the bytes of a key or value to the type that was declared for it, and back.

`serde_for(type)` chooses: `str` is UTF-8, `bytes` is itself, `int` and `float` are 8 bytes
big-endian as Kafka's LongSerializer and DoubleSerializer write them, `Windowed[K]` is its
key's bytes followed by start and end, everything else is JSON by msgspec, decoded strictly.
Rule of the file: `None` never comes here (it is a tombstone, written as no bytes at all),
and whatever does not fit is a SerdeError that names the type and shows the first bytes.
`dumps` checks the outer type only, as it runs once per record: a wrong type inside a value
is found by whoever reads it. Not done here: Avro, schemas, and reading what others pickled.
"""

from __future__ import annotations

import re
import struct
import types
import typing
from functools import lru_cache
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, Union, cast, is_typeddict

import msgspec

from streamlog.durations import moment, when_ms
from streamlog.errors import ConfigError, SerdeError
from streamlog.record import Windowed

T = TypeVar("T")
"""What is serialized."""
K = TypeVar("K")
"""The key inside a windowed key."""

SHOWN_BYTES = 48
"""How much of the data an error shows: enough to recognise it, little enough for a log line."""

_MODULE = re.compile(r"(?:[\w<>]+\.)+")
_LONG = struct.Struct(">q")
_DOUBLE = struct.Struct(">d")
_SPAN = struct.Struct(">qq")


class Serde(Protocol[T]):
    """Port: values of one type to bytes and back; `loads(dumps(x)) == x`.

    Both raise SerdeError, and nothing else, for what does not fit.
    """

    def dumps(self, obj: T) -> bytes:
        """The value as bytes."""

    def loads(self, data: bytes) -> T:
        """The value that the bytes stand for."""


class StrSerde:
    """Text as UTF-8.

    `encode` and `decode` are the same for whole columns (`processing/serialized`): right for what
    `exact` names, and no more than an error for anything else.
    """

    encode = staticmethod(str.encode)
    decode = staticmethod(bytes.decode)
    exact = frozenset({str})
    declared = str

    def dumps(self, obj: str) -> bytes:
        """The text as UTF-8."""
        if not isinstance(obj, str):
            raise _unexpected("str", obj)
        try:
            return obj.encode()
        except UnicodeEncodeError as error:
            raise SerdeError(f"text can't be written as UTF-8: {error}") from error

    def loads(self, data: bytes) -> str:
        """The text; bytes that are not UTF-8 are refused."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise _unreadable("str", data, str(error)) from error


class BytesSerde:
    """Bytes as they are."""

    declared = bytes

    def dumps(self, obj: bytes) -> bytes:
        """The same bytes."""
        if not isinstance(obj, bytes):
            raise _unexpected("bytes", obj)
        return obj

    def loads(self, data: bytes) -> bytes:
        """The same bytes."""
        return data


class IntSerde:
    """A signed integer of 64 bits in 8 bytes, big-endian: Kafka's LongSerializer."""

    encode = staticmethod(_LONG.pack)
    exact = frozenset({int})
    declared = int

    def dumps(self, obj: int) -> bytes:
        """Eight bytes; `bool` is refused, and so is what needs more than 64 bits."""
        if not isinstance(obj, int) or isinstance(obj, bool):
            raise _unexpected("int", obj)
        try:
            return _LONG.pack(obj)
        except struct.error as error:
            raise SerdeError(
                f"an int of {obj.bit_length()} bits does not fit into the 8 bytes of int"
            ) from error

    def loads(self, data: bytes) -> int:
        """The integer in exactly eight bytes."""
        if len(data) != _LONG.size:
            raise _unreadable("int", data, f"{_LONG.size} bytes expected, got {len(data)}")
        return cast("int", _LONG.unpack(data)[0])


class FloatSerde:
    """A double in 8 bytes, big-endian: Kafka's DoubleSerializer."""

    declared = float

    def dumps(self, obj: float) -> bytes:
        """Eight bytes; an `int` counts as the float it equals."""
        if not isinstance(obj, float | int) or isinstance(obj, bool):
            raise _unexpected("float", obj)
        try:
            return _DOUBLE.pack(obj)
        except struct.error as error:
            raise SerdeError("an int this large does not fit into a float") from error

    def loads(self, data: bytes) -> float:
        """The double in exactly eight bytes."""
        if len(data) != _DOUBLE.size:
            raise _unreadable("float", data, f"{_DOUBLE.size} bytes expected, got {len(data)}")
        return cast("float", _DOUBLE.unpack(data)[0])


class JsonSerde(Generic[T]):
    """Any type that msgspec knows, as JSON.

    Fields that the type does not have are skipped when reading (a newer program may have
    added them); missing or mistyped ones are refused.
    """

    __slots__ = ("_expected", "_type_name", "declared", "decode", "encode", "exact")

    def __init__(self, declared: object) -> None:
        self.declared = declared
        """The type, for who wants to know what is in a value (`declared_by`)."""
        self._type_name = type_name(declared)
        _refuse_foreign_types(declared, self._type_name)
        self.decode = msgspec.json.Decoder(cast("type[T]", declared)).decode
        self.encode = msgspec.json.Encoder().encode
        self._expected = _outer_classes(declared)
        self.exact = frozenset(self._expected)

    @property
    def form(self) -> object:
        """See `form_of`."""
        return {"json": schema_of(self.declared)}

    def dumps(self, obj: T) -> bytes:
        """The value as JSON; a value of another type than declared is refused."""
        if not isinstance(obj, self._expected):
            raise _unexpected(self._type_name, obj)
        try:
            return self.encode(obj)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise SerdeError(f"{self._type_name} can't be written as JSON: {error}") from error

    def loads(self, data: bytes) -> T:
        """The value in the JSON text; the error names the path of the field that is wrong."""
        try:
            return self.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _unreadable(self._type_name, data, str(error)) from error


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
            raise _unexpected("Windowed", obj)
        try:
            start_ms, end_ms = when_ms(obj.start), when_ms(obj.end)
        except ConfigError as error:
            raise SerdeError(f"the window of {obj!r}: {error}") from error
        return windowed_bytes(self.key_serde.dumps(obj.key), start_ms, end_ms)

    def loads(self, data: bytes) -> Windowed[K]:
        """The key with its window."""
        key_bytes = len(data) - _SPAN.size
        if key_bytes < 0:
            raise _unreadable("Windowed", data, f"at least {_SPAN.size} bytes expected")
        start_ms, end_ms = _SPAN.unpack_from(data, key_bytes)
        try:
            start, end = moment(start_ms), moment(end_ms)
        except ConfigError as error:
            raise _unreadable("Windowed", data, str(error)) from error
        return Windowed(self.key_serde.loads(data[:key_bytes]), start, end)


_PLAIN: dict[object, Serde[Any]] = {
    str: StrSerde(),
    bytes: BytesSerde(),
    int: IntSerde(),
    float: FloatSerde(),
}


def windowed_bytes(key: bytes, start_ms: int, end_ms: int) -> bytes:
    """What WindowedSerde writes, for a key that is bytes already."""
    return key + _SPAN.pack(start_ms, end_ms)


@lru_cache(maxsize=256)
def serde_for(declared: Any) -> Serde[Any]:  # noqa: ANN401 - any type form may be declared
    """The serde of a declared type.

    `X | None` is the serde of `X`: a missing value has no bytes.

    Raises:
        SerdeError: the type can't be read from JSON, or `Windowed` stands without its key.
    """
    inner = _without_none(_resolved(declared))
    if inner is Windowed:
        raise SerdeError("Windowed needs the type of its key: write Windowed[str]")
    if typing.get_origin(inner) is Windowed:
        return WindowedSerde(serde_for(typing.get_args(inner)[0]))
    return _PLAIN.get(inner) or JsonSerde(inner)


def from_text(serde: Serde[Any], text: str) -> Any:  # noqa: ANN401 - of the serde's type
    """The value that somebody has typed.

    Text stands for itself where the type is text, bytes or a number; otherwise it is JSON.

    Raises:
        SerdeError: it does not fit the type.
    """
    match serde:
        case StrSerde():
            return text
        case BytesSerde():
            return text.encode()
        case IntSerde():
            return _number(int, text)
        case FloatSerde():
            return _number(float, text)
        case _:
            return serde.loads(text.encode())


def from_json(serde: Serde[Any], data: bytes) -> Any:  # noqa: ANN401 - of the serde's type
    """The value in a JSON text; bytes are base64 there. Of a serde of the user's own its bytes.

    Raises:
        SerdeError: it does not fit the type.
    """
    kinds: dict[type, type] = {StrSerde: str, BytesSerde: bytes, IntSerde: int, FloatSerde: float}
    kind = kinds.get(type(serde))
    if kind is None:
        return serde.loads(data)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unreadable(kind.__name__, data, str(error)) from error


def form_of(serde: Serde[Any]) -> object:
    """What the bytes of a serde look like, as plain data: equal if they are the same.

    A serde says so by a `form`; one that has none is known by the name of its class.
    """
    form: object = getattr(serde, "form", None)
    return type(serde).__qualname__ if form is None else form


def declared_by(serde: Serde[Any]) -> object:
    """The type that a serde was made for; None if it does not say so by a `declared`."""
    return getattr(serde, "declared", None)


def schema_of(declared: object) -> object:
    """A type as a JSON Schema; its name if there is none."""
    try:
        return msgspec.json.schema(declared)
    except TypeError:
        return type_name(declared)


def type_name(declared: object) -> str:
    """The type as its author wrote it, for error messages."""
    if isinstance(declared, type) and not typing.get_args(declared):
        return declared.__name__
    return _MODULE.sub("", str(declared))


def _resolved(declared: object) -> object:
    """What stands behind a NewType or Annotated."""
    while isinstance(declared, typing.NewType):
        declared = declared.__supertype__
    if typing.get_origin(declared) is Annotated and not _constrained(declared):
        return _resolved(typing.get_args(declared)[0])
    return declared


def _constrained(declared: object) -> bool:
    """Annotated with limits for msgspec, which only its decoder knows how to check."""
    return any(isinstance(note, msgspec.Meta) for note in typing.get_args(declared)[1:])


def _without_none(declared: object) -> object:
    if typing.get_origin(declared) not in (Union, types.UnionType):
        return declared
    members = [member for member in typing.get_args(declared) if member is not type(None)]
    return _resolved(members[0]) if len(members) == 1 else Union[tuple(members)]  # noqa: UP007 - built from values


def _outer_classes(declared: object) -> tuple[type, ...]:
    """The classes whose instances `dumps` takes; `object` where a class says nothing."""
    declared = _resolved(declared)
    origin = typing.get_origin(declared)
    if origin in (Union, types.UnionType):
        return tuple(c for member in typing.get_args(declared) for c in _outer_classes(member))
    if origin is Annotated:
        return _outer_classes(typing.get_args(declared)[0])
    if origin is Literal:
        return tuple({type(value) for value in typing.get_args(declared)})
    if is_typeddict(declared) or is_typeddict(origin):
        return (dict,)
    if declared is float:
        return (float, int)
    named = origin or declared
    return (named,) if isinstance(named, type) and named is not Any else (object,)


def _refuse_foreign_types(declared: object, name: str) -> None:
    """A type that JSON can't give back is refused where it is declared."""
    try:
        pending: list[object] = [msgspec.inspect.type_info(declared)]
    except NameError as error:
        raise SerdeError(
            f"{name} can't be read from JSON: {error}; the types of its fields must be imported "
            "at the top of the module that defines it, outside `if TYPE_CHECKING`"
        ) from error
    except TypeError as error:
        raise SerdeError(f"{name} can't be read from JSON: {error}") from error
    seen: set[int] = set()
    while pending:
        info = pending.pop()
        if id(info) in seen:
            continue
        seen.add(id(info))
        if isinstance(info, msgspec.inspect.CustomType):
            raise SerdeError(
                f"{name} can't be read from JSON: {type_name(info.cls)} is not a type of JSON, "
                "a dataclass, Struct or TypedDict; pass key_serde= or value_serde= of your own"
            )
        pending.extend(_parts(info))


def _parts(info: object) -> list[object]:
    if isinstance(info, tuple):
        return list(info)
    if isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        parts = (getattr(info, field) for field in info.__struct_fields__)
        kinds = (tuple, msgspec.inspect.Type, msgspec.inspect.Field)
        return [part for part in parts if isinstance(part, kinds)]
    return []


def _number(kind: type[int | float], text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise SerdeError(f"{text!r} is not a number") from None


def _unexpected(expected: str, obj: object) -> SerdeError:
    return SerdeError(f"{expected} expected, got {type(obj).__name__}")


def _unreadable(expected: str, data: bytes, reason: str) -> SerdeError:
    more = f" and {len(data) - SHOWN_BYTES} bytes more" if len(data) > SHOWN_BYTES else ""
    return SerdeError(f"not {expected}: {reason}; the data is {data[:SHOWN_BYTES]!r}{more}")
