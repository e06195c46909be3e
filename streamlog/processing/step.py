"""Step: a node at work. It receives batches from its parents and forwards batches to its children.

A task makes one step for each frozen node of its sub-topology. Rules of the module:

1. A step forwards its results before it returns, and never an empty batch, so effects happen in the
   order of the records. What a step adds to the task's outbox goes through the `Collector`.
2. A change of a table may carry the value that it replaces. Along one edge the old values form a
   chain: each is what the last change of its key forwarded. The same function computes both, so
   functions on tables have to be deterministic.
3. If a function fails on a row of a table and the policy skips the row, the step forwards a
   deletion of the earlier row. A deletion is forwarded only if there was a row.

Not done here: which step belongs to which node (`step_factory`), and error policies
(`error_handling`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeAlias, TypeVar

import msgspec

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
from streamlog.serdes.erased_types import AnySerde, JsonValue, UserFunction, UserKey, UserValue
from streamlog.tables.stores.store import KeyValueStore
from streamlog.windows.emit import FAR_MS

RawColumn: TypeAlias = Sequence[bytes | None]

T = TypeVar("T")
"""The result of a user's function."""

Tap: TypeAlias = Callable[[Batch, bool], None]
"""Looks at a batch that a step takes (False) or forwards (True), and changes nothing."""


class StepContext(msgspec.Struct, frozen=True):
    """What a task passes to a step that keeps rows."""

    store: KeyValueStore
    collector: Collector
    partition: int
    feeds: Sequence[TimeSource]
    """The time sources that the step's records come from."""
    sends_old_values: bool
    """Whether forwarded changes carry the values that they replace: a step downstream needs them.
    """


def no_stopwatch() -> int:
    """Return 0, where the time of the steps is not measured."""
    return 0


class Step:
    """A node at work.

    The methods do nothing here; a task calls only those that a step's class overrides.
    """

    section: ClassVar[str] = ""
    """The section of the progress that holds `to_data`; "": only the stores have state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: list[Step] = []
        self.node_time = NO_TIME
        """Event time by the records that reach the node, if it keeps time."""
        self.failures: NodeFailures | None = None
        """The error policy for records on which the step fails; None: the task fails."""
        self.records_in = self.records_out = 0
        """The records that it has taken, and forwarded; see `node_figures`."""
        self.tap: Tap | None = None
        """Looks at its records while a page asks for samples; another thread sets it."""
        self.stopwatch_ns: Callable[[], int] = no_stopwatch
        """Measures the time of work, in ns; the task's runner sets it."""
        self.within_ns = self.passed_ns = 0
        """The time of its work with that of its children, and the time of its children."""

    def process(self, batch: Batch) -> None:
        """Process a batch and forward the results; here, the batch itself."""
        self.forward(batch)

    @property
    def late_records(self) -> int:
        """The number of records that came after their window had closed."""
        return 0

    @property
    def open_windows(self) -> int | None:
        """The number of windows that have rows and are open; None if that is not known."""
        return None

    @property
    def own_time_sources(self) -> Sequence[TimeSource]:
        """The time sources of rows that the step itself produces; see `Node.feeds`."""
        return ()

    @property
    def clocks(self) -> Sequence[TimeSource]:
        """The time sources that tell the event time here, if the node keeps time."""
        return self.own_time_sources

    @property
    def next_wall_ms(self) -> int:
        """The wall-clock time before which the step has nothing to do by that clock."""
        return FAR_MS

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """Return the stream times of its time sources at which the step has something to do next.

        A runner makes sure that time advances there even without records (time marks).
        """
        return ()

    def follows(self) -> Iterable[tuple[TimeSource, int]]:
        """Return what `waits_for` does, for time that comes from an input's other partitions."""
        return self.waits_for()

    def ends_at(self, due_ms: int) -> int:
        """Return the end of the window that closes at this stream time; by default, that time."""
        return due_ms

    def needs(self, time_ms: int) -> Iterable[tuple[TimeSource, int]]:  # noqa: ARG002 - of those with feeds of their own
        """Return the times that its time sources have to reach for its own to reach `time_ms`."""
        return ()

    def pass_time(self, feed: TimeSource, elapsed_ms: int) -> None:
        """Take a time mark: event time has advanced in an input; `settle` follows."""

    def look(self, now_ms: int) -> None:
        """Set the wall-clock time: milliseconds that never go back."""

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - for kinds with a clock
        """Let time take effect, after all available records were taken, here and above.

        Returns whether this has changed something that a commit is due for. `now_ms` is None after
        rows were emitted for a commit; then no clock moves.
        """
        return False

    @property
    def has_waiting(self) -> bool:
        """Whether rows wait for a commit before they are forwarded."""
        return False

    def emit(self) -> None:
        """Forward the rows that wait for a commit; `settle` follows."""

    def flush(self) -> None:
        """Write what is kept as objects into the store."""

    def init(self) -> None:
        """Start: the state is restored, the first records follow."""

    def close(self) -> None:
        """End: there are no more records."""

    def to_data(self) -> dict[str, object]:
        """Return what a restart needs besides the stores, as plain data; see `section`."""
        return {}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""

    def table(self) -> Iterator[tuple[UserKey, UserValue]]:
        """Iterate over the rows of the table that the step keeps: keys and values.

        Raises:
            TopologyError: the step keeps no table.
        """
        raise TopologyError(f"{self.name!r} keeps no table")

    def apply_function(
        self, batch: Batch, fn: Callable[..., T], *columns: Sequence[UserValue]
    ) -> tuple[Batch, list[T]]:
        """Return the user's function's results, and the batch without records that were skipped.

        Raises:
            ProcessingError: the function raised, and the policy does not skip the record.
        """
        results, error = map_until_error(fn, *columns)
        if error is None:
            return batch, results
        if self.failures is None:
            raise batch.failure(self.name, len(results), error) from error
        return self.failures.retry_rest(batch, results, error, fn, columns)

    def attempt_record(
        self, batch: Batch, at: int, work: Callable[[], T], *, first: Exception | None = None
    ) -> T | SkippedRecord:
        """Return the result of `work` for one record; if it fails, the error policy applies.

        Args:
            batch: the batch of the record.
            at: its index in the batch.
            work: calls the user's function for the record.
            first: what the first attempt raised, if it has been made.

        Raises:
            ProcessingError: it failed, and the policy does not skip the record.
        """
        if self.failures is not None:
            return self.failures.attempt_record(batch, at, work, first=first)
        if first is None:
            try:
                return work()
            except Exception as error:  # noqa: BLE001 - the user's code
                first = error
            except SystemExit as stop:
                first = exit_failure(stop)
        raise batch.failure(self.name, at, first) from first

    def serialize_keys(self, batch: Batch, serde: AnySerde) -> tuple[Batch, RawColumn]:
        """Return the keys as bytes; see `serialize_with`."""
        try:
            return batch, batch.raw_keys(serde, self.name)
        except ProcessingError:
            if self.failures is None:
                raise
        batch, _ = self.apply_function(batch, partial(_serialize, serde), batch.keys)
        return batch, batch.raw_keys(serde, self.name)

    def serialize_values(self, batch: Batch, serde: AnySerde) -> tuple[Batch, RawColumn]:
        """Return the values as bytes; see `serialize_with`."""
        try:
            return batch, batch.raw_values(serde, self.name)
        except ProcessingError:
            if self.failures is None:
                raise
        batch, _ = self.apply_function(batch, partial(_serialize, serde), batch.values)
        return batch, batch.raw_values(serde, self.name)

    def serialize_for(self, batch: Batch, topic: TopicSpec) -> tuple[Batch, RawColumn, RawColumn]:
        """Return keys and values as a topic's serdes write them; see `serialize_with`."""
        try:
            return self.serialize_with(batch, topic.key, topic.value)
        except ProcessingError as error:
            # The name of a sink is a number, which says little to the author of the program.
            error.args = (f"{error}; it can't be written to topic {topic.name!r}",)
            raise

    def serialize_with(
        self, batch: Batch, key: AnySerde, value: AnySerde
    ) -> tuple[Batch, RawColumn, RawColumn]:
        """Return keys and values as bytes, and the batch without records that were skipped.

        Raises:
            ProcessingError: a record can't be written, and the policy does not skip it.
        """
        # The columns as a whole first. Only after an error, record by record, so that the policy
        # can skip those that fail.
        try:
            keys = batch.raw_keys(key, self.name)
            return batch, keys, batch.raw_values(value, self.name)
        except ProcessingError:
            if self.failures is None:
                raise
        batch, _ = self.apply_function(batch, partial(_serialize, key), batch.keys)
        batch, _ = self.apply_function(batch, partial(_serialize, value), batch.values)
        keys = batch.raw_keys(key, self.name)
        return batch, keys, batch.raw_values(value, self.name)

    def forward(self, batch: Batch) -> None:
        """Pass a batch to all children, unless it is empty."""
        count = len(batch.rows)
        if count:
            self.records_out += count
            # Read once: the thread that sets it may take it away in between.
            if (tap := self.tap) is not None:
                tap(batch, True)  # noqa: FBT003 - as the alias says
            began_ns = now_ns = self.stopwatch_ns()
            for child in self.children:
                before_ns = now_ns
                child.records_in += count
                if (tap := child.tap) is not None:
                    tap(batch, False)  # noqa: FBT003 - as the alias says
                child.process(batch)
                now_ns = self.stopwatch_ns()
                child.within_ns += now_ns - before_ns
            self.passed_ns += now_ns - began_ns

    def hand_over(self, to: Step, count: int, take: Callable[[], None]) -> None:
        """Call `take`, a method of another step that takes `count` records of this one.

        For the sides of joins; both steps' figures count it as `forward` does.
        """
        self.records_out += count
        to.records_in += count
        began_ns = self.stopwatch_ns()
        take()
        lasted_ns = self.stopwatch_ns() - began_ns
        to.within_ns += lasted_ns
        self.passed_ns += lasted_ns

    def run_timed(self, work: Callable[[], T]) -> T:
        """Call `work`, which the task asks of this step, and count its time."""
        began_ns = self.stopwatch_ns()
        try:
            return work()
        finally:
            self.within_ns += self.stopwatch_ns() - began_ns


def _serialize(serde: AnySerde, item: object) -> bytes | None:
    return None if item is None else serde.dumps(item)


def view_changes(
    step: Step,
    batch: Batch,
    view: Callable[[UserKey, UserValue], UserValue],
    *,
    sends_old_values: bool = True,
) -> Batch:
    """Return the changes as a view of the table shows them, with what they replace in the view.

    Changes of rows that the view shows neither before nor after are left out.

    Args:
        step: the view, whose error policy applies.
        batch: changes with the values that they replace.
        view: returns what the view shows for a key and its value, which is not None; None: no row.
        sends_old_values: whether a step downstream needs the old values; otherwise they are
            dropped.

    Raises:
        ProcessingError: `view` failed, and the policy does not skip the row.
    """
    # The view is a filter that shows values above 3; the table changes from `old` to `new`.
    # 1. 5 to 7: an update from 5 to 7. 2. 2 to 7: an update that replaces nothing.
    # 3. 5 to 2: a deletion that replaces 5. 4. 2 to 1: nothing, before and after.
    # Without old values downstream, the old one is computed for deletions alone: to tell 3 from 4.
    keys, before = batch.keys, batch.old_values or ()
    if step.failures is None:
        _, new = step.apply_function(
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
    """Return the changes without deletions of rows that did not exist."""
    if batch.old_values is None or not has_none(batch.values):
        return batch
    columns = zip(batch.values, batch.old_values, strict=True)
    real = [new is not None or old is not None for new, old in columns]
    return batch if all(real) else batch.where(real)


def apply_to_new(
    step: Step, batch: Batch, at: int, fn: UserFunction, *arguments: object
) -> UserValue:
    """Return the function's result for a row; None if it fails and the policy skips the row.

    Raises:
        ProcessingError: the function failed, and the policy does not skip the row.
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
    step: Step, batch: Batch, at: int, fn: UserFunction, *arguments: object
) -> UserValue:
    """Return the function's earlier result for a row; None if the row was skipped then.

    Raises:
        ProcessingError: the function fails now, and the policy does not skip the row.
    """
    try:
        return fn(*arguments)
    except Exception as error:  # noqa: BLE001 - the user's code: the policy decides
        caught = error
    except SystemExit as stop:
        caught = exit_failure(stop)
    if step.failures is None:
        raise batch.failure(step.name, at, caught) from caught
    # Not `attempt_record`: the row was skipped and counted when this value was new. A dead letter
    # now would be the second one of the record that wrote it.
    letter = partial(dead_letter_of, batch, at, step.name)
    found = step.failures.attempt(partial(fn, *arguments), letter, caught)
    return None if isinstance(found, DeadLetterRecord) else found
