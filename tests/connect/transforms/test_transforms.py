"""Transforms in code: what Kafka says of nulls with defaults, and what is refused.

`test_apache_cases.py` has the answers of Kafka's own classes; here is what those can't show.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.row_schema import Field, Schema
from streamlog.connect.schema_record import SchemaRecord
from streamlog.connect.transforms import (
    Cast,
    ExtractField,
    Flatten,
    HeaderFrom,
    HoistField,
    InsertField,
    InsertHeader,
    MaskField,
    RegexRouter,
    ReplaceField,
    SetSchemaMetadata,
    TimestampConverter,
    TimestampRouter,
    ValueToKey,
)
from streamlog.connect.transforms.key_or_value import KeyOrValue, split_path
from streamlog.errors import ConfigError
from streamlog.record import Record
from streamlog.replace import replace

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NUMBER, TEXT = Schema("int32", optional=True), Schema("string", optional=True)
ROW = Schema("struct", fields=(Field("a", NUMBER, default=7), Field("b", TEXT)), optional=True)
Transform = Callable[[Any], Any]


def of_row(value: object, schema: Schema | None = ROW) -> SchemaRecord[Any, Any]:
    return SchemaRecord("k", value, NOW, (), "t", 3, 9, key_schema=None, value_schema=schema)


NULLS: list[tuple[Callable[..., Transform], Callable[[Any], object]]] = [
    (lambda **more: ExtractField(field="a", **more), lambda made: made.value),
    (lambda **more: ReplaceField(exclude=("b",), **more), lambda made: made.value["a"]),
    (lambda **more: ValueToKey(fields=("a",), **more), lambda made: made.key["a"]),
    (lambda **more: SetSchemaMetadata(schema_name="n", **more), lambda made: made.value["a"]),
    (lambda **more: Cast(spec=("b:string",), **more), lambda made: made.value["a"]),
    (lambda **more: Cast(spec=("a:int64",), **more), lambda made: made.value["a"]),
    (lambda **more: MaskField(fields=("b",), **more), lambda made: made.value["a"]),
    (
        lambda **more: HeaderFrom(fields=("b",), headers=("h",), operation="move", **more),
        lambda made: made.value["a"],
    ),
    (
        lambda **more: InsertField(static_field="s", static_value="t", **more),
        lambda made: made.value["a"],
    ),
    (
        lambda **more: TimestampConverter(target_type="unix", field="c", **more),
        lambda made: made.value["a"],
    ),
]


@pytest.mark.parametrize("number", range(len(NULLS)))
def test_a_null_becomes_the_default_of_its_field_unless_it_has_to_stay(number: int) -> None:
    make, found = NULLS[number]
    given_row = {"a": None, "b": "x"}
    assert found(make()(of_row(given_row))) == 7
    assert found(make(replace_null_with_default=True)(of_row(given_row))) == 7
    assert found(make(replace_null_with_default=False)(of_row(given_row))) is None
    # A value that is there stays, and so does a null of a field without a default.
    assert found(make()(of_row({"a": 1, "b": None}))) == 1
    assert given_row == {"a": None, "b": "x"}, "the record of before is left as it was"


@pytest.mark.parametrize("replaced", [True, False])
def test_a_null_that_is_masked_or_put_into_a_header_is_the_default_first(replaced: bool) -> None:
    masked = MaskField(fields=("a",), replacement="5", replace_null_with_default=replaced)
    made: Any = masked(of_row({"a": None, "b": "x"}))
    assert made.value == {"a": 5 if replaced else None, "b": "x"}
    copied = HeaderFrom(
        fields=("a",), headers=("h",), operation="copy", replace_null_with_default=replaced
    )
    made = copied(of_row({"a": None, "b": "x"}))
    assert made.headers == (("h", b"7" if replaced else None),)
    assert made.value == {"a": None, "b": "x"}


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (InsertField(), "^No field insertion configured$"),
        (InsertField(static_field="a"), r"^static\.value: No value specified"),
        (ReplaceField(renames=("a",)), "^renames: 'a' is no pair OLD:NEW$"),
        (ReplaceField(renames=("a:",)), "^renames: 'a:' is no pair"),
        (ReplaceField(renames=("a:b", "a:b:c")), "^renames: 'a:b:c' is no pair"),
        (SetSchemaMetadata(), "^Neither schema name nor version configured$"),
        (HeaderFrom(fields=("a",), headers=(), operation="move"), "same number of elements"),
        (Cast(spec=()), "^spec: Must specify at least one field"),
        (Cast(spec=("int32", "a:int8")), "ONLY specify a single cast"),
        (Cast(spec=("a:int9",)), "^spec: 'a:int9' is neither a type nor FIELD:TYPE; types"),
        (Cast(spec=(":int8",)), "^spec: ':int8' is neither"),
        (Cast(spec=("a:b:int8",)), "^spec: 'a:b:int8' is neither"),
        (Cast(spec=("bytes",)), "^spec: 'bytes' is neither"),
        (MaskField(fields=()), "^fields: names at least one"),
        (MaskField(fields=("a",), replacement=""), "^replacement: must be non-empty$"),
        (TimestampConverter(target_type="string"), "requires format option"),
        (TimestampConverter(target_type="string", format=" "), "requires format option"),
        (TimestampConverter(target_type="unix", format="b"), "Illegal pattern character 'b'"),
        (RegexRouter(regex="(", replacement="x"), r"^'\(' is no regular expression: missing \)"),
        (TimestampRouter(timestamp_format="b"), "Illegal pattern character 'b'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(transform: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        transform.check()


@pytest.mark.parametrize(
    "transform",
    [
        InsertField(static_field="a", static_value=""),
        InsertField(topic_field="x"),
        InsertField(partition_field="x"),
        InsertField(offset_field="x"),
        InsertField(timestamp_field="x"),
        ReplaceField(renames=("a:b", "c:d")),
        ReplaceField(),
        SetSchemaMetadata(schema_name="n"),
        SetSchemaMetadata(schema_version=0),
        HeaderFrom(fields=("a",), headers=("h",), operation="copy"),
        Cast(spec=("int8",)),
        Cast(spec=("a: INT8 ", "b:string")),
        MaskField(fields=("a",)),
        MaskField(fields=("a",), replacement="x"),
        TimestampConverter(target_type="unix"),
        TimestampConverter(target_type="string", format="yyyy"),
        RegexRouter(regex="(?<name>a)", replacement="${name}"),
        TimestampRouter(),
    ],
)
def test_settings_that_make_sense_are_accepted(transform: Any) -> None:
    transform.check()


SCALARS: Any = Schema("int32")
REFUSED: list[tuple[Transform, Any, str]] = [
    (ExtractField(field="x"), of_row({"a": 1}), "^Unknown field: x$"),
    (
        ExtractField(field="a.b", field_syntax_version="V2"),
        of_row({"a": 5}, None),
        r"nested field access\], found: int$",
    ),
    (
        ExtractField(field="a"),
        of_row(5, None),
        r"Only Map objects.*field extraction\], found: int$",
    ),
    (ExtractField(field="a"), of_row(5, SCALARS), r"Only Struct objects.*field extraction.*int$"),
    (
        InsertField(offset_field="o"),
        SchemaRecord("k", {}, NOW, (), "t", 0, -1),
        "only supported for",
    ),
    (InsertField(topic_field="a"), of_row({"a": 1}), "field name duplication"),
    (InsertField(topic_field="a"), of_row([1], None), r"field insertion\], found: list$"),
    (ReplaceField(renames=("a:b",)), of_row({"a": 1, "b": "x"}), "field name duplication"),
    (ReplaceField(), of_row(5, SCALARS), "field replacement"),
    (ValueToKey(fields=("x",)), of_row({"a": 1}), "^Field does not exist: x$"),
    (
        ValueToKey(fields=("x",)),
        of_row(None),
        "Only Struct objects.*copying fields from value to key",
    ),
    (ValueToKey(fields=("x",)), of_row(None, None), "Only Map objects.*copying fields from value"),
    (
        Flatten(),
        of_row({"m": {}}, Schema("struct", fields=(Field("m", Schema("map")),))),
        r"does not support MAP for record with schemas \(for field m\)",
    ),
    (
        Flatten(delimiter="_"),
        of_row({"a": {"b": object()}}, None),
        r"does not support object for record without schemas \(for field a_b\)",
    ),
    (
        Flatten(delimiter=""),
        of_row(
            {"ab": 1, "a": {"b": 2}},
            Schema(
                "struct",
                fields=(
                    Field("ab", NUMBER),
                    Field("a", Schema("struct", fields=(Field("b", NUMBER),))),
                ),
            ),
        ),
        "field name duplication",
    ),
    (SetSchemaMetadata(schema_name="n"), of_row(5, None), "^Schema required for"),
    (
        HeaderFrom(fields=("x",), headers=("h",), operation="move"),
        of_row({"a": 1}),
        "^Unknown field: x",
    ),
    (HeaderFrom(fields=("x",), headers=("h",), operation="move"), of_row(None), "header move"),
    (Cast(spec=("a:int8",)), of_row(5, SCALARS), "cast types"),
    (Cast(spec=("int8",)), of_row([1], None), "casting to/from ARRAY"),
    (Cast(spec=("int8",)), of_row({}, None), "casting to/from MAP"),
    (Cast(spec=("int8",)), of_row(object(), None), "passed a value of type object"),
    (Cast(spec=("int8",)), of_row(b"x", None), "Unexpected type in Cast transformation: bytes"),
    (Cast(spec=("int8",)), of_row("128", None), r"Value \(128\) was out of range"),
    (Cast(spec=("float32",)), of_row("x", None), "out of range"),
    (MaskField(fields=("a",)), of_row(5, None), "mask fields"),
    (
        MaskField(fields=("s",)),
        of_row({"s": {}}, Schema("struct", fields=(Field("s", Schema("struct")),))),
        "^Cannot mask value of type: struct$",
    ),
    (
        MaskField(fields=("a",)),
        of_row({"a": object()}, None),
        "^Cannot mask value of type: object$",
    ),
    (MaskField(fields=("a",), replacement="5"), of_row({"a": True}, None), "type bool with custom"),
    (MaskField(fields=("a",), replacement="x"), of_row({"a": 1}, None), "out of range"),
    (TimestampConverter(target_type="unix"), of_row("2026", None), "needs the setting format"),
    (TimestampConverter(target_type="unix"), of_row(True, None), "does not support bool objects"),
    (TimestampConverter(target_type="unix"), of_row(1.5, None), "does not support float objects"),
    (
        TimestampConverter(target_type="unix"),
        of_row(5, SCALARS),
        "^Schema int32 does not correspond",
    ),
    (TimestampConverter(target_type="unix", field="a"), of_row({"a": 1}), "Schema int32"),
    (
        TimestampConverter(target_type="unix", field="a"),
        of_row(5, None),
        "converting timestamp formats",
    ),
    (TimestampConverter(target_type="Timestamp"), of_row(2**63 - 1, None), "years 1 to 9999"),
    (RegexRouter(regex="(t)", replacement="$2"), of_row(1), "there is no such group"),
    (RegexRouter(regex="(t)", replacement="${x}"), of_row(1), "there is no such group"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_record_that_can_not_be_transformed_is_a_bad_record(number: int) -> None:
    transform, record, message = REFUSED[number]
    with pytest.raises(BadRecord, match=message):
        transform(record)


def test_nulls_stay_nulls() -> None:
    for transform in (
        ExtractField(field="a"),
        ReplaceField(),
        Flatten(),
        SetSchemaMetadata(schema_name="n"),
        Cast(spec=("a:int8",)),
        TimestampConverter(target_type="unix", field="a", format="yyyy"),
        TimestampConverter(target_type="unix", format="yyyy"),
        InsertField(topic_field="a"),
    ):
        made: Any = transform(of_row(None, None))
        assert made.value is None, transform
        assert made.value_schema is None


def test_a_transform_of_the_key_leaves_the_value_and_the_reverse() -> None:
    key_row = SchemaRecord({"a": 1}, {"a": 2}, NOW, (), "t", key_schema=None, value_schema=None)
    made: Any = ExtractField(on="key", field="a")(key_row)
    assert (made.key, made.value) == (1, {"a": 2})
    made = ExtractField(field="a")(key_row)
    assert (made.key, made.value) == ({"a": 1}, 2)
    assert KeyOrValue()(key_row) == key_row, "without a change of its own"
    # A record without schemas may come from anywhere; it has its rows as dicts.
    plain: Any = HoistField(field="x")(Record("k", 5, NOW))
    assert (plain.value, plain.value_schema) == ({"x": 5}, None)


def test_old_names_of_settings_still_count() -> None:
    row = {"a": 1, "b": 2, "c": 3}
    for transform, kept in (
        (ReplaceField(blacklist=("a",)), {"b": 2, "c": 3}),
        (ReplaceField(whitelist=("a", "b")), {"a": 1, "b": 2}),
        (ReplaceField(whitelist=("a", "b"), exclude=("a",)), {"b": 2}),
        (
            ReplaceField(whitelist=("a",), include=("b",), blacklist=("b",), exclude=("c",)),
            {"b": 2},
        ),
        (ReplaceField(renames=("a:x", "c:b:"), exclude=("b",)), {"x": 1, "b:": 3}),
    ):
        made: Any = transform(of_row(row, None))
        assert made.value == kept


@given(st.lists(st.text("ab`.", max_size=4), min_size=1, max_size=4))
def test_a_path_in_backticks_leads_to_each_of_its_steps(steps: list[str]) -> None:
    """KIP-821: in backticks, a backtick before a dot is written with a backslash before it."""
    quoted = ".".join("`" + step.replace("`.", "\\`.") + "`" for step in steps)
    assert split_path(quoted, "V2") == tuple(steps)
    assert split_path(quoted, "V1") == (quoted,)
    plain = [step.translate(dict.fromkeys(map(ord, "`."))) for step in steps]
    assert split_path(".".join(plain), "V2") == tuple(plain)
    # Bare steps and steps in backticks stand side by side.
    mixed = ".".join(f"`{step}`" if at % 2 else step for at, step in enumerate(plain))
    assert split_path(mixed, "V2") == tuple(plain)


@pytest.mark.parametrize("path", ["`a", "a.`b", "`a`b", "`a\\`", "`a\\`.b", "`"])
def test_a_backtick_without_its_other_half_is_named(path: str) -> None:
    with pytest.raises(BadRecord, match=r"^Incomplete backtick pair in path") as refused:
        split_path(path, "V2")
    assert f"position {path.index('`')} to" in str(refused.value)


EMPTY = {
    True: False, 5: 0, 2.5: 0.0, "x": "", Decimal("1.5"): Decimal(0),
    datetime(2026, 1, 1, tzinfo=UTC): datetime(1970, 1, 1, tzinfo=UTC),
    date(2026, 1, 1): date(1970, 1, 1), time(1): time(0),
}  # fmt: skip


def test_a_masked_value_is_the_empty_one_of_its_class() -> None:
    for value, empty in [*EMPTY.items(), ([1], []), ((1,), []), ({"a": 1}, {})]:
        made: Any = MaskField(fields=("a",))(of_row({"a": value, "b": value}, None))
        assert made.value == {"a": empty, "b": value}
        assert type(made.value["a"]) is type(empty)


@pytest.mark.parametrize(
    ("kind", "value", "replacement", "masked"),
    [
        (None, 5, "12.7", 12), (None, 5, "9223372036854775808", -(2**63)), (None, 1.5, "2", 2.0),
        (None, 1.5, "0.1", 0.1), ("float32", 1.5, "0.1", 0.10000000149011612),
        ("float64", 1.5, "0.1", 0.1), ("int8", 5, "300", 44), ("int16", 5, "-1", -1),
        (None, Decimal(1), "1.50", Decimal("1.50")), (None, "x", " 7", " 7"),
    ],
)  # fmt: skip
def test_a_replacement_is_of_the_type_of_its_field(
    kind: Any, value: object, replacement: str, masked: object
) -> None:
    schema = None if kind is None else Schema("struct", fields=(Field("a", Schema(kind)),))
    made: Any = MaskField(fields=("a",), replacement=replacement)(of_row({"a": value}, schema))
    assert made.value == {"a": masked}
    assert type(made.value["a"]) is type(masked)


@given(
    st.integers(-(10**14), 10**14),
    st.sampled_from(["seconds", "milliseconds", "microseconds", "nanoseconds"]),
)
def test_a_unix_time_in_any_unit_is_cut_toward_zero(number: int, unit: Any) -> None:
    """As Java's TimeUnit converts."""
    per_ms = {"seconds": Decimal("0.001"), "milliseconds": 1, "microseconds": 1_000}.get(
        unit, 10**6
    )
    ms = int(number / Decimal(per_ms))
    read = TimestampConverter(target_type="Timestamp", unix_precision=unit)
    try:
        made: Any = read(of_row(number, None))
    except BadRecord:
        assert not -62_135_596_800_000 <= ms <= 253_402_300_799_999
        return
    assert made.value == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    back: Any = TimestampConverter(target_type="unix", unix_precision=unit)(made)
    assert back.value == int(ms * Decimal(per_ms))


@given(st.integers(-(10**13), 10**13))
def test_a_time_has_the_date_and_the_time_of_day_of_its_moment(ms: int) -> None:
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    for target, expected in (
        ("Date", when.date()),
        ("Time", when.time()),
        ("Timestamp", when),
        ("unix", ms),
        ("string", when.strftime("%H:%M:%S %d")),
    ):
        form: Any = TimestampConverter(target_type=target, format="HH:mm:ss dd")  # type: ignore[arg-type]
        for given_time in (when, ms):
            made: Any = form(of_row(given_time, None))
            assert made.value == expected
    # A date is its midnight, and a time of day is of the first day.
    to_unix: Any = TimestampConverter(target_type="unix", unix_precision="seconds")
    midnight = ms // 86_400_000 * 86_400
    assert to_unix(of_row(when.date(), None)).value == midnight
    assert to_unix(of_row(when.time(), None)).value == ms // 1000 - midnight
    kinds = {
        "Date": "int32",
        "Time": "int32",
        "Timestamp": "int64",
        "string": "string",
        "unix": "int64",
    }
    for target, kind in kinds.items():
        for optional in (True, False):
            given_schema = Schema("int64", logical="Timestamp", optional=optional)
            form = TimestampConverter(target_type=target, format="yyyy")  # type: ignore[arg-type]
            made = form(of_row(when, given_schema)).value_schema
            assert (made.kind, made.optional) == (kind, optional)
            assert made.logical == (target if target[0] in "DT" else None)


def test_a_converted_field_of_a_null_row_has_its_new_type() -> None:
    schema = Schema("struct", optional=True, name="shop.Order", fields=(
        Field("at", Schema("int64"), default=5), Field("b", TEXT, default="x"),
    ))  # fmt: skip
    made: Any = TimestampConverter(target_type="Timestamp", field="at")(of_row(None, schema))
    assert made.value is None
    assert (made.value_schema.name, made.value_schema.optional) == ("shop.Order", True)
    at, other = made.value_schema.fields
    assert (at.schema, at.default) == (Schema("int64", logical="Timestamp"), None)
    assert (other.schema, other.default) == (TEXT, "x")


def test_a_header_has_the_text_of_kafkas_simple_header_converter() -> None:
    for literal, written in (
        ("null", None),
        ("5", b"5"),
        ("5.0", b"5"),
        ("-9223372036854775808", b"-9223372036854775808"),
        ("9223372036854775807", b"9223372036854775807"),
        ("9223372036854775808", b"9223372036854775808"),
        ("9223372036854775807.0", b"9223372036854775807"),
        ("9223372036854775808.0", b"9.223372E18"),
        ("-9223372036854775808.0", b"-9223372036854775808"),
        ("-9223372036854775809.0", b"-9.223372E18"),
        ("0.1", b"0.1"),
        ("16777217.5", b"1.6777218E7"),
        ("1e40", b"1.0E40"),
        ("1e400", b"1E+400"),
        ("text", b"text"),
        ("{", b"{"),
        ('{"a": [1, "\u00e9"]}', '{"a":[1,"\u00e9"]}'.encode()),
    ):
        made: Any = InsertHeader(header="h", value_literal=literal)(of_row(1))
        assert made.headers == (("h", written),), literal


@pytest.mark.parametrize(
    ("regex", "replacement", "renamed"),
    [
        ("(o)rders", "$12", "o2"),
        ("(o)(r)(d)(e)(r)(s)", "$6$10$1", "so0o"),
        ("(o)()()()()()()()()()()(rders)", "$12-$1$123", "rders-orders3"),
        ("(o)(x)?rders", "$1$2.", "o."),
        ("(?<first>o)(?<none>x)?.*", "${first}${none}-${first}", "o-o"),
        ("orders", "\\$1\\\\", "$1\\"),
        ("(rders)", "x", "orders"),
        ("orders", "$0", "orders"),
        (".*", "a$0b", "aordersb"),
    ],
)
def test_a_replacement_refers_to_groups_as_javas_do(
    regex: str, replacement: str, renamed: str
) -> None:
    router = RegexRouter(regex=regex, replacement=replacement)
    assert router.renamed("orders") == renamed


def test_a_topic_gets_the_time_of_its_record() -> None:
    record = Record(None, None, NOW, (), "orders", 0, 0)
    made: Any = TimestampRouter()(record)
    assert made.topic == "orders-20260102"
    made = TimestampRouter(topic_format="a-${timestamp}-${topic}", timestamp_format="HH")(record)
    assert made.topic == "a-03-orders"


CASTS: list[tuple[object, dict[str, object]]] = [
    (300, {"int8": 44, "int16": 300, "float32": 300.0, "boolean": True, "string": "300"}),
    (-1.9, {"int8": -1, "int64": -1, "boolean": True, "string": "-1.9", "float64": -1.9}),
    (0.9, {"boolean": False, "int32": 0, "float32": 0.8999999761581421}),
    (3e9, {"int32": 2**31 - 1, "int8": -1, "int64": 3_000_000_000, "string": "3.0E9"}),
    (1e300, {"int64": 2**63 - 1, "float32": float("inf")}),
    (True, {"int8": 1, "float64": 1.0, "boolean": True, "string": "true"}),
    (False, {"int64": 0, "boolean": False, "string": "false"}),
    ("TRUE", {"boolean": True, "string": "TRUE"}),
    ("yes", {"boolean": False}),
    ("-7", {"int8": -7, "int64": -7, "float32": -7.0, "float64": -7.0, "boolean": False}),
    ("0.1", {"float32": 0.10000000149011612, "float64": 0.1}),
    (2**64 + 5, {"int64": 5, "boolean": True}),
    (2**64, {"boolean": False, "int8": 0}),
]


@pytest.mark.parametrize("number", range(len(CASTS)))
def test_a_value_is_cast_as_java_casts_it(number: int) -> None:
    value, casts = CASTS[number]
    for kind, cast in casts.items():
        whole: Any = Cast(spec=(kind,))(of_row(value, None))
        assert (whole.value, type(whole.value), whole.value_schema) == (cast, type(cast), None), (
            kind
        )
        in_row: Any = Cast(spec=(f"a:{kind}",))(of_row({"a": value, "b": 1}, None))
        assert in_row.value == {"a": cast, "b": 1}


def test_a_cast_changes_the_schema_and_the_default_of_a_field() -> None:
    made: Any = Cast(spec=("a:string",))(of_row({"a": 1, "b": "x"}))
    assert made.value == {"a": "1", "b": "x"}
    assert made.value_schema.field("a") == Field("a", TEXT, default="7")
    assert made.value_schema.field("b") == ROW.field("b")
    assert made.value_schema.optional
    whole: Any = Cast(spec=(" INT64",))(of_row(5, replace(NUMBER, name="shop.Count")))
    assert (whole.value, whole.value_schema) == (
        5,
        Schema("int64", optional=True, name="shop.Count"),
    )
    day = Schema("int32", logical="Date", optional=True)
    number: Any = Cast(spec=("int64",))(of_row(date(1970, 1, 11), day))
    assert (number.value, number.value_schema) == (10, Schema("int64", optional=True))
    price = Schema("bytes", logical="Decimal", parameters=(("scale", "2"),))
    cents: Any = Cast(spec=("int8",))(of_row(Decimal("1.50"), price))
    assert (cents.value, cents.value_schema) == (1, Schema("int8"))


@pytest.mark.parametrize("name", ["n", "n?", "n!"])
def test_a_field_is_added_with_what_the_record_says(name: str) -> None:
    for settings, kind, value in (
        ({"topic_field": name}, Schema("string"), "t"),
        ({"partition_field": name}, Schema("int32"), 0),
        ({"offset_field": name}, Schema("int64"), 0),
        ({"timestamp_field": name}, Schema("int64", logical="Timestamp"), NOW),
        ({"static_field": name, "static_value": "x"}, Schema("string"), "x"),
    ):
        record: Any = SchemaRecord(
            None, {"a": 1}, NOW, (), "t", 0, 0,
            value_schema=Schema("struct", fields=(Field("a", NUMBER),)),
        )  # fmt: skip
        made: Any = InsertField(**settings)(record)  # type: ignore[arg-type]
        assert made.value == {"a": 1, "n": value}
        assert made.value_schema.fields[1:] == (
            Field("n", replace(kind, optional=not name.endswith("!"))),
        )
        bare: Any = InsertField(**settings)(replace(record, value_schema=None))  # type: ignore[arg-type]
        ms = 1_767_323_045_000
        assert bare.value == {"a": 1, "n": ms if value is NOW else value}
    unknown: Any = InsertField(partition_field="n")(replace(record, partition=-1))
    assert unknown.value == {"a": 1}, "a source does not know the partition yet"


def test_a_path_leads_through_structs_with_and_without_schemas() -> None:
    deep = Schema("struct", fields=(Field("c", Schema("int32"), default=9),))
    middle = Schema("struct", fields=(Field("b", deep), Field("x", NUMBER)), optional=True)
    outer = Schema("struct", fields=(Field("a", middle), Field("a.b", TEXT)))
    row = {"a": {"b": {"c": 5}, "x": 1}, "a.b": "dotted"}
    for path, syntax, value, kind in (
        ("a.b.c", "V2", 5, Schema("int32")),
        ("a.b", "V2", {"c": 5}, deep),
        ("a.b", "V1", "dotted", TEXT),
        ("`a.b`", "V2", "dotted", TEXT),
        ("a.x", "V2", 1, NUMBER),
    ):
        extract = ExtractField(field=path, field_syntax_version=syntax)  # type: ignore[arg-type]
        made: Any = extract(of_row(row, outer))
        assert (made.value, made.value_schema) == (value, kind)
        bare: Any = extract(of_row(row, None))
        assert (bare.value, bare.value_schema) == (value, None)
    into = ExtractField(field="a.b.c", field_syntax_version="V2")
    # Kafka asks the struct that it did not find for the default; a row without a schema has none.
    for replaced, found in ((True, 9), (False, None)):
        made = replace(into, replace_null_with_default=replaced)(of_row({"a": None}, outer))
        assert made.value == found
    gone: Any = into(of_row({"a": {}}, None))
    assert gone.value is None
    for path in ("a.y", "y.b", "a.b.c.d"):
        with pytest.raises(BadRecord, match=f"^Unknown field: {path}$"):
            ExtractField(field=path, field_syntax_version="V2")(of_row(row, outer))


def test_headers_have_to_be_as_many_as_fields() -> None:
    with pytest.raises(ValueError, match="zip"):
        HeaderFrom(fields=("a",), headers=("h", "i"), operation="copy")(of_row({"a": 1}))


def test_a_null_with_a_schema_keeps_its_schema() -> None:
    for transform in (ReplaceField(exclude=("a",)), Flatten(), Cast(spec=("a:int8",))):
        made: Any = transform(of_row(None))
        assert (made.value, made.value_schema) == (None, ROW)
    named: Any = SetSchemaMetadata(schema_version=2)(of_row(None))
    assert (named.value, named.value_schema) == (None, replace(ROW, version=2))


def test_a_flat_row_has_the_fields_of_its_structs_by_their_path() -> None:
    numbers = Schema("array", items=NUMBER)
    inner = Schema("struct", optional=True, fields=(
        Field("b", Schema("int32"), default=5), Field("c", numbers),
    ))  # fmt: skip
    outer = Schema("struct", name="shop.Order", fields=(
        Field("a", inner), Field("b", Schema("int32"), default=7),
    ))  # fmt: skip
    flat: Any = Flatten(delimiter="_")(of_row({"a": {"b": None, "c": [1]}, "b": None}, outer))
    assert flat.value == {"a_b": 5, "a_c": [1], "b": 7}
    assert flat.value_schema == Schema("struct", name="shop.Order", fields=(
        Field("a_b", replace(NUMBER, optional=True), default=5),
        Field("a_c", replace(numbers, optional=True)),
        Field("b", Schema("int32"), default=7),
    ))  # fmt: skip
    # Where there was no struct, its fields are null, whatever their defaults are.
    gone: Any = Flatten()(of_row({"a": None, "b": 1}, outer))
    assert gone.value == {"a.b": None, "a.c": None, "b": 1}
    bare: Any = Flatten()(of_row({"a": {"b": {}, "c": {"d": None, "e": [1]}}, "f": True}, None))
    assert bare.value == {"a.c.d": None, "a.c.e": [1], "f": True}


def test_a_year_of_two_digits_is_near_the_time_of_its_record() -> None:
    """Java's SimpleDateFormat counts from now; "25" is 2025 in a record of 2026."""
    convert = TimestampConverter(target_type="string", field="a", format="dd/MM/yy")
    to_time = TimestampConverter(target_type="Timestamp", format="dd/MM/yy")
    for text, year in (("02/01/25", 2025), ("02/01/45", 2045), ("02/01/47", 1947)):
        made: Any = to_time(of_row(text, None))
        assert made.value == datetime(year, 1, 2, tzinfo=UTC)
        in_row: Any = convert(of_row({"a": text}, Schema("struct", fields=(Field("a", TEXT),))))
        assert in_row.value == {"a": text}
