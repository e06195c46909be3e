"""Connectors of the tests: numbers come in, and go out into a list of this process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from typing import ClassVar, Literal

from streamlog.connect import (
    Batch,
    Flush,
    Read,
    Secret,
    Sink,
    SinkContext,
    SinkTask,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
    TopicPartition,
)

WRITTEN: defaultdict[str, list[object]] = defaultdict(list)
"""What sinks have committed, by their `into`."""
BROKEN: set[str] = set()
"""The sources that raise an error, by their `label`."""


class Numbers(Source[str, dict[str, object]], frozen=True, kw_only=True):
    """Numbers up to `count`, from each of `parts` parts."""

    guarantee: ClassVar[Literal["exactly_once"]] = "exactly_once"
    count: int = 10
    parts: int = 3
    label: str = ""
    password: Secret = Secret("")

    async def partitions(self, context: SourceContext) -> list[SourcePartition]:
        return [{"part": number} for number in range(self.parts)]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, dict[str, object]]]:
        at = 0 if offset is None else int(str(offset["at"]))
        while at < self.count:
            if self.label in BROKEN:
                raise ValueError(f"{self.label} is broken")
            value = {"part": partition["part"], "number": at, "hidden": self.password.reveal()}
            at += 1
            yield Read([context.record(value, key=f"{partition['part']}")], {"at": at})
            await context.sleep("1ms")
        while True:
            await context.sleep("1h")


class Listed(Sink[str, dict[str, object]], frozen=True, kw_only=True):
    """Rows go into `WRITTEN`."""

    effect = "appending"
    flush: Flush = Flush(every="50ms")
    into: str

    def open(self, context: SinkContext) -> SinkTask[str, dict[str, object]]:
        return _ListedTask(self.into)


class _ListedTask(SinkTask[str, dict[str, object]]):
    def __init__(self, into: str) -> None:
        self.into = into
        self.rows: list[object] = []

    async def begin(self) -> None:
        self.rows = []

    async def write(self, batch: Batch[str, dict[str, object]]) -> None:
        self.rows += batch.values

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        WRITTEN[self.into] += self.rows

    async def abort(self) -> None:
        self.rows = []

    async def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        WRITTEN[self.into].append("reset")
