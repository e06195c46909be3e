"""Values of PostgreSQL's text, held against what psycopg makes of the same text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.postgres_cdc import PostgresCdc
from streamlog.connectors.postgres_cdc.row_values import TypeCatalogue, parse_array
from streamlog.connectors.postgres_cdc.wal_stream import connection_text
from tests.servers.postgres import PostgresServer

BUILT_IN = TypeCatalogue()
VALUES: dict[str, list[object]] = {
    "bool": [True, False],
    "int2": [-32768, 7],
    "int4": [2**31 - 1],
    "int8": [-(2**63)],
    "float4": [0.5, float("inf")],
    "float8": [0.1, 1e300, float("-inf")],
    "numeric": [Decimal("12.340"), Decimal("1e-20"), Decimal(10) ** 30],
    "text": ["", "äöü\n\t\\", "NULL"],
    "varchar": ["x"],
    "bpchar": ["a"],
    "bytea": [b"", b"\x00\xff\\"],
    "date": [date(1, 1, 1), date(9999, 12, 31)],
    "time": [time(23, 59, 59, 999_999)],
    "timestamp": [datetime(2026, 1, 2, 3, 4, 5, 6)],  # noqa: DTZ001 - a type without a zone
    "timestamptz": [datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)],
    "uuid": [UUID(int=7)],
    "jsonb": [{"a": [1, None, "x"]}, [], "text"],
    "json": [{"a": 1.5}],
}


@pytest.fixture(scope="module")
def session(postgres: PostgresServer) -> Iterator[psycopg.Connection]:
    url = postgres.url(postgres.create_database())
    text = connection_text(PostgresCdc(url=url, tables=("public.t",)))
    connection = psycopg.connect(text, autocommit=True)
    yield connection
    connection.close()


def raw(session: psycopg.Connection, query: str, *values: object) -> tuple[bytes, int, int]:
    result = session.execute(query, values).pgresult
    assert result is not None
    value = result.get_value(0, 0)
    assert value is not None
    return bytes(value), result.ftype(0), result.fmod(0)


@pytest.mark.parametrize("kind", VALUES)
def test_values_are_those_of_python(session: psycopg.Connection, kind: str) -> None:
    for value in VALUES[kind]:
        given_value = psycopg.types.json.Jsonb(value) if kind.startswith("json") else value
        text, oid, _ = raw(session, f"SELECT %s::{kind}", given_value)
        assert BUILT_IN.decoder(oid)(text) == value
        if not kind.startswith("json"):
            text, oid, _ = raw(session, f"SELECT %s::{kind}[]", [value, None, value])
            assert BUILT_IN.decoder(oid)(text) == [value, None, value]


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("'infinity'::timestamptz", "infinity"),
        ("'0044-03-15 BC'::date", "0044-03-15 BC"),
        ("'NaN'::numeric", "NaN"),
        ("'1 day 2 s'::interval", "P1DT2S"),
        ("'10.0.0.0/8'::cidr", "10.0.0.0/8"),
        ("'[1,5)'::int4range", "[1,5)"),
        ("point(1, 2)", "(1,2)"),
    ],
)
def test_what_python_can_not_hold_stays_text(
    session: psycopg.Connection, literal: str, text: str
) -> None:
    found, oid, _ = raw(session, f"SELECT {literal}")
    assert str(BUILT_IN.decoder(oid)(found)) == text


def test_nested_arrays_and_bounds(session: psycopg.Connection) -> None:
    for literal, value in (
        ("'{{1,2},{3,NULL}}'::int[]", [[1, 2], [3, None]]),
        ("'[0:1]={7,8}'::int[]", [7, 8]),
        ("'{}'::int[]", []),
        ("""'{"a,b","{","\\"","NULL",NULL,""}'::text[]""", ["a,b", "{", '"', "NULL", None, ""]),
    ):
        text, oid, _ = raw(session, f"SELECT {literal}")
        assert BUILT_IN.decoder(oid)(text) == value


@given(
    st.lists(
        st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
        max_size=5,
    )
)
def test_arrays_of_text_survive(values: list[str | None]) -> None:
    quoted = [
        "NULL" if each is None else '"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for each in values
    ]
    assert parse_array("{" + ",".join(quoted) + "}", bytes.decode) == values


@given(st.text(alphabet='{},"\\[]=aN ', max_size=20))
def test_any_text_is_an_array_or_refused(text: str) -> None:
    try:
        found = parse_array(text, bytes.decode)
    except ValueError:
        return
    assert isinstance(found, list)


def test_types_of_the_database(session: psycopg.Connection) -> None:
    from streamlog.connectors.postgres_cdc.server_checks import read_types  # noqa: PLC0415

    session.execute("CREATE TYPE colour AS ENUM ('red', 'green')")
    session.execute("CREATE DOMAIN price AS numeric(9, 2)")
    session.execute("CREATE DOMAIN dear AS price")
    catalogue = read_types(session)
    for literal, value in (
        ("'red'::colour", "red"),
        ("'{red,green}'::colour[]", ["red", "green"]),
        ("'{1.50}'::price[]", [Decimal("1.50")]),
    ):
        text, oid, _ = raw(session, f"SELECT {literal}")
        assert catalogue.knows(oid)
        assert catalogue.decoder(oid)(text) == value
    oid = session.execute("SELECT 'dear'::regtype::oid").fetchall()[0][0]
    assert catalogue.decoder(oid)(b"2.50") == Decimal("2.50")
    assert catalogue.schema(oid, -1, optional=True).logical == "Decimal"


def test_schemas_of_columns(session: psycopg.Connection) -> None:
    _, oid, modifier = raw(session, "SELECT 1.5::numeric(9, 2)")
    schema = BUILT_IN.schema(oid, modifier, optional=False)
    assert schema.parameters == (("scale", "2"), ("connect.decimal.precision", "9"))
    found = BUILT_IN.schema(1007, -1, optional=True)
    assert (found.kind, found.optional, found.items and found.items.kind) == (
        "array", True, "int32",
    )  # fmt: skip
    assert BUILT_IN.schema(600, -1, optional=True).kind == "string"
    assert not BUILT_IN.knows(600)
