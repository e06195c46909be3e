"""One source, two builds: messages of syslog, valid and malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builds.sources import MISSING, REASON, both, same

pytestmark = pytest.mark.skipif(bool(MISSING), reason=REASON)
SCAN = both("streamlog.connectors.syslog.message_scan")
PIECES = [
    *(b"<13>1 ", b"<191>1 ", b"- ", b"-", b" ", b"[a ", b'x="1"', b'y="', b'"', b"]", b"] ", b"="),
    *(b"\\", b"\xff", b"\0", b"\t", b"\x80", b"text", b"<999999999999>1 "),
]


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=2), max_size=20).map(b"".join))
def test_messages_are_scanned_equally_in_both_builds(rest: bytes) -> None:
    for head in (b"", b"<13>1 ", b"<13>1 - - - - - ", b"<13>1 - - - - - [a x="):
        same(SCAN, lambda module, head=head: repr(module.scan_message(head + rest)))
