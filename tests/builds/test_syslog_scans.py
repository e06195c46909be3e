"""One source, two builds: messages of syslog, valid and malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builds.sources import MISSING, REASON, both, same

pytestmark = pytest.mark.skipif(bool(MISSING), reason=REASON)
BSD_SCAN = both("streamlog.connectors.syslog.bsd_message_scan")
SCAN = both("streamlog.connectors.syslog.message_scan")
PIECES = [
    *(b"<13>1 ", b"<191>1 ", b"- ", b"-", b" ", b"[a ", b'x="1"', b'y="', b'"', b"]", b"] ", b"="),
    *(b"\\", b"\xff", b"\0", b"\t", b"\x80", b"text", b"<999999999999>1 "),
]


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=2), max_size=20).map(b"".join))
def test_messages_are_scanned_equally_in_both_builds(rest: bytes) -> None:
    for head in (b"", b"<13>1 ", b"<13>1 - - - - - ", b"<13>1 - - - - - [a x="):
        same(SCAN, lambda module, head=head: repr(module.scan_message(head + rest)))


BSD_PIECES = [
    *(b"Oct 11 22:14:15 ", b"2026-01-02T03:04:05Z ", b"host ", b"app", b"[7]", b"[", b"]", b":"),
    *(b" ", b"\t", b"\n", b"<13>", b"<192>", b"1 ", b"a" * 48, b"\xff", b"\0", b"\x80"),
]


@given(st.lists(st.sampled_from(BSD_PIECES) | st.binary(max_size=2), max_size=20).map(b"".join))
def test_messages_of_bsd_are_scanned_equally_in_both_builds(rest: bytes) -> None:
    for head in (b"", b"<13>", b"<13>Oct 11 22:14:15 ", b"<999999999999>"):
        same(BSD_SCAN, lambda module, head=head: repr(module.scan_bsd_message(head + rest)))
