"""pgoutput: the messages of PostgreSQL's logical replication, protocol version 1, decoded.

The stream is framed twice. A frame of the copy is XLogData with one message of pgoutput, or a
keepalive; `decode_frame` takes it apart, `decode_message` decodes what is inside, and
`standby_status` builds the only answer there is. Names and layouts are those of PostgreSQL's
manual, chapters "Streaming Replication Protocol" and "Logical Replication Message Formats".

Rule: pure, and strict. Each message is read to its last byte; anything else is `CorruptData`,
because a decoder that guesses would write wrong rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from streamlog.errors import CorruptData

UNCHANGED: Final = object()
"""A column that the change has not touched and that is stored out of line (TOAST), so that the
server does not send it."""
Column: TypeAlias = object
"""A value as text, None, or UNCHANGED."""
Columns: TypeAlias = tuple[Column, ...]

POSTGRES_EPOCH_MS: Final = 946_684_800_000
"""Midnight of 2000-01-01 UTC, from where PostgreSQL counts microseconds."""
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_UINT64: Final = struct.Struct(">Q")
_INT64: Final = struct.Struct(">q")
_STATUS: Final = struct.Struct(">cQQQqB")
XLOG_HEAD_BYTES: Final = 25
_ROW_KINDS: Final = frozenset({b"I", b"U"})


@dataclass(frozen=True, slots=True)
class XLogData:
    """A message with its place in the WAL.

    Attributes:
        start_lsn: where the change stands; 0 for messages that stand nowhere.
        message: the message.
    """

    start_lsn: int
    message: bytes


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A sign of life.

    Attributes:
        end_lsn: everything that committed before was sent.
        wants_reply: whether the server closes the connection unless it gets a status soon.
    """

    end_lsn: int
    wants_reply: bool


@dataclass(frozen=True, slots=True)
class Begin:
    """The start of a committed transaction.

    Attributes:
        final_lsn: where its commit stands.
        commit_ms: when it committed, in milliseconds since 1970.
        xid: its number, 32 bits.
    """

    final_lsn: int
    commit_ms: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction.

    Attributes:
        commit_lsn: where the commit stands.
        end_lsn: the place behind it.
        commit_ms: when, in milliseconds since 1970.
    """

    commit_lsn: int
    end_lsn: int
    commit_ms: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a transaction came from, if it was replicated itself."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What `pg_logical_emit_message` has written.

    Attributes:
        is_transactional: whether it belongs to its transaction.
        lsn: where it stands.
        prefix: its prefix.
        content: its content.
    """

    is_transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column of a relation.

    Attributes:
        name: its name.
        is_key: whether it belongs to the replica identity.
        type_oid: its type.
        modifier: the type's modifier, -1 for none.
    """

    name: str
    is_key: bool
    type_oid: int
    modifier: int


@dataclass(frozen=True, slots=True)
class Relation:
    """What a table looks like from here on.

    Attributes:
        oid: its number in the changes.
        namespace: its schema.
        name: its name.
        identity: its replica identity: "d" default, "n" nothing, "f" full, "i" index.
        columns: its published columns.
    """

    oid: int
    namespace: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class TypeMessage:
    """The name of a type that is not built in."""

    oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation: int
    new: Columns


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row.

    Attributes:
        relation: the table.
        old: the row before, if it was sent.
        is_full: whether `old` has all columns (replica identity full), or the key alone.
        new: the row after.
    """

    relation: int
    old: Columns | None
    is_full: bool
    new: Columns


@dataclass(frozen=True, slots=True)
class Delete:
    """A row that is gone; `old` has its key, or all columns if `is_full`."""

    relation: int
    old: Columns
    is_full: bool


@dataclass(frozen=True, slots=True)
class TruncateTables:
    """Tables that were emptied."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


Change: TypeAlias = Insert | Update | Delete | TruncateTables
Message: TypeAlias = Change | Begin | Commit | Origin | LogicalMessage | Relation | TypeMessage


class _Reader:
    """Reads the fields of one message; each step checks that the bytes are there."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 1

    def number(self, kind: struct.Struct) -> int:
        try:
            (found,) = kind.unpack_from(self.data, self.at)
        except struct.error as error:
            raise self.corrupt("it is cut off") from error
        self.at += kind.size
        return int(found)

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise self.corrupt("it is cut off")
        self.at += 1
        return self.data[self.at - 1]

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise self.corrupt("a text has no end")
        found, self.at = self.data[self.at : end], end + 1
        try:
            return found.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt("a text is not UTF-8") from error

    def raw(self, length: int) -> bytes:
        end = self.at + length
        if length < 0 or end > len(self.data):
            raise self.corrupt("it is cut off")
        found, self.at = self.data[self.at : end], end
        return found

    def milliseconds(self) -> int:
        return POSTGRES_EPOCH_MS + self.number(_INT64) // 1_000

    def columns(self) -> Columns:
        """Read a row."""
        try:
            return self._columns(self.number(_INT16))
        except (IndexError, struct.error) as error:
            raise self.corrupt("a row is cut off") from error

    def _columns(self, count: int) -> Columns:
        """Read the values of a row, where a decoder spends most of its time."""
        data, at = self.data, self.at
        found: list[Column] = []
        for _ in range(count):
            kind = data[at]
            at += 1
            if kind == 116:  # noqa: PLR2004 - t: text
                (length,) = _INT32.unpack_from(data, at)
                start = at + 4
                at = start + length
                if length < 0 or at > len(data):
                    raise self.corrupt("a value is cut off")
                found.append(data[start:at])
            elif kind == 110:  # noqa: PLR2004 - n: null
                found.append(None)
            elif kind == 117:  # noqa: PLR2004 - u: unchanged TOAST
                found.append(UNCHANGED)
            else:
                raise self.corrupt(f"a value has the unknown kind {chr(kind)!r}")
        self.at = at
        return tuple(found)

    def corrupt(self, why: str) -> CorruptData:
        return CorruptData(f"pgoutput message {self.data[:1]!r}, {len(self.data)} bytes: {why}")


def decode_frame(frame: bytes) -> XLogData | Keepalive:
    """Return what a frame of the copy has.

    Raises:
        CorruptData: it is neither XLogData nor a keepalive.
    """
    # Nearly all frames, without a reader; the fields between are the end of the WAL and a clock.
    if frame[:1] == b"w" and len(frame) >= XLOG_HEAD_BYTES:
        return XLogData(_UINT64.unpack_from(frame, 1)[0], frame[XLOG_HEAD_BYTES:])
    reader = _Reader(frame)
    match frame[:1]:
        case b"k":
            end = reader.number(_UINT64)
            reader.raw(8)
            return Keepalive(end, reader.byte() == 1)
        case _:
            raise reader.corrupt("it is no frame of replication, or cut off")


def relation_of(frame: bytes) -> int:
    """Return the relation of a frame with an insert or an update; -1 of any other frame."""
    if frame[XLOG_HEAD_BYTES : XLOG_HEAD_BYTES + 1] not in _ROW_KINDS or frame[:1] != b"w":
        return -1
    return int.from_bytes(frame[XLOG_HEAD_BYTES + 1 : XLOG_HEAD_BYTES + 5])


def is_insert(frame: bytes) -> bool:
    """Whether a frame has an insert."""
    return frame[XLOG_HEAD_BYTES : XLOG_HEAD_BYTES + 1] == b"I"


def start_of(frame: bytes) -> int:
    """Return where the change of a frame stands in the WAL; 0 of one that is no XLogData."""
    is_data = frame[:1] == b"w" and len(frame) >= XLOG_HEAD_BYTES
    return int(_UINT64.unpack_from(frame, 1)[0]) if is_data else 0


def standby_status(received: int, flushed: int, now_ms: int, *, wants_reply: bool = False) -> bytes:
    """Return the status that a standby sends.

    Args:
        received: up to where the stream was received.
        flushed: up to where it is durable here: the server may drop the WAL before.
        now_ms: the time, in milliseconds since 1970.
        wants_reply: whether the server should answer with a keepalive at once.
    """
    clock = (now_ms - POSTGRES_EPOCH_MS) * 1_000
    return _STATUS.pack(b"r", received, flushed, flushed, clock, wants_reply)


def decode_message(data: bytes) -> Message:
    """Return a message of pgoutput.

    Raises:
        CorruptData: the message is unknown, cut off, or longer than it says.
    """
    # Streamed transactions (S, E, c, A) need protocol version 2, which nothing asks for.
    decode = _DECODERS.get(data[:1])
    reader = _Reader(data)
    if decode is None:
        raise reader.corrupt("it is unknown in protocol version 1")
    found = decode(reader)
    if reader.at != len(data):
        raise reader.corrupt(f"it ends at byte {reader.at}")
    return found


def _begin(reader: _Reader) -> Begin:
    final_lsn, commit_ms = reader.number(_UINT64), reader.milliseconds()
    return Begin(final_lsn, commit_ms, reader.number(_UINT32))


def _commit(reader: _Reader) -> Commit:
    reader.byte()
    return Commit(reader.number(_UINT64), reader.number(_UINT64), reader.milliseconds())


def _origin(reader: _Reader) -> Origin:
    return Origin(reader.number(_UINT64), reader.text())


def _logical_message(reader: _Reader) -> LogicalMessage:
    is_transactional = reader.byte() == 1
    lsn, prefix = reader.number(_UINT64), reader.text()
    return LogicalMessage(is_transactional, lsn, prefix, reader.raw(reader.number(_INT32)))


def _relation(reader: _Reader) -> Relation:
    oid, namespace, name = reader.number(_UINT32), reader.text(), reader.text()
    identity = chr(reader.byte())
    columns = []
    for _ in range(reader.number(_INT16)):
        is_key = reader.byte() & 1 == 1
        column = reader.text()
        type_oid, modifier = reader.number(_UINT32), reader.number(_INT32)
        columns.append(RelationColumn(column, is_key, type_oid, modifier))
    # pg_catalog is sent as an empty name.
    return Relation(oid, namespace or "pg_catalog", name, identity, tuple(columns))


def _type(reader: _Reader) -> TypeMessage:
    return TypeMessage(reader.number(_UINT32), reader.text(), reader.text())


def _insert(reader: _Reader) -> Insert:
    relation = reader.number(_UINT32)
    if reader.byte() != ord("N"):
        raise reader.corrupt("an insert has no new row")
    return Insert(relation, reader.columns())


def _update(reader: _Reader) -> Update:
    relation = reader.number(_UINT32)
    kind = reader.byte()
    old = None
    is_full = kind == ord("O")
    if is_full or kind == ord("K"):
        old = reader.columns()
        kind = reader.byte()
    if kind != ord("N"):
        raise reader.corrupt("an update has no new row")
    return Update(relation, old, is_full, reader.columns())


def _delete(reader: _Reader) -> Delete:
    relation = reader.number(_UINT32)
    kind = reader.byte()
    if kind not in b"KO":
        raise reader.corrupt("a delete has no old row")
    return Delete(relation, reader.columns(), kind == ord("O"))


def _truncate(reader: _Reader) -> TruncateTables:
    count, options = reader.number(_INT32), reader.byte()
    if not 0 <= count <= len(reader.data):
        raise reader.corrupt(f"it names {count} tables")
    relations = tuple(reader.number(_UINT32) for _ in range(count))
    return TruncateTables(relations, options & 1 == 1, options & 2 == 2)  # noqa: PLR2004 - bits


_DECODERS: Final[Mapping[bytes, Callable[[_Reader], Message]]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"M": _logical_message,
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
}


def lsn_text(lsn: int) -> str:
    """Return a place in the WAL as PostgreSQL writes it, such as "0/16B3748"."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """Return a place in the WAL from PostgreSQL's text.

    Raises:
        CorruptData: the text is none.
    """
    high, slash, low = text.partition("/")
    try:
        found = (int(high, 16) << 32) | int(low, 16)
    except ValueError as error:
        raise CorruptData(f"{text!r} is not a place in the WAL: write it as 0/16B3748") from error
    if not slash or found >= 1 << 64:
        raise CorruptData(f"{text!r} is not a place in the WAL: write it as 0/16B3748")
    return found
