"""Swap: one cleaned segment takes the place of those it was made from, whatever is killed when.

    1  B.log.cleaned, B.index.cleaned, ...   being written; worth nothing, removed at opening
    2  B-E.swap                              the cleaned log, synced, under its final name but one:
                                             it counts from here on, for the offsets B to E
    3  B.index, B.timeindex                  the cleaned ones take the place of the old ones
    4  other segments from B to before E     go, their logs last
    5  B.log                                 the cleaned log takes the place of the old one

The name of step 2 says everything that is left to do, so that `finish` can be called after
the process has died anywhere in between, and again if it dies in that. Steps 4 and 5 are
parted by a sync of the directory: no power cut may leave the new log and an old one beside it.
Indexes are hints: one that does not fit its log is rebuilt. The checkpoint is written when all
swaps of a cleaning are done: one that is too low costs a cleaning, and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress

from streamlog.broker.storage.files import (
    Files,
    directory_error,
    parent_of,
    read_file,
    replace_file,
)
from streamlog.broker.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
)

CLEANED_SUFFIX = ".cleaned"
CHECKPOINT = "cleaned-offset"
"""The file in a partition's folder that tells up to where its log is clean."""

_FORMAT = 1

_SWAP = re.compile(r"(\d{20})-(\d{20})\.swap")
_SEGMENT_LOG = re.compile(rf"(\d{{20}}){re.escape(LOG_SUFFIX)}")


def replace(files: Files, directory: str, cleaned: Segment, segment: Segment) -> None:
    """Put `cleaned`, whole and synced, in the place of what has its offsets; load it as `segment`.

    Raises:
        OSError: the disk refused; nobody knows which of them counts before `recover`.
    """
    swap = f"{directory}/{cleaned.base_offset:020d}-{cleaned.next_offset:020d}.swap"
    files.rename(cleaned.path, swap)
    files.sync_directory(directory)
    finish(files, directory)
    if not segment.load():
        segment.rescan()


def finish(files: Files, directory: str) -> None:
    """Do what is left of swaps that count.

    Raises:
        OSError: the disk refused; call it again before the log is used.
    """
    names = files.list(directory)
    logs = [int(match[1]) for name in names if (match := _SEGMENT_LOG.fullmatch(name))]
    for name in names:
        match = _SWAP.fullmatch(name)
        if match:
            base_offset, end_offset = int(match[1]), int(match[2])
            replaced = [base for base in logs if base_offset < base < end_offset]
            _finish(files, f"{directory}/{name}", base_offset, replaced)


def recover(files: Files, directory: str) -> None:
    """Finish the swaps that count, and remove what was made for others.

    Raises:
        OSError: the disk refused.
    """
    finish(files, directory)
    for name in files.list(directory):
        if name.endswith(CLEANED_SUFFIX):
            files.remove(f"{directory}/{name}")


class CleanedOffset:
    """Up to where the log in `directory` has been compacted, in a file of its own.

    Both methods raise LogDirectoryError if the disk refuses.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory

    def read(self) -> int:
        """The offset; 0 if nobody knows, as compacting again is safe."""
        try:
            content = json.loads(read_file(self._files, f"{self._directory}/{CHECKPOINT}"))
            return int(content["cleaned_offset"]) if content["version"] == _FORMAT else 0
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return 0
        except OSError as error:
            raise directory_error(error, self._directory) from error

    def write(self, offset: int) -> None:
        """Keep the offset, durably."""
        text = json.dumps({"version": _FORMAT, "cleaned_offset": offset})
        try:
            replace_file(self._files, f"{self._directory}/{CHECKPOINT}", text.encode())
        except OSError as error:
            raise directory_error(error, self._directory) from error


def _finish(files: Files, path: str, base_offset: int, replaced: Iterable[int]) -> None:
    directory = parent_of(path)
    stem = f"{directory}/{base_offset:020d}"
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        with suppress(FileNotFoundError):
            files.rename(stem + suffix + CLEANED_SUFFIX, stem + suffix)
    for base in replaced:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX):
            with suppress(FileNotFoundError):
                files.remove(f"{directory}/{base:020d}{suffix}")
    files.sync_directory(directory)
    files.rename(path, stem + LOG_SUFFIX)
    files.sync_directory(directory)
