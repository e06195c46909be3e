"""Paths of compiled modules that read and write records: a batch of `ROWS` rows in each.

`hot_paths` counts their instructions. Each path calls one module, or a few, as their callers do;
parts that need a broker, an event loop or a task are in `whole_paths`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Final

import msgspec

from benchmarks.callgrind import CountedPath
from streamlog.connect.arrow_columns import value_buffers
from streamlog.connect.row_spans.copied_rows import OTHER, TEXT, WHOLE_NUMBER, CopiedRows
from streamlog.connect.row_spans.json_rows import JsonForm
from streamlog.connectors.postgres_cdc.row_reader import RowReader
from streamlog.connectors.syslog.bsd_message_scan import scan_bsd_message
from streamlog.connectors.syslog.message_scan import scan_message
from streamlog.processing.windows.window_fold import Arrived, ResultColumns, Window, WindowFold
from streamlog.records.arrow import ArrowBuffers, BatchPayload
from streamlog.records.arrow_rows import ArrowRows, BinaryArray
from streamlog.records.batch import encode_batch, encode_columns, split_batches
from streamlog.records.builder import BatchBuilder
from streamlog.records.byte_spans import cut_lines
from streamlog.records.murmur2 import partitions_of_keys
from streamlog.records.record_columns import FieldColumns
from streamlog.records.record_scan import RecordScan
from streamlog.tables.folds.folding import Column, Columns, Row
from streamlog.tables.folds.plain_values import copied
from streamlog.tables.state.write_buffer import WriteBuffer

ROWS = 500
"""Rows of a batch."""
KEYS = [b"key-%d" % (number % 97) for number in range(ROWS)]
VALUES = [b'{"n":%d,"text":"' % number + b"x" * 40 + b'"}' for number in range(ROWS)]
TIMES = [1_700_000_000_000 + 7 * number for number in range(ROWS)]
PARTITIONS = 6
BATCH = encode_batch(
    [(at, key, value, ()) for at, key, value in zip(TIMES, KEYS, VALUES, strict=True)]
)
LINES = b"\n".join(VALUES) + b"\n"
COPIED = b"".join(b"%d\tname of %d\t%d.5\n" % (at, at, at) for at in range(ROWS))
KINDS = (WHOLE_NUMBER, TEXT, OTHER)
TABLE_ROWS = [(at, f"name of {at}", at + 0.5) for at in range(ROWS)]
FRAME = b"w" + bytes(24) + b"I" + struct.pack(">IBh", 7, ord("N"), len(KINDS))
FRAMES = [
    FRAME + b"".join(b"t" + struct.pack(">I", len(text)) + text for text in line.split(b"\t"))
    for line in COPIED.splitlines()
]
SYSLOG = b'<13>1 2026-01-02T03:04:05Z host app 7 id [a x="1" y="2"] a message of some length'
BSD = b"<13>Oct 11 22:14:15 host app[7]: a message of some length"
NO_HEADERS = [()] * ROWS
SOURCES = [("topic", 0)] * ROWS
JSON = {"n": 1, "list": [1, 2.5, "three", None], "dict": {"a": True}}


def rows_of_copy() -> CopiedRows:
    """Return what COPY has written."""
    return CopiedRows(COPIED, KINDS, [float] * len(KINDS))


FORM = JsonForm([b'{"id":', b',"name":', b',"price":'], range(3), [None] * 3, msgspec.json.encode)
READER = RowReader(7, KINDS, [float] * len(KINDS))


def arrow_rows() -> None:
    """Deal columns of Arrow to partitions, and write a batch of them."""
    ends = array("i", [0, *accumulate(map(len, KEYS))])
    keys = BinaryArray(0, ROWS, ends, b"".join(KEYS))
    rows = ArrowRows(keys, keys, array("q", TIMES))
    rows.arrange(rows.partitions_by_key(PARTITIONS, 0), PARTITIONS)
    builder = BatchBuilder()
    builder.take(rows, 0, ROWS, 2**20)
    builder.build()


def scan_records() -> None:
    """Check a batch as a broker does."""
    for batch in split_batches(BATCH):
        RecordScan(batch).read_plain(batch)


def read_into_arrow() -> None:
    """Read a batch into the columns that Spark gets."""
    for batch in split_batches(BATCH):
        ArrowBuffers(ROWS, len(BATCH)).read(BatchPayload(batch), 0, ROWS)


def append_records() -> None:
    """Build a batch record by record."""
    builder = BatchBuilder()
    for at, key, value in zip(TIMES, KEYS, VALUES, strict=True):
        builder.append(at, key, value)
    builder.build()


def deal_columns() -> None:
    """Deal records to partitions and size what fits into a batch."""
    columns = FieldColumns.alike(TIMES[0], KEYS, [*VALUES], ())
    for part in columns.parted(partitions_of_keys(KEYS, PARTITIONS), PARTITIONS):
        if part is not None:
            part.fitting(0, 2**20)


def fold_windows(step_ms: int) -> None:
    """Fold a batch into tumbling windows, or into hopping ones."""
    columns = Columns([Column("count", None), Column("sum", "n")], lambda *results: results, None)

    def open_window(start_ms: int, end_ms: int) -> Window:
        window = fold.windows[end_ms] = Window(start_ms, end_ms, is_whole=True)
        return window

    def load_row(window: Window, raw: bytes) -> Row:
        row = window.rows[raw] = Row(columns.initial(), TIMES[0], raw)
        return row

    fold = WindowFold(
        columns.add,
        columns.result,
        columns.initial,
        open_window=open_window,
        load_row=load_row,
        size_ms=1_000,
        step_ms=step_ms,
        grace_ms=10_000,
        on_update=True,
    )
    arrived = Arrived(KEYS, NUMBERS, TIMES, TIMES, SOURCES)
    run = fold.run_overlapping if step_ms else fold.run
    run(0, arrived, (TIMES[-1], TIMES[-1], TIMES[-1]), ResultColumns())


def write_state() -> None:
    """Keep what two commits change, as a store does."""
    buffer = WriteBuffer()
    for values in (VALUES, KEYS):
        buffer.put_all(KEYS, [*values], 0, ROWS)
    buffer.in_order()


def make_arrow_columns() -> None:
    """Make the columns of Parquet files out of values."""
    value_buffers.whole_numbers(TIMES)
    value_buffers.floats([row[2] for row in TABLE_ROWS])
    value_buffers.texts([row[1] for row in TABLE_ROWS])
    value_buffers.contents(VALUES)


NUMBERS = [SimpleNamespace(n=at) for at in range(ROWS)]
_RUNS: Final[dict[str, Callable[[], object]]] = {
    "encode records": lambda: encode_batch(list(zip(TIMES, KEYS, VALUES, NO_HEADERS, strict=True))),
    "encode columns": lambda: encode_columns(FieldColumns.alike(TIMES[0], KEYS, [*VALUES], ())),
    "append records one by one": append_records,
    "decode records": lambda: [batch.records() for batch in split_batches(BATCH)],
    "decode columns": lambda: [batch.columns() for batch in split_batches(BATCH)],
    "check records": scan_records,
    "deal columns to partitions": deal_columns,
    "deal Arrow rows to partitions": arrow_rows,
    "read into Arrow": read_into_arrow,
    "cut lines": lambda: cut_lines(LINES, len(LINES), 2**20),
    "rows to JSON": lambda: FORM.spans(TABLE_ROWS),
    "COPY to JSON": lambda: FORM.copied(rows_of_copy()),
    "COPY to rows": lambda: rows_of_copy().rows(),
    "changes of PostgreSQL to rows": lambda: READER.rows(FRAMES, 0),
    "rows to Arrow": make_arrow_columns,
    "syslog": lambda: [scan_message(SYSLOG) for _ in range(ROWS)],
    "syslog of BSD": lambda: [scan_bsd_message(BSD) for _ in range(ROWS)],
    "fold into tumbling windows": partial(fold_windows, 0),
    "fold into hopping windows": partial(fold_windows, 500),
    "state of two commits": write_state,
    "copy of a state": lambda: [copied(JSON) for _ in range(ROWS)],
}
PATHS: Final = {name: CountedPath(run, ROWS) for name, run in _RUNS.items()}
