"""Chooses the serde of a declared type, and reads values that people type.

`str`, `bytes`, `int`, `float` and `Windowed[K]` have their own serdes; all other types are JSON. A
type that contains a model of pydantic is read and written by pydantic, any other by msgspec.
"""

from __future__ import annotations

import typing
from functools import lru_cache
from typing import cast

import msgspec

from streamlog.errors import SerdeError
from streamlog.record import Windowed
from streamlog.serdes.erased_types import AnySerde, TypeForm, UserValue
from streamlog.serdes.json_values import JsonSerde, ModelSerde, has_model, without_none
from streamlog.serdes.migrations import MigratingSerde, migration_to
from streamlog.serdes.plain import BytesSerde, FloatSerde, IntSerde, StrSerde
from streamlog.serdes.serde import declared_by, is_binary, unreadable_json_error
from streamlog.serdes.windowed_keys import WindowedSerde

_PLAIN: dict[object, AnySerde] = {
    str: StrSerde(),
    bytes: BytesSerde(),
    int: IntSerde(),
    float: FloatSerde(),
}


@lru_cache(maxsize=256)
def serde_for(declared: TypeForm) -> AnySerde:
    """Return the serde of a declared type; `X | None` has the serde of `X`.

    A missing value is a tombstone, so no serde ever writes it.

    Raises:
        SerdeError: the type can't be read from JSON, or `Windowed` lacks the type of its key.
    """
    inner = without_none(declared)
    if inner is Windowed:
        raise SerdeError("Windowed needs the type of its key: write Windowed[str]")
    origin: TypeForm = typing.get_origin(inner)
    if origin is Windowed:
        return WindowedSerde(serde_for(typing.get_args(inner)[0]))
    # Exactly these types: a subclass of `str`, such as an enumeration, is JSON.
    return _PLAIN.get(inner) or _migrating(inner)


def _migrating(declared: object) -> AnySerde:
    """Return the JSON serde of a type, which also reads the types that migrations lead from."""
    serde: AnySerde = ModelSerde(declared) if has_model(declared) else JsonSerde(declared)
    before = migration_to(declared)
    if before is None:
        return serde
    old, migrate = before
    return MigratingSerde(serde, serde_for(cast("TypeForm", old)), migrate, declared)


def from_text(serde: AnySerde, text: str) -> UserValue:
    """Return the value that a person has typed on a command line.

    For text, bytes and numbers, the text is the value itself; for any other type, it is JSON.

    Raises:
        SerdeError: the text is not a value of the type.
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
            return _typed_serde(serde).loads(text.encode())


def from_json(serde: AnySerde, data: bytes) -> UserValue:
    """Return the value that a JSON text holds; in JSON, bytes are base64.

    A serde of the user's own gets the text as its bytes; Avro and Protobuf, JSON of their type.

    Raises:
        SerdeError: the text is not a value of the type.
    """
    kinds: dict[type, type] = {StrSerde: str, BytesSerde: bytes, IntSerde: int, FloatSerde: float}
    kind = kinds.get(type(serde))
    if kind is None:
        return _typed_serde(serde).loads(data)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise unreadable_json_error(kind.__name__, data, str(error)) from error


def _typed_serde(serde: AnySerde) -> AnySerde:
    """Return the serde of text that stands for a value: JSON of its type for a binary format."""
    return serde_for(cast("TypeForm", declared_by(serde))) if is_binary(serde) else serde


def _number(kind: type[int | float], text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise SerdeError(f"{text!r} is not a number") from None
