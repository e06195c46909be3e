"""LeaderEpochs: which leadership wrote which offsets of a log (KIP-101).

`leader-epoch-checkpoint` in Kafka's text format: version, number of entries, and on each line an
epoch and the offset at which it began. The epoch goes up with every start that was not in order:
what was not on disk may be gone then, and other records get its offsets, which a client that has
read the old ones finds out by asking where their epoch ended. It is in every batch, too.
Rule of the file: an epoch is durable before the first batch of it is written, and no batch is
written while the file names epochs that the log has lost. A log without it is all of epoch 0. A
file that is damaged, or missing though batches have other epochs, is made anew of their headers; a
new epoch begins then, for nobody knows what else the file had said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.storage.disk.files import read_file, replace_file, unless_full
from streamlog.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from streamlog.broker.storage.disk.files import Files
    from streamlog.records.batch import RecordBatch

EPOCHS = "leader-epoch-checkpoint"
EPOCH_MAX = 2**31 - 2
"""There is one more for the next start."""
_FORMAT = 0

_logger = repeated.logger(__name__)


class LeaderEpochHistory:
    """The epochs of one log."""

    def __init__(self, files: Files, directory: str) -> None:
        self.current = 0
        """What batches get that are appended now."""
        self._files = files
        self._path = f"{directory}/{EPOCHS}"
        self._entries: list[tuple[int, int]] = []
        self._is_behind = False
        """Whether the file names epochs of batches that are gone."""
        self._start_offset = 0

    def open(
        self,
        extent: tuple[int, int],
        *,
        clean: bool,
        batches: Callable[[], Iterable[tuple[int, int]]],
        newest_known: int = -1,
    ) -> None:
        """Read the file of a log that begins and ends there; begin an epoch unless it is clean.

        `batches` tells epoch and base offset of all batches, in order, and is asked if the file
        is no good, or missing though `newest_known`, an epoch that some batch has, is not 0.

        Raises:
            OSError: the file, or the log, can't be read.
        """
        lost = self._read(extent, newest_known)
        if lost:
            self._write(_beginnings(batches()))
            _logger.warning(
                "%s was missing or damaged: it was made anew of the log's batches", self._path
            )
            clean = False
        _, end_offset = extent
        newest = self._newest()
        self.current = newest if clean or not end_offset + newest else newest + 1
        self._keep_before(end_offset)

    def look(
        self,
        extent: tuple[int, int],
        *,
        batches: Callable[[], Iterable[tuple[int, int]]],
        newest_known: int = -1,
    ) -> None:
        """The same for who changes nothing, beside a broker that may be at work.

        Raises:
            OSError: the file, or the log, can't be read.
        """
        if self._read(extent, newest_known):
            self._entries = _beginnings(batches())
        self.current = self._newest()
        self._entries = [entry for entry in self._entries if entry[1] < extent[1]]

    def _read(self, extent: tuple[int, int], newest_known: int) -> bool:
        """Read the file; whether it is no good, or missing though there were epochs."""
        self._start_offset = extent[0]
        self._entries, self.current, self._is_behind = [], 0, False
        try:
            self._entries = _parsed(read_file(self._files, self._path))
        except FileNotFoundError:
            return newest_known > 0
        except ValueError:
            return True
        return False

    def _newest(self) -> int:
        return max((epoch for epoch, _ in self._entries), default=0)

    def note(self, offset: int) -> None:
        """A batch of the current epoch is about to be written at `offset`.

        Raises:
            OSError: the disk refused.
        """
        if self.current > (self._entries[-1][0] if self._entries else 0):
            self._write([*self._entries, (self.current, offset)])
        elif self._is_behind:
            self._write(self._entries)

    def begin(self, epoch: int) -> None:
        """What is appended from now on is of `epoch`, as the controller has said.

        An epoch that is older than what the log has is no controller's: it is not gone back to.
        """
        self.current = max(epoch, self._entries[-1][0] if self._entries else 0)

    def note_copies(self, batches: Sequence[RecordBatch]) -> None:
        """Batches of another log, with their epochs, are about to be written.

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
        """The log ends at `end_offset` now. If the disk is full, the next append writes the file.

        Raises:
            OSError: the disk refused for another reason.
        """
        self._start_offset = min(self._start_offset, end_offset)
        self._keep_before(end_offset)
        if self._is_behind:
            with unless_full():
                self._write(self._entries)

    def trim(self, start_offset: int) -> None:
        """The log begins at `start_offset` now, for good: epochs that ended before are forgotten.

        Not the last one: what was committed before the log's start was of it.

        Raises:
            OSError: the disk refused.
        """
        self._start_offset = start_offset
        over = [number for number, entry in enumerate(self._entries) if entry[1] < start_offset]
        if len(over) > 1:
            self._write(self._entries[over[-1] :])

    def start_after(self, epoch: int) -> int | None:
        """Where the first epoch after `epoch` begins; None if there is none."""
        return min((start for each, start in self._entries if each > epoch), default=None)

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`."""
        return max((epoch for epoch, start in self._entries if start <= offset), default=0)

    def end_of(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """The last epoch that is not after `epoch`, and where it ends; -1 and -1 if unknown.

        `end_offset` is where the log ends. Of an epoch all of whose records are deleted that is
        where the log begins, and whether there was such an epoch nobody knows.
        """
        if not 0 <= epoch <= self.current:
            return -1, -1
        if epoch == self.current:
            return epoch, end_offset  # also before its first batch
        known = self._entries
        if not known or known[0][1] > self._start_offset:
            known = [(0, 0), *known]
        found = max((each for each, _ in known if each <= epoch), default=epoch)
        ends = (start for each, start in known if each > epoch)
        return found, max(min(ends, default=end_offset), self._start_offset)

    def diverges(self, epoch: int, offset: int, end_offset: int) -> tuple[int, int] | None:
        """What a reader has to go back to, as `end_of` tells; None if it is right.

        It has read up to `offset`, the last batch in `epoch`.

        Raises:
            OffsetOutOfRange: the epoch is not known, so nobody can tell.
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


def _beginnings(batches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where epochs begin; the first one, 0, goes without saying.

    No checksum covers the epoch of a batch, and epochs never go down: where they seem to, the
    fewer batches are wrong.
    """
    runs = [[0, -1, 0]]  # epoch, first offset, number of batches
    for epoch, offset in batches:
        if epoch != runs[-1][0]:
            runs.append([epoch, offset, 0])
        runs[-1][2] += 1
    entries: list[tuple[int, int]] = []
    newest = 0
    for (epoch, offset, count), (following, _, other) in pairwise([*runs, [EPOCH_MAX, -1, 0]]):
        odd = epoch > following >= newest and count <= other
        if newest < epoch <= EPOCH_MAX and not odd:
            entries.append((epoch, offset))
            newest = epoch
    return entries


def _parsed(data: bytes) -> list[tuple[int, int]]:
    version, count, *lines = data.decode().splitlines()
    if int(version) != _FORMAT or int(count) != len(lines):
        raise ValueError("a leader epoch checkpoint of another format, or cut off")
    entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
    if entries != sorted(entries):
        raise ValueError("leader epochs go down")
    if any(not 0 <= epoch <= EPOCH_MAX or offset < 0 for epoch, offset in entries):
        raise ValueError("a leader epoch, or where it begins, is out of range")
    return entries
