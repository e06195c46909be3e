from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.tail.line_cutting import cut_records

TEXT = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"+"]), max_size=40).map(b"".join)
FIRST_LINE = re.compile(rb"[^+]")


def cut_all(
    data: bytes, length: int, steps: list[int], first_line: re.Pattern[bytes] | None = None
) -> list[bytes]:
    """Cut as a reader does while the file grows by steps; the end of the file ends all."""
    records: list[bytes] = []
    at = end = 0
    for step in [*steps, len(data)]:
        end = min(len(data), end + step)
        is_final = end == len(data)
        while True:
            cut = cut_records(
                data[at:end], record_bytes_max=length, first_line=first_line, is_final=is_final
            )
            records += cut.records
            at += cut.size_bytes
            if not cut.size_bytes:
                break
    return records


def test_an_unfinished_line_waits() -> None:
    cut = cut_records(b"one\ntwo\r\nthr", record_bytes_max=100)
    assert (cut.records, cut.size_bytes) == ([b"one", b"two"], 9)
    assert cut_records(b"thr", record_bytes_max=100).size_bytes == 0
    assert cut_records(b"thr", record_bytes_max=100, is_final=True).records == [b"thr"]


def test_a_long_line_is_cut_into_pieces_and_nothing_of_it_is_lost() -> None:
    cut = cut_records(b"0123456789", record_bytes_max=4)
    assert (cut.records, cut.size_bytes, cut.is_long) == ([b"0123"], 4, True)
    assert cut_all(b"x\n0123456789\ny\n", 4, []) == [b"x", b"0123", b"4567", b"89", b"y"]


def test_lines_of_a_stack_trace_are_one_record() -> None:
    data = b"12 error\n  at a\n  at b\n13 fine\n14 "
    cut = cut_records(data, record_bytes_max=100, first_line=re.compile(rb"\d"))
    assert cut.records == [b"12 error\n  at a\n  at b"], "13 may get further lines"
    assert data[cut.size_bytes :] == b"13 fine\n14 "


def test_a_record_of_too_many_lines_ends_between_two_lines() -> None:
    data = b"1a\n+b\n+c\n+d\n2e\n"
    assert cut_all(data, 5, [], FIRST_LINE) == [b"1a\n+b", b"+c\n+d", b"2e"]


@given(TEXT, st.lists(st.integers(1, 9), max_size=20))
def test_records_do_not_depend_on_when_a_line_is_seen(data: bytes, steps: list[int]) -> None:
    expected = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    if not expected[-1]:
        expected.pop()
    assert cut_all(data, 1_000, steps) == expected


@given(TEXT, st.lists(st.integers(1, 9), max_size=20))
def test_records_of_several_lines_do_not_depend_on_when_they_are_seen(
    data: bytes, steps: list[int]
) -> None:
    assert cut_all(data, 1_000, steps, FIRST_LINE) == cut_all(data, 1_000, [], FIRST_LINE)


@given(TEXT, st.integers(1, 6))
def test_no_byte_of_a_long_line_is_lost(data: bytes, length: int) -> None:
    data = data.replace(b"\r", b"")
    joined = b"".join(cut_all(data, length, [])).replace(b"\n", b"")
    assert joined == data.replace(b"\n", b"")
