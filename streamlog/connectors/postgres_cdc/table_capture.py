"""Capture: one life of `PostgresCdc`, from the checks of the server to the Reads.

It moves frames from the stream into `ChangeStream`, chunks from the tables into `ChunkedSnapshot`,
and what both decide into Reads. A Read ends when nothing more has come, or when it is large enough,
also in the middle of a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from streamlog.connect import Read, SourceContext, SourceOffset
from streamlog.connectors.postgres_cdc.change_stream import CapturedTable, ChangeStream
from streamlog.connectors.postgres_cdc.chunked_snapshot import ChunkedSnapshot, TableChunk
from streamlog.connectors.postgres_cdc.pgoutput import (
    Keepalive,
    decode_frame,
    lsn_of,
    standby_status,
    start_of,
)
from streamlog.connectors.postgres_cdc.server_checks import (
    check_server,
    ensure_publication,
    ensure_slot,
    read_tables,
    read_types,
)
from streamlog.connectors.postgres_cdc.slot_watch import SlotWatch
from streamlog.connectors.postgres_cdc.wal_stream import (
    ReplicationStream,
    TableQueries,
    connection_text,
)
from streamlog.durations import EPOCH, duration_ms
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import UserKey, UserValue

if TYPE_CHECKING:
    from streamlog.connectors.postgres_cdc import PostgresCdc

READ_RECORDS = 2_000
READ_BYTES = 4 * 1024 * 1024
FRAMES = 1_000
"""How many frames are taken before the event loop gets its turn."""
RETAKE_SECONDS = "100ms"


class Capture:
    """One life of the source.

    Args:
        source: the settings.
        context: the runtime.
    """

    def __init__(self, source: PostgresCdc, context: SourceContext) -> None:
        self._source = source
        self._context = context
        text = connection_text(source)
        self._replication = ReplicationStream(text)
        self._queries = TableQueries(text)
        self._watch = SlotWatch(source, context, text, end_stream=self._replication.close)
        self._reading: asyncio.Task[TableChunk] | None = None
        """Reads the next chunk, while the stream is read and rows of the last one are written."""
        self._tables: Mapping[str, CapturedTable] = {}
        self._system = ""
        self._received = 0
        self._flushed = 0
        self._status_ms = 0
        self._read_ms = self._yielded_lsn = 0
        self._has_moved = False
        self._status_every_ms = duration_ms(source.status_interval)

    async def close(self) -> None:
        """Close all connections; the slot stays."""
        self._replication.close()
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
            if not reading.cancelled():
                reading.exception()  # Looked at: the reader has ended for another reason.
        await self._watch.close()
        await self._context.in_thread(self._queries.close)

    async def reads(self, offset: SourceOffset | None) -> AsyncIterator[Read[UserKey, UserValue]]:
        """Yield Reads behind an offset, without end."""
        self._stream = await self._context.in_thread(self._start, offset)
        self._watch.start()
        if offset is None:
            # Where it begins depends on this moment, so it counts before anything else.
            yield self._read()
        await self._context.in_thread(
            self._replication.connect,
            self._source.slot,
            self._source.publication,
            self._stream.lsn,
        )
        while True:
            self._begin_chunk()
            has_more = await self._take_frames()
            self._send_status()
            if self._is_due(has_more=has_more):
                yield await self._finished_read()
            elif not has_more:
                self._check_reading()
                await self._replication.wait(self._wait_seconds())

    def _start(self, offset: SourceOffset | None) -> ChangeStream:
        """Check the server and return where the stream starts; blocks."""
        source = self._source
        self._queries.connect()
        connection = self._queries.connection
        self._system = check_server(connection)
        self._check_system(offset)
        has_snapshot = source.snapshot == "initial"
        tables = read_tables(connection, source.tables, needs_key=has_snapshot)
        self._tables = {each.name: each for each in tables}
        ensure_publication(connection, source.publication, source.tables, create=source.create_slot)
        wanted = None if offset is None else lsn_of(str(offset["lsn"]))
        start = ensure_slot(connection, source.slot, wanted, create=source.create_slot)
        done: Sequence[str] = () if has_snapshot else source.tables
        lsn, skip, after = start, 0, None
        # The offset may be ahead of the slot, which learns of it after the commit.
        if offset is not None and wanted is not None:
            lsn, skip = wanted, int(str(offset["skip"]))
            done, after = _progress(offset)
        self._received = self._flushed = lsn
        snapshot = ChunkedSnapshot(source.tables, {*done}, after, self._queries.draw_transaction())
        types = read_types(connection)
        return ChangeStream(
            self._tables, types, source.form, source.on_truncate, lsn, skip, snapshot
        )

    def _check_system(self, offset: SourceOffset | None) -> None:
        system = self._system if offset is None else offset.get("system", self._system)
        if system != self._system:
            raise ConfigError(
                f"the server's system identifier is {self._system}, the log's changes are of "
                f"{system}: this is another database; reset the connector's offsets for a new "
                "snapshot"
            )

    def _begin_chunk(self) -> None:
        """Begin to read the next chunk, unless one is being read."""
        request = self._stream.snapshot.request()
        if request is None:
            return
        table = self._tables[request.table]
        reading = self._context.in_thread(self._queries.read_chunk, request, table)
        # Not of a group: a generator can't hold one open over its yields. `close` is its owner.
        self._reading = asyncio.get_running_loop().create_task(reading, name="snapshot chunk")
        # Its marks come by the stream; an error does not.
        self._reading.add_done_callback(lambda _: self._replication.wake())

    def _check_reading(self) -> None:
        """Raise the error of a chunk that can't be read."""
        if self._reading is not None and self._reading.done():
            self._reading.result()

    async def _take_frames(self) -> bool:
        """Take the frames that have come; return whether there may be more at once."""
        frames = self._replication.frames(FRAMES, READ_BYTES)
        at = 0
        while at < len(frames):
            taken = self._stream.take_rows(frames, at)
            if taken:
                at += taken
                self._received = max(self._received, start_of(frames[at - 1]))
                continue
            found = decode_frame(frames[at])
            at += 1
            if isinstance(found, Keepalive):
                self._received = max(self._received, found.end_lsn)
                self._stream.reached(found.end_lsn)
                if found.wants_reply:
                    # A server that shuts down waits until its end is confirmed: offset first.
                    self._status_ms = 0
                    self._has_moved = self._has_moved or self._stream.lsn > self._yielded_lsn
                continue
            self._received = max(self._received, found.start_lsn)
            if self._stream.take(found) == "high":
                await self._take_chunk()
        return bool(frames)

    async def _take_chunk(self) -> None:
        """Take the rows of the chunk whose high mark the stream has just delivered."""
        reading, self._reading = self._reading, None
        if reading is None:
            return
        # Its rows came before its high mark was written, so this waits for the thread at most.
        chunk = await reading
        lines = self._stream.snapshot.took(chunk)
        if lines is None:
            self._context.count("retaken_chunks")
            await self._context.sleep(RETAKE_SECONDS)
            return
        count = self._stream.add_rows(chunk.relation, lines, self._now_ms())
        self._context.count("snapshot_rows", count)
        self._has_moved = True
        # Before its Read is yielded: the server works while these rows are written.
        self._begin_chunk()

    def _is_due(self, *, has_more: bool) -> bool:
        stream = self._stream
        if stream.count >= READ_RECORDS or stream.size_bytes >= READ_BYTES:
            return True
        if has_more or not stream.is_between:
            return False
        if stream.count or self._has_moved:
            return True
        # Where only other tables change, the slot has to move, too, or the server keeps their WAL.
        is_quiet = self._now_ms() - self._read_ms >= self._status_every_ms
        return is_quiet and stream.lsn > self._yielded_lsn

    async def _finished_read(self) -> Read[UserKey, UserValue]:
        # Before the Read is yielded: a record is final then.
        if self._stream.unfetched and self._source.toast == "fetch":
            unfetched, catalogue = [*self._stream.unfetched], self._stream.catalogue
            await self._context.in_thread(self._queries.fetch, unfetched, catalogue)
        return self._read()

    def _read(self) -> Read[UserKey, UserValue]:
        runs, _, read_to = self._stream.drain()
        # Not `lsn + skip`: a transaction that is taken in part has to be sent again whole.
        lsn = self._yielded_lsn = self._stream.lsn
        self._read_ms, self._has_moved = self._now_ms(), False

        def committed() -> None:
            self._flushed = max(self._flushed, lsn)

        offset = {**read_to, "system": self._system}
        if len(runs) != 1:
            records = [record for run in runs for record in run.records()]
            return Read(records, offset, committed=committed)
        # Rows of one table, as nearly always: no object is made for a record.
        (run,) = runs
        keys, values = run.columns()
        return Read.columns(
            values,
            offset,
            keys=keys,
            timestamps_ms=run.times_ms,
            topic=run.shape.table.name,
            schema=run.shape.schema,
            key_schema=run.shape.key_schema,
            committed=committed,
        )

    def _send_status(self) -> None:
        now_ms = self._now_ms()
        if now_ms - self._status_ms >= self._status_every_ms:
            self._status_ms = now_ms
            status = standby_status(self._received, self._flushed, now_ms, wants_reply=True)
            self._replication.send(status)

    def _wait_seconds(self) -> float:
        left_ms = self._status_ms + self._status_every_ms - self._now_ms()
        return max(left_ms, 1) / 1_000

    def _now_ms(self) -> int:
        return int((self._context.now() - EPOCH).total_seconds() * 1_000)


def _progress(offset: SourceOffset) -> tuple[Sequence[str], tuple[str, ...] | None]:
    """Return which tables are copied, and the last key of the one that is not."""
    found = offset.get("snapshot")
    if not isinstance(found, dict):
        return (), None
    done, after = found.get("done"), found.get("after")
    names = [str(each) for each in done] if isinstance(done, list) else []
    return names, tuple(str(each) for each in after) if isinstance(after, list) else None
