"""What drivers give becomes what the schema says; what is right already is not touched."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from ipaddress import ip_address
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import Field, Schema
from streamlog.connectors.sql.column_values import read_values, value_readers
from streamlog.serdes.named_columns import NamedColumns

SCHEMA = Schema(
    "struct",
    fields=(
        Field("paid", Schema("boolean", optional=True)),
        Field("note", Schema("string", optional=True)),
        Field("day", Schema("int32", logical="Date", optional=True)),
        Field("at", Schema("int64", logical="Timestamp", optional=True)),
        Field("ref", Schema("string", logical="uuid", optional=True)),
        Field("price", Schema("string", logical="Decimal", optional=True)),
    ),
)
DAY, AT, REF = date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), UUID(int=5)
ADDRESS = ip_address("10.0.0.1")
WANTED = {
    "paid": {1: True, 0: False, 7: 7},
    "note": {"a": "a", b"b": b"b", 3: 3, 1.5: 1.5, ADDRESS: "10.0.0.1"},
    "day": {"2026-01-02": DAY, DAY: DAY, "never": "never"},
    "at": {"2026-01-02T03:04:05": AT, AT: AT, "x": "x"},
    "ref": {str(REF): REF, REF: REF, "x": "x"},
    "price": {"1.50": Decimal("1.50"), Decimal(2): Decimal(2), 3: Decimal(3), "x": "x"},
}
"""Of each column, what drivers give and what it is."""
_ROWS = st.lists(
    st.fixed_dictionaries(
        {name: st.sampled_from([None, *given]) for name, given in WANTED.items()},
    )
)


@given(_ROWS, st.sets(st.sampled_from([*WANTED]), min_size=1))
def test_each_value_is_as_the_schema_says(rows: list[dict[str, object]], names: set[str]) -> None:
    """Whatever columns a query has of those that the schema knows."""
    wanted = [
        {name: None if row[name] is None else WANTED[name][row[name]] for name in names}  # type: ignore[index]
        for row in rows
    ]
    given = NamedColumns.of_columns({name: [row[name] for row in rows] for name in names})
    found = [*read_values(given, value_readers(SCHEMA))]
    assert found == wanted
    kinds = [[*map(type, row.values())] for row in found]
    assert kinds == [[*map(type, row.values())] for row in wanted]
