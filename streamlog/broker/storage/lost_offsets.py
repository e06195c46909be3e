"""LostOffsets: which offsets of a log were given up by mending it, in a file beside its segments.

Readers step over the empty batches that stand for them. Other replicas may have the records, so
who has such a log does not count as complete before it has fetched anew from the first of them
on; a log that nobody has a copy of keeps its empty batches, and the file.
Rule of the file: what is lost is written down before the mended segment has its place, and
forgotten once the log is durably cut below. A power cut between two steps leaves what is said too
early, and never what is not said.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from streamlog.broker.storage.catalog import MALFORMED
from streamlog.broker.storage.files import read_file, replace_file

if TYPE_CHECKING:
    from streamlog.broker.storage.files import Files

LOST_OFFSETS = "lost-offsets"
_FORMAT = 1
_EVERYTHING = (0, 2**63 - 1)


class LostOffsets:
    """The lost offsets of the log in `directory`: none before `first_offset` or from `end_offset`.

    What reads or writes raises OSError if the disk refuses.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._range: tuple[int, int] | None = None

    def read(self) -> None:
        """Know what is written down. A file that says nothing says that all may be lost."""
        try:
            content = json.loads(read_file(self._files, f"{self._directory}/{LOST_OFFSETS}"))
            is_known = content["version"] == _FORMAT
            found = (int(content["first_offset"]), int(content["end_offset"]))
            self._range = found if is_known else _EVERYTHING
        except FileNotFoundError:
            self._range = None
        except (RecursionError, *MALFORMED):
            self._range = _EVERYTHING

    def open(self, log_start_offset: int, log_end_offset: int) -> None:
        """Know what is written down of a log that begins and ends there."""
        self.read()
        self.keep_within(log_start_offset, log_end_offset)

    def first_from(self, log_start_offset: int) -> int | None:
        """From where on a log that begins there may lack records; None if it does not."""
        if self._range is None or self._range[1] <= log_start_offset:
            return None
        return max(self._range[0], log_start_offset)

    def add(self, first_offset: int, end_offset: int) -> None:
        """Write down, durably, that these are lost, besides what is known to be."""
        if self._range is not None:
            first_offset = min(first_offset, self._range[0])
            end_offset = max(end_offset, self._range[1])
        text = json.dumps(
            {"version": _FORMAT, "first_offset": first_offset, "end_offset": end_offset}
        )
        replace_file(self._files, f"{self._directory}/{LOST_OFFSETS}", text.encode())
        self._range = (first_offset, end_offset)

    def keep_within(self, log_start_offset: int, log_end_offset: int) -> None:
        """The log begins and ends there now, durably: nothing outside of it can be lost."""
        if self._range is None:
            return
        first_offset, end_offset = self._range
        if end_offset <= log_start_offset or log_end_offset <= first_offset:
            with suppress(FileNotFoundError):
                self._files.remove(f"{self._directory}/{LOST_OFFSETS}")
            self._files.sync_directory(self._directory)
            self._range = None
