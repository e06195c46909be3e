"""Rows that are read in one pass equal those that `pgoutput` and its decoders read step by step."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.row_spans.copied_rows import copied_fields
from streamlog.connectors.postgres_cdc.change_stream import CapturedTable, TableRun, TableShape
from streamlog.connectors.postgres_cdc.pgoutput import (
    UNCHANGED,
    Insert,
    Relation,
    RelationColumn,
    Update,
    XLogData,
    decode_frame,
    decode_message,
    is_insert,
    relation_of,
    start_of,
)
from streamlog.connectors.postgres_cdc.row_values import TypeCatalogue

OID = 16_384
TYPES = {"id": 20, "flag": 16, "name": 25, "amount": 1700, "small": 21, "tags": 1009, "at": 1184}
CATALOGUE = TypeCatalogue({}, {}, frozenset())
SHAPE = TableShape.of(
    CapturedTable("public.t", ("id",)),
    Relation(
        OID,
        "public",
        "t",
        "d",
        tuple(RelationColumn(name, name == "id", oid, -1) for name, oid in TYPES.items()),
    ),
    CATALOGUE,
    "rows",
)
TEXTS = st.one_of(
    st.integers(-(2**64), 2**64).map(lambda number: b"%d" % number),
    st.sampled_from(
        [b"", b"t", b"f", b"-", b"-0", b"007", b"1.50", b"NaN", b"{a,NULL}", b"\\N", b"\\",
         b"a\tb\n", b"2026-01-02 03:04:05+00", b"9" * 18, b"9" * 19, b"-" + b"9" * 18,
         b"\xff", b"1 "],
    ),
    st.text(max_size=20).map(lambda text: text.replace("\0", "").encode()),
)  # fmt: skip
ROWS = st.lists(st.none() | TEXTS, min_size=len(TYPES), max_size=len(TYPES))


def frame_of(row: list[object], kind: bytes = b"I", oid: int = OID) -> bytes:
    parts = [b"w", struct.pack(">QQq", 77, 99, 5), kind, struct.pack(">I", oid), b"N"]
    parts.append(struct.pack(">h", len(row)))
    for value in row:
        if value is None or value is UNCHANGED:
            parts.append(b"n" if value is None else b"u")
        else:
            assert isinstance(value, bytes)
            parts += [b"t", struct.pack(">i", len(value)), value]
    return b"".join(parts)


def step_by_step(frame: bytes) -> object:
    found = decode_frame(frame)
    assert isinstance(found, XLogData)
    change = decode_message(found.message)
    assert isinstance(change, Insert | Update)
    return SHAPE.row(change.new)


@given(st.lists(st.tuples(ROWS, st.sampled_from([b"I", b"U"])), max_size=4), st.integers(0, 2))
def test_rows_are_those_that_the_decoders_read(
    changes: list[tuple[list[object], bytes]], start: int
) -> None:
    frames = [frame_of(row, kind) for row, kind in changes]
    rows = SHAPE.reader.rows(frames, start)
    named = SHAPE.named(rows)
    assert repr([*named]) == repr([step_by_step(frame) for frame in frames[start:]])
    assert SHAPE.keys(named, "rows") == [row["id"] for row in named]


@given(
    st.sampled_from([(), ("id",), ("name", "id")]),
    st.lists(
        st.lists(st.tuples(*[st.integers(0, 9)] * len(TYPES)), max_size=3) | st.integers(0, 9)
    ),
)
def test_a_run_has_its_rows_and_deletions_in_their_order(
    key: tuple[str, ...], adds: list[list[tuple[object, ...]] | int]
) -> None:
    run = TableRun(replace(SHAPE, key_at=tuple([*TYPES].index(each) for each in key)))
    wanted: list[tuple[object, object, int]] = []
    for time_ms, added in enumerate(adds):
        if isinstance(added, int):
            run.add([added], [None], time_ms)
            wanted.append((added, None, time_ms))
            continue
        run.add_rows(added, time_ms)
        for values in added:
            row = dict(zip(TYPES, values, strict=True))
            many = {name: row[name] for name in key} or None
            wanted.append((row["id"] if key == ("id",) else many, row, time_ms))
    keys, values = run.columns()
    found = [*zip(keys or [None] * len(values), values, run.times_ms, strict=True)]
    assert found == wanted
    assert [(each.key, each.value) for each in run.records()] == [each[:2] for each in wanted]


OTHERS = [
    frame_of([b"1"] * len(TYPES), oid=OID + 1),
    frame_of([b"1"] * len(TYPES), kind=b"D"),
    frame_of([b"1"] * (len(TYPES) - 1)),
    frame_of([UNCHANGED, *[b"1"] * (len(TYPES) - 1)]),
    frame_of([b"1"] * len(TYPES)) + b"\0",
    b"k" + bytes(17),
    b"",
]


@pytest.mark.parametrize("other", OTHERS)
def test_rows_end_at_a_frame_that_has_anything_else(other: bytes) -> None:
    row = frame_of([b"1"] * len(TYPES))
    assert len(SHAPE.reader.rows([row, row, other, row], 0)) == 2
    assert SHAPE.reader.rows([other], 0) == []


@given(ROWS, st.data())
def test_a_frame_that_is_cut_off_or_changed_is_never_misread(
    row: list[object], data: st.DataObject
) -> None:
    frame = frame_of(row)
    cut = data.draw(st.integers(0, len(frame) - 1))
    assert SHAPE.reader.rows([frame[:cut]], 0) == []
    at, byte = data.draw(st.integers(30, len(frame) - 1)), data.draw(st.integers(0, 255))
    changed = frame[:at] + bytes([byte]) + frame[at + 1 :]
    for found in SHAPE.named(SHAPE.reader.rows([changed], 0)):
        assert repr(found) == repr(step_by_step(changed))


def copied(row: list[bytes | None]) -> bytes:
    """Return a line of COPY, by the manual's table of escapes."""
    escapes = {b"\\": b"\\\\", b"\b": b"\\b", b"\f": b"\\f", b"\n": b"\\n", b"\r": b"\\r",
               b"\t": b"\\t", b"\v": b"\\v"}  # fmt: skip
    fields = [
        b"\\N"
        if value is None
        else b"".join(
            escapes.get(value[at : at + 1], value[at : at + 1]) for at in range(len(value))
        )
        for value in row
    ]
    return b"\t".join(fields) + b"\n"


@given(st.lists(ROWS, max_size=4))
def test_rows_of_copy_are_those_of_the_stream(rows: list[list[bytes | None]]) -> None:
    lines = [copied(row) for row in rows]
    assert [copied_fields(line) for line in lines] == [tuple(row) for row in rows]
    frames = [frame_of([*row]) for row in rows]
    assert repr(SHAPE.copied(b"".join(lines)).rows) == repr(SHAPE.reader.rows(frames, 0))


@pytest.mark.parametrize("fields", [0, len(TYPES) - 1, len(TYPES) + 1])
def test_a_line_of_another_number_of_columns_is_refused(fields: int) -> None:
    with pytest.raises(ValueError, match="has not 7 columns"):
        _ = SHAPE.copied(b"\t".join([b"1"] * fields) + b"\n").rows


def test_a_frame_says_what_it_has_and_where() -> None:
    frame = frame_of([b"1"])
    assert (relation_of(frame), is_insert(frame), start_of(frame)) == (OID, True, 77)
    update = frame_of([b"1"], kind=b"U")
    assert (relation_of(update), is_insert(update)) == (OID, False)
    for other in (b"", b"k" + bytes(17), frame_of([b"1"], kind=b"D")):
        assert relation_of(other) == -1
    assert start_of(b"k" + bytes(17)) == 0
