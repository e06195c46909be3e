"""JSON by msgspec, for every type that it knows: dataclass, Struct, TypedDict, unions and parts.

Decoded strictly. Rule of the file: a type that JSON can't give back is refused where it is
declared; `dumps` checks the outer type only, as it runs once per record: a wrong type inside a
value is found by whoever reads it. NaN and infinities, which JSON does not have, are refused.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, Union, cast, is_typeddict

import msgspec

from streamlog.errors import SerdeError
from streamlog.serdes.not_finite import refuse_not_finite
from streamlog.serdes.serde import T, type_name, unexpected, unreadable_json

NULL = b"null"
_FLOATS = (msgspec.inspect.FloatType, msgspec.inspect.AnyType)
"""What NaN may be a value of."""


def is_model(declared: object) -> bool:
    """Whether it is a model of pydantic."""
    return isinstance(declared, type) and hasattr(declared, "__pydantic_validator__")


class JsonSerde(Generic[T]):
    """Any type that msgspec knows, as JSON.

    Fields that the type does not have are skipped when reading (a newer program may have
    added them); missing or mistyped ones are refused.
    """

    __slots__ = (
        "_expected",
        "_float_keys",
        "_type_name",
        "declared",
        "decode",
        "encode",
        "exact",
        "has_floats",
    )

    def __init__(self, declared: object) -> None:
        self.declared = declared
        """The type, for who wants to know what is in a value (`declared_by`)."""
        self._type_name = type_name(declared)
        parts = _parts_of(declared, self._type_name)
        self.has_floats = any(isinstance(part, _FLOATS) for part in parts)
        """Whether a value may have NaN or an infinity in it."""
        self._float_keys = any(
            isinstance(part, msgspec.inspect.DictType) and isinstance(part.key_type, _FLOATS)
            for part in parts
        )
        try:
            self.decode = msgspec.json.Decoder(cast("type[T]", declared)).decode
        except RuntimeError as error:  # What msgspec has not got yet, such as wide enumerations.
            raise SerdeError(f"{self._type_name} can't be read from JSON: {error}") from error
        self.encode = msgspec.json.Encoder().encode
        self._expected = outer_classes(declared)
        self.exact = frozenset(self._expected)

    @property
    def form(self) -> object:
        """See `form_of`."""
        return {"json": schema_of(self.declared)}

    def dumps(self, obj: T) -> bytes:
        """The value as JSON; a value of another type than declared is refused."""
        if not isinstance(obj, self._expected):
            raise unexpected(self._type_name, obj)
        try:
            data = self.encode(obj)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise SerdeError(f"{self._type_name} can't be written as JSON: {error}") from error
        if self.has_floats and (self._float_keys or NULL in data):
            refuse_not_finite(self._type_name, obj)
        return data

    def is_exact(self, column: Sequence[bytes | None]) -> bool:
        """Whether what `encode` gave for these values is certain to be what `dumps` gives.

        `encode` writes NaN and infinities as null.
        """
        if not self.has_floats:
            return True
        return not self._float_keys and not any(data and NULL in data for data in column)

    def loads(self, data: bytes) -> T:
        """The value in the JSON text; the error names the path of the field that is wrong."""
        try:
            return self.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise unreadable_json(self._type_name, data, str(error)) from error


def schema_of(declared: object) -> object:
    """A type as a JSON Schema; its name if there is none."""
    try:
        return msgspec.json.schema(declared)
    except TypeError:
        return type_name(declared)


def resolved(declared: object) -> object:
    """What stands behind a NewType or Annotated."""
    while isinstance(declared, typing.NewType):
        declared = declared.__supertype__
    if typing.get_origin(declared) is Annotated and not _constrained(declared):
        return resolved(typing.get_args(declared)[0])
    return declared


def _constrained(declared: object) -> bool:
    """Annotated with limits for msgspec, which only its decoder knows how to check."""
    return any(isinstance(note, msgspec.Meta) for note in typing.get_args(declared)[1:])


def outer_classes(declared: object) -> tuple[type, ...]:
    """The classes whose instances `dumps` takes; `object` where a class says nothing."""
    declared = resolved(declared)
    origin = typing.get_origin(declared)
    if origin in (Union, types.UnionType):
        return tuple(c for member in typing.get_args(declared) for c in outer_classes(member))
    if origin is Annotated:
        return outer_classes(typing.get_args(declared)[0])
    if origin is Literal:
        return tuple({type(value) for value in typing.get_args(declared)})
    if is_typeddict(declared) or is_typeddict(origin):
        return (dict,)
    if declared is float:
        return (float, int)
    named = origin or declared
    return (named,) if isinstance(named, type) and named is not Any else (object,)


def _parts_of(declared: object, name: str) -> list[object]:
    """The type and all types in it.

    Raises:
        SerdeError: JSON can't give one of them back.
    """
    try:
        pending: list[object] = [msgspec.inspect.type_info(declared)]
    except NameError as error:
        raise SerdeError(
            f"{name} can't be read from JSON: {error}; the types of its fields must be imported "
            "at the top of the module that defines it, outside `if TYPE_CHECKING`"
        ) from error
    except TypeError as error:
        raise SerdeError(f"{name} can't be read from JSON: {error}") from error
    found: dict[int, object] = {}
    while pending:
        info = pending.pop()
        if id(info) in found:
            continue
        found[id(info)] = info
        if isinstance(info, msgspec.inspect.CustomType) and is_model(info.cls):
            raise SerdeError(
                f"{name} can't be read from JSON: {type_name(info.cls)} is a model of "
                f"pydantic, and {name} around it is not: make {name} one, too"
            )
        if isinstance(info, msgspec.inspect.CustomType):
            raise SerdeError(
                f"{name} can't be read from JSON: {type_name(info.cls)} is not a type of JSON, "
                "a dataclass, Struct or TypedDict; pass key_serde= or value_serde= of your own"
            )
        pending.extend(_parts(info))
    return [*found.values()]


def _parts(info: object) -> list[object]:
    if isinstance(info, tuple):
        return list(info)
    if isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        parts = (getattr(info, field) for field in info.__struct_fields__)
        kinds = (tuple, msgspec.inspect.Type, msgspec.inspect.Field)
        return [part for part in parts if isinstance(part, kinds)]
    return []
