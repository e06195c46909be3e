"""What the compiled modules cost, in instructions of the processor for each row.

`python -m benchmarks.hot_paths` needs valgrind. One process runs each path over few and over many
batches; the difference counts, so neither the start of Python nor the making of the input does.
`getppid` marks the borders: valgrind writes down what it has counted whenever that is called.

`benchmarks/history.jsonl` has a line for each release and kind of build. A path that takes 5 % more
instructions than in the newest line for this kind fails; `--record` adds a line. Compare a path
only with itself: a vector instruction counts as one, and a wait for memory as none.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from streamlog.connect.arrow_columns import value_buffers
from streamlog.connect.row_spans.copied_rows import OTHER, TEXT, WHOLE_NUMBER, CopiedRows
from streamlog.connect.row_spans.json_rows import JsonForm
from streamlog.connectors.postgres_cdc.row_reader import RowReader
from streamlog.connectors.syslog.bsd_message_scan import scan_bsd_message
from streamlog.connectors.syslog.message_scan import scan_message
from streamlog.metrics.build_info import interpreted_modules, release
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
HISTORY = Path(__file__).parent / "history.jsonl"
LOSS_MAX = 0.05
"""Two runs of one build differ by less than 1 %."""
FEW, MANY = 2, 12
"""Batches: the first ones warm up what is made once."""
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
PATHS: dict[str, Callable[[], object]] = {
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


def work() -> None:
    """Run each path over few and over many batches; the counting program runs this."""
    for path in PATHS.values():
        for batches in (FEW, MANY):
            os.getppid()
            for _ in range(batches):
                path()
    os.getppid()


def count() -> dict[str, float]:
    """Return the instructions of each path for one row.

    Raises:
        SystemExit: the program failed; its output is the message.
    """
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *("valgrind", "--tool=callgrind", "--dump-before=getppid"),
            f"--callgrind-out-file={directory}/counts",
            *(sys.executable, "-m", "benchmarks.hot_paths", "--work"),
        ]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if run.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{run.stdout}{run.stderr}")
        dumps = sorted(Path(directory).glob("counts.*"), key=lambda path: int(path.suffix[1:]))
        totals = [_total(path) for path in dumps]
    # The first dump is the start of Python; its end has another name.
    few, many = totals[1::2], totals[2::2]
    return {
        name: (most - least) / ((MANY - FEW) * ROWS)
        for name, least, most in zip(PATHS, few, many, strict=True)
    }


def _total(dump: Path) -> int:
    found = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"valgrind has written no total into {dump}")
    return int(found[1])


def builder() -> dict[str, str]:
    """Return what decides on the number of instructions, besides the sources."""
    compiler = shutil.which("cc") or "cc"
    asked = [compiler, "-dumpfullversion"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True)
    return {
        "machine": platform.machine(),
        "python": f"{platform.python_version()} ({platform.python_compiler()})",
        "cc": version.stdout.strip(),
    }


def last_counts(lines: Sequence[str], built: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the newest entry of the history that was built alike; None if there is none."""
    entries = [entry for entry in map(json.loads, lines) if entry.get("built") == built]
    return entries[-1] if entries else None


def losses(before: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return the paths that take over `LOSS_MAX` more instructions, and those that are gone."""
    gone = [f"{name}: no longer counted" for name in before if name not in now]
    return gone + [
        f"{name}: {before[name]:.1f} -> {counted:.1f} ({counted / before[name] - 1:+.1%})"
        for name, counted in now.items()
        if name in before and counted > before[name] * (1 + LOSS_MAX)
    ]


def main() -> None:
    """Print the instructions of each path beside those in the history.

    Raises:
        SystemExit: a path has become dearer, or the counting program failed.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hot_paths", description=__doc__)
    parser.add_argument("--record", action="store_true", help="add a line to the history")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work()
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind counts the instructions: apt install valgrind")
    interpreted = interpreted_modules()
    if interpreted:
        raise SystemExit(f"{', '.join(interpreted)} not compiled: `make compile` does it")
    built, counted = builder(), count()
    lines = HISTORY.read_text().splitlines() if HISTORY.exists() else []
    last = last_counts(lines, built)
    before = {} if last is None else last["instructions"]
    for name, instructions in counted.items():
        change = f"{instructions / before[name] - 1:+7.1%}" if name in before else "    new"
        print(f"{instructions:10.1f} {change}  {name}")
    if last is None:
        print(f"{HISTORY.name} has no line for {built}: --record adds one")
    if given.record:
        rounded = {name: round(instructions, 1) for name, instructions in counted.items()}
        date = datetime.now(UTC).date().isoformat()
        entry = {"date": date, "release": release(), "built": built, "instructions": rounded}
        HISTORY.write_text("\n".join([*lines, json.dumps(entry)]) + "\n")
    elif found := losses(before, counted):
        raise SystemExit("\n".join(["dearer than in the history:", *found]))


if __name__ == "__main__":
    main()
