"""JSON by msgspec, for every type that it knows: dataclass, Struct, TypedDict, unions and parts.

Decoded strictly. Rule of the file: a type that JSON can't give back is refused where it is
declared; `dumps` checks the outer type only, as it runs once per record: a wrong type inside a
value is found by whoever reads it.
"""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Generic, Literal, Union, cast, is_typeddict

import msgspec

from streamlog.errors import SerdeError
from streamlog.serdes.serde import T, type_name, unexpected, unreadable


def is_model(declared: object) -> bool:
    """Whether it is a model of pydantic."""
    return isinstance(declared, type) and hasattr(declared, "__pydantic_validator__")


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
            return self.encode(obj)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise SerdeError(f"{self._type_name} can't be written as JSON: {error}") from error

    def loads(self, data: bytes) -> T:
        """The value in the JSON text; the error names the path of the field that is wrong."""
        try:
            return self.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise unreadable(self._type_name, data, str(error)) from error


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


def _parts(info: object) -> list[object]:
    if isinstance(info, tuple):
        return list(info)
    if isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        parts = (getattr(info, field) for field in info.__struct_fields__)
        kinds = (tuple, msgspec.inspect.Type, msgspec.inspect.Field)
        return [part for part in parts if isinstance(part, kinds)]
    return []
