"""FutureLog: the copy of a partition's log in another directory of its broker (KIP-113).

A copy follows the log as a follower follows its leader: it appends the same batches, and cuts off
what the log no longer has. Once it has everything, it takes over. The list of topics in the first
directory says, per partition, in which directory the log is and in which one a copy is made
(`LogDirectory`), so one write of one file replaces the log. A crash before it leaves the log where
it is, and the copy continues after the next start. A crash after it leaves a log that is complete,
and an old one that is deleted.

Rules of this module: the copy takes over with everything on disk that the log has, in one turn of
the event loop, so no request sees two logs. A copy that is not whole is made anew. Everything else
that touches the copy's files is a job, so requests wait only for the last, small piece.

Not done here: which copies are made, and when (`log_dir_moves`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from streamlog import repeated
from streamlog.broker.storage.catalog import deletion_key
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.broker.storage.disk.file_range import FileRange
from streamlog.broker.storage.disk.files import directory_error
from streamlog.broker.storage.disk.offload import Steps, offload
from streamlog.broker.storage.log.partition_log import START_OFFSET, PartitionLog
from streamlog.broker.storage.log.producer_snapshots import offset_of
from streamlog.broker.storage.log.segment import LOG_SUFFIX
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.errors import (
    CorruptData,
    LogDirectoryFull,
    OffsetOutOfRange,
    StreamlogError,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.volumes import Volume
    from streamlog.protocol.schema import Buffer

COPY_BYTES: Final = 256 * 1024
"""Bytes read at once; a job checks them in a few milliseconds."""
PIECES: Final = 4
"""How many times that a job copies."""
LAST_BYTES: Final = 1024 * 1024
"""The most bytes that are written and synced in the event loop, when the copy takes over."""
SYNC_BYTES: Final = 16 * 1024 * 1024
"""Bytes between two syncs of a copy."""
ROOM_BYTES: Final = 64 * 1024 * 1024
"""Space that a copy leaves free on its disk, for the partitions that are there already."""
BASE_OFFSET_BYTES: Final = 8

Piece = FileRange | bytes | bytearray | memoryview

_logger = repeated.logger(__name__)


class MoveEnded(StreamlogError):
    """The move of a partition was cancelled, or the partition is no longer here."""


class LogMove(msgspec.Struct, frozen=True):
    """A partition, and the directory that it moves to."""

    topic: str
    topic_id: bytes
    partition: int
    volume: Volume

    @property
    def folder(self) -> str:
        """The path of the copy."""
        return f"{self.volume.path}/{partition_folder(self.topic_id, self.partition)}"

    @property
    def name(self) -> str:
        """The name of the partition."""
        return f"{self.topic}-{self.partition}"


class FutureLog:
    """The copy of one partition's log, while it is made.

    Args:
        directory: the directories of the broker.
        move: what moves.
        high_watermark: returns the partition's high watermark.
        on_moved: serves the partition from its new log.
    """

    def __init__(
        self,
        directory: LogDirectory,
        move: LogMove,
        *,
        high_watermark: Callable[[], int],
        on_moved: Callable[[PartitionLog], None],
    ) -> None:
        self.end_offset = START_OFFSET
        """The end of the copy."""
        self.replaced: PartitionLog | None = None
        """The log that the copy has replaced; None until then."""
        self._directory = directory
        self._move = move
        self._high_watermark = high_watermark
        self._on_moved = on_moved
        self._log: PartitionLog | None = None
        self._unsynced_bytes = 0

    def steps(self) -> Steps[None]:
        """Copy, in steps, until the copy has taken over.

        Raises:
            MoveEnded: the move was cancelled.
            StreamlogError: the log can't be read, or the copy can't be written.
        """
        try:
            yield from self._open()
            while True:
                pieces, size_bytes, has_all = self._next_pieces()
                is_last = has_all and size_bytes + self._unsynced_bytes <= LAST_BYTES
                if is_last and self._take_over(pieces):
                    return
                yield from self._copy(pieces, size_bytes, syncs=has_all)
        finally:
            if self._log is not None and self.replaced is None:
                self._log.discard()

    def _present(self) -> PartitionLog:
        """Return the partition's log, if the move still holds."""
        move, directory = self._move, self._directory
        topic = directory.topics.get(move.topic)
        if topic is None or topic.topic_id != move.topic_id:
            raise MoveEnded(f"{move.name} was deleted")
        if directory.future_of(move.topic, move.partition) is not move.volume:
            raise MoveEnded(f"{move.name} does not move to {move.volume.path} any more")
        try:
            directory.check_online(move.topic, move.partition)
            return directory.log(move.topic, move.partition)
        except UnknownTopicOrPartition as error:
            raise MoveEnded(f"{move.name} is not on this broker any more") from error

    # Opening.

    def _open(self) -> Steps[None]:
        """Open the copy of an earlier start, or begin one."""
        move, directory = self._move, self._directory
        present = self._present()
        if (move.topic, move.partition, move.volume) in directory.leftovers():
            yield from offload(partial(delete_copy, move))
            directory.forget_leftover(move.topic, move.partition, move.volume)
        point = directory.copied_point(move.topic, move.partition)
        self._log = yield from offload(partial(_open_copy, move, present, point))
        yield from self._fit()
        # 1. DeleteRecords has moved the log start to 100; the checkpoint with it is not written
        #    yet. 2. The copy begins at 100, and takes over. 3. After a crash, a checkpoint with 0
        #    would make everything below 100 look lost. So the checkpoint comes before.
        job = directory.begin_checkpoints()
        if job is not None:
            yield job
            job.result()

    def _fit(self) -> Steps[None]:
        """Cut off what the partition's log has not, or begin anew."""
        present = self._present()
        log, start_offset = self._log, present.log_start_offset
        end_offset = None if log is None else _common_end(log, present)
        if (
            log is None
            or end_offset is None
            or not log.log_start_offset <= start_offset <= end_offset
        ):
            if log is not None:
                log.discard()
                self._log = None
            first = present.range(start_offset, max_bytes=1)
            self._log = yield from offload(partial(_begin_copy, self._move, present, first))
        elif end_offset < log.log_end_offset:
            yield from offload(partial(_cut, log, end_offset))
        self.end_offset = self._copy_of().log_end_offset

    def _copy_of(self) -> PartitionLog:
        if self._log is None:
            raise MoveEnded(f"{self._move.name}: the copy is not open")
        return self._log

    # Copying.

    def _next_pieces(self) -> tuple[list[Piece], int, bool]:
        """Return the next pieces to copy, their bytes, and whether no more follows."""
        present = self._present()
        # Records may be deleted faster than they are copied.
        offset = max(self._copy_of().log_end_offset, present.log_start_offset)
        pieces: list[Piece] = []
        size_bytes = 0
        while len(pieces) < PIECES and offset < present.log_end_offset:
            found = present.range(offset, max_bytes=COPY_BYTES)
            pieces.append(found)
            size_bytes += len(found)
            offset = present.read_end_offset
        return pieces, size_bytes, offset >= present.log_end_offset

    def _copy(self, pieces: Sequence[Piece], size_bytes: int, *, syncs: bool) -> Steps[None]:
        present, log = self._present(), self._copy_of()
        generation = present.truncation.generation
        syncs = syncs or self._unsynced_bytes + size_bytes >= SYNC_BYTES
        # Here, where no job runs that would read them meanwhile.
        log.configure(present.config)
        job = partial(_append, self._move, log, pieces, syncs=syncs, settled=self._high_watermark())
        try:
            yield from offload(job, size_bytes)
        except StreamlogError:
            # What was read may have been cut off meanwhile, and the file is written anew.
            if present.truncation.generation == generation:
                raise
        # Also after an error that is passed over: what was appended may be on disk or not.
        self._unsynced_bytes = 0 if syncs else self._unsynced_bytes + size_bytes
        self.end_offset = log.log_end_offset
        if present.truncation.generation != generation:
            yield from self._fit()
        if syncs:
            point = self._copy_of().recovery_point
            self._directory.note_copied(self._move.topic, self._move.partition, point)

    # Taking over.

    def _take_over(self, pieces: Sequence[Piece]) -> bool:
        """Append the last pieces and replace the partition's log; return False if they don't fit.

        There is no step in between: nothing is appended to the log meanwhile.
        """
        move, present, log = self._move, self._present(), self._copy_of()
        # In this order, for a crash between any two:
        # 1. The copy has everything on disk. 2. The list of topics names its directory: from here
        #    on it is the partition's log. 3. The old log is closed; `LogDirMoves` deletes it.
        if not _append(move, log, pieces, syncs=True, settled=self._high_watermark()):
            return False
        # Indexes that a full disk refused: the recovery point would be before what is on disk.
        if log.log_end_offset != present.log_end_offset or log.has_unwritten_indexes:
            return False
        # What a repair has given up is to be fetched again, wherever the log is.
        if present.lost.known is not None:
            log.lost.add(*present.lost.known)
        log.advance_start(present.log_start_offset)
        self.replaced = self._directory.end_move(move.topic, move.partition, log)
        self._on_moved(log)
        self.replaced.discard()
        return True


def delete_copy(move: LogMove) -> None:
    """Delete the partition's files in the directory of a move.

    Raises:
        LogDirectoryError: the disk refused.
    """
    try:
        move.volume.folders.delete({deletion_key(move.topic_id, move.partition)})
    except OSError as error:
        raise directory_error(error, move.volume.path) from error


def _open_copy(move: LogMove, present: PartitionLog, recovery_point: int) -> PartitionLog | None:
    """Open the copy that an earlier start has begun; None if there is none that is whole."""
    volume = move.volume
    try:
        if partition_folder(move.topic_id, move.partition) not in volume.files.list(volume.path):
            return None
        names = volume.files.list(move.folder)
    except OSError as error:
        raise directory_error(error, volume.path) from error
    # A copy begins where the log began then, and so does not lack what lies before.
    bases = [offset_of(each) for each in names if each.endswith(LOG_SUFFIX)]
    if not bases:
        return None
    log = PartitionLog.open(
        volume.files,
        move.folder,
        name=move.name,
        config=present.config,
        recovery_point=recovery_point,
        log_start_offset=min(bases),
    )
    if log.is_whole and recovery_point <= log.log_end_offset:
        return log
    log.discard()
    return None


def _begin_copy(move: LogMove, present: PartitionLog, first: Piece) -> PartitionLog:
    """Return an empty copy that begins where the batch `first` does, or at the end of the log."""
    # What an unfinished copy has left is no part of this one.
    delete_copy(move)
    data = _read(move, first)
    base_offset = _base_offset(data) if data else present.log_start_offset
    volume = move.volume
    log = PartitionLog.create(volume.files, move.folder, name=move.name, config=present.config)
    if base_offset > START_OFFSET:
        _restart(log, base_offset)
    try:
        volume.files.make_directory(move.folder, parents=False)
        volume.files.sync_directory(volume.path)
    except OSError as error:
        raise directory_error(error, volume.path) from error
    return log


def _append(
    move: LogMove, log: PartitionLog, pieces: Sequence[Piece], *, syncs: bool, settled: int
) -> bool:
    """Append pieces to a copy, and sync it; return False if they don't continue it.

    Then the copy is cut, so that the next pieces do.
    """
    for piece in pieces:
        data = _read(move, piece)
        base_offset = _base_offset(data)
        _check_room(move, len(data))
        # Compaction may have joined the batch at the end of an earlier copy with the next one.
        if base_offset < log.log_end_offset:
            _cut(log, base_offset)
            return False
        # The records between were deleted.
        if base_offset > log.log_end_offset:
            _restart(log, base_offset)
        log.append(data, now_ms=0, origin=AppendOrigin.COPY)
    # As in the log that is copied: otherwise each aborted transaction would stay in memory.
    log.producers.transactions.settle(min(settled, log.log_end_offset))
    if syncs:
        log.flush()
    return True


def _cut(log: PartitionLog, offset: int) -> None:
    log.truncation.begin(offset)
    log.truncation.cut(offset)


def _restart(log: PartitionLog, offset: int) -> None:
    log.truncation.begin_restart(offset)
    log.truncation.restart(offset)


def _read(move: LogMove, piece: Piece) -> Buffer:
    if not isinstance(piece, FileRange):
        return piece
    try:
        return piece.read()
    except OSError as error:
        raise CorruptData(f"{move.name} can't be read to be copied: {error}") from error


def _base_offset(data: Buffer) -> int:
    return int.from_bytes(data[:BASE_OFFSET_BYTES], "big")


def _check_room(move: LogMove, size_bytes: int) -> None:
    """Check that a copy leaves space on its disk.

    Raises:
        LogDirectoryFull: it does not.
    """
    try:
        usable_bytes = move.volume.files.space(move.volume.path).usable_bytes
    except OSError as error:
        raise directory_error(error, move.volume.path) from error
    # A negative number stands for space that is not known.
    if 0 <= usable_bytes < size_bytes + ROOM_BYTES:
        raise LogDirectoryFull(
            f"{move.volume.path} has {usable_bytes} bytes left, too few to move {move.name} there"
        )


def _common_end(copy: PartitionLog, log: PartitionLog) -> int | None:
    """Return the offset up to which a copy has what the log has; None if that is unknown.

    Both have the same record at an offset if it is of the same leader epoch (KIP-101).
    """
    end_offset = copy.log_end_offset
    while end_offset > copy.log_start_offset:
        epoch = copy.epochs.at(end_offset - 1)
        try:
            found = log.epochs.diverges(epoch, end_offset, log.log_end_offset)
        except OffsetOutOfRange:
            return None
        if found is None:
            break
        # Both ends shrink: the log may lack an epoch that the copy has, and the other way round.
        following = copy.epochs.start_after(found[0])
        end_offset = min(found[1], end_offset if following is None else following)
    return min(end_offset, log.log_end_offset)
