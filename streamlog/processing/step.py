"""Step: a node at work. It receives batches from its parents and forwards batches to its children.

A task makes one step for each frozen node of its sub-topology. Rules of the module:

1. A step forwards its results before it returns, and never an empty batch, so effects happen in the
   order of the records. What a step adds to the task's outbox goes through the `Collector`.
2. A change of a table may carry the value that it replaces. Along one edge the old values form a
   chain: each is what the last change of its key forwarded. The same function computes both, so
   functions on tables have to be deterministic.
3. A row of a table on which a function fails, and that the policy skips, is forwarded as a deletion
   of what was there before. A deletion is forwarded only if there was a row.

Not done here: which step belongs to which node (`step_factory`), and error policies
(`error_handling`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

from streamlog.errors import ProcessingError, TopologyError
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.column_batch import Batch, TimeSource, exit_failure, map_until_error
from streamlog.processing.error_handling import (
    DeadLetterRecord,
    NodeFailures,
    SkippedRecord,
    dead_letter_of,
)
from streamlog.processing.node_clock import NO_TIME
from streamlog.processing.outbox import Collector
from streamlog.records.record_columns import has_none
from streamlog.serdes import Serde
from streamlog.tables.stores.store import KeyValueStore
from streamlog.windows.emit import FAR_MS

RawColumn: TypeAlias = Sequence[bytes | None]

T = TypeVar("T")
"""What a user's function gives."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """What a step that keeps rows is given by its task."""

    store: KeyValueStore
    collector: Collector
    partition: int
    feeds: Sequence[TimeSource]
    """Where its records come from."""
    sends_old_values: bool
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
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The sources that rows of its own making are; see `Node.feeds`."""
        return ()

    @property
    def clocks(self) -> Sequence[TimeSource]:
        """What tells how far event time has come here, if the node keeps time."""
        return self.own_time_sources

    @property
    def next_wall_ms(self) -> int:
        """Nothing happens here by the clock on the wall before this time."""
        return FAR_MS

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """At which stream time of its feeds something happens here next, record or none.

        A runner sees to it that time goes on there while nothing comes (time marks).
        """
        return ()

    def follows(self) -> Iterable[tuple[TimeSource, int]]:
        """As `waits_for`, once the other partitions of an input's topic have come that far."""
        return self.waits_for()

    def ends_at(self, due_ms: int) -> int:
        """The end of the window that closes at this stream time; the time itself elsewhere."""
        return due_ms

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:  # noqa: ARG002 - of those with feeds of their own
        """How far its feeds have to come until its own have come to `time_ms`."""
        return ()

    def pass_time(self, feed: TimeSource, elapsed_ms: int) -> None:
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
        results, error = map_until_error(fn, *columns)
        if error is None:
            return batch, results
        if self.failures is None:
            raise batch.failure(self.name, len(results), error) from error
        return self.failures.settled(batch, results, error, fn, columns)

    def serialize_keys(self, batch: Batch, serde: Serde[Any]) -> tuple[Batch, RawColumn]:
        """Keys as bytes, as `written`."""
        try:
            return batch, batch.raw_keys(serde, self.name)
        except ProcessingError:
            if self.failures is None:
                raise
        batch, _ = self.applied(batch, partial(_serialize, serde), batch.keys)
        return batch, batch.raw_keys(serde, self.name)

    def serialize_values(self, batch: Batch, serde: Serde[Any]) -> tuple[Batch, RawColumn]:
        """Values as bytes, as `serialize_with`."""
        try:
            return batch, batch.raw_values(serde, self.name)
        except ProcessingError:
            if self.failures is None:
                raise
        batch, _ = self.applied(batch, partial(_serialize, serde), batch.values)
        return batch, batch.raw_values(serde, self.name)

    def written(self, batch: Batch, topic: TopicSpec) -> tuple[Batch, RawColumn, RawColumn]:
        """Keys and values as bytes, as `serialize_with`."""
        return self.serialize_with(batch, topic.key, topic.value)

    def serialize_with(
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
        batch, _ = self.applied(batch, partial(_serialize, key), batch.keys)
        batch, _ = self.applied(batch, partial(_serialize, value), batch.values)
        keys = batch.raw_keys(key, self.name)
        return batch, keys, batch.raw_values(value, self.name)

    def forward(self, batch: Batch) -> None:
        """Hand a batch to all children, unless it is empty."""
        if batch.rows:
            for child in self.children:
                child.process(batch)


def _serialize(serde: Serde[Any], item: object) -> bytes | None:
    return None if item is None else serde.dumps(item)


def view_changes(
    step: Step, batch: Batch, view: Callable[[Any, Any], Any], *, sends_old_values: bool = True
) -> Batch:
    """The changes as a view of the table shows them, and what they replace in the view.

    Without those of rows that are seen neither before nor after.

    Args:
        step: the view, whose policy counts.
        batch: changes with what they replace.
        view: what is seen of a key and its value, which is not None; None: nothing.
        sends_old_values: somebody needs what is replaced; else it is left away.

    Raises:
        ProcessingError: `view` failed, and rows may not be left out here.
    """
    keys, before = batch.keys, batch.old_values or ()
    if step.failures is None:
        _, new = step.applied(
            batch, lambda k, v: None if v is None else view(k, v), keys, batch.values
        )
    else:
        columns = enumerate(zip(keys, batch.values, strict=True))
        new = [
            None if v is None else apply_to_new(step, batch, at, view, k, v)
            for at, (k, v) in columns
        ]
    old = before
    if sends_old_values or has_none(new):
        old = [
            apply_to_old(step, batch, at, view, keys[at], value)
            if value is not None and (sends_old_values or new[at] is None)
            else value
            for at, value in enumerate(before)
        ]
    seen = without_void_deletions(batch.with_values(new).with_old_values(old))
    return seen if sends_old_values else seen.with_old_values(None)


def without_void_deletions(batch: Batch) -> Batch:
    """The changes without deletions of what was not there."""
    if batch.old_values is None or not has_none(batch.values):
        return batch
    columns = zip(batch.values, batch.old_values, strict=True)
    real = [new is not None or old is not None for new, old in columns]
    return batch if all(real) else batch.where(real)


def apply_to_new(
    step: Step, batch: Batch, at: int, fn: Callable[..., Any], *arguments: object
) -> Any:  # noqa: ANN401 - the user's
    """What the function gives for a row; None if it fails and the row is left out.

    Raises:
        ProcessingError: it failed, and rows may not be left out here.
    """
    try:
        return fn(*arguments)
    except Exception as error:  # noqa: BLE001 - the user's code: the policy decides
        caught = error
    except SystemExit as stop:
        caught = exit_failure(stop)
    if step.failures is None:
        raise batch.failure(step.name, at, caught) from caught
    found = step.failures.attempt_record(batch, at, fn, *arguments, first=caught)
    return None if isinstance(found, SkippedRecord) else found


def apply_to_old(
    step: Step, batch: Batch, at: int, fn: Callable[..., Any], *arguments: object
) -> Any:  # noqa: ANN401 - the user's
    """What the function gave for a row when that came: None if it was left out then.

    Raises:
        ProcessingError: it fails now, and rows may not be left out here.
    """
    try:
        return fn(*arguments)
    except Exception as error:  # noqa: BLE001 - the user's code: the policy decides
        caught = error
    except SystemExit as stop:
        caught = exit_failure(stop)
    if step.failures is None:
        raise batch.failure(step.name, at, caught) from caught
    letter = partial(dead_letter_of, batch, at, step.name)
    found = step.failures.tried(partial(fn, *arguments), letter, caught)
    return None if isinstance(found, DeadLetterRecord) else found
