"""Appends: where batches for a log come from, and where in it they are then."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Origin(Enum):
    """Where batches come from, and what they are checked for."""

    CLIENT = "client"
    """One that has begun no transaction."""
    TRANSACTION = "transaction"
    """One that has begun a transaction here, as its coordinator knows."""
    COORDINATOR = "coordinator"
    """The broker itself: what it writes for a producer has no sequence numbers."""
    COPY = "copy"
    """Another log."""


class AppendResult(NamedTuple):
    """Where a client's batches are in the log."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1: records keep the time that their producer gave them."""
    size_bytes: int
    """So much longer is the log; 0: the batch had been appended before, at these offsets."""

    @property
    def duplicate(self) -> bool:
        """Whether the batch was there already, and was not appended again."""
        return self.size_bytes == 0
