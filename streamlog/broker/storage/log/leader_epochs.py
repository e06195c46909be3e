"""LeaderEpochHistory: which leader epoch wrote which offsets of a log (KIP-101).

The file `leader-epoch-checkpoint` has Kafka's text format: version, number of entries, and on each
line an epoch and the offset at which it began. Every batch also carries its epoch. The epoch grows
with every start after a crash: records that were not on disk may be lost then, and other records
get their offsets. A client that has read the old records notices when it asks where their epoch
ended.

Rules of this module: an epoch is durable before its first batch is written, and no batch is written
while the file names epochs that the log has lost. A log without the file has epoch 0 throughout. A
file that is damaged, or missing although batches have other epochs, is rebuilt from their headers;
a new epoch begins then, because the file may have named more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.storage.disk.files import read_file, replace_file, unless_full
from streamlog.errors import OffsetOutOfRange
from streamlog.records.epoch_chains import LEADER_EPOCH_MAX

if TYPE_CHECKING:
    from streamlog.broker.storage.disk.files import Files
    from streamlog.records.batch import RecordBatch

EPOCHS = "leader-epoch-checkpoint"
_FORMAT = 0

_logger = repeated.logger(__name__)


class LeaderEpochHistory:
    """The leader epochs of one log, and where each began."""

    def __init__(self, files: Files, directory: str) -> None:
        self.current = 0
        """The epoch of batches appended now."""
        self._files = files
        self._path = f"{directory}/{EPOCHS}"
        self._entries: list[tuple[int, int]] = []
        self._is_behind = False
        """Whether the file names epochs whose batches are gone."""
        self._start_offset = 0

    def open(
        self,
        extent: tuple[int, int],
        *,
        clean: bool,
        batches: Callable[[], Iterable[tuple[int, int]]],
        known_epoch: int = -1,
    ) -> None:
        """Read the file of a log of this extent, and begin a new epoch unless `clean`.

        `batches` returns epoch and base offset of all batches in order. It is called if the file is
        unusable, or missing although a batch has the epoch `known_epoch`, which is not 0.

        Raises:
            OSError: the file, or the log, can't be read.
        """
        lost = self._read(extent, known_epoch)
        if lost:
            self._write(_epoch_starts(batches()))
            _logger.warning(
                "%s was missing or damaged: it was rebuilt from the log's batches", self._path
            )
            clean = False
        _, end_offset = extent
        newest = self._newest()
        # An empty log of epoch 0 has nothing that could be confused: it stays at 0.
        self.current = newest if clean or not end_offset + newest else newest + 1
        self._keep_before(end_offset)

    def look(
        self,
        extent: tuple[int, int],
        *,
        batches: Callable[[], Iterable[tuple[int, int]]],
        known_epoch: int = -1,
    ) -> None:
        """Read the file without changing anything, as a broker may be writing.

        Raises:
            OSError: the file, or the log, can't be read.
        """
        if self._read(extent, known_epoch):
            self._entries = _epoch_starts(batches())
        self.current = self._newest()
        self._entries = [entry for entry in self._entries if entry[1] < extent[1]]

    def _read(self, extent: tuple[int, int], known_epoch: int) -> bool:
        """Read the file; return whether it is unusable, or missing although epochs are known."""
        self._start_offset = extent[0]
        self._entries, self.current, self._is_behind = [], 0, False
        try:
            self._entries = _parse(read_file(self._files, self._path))
        except FileNotFoundError:
            return known_epoch > 0
        except ValueError:
            return True
        return False

    def _newest(self) -> int:
        return max((epoch for epoch, _ in self._entries), default=0)

    def note(self, offset: int) -> None:
        """Make the current epoch durable before a batch is written at `offset`.

        Raises:
            OSError: the disk refused.
        """
        if self.current > (self._entries[-1][0] if self._entries else 0):
            self._write([*self._entries, (self.current, offset)])
        elif self._is_behind:
            self._write(self._entries)

    def begin(self, epoch: int) -> None:
        """Set the epoch of batches appended from now on, as the controller has decided.

        An epoch older than the log's newest one can't come from a controller, and is ignored.
        """
        self.current = max(epoch, self._entries[-1][0] if self._entries else 0)

    def has_noted(self, batches: Sequence[RecordBatch]) -> bool:
        """Whether these batches of another log are of the newest epoch, which is durable."""
        newest = self._entries[-1][0] if self._entries else 0
        if self._is_behind or self.current != newest:
            return False
        # No generator, which would cost a small batch as much as the rest of this.
        for batch in batches:  # noqa: SIM110 - see above
            if batch.leader_epoch > newest:
                return False
        return True

    def note_copies(self, batches: Sequence[RecordBatch]) -> None:
        """Make the epochs of another log's batches durable before they are written.

        Raises:
            OSError: the disk refused.
        """
        entries = list(self._entries)
        for batch in batches:
            if batch.leader_epoch > (entries[-1][0] if entries else 0):
                entries.append((batch.leader_epoch, batch.base_offset))
        if self._is_behind or len(entries) > len(self._entries):
            self._write(entries)
        self.current = entries[-1][0] if entries else 0

    def truncate(self, end_offset: int) -> None:
        """Note that the log ends at `end_offset`; on a full disk, the next append writes the file.

        Raises:
            OSError: the disk refused for another reason.
        """
        self._start_offset = min(self._start_offset, end_offset)
        self._keep_before(end_offset)
        if self._is_behind:
            with unless_full():
                self._write(self._entries)

    def trim(self, start_offset: int) -> None:
        """Note that the log durably begins at `start_offset`: forget epochs that ended before.

        The last of them stays, because the record before the log start was of that epoch.

        Raises:
            OSError: the disk refused.
        """
        self._start_offset = start_offset
        ended = [number for number, entry in enumerate(self._entries) if entry[1] < start_offset]
        if len(ended) > 1:
            self._write(self._entries[ended[-1] :])

    def start_after(self, epoch: int) -> int | None:
        """Return where the first epoch after `epoch` begins; None without one."""
        return min((start for each, start in self._entries if each > epoch), default=None)

    def at(self, offset: int) -> int:
        """Return the epoch of the record at `offset`."""
        # Epochs rise from entry to entry, and most records that are asked for are of the newest.
        for epoch, start in reversed(self._entries):
            if start <= offset:
                return epoch
        return 0

    def end_of(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """Return the last epoch up to `epoch` and its end offset; -1 and -1 if unknown (KIP-279).

        `end_offset` is the log end offset. An epoch whose records are all deleted ends at the log
        start; whether it existed is unknown.
        """
        if not 0 <= epoch <= self.current:
            return -1, -1
        if epoch == self.current:
            return epoch, end_offset  # The current epoch may have no batch yet.
        # 1. Epochs 1 at 0, 3 at 100 and 5 at 200; a reader has epoch 4. 2. The last epoch up to 4
        # is 3, and it ends at 200. 3. If the reader's log says that 4 began at 150, it truncates
        # to 150 and asks again with 3 (KIP-279); one response need not be the final answer.
        known = self._entries
        if not known or known[0][1] > self._start_offset:
            known = [(0, 0), *known]
        found = max((each for each, _ in known if each <= epoch), default=epoch)
        ends = (start for each, start in known if each > epoch)
        return found, max(min(ends, default=end_offset), self._start_offset)

    def diverges(self, epoch: int, offset: int, end_offset: int) -> tuple[int, int] | None:
        """Return where a reader diverges, as `end_of` does; None if it does not (KIP-320).

        The reader has read up to `offset`, and its last batch is of `epoch`.

        Raises:
            OffsetOutOfRange: the epoch is unknown.
        """
        found, end = self.end_of(epoch, end_offset)
        if found < 0:
            raise OffsetOutOfRange(f"{self._path}: no epoch {epoch} up to {self.current}")
        return (found, end) if found < epoch or end < offset else None

    def _keep_before(self, end_offset: int) -> None:
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        self._is_behind = self._is_behind or len(kept) < len(self._entries)
        self._entries = kept

    def _write(self, entries: list[tuple[int, int]]) -> None:
        lines = [str(_FORMAT), str(len(entries)), *(f"{e} {start}" for e, start in entries)]
        replace_file(self._files, self._path, ("\n".join(lines) + "\n").encode())
        self._entries, self._is_behind = entries, False


def _epoch_starts(batches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return where each epoch begins; epoch 0 is implied.

    No checksum covers the epoch of a batch, and epochs never decrease. Where they seem to, the
    shorter of the two runs of batches is wrong.
    """
    runs = [[0, -1, 0]]  # epoch, first offset, number of batches
    for epoch, offset in batches:
        if epoch != runs[-1][0]:
            runs.append([epoch, offset, 0])
        runs[-1][2] += 1
    entries: list[tuple[int, int]] = []
    newest = 0
    for (epoch, offset, count), (following, _, other) in pairwise(
        [*runs, [LEADER_EPOCH_MAX, -1, 0]]
    ):
        # 1. Runs: epoch 2 (50 batches), 9 (1 batch), 3 (40 batches). 2. Epoch 9 is greater than
        # what follows, and has fewer batches: a flipped bit, so it is skipped. 3. With 2, 9 (60
        # batches), 3 (1 batch), the run of 3 is skipped, as it is lower than 9.
        odd = epoch > following >= newest and count <= other
        if newest < epoch <= LEADER_EPOCH_MAX and not odd:
            entries.append((epoch, offset))
            newest = epoch
    return entries


def _parse(data: bytes) -> list[tuple[int, int]]:
    version, count, *lines = data.decode().splitlines()
    if int(version) != _FORMAT or int(count) != len(lines):
        raise ValueError("a leader epoch checkpoint of another format, or cut off")
    entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
    if entries != sorted(entries):
        raise ValueError("leader epochs go down")
    if any(not 0 <= epoch <= LEADER_EPOCH_MAX or offset < 0 for epoch, offset in entries):
        raise ValueError("a leader epoch, or where it begins, is out of range")
    return entries
