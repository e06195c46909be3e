"""Schemas that change while a sink writes: rows read back as they were written, or nothing is."""

from __future__ import annotations

import json
import os
import random
from base64 import b64decode
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from streamlog.connect import ConnectError, Field, Schema
from streamlog.connect.row_schema import decimal_schema
from streamlog.connectors.sql import SqlSink
from streamlog.connectors.sql.database import open_database
from streamlog.connectors.sql.sql_sink_task import SqlWriter
from streamlog.errors import ConfigError
from streamlog.replace import replace
from tests.connectors.sql.databases import KINDS, PLACE, batch, connected, rows, run, url_of

is_thorough = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS, PARTS = (12, 8) if is_thorough else (1, 1)
"""Histories in one database, and databases of a kind."""
INT32, INT64 = Schema("int32"), Schema("int64")
TEXT, SINGLE, DOUBLE = Schema("string"), Schema("float32"), Schema("float64")
MOMENT, DAY = Schema("int64", logical="Timestamp"), Schema("int32", logical="Date")
Row = Mapping[str, Any]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


def struct(**fields: Schema) -> Schema:
    return Schema("struct", fields=tuple(Field(*each) for each in fields.items()))


def optional(schema: Schema) -> Schema:
    return replace(schema, optional=True)


class Lives:
    """Flushes of one sink, each a life of its own: a restart must change nothing."""

    def __init__(self, url: str, table: str = "orders", **settings: Any) -> None:
        usual = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": ("id",)}
        evolving = {"auto_create": True, "auto_evolve": True}
        self.sink = SqlSink(url=url, table=table, **{**usual, **evolving, **settings})
        self.offset = 0

    def flush(self, *batches: tuple[Schema | None, list[Row]]) -> None:
        writer = SqlWriter(self.sink, f"{self.sink.table}-out", open_database(*self.sink.login))
        writer.connect()
        try:
            writer.recover([PLACE])
            writer.begin()
            offset = self.offset
            for schema, values in batches:
                pairs = [(None, value) for value in values]
                writer.write(batch(pairs, first=offset, schema=schema))
                offset += len(values)
            writer.commit({PLACE: offset})
            self.offset = offset
        finally:
            writer.close()


def ask(url: str, *names: str) -> list[tuple[object, ...]]:
    return rows(url, f"SELECT {', '.join(names)} FROM orders ORDER BY id")  # noqa: S608 - ours


def test_a_field_that_is_gone_or_null_needs_no_value(url: str) -> None:
    lives = Lives(url)
    lives.flush((struct(id=INT64, item=TEXT, price=INT64), [{"id": 1, "item": "a", "price": 5}]))
    gone = struct(item=TEXT, id=INT64), [{"item": "b", "id": 2}]
    null = struct(id=INT64, item=optional(TEXT)), [{"id": 3, "item": None}]
    if url.startswith("sqlite"):
        with pytest.raises(
            ConfigError, match=r"column price of table orders may not be null .*new"
        ):
            lives.flush(gone)
        with pytest.raises(ConfigError):
            lives.flush(null)
        return
    lives.flush(gone, null)
    # An upsert leaves a column as it is that the record has no field for.
    lives.flush((struct(id=INT64, item=TEXT), [{"id": 1, "item": "c"}]))
    lives.flush((struct(id=INT64, item=TEXT, price=INT64), [{"id": 4, "item": "d", "price": 6}]))
    found = ask(url, "id", "item", "price")
    assert found == [(1, "c", 5), (2, "b", None), (3, None, None), (4, "d", 6)]


def test_a_column_of_an_operator_is_only_changed_if_it_may_be(url: str) -> None:
    run(url, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR(3) NOT NULL, "
        "price INTEGER NOT NULL, kind VARCHAR(9) DEFAULT 'x' NOT NULL)")  # fmt: skip
    fixed = Lives(url, auto_evolve=False)
    way = "create the table anew" if url.startswith("sqlite") else r"let it be null \(ALTER TABLE"
    with pytest.raises(ConfigError, match=f"column price of table orders may not .*{way}.*auto_ev"):
        fixed.flush((struct(id=INT64, item=TEXT), [{"id": 1, "item": "a"}]))
    whole = struct(id=INT64, item=TEXT, price=INT64)
    fixed.flush((whole, [{"id": 1, "item": "abc", "price": 2**31 - 1}]))
    long = whole, [{"id": 2, "item": "abcd", "price": 2**31}]
    if not url.startswith("sqlite"):
        with pytest.raises(ConnectError, match="table orders") as caught:
            fixed.flush(long)
        assert not isinstance(caught.value, ConfigError)
    Lives.flush(evolving := Lives(url, offsets_table="others"), long)
    assert evolving.offset == 1
    assert ask(url, "id", "item", "price", "kind")[-1] == (2, "abcd", 2**31, "x")


def test_what_is_not_mentioned_survives_a_change_in_mariadb(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of("mariadb", request, tmp_path)
    run(url, "CREATE TABLE orders (id INT PRIMARY KEY, "
        "price INT NOT NULL DEFAULT 7 COMMENT 'of, NOT NULL %% it''s', "
        "kind ENUM('a NOT NULL', 'b') CHARACTER SET latin1 NOT NULL)")  # fmt: skip
    schema = struct(id=INT64, price=optional(INT64))
    Lives(url).flush((schema, [{"id": 1, "price": 2**40}, {"id": 2, "price": None}]))
    (_, text), *_ = rows(url, "SHOW CREATE TABLE orders")
    assert "`price` bigint(20) DEFAULT 7 COMMENT 'of, NOT NULL % it''s'" in str(text)
    assert "`kind` enum('a NOT NULL','b') DEFAULT NULL" in str(text)


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        (INT64, TEXT, "x7"),
        (INT64, TEXT, "007"),
        (TEXT, Schema("bytes"), b"ab"),
        (MOMENT, INT64, 5),
        (DAY, MOMENT, datetime(2026, 1, 2, 3, tzinfo=UTC)),
        (DOUBLE, Schema("array", items=TEXT), ["a"]),
    ],
)
def test_a_type_that_the_column_does_not_hold_is_named(
    url: str, before: Schema, after: Schema, value: object
) -> None:
    if url.startswith("sqlite") and after.kind == "bytes":
        pytest.skip("SQLite keeps bytes in any column")
    lives = Lives(url)
    lives.flush((struct(id=INT64, price=optional(before)), [{"id": 1, "price": None}]))
    named = f"column price of table orders is .*the field, {after.logical or after.kind}: change"
    with pytest.raises(ConfigError, match=named):
        lives.flush((struct(id=INT64, price=after), [{"id": 2, "price": value}]))
    assert ask(url, "id") == [(1,)]


def test_a_value_that_does_not_fit_names_its_column(url: str) -> None:
    run(url, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR(3) NOT NULL, day DATE)")
    for bad in ({"item": None}, {"item": "a", "day": "no day"}):
        if url.startswith("sqlite") and "day" in bad:
            continue
        name = [*bad][-1]
        with pytest.raises(ConnectError, match=f"table orders, column {name} \\("):
            Lives(url, auto_evolve=False).flush((None, [{"id": 1, **bad}]))


FAMILIES: list[tuple[Schema, list[Any]]] = [
    (Schema("int16"), [0, -(2**15), 7]),
    (INT32, [0, 2**31 - 1, -7]),
    (INT64, [2**63 - 1, -(2**63), 2**53 + 1, 8]),
    (SINGLE, [0.5, -3.0]),
    (DOUBLE, [0.1, -1e200, 4.0]),
    (TEXT, ["", "x7", "007", "1.50", "1.00005", "ü%s\\n\t" * 99]),
    (Schema("bytes"), [b"", b"\x00\xff", b"12"]),
    (Schema("boolean"), [True, False]),
    (decimal_schema(6, 2), [Decimal("0.00"), Decimal("-9999.99")]),
    (decimal_schema(12, 4), [Decimal("0.0001"), Decimal("99999999.9999")]),
    (DAY, [date(2026, 1, 2), date(1970, 1, 1)]),
    (MOMENT, [datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)]),
    (Schema("array", items=TEXT), [[], ["a", 'b"\\']]),
]


BOOLEANS = {True: {"true", "t", "1", "1.0"}, False: {"false", "f", "0", "0.0"}}


def is_same(found: Any, written: Any) -> bool:
    """Whether a column has a value, whatever type the column has."""
    try:
        # A column of lists is JSON, which has decimals and times as text.
        parsed = json.loads(found) if isinstance(found, str) else found
    except ValueError:
        parsed = found
    if isinstance(written, bytes) and isinstance(parsed, str):
        return b64decode(parsed) == written
    return is_equal(found, written) or (type(parsed) is str and is_equal(parsed, written))


def is_equal(found: Any, written: Any) -> bool:
    match written:
        case None:
            same = found is None
        case list():
            same = (json.loads(found) if isinstance(found, str) else found) == written
        case bytes():
            same = isinstance(found, bytes | memoryview) and bytes(found) == written
        case str():
            # A column of decimals takes a text as the number that it spells.
            is_number = isinstance(found, Decimal)
            same = number(written) == found if is_number else found == written
            # MariaDB's columns of bytes take a text as its UTF-8.
            same = same or found == written.encode()
        case bool():
            same = str(found).lower() in BOOLEANS[written]
        case date():
            # A column of lists is JSON, which has times as text.
            when = datetime.fromisoformat(str(found).strip('"')).replace(tzinfo=None)
            same = when == datetime.fromisoformat(str(written)).replace(tzinfo=None)
        case float():
            # The decimal of a float is its shortest text.
            same = number(found) == Decimal(repr(written)) or found == written
        case _:
            same = number(found) == written or found == written
    return bool(same)


def number(found: Any) -> Decimal | None:
    try:
        return Decimal(str(found))
    except InvalidOperation:
        return None


class Evolution:
    """Schemas and rows at random, with what may be refused."""

    def __init__(self, seed: int, url: str) -> None:
        self.random = random.Random(seed)
        self.is_sqlite = url.startswith("sqlite")
        self.kinds: dict[str, set[Schema]] = {}
        """The types that each column has had."""
        self.required: set[str] = set()
        """The columns that were created as NOT NULL."""
        self.ids = count()

    def schemas(self) -> Iterator[dict[str, tuple[Schema, list[Any]]]]:
        shape = {name: self.field() for name in self.random.sample("abcd", 2)}
        while True:
            yield dict(self.random.sample([*shape.items()], len(shape)))
            for name in self.random.sample("abcd", 2):
                if self.random.random() < 0.3:
                    shape.pop(name, None)
                elif name in shape and self.random.random() < 0.5:
                    schema, values = shape[name]
                    shape[name] = replace(schema, optional=not schema.optional), values
                else:
                    shape[name] = self.field()

    def field(self) -> tuple[Schema, list[Any]]:
        schema, values = self.random.choice(FAMILIES)
        # Mostly optional, as a required one can't be added to a table.
        return replace(schema, optional=self.random.random() < 0.7), values

    def row(self, shape: Mapping[str, tuple[Schema, list[Any]]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, (schema, values) in shape.items():
            is_null = schema.optional and self.random.random() < 0.3
            found[name] = None if is_null else self.random.choice(values)
        return {"id": next(self.ids), **found}

    def must_be_taken(self, shape: Mapping[str, tuple[Schema, list[Any]]]) -> bool:
        """Whether no column changes its type, and none comes that rows must have a value for."""
        if self.is_sqlite and any(name not in shape or shape[name][0].optional
                                  for name in self.required):  # fmt: skip
            return False
        return all(
            self.kinds[name] == {replace(schema, optional=False)}
            if name in self.kinds
            else schema.optional or not self.kinds
            for name, (schema, _) in shape.items()
        )

    def note(self, shape: Mapping[str, tuple[Schema, list[Any]]]) -> None:
        for name, (schema, _) in shape.items():
            if not self.kinds.get("id") and not schema.optional:
                self.required.add(name)
            self.kinds.setdefault(name, set()).add(replace(schema, optional=False))
        self.kinds["id"] = {INT64}


@pytest.mark.parametrize("part", range(PARTS))
def test_rows_of_any_history_of_schemas_read_back_as_they_were_written(url: str, part: int) -> None:
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        evolve(seed, url)


def evolve(seed: int, url: str) -> None:
    table = f"orders_{seed}"
    evolution, lives, written = Evolution(seed, url), Lives(url, table), list[Row]()
    for _, shape in zip(range(8), evolution.schemas(), strict=False):
        some = [evolution.row(shape) for _ in range(2)]
        schema = struct(id=INT64, **{name: found for name, (found, _) in shape.items()})
        try:
            lives.flush((schema, some))
        except (ConnectError, ConfigError) as error:
            if evolution.must_be_taken(shape):
                raise AssertionError(f"seed {seed} refuses {shape}") from error
        else:
            written += some
            evolution.note(shape)
    check(url, table, written, (seed, evolution.kinds))


def check(url: str, table: str, written: list[Row], history: object) -> None:
    found = named_rows(url, f"SELECT * FROM {table} ORDER BY id") if written else []  # noqa: S608
    assert len(found) == len(written)
    for row, wanted in zip(found, written, strict=True):
        assert row.keys() >= wanted.keys()
        for name, value in row.items():
            assert is_same(value, wanted.get(name)), (name, value, wanted, history)


def named_rows(url: str, statement: str) -> list[dict[str, Any]]:
    database = connected(url)
    try:
        cursor = database.execute(statement)
        names = [each[0] for each in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    finally:
        database.close()
