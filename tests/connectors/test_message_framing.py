from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.message_framing import Framer, LineFramer, SyslogFramer
from streamlog.errors import CorruptData

CUTS = st.lists(st.integers(1, 7), max_size=30)


def feed(framer: Framer, data: bytes, cuts: list[int]) -> list[bytes]:
    found: list[bytes] = []
    for size in [*cuts, len(data)]:
        found += framer.feed(data[:size])
        data = data[size:]
    return found + framer.finish()


@given(st.lists(st.binary(max_size=9).map(lambda b: b.translate(None, b"\r\n"))), CUTS)
def test_lines_do_not_depend_on_packets(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(line + b"\r\n" for line in lines)
    assert feed(LineFramer(), data, cuts) == lines


def test_a_last_line_needs_no_end() -> None:
    assert feed(LineFramer(), b"a\n\nb", []) == [b"a", b"", b"b"]


@given(st.integers(1, 9), CUTS)
def test_a_long_line_is_cut_and_bounded(size: int, cuts: list[int]) -> None:
    framer = LineFramer(size)
    data = b"0123456789abcdef\nx\n"
    pieces = feed(framer, data, cuts)
    assert max(map(len, pieces)) <= size
    assert b"".join(pieces) == data.replace(b"\n", b"")


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=9)), max_size=9), CUTS)
def test_counted_and_ended_messages_may_be_mixed(
    parts: list[tuple[bool, bytes]], cuts: list[int]
) -> None:
    data, expected = b"", []
    for is_counted, content in parts:
        message = b"<34>" + (content if is_counted else content.translate(None, b"\r\n"))
        data += b"%d %s" % (len(message), message) if is_counted else message + b"\n"
        expected.append(message)
    assert feed(SyslogFramer(), data, cuts) == expected


def test_counted_messages_may_be_followed_by_line_feeds() -> None:
    assert feed(SyslogFramer(), b"4 <34>\n4 <35>\n", [3]) == [b"<34>", b"<35>"]


@pytest.mark.parametrize("data", [b"99999999999", b"12x <34>", b"2000000 <34>", b"12345678 <34>"])
def test_wrong_counts_end_the_connection(data: bytes) -> None:
    with pytest.raises(CorruptData, match="octet count"):
        SyslogFramer().feed(data)


def test_a_message_without_an_end_is_bounded() -> None:
    assert feed(SyslogFramer(4), b"<34>abcdefg\n", []) == [b"<34>", b"abcd", b"efg"]
