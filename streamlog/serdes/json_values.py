"""JSON by msgspec and pydantic: dataclasses, Structs, TypedDicts, models, unions and their parts.

Types are decoded strictly. A pydantic model is read and written by pydantic, with its aliases and
validators, also inside lists, unions and dataclasses; pydantic is never imported before the
program that defines a model imports it. NaN and infinities, which JSON lacks (RFC 8259, section
6), are refused; a value is searched for them only if its JSON has a null.

Rule: a type that JSON cannot give back is refused where it is declared. `dumps` checks the outer
type only, because it runs once per record.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from math import isfinite
from typing import Annotated, Generic, Literal, Union, cast, is_typeddict

import msgspec

from streamlog.errors import SerdeError
from streamlog.serdes.erased_types import ANY_TYPE, TypeForm, UserObject, UserValue
from streamlog.serdes.serde import T, type_name, unreadable_json_error, wrong_type_error

ADVICE = (
    "JSON has no such number: drop the record, replace the number, or declare the field as `float "
    "| None` and write None"
)

_encode = msgspec.msgpack.Encoder(enc_hook=lambda _: None).encode
_PACKED_NUMBER = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""The first bytes of NaN and infinities in MessagePack; other values may contain equal bytes."""


def refuse_not_finite(name: str, value: object, plain: object = None) -> None:
    """Refuse a value that contains NaN or an infinity; the message names the field.

    Args:
        name: the type of the value, for the message.
        value: the value to write.
        plain: the value as dicts and lists; by default msgspec converts it.

    Raises:
        SerdeError: the value contains a number that is not finite.
    """
    if plain is None:
        if not _may_have(value):
            return
        plain = msgspec.to_builtins(value, enc_hook=str)
    found = next(_not_finite("$", plain), None)
    if found is not None:
        path, number = found
        raise SerdeError(f"{name} can't be written as JSON: `{path}` is {number}. {ADVICE}")


def display_json(value: object, enc_hook: Callable[[UserValue], object]) -> bytes:
    """Return a value as JSON for people: NaN and infinities are the text "nan", "inf", "-inf".

    Args:
        value: the value to show.
        enc_hook: converts objects that msgspec does not know.
    """
    # msgspec writes NaN and infinities as null: without a null the value has none of them.
    data = msgspec.json.encode(value, enc_hook=enc_hook)
    if b"null" not in data:
        return data
    plain = _display_value(msgspec.to_builtins(value, enc_hook=enc_hook))
    return msgspec.json.encode(plain)


def _display_value(value: object) -> object:
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, dict):
        return {_display_value(key): _display_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_display_value(part) for part in value]
    return value


def _may_have(value: object) -> bool:
    # A quick check before the walk through the value. A match in a text is harmless: the walk
    # follows, and finds nothing.
    try:
        return _PACKED_NUMBER.search(_encode(value)) is not None
    except OverflowError:
        return True  # A whole number beyond 64 bits, which MessagePack does not have.


def _not_finite(path: str, plain: object) -> Iterator[tuple[str, float]]:
    if isinstance(plain, float):
        if not isfinite(plain):
            yield path, plain
    elif isinstance(plain, dict):
        for key, part in plain.items():
            yield from _not_finite(f"key of {path}", key)
            yield from _not_finite(f"{path}.{key}", part)
    elif isinstance(plain, list | tuple):
        for at, part in enumerate(plain):
            yield from _not_finite(f"{path}[{at}]", part)


NULL = b"null"
_FLOATS = (msgspec.inspect.FloatType, msgspec.inspect.AnyType)
"""Types whose values may be NaN or infinite."""


def is_model(declared: object) -> bool:
    """Return whether a type is a model of pydantic, without importing pydantic."""
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
        """The type of the values (`declared_by`)."""
        self._type_name = type_name(declared)
        parts = _parts_of(declared, self._type_name)
        self.has_floats = any(isinstance(part, _FLOATS) for part in parts)
        """Whether a value may contain NaN or an infinity."""
        self._float_keys = any(
            isinstance(part, msgspec.inspect.DictType) and isinstance(part.key_type, _FLOATS)
            for part in parts
        )
        try:
            self.decode = msgspec.json.Decoder(cast("type[T]", declared)).decode
        except (
            RuntimeError
        ) as error:  # msgspec does not have every type, such as wide enumerations.
            raise SerdeError(f"{self._type_name} can't be read from JSON: {error}") from error
        self.encode = msgspec.json.Encoder().encode
        self._expected = outer_classes(declared)
        self.exact = frozenset(self._expected)

    @property
    def form(self) -> object:
        """The JSON Schema of the type."""
        return {"json": schema_of(self.declared)}

    def dumps(self, obj: T) -> bytes:
        """Serialize a value; a value of another class than declared is refused."""
        if not isinstance(obj, self._expected):
            raise wrong_type_error(self._type_name, obj)
        try:
            data = self.encode(obj)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise SerdeError(f"{self._type_name} can't be written as JSON: {error}") from error
        # msgspec writes NaN and infinities as null, but as text where they are keys: those show
        # only in the value itself.
        if self.has_floats and (self._float_keys or NULL in data):
            refuse_not_finite(self._type_name, obj)
        return data

    def is_exact(self, column: Sequence[bytes | None]) -> bool:
        """Return whether `dumps` would certainly return these results of `encode`.

        `encode` writes NaN and infinities, which `dumps` refuses, as null.
        """
        if not self.has_floats:
            return True
        return not self._float_keys and not any(data and NULL in data for data in column)

    def loads(self, data: bytes) -> T:
        """Deserialize a value; an error names the path of the wrong field."""
        try:
            return self.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise unreadable_json_error(self._type_name, data, str(error)) from error


def schema_of(declared: object) -> object:
    """Return the JSON Schema of a type, or the type's name if it has no schema."""
    try:
        return msgspec.json.schema(declared)
    except TypeError:
        return type_name(declared)


def resolve_alias(declared: object) -> object:
    """Return the type behind a NewType, and behind an Annotated without constraints."""
    while isinstance(declared, typing.NewType):
        declared = declared.__supertype__
    if typing.get_origin(declared) is Annotated and not _is_constrained(declared):
        return resolve_alias(typing.get_args(declared)[0])
    return declared


def without_none(declared: TypeForm) -> TypeForm:
    """Return the type of values that are not None: `X` for `X | None`, and for an alias of X."""
    declared = resolve_alias(declared)
    origin: TypeForm = typing.get_origin(declared)
    if origin not in (Union, types.UnionType):
        return declared
    members = [member for member in typing.get_args(declared) if member is not type(None)]
    return resolve_alias(members[0]) if len(members) == 1 else Union[tuple(members)]  # noqa: UP007 - built from values


def _is_constrained(declared: object) -> bool:
    """Return whether an Annotated has limits, which only msgspec's decoder can check."""
    return any(isinstance(note, msgspec.Meta) for note in typing.get_args(declared)[1:])


def outer_classes(declared: object) -> tuple[type, ...]:
    """Return the classes whose instances `dumps` accepts; `object` if it accepts any class."""
    declared = resolve_alias(declared)
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
        # As for type checkers, an int is a float.
        return (float, int)
    named = origin or declared
    return (named,) if isinstance(named, type) and named is not ANY_TYPE else (object,)


def _parts_of(declared: object, name: str) -> list[object]:
    """Return msgspec's descriptions of a type and of all types inside it.

    Raises:
        SerdeError: values of one of these types can't be read back from JSON.
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
        # A type that contains itself has one description, which comes up again.
        if id(info) in found:
            continue
        found[id(info)] = info
        if isinstance(info, msgspec.inspect.CustomType) and is_model(info.cls):
            raise SerdeError(
                f"{name} can't be read from JSON: {type_name(info.cls)} is a pydantic model, but "
                f"{name}, which contains it, is not: make {name} a pydantic model too"
            )
        if isinstance(info, msgspec.inspect.CustomType):
            raise SerdeError(
                f"{name} can't be read from JSON: {type_name(info.cls)} is neither a JSON type nor "
                "a dataclass, Struct or TypedDict; pass your own key_serde= or value_serde="
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


def has_model(declared: object) -> bool:
    """Return whether a type is a model of pydantic, or has one among its arguments."""
    return is_model(declared) or any(map(has_model, typing.get_args(declared)))


class ModelSerde(Generic[T]):
    """A type that contains models of pydantic, as JSON by pydantic."""

    __slots__ = ("_adapter", "_expected", "_type_name", "declared")

    def __init__(self, declared: object) -> None:
        self.declared = declared
        self._type_name = type_name(declared)
        try:
            self._adapter: UserObject = import_module("pydantic").TypeAdapter(declared)
        except (TypeError, ValueError, NameError, AttributeError) as error:
            # Errors of pydantic derive from built-in ones such as TypeError.
            raise SerdeError(f"{self._type_name} can't be read from JSON: {error}") from error
        self._expected = outer_classes(declared)

    @property
    def form(self) -> object:
        """Pydantic's JSON Schema of the written values."""
        return {"json": self._adapter.json_schema(mode="validation", by_alias=True)}

    def dumps(self, obj: T) -> bytes:
        """Serialize a value, with the fields' aliases as names."""
        if not isinstance(obj, self._expected):
            raise wrong_type_error(self._type_name, obj)
        try:
            # Pydantic only warns of a value of another type than declared, and would write it.
            data: bytes = self._adapter.dump_json(obj, by_alias=True, warnings="error")
            if NULL in data:
                self._refuse_not_finite(obj, data)
        except (TypeError, ValueError, RecursionError) as error:
            raise SerdeError(f"{self._type_name} can't be written as JSON: {error}") from error
        return data

    def loads(self, data: bytes) -> T:
        """Deserialize and validate a value; an error names the wrong field."""
        try:
            return cast("T", self._adapter.validate_json(data))
        except (ValueError, RecursionError) as error:
            raise unreadable_json_error(self._type_name, data, str(error)) from error

    def _refuse_not_finite(self, obj: T, data: bytes) -> None:
        """Refuse NaN and infinities that pydantic has written as null.

        A model with the setting `ser_json_inf_nan` writes them as text or constants, which are
        accepted. So a number was lost if the JSON has more nulls than the value has Nones.
        """
        plain = self._adapter.dump_python(obj, by_alias=True, warnings="none")
        if _nones(json.loads(data)) > _nones(plain):
            refuse_not_finite(self._type_name, obj, plain)


def _nones(plain: object) -> int:
    """Return how many Nones a value of dicts, lists and sets contains."""
    if isinstance(plain, dict):
        return sum(map(_nones, plain.values()))
    if isinstance(plain, list | tuple | set | frozenset):
        return sum(map(_nones, plain))
    return plain is None
