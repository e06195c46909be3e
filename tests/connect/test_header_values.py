"""Header values, as Kafka Connect's SimpleHeaderConverter has shown them.

Thousands more by Apache's own class are in `test_apache_values` and `make oracle-connect-values`.
"""

from __future__ import annotations

from datetime import time
from decimal import Decimal

import pytest

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.header_values import header_bytes
from streamlog.connect.java_values import single
from streamlog.connect.row_schema import Field, Schema
from streamlog.serdes.erased_types import JsonValue

STRUCT = Schema("struct", fields=(Field("a", Schema("float32")), Field("b", Schema("int32"), 7)))
BY_NUMBER = Schema("map", keys=Schema("int64"), items=Schema("int16"))


@pytest.mark.parametrize(
    ("value", "schema", "text"),
    [
        ('a"b', None, 'a"b'), (b"ab", None, "YWI="), (['a"\\b'], None, '["a\\"\\\\b"]'),
        ([b"ab"], None, '["YWI="]'), ({"k": None}, None, '{"k":null}'), ((1, 2.5), None, "[1,2.5]"),
        ({"a": single(0.1), "b": None}, STRUCT, '{"a":0.1,"b":7}'),
        ([single(0.1)], Schema("array", items=Schema("float32")), "[0.1]"),
        ({"k": single(0.1)}, Schema("map", items=Schema("float32")), '{"k":0.1}'),
        (Decimal("1E+2"), None, "1E+2"), (True, None, "true"), (time(1), None, "01:00:00.000Z"),
    ],
)  # fmt: skip
def test_headers_have_the_texts_of_kafka_connect(
    value: object, schema: Schema | None, text: str
) -> None:
    assert header_bytes(value, schema) == text.encode()


def test_a_null_in_a_header_is_null() -> None:
    assert header_bytes(None) is None


@pytest.mark.parametrize(
    ("schema", "default", "text"),
    [
        (Schema("float32"), 1e300, "Infinity"), (Schema("float32"), -128, "-128.0"),
        (Schema("int64", logical="Timestamp"), 0, "00:00:00.000Z"),
        (Schema("int64", logical="Timestamp"), 90_000_000, "1970-01-02T01:00:00.000Z"),
        (Schema("bytes"), "YWI=", '"YWI="'),
        (BY_NUMBER, [[9223372036854775807, -1]], "{9223372036854775807:-1}"),
    ],
)  # fmt: skip
def test_a_default_is_a_value_of_its_type(schema: Schema, default: JsonValue, text: str) -> None:
    row = Schema("struct", fields=(Field("f", schema, default),))
    assert header_bytes({"f": None}, row) == f'{{"f":{text}}}'.encode()


def test_a_default_that_is_none_of_its_type_is_refused_where_it_is_needed() -> None:
    row = Schema("struct", fields=(Field("f", BY_NUMBER, ["int9"]),))
    assert header_bytes({"f": {1: 2}}, row) == b'{"f":{1:2}}'
    with pytest.raises(BadRecord, match="invalid map entry"):
        header_bytes({"f": None}, row)
