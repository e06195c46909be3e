"""LeaderEpochs: which leadership wrote which offsets of a log (KIP-101).

`leader-epoch-checkpoint` in Kafka's text format: version, number of entries, and on each line an
epoch and the offset at which it began. The epoch goes up with every start that was not in order:
what was not on disk may be gone then, and other records get its offsets, which a client that has
read the old ones finds out by asking where their epoch ended. It is in every batch, too.
Rule of the file: an epoch is durable before the first batch of it is written. A log without the
file is all of epoch 0; one whose file is no good begins a new epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.storage.files import read_file, replace_file

if TYPE_CHECKING:
    from streamlog.broker.storage.files import Files

EPOCHS = "leader-epoch-checkpoint"
_FORMAT = 0


class LeaderEpochs:
    """The epochs of one log."""

    def __init__(self, files: Files, directory: str) -> None:
        self.current = 0
        """What batches get that are appended now."""
        self._files = files
        self._path = f"{directory}/{EPOCHS}"
        self._entries: list[tuple[int, int]] = []

    def open(self, end_offset: int, *, clean: bool) -> None:
        """Read the file of a log that ends at `end_offset`; begin an epoch unless it is clean.

        Raises:
            OSError: the file can't be read.
        """
        self._entries, self.current = [], 0
        try:
            self._entries = _parsed(read_file(self._files, self._path))
        except FileNotFoundError:
            pass
        except ValueError:
            clean = False
        newest = max((epoch for epoch, _ in self._entries), default=0)
        self.current = newest if clean or not end_offset + newest else newest + 1
        self._entries = [entry for entry in self._entries if entry[1] < end_offset]

    def note(self, offset: int) -> None:
        """A batch of the current epoch is about to be written at `offset`.

        Raises:
            OSError: the disk refused.
        """
        if self.current > (self._entries[-1][0] if self._entries else 0):
            entries = [*self._entries, (self.current, offset)]
            lines = [str(_FORMAT), str(len(entries)), *(f"{e} {start}" for e, start in entries)]
            replace_file(self._files, self._path, ("\n".join(lines) + "\n").encode())
            self._entries = entries

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`."""
        return max((epoch for epoch, start in self._entries if start <= offset), default=0)

    def end_of(self, epoch: int, end_offset: int) -> tuple[int, int]:
        """The last epoch that is not after `epoch`, and where it ends; -1 and -1 if unknown.

        `end_offset` is where the log ends.
        """
        if not 0 <= epoch <= self.current:
            return -1, -1
        known = [(0, 0), *self._entries]
        found = max((each for each, _ in known if each <= epoch), default=-1)
        ends = (start for each, start in known if each > epoch)
        return found, min(ends, default=end_offset)


def _parsed(data: bytes) -> list[tuple[int, int]]:
    version, count, *lines = data.decode().splitlines()
    if int(version) != _FORMAT or int(count) != len(lines):
        raise ValueError("a leader epoch checkpoint of another format, or cut off")
    entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines)]
    if entries != sorted(entries):
        raise ValueError("leader epochs go down")
    return entries
