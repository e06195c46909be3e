"""Random changes for Debezium's ExtractNewRecordState: envelopes, tombstones, and other records."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

Json = Any
CLASS: Final = "io.debezium.transforms.ExtractNewRecordState"
_ROW: Final = (
    {"field": "id", "type": "int32", "optional": False},
    {"field": "item", "type": "string", "optional": True},
    {"field": "day", "type": "int32", "optional": True, "name": "io.debezium.time.Date",
     "version": 1},
)  # fmt: skip
_SOURCE: Final = (
    {"field": "table", "type": "string", "optional": False},
    {"field": "lsn", "type": "int64", "optional": True},
    {"field": "ts_ms", "type": "int64", "optional": False},
)
_FIELDS: Final = ("op", "table", "lsn", "source.lsn", "source.ts_ms", "ts_ms", "lsn:at", "no")


def unwrap(chance: Random) -> tuple[dict[str, str], Json, Json]:
    """Return settings, a key and a value, each with its schema or None."""
    config = {}
    if chance.random() < 0.7:
        config["delete.tombstone.handling.mode"] = chance.choice(
            ["drop", "tombstone", "rewrite", "rewrite-with-tombstone"]
        )
    else:
        config["delete.handling.mode"] = chance.choice(["drop", "none", "rewrite"])
        config["drop.tombstones"] = chance.choice(["true", "false"])
    for name in ("add.fields", "add.headers"):
        if chance.random() < 0.6:
            config[name] = ",".join(chance.sample(_FIELDS, chance.randint(1, 3)))
        if chance.random() < 0.2:
            config[f"{name}.prefix"] = chance.choice(["", "x_"])
    if chance.random() < 0.2:
        config["route.by.field"] = "item"
    key = _whole([_ROW[0]], "p.s.t.Key", {"id": 1})
    return config, key, None if chance.random() < 0.1 else _envelope(chance)


def _envelope(chance: Random) -> Json:
    op = chance.choice("cudr")
    row = {"type": "struct", "fields": [*_ROW], "optional": True, "name": "p.s.t.Value"}
    source = {"type": "struct", "fields": [*_SOURCE], "optional": False, "name": "io.Source"}
    fields = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        {**source, "field": "source"},
        {"field": "op", "type": "string", "optional": False},
        {"field": "ts_ms", "type": "int64", "optional": True},
    ]
    value = {
        "before": _row(chance) if op in "ud" else None,
        "after": None if op == "d" else _row(chance),
        "source": {"table": "t", "lsn": chance.choice([None, 7]), "ts_ms": 5},
        "op": op,
        "ts_ms": chance.choice([None, 9]),
    }
    name = chance.choices(["p.s.t.Envelope", "p.s.t.Other"], [9, 1])[0]
    return _whole(fields, name, value)


def _row(chance: Random) -> Json:
    return {
        "id": chance.randint(0, 9),
        "item": chance.choice([None, "", "book", "é"]),
        "day": chance.choice([None, 20_000]),
    }


def _whole(fields: list[Json], name: str, payload: Json) -> Json:
    schema = {"type": "struct", "fields": fields, "optional": False, "name": name}
    return json.dumps({"schema": schema, "payload": payload})
