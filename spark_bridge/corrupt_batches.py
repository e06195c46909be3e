"""Batches whose records can't be read: the read ends there, or leaves them out with a warning.

The unit is the batch, for its records can't be told apart. The option is `ignoreCorruptBatches`, as
Spark's sources of files have `ignoreCorruptFiles`.
"""

from __future__ import annotations

import logging

from spark_bridge.offsets import OffsetRange
from streamlog.errors import CorruptData, DamagedBatch

_log = logging.getLogger(__name__)


class CorruptBatches:
    """Those of one range."""

    def __init__(self, offsets: OffsetRange, *, ignored: bool) -> None:
        self._range = offsets
        self._ignored = ignored

    def meet(self, first: int, following: int, error: CorruptData) -> None:
        """A batch with the offsets from `first` to before `following` can't be read.

        Raises:
            DamagedBatch: it is not to be ignored; says where it is and what to do.
        """
        topic, partition = self._range.place
        told = (
            f"{topic}-{partition}: the batch with offsets {first} to {following - 1} can't be read:"
            f" {error}"
        )
        if self._ignored:
            _log.warning("%s; it is left out, as ignoreCorruptBatches is true", told)
            return
        found = DamagedBatch(
            f"{told}. With ignoreCorruptBatches=true the read leaves it out; `streamlog log verify`"
            " shows it, and `streamlog log repair` removes it for every reader"
        )
        found.topic, found.partition = topic, partition
        found.offset, found.next_offset = first, following
        raise found from error
