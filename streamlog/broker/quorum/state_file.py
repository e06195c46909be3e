"""Two small files of a member: what it must not forget, and how far its log was on disk.

`quorum-state` is replaced whole (write aside, sync, rename, sync the directory): epoch and vote
change rarely. `flushed-end` is written after every sync of the log, in turns into two places of
one sector each, so that a power cut spoils at most the one that is being written. By it a torn
tail, which nobody was told of, is told from damage: a log that ends before `flushed-end` has
lost something that may have been counted.
"""

from __future__ import annotations

import json
import struct

from crc32c import crc32c

from streamlog.broker.quorum.raft_messages import QuorumState
from streamlog.broker.storage.catalog import MALFORMED
from streamlog.broker.storage.files import File, Files, read_file, replace_file, write_whole
from streamlog.broker.storage.reserve import with_reserve
from streamlog.errors import CorruptData

QUORUM_STATE = "quorum-state"
FLUSHED_END = "flushed-end"

_FORMAT = 1
_SLOT = struct.Struct(">QqI")  # a running number, the offset, their CRC
_CRC_AT = 16
_SLOT_BYTES = 512  # a sector: disks write it whole or not at all


def read_state(files: Files, directory: str) -> QuorumState | None:
    """What the member knew last; None if it has never been in an epoch.

    Raises:
        CorruptData: the file is damaged: who votes by it could vote twice.
        OSError: the disk refused.
    """
    path = f"{directory}/{QUORUM_STATE}"
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return None
    try:
        content = json.loads(data)
        checksum = content.pop("crc32c")
        if content["version"] != _FORMAT or checksum != _checksum(content):
            raise ValueError("its checksum or version does not fit")
        return QuorumState(
            epoch=int(content["epoch"]),
            voted_id=_id(content["voted_id"]),
            leader_id=_id(content["leader_id"]),
            rejoin_id=int(content["rejoin_id"]),
            voters=tuple(int(each) for each in content.get("voters", ())),
        )
    except (RecursionError, *MALFORMED) as error:
        raise CorruptData(f"{path} is damaged: {error}") from error


def write_state(files: Files, directory: str, state: QuorumState) -> None:
    """Keep it, durably.

    Raises:
        OSError: the disk refused; the old one or the new one is there.
    """
    content: dict[str, object] = {
        "version": _FORMAT,
        "epoch": state.epoch,
        "voted_id": state.voted_id,
        "leader_id": state.leader_id,
        "rejoin_id": state.rejoin_id,
        "voters": state.voters,
    }
    content["crc32c"] = _checksum(content)
    replace_file(files, f"{directory}/{QUORUM_STATE}", json.dumps(content).encode())


class FlushedEnd:
    """The offset up to which the log has been synced. Raises OSError where the disk refuses."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._file: File = files.open(f"{directory}/{FLUSHED_END}", writable=True)
        found = [self._read(slot) for slot in range(2)]
        self._number, offset = max((each for each in found if each is not None), default=(0, -1))
        self.offset: int | None = None if offset < 0 else offset
        """None if neither place can be read: it was never written, or is damaged."""

    def write(self, offset: int) -> None:
        """Keep the offset, durably."""
        self._number += 1
        head = _SLOT.pack(self._number, offset, 0)[:_CRC_AT]
        slot = (head + struct.pack(">I", crc32c(head))).ljust(_SLOT_BYTES, b"\0")
        position = self._number % 2 * _SLOT_BYTES
        with_reserve(self._files, lambda: write_whole(self._file, slot, position))
        self._file.sync()
        self.offset = offset

    def close(self) -> None:
        """Give the file back."""
        self._file.close()

    def _read(self, slot: int) -> tuple[int, int] | None:
        data = self._file.read(_SLOT.size, slot * _SLOT_BYTES)
        if len(data) < _SLOT.size:
            return None
        number, offset, checksum = _SLOT.unpack(data)
        return (number, offset) if crc32c(data[:_CRC_AT]) == checksum and number else None


def _checksum(content: dict[str, object]) -> int:
    return crc32c(json.dumps(content, sort_keys=True).encode())


def _id(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{value!r} is no node")
    return value
