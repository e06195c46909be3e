"""Random questions: a transform or predicate with settings, and a record that mostly fits them."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from streamlog.connect.transforms.date_formats import DateFormat
from tests.oracle.connect.runner import Question
from tests.oracle.connect.unwrap_questions import CLASS, unwrap

PACKAGE: Final = "org.apache.kafka.connect.transforms."
LOGICAL: Final = "org.apache.kafka.connect.data."
WITH_DEFAULTS: Final = frozenset(
    {"Cast", "ExtractField", "HeaderFrom", "InsertField", "MaskField", "ReplaceField"}
    | {"SetSchemaMetadata", "TimestampConverter", "ValueToKey"}
)
"""The transforms with the setting `replace.null.with.default`."""
NAMES: Final = ("a", "b", "c", "d.e", "when", "id")
PATHS: Final = (
    *("`d.e`.y", "`d.e`", "a.y", "a..b", "a.", "`a", "`a`b`", "`a\\`", "`a\\`.x`", "a.`x`"),
    *("a.`x`.y", "`a`.`y`.z", "`a`.", "``"),
)
CASTS: Final = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
TEXTS: Final = (
    "",
    "x",
    "12",
    "-7",
    "true",
    "TRUE",
    "3.5",
    "1e3",
    "300",
    'é"\\',
    " 4",
    "2024-05-06",
    "-0",
    "NaN",
    "1.5f",
    "99999999999",
)
FORMATS: Final = (
    *("yyyy-MM-dd", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "yyyyMMddHHmmss", "dd/MM/yy hh:mm a"),
    *("EEE, d MMM yyyy HH:mm:ss Z", "EEEE MMMM", "H:m:s", "D yyyy", "yyyy-MM-dd'T'HH:mm:ssX"),
    *("d LLL yy K a", "kk 'o''clock' u", "y-M z", "yyy LL DDD", "zzzz yyyy", "''yy''MMdd", "SSS s"),
)
Json = Any


def question(seed: int) -> Question:
    """Return the question of a number."""
    chance = Random(seed)
    if seed % (len(_KINDS) + 1) == len(_KINDS):
        return _unwrap(chance)
    has_schemas = chance.random() < 0.6
    row = _struct if has_schemas else _map
    fields = chance.sample(NAMES, chance.randint(1, 4))
    name, config = _KINDS[seed % (len(_KINDS) + 1)](chance, fields)
    converter = {"schemas.enable": str(has_schemas).lower()}
    if chance.random() < 0.3:
        # Without it nulls of fields with a default do not reach the transform.
        converter["replace.null.with.default"] = "false"
    if name.partition("$")[0] in WITH_DEFAULTS and chance.random() < 0.3:
        config["replace.null.with.default"] = chance.choice(["true", "false"])
    value = _whole(chance) if chance.random() < 0.1 and has_schemas else row(chance, fields)
    return {
        "class": f"{PACKAGE}{name}",
        "config": config,
        "converter": converter,
        "key": row(chance, chance.sample(NAMES, 2)),
        "value": None if chance.random() < 0.05 else value,
        "topic": chance.choice(["orders", "shop.orders", "a-1", "2024"]),
        "partition": chance.randint(0, 3),
        "offset": chance.randint(0, 10**6),
        "timestamp": _now_ms() if "yy" in str(config) else chance.randint(0, 2 * 10**12),
        "headers": [[chance.choice("hij"), chance.choice(["x", "1", "true"])]]
        * chance.randint(0, 2),
    }


def _now_ms() -> int:
    """Return the time from which Java counts years of two digits."""
    return int(time.time() * 1000)


def _unwrap(chance: Random) -> Question:
    config, key, value = unwrap(chance)
    return {
        "class": CLASS, "config": config, "converter": {"schemas.enable": "true"}, "key": key,
        "value": value, "topic": "p.s.t", "partition": 0, "offset": 1, "timestamp": 5,
        "headers": [["h", "x"]] * chance.randint(0, 1),
    }  # fmt: skip


# ------------------------------------------------------------------------------ records


def _whole(chance: Random) -> str:
    """Return a value that is no row."""
    schema, value = _typed(chance, 2)
    if chance.random() < 0.3:
        schema, value = {**schema, "optional": True}, chance.choice([value, None])
    return json.dumps({"schema": schema, "payload": value})


def _map(chance: Random, fields: Sequence[str]) -> str:
    return json.dumps({name: _free(chance, 0) for name in fields})


def _free(chance: Random, depth: int) -> Json:  # noqa: PLR0911 - a case for each kind
    match chance.randrange(9 if depth < 2 else 6):
        case 0:
            return None
        case 1:
            return chance.random() < 0.5
        case 2:
            return chance.choice([0, 1, -1, 127, 128, 70_000, 2**31, 2**63 - 1, -(2**63)])
        case 3:
            return round(chance.uniform(-10, 10) * 10 ** chance.randint(-6, 12), 4)
        case 4 | 5:
            return _text(chance)
        case 6 | 7:
            return {name: _free(chance, depth + 1) for name in chance.sample("xyz", 2)}
    return [_free(chance, depth + 1) for _ in range(2)]


def _text(chance: Random) -> str:
    """Return a text, at times with a date in it."""
    if chance.random() < 0.6:
        return chance.choice(TEXTS)
    when = DateFormat(chance.choice(FORMATS)).text(chance.randint(-(10**11), 2 * 10**12))
    return chance.choice([when, when.lower(), when.replace("0", "5"), when.replace("+00", "-03")])


def _struct(chance: Random, fields: Sequence[str]) -> str:
    schema, value = _of_fields(chance, fields, 0)
    if chance.random() < 0.3:
        schema.update({"name": "shop.Order", "version": 3, "doc": "an order"})
    if chance.random() < 0.1:
        schema["optional"] = True
    return json.dumps({"schema": schema, "payload": value})


def _of_fields(chance: Random, fields: Sequence[str], depth: int) -> tuple[dict[str, Json], Json]:
    described, row = [], {}
    for name in fields:
        schema, value = _typed(chance, depth)
        schema["optional"] = chance.random() < 0.5
        if _may_default(schema) and chance.random() < 0.3:
            schema["default"] = value
        if schema["optional"] and chance.random() < 0.3:
            value = None
        described.append({**schema, "field": name})
        row[name] = value
    return {"type": "struct", "fields": described, "optional": False}, row


def _may_default(schema: dict[str, Json]) -> bool:
    return schema["type"] in ("int32", "string", "boolean") and "name" not in schema


def _typed(chance: Random, depth: int) -> tuple[dict[str, Json], Json]:  # noqa: C901, PLR0911 - a case for each kind
    kind = chance.choice(_SCALARS if depth > 1 else [*_SCALARS, "struct", "array", "map"])
    match kind:
        case "int8" | "int16" | "int32" | "int64":
            bits = int(kind[3:])
            return {"type": kind}, chance.choice(
                [0, 1, -1, 2 ** (bits - 1) - 1, chance.getrandbits(7)]
            )
        case "float" | "double":
            return {"type": kind}, round(chance.uniform(-100, 100), 2) * 10 ** chance.randint(
                -5, 4 if kind == "float" else 9
            )
        case "boolean":
            return {"type": kind}, chance.random() < 0.5
        case "string":
            return {"type": kind}, _text(chance)
        case "bytes":
            return {"type": kind}, b64encode(chance.randbytes(3)).decode()
        case "struct":
            return _of_fields(chance, chance.sample("xyz", 2), depth + 1)
        case "array":
            return {"type": "array", "items": {"type": "int32", "optional": False}}, [1, 2]
        case "map":
            keys, values = ({"type": each, "optional": False} for each in ("string", "int64"))
            return {"type": "map", "keys": keys, "values": values}, {"k": 5}
        case "Decimal":
            number = chance.randint(-(10**9), 10**9)
            data = number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
            shortest = int.from_bytes(data, "big", signed=True)
            size = ((shortest if shortest >= 0 else ~shortest).bit_length() + 8) // 8
            data = number.to_bytes(size, "big", signed=True)
            parameters = {"scale": str(chance.randint(0, 4))}
            schema = {"type": "bytes", "name": f"{LOGICAL}Decimal", "version": 1}
            return {**schema, "parameters": parameters}, b64encode(data).decode()
        case "Date":
            schema = {"type": "int32", "name": f"{LOGICAL}Date", "version": 1}
            return schema, chance.randint(-3_000, 30_000)
        case "Time":
            schema = {"type": "int32", "name": f"{LOGICAL}Time", "version": 1}
            return schema, chance.randint(0, 86_399_999)
    schema = {"type": "int64", "name": f"{LOGICAL}Timestamp", "version": 1}
    return schema, chance.randint(-(10**11), 2 * 10**12)


_SCALARS: Final = [
    *("int8", "int16", "int32", "int64", "float", "double", "boolean", "string", "bytes"),
    *("Decimal", "Date", "Time", "Timestamp"),
]

# ------------------------------------------------------------------------------ transforms

Made = tuple[str, dict[str, str]]


def _side(chance: Random) -> str:
    return "$Value" if chance.random() < 0.85 else "$Key"


def _some(chance: Random, fields: Sequence[str]) -> str:
    return chance.choice([*fields, *fields, "missing"])


def _cast(chance: Random, fields: Sequence[str]) -> Made:
    if chance.random() < 0.1:
        return f"Cast{_side(chance)}", {"spec": chance.choice(CASTS)}
    cast = chance.sample(list(fields), chance.randint(1, len(fields)))
    return f"Cast{_side(chance)}", {
        "spec": ",".join(f"{each}:{chance.choice([*CASTS, 'INT32 '])}" for each in cast)
    }


def _extract(chance: Random, fields: Sequence[str]) -> Made:
    if chance.random() < 0.5:
        path = chance.choice([f"{fields[0]}.x", f"{fields[0]}.x.y", fields[0], *PATHS])
        config = {"field": path, "field.syntax.version": "V2"}
        return f"ExtractField{_side(chance)}", config
    return f"ExtractField{_side(chance)}", {"field": _some(chance, fields)}


def _insert(chance: Random, fields: Sequence[str]) -> Made:
    names = [f"{each}.field" for each in ("topic", "partition", "offset", "timestamp")]
    config = {name: f"n{at}{chance.choice(['', '!', '?'])}" for at, name in enumerate(names)}
    config = {name: config[name] for name in chance.sample(names, chance.randint(0, 4))}
    if chance.random() < 0.5:
        config.update(
            {"static.field": chance.choice(["s", "s!", fields[0]]), "static.value": "text"}
        )
    return f"InsertField{_side(chance)}", config


def _replace(chance: Random, fields: Sequence[str]) -> Made:
    config = {}
    if chance.random() < 0.4:
        config["exclude"] = _some(chance, fields)
    if chance.random() < 0.4:
        config["include"] = ",".join(fields[:2])
    if chance.random() < 0.5:
        config["renames"] = f"{fields[0]}:new"
    return f"ReplaceField{_side(chance)}", config


def _mask(chance: Random, fields: Sequence[str]) -> Made:
    config = {"fields": ",".join(chance.sample(list(fields), chance.randint(1, len(fields))))}
    if chance.random() < 0.5:
        config["replacement"] = chance.choice(["0", "-1", "12", "x", "3.5", " 7 ", "70000", ""])
    return f"MaskField{_side(chance)}", config


def _metadata(chance: Random, _: Sequence[str]) -> Made:
    return f"SetSchemaMetadata{_side(chance)}", chance.choice(
        [
            {"schema.name": "n"},
            {"schema.version": "7"},
            {"schema.name": "n", "schema.version": "0"},
            {},
        ]
    )


def _header_from(chance: Random, fields: Sequence[str]) -> Made:
    named = chance.sample(list(fields), chance.randint(1, min(2, len(fields))))
    if chance.random() < 0.1:
        named[0] = "missing"
    config = {
        "fields": ",".join(named),
        "headers": ",".join("hi"[: len(named)]) if chance.random() < 0.95 else "h,i,j",
        "operation": chance.choice(["move", "copy"]),
    }
    return f"HeaderFrom{_side(chance)}", config


def _insert_header(chance: Random, _: Sequence[str]) -> Made:
    literals = [
        "1",
        "true",
        "text",
        "1.50",
        "null",
        "1e3",
        "-0.1",
        '{"a": 1}',
        "[1, 2]",
        "300",
        "é",
        *("9223372036854775807", "9223372036854775808", "1e400", "1e40", "-1e-60", "1.0", "0.0"),
        *("16777217.5", "false", '{"a": [1,  "x"]}', "[1, ", "{}", '"q"', " 1", "2024-05-06", ""),
    ]
    return "InsertHeader", {"header": "h", "value.literal": chance.choice(literals)}


def _time(chance: Random, fields: Sequence[str]) -> Made:
    config = {"target.type": chance.choice(["string", "unix", "Date", "Time", "Timestamp"])}
    config["format"] = chance.choice(FORMATS)
    config["unix.precision"] = chance.choice(
        ["seconds", "milliseconds", "microseconds", "nanoseconds"]
    )
    if chance.random() < 0.9:
        config["field"] = _some(chance, fields)
    return f"TimestampConverter{_side(chance)}", config


def _regex(chance: Random, _: Sequence[str]) -> Made:
    regex = chance.choice([r"(\w+)\.(\w+)", "orders", r"(?<n>.*)-(\d)", "o.*", "(.)(.*)"])
    to = chance.choice(["x", "$1", "$2-$1", "$12", "${n}", r"\$1", "a$1b"])
    return "RegexRouter", {"regex": regex, "replacement": to}


def _timestamp_router(chance: Random, _: Sequence[str]) -> Made:
    topic = chance.choice(["${topic}-${timestamp}", "x-${timestamp}", "${topic}"])
    return "TimestampRouter", {"topic.format": topic, "timestamp.format": chance.choice(FORMATS)}


def _predicate(chance: Random, _: Sequence[str]) -> Made:
    return chance.choice(
        [
            ("predicates.TopicNameMatches", {"pattern": chance.choice(["orders", "o.*", ".*s"])}),
            ("predicates.HasHeaderKey", {"name": chance.choice("hik")}),
            ("predicates.RecordIsTombstone", {}),
        ]
    )


_KINDS: Final[Sequence[Callable[[Random, Sequence[str]], Made]]] = (
    *(_cast, _extract, _insert, _replace, _mask, _metadata, _header_from, _insert_header, _time),
    *(_regex, _timestamp_router, _predicate),
    lambda chance, _: (f"HoistField{_side(chance)}", {"field": "h"}),
    lambda chance, _: (f"Flatten{_side(chance)}", {"delimiter": chance.choice([".", "_"])}),
    lambda chance, fields: ("ValueToKey", {"fields": chance.choice([fields[0], ",".join(fields)])}),
    lambda chance, _: ("DropHeaders", {"headers": chance.choice(["h", "h,i", "k"])}),
    lambda _, __: ("Filter", {}),
)
