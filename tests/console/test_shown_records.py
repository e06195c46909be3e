"""Bytes of any kind become text that is bounded and says what it is."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from streamlog.console.shown_records import (
    FORMS,
    SHOWN_BYTES_MAX,
    SUMMARY_MAX,
    Form,
    filtered,
    hex_dump,
    show,
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
