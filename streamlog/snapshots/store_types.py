"""StoreTypes: how the rows of an app's stores are read, as its workers have recorded it in the log.

The record of a topology has the forms of serdes, which say what bytes mean without the app: a
number or text, JSON, or packed values. Rule of the module: pure; a store whose rows are of another
kind, such as those of a join that wait, has no types here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, Final, NamedTuple

import msgspec

from streamlog.blueprints.blueprint import SERDE, Blueprint
from streamlog.errors import SerdeError
from streamlog.serdes.erased_types import JsonValue
from streamlog.serdes.msgpack import PackedSerde
from streamlog.serdes.plain import FloatSerde, StrSerde, WideIntSerde

KEYS: Final = (".key", ".topic.key")
VALUES: Final = (".aggregation.state", ".topic.value")
"""Where the record of a store has the serdes of its rows."""


class Content(NamedTuple):
    """What bytes are. JSON's null is such a content, unlike bytes that can't be read."""

    content: Any


Read = Callable[[bytes], Content | None]
"""Returns what bytes are; None if they can't be read."""


class StoreTypes(NamedTuple):
    """What reads the keys and the values of a store; None where the forms don't tell."""

    key: Read | None
    value: Read | None


NO_TYPES: Final = StoreTypes(None, None)


def types_of(blueprint: Blueprint) -> dict[str, StoreTypes]:
    """Return the types of an app's stores, by their names."""
    found = {}
    for name, store in blueprint.stores.items():
        keys = [store.content[path] for path in KEYS if path in store.content]
        values = [store.content[path] for path in VALUES if path in store.content]
        # A store with one of them alone keeps something else, such as what was seen before.
        if keys and values:
            found[name] = StoreTypes(_reader(keys[0]), _reader(values[0]))
    return found


def types_of_all(blueprints: Iterable[Blueprint]) -> dict[str, StoreTypes]:
    """Return the types of the stores of apps, by their names."""
    return {name: types for each in blueprints for name, types in types_of(each).items()}


def _reader(described: JsonValue) -> Read | None:
    form = described.get(SERDE) if isinstance(described, dict) else None
    if isinstance(form, dict) and form.keys() == {"json"}:
        return _read_json
    loads: dict[object, Callable[[bytes], object]] = {
        "IntSerde": WideIntSerde().loads,
        "FloatSerde": FloatSerde().loads,
        "StrSerde": StrSerde().loads,
        "PackedSerde": PackedSerde().loads,
    }
    load = loads.get(form) if isinstance(form, str) else None
    if load is None:
        return None

    def read(data: bytes) -> Content | None:
        try:
            found = msgspec.to_builtins(load(data), str_keys=True, enc_hook=str)
        except SerdeError:
            return None
        # JSON has neither NaN nor infinity.
        return Content(str(found) if isinstance(found, float) and not isfinite(found) else found)

    return read


def _read_json(data: bytes) -> Content | None:
    try:
        return Content(json.loads(data, parse_constant=str))
    except (ValueError, RecursionError):
        return None
