"""The parts of sources and their offsets, as Kafka Connect's offsets topic has them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.parts import OffsetBook, encode_offset, encode_offset_key, part_id

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
DEEP = b"[" * 100_000 + b"]" * 100_000
OBJECTS = st.dictionaries(st.text(max_size=5), JSON, max_size=4)


def test_an_offset_has_the_bytes_of_java() -> None:
    """JsonConverter without schemas writes no spaces."""
    key = encode_offset_key("files", {"filename": "/var/log/é"})
    assert key == '["files",{"filename":"/var/log/é"}]'.encode()
    assert encode_offset({"position": 7}) == b'{"position":7}'
    assert encode_offset(None) is None


def test_a_part_continues_under_the_key_that_java_wrote() -> None:
    book = OffsetBook()
    java = b'["s", {"b": 1, "a": 2}]'
    book.replay(java, b'{"at": 5}')
    assert book.offset("s", {"a": 2, "b": 1}) == {"at": 5}
    assert book.key("s", {"a": 2, "b": 1}) == java
    book.replay(java, None)
    assert book.offset("s", {"a": 2, "b": 1}) is None
    assert book.key("s", {"a": 2, "b": 1}) == java, (
        "a tombstone has to be for the key that is there"
    )


def test_malformed_records_are_passed_over() -> None:
    book = OffsetBook()
    for key, value in (
        (None, b"{}"),
        (b"", b"{}"),
        (b"nonsense", b"{}"),
        (b'["s"]', b"{}"),
        (b'["s",{}]', b"[]"),
        (b'["s",[1]]', b"{}"),
        (b'\xff["s",{}]', b"{}"),
        (b'["\xff",{}]', b"{}"),
        (b'["s",{}]', b'{"at":"\xff"}'),
        (b'["s",{"at":%b}]' % DEEP, b"{}"),
        (b'["s",{}]', b'{"at":%b}' % DEEP),
    ):
        book.replay(key, value)
    assert [*book.offsets_of("s")] == []


def test_the_parts_of_a_connector_are_listed_by_name_without_those_of_others() -> None:
    book = OffsetBook()
    for connector, part in (("b", "z"), ("a", "y"), ("b", "x"), ("aa", "w"), ("b", "y")):
        book.replay(encode_offset_key(connector, {"p": part}), encode_offset({"at": part}))
    book.replay(encode_offset_key("b", {"p": "z"}), None)
    assert [*book.offsets_of("b")] == [({"p": "x"}, {"at": "x"}), ({"p": "y"}, {"at": "y"})]
    assert [*book.offsets_of("c")] == []


@given(st.lists(st.tuples(st.sampled_from("ab"), OBJECTS, st.none() | OBJECTS), max_size=12))
def test_the_last_record_of_a_part_counts(
    records: list[tuple[str, dict[str, object], dict[str, object] | None]],
) -> None:
    book = OffsetBook()
    expected: dict[tuple[str, str], object] = {}
    for connector, part, offset in records:
        # In any order of the fields, as hash maps of other processes have them.
        turned = dict(reversed(part.items()))
        key = json.dumps([connector, turned]).encode()
        book.replay(key, None if offset is None else json.dumps(offset).encode())
        expected[connector, json.dumps(part, sort_keys=True)] = offset
    for connector, part, _ in records:
        assert book.offset(connector, part) == expected[connector, json.dumps(part, sort_keys=True)]  # type: ignore[arg-type]
        assert part_id(part) == part_id(dict(reversed(part.items())))  # type: ignore[arg-type]
