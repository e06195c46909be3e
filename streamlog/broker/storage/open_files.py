"""OpenFiles: which files stay open between two uses, bounded in number.

A log keeps the file that it appends to open, and a broker may have more logs than descriptors.
Beyond the bound, the holders that have not used their files for longest release them; each opens
its file again with its next use. Recency is a mark that a holder sets (second chance), so a use
costs no more than that.
"""

from __future__ import annotations

import threading
from typing import Protocol


class Holder(Protocol):
    """Something that keeps one file open."""

    was_used: bool
    """Set by the holder with each use, cleared here."""

    def release(self) -> None:
        """Drop the file without closing it under another thread that uses it now."""
        ...


class OpenFiles:
    """The holders of open files; callable from any thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.released = 0
        """Files that were closed to make room for others, since the start."""
        self._lock = threading.Lock()
        self._holders: dict[Holder, None] = {}
        """The one that is looked at next comes first."""

    def __deepcopy__(self, memo: dict[int, object]) -> OpenFiles:
        """Of a copied disk no file is open."""
        return OpenFiles(self.most)

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, holder: Holder) -> None:
        """Count one more, and have the least recently used ones release their files."""
        with self._lock:
            self._holders.pop(holder, None)
            while len(self._holders) >= self.most:
                self._release_next()
            holder.was_used = True
            self._holders[holder] = None

    def discard(self, holder: Holder) -> None:
        """It has closed its file."""
        with self._lock:
            self._holders.pop(holder, None)

    def release_all(self) -> int:
        """Have every holder release its file; returns how many did."""
        with self._lock:
            holders, self._holders = self._holders, {}
            for holder in holders:
                holder.release()
            self.released += len(holders)
        return len(holders)

    def _release_next(self) -> None:
        for _ in range(len(self._holders) + 1):
            holder = next(iter(self._holders))
            del self._holders[holder]
            if not holder.was_used:
                break
            holder.was_used = False
            self._holders[holder] = None
        else:
            holder = next(iter(self._holders))
            del self._holders[holder]
        holder.release()
        self.released += 1
