"""Typed values: decodes record values to columns, JSON by the query's schema or as an app declares.

Every Python process of Spark imports the app by name, `module:name`. A class is a struct, a list is
an array, a dict with text keys is a map, and a type that Spark lacks (decimal, UUID, duration) is
text, as in JSON. A union of two classes has no single type and is refused. Fields that the schema
does not name are dropped, missing ones are NULL, and a null value is a NULL struct. A value that
does not fit fails the read with an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from msgspec import inspect

from spark_bridge.registered_values import registered_decoder
from streamlog.errors import ConfigError, SerdeError
from streamlog.serdes.json_values import JsonSerde
from streamlog.serdes.plain import BytesSerde, FloatSerde, IntSerde, StrSerde
from streamlog.serdes.registered import RegistrySerde
from streamlog.serdes.registered.framing import absorb_value_header
from streamlog.serdes.serde import Serde

if TYPE_CHECKING:
    from spark_bridge.offset_ranges import OffsetRange
    from spark_bridge.source_options import ReadOptions
    from streamlog.record import Headers


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
    """Return the serde of a topic's values.

    Raises:
        ConfigError: as `declared_topic`.
    """
    serde: Serde[Any] = declared_topic(app, topic).value
    return serde


@lru_cache(maxsize=256)
def declared_topic(app: str, topic: str) -> Any:  # noqa: ANN401 - the bridge knows no app
    """Return a topic as an app declares it.

    Raises:
        ConfigError: there is no such app, or it does not declare the topic.
    """
    module_name, _, name = app.partition(":")
    try:
        found = getattr(import_module(module_name), name or "app")
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"option 'app' names an app as MODULE or MODULE:NAME, and {app!r} can't be imported: "
            f"{error}; Spark's processes must be able to import it"
        ) from error
    if topic not in found.topics:
        raise ConfigError(
            f"app {app!r} has no topic {topic!r}; its topics: {', '.join(found.topics)}"
        )
    return found.topics[topic]


def declared_columns(app: str, topics: Iterable[str]) -> str:
    """Return the Spark type of the topics' values.

    Raises:
        ConfigError: the topics have different types, or Spark has no such type.
    """
    found = {topic: _of_serde(declared_serde(app, topic), topic) for topic in sorted(topics)}
    if len({*found.values()}) > 1:
        types = "; ".join(f"{topic}: {columns}" for topic, columns in found.items())
        raise ConfigError(
            f"the topics have values of different types, read them separately: {types}"
        )
    return next(iter(found.values()), "binary")


def declared_decoder(app: str, topic: str) -> Callable[[bytes], Any]:
    """Return a function from bytes to a value for `declared_columns`; it raises SerdeError.

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
    if isinstance(serde, JsonSerde | RegistrySerde):
        return _columns(inspect.type_info(serde.declared), topic)
    raise ConfigError(
        f"values of {topic!r} have the serde {type(serde).__name__}, which does not declare "
        "columns: give the option 'valueSchema'"
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
        # `X | None` is X: every column of Spark may be NULL.
        kinds = {_columns(t, where) for t in info.types if not isinstance(t, inspect.NoneType)}
        if len(kinds) == 1:
            return kinds.pop()
    raise _shape_error(where, type(info).__name__.removesuffix("Type"))


def _of_values(info: inspect.EnumType | inspect.LiteralType, where: str) -> str:
    values = info.values if isinstance(info, inspect.LiteralType) else [e.value for e in info.cls]
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return "string"
    if kinds == {int}:
        return "bigint"
    raise _shape_error(where, "values of several types")


def _shape_error(where: str, kind: str) -> ConfigError:
    return ConfigError(
        f"{where} has a type that Spark lacks ({kind}): read bytes, or give the option "
        "'valueSchema' with the fields that you want"
    )


_UNFIT = (msgspec.MsgspecError, pa.ArrowException, TypeError, ValueError, SerdeError)


class TypedValues:
    """Decodes the values of one topic."""

    def __init__(self, options: ReadOptions, topic: str, value_type: Any) -> None:  # noqa: ANN401 - Arrow's, untyped
        """Prepare a decoder.

        Args:
            options: the options of the read.
            topic: the topic.
            value_type: the Arrow type of values.

        Raises:
            ConfigError: the app can't be imported, or does not declare the topic.
        """
        self._type = value_type
        self._what = "the option valueSchema"
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode
        self.needs_headers = options.registry is not None
        """Whether headers may name the schemas of values."""
        if options.app is not None:
            self.needs_headers = isinstance(declared_serde(options.app, topic), RegistrySerde)
            self._what = f"the type that {options.app} declares"
            self._decode = declared_decoder(options.app, topic)
        if options.registry is not None:
            self._what = "the latest schema in the registry"
            self._decode = registered_decoder(options.registry, topic)

    def typed(
        self,
        values: Any,  # noqa: ANN401 - as above
        offsets: OffsetRange,
        numbers: Any,  # noqa: ANN401 - as above
        headers: Sequence[Headers],
    ) -> Any:  # noqa: ANN401 - as above
        """Return the values as an Arrow array.

        Args:
            values: the values as bytes.
            offsets: the range that they are read from.
            numbers: their offsets.
            headers: their headers, if `needs_headers`.

        Raises:
            SerdeError: a value does not fit; names its offset.
        """
        texts = values.to_pylist()
        if self.needs_headers:
            texts = [*map(absorb_value_header, texts, headers)]
        # All values together, which is fast; only if that fails, one by one, to name the offset.
        try:
            return self._array(texts)
        except _UNFIT:
            pass
        for text, number in zip(texts, numbers.to_pylist(), strict=True):
            try:
                self._array([text])
            except _UNFIT as error:
                raise SerdeError(
                    f"the value of {offsets.topic}-{offsets.partition} at offset {number} does not"
                    f" fit {self._what}: {error}"
                ) from error
        raise SerdeError(
            f"values of {offsets.topic}-{offsets.partition} each fit {self._what}, but not as one "
            "column"
        )

    def _array(self, texts: list[bytes | None]) -> Any:  # noqa: ANN401 - as above
        decode = self._decode
        return pa.array([None if text is None else decode(text) for text in texts], self._type)
