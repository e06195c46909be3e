"""Swap: replaces segments with the one that compaction made of them, safely at any crash.

    1  B.log.cleaned, B.index.cleaned, ...   being written; ignored, and removed at opening
    2  B-E.swap                              the cleaned log, synced, renamed: from here on it
                                             is the log's segment for the offsets B to before E
    3  *.log.deleted, *.index.deleted, ...   the segments that it replaces, taken out
    4  B.index, B.txnindex, ..., B.log       the cleaned files get their final names

The name of step 2 says what is left to do, so `finish` can continue after the process has died
anywhere, and again if it dies in `finish`. The directory is synced between the steps: no power cut
may leave the new log together with an old one.

A reader that opens the log meanwhile uses `chain_of`. The index of aborted transactions exists and
is synced, even if it is empty; the other indexes are hints, and are rebuilt if they don't fit their
log. The checkpoint of the cleaner is written after all swaps of a cleaning: if it is too low, a
cleaning is repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from streamlog.broker.storage.disk.files import (
    MALFORMED,
    Files,
    directory_error,
    names_in,
    parent_of,
    read_file,
    replace_file,
)
from streamlog.broker.storage.log.aborted_index import ABORTED_SUFFIX
from streamlog.broker.storage.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
CHECKPOINT = "cleaned-offset"
"""The file in a partition's directory that contains the offset below which the log is compacted."""

_FORMAT = 1
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX)

_SWAP = re.compile(rf"(\d{{20}})-(\d{{20}}){re.escape(SWAP_SUFFIX)}")
_SEGMENT_LOG = re.compile(rf"(\d{{20}}){re.escape(LOG_SUFFIX)}")


class Swap:
    """The rest of a swap whose cleaned segment is in place, after step 2.

    `take_out` and `end` may run in a thread; `settle` runs in the event loop, which reads by the
    names that it changes. Every method may raise OSError; the next opening does the rest.
    """

    def __init__(
        self, files: Files, directory: str, cleaned: Segment, replaced: Sequence[Segment]
    ) -> None:
        self.retired_paths: list[str] = []
        """The paths that were taken out, to be removed once no reader can have them open."""
        self.cleaned = cleaned
        self._files = files
        self._directory = directory
        self._taken_out = False
        self._paths = [path for segment in replaced for path in segment.paths]

    def take_out(self) -> None:
        """Do step 3, unless it is done."""
        if self._taken_out:
            return
        # The swap's name is durable before the old names go: otherwise a power cut could leave
        # neither.
        self._files.sync_directory(self._directory)
        for path in self._paths:
            with suppress(FileNotFoundError):
                self._files.rename(path, path + DELETED_SUFFIX)
                self.retired_paths.append(path + DELETED_SUFFIX)
        self._files.sync_directory(self._directory)
        self._taken_out = True

    def settle(self) -> None:
        """Do step 4."""
        self.cleaned.settle()

    def end(self) -> None:
        """Make step 4 durable."""
        self._files.sync_directory(self._directory)


def begin_swap(files: Files, directory: str, cleaned: Segment, replaced: Sequence[Segment]) -> Swap:
    """Do step 2: put `cleaned`, which is complete and synced, in place of `replaced`.

    Raises:
        OSError: the disk refused; `recover` decides which of the two is part of the log.
    """
    name = f"{cleaned.base_offset:020d}-{cleaned.next_offset:020d}{SWAP_SUFFIX}"
    cleaned.rename_log(f"{directory}/{name}")
    return Swap(files, directory, cleaned, replaced)


class Link(NamedTuple):
    """The files of one segment."""

    base_offset: int
    log: str
    """The name of its log file."""
    index_suffix: str
    """The suffix of the names of its indexes."""


def chain_of(names: Iterable[str]) -> list[Link]:
    """Return the segments of the log, in order, from the names of files in its directory."""
    present = frozenset(names)
    swaps = [(int(m[1]), int(m[2]), name) for name in present if (m := _SWAP.fullmatch(name))]
    logs = [(int(m[1]), name) for name in present if (m := _SEGMENT_LOG.fullmatch(name))]
    # A log whose base lies in a swap's range was replaced, and not renamed yet.
    links = [
        Link(base, name, "")
        for base, name in logs
        if not any(first <= base < end for first, end, _ in swaps)
    ]
    for base, _, name in swaps:
        cleaned = f"{base:020d}{INDEX_SUFFIX}{CLEANED_SUFFIX}" in present
        # Step 4 renames the indexes before the log, so a `.swap` log may have indexes with either
        # name.
        links.append(Link(base, name, CLEANED_SUFFIX if cleaned else ""))
    return sorted(links)


def swap_end(name: str) -> int | None:
    """Return the end offset of a swapped segment whose log has this name; None for other names."""
    match = _SWAP.fullmatch(name)
    return int(match[2]) if match else None


def leftover_files(names: Iterable[str]) -> list[str]:
    """Return the names of files that are not, or no longer, part of the log."""
    suffixes = (DELETED_SUFFIX, CLEANED_SUFFIX)
    waiting = {
        f"{match[1]}{suffix}{CLEANED_SUFFIX}"
        for name in names
        if (match := _SWAP.fullmatch(name))
        for suffix in _INDEX_SUFFIXES
    }
    return sorted(name for name in names if name.endswith(suffixes) and name not in waiting)


def finish(files: Files, directory: str, names: Sequence[str]) -> list[str]:
    """Finish swaps whose cleaned segment is in place; return the names of their logs.

    `names` are those of all files in the directory.

    Raises:
        OSError: the disk refused; call it again before the log is used.
    """
    logs = [int(match[1]) for name in names if (match := _SEGMENT_LOG.fullmatch(name))]
    finished: list[str] = []
    for name in names:
        match = _SWAP.fullmatch(name)
        if match:
            base_offset, end_offset = int(match[1]), int(match[2])
            replaced = [base for base in logs if base_offset < base < end_offset]
            _finish(files, f"{directory}/{name}", base_offset, replaced)
            finished.append(name)
    return finished


class SwapRecovery(NamedTuple):
    """The names of the files that recovery has handled."""

    finished: list[str]
    removed: list[str]
    left: list[str]
    """All that are in the directory now."""


def recover(files: Files, directory: str) -> SwapRecovery:
    """Finish swaps that are in place; remove what was being cleaned, or was taken out.

    Raises:
        OSError: the disk refused.
    """
    # One look where there is nothing to do, as in nearly all directories of a start.
    names = names_in(files, directory)
    finished = finish(files, directory, names)
    if finished:
        names = names_in(files, directory)
    removed = leftover_files(names)
    for name in removed:
        files.remove(f"{directory}/{name}")
    gone = frozenset(removed)
    return SwapRecovery(finished, removed, [name for name in names if name not in gone])


class CleanedOffset:
    """The offset below which the log in `directory` is compacted, in a file.

    Both methods raise LogDirectoryError if the disk refuses.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._offset: int | None = None

    def read(self) -> int:
        """Return the offset; 0 if it is unknown, because compacting again is safe."""
        if self._offset is None:
            self._offset = self._stored()
        return self._offset

    def write(self, offset: int) -> None:
        """Write the offset durably."""
        if offset == self.read():
            return  # An empty log may not even have a directory.
        text = json.dumps({"version": _FORMAT, "cleaned_offset": offset})
        try:
            replace_file(self._files, f"{self._directory}/{CHECKPOINT}", text.encode())
        except OSError as error:
            raise directory_error(error, self._directory) from error
        self._offset = offset

    def _stored(self) -> int:
        try:
            content = json.loads(read_file(self._files, f"{self._directory}/{CHECKPOINT}"))
            offset = int(content["cleaned_offset"]) if content["version"] == _FORMAT else 0
            return max(offset, 0)
        except (FileNotFoundError, RecursionError, *MALFORMED):
            return 0
        except OSError as error:
            raise directory_error(error, self._directory) from error


def _finish(files: Files, path: str, base_offset: int, replaced: Iterable[int]) -> None:
    directory = parent_of(path)
    stem = f"{directory}/{base_offset:020d}"
    for suffix in _INDEX_SUFFIXES:
        with suppress(FileNotFoundError):
            files.rename(stem + suffix + CLEANED_SUFFIX, stem + suffix)
    for base in replaced:
        # The log of the base offset itself is not removed but replaced by the rename below.
        for suffix in (*_INDEX_SUFFIXES, LOG_SUFFIX):
            with suppress(FileNotFoundError):
                files.remove(f"{directory}/{base:020d}{suffix}")
    files.sync_directory(directory)
    files.rename(path, stem + LOG_SUFFIX)
    files.sync_directory(directory)
