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
        {},
        optional={name: st.sampled_from([None, *given]) for name, given in WANTED.items()},
    )
)


@given(_ROWS)
def test_each_value_is_as_the_schema_says(rows: list[dict[str, object]]) -> None:
    wanted = [
        {name: None if value is None else WANTED[name][value] for name, value in row.items()}  # type: ignore[index]
        for row in rows
    ]
    read_values(rows, value_readers(SCHEMA))
    assert rows == wanted
    kinds = [[*map(type, row.values())] for row in rows]
    assert kinds == [[*map(type, row.values())] for row in wanted]
