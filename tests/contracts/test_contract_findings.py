"""Findings among contracts: sentences that name the field, the topic and the apps."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from streamlog import App, Windowed, hopping, tumbling
from streamlog.blueprints.readability import unread_parts
from streamlog.blueprints.unread_part import UnreadKind
from streamlog.contracts.async_api import async_api, read_document
from streamlog.contracts.contract import Contract, TopicType, TopicUse
from streamlog.contracts.contract_findings import ContractFinding, compare_contracts
from streamlog.errors import SerdeError
from streamlog.schemas import Schema, SchemaReference, SchemaType
from streamlog.serdes import form_of, serde_for
from streamlog.serdes.registered import TopicSchema
from streamlog.serdes.registered.protobuf_codec import registered_message


@dataclass
class Order:
    id: int
    amount: float


def writing(value: Any, app: str = "shop", *, key: Any = str, **options: Any) -> Contract:
    found = App(app)
    found.topic("orders", key=key, value=value, **options)
    return found.program().contract


def reading(value: Any, app: str = "billing", *, key: Any = str, **options: Any) -> Contract:
    found = App(app)
    found.stream(found.topic("orders", key=key, value=value, **options))
    return found.program().contract


def record(name: str = "Order", **fields: Any) -> type:
    """Return a dataclass; a pair is a type with a default."""
    pairs = [(n, f[0], f[1]) if isinstance(f, tuple) else (n, f) for n, f in fields.items()]
    return make_dataclass(name, sorted(pairs, key=len))


def messages(*contracts: Contract, **options: Any) -> list[str]:
    return [found.message for found in compare_contracts(contracts, **options)]


def only(*contracts: Contract, **options: Any) -> ContractFinding:
    (found,) = compare_contracts(contracts, **options)
    return found


NO_AMOUNT = record(id=int)


def test_equal_types_have_no_finding() -> None:
    assert messages(writing(Order), reading(Order)) == []


def test_a_removed_field_names_the_topic_and_all_readers() -> None:
    apps = [writing(NO_AMOUNT), reading(Order), reading(Order, "fraud"), reading(NO_AMOUNT, "log")]
    found = only(*apps, app="shop", before=writing(Order))
    assert found.message == "field `amount` is gone from `orders`; `billing` and `fraud` read it"
    assert (found.kind, found.path, found.side) == ("missing", "amount", "value")
    assert (found.writers, found.readers) == (["shop"], ["billing", "fraud"])
    assert found.breaks
    assert found.is_new


def test_a_field_that_was_never_written_is_not_gone() -> None:
    found = only(writing(NO_AMOUNT), reading(Order), app="shop", before=writing(NO_AMOUNT))
    assert found.message == "`shop` writes `orders` without field `amount`; `billing` requires it"
    assert found.breaks
    assert not found.is_new


def test_a_removed_field_with_a_default_is_a_note() -> None:
    reader = reading(record(id=int, amount=(float, 0.0)))
    found = only(writing(NO_AMOUNT), reader, app="shop", before=writing(Order))
    assert found.message == "field `amount` is gone from `orders`; `billing` has a default for it"
    assert not found.breaks
    assert messages(writing(NO_AMOUNT), reader) == []


def test_an_added_field_breaks_no_one() -> None:
    more = record(id=int, amount=float, note=str)
    assert messages(writing(more), reading(Order), app="shop", before=writing(Order)) == []


@pytest.mark.parametrize(
    ("written", "read", "message"),
    [
        (
            record(id=int, amount=str),
            Order,
            "field `amount` of `orders` is text now; `billing` reads a number",
        ),
        (
            record(id=int, amount=float | None),
            Order,
            "field `amount` of `orders` is null now; `billing` reads a number",
        ),
    ],
)
def test_a_retyped_field_is_named_with_both_types(written: type, read: type, message: str) -> None:
    assert messages(writing(written), reading(read), app="shop", before=writing(Order)) == [message]


@pytest.mark.parametrize(
    ("written", "read", "message"),
    [
        (
            record(amount=str),
            record(amount=float),
            "`shop` writes field `amount` of `orders` as text; `billing` reads a number",
        ),
        (
            record("Basket", lines=list[NO_AMOUNT]),
            record("Basket", lines=list[Order]),
            "`shop` writes `orders` without field `lines[].amount`; `billing` requires it",
        ),
        (
            record("Baskets", by_id=dict[str, NO_AMOUNT]),
            record("Baskets", by_id=dict[str, Order | None]),
            "`shop` writes `orders` without field `by_id{}.amount`; `billing` requires it",
        ),
        (
            record(state=Literal["open", "paid", "void"]),
            record(state=Literal["open", "paid"]),
            (
                "`shop` writes field `state` of `orders` as one of open, paid, void; "
                "`billing` reads one of open, paid"
            ),
        ),
        (
            record(amount=(float, 0.0)),
            record(amount=float),
            (
                "field `amount` of `orders` may be missing where `shop` writes it; "
                "`billing` requires it"
            ),
        ),
        (
            record(a=int, note=str),
            msgspec.defstruct("Closed", [("a", int)], forbid_unknown_fields=True),
            (
                "`shop` writes field `note` of `orders`; "
                "`billing` refuses fields without a declaration"
            ),
        ),
        (
            Order,
            int,
            (
                "`shop` writes the values of `orders` as JSON (Order); "
                "`billing` reads an 8-byte integer"
            ),
        ),
        (
            bytes,
            Order,
            (
                "`shop` writes the values of `orders` as bytes, and `billing` reads JSON (Order): "
                "the declarations do not tell whether that fits"
            ),
        ),
        (Order, bytes, None),
        (Order, str, None),
        (Order, Any, None),
        (record(amount=int), record(amount=float), None),
        (record(a=int), msgspec.defstruct("A", [("a", int)], forbid_unknown_fields=True), None),
    ],
)
def test_a_type_that_a_reader_does_not_fit_is_a_sentence(
    written: Any, read: Any, message: str | None
) -> None:
    found = messages(writing(written), reading(read))
    assert found == ([] if message is None else [message])


def test_models_of_pydantic_are_compared_by_their_schemas() -> None:
    class Before(BaseModel):
        id: int
        amount: float

    class After(BaseModel):
        id: int

    found = messages(writing(After), reading(Before), app="shop", before=writing(Before))
    assert found == ["field `amount` is gone from `orders`; `billing` reads it"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("avro", "field `amount` is gone from `orders`; `billing` reads it"),
        ("json", "field `amount` is gone from `orders`; `billing` reads it"),
        # A Protobuf reader gets the default of the field's type.
        ("protobuf", "field `amount` is gone from `orders`; `billing` has a default for it"),
    ],
)
def test_schemas_that_a_registry_keeps_are_compared_by_their_fields(
    schema: str, message: str
) -> None:
    before, now = (writing(value, schema=schema) for value in (Order, NO_AMOUNT))
    reader = reading(Order, schema=schema)
    assert messages(before, reader) == []
    assert messages(now, reader, app="shop", before=before) == [message]
    other = "json" if schema == "avro" else "avro"
    assert only(writing(Order, schema=other), reader).kind == UnreadKind.CODING


def test_keys_are_compared_too() -> None:
    found = only(writing(Order, key=int), reading(Order, key=NO_AMOUNT))
    assert found.side == "key"
    assert found.message == (
        "`shop` writes the keys of `orders` as an 8-byte integer; `billing` reads JSON (Order)"
    )


def test_windowed_keys_of_other_windows_do_not_fit() -> None:
    def totals(app: App) -> Any:
        return app.topic("orders", key=Windowed[str], value=Order, windows=tumbling("10s"))

    writer, reader = App("shop"), App("billing")
    totals(writer)
    windows = hopping("10s", "1s")
    topic = reader.topic("orders", key=Windowed[int], value=Order, windows=windows)
    reader.stream(topic)
    found = only(writer.program().contract, reader.program().contract)
    assert found.side == "key"
    assert found.breaks


def test_a_reader_that_is_changed_hears_of_its_own_writers() -> None:
    apps = [writing(NO_AMOUNT), reading(Order), reading(Order, "fraud")]
    found = only(*apps, app="billing", before=reading(NO_AMOUNT))
    assert found.message == "`shop` writes `orders` without field `amount`; `billing` requires it"
    assert found.is_new


def test_without_an_app_all_pairs_are_compared() -> None:
    apps = [writing(NO_AMOUNT), writing(NO_AMOUNT, "web"), reading(Order), reading(Order, "fraud")]
    assert messages(*apps) == [
        "`shop` and `web` write `orders` without field `amount`; `billing` and `fraud` require it"
    ]
    assert messages(*apps, app="other") == []


def joining(app: str = "billing", **options: Any) -> Contract:
    found = App(app)
    orders = found.topic("orders", key=str, value=Order, **options)
    names = found.topic("names", key=str, value=str, **options)
    found.stream(orders).join(found.table(names), lambda order, name: (order, name))
    return found.program().contract


def test_joined_topics_need_equal_partition_counts() -> None:
    counts = {"orders": 4, "names": 6}
    found = only(joining(), writing(Order), partitions=counts)
    assert found.message == (
        "`billing` joins `names` with `orders`, which needs equal numbers of partitions: they have "
        "6 and 4"
    )
    assert found.breaks
    assert messages(joining(), partitions={"orders": 4, "names": 4}) == []
    assert messages(joining(), partitions={"orders": 4}) == []
    assert messages(joining(), writing(Order), partitions=counts, app="shop") == []


def test_a_join_needs_keys_where_its_writers_put_them() -> None:
    found = only(joining(), writing(Order, partitioner="crc32"))
    assert found.message == (
        "`shop` partitions `orders` by crc32; `billing` joins it with other topics and expects "
        "murmur2"
    )
    assert found.breaks
    assert messages(reading(Order), writing(Order, partitioner="crc32")) == []
    assert not only(joining(), writing(Order, partitioner=lambda key, count: 0)).breaks


WORDS = ["$ref", "$defs", "anyOf", "type", "properties", "required", "items", "enum"]
ODD = st.recursive(
    st.none() | st.sampled_from([*WORDS, "#/$defs/A", "object", 1, True]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*WORDS, "A", "json", "registry", "text"]), inner)
    ),
    max_leaves=12,
)


def described(app: str, form: object, *, writes: bool) -> Contract:
    use = TopicUse(
        key=TopicType("str", "StrSerde"),
        value=TopicType("A", form),
        written_by=["a"] if writes else [],
        read_by=[] if writes else ["a"],
    )
    return Contract(app, {"orders": use})


@given(ODD, ODD, st.sampled_from(["json", "msgpack", "avro", "windowed", "registry", ""]))
def test_malformed_descriptions_of_types_are_compared_and_exported_without_an_error(
    left: object, right: object, coding: str
) -> None:
    forms = [{coding: each} if coding else each for each in (left, right)]
    apps = [
        described("shop", forms[0], writes=True),
        described("billing", forms[1], writes=False),
    ]
    compare_contracts(apps)
    msgspec.json.encode(async_api(apps, title="a", version="1"))


def test_types_that_are_nested_too_deep_are_a_note() -> None:
    deep: Any = {"type": "integer"}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    found = only(
        described("shop", {"json": deep}, writes=True),
        described(
            "billing", {"json": {"type": "array", "items": deep, "title": "A"}}, writes=False
        ),
    )
    assert found.kind == UnreadKind.INCOMPARABLE
    assert not found.breaks


def by_hand(form: Any, text: str, refers_to: str, inner: str) -> TopicSchema:
    """Return a schema that refers to another one."""
    kind = SchemaType(form.upper())
    reference = SchemaReference(refers_to, "address", 1)
    whole = Schema(kind, text, (reference,))
    return TopicSchema(form, schema=whole, referenced={refers_to: Schema(kind, inner)})


AVRO = '{"type":"record","name":"Order","fields":[{"name":"to","type":"Address"}]}'
AVRO_ADDRESS = '{"type":"record","name":"Address","fields":[{"name":"zip","type":"%s"}]}'
JSON = '{"type":"object","properties":{"to":{"$ref":"address.json#/$defs/A"}},"required":["to"]}'
JSON_ADDRESS = (
    '{"$defs":{"A":{"type":"object","properties":{"zip":{"$ref":"#/$defs/Z"}},"required":["zip"]},'
    '"Z":{"type":"%s"}}}'
)
PROTO = 'syntax = "proto3"; import "address.proto"; message Order { Address to = 1; }'
PROTO_ADDRESS = 'syntax = "proto3"; message Address { %s zip = 1; }'


@pytest.mark.parametrize(
    ("form", "texts", "name", "types", "path"),
    [
        ("avro", (AVRO, AVRO_ADDRESS), "Address", ("string", "long"), "to.zip"),
        ("json", (JSON, JSON_ADDRESS), "address.json", ("string", "integer"), "to.zip"),
        ("protobuf", (PROTO, PROTO_ADDRESS), "address.proto", ("string", "int64"), "Address.zip"),
    ],
    ids=["avro", "json", "protobuf"],
)
def test_schemas_are_compared_with_those_that_they_refer_to(
    form: str, texts: tuple[str, str], name: str, types: tuple[str, str], path: str
) -> None:
    old, new = (by_hand(form, texts[0], name, texts[1] % each) for each in types)
    assert messages(writing(dict, schema=old), reading(dict, schema=old)) == []
    found = only(writing(dict, schema=new), reading(dict, schema=old))
    assert (found.path, found.kind) == (path, UnreadKind.TYPE)
    # The document of all contracts is exported, and read again.
    apps = [writing(dict, schema=new), reading(dict, schema=old)]
    document = msgspec.json.encode(async_api(apps, title="a", version="1"))
    contracts, _ = read_document(document, "all.json")
    (read,) = compare_contracts(contracts.values())
    assert read == found


def test_classes_of_messages_bring_their_imports_along() -> None:
    def order(kind: str) -> Any:
        given = by_hand("protobuf", PROTO, "address.proto", PROTO_ADDRESS % kind)
        assert given.schema is not None
        return registered_message(given.schema, given.referenced), TopicSchema(
            "protobuf", schema=given.schema
        )

    (old, old_schema), (new, new_schema) = order("string"), order("int64")
    assert messages(writing(old, schema=old_schema), reading(old, schema=old_schema)) == []
    found = only(writing(new, schema=new_schema), reading(old, schema=old_schema))
    assert (found.path, found.kind) == ("Address.zip", UnreadKind.TYPE)


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        name: st.tuples(
            st.sampled_from([int, float, str, bool, int | None, list[int], dict[str, float]]),
            st.booleans(),
        )
        for name in ("a", "b", "c")
    },
)
DEFAULTS: dict[Any, Any] = {int: 1, float: 1.5, str: "x", bool: True, int | None: None}


def struct(name: str, fields: dict[str, tuple[Any, bool]], inner: type | None = None) -> type:
    declared: list[Any] = [(each, kind) for each, (kind, _) in fields.items()]
    if inner is not None:
        declared.append(("inner", inner))
    for at, (_, (kind, has_default)) in enumerate(fields.items()):
        if has_default:
            default = DEFAULTS[kind] if kind in DEFAULTS else msgspec.field(default_factory=kind)
            declared[at] = (*declared[at], default)
    return msgspec.defstruct(name, declared, kw_only=True)


def values(fields: dict[str, tuple[Any, bool]]) -> st.SearchStrategy[dict[str, Any]]:
    floats = st.floats(allow_nan=False, allow_infinity=False)
    made: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(0, 9), float: floats, str: st.text(max_size=3), bool: st.booleans(),
        int | None: st.none() | st.integers(0, 9), list[int]: st.lists(st.integers(0, 9)),
        dict[str, float]: st.dictionaries(st.text(max_size=2), floats, max_size=2),
    }  # fmt: skip
    return st.fixed_dictionaries({name: made[kind] for name, (kind, _) in fields.items()})


@given(st.data())
def test_a_type_without_a_finding_reads_everything_and_one_with_a_finding_does_not(
    data: st.DataObject,
) -> None:
    old, new = data.draw(FIELDS), data.draw(FIELDS)
    old_inner, new_inner = data.draw(FIELDS), data.draw(FIELDS)
    writer = struct("Outer", old, struct("Inner", old_inner))
    reader = struct("Outer", new, struct("Inner", new_inner))
    parts = unread_parts(form_of(serde_for(reader)), form_of(serde_for(writer)))
    certain = [part for part in parts if part.kind is not UnreadKind.OPTIONAL]
    for _ in range(3):
        inner = data.draw(values(old_inner))
        written = msgspec.json.encode({**data.draw(values(old)), "inner": inner})
        try:
            serde_for(reader).loads(written)
        except SerdeError as error:
            failure = str(error)
        else:
            # A value may be null, empty, or a whole number by chance; a field is there or not.
            assert UnreadKind.MISSING not in {part.kind for part in certain}
            continue
        assert [part for part in certain if part.path.rpartition(".")[2][:1] in failure], failure
