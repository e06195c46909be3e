"""Declared: values as columns of the type that an app declares for their topic.

The app is found by name, `module:name`, as commands find it, in every Python process of Spark. What
a type is in Spark follows from its parts: fields are columns of a struct, lists are arrays, dicts
with keys of text maps, and what Spark has no type for (decimals, UUIDs, durations) is text, as in
JSON. A type that has no one shape, such as a union of two classes, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime
from functools import lru_cache
from importlib import import_module
from typing import Any

import msgspec
from msgspec import inspect

from streamlog.errors import ConfigError
from streamlog.serdes.json_values import JsonSerde
from streamlog.serdes.plain import BytesSerde, FloatSerde, IntSerde, StrSerde
from streamlog.serdes.serde import Serde

_PLAIN: dict[type, str] = {
    StrSerde: "string",
    IntSerde: "bigint",
    FloatSerde: "double",
    BytesSerde: "binary",
}
_SIMPLE: dict[type, str] = {
    inspect.StrType: "string",
    inspect.IntType: "bigint",
    inspect.FloatType: "double",
    inspect.BoolType: "boolean",
    inspect.BytesType: "binary",
    inspect.DateTimeType: "timestamp",
    inspect.DateType: "date",
    inspect.DecimalType: "string",
    inspect.UUIDType: "string",
    inspect.TimeType: "string",
    inspect.TimeDeltaType: "string",
}
_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_OBJECTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_AS_THEY_ARE = (bytes, datetime, date)


def declared_serde(app: str, topic: str) -> Serde[Any]:
    """That of a topic's values.

    Raises:
        ConfigError: as `declared_topic`.
    """
    serde: Serde[Any] = declared_topic(app, topic).value
    return serde


@lru_cache(maxsize=256)
def declared_topic(app: str, topic: str) -> Any:  # noqa: ANN401 - the bridge knows no app
    """A topic as an app declares it.

    Raises:
        ConfigError: there is no such app, or it does not declare the topic.
    """
    module_name, _, name = app.partition(":")
    try:
        found = getattr(import_module(module_name), name or "app")
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"option 'app' is the MODULE or MODULE:NAME of an app, and {app!r} can't be had: "
            f"{error}; Spark's processes have to be able to import it"
        ) from error
    if topic not in found.topics:
        raise ConfigError(f"app {app!r} has no topic {topic!r}: it has {', '.join(found.topics)}")
    return found.topics[topic]


def declared_columns(app: str, topics: Iterable[str]) -> str:
    """The type of their values, in Spark's words.

    Raises:
        ConfigError: the topics differ in it, or it is none that Spark could have.
    """
    found = {topic: _of_serde(declared_serde(app, topic), topic) for topic in sorted(topics)}
    if len({*found.values()}) > 1:
        told = "; ".join(f"{topic}: {columns}" for topic, columns in found.items())
        raise ConfigError(f"values of the topics have different types, read them apart: {told}")
    return next(iter(found.values()), "binary")


def declared_decoder(app: str, topic: str) -> Callable[[bytes], Any]:
    """From bytes to what Arrow takes for `declared_columns`; raises SerdeError.

    Raises:
        ConfigError: as `declared_serde`.
    """
    serde = declared_serde(app, topic)

    def decode(data: bytes) -> object:
        return msgspec.to_builtins(serde.loads(data), builtin_types=_AS_THEY_ARE)

    return decode


def _of_serde(serde: Serde[Any], topic: str) -> str:
    if type(serde) in _PLAIN:
        return _PLAIN[type(serde)]
    if isinstance(serde, JsonSerde):
        return _columns(inspect.type_info(serde.declared), topic)
    raise ConfigError(
        f"values of {topic!r} are read by {type(serde).__name__}, which does not say what their "
        "columns are: give the option 'valueSchema'"
    )


def _columns(info: inspect.Type, where: str) -> str:
    if type(info) in _SIMPLE:
        return _SIMPLE[type(info)]
    if isinstance(info, _LISTS):
        return f"array<{_columns(info.item_type, f'{where}[]')}>"
    if isinstance(info, inspect.DictType) and isinstance(info.key_type, inspect.StrType):
        return f"map<string, {_columns(info.value_type, f'{where}[]')}>"
    if isinstance(info, _OBJECTS) and not getattr(info, "array_like", False):
        fields = (
            f"`{f.encode_name}`: {_columns(f.type, f'{where}.{f.name}')}" for f in info.fields
        )
        return f"struct<{', '.join(fields)}>"
    if isinstance(info, inspect.EnumType | inspect.LiteralType):
        return _of_values(info, where)
    if isinstance(info, inspect.UnionType):
        kinds = {_columns(t, where) for t in info.types if not isinstance(t, inspect.NoneType)}
        if len(kinds) == 1:
            return kinds.pop()
    raise _no_shape(where, type(info).__name__.removesuffix("Type"))


def _of_values(info: inspect.EnumType | inspect.LiteralType, where: str) -> str:
    values = info.values if isinstance(info, inspect.LiteralType) else [e.value for e in info.cls]
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return "string"
    if kinds == {int}:
        return "bigint"
    raise _no_shape(where, "values of several types")


def _no_shape(where: str, kind: str) -> ConfigError:
    return ConfigError(
        f"{where} has no type that Spark could have ({kind}): read bytes, or give the option "
        "'valueSchema' with the fields that you want"
    )
