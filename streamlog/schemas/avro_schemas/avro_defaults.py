"""Whether a default fits the type of its field, by Avro's rules for JSON defaults.

Rule: what Apache Avro's Java library accepts in a new schema is accepted. A union's default fits
any of its branches; the default of an enum, a fixed or bytes is any text; NaN is a text.
"""

from __future__ import annotations

import re

from streamlog.schemas.avro_schemas.avro_types import (
    NO_DEFAULT,
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroRecord,
    AvroType,
    AvroUnion,
)
from streamlog.schemas.json_text import JsonValue, shown

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_LIMITS = {"int": 1 << 31, "long": 1 << 63}


def default_problem(
    found: AvroType, default: JsonValue, around: frozenset[AvroRecord] = frozenset()
) -> str:
    """Return what is wrong with a default, as the end of a sentence; "" if it fits.

    The default is JSON of a bounded depth, which bounds the recursion.

    Args:
        found: the type of the field.
        default: its default, as decoded JSON.
        around: the records that the field is part of. None of them can be the default, which would
            contain itself without an end.
    """
    return "" if _fits(found, default, around) else f"does not fit its type: {shown(default)}"


def _fits(found: AvroType, default: JsonValue, around: frozenset[AvroRecord]) -> bool:
    match found:
        case AvroPrimitive(kind=kind):
            return _fits_primitive(kind, default)
        case AvroEnum() | AvroFixed():
            return isinstance(default, str)
        case AvroUnion(branches=branches):
            return any(_fits(branch, default, around) for branch in branches)
        case _:
            return _fits_parts(found, default, around)


def _fits_parts(
    found: AvroArray | AvroMap | AvroRecord, default: JsonValue, around: frozenset[AvroRecord]
) -> bool:
    match found, default:
        case AvroArray(items=items), list():
            return all(_fits(items, each, around) for each in default)
        case AvroMap(values=values), dict():
            return all(_fits(values, each, around) for each in default.values())
        case AvroRecord(fields=fields), dict():
            # A field that is absent from the default takes its own default, which is checked too.
            return found not in around and all(
                _fits(each.type, default[each.name], around)
                if each.name in default
                else each.default is not NO_DEFAULT
                for each in fields
            )
        case _:
            return False


def _fits_primitive(kind: str, default: JsonValue) -> bool:
    match kind:
        case "null":
            return default is None
        case "boolean":
            return isinstance(default, bool)
        case "int" | "long":
            # A bool is an int for isinstance, but not in Avro.
            limit = _LIMITS[kind]
            return type(default) is int and -limit <= default < limit
        case "float" | "double":
            # Java takes any number, an integer too.
            return type(default) in {int, float} or _is_number_text(default)
        case _:
            return isinstance(default, str)


def _is_number_text(default: JsonValue) -> bool:
    return isinstance(default, str) and (
        default in {"NaN", "Infinity", "-Infinity"} or _NUMBER.fullmatch(default) is not None
    )
