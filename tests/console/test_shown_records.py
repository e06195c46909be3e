"""Bytes of any kind become text that is bounded and says what it is."""

from __future__ import annotations

import json
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from streamlog.console.shown_records import (
    FORMS,
    LEAST_MAX,
    PAGE_MAX,
    SHOWN_BYTES_MAX,
    SUMMARY_MAX,
    Form,
    filtered,
    hex_dump,
    show,
    show_all,
    show_bytes,
)
from streamlog.records.log_record import LogRecord

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(st.binary(max_size=300) | st.just(b"[" * 100_000), st.sampled_from(FORMS))
def test_any_bytes_can_be_shown(data: bytes, form: Form) -> None:
    shown = show_bytes(data, form)
    assert shown.size == len(data)
    assert len(shown.text) <= SHOWN_BYTES_MAX
    assert len(shown.summary) <= SUMMARY_MAX
    assert "\n" not in shown.summary
    filtered(0, LogRecord(0, 0, data, data))


@given(st.dictionaries(st.text(max_size=4), JSON, min_size=1))
def test_json_is_shown_as_the_value_that_it_is(value: object) -> None:
    data = json.dumps(value).encode()
    shown = show_bytes(data)
    assert shown.kind == "JSON"
    assert json.loads(shown.text) == value
    assert filtered(0, LogRecord(0, 0, None, data)).value == value


@given(st.binary(max_size=200))
def test_a_dump_can_be_read_back(data: bytes) -> None:
    lines = hex_dump(data).splitlines()
    assert bytes.fromhex("".join(line[8:55] for line in lines)) == data


def test_kinds() -> None:
    assert show_bytes(None).kind == "null"
    assert show_bytes(b"").kind == "empty"
    assert show_bytes(b"Ann Smith").kind == "text"
    assert show_bytes(b"\x01\x02\xff").kind == "hex"
    assert show_bytes(b"a\x1b[31m").kind == "hex"
    assert show_bytes(b'{"a": 1}', "text").text == '{"a": 1}'
    assert show_bytes(b"\xff", "text").kind == "hex"


def test_the_frame_of_a_registry_is_named() -> None:
    shown = show_bytes(b"\0\0\0\0\x07" + b'{"a":1}')
    assert (shown.schema_id, shown.kind, shown.size) == (7, "JSON", 12)
    assert show_bytes(b"\0\0\0\0\x07").schema_id is None


def test_what_is_left_out_is_named() -> None:
    assert show_bytes(b"x" * (SHOWN_BYTES_MAX + 1)).is_cut
    assert show_bytes(b"\xff" * SHOWN_BYTES_MAX).is_cut
    many = LogRecord(0, 0, None, None, tuple((str(n), b"") for n in range(130)))
    shown = show(1, many)
    assert (len(shown.headers), shown.more_headers) == (100, 30)


def test_json_is_shown_as_it_was_written() -> None:
    given = b'{"a":1.00000000000000000001,"a":1e999,"b":[],"c":{"d":[1,{}]},"e":"\\u00e9,[]"}'
    assert show_bytes(given).text == (
        '{\n  "a": 1.00000000000000000001,\n  "a": 1e999,\n  "b": [],\n  "c": {\n    "d": [\n'
        '      1,\n      {}\n    ]\n  },\n  "e": "é,[]"\n}'
    )


@given(JSON)
def test_json_is_laid_out_as_by_the_standard_library(value: object) -> None:
    data = json.dumps(value).encode()
    assert show_bytes(data, "json").text == json.dumps(value, indent=2, ensure_ascii=False)


def test_half_a_letter_is_shown_by_its_number() -> None:
    for half in (b'"\\ud800"', b'{"\\udfff": "\\ud83d\\ude00"}'):
        shown = show_bytes(half)
        assert shown.kind == "JSON"
        # A page is sent as UTF-8, which has no halves.
        assert json.loads(shown.text.encode()) == json.loads(half)


def test_deep_json_takes_no_more_memory_than_it_is_worth() -> None:
    # Laid out in full, these 180 kB would be 110 MB of indents.
    nested = b"[" + b",".join([b"[" * 300 + b"]" * 300] * 300) + b"]"
    tracemalloc.start()
    try:
        assert show_bytes(nested).is_cut
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@given(st.sampled_from([b"<", b"\xff", b"[1,2]", b"\xc3\xa9"]), st.sampled_from(FORMS))
def test_a_page_of_large_records_is_bounded_and_begins_with_a_whole_one(
    piece: bytes, form: Form
) -> None:
    value = piece * 30_000
    shown = [*show_all([(0, LogRecord(n, 0, value, value)) for n in range(60)], form)]
    assert sum(len(each.key.text) + len(each.value.text) for each in shown) < (
        PAGE_MAX + 2 * SHOWN_BYTES_MAX + 60 * 2 * LEAST_MAX
    )
    assert shown[0].value == show_bytes(value, form)
    assert all(each.value.is_cut and each.value.size == len(value) for each in shown[40:])


def test_a_letter_at_the_end_of_what_is_shown_is_whole() -> None:
    for front in range(4):
        shown = show_bytes(b"x" * front + "😀".encode() * 100, limit=50)
        assert (shown.kind, shown.text, shown.is_cut) == (
            "text",
            "x" * front + "😀" * (50 - front),
            True,
        )
