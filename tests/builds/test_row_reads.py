"""One source, two builds: rows of PostgreSQL, valid and malformed."""

from __future__ import annotations

import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.row_spans.copied_rows import OTHER, TEXT, TRUTH, WHOLE_NUMBER
from tests.builds.sources import MISSING, REASON, both, outcome, same

pytestmark = pytest.mark.skipif(bool(MISSING), reason=REASON)
ROW_READER = both("streamlog.connectors.postgres_cdc.row_reader")
COPIED_ROWS = both("streamlog.connect.row_spans.copied_rows")
HEAD = b"w" + bytes(24) + b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">h", 4)
FIELDS = st.lists(
    st.sampled_from(
        [b"n", b"u", b"t\0\0\0\1t", b"t\0\0\0\3-12", b"t\0\0\0\0", b"t\xff\xff\xff\xff"]
    )
    | st.binary(max_size=6),
    max_size=5,
).map(b"".join)
LINES = st.lists(
    st.sampled_from([b"\t", b"\\N", b"\\", b"n", b"-7", b"9" * 17, b"t", b"\xff", b"\n"]),
    max_size=12,
).map(b"".join)


def reader(module: ModuleType) -> object:
    return module.RowReader(7, [OTHER, TEXT, WHOLE_NUMBER, TRUTH], [bytes] * 4)


@given(FIELDS, st.integers(0, 40))
def test_frames_are_read_equally_in_both_builds(fields: bytes, cut: int) -> None:
    frame = HEAD + fields
    frames = [frame, frame[:cut], frame]

    def act(module: ModuleType) -> object:
        return [repr(reader(module).rows(frames, start)) for start in range(-1, 4)]  # type: ignore[attr-defined]

    same(ROW_READER, act)


@given(LINES, st.integers(-1, 4), st.integers(0, 40))
def test_lines_of_copy_are_read_equally_in_both_builds(
    lines: bytes, column: int, limit: int
) -> None:
    def act(module: ModuleType) -> object:
        rows = module.CopiedRows(lines, [OTHER, TEXT, WHOLE_NUMBER, TRUTH], [bytes] * 4)
        within = module.copied_within(lines, limit, 3)
        return within, rows.count, outcome(lambda _: repr(rows.rows()), module), rows.column(column)

    same(COPIED_ROWS, act)
