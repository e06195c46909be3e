"""Which serde a declared type has, and values that people have typed.

`str`, `bytes`, `int`, `float` and `Windowed[K]` have their own; everything else is JSON: by
pydantic if a model of it is in the type, else by msgspec.
"""

from __future__ import annotations

import types
import typing
from functools import lru_cache
from typing import Union, cast

import msgspec

from streamlog.errors import SerdeError
from streamlog.record import Windowed
from streamlog.serdes.erased_types import AnySerde, TypeForm, UserValue
from streamlog.serdes.json_values import JsonSerde, ModelSerde, has_model, resolve_alias
from streamlog.serdes.migrations import MigratingSerde, migration_to
from streamlog.serdes.plain import BytesSerde, FloatSerde, IntSerde, StrSerde
from streamlog.serdes.serde import unreadable_json_error
from streamlog.serdes.windowed_keys import WindowedSerde

_PLAIN: dict[object, AnySerde] = {
    str: StrSerde(),
    bytes: BytesSerde(),
    int: IntSerde(),
    float: FloatSerde(),
}


@lru_cache(maxsize=256)
def serde_for(declared: TypeForm) -> AnySerde:
    """The serde of a declared type.

    `X | None` is the serde of `X`: a missing value has no bytes.

    Raises:
        SerdeError: the type can't be read from JSON, or `Windowed` stands without its key.
    """
    inner = _without_none(resolve_alias(declared))
    if inner is Windowed:
        raise SerdeError("Windowed needs the type of its key: write Windowed[str]")
    if typing.get_origin(inner) is Windowed:
        return WindowedSerde(serde_for(typing.get_args(inner)[0]))
    return _PLAIN.get(inner) or _migrating(inner)


def _migrating(declared: object) -> AnySerde:
    """As JSON, with what was written before the type was what it is."""
    serde: AnySerde = ModelSerde(declared) if has_model(declared) else JsonSerde(declared)
    before = migration_to(declared)
    if before is None:
        return serde
    old, migrate = before
    return MigratingSerde(serde, serde_for(cast("TypeForm", old)), migrate, declared)


def from_text(serde: AnySerde, text: str) -> UserValue:
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


def from_json(serde: AnySerde, data: bytes) -> UserValue:
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
        raise unreadable_json_error(kind.__name__, data, str(error)) from error


def _without_none(declared: object) -> object:
    if typing.get_origin(declared) not in (Union, types.UnionType):
        return declared
    members = [member for member in typing.get_args(declared) if member is not type(None)]
    return resolve_alias(members[0]) if len(members) == 1 else Union[tuple(members)]  # noqa: UP007 - built from values


def _number(kind: type[int | float], text: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise SerdeError(f"{text!r} is not a number") from None
