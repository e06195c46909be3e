"""Step: a node at work. Gets batches from its parents, hands batches to its children.

A step is made from a frozen node of the topology once per task. Rule of the file: a step
hands on what it made before it returns, and never an empty batch, so the order of effects is
that of the records. What steps put into the task's outbox goes through the `Collector`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

from streamlog.errors import ProcessingError, TopologyError
from streamlog.processing.calls import Call
from streamlog.processing.columns import Batch, Feed, until_error
from streamlog.processing.failures import NodeFailures
from streamlog.processing.node_time import NO_TIME
from streamlog.processing.outbox import Drop, Outbox, Reason, SinkBatch
from streamlog.serdes import Serde
from streamlog.tables.store import KeyValueStore
from streamlog.topology import TopicSpec
from streamlog.windows.emit import FAR_MS

RawColumn: TypeAlias = Sequence[bytes | None]

T = TypeVar("T")
"""What a user's function gives."""


class Collector:
    """The outbox in the making, shared by the steps of a task."""

    def __init__(self, stamped: Collection[str] = ()) -> None:
        """Records for the topics `stamped` have their stamps as columns, and no headers."""
        self.stamped = stamped
        self.outbox = Outbox()
        self._drops: dict[tuple[str, Reason], Drop] = {}

    def send(self, batch: SinkBatch) -> None:
        """To be written by the runner, in this order; not a batch without records."""
        if batch.timestamps:
            self.outbox.writes.append(batch)

    def call(self, call: Call) -> None:
        """To be awaited by the runner."""
        self.outbox.calls.append(call)

    def drop(
        self, node: str, reason: Reason, count: int = 1, *, late_by_ms: int = 0, told: str = ""
    ) -> None:
        """Count records that a node leaves out; none is fine."""
        if not count:
            return
        drop = self._drops.get((node, reason))
        if drop is None:
            drop = self._drops[node, reason] = Drop(node, reason)
            self.outbox.drops.append(drop)
        drop.count += count
        drop.late_by_ms_max = max(drop.late_by_ms_max, late_by_ms)
        drop.told = told or drop.told

    def take(self) -> Outbox:
        """The outbox; a new one begins."""
        outbox, self.outbox = self.outbox, Outbox()
        self._drops.clear()
        return outbox


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step that keeps rows is given by its task."""

    store: KeyValueStore
    collector: Collector
    partition: int
    feeds: Sequence[Feed]
    """Where its records come from."""
    tells_old_values: bool
    """Changes that it hands on say what they replace: somebody needs it."""


class Step:
    """A node at work.

    What a kind has nothing to do for does nothing here; a task calls only what a kind has.
    """

    section: ClassVar[str] = ""
    """Where in the progress `to_data` goes; "": it has nothing to write down but its stores."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: list[Step] = []
        self.node_time = NO_TIME
        """How far time has come by the records that reach it, if it keeps time."""
        self.failures: NodeFailures | None = None
        """What becomes of records on which it fails; None: the task fails."""

    def process(self, batch: Batch) -> None:
        """Take in a batch; hand on what comes of it. This one hands on the batch itself."""
        self.forward(batch)

    @property
    def own_feeds(self) -> Sequence[Feed]:
        """The sources that rows of its own making are; see `Node.feeds`."""
        return ()

    @property
    def clocks(self) -> Sequence[Feed]:
        """What tells how far event time has come here, if the node keeps time."""
        return self.own_feeds

    @property
    def next_wall_ms(self) -> int:
        """Nothing happens here by the clock on the wall before this time."""
        return FAR_MS

    def waits_for(self) -> Iterable[tuple[Feed, int]]:
        """At which stream time of its feeds something happens here next, record or none.

        A runner sees to it that time goes on there while nothing comes (time marks).
        """
        return ()

    def follows(self) -> Iterable[tuple[Feed, int]]:
        """As `waits_for`, once the other partitions of an input's topic have come that far."""
        return self.waits_for()

    def ends_at(self, due_ms: int) -> int:
        """The end of the window that closes at this stream time; the time itself elsewhere."""
        return due_ms

    def needs(self, time_ms: int) -> Iterable[tuple[Feed, int]]:  # noqa: ARG002 - of those with feeds of their own
        """How far its feeds have to come until its own have come to `time_ms`."""
        return ()

    def pass_time(self, feed: Feed, elapsed_ms: int) -> None:
        """Time has gone on in an input, as a mark says; `settle` follows."""

    def look(self, now_ms: int) -> None:
        """The time on the wall from now on: milliseconds that never go back."""

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - for kinds with a clock
        """All records at hand have been taken, here and above: let time take effect.

        Returns whether this has changed something that a commit is due for. `now_ms` is None
        when rows have been emitted for a commit, and no clock moves.
        """
        return False

    @property
    def has_waiting(self) -> bool:
        """Whether rows wait for a commit to be handed on."""
        return False

    def emit(self) -> None:
        """Hand them on; `settle` follows."""

    def flush(self) -> None:
        """Write what is kept as objects into the store."""

    def init(self) -> None:
        """The state is there, the first records follow."""

    def close(self) -> None:
        """There will be no more records."""

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the stores, as plain data; see `section`."""
        return {}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave."""

    def table(self) -> Iterator[tuple[Any, Any]]:
        """The rows of the table that it keeps: keys and values.

        Raises:
            TopologyError: it keeps none.
        """
        raise TopologyError(f"{self.name!r} keeps no table")

    def applied(
        self, batch: Batch, fn: Callable[..., T], *columns: Sequence[Any]
    ) -> tuple[Batch, list[T]]:
        """What the user's function gives for each record; those that fail may be left out.

        Raises:
            ProcessingError: it raised, and records may not be left out here.
        """
        results, error = until_error(fn, *columns)
        if error is None:
            return batch, results
        if self.failures is None:
            raise batch.failure(self.name, len(results), error) from error
        return self.failures.settled(batch, results, error, fn, columns)

    def written_keys(self, batch: Batch, serde: Serde[Any]) -> tuple[Batch, RawColumn]:
        """Keys as bytes, as `written`."""
        try:
            return batch, batch.raw_keys(serde, self.name)
        except ProcessingError:
            if self.failures is None:
                raise
        batch, _ = self.applied(batch, partial(_dumped, serde), batch.keys)
        return batch, batch.raw_keys(serde, self.name)

    def written_values(self, batch: Batch, serde: Serde[Any]) -> tuple[Batch, RawColumn]:
        """Values as bytes, as `written_with`."""
        try:
            return batch, batch.raw_values(serde, self.name)
        except ProcessingError:
            if self.failures is None:
                raise
        batch, _ = self.applied(batch, partial(_dumped, serde), batch.values)
        return batch, batch.raw_values(serde, self.name)

    def written(self, batch: Batch, topic: TopicSpec) -> tuple[Batch, RawColumn, RawColumn]:
        """Keys and values as bytes, as `written_with`."""
        return self.written_with(batch, topic.key, topic.value)

    def written_with(
        self, batch: Batch, key: Serde[Any], value: Serde[Any]
    ) -> tuple[Batch, RawColumn, RawColumn]:
        """Keys and values as bytes; records that can't be written may be left out.

        Raises:
            ProcessingError: one can't be, and records may not be left out here.
        """
        try:
            keys = batch.raw_keys(key, self.name)
            return batch, keys, batch.raw_values(value, self.name)
        except ProcessingError:
            if self.failures is None:
                raise
        batch, _ = self.applied(batch, partial(_dumped, key), batch.keys)
        batch, _ = self.applied(batch, partial(_dumped, value), batch.values)
        keys = batch.raw_keys(key, self.name)
        return batch, keys, batch.raw_values(value, self.name)

    def forward(self, batch: Batch) -> None:
        """Hand a batch to all children, unless it is empty."""
        if batch.rows:
            for child in self.children:
                child.process(batch)


def _dumped(serde: Serde[Any], item: object) -> bytes | None:
    return None if item is None else serde.dumps(item)
