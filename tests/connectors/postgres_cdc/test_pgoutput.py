"""Messages of pgoutput: what an encoder by the manual writes is read; anything else is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.postgres_cdc.pgoutput import (
    UNCHANGED,
    Begin,
    Columns,
    Commit,
    Delete,
    Insert,
    Keepalive,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    RelationColumn,
    TruncateTables,
    TypeMessage,
    Update,
    XLogData,
    decode_frame,
    decode_message,
    lsn_of,
    lsn_text,
    standby_status,
)
from streamlog.errors import CorruptData

EPOCH_MS = 946_684_800_000

lsns = st.integers(0, 2**64 - 1)
oids = st.integers(0, 2**32 - 1)
times = st.integers(EPOCH_MS, EPOCH_MS + 10**12)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
rows = st.lists(st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=30)), max_size=6).map(
    tuple
)
columns = st.builds(RelationColumn, names, st.booleans(), oids, st.integers(-(2**31), 2**31 - 1))
messages = st.one_of(
    st.builds(Begin, lsns, times, oids),
    st.builds(Commit, lsns, lsns, times),
    st.builds(Origin, lsns, names),
    st.builds(LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=30)),
    st.builds(
        Relation, oids, names.filter(bool), names, st.sampled_from("dnfi"),
        st.lists(columns, max_size=4).map(tuple),
    ),
    st.builds(TypeMessage, oids, names, names),
    st.builds(Insert, oids, rows),
    st.builds(Update, oids, st.none(), st.just(False), rows),
    st.builds(Update, oids, rows, st.booleans(), rows),
    st.builds(Delete, oids, rows, st.booleans()),
    st.builds(TruncateTables, st.lists(oids, max_size=4).map(tuple), st.booleans(), st.booleans()),
)  # fmt: skip


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def row(values: Columns) -> bytes:
    parts = [struct.pack(">h", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            assert isinstance(value, bytes)
            parts.append(b"t" + struct.pack(">i", len(value)) + value)
    return b"".join(parts)


def encoded(message: Message) -> bytes:  # noqa: C901, PLR0911 - one line a message
    match message:
        case Begin(lsn, ms, xid):
            return b"B" + struct.pack(">QqI", lsn, (ms - EPOCH_MS) * 1000, xid)
        case Commit(lsn, end, ms):
            return b"C\0" + struct.pack(">QQq", lsn, end, (ms - EPOCH_MS) * 1000)
        case Origin(lsn, name):
            return b"O" + struct.pack(">Q", lsn) + text(name)
        case LogicalMessage(inside, lsn, prefix, content):
            head = struct.pack(">BQ", inside, lsn) + text(prefix)
            return b"M" + head + struct.pack(">i", len(content)) + content
        case Relation(oid, namespace, name, identity, described):
            parts = [b"R", struct.pack(">I", oid), text(namespace), text(name), identity.encode()]
            parts.append(struct.pack(">h", len(described)))
            for each in described:
                kind = struct.pack(">Ii", each.type_oid, each.modifier)
                parts.append(bytes([each.is_key]) + text(each.name) + kind)
            return b"".join(parts)
        case TypeMessage(oid, namespace, name):
            return b"Y" + struct.pack(">I", oid) + text(namespace) + text(name)
        case Insert(oid, new):
            return b"I" + struct.pack(">I", oid) + b"N" + row(new)
        case Update(oid, old, is_full, new):
            before = b"" if old is None else (b"O" if is_full else b"K") + row(old)
            return b"U" + struct.pack(">I", oid) + before + b"N" + row(new)
        case Delete(oid, old, is_full):
            return b"D" + struct.pack(">I", oid) + (b"O" if is_full else b"K") + row(old)
        case TruncateTables(relations, cascade, restart):
            head = struct.pack(">iB", len(relations), cascade + 2 * restart)
            return b"T" + head + b"".join(struct.pack(">I", each) for each in relations)


@given(messages)
def test_messages_are_read(message: Message) -> None:
    assert decode_message(encoded(message)) == message


@given(messages, st.data())
def test_a_message_that_is_cut_off_or_too_long_is_refused(
    message: Message, data: st.DataObject
) -> None:
    whole = encoded(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptData):
        decode_message(whole[:cut])
    with pytest.raises(CorruptData):
        decode_message(whole + b"\0")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in (decode_message, decode_frame):
        try:
            decode(data)
        except CorruptData:
            continue


@given(lsns, lsns, st.binary(max_size=20), st.booleans())
def test_frames_are_read(start: int, end: int, message: bytes, asks: bool) -> None:
    data = b"w" + struct.pack(">QQq", start, end, 0) + message
    assert decode_frame(data) == XLogData(start, message)
    assert decode_frame(b"k" + struct.pack(">QqB", end, 0, asks)) == Keepalive(end, asks)


def test_the_status_of_a_standby() -> None:
    found = standby_status(7, 5, EPOCH_MS + 2, wants_reply=True)
    assert found == b"r" + struct.pack(">QQQqB", 7, 5, 5, 2_000, 1)


def test_an_empty_namespace_is_the_catalogue() -> None:
    found = decode_message(encoded(Relation(1, "", "pg_class", "n", ())))
    assert isinstance(found, Relation)
    assert found.namespace == "pg_catalog"


@given(lsns)
def test_lsns_as_text(lsn: int) -> None:
    assert lsn_of(lsn_text(lsn)) == lsn


def test_lsns_as_postgres_writes_them() -> None:
    assert lsn_text(0x16B3748) == "0/16B3748"
    assert lsn_of("A/FF") == (10 << 32) + 255
    for wrong in ("", "7", "0/x", "1FFFFFFFF/0"):
        with pytest.raises(CorruptData, match="not a place in the WAL"):
            lsn_of(wrong)
