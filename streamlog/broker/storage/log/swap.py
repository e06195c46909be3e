"""Swap: one cleaned segment takes the place of those it was made from, whatever is killed when.

    1  B.log.cleaned, B.index.cleaned, ...   being written; worth nothing, removed at opening
    2  B-E.swap                              the cleaned log, synced, under its final name but one:
                                             it counts from here on, for the offsets B to E
    3  *.log.deleted, *.index.deleted, ...   what was there from B to before E, taken out
    4  B.index, B.txnindex, ..., B.log       the cleaned files get their names

The name of step 2 says everything that is left to do, so that `finish` can be called after
the process has died anywhere in between, and again if it dies in that. Between the steps the
directory is synced: no power cut may leave the new log and an old one beside it.
Who opens the log for reading meanwhile takes what `chain_of` tells. The index of aborted
transactions is there, and synced, even if it is empty; other indexes are hints, and one that does
not fit its log is rebuilt. The checkpoint is written when all swaps of a cleaning are done: one
that is too low costs a cleaning, and nothing else.
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
"""The file in a partition's folder that tells up to where its log is clean."""

_FORMAT = 1
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, ABORTED_SUFFIX)

_SWAP = re.compile(rf"(\d{{20}})-(\d{{20}}){re.escape(SWAP_SUFFIX)}")
_SEGMENT_LOG = re.compile(rf"(\d{{20}}){re.escape(LOG_SUFFIX)}")


class Swap:
    """What is left to do once a cleaned segment counts, that is after step 2.

    `take_out` and `end` are jobs for a thread, `settle` changes names that the loop reads by.
    Everything may raise OSError: what is left is done at the next opening.
    """

    def __init__(
        self, files: Files, directory: str, cleaned: Segment, replaced: Sequence[Segment]
    ) -> None:
        self.over: list[str] = []
        """Paths of what was taken out, to be removed when nobody can be reading it any more."""
        self.cleaned = cleaned
        self._files = files
        self._directory = directory
        self._taken_out = False
        self._paths = [path for segment in replaced for path in segment.paths]

    def take_out(self) -> None:
        """Step 3; fine if it has been done."""
        if self._taken_out:
            return
        self._files.sync_directory(self._directory)
        for path in self._paths:
            with suppress(FileNotFoundError):
                self._files.rename(path, path + DELETED_SUFFIX)
                self.over.append(path + DELETED_SUFFIX)
        self._files.sync_directory(self._directory)
        self._taken_out = True

    def settle(self) -> None:
        """Step 4."""
        self.cleaned.settle()

    def end(self) -> None:
        """Make that durable."""
        self._files.sync_directory(self._directory)


def begin_swap(files: Files, directory: str, cleaned: Segment, replaced: Sequence[Segment]) -> Swap:
    """Let `cleaned`, whole and synced, count in the place of what has its offsets: step 2.

    Raises:
        OSError: the disk refused; nobody knows which of them counts before `recover`.
    """
    name = f"{cleaned.base_offset:020d}-{cleaned.next_offset:020d}{SWAP_SUFFIX}"
    cleaned.rename_log(f"{directory}/{name}")
    return Swap(files, directory, cleaned, replaced)


class Link(NamedTuple):
    """Where the files of a segment are."""

    base_offset: int
    log: str
    """The name of its log."""
    index_suffix: str
    """Behind the names that its indexes would have."""


def chain_of(names: Iterable[str]) -> list[Link]:
    """The segments that count, of the files in a directory, in order."""
    present = frozenset(names)
    swaps = [(int(m[1]), int(m[2]), name) for name in present if (m := _SWAP.fullmatch(name))]
    logs = [(int(m[1]), name) for name in present if (m := _SEGMENT_LOG.fullmatch(name))]
    links = [
        Link(base, name, "")
        for base, name in logs
        if not any(first <= base < end for first, end, _ in swaps)
    ]
    for base, _, name in swaps:
        cleaned = f"{base:020d}{INDEX_SUFFIX}{CLEANED_SUFFIX}" in present
        links.append(Link(base, name, CLEANED_SUFFIX if cleaned else ""))
    return sorted(links)


def swap_end(name: str) -> int | None:
    """Up to where a segment counts whose log has this name, if it waits for its place."""
    match = _SWAP.fullmatch(name)
    return int(match[2]) if match else None


def left_over(names: Iterable[str]) -> list[str]:
    """Those of the files in a directory that are no part of its log any more, or not yet."""
    suffixes = (DELETED_SUFFIX, CLEANED_SUFFIX)
    waiting = {
        f"{match[1]}{suffix}{CLEANED_SUFFIX}"
        for name in names
        if (match := _SWAP.fullmatch(name))
        for suffix in _INDEX_SUFFIXES
    }
    return sorted(name for name in names if name.endswith(suffixes) and name not in waiting)


def finish(files: Files, directory: str) -> list[str]:
    """Do what is left of swaps that count; returns the names of what has got its place.

    Raises:
        OSError: the disk refused; call it again before the log is used.
    """
    names = files.list(directory)
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


class Recovered(NamedTuple):
    """What was done about files, by their names."""

    finished: list[str]
    removed: list[str]


def recover(files: Files, directory: str) -> Recovered:
    """Finish the swaps that count, and remove what was made for others, or taken out of the log.

    Raises:
        OSError: the disk refused.
    """
    finished = finish(files, directory)
    removed = left_over(files.list(directory))
    for name in removed:
        files.remove(f"{directory}/{name}")
    return Recovered(finished, removed)


class CleanedOffset:
    """Up to where the log in `directory` has been compacted, in a file of its own.

    Both methods raise LogDirectoryError if the disk refuses.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._offset: int | None = None

    def read(self) -> int:
        """The offset; 0 if nobody knows, as compacting again is safe."""
        if self._offset is None:
            self._offset = self._stored()
        return self._offset

    def write(self, offset: int) -> None:
        """Keep the offset, durably."""
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
        for suffix in (*_INDEX_SUFFIXES, LOG_SUFFIX):
            with suppress(FileNotFoundError):
                files.remove(f"{directory}/{base:020d}{suffix}")
    files.sync_directory(directory)
    files.rename(path, stem + LOG_SUFFIX)
    files.sync_directory(directory)
