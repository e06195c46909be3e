"""Source task: one task of a source, with a reader for each of its parts.

Rule: the owner decides when reads leave. `take` gives everything that is held, for one transaction;
`count` says that it is committed. An undone transaction ends the task: the owner starts a new one
with the offsets that the log has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from streamlog.connect.source import SourceOffset, SourcePartition
from streamlog.connect.source_progress import HeldRead
from streamlog.connect_tasks.carried import CarriedRead
from streamlog.connect_tasks.part_reader import PartReader, ReaderDeps
from streamlog.connect_tasks.task_figures import ReaderFigures, sum_figures


class SourceTask:
    """One task of a source at work."""

    def __init__(
        self,
        deps: ReaderDeps,
        number: int,
        parts: Sequence[tuple[SourcePartition, SourceOffset | None]],
    ) -> None:
        """Create the task of these parts, each with the offset that the log has."""
        self.name, self.number = deps.name, number
        self.readers = [PartReader(deps, part, offset) for part, offset in parts]
        self._deps = deps
        self._own = ReaderFigures()
        """What belongs to the task and to none of its readers."""
        self._taken_ms = 0
        """When the reads of the present transaction were taken."""

    async def run(self) -> None:
        """Read all parts until they end; cancel it to stop, which closes their generators.

        Raises:
            ProcessingError: a reader failed.
        """
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for reader in self.readers:
                    group.create_task(reader.run(), name=f"source {self.name}")
        except ExceptionGroup as failures:
            # The first error ends the other readers, so it is the one that explains the end.
            failure = failures.exceptions[0]
        finally:
            self._deps.context.close()
        if failure is not None:
            raise failure

    @property
    def held_bytes(self) -> int:
        """The bytes of the reads that do not count yet."""
        return sum(reader.progress.held_bytes for reader in self.readers)

    @property
    def held_records(self) -> int:
        """The records of the reads that do not count yet."""
        return sum(reader.progress.held_records for reader in self.readers)

    @property
    def is_full(self) -> bool:
        """Whether a reader waits for a commit."""
        return any(reader.progress.is_full for reader in self.readers)

    @property
    def gauges(self) -> Mapping[str, float]:
        """What the source has measured itself."""
        return self._deps.context.gauges

    @property
    def is_empty(self) -> bool:
        """Whether everything that was read counts."""
        return all(reader.progress.is_empty for reader in self.readers)

    def take(self) -> list[tuple[PartReader, list[HeldRead[CarriedRead]]]]:
        """Return everything that is held, by reader, for one transaction."""
        self._taken_ms = self._deps.clock.now_ms()
        taken = [(reader, reader.take()) for reader in self.readers]
        return [(reader, reads) for reader, reads in taken if reads]

    def count(self) -> None:
        """Note that the transaction with what was taken is committed.

        Raises:
            ProcessingError: a `committed` of the source raised.
        """
        self._own.committed(self._deps.clock.now_ms() - self._taken_ms)
        for reader in self.readers:
            reader.count()

    def drop(self) -> None:
        """Drop everything that does not count; call it when `run` has ended."""
        for reader in self.readers:
            reader.drop()

    def pause(self, *, is_paused: bool) -> None:
        """Ask the source for no more, or again."""
        for reader in self.readers:
            reader.pause(is_paused=is_paused)

    def figures(self) -> ReaderFigures:
        """Return the sums of the readers' figures."""
        return sum_figures(self._own, [reader.figures for reader in self.readers])
