"""Keys with times: their bytes are ordered by key and time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.tables.stores.store import (
    TIME_MS_MAX,
    TIME_MS_MIN,
    escape_key,
    span_at,
    span_bytes,
    time_at,
    time_bytes,
    unescape_key,
)

keys = st.lists(st.sampled_from([b"\x00", b"\x01", b"\xff", b"a"]), max_size=5).map(b"".join)
times = st.integers(TIME_MS_MIN, TIME_MS_MAX)
pairs = st.tuples(keys | st.binary(max_size=4), times)


@given(first=pairs, second=pairs)
def test_timed_keys_are_ordered_by_key_and_time(
    first: tuple[bytes, int], second: tuple[bytes, int]
) -> None:
    written = [escape_key(key) + time_bytes(at) for key, at in (first, second)]
    assert (written[0] < written[1]) == (first < second)
    assert (written[0] == written[1]) == (first == second)


@given(key=keys | st.binary(max_size=6), at=times, rest=st.binary(max_size=3))
def test_timed_keys_round_trip(key: bytes, at: int, rest: bytes) -> None:
    data = escape_key(key) + time_bytes(at) + rest
    found, end = unescape_key(data)
    assert (found, time_at(data, end), data[end + 8 :]) == (key, at, rest)


@given(first=times, second=times, third=times, fourth=times)
def test_spans_are_ordered_by_start_and_end(
    first: int, second: int, third: int, fourth: int
) -> None:
    one, other = span_bytes(first, second), span_bytes(third, fourth)
    assert (one < other) == ((first, second) < (third, fourth))
    assert span_at(b"x" + one, 1) == (first, second)
    assert one == time_bytes(first) + time_bytes(second)


def test_a_time_out_of_range_is_clamped() -> None:
    assert time_bytes(TIME_MS_MAX + 5) == time_bytes(TIME_MS_MAX)
    assert time_bytes(TIME_MS_MIN - 5) == time_bytes(TIME_MS_MIN)
