"""Progress: how far the tasks of a history have come in Spark, for the bars of its driver.

Tasks write what they have read into the snapshot's directory, which all machines see, at most once
a second; the driver looks there as often. Of several attempts at a task the one that has come
furthest is told. Rule of the file: a history that nobody watches writes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from threading import Event, Thread
from types import TracebackType
from typing import Self, TypeAlias

import msgspec

from streamlog.clock import Clock, SystemClock
from streamlog.errors import StreamlogError
from streamlog.history.task_run import OnRead, Read
from streamlog.processing.record_queue import TopicPartition
from streamlog.snapshots import SnapshotPlace

PROGRESS = "progress"
"""Where tasks tell, in the snapshot's directory."""
EVERY_MS = 1_000

TaskPlace: TypeAlias = tuple[str, TopicPartition]
"""A task, and a partition that it reads."""

_log = logging.getLogger(__name__)


class PartitionProgress(msgspec.Struct, frozen=True, array_like=True):
    """How much of a partition one attempt has read."""

    topic: str
    partition: int
    records: int
    total: int
    is_staged: bool


_decode = msgspec.json.Decoder(list[PartitionProgress]).decode


class ProgressTeller:
    """Tells what one attempt at a task reads; an `OnRead`."""

    def __init__(
        self, place: SnapshotPlace | None, attempt: str, *, clock: Clock | None = None
    ) -> None:
        """`attempt` is its name among all attempts at all tasks; without a place nobody listens."""
        self._place = place
        self._name = f"{PROGRESS}/{attempt}.json"
        self._clock = clock or SystemClock()
        self._found: dict[TopicPartition, PartitionProgress] = {}
        self._told_ms = self._clock.now_ms()

    def __call__(self, read: Read) -> None:
        """Some records more."""
        if self._place is None:
            return
        before = self._found.get(read.place)
        records = read.records + (0 if before is None else before.records)
        self._found[read.place] = PartitionProgress(
            *read.place, records, read.total, read.is_staged
        )
        if self._clock.now_ms() - self._told_ms >= EVERY_MS:
            self.tell()

    def tell(self) -> None:
        """All that has been read."""
        self._told_ms = self._clock.now_ms()
        if self._place is not None:
            self._place.add(self._name, msgspec.json.encode([*self._found.values()]))


class ProgressWatch:
    """Looks for what tasks tell while a history runs; a context manager, with a thread."""

    def __init__(
        self, place: SnapshotPlace, on_read: OnRead, told: Counter[TaskPlace] | None = None
    ) -> None:
        """`on_read` hears of records that no attempt had read before, nor is `told` already."""
        self._place = place / PROGRESS
        self._on_read = on_read
        self._told = Counter[TaskPlace]() if told is None else told
        self._over = Event()
        self._thread = Thread(target=self._watch, name="streamlog-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> None:
        """Tell what is new.

        Raises:
            CorruptData: a file is gone that was there.
        """
        for name in self._place.names():
            if not name.endswith(".json"):
                continue
            task = name.partition("-")[0]
            for found in _decode(self._place.read(name)):
                place = (found.topic, found.partition)
                more = found.records - self._told[task, place]
                if more > 0:
                    self._told[task, place] += more
                    self._on_read(Read(place, more, found.total, found.is_staged))

    def _watch(self) -> None:
        while True:
            is_over = self._over.wait(EVERY_MS / 1000)
            try:
                self.look()
            except (StreamlogError, OSError) as error:
                _log.warning("the progress of tasks can't be seen any more: %s", error)
                return
            if is_over:
                return
