"""Nodes of streams: sources, sinks, stateless operators, aggregations and joins of streams.

A node holds the user's functions, names, serdes and stores, and runs nothing. `parents` are names,
so a node can be printed, compared and given to any runner. Names of stateful nodes are the identity
of their state (KIP-307).

Rule: a node's fields define what it does, and the step in `processing` that is named after it does
it. Whatever other packages need to know about a kind of node is a property of `Node`, so that none
of them lists all kinds. Not done here: windows (`window_nodes`), tables (`table_nodes`), processors
(`process_nodes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

from streamlog.durations import duration_text
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import GivenHeaders
from streamlog.serdes.erased_types import AnyRecord, AnySerde, UserKey, UserState, UserValue
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.join_windows import JoinWindow

V = TypeVar("V")
"""A value that is aggregated."""
R = TypeVar("R")
"""The result of a column."""

Field = Callable[[V], object] | str
"""The part of each value that a column takes: a function of the value, or the name of a field.

`a.b` names the field b of the field a."""


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregator(Generic[V, R]):
    """One column."""

    name: str
    """The function: `count`, `sum` and so on."""
    field: Field[V] | None = None
    """The field to aggregate; None for a count."""
    by: Field[V] | None = None
    """The field that orders the values; None orders them by themselves, or by their arrival."""
    options: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Settings by name."""


AnyAggregator: TypeAlias = Aggregator[UserValue, UserValue]
"""A column of an aggregation whose values and results are of erased types."""

OldValues = Literal["unknown", "kept", "passed on"]
"""How a node knows replaced values: not at all; from rows that it keeps; from its parent."""


class WholeNumbers(msgspec.Struct, frozen=True):
    """States that consist of counts, and of sums, minima and maxima of whole numbers.

    Such numbers can be combined by key in any order.
    """

    columns: tuple[AnyAggregator, ...]
    fields: tuple[Field[UserValue] | None, ...]
    """The field that each column takes: a function, or the name of an attribute; None for a count.
    """
    is_row: bool
    """Whether a state is a list of numbers; otherwise, it is one number."""


PYTHON = "its functions are Python"
"""The reason why most aggregations are no `WholeNumbers`."""


class Aggregation(msgspec.Struct, frozen=True):
    """How values fold into a result: `initial`, then `add` per value, then `result`.

    `state` writes the state between two values; the return value of `result` is the row.
    """

    initial: Callable[[], UserState]
    add: Callable[[UserState, UserValue], UserState]
    result: Callable[[UserState], UserValue]
    state: AnySerde
    merge: Callable[[UserState, UserState], UserState] | None = None
    """Merges two states in this order; neither is used afterwards. None: they can't be merged."""
    columns: Mapping[str, AnyAggregator] | None = None
    """The built-in columns that it consists of; None if it has any other function."""
    numbers: WholeNumbers | str = PYTHON
    """Describes its states if they are whole numbers; otherwise, says why they are not."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """An operator; `parents` are the names of the nodes whose records it receives."""

    name: str
    parents: tuple[str, ...] = ()
    on_error: ErrorPolicy | None = None
    """The policy for records on which it fails; None stands for the policy of the app."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The stores that it owns."""
        return ()

    @property
    def lookup_nodes(self) -> tuple[str, ...]:
        """Other nodes whose stores it reads when a record arrives: they are in its task."""
        return ()

    @property
    def needs_equal_keys(self) -> bool:
        """Whether equal keys of all its inputs have to be in one task."""
        return False

    @property
    def feeds(self) -> tuple[str, ...]:
        """The time sources of rows that it produces itself, with times of their own.

        Each has its own sequence in each task, and its own stream time. Rows that belong to a
        record have none.
        """
        return ()

    @property
    def passes_on(self) -> bool:
        """Whether some of its rows belong to records, in addition to those of its feeds."""
        return not self.feeds

    @property
    def tracks_time(self) -> bool:
        """Whether it knows the event time, and tells the nodes below."""
        return bool(self.feeds)

    @property
    def awaits_feeds(self) -> bool:
        """Whether it must know the time of the feeds above it at each record.

        At the end of a batch would be too late: rows of the feeds may come between its records.
        """
        return False

    @property
    def waits_idle_ms(self) -> int | None:
        """The quiet time after which it ignores a source at its end; None to wait without limit."""
        return None

    @property
    def writes(self) -> tuple[TopicSpec, ...]:
        """The topics that it writes to."""
        return ()

    @property
    def table_key(self) -> AnySerde | None:
        """The serde of the keys of the table that it keeps; None if it keeps no table.

        The rows are in the first of its stores.
        """
        return None

    @property
    def rows_kept_ms(self) -> int | None:
        """How long after its window a row may change at most; None if keys have no windows."""
        return None

    @property
    def needs_old_values(self) -> bool:
        """Whether the table changes that it receives have to carry the values that they replace."""
        return False

    @property
    def old_values(self) -> OldValues:
        """How it knows the values that its changes replace, if a node below needs them."""
        return "unknown"

    @property
    def detail(self) -> str:
        """The end of its line in a printed topology, after its kind, name and parents."""
        return ""


class Source(Node, frozen=True, kw_only=True):
    """Records of a topic, or of the topics that match its pattern."""

    topic: TopicSpec

    @property
    def detail(self) -> str:
        """Names the topic, or the pattern."""
        if self.topic.pattern is not None:
            return f"from topics that match {self.topic.pattern}"
        return f"from topic {self.topic.name}"


class TableSource(Node, frozen=True, kw_only=True):
    """The latest value per key of a topic; its records are the changes."""

    topic: TopicSpec
    store: StoreSpec

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the rows."""
        return (self.store,)

    @property
    def table_key(self) -> AnySerde:
        """The key serde of the topic."""
        return self.topic.key

    @property
    def table_value(self) -> AnySerde:
        """The value serde of the topic."""
        return self.topic.value

    @property
    def old_values(self) -> OldValues:
        """The node keeps the rows that its changes replace."""
        return "kept"

    @property
    def detail(self) -> str:
        """Names the topic."""
        return f"from topic {self.topic.name}"


class Map(Node, frozen=True, kw_only=True):
    """Makes a new key and value from key and value."""

    fn: Callable[[UserKey, UserValue], tuple[UserKey, UserValue]]


class MapValues(Node, frozen=True, kw_only=True):
    """Makes a new value from the value."""

    fn: Callable[[UserValue], UserValue]


class FlatMap(Node, frozen=True, kw_only=True):
    """Makes any number of new keys and values from key and value."""

    fn: Callable[[UserKey, UserValue], Iterable[tuple[UserKey, UserValue]]]


class FlatMapValues(Node, frozen=True, kw_only=True):
    """Makes any number of new values from the value."""

    fn: Callable[[UserValue], Iterable[UserValue]]


class Filter(Node, frozen=True, kw_only=True):
    """Keeps records for which the function is true."""

    fn: Callable[[UserKey, UserValue], bool]


class FilterNot(Node, frozen=True, kw_only=True):
    """Keeps records for which the function is not true."""

    fn: Callable[[UserKey, UserValue], bool]


class Peek(Node, frozen=True, kw_only=True):
    """Calls the function with each record, and forwards the record unchanged."""

    fn: Callable[[AnyRecord], object]


class WithHeaders(Node, frozen=True, kw_only=True):
    """Replaces the headers by those that the function returns for each record."""

    fn: Callable[[AnyRecord], GivenHeaders]


class Rekey(Node, frozen=True, kw_only=True):
    """Makes a new key from key and value."""

    fn: Callable[[UserKey, UserValue], UserKey]


class Merge(Node, frozen=True, kw_only=True):
    """Forwards the records of all parents."""


class TableMapValues(Node, frozen=True, kw_only=True):
    """Maps the values of a table's changes; a deletion stays one."""

    fn: Callable[[UserValue], UserValue]
    may_delete: bool = True
    """Whether the function may return None, which deletes the row; an annotation can exclude it."""

    @property
    def needs_old_values(self) -> bool:
        """It must not delete a row that was never visible, or on which the function failed."""
        # 1. A row changes to 1, and fn(1) is None: readers below have no row.
        # 2. It changes to 2, and fn(2) is None too. Without the old value 1, the node would forward
        #    the deletion of a row that no reader has seen.
        # A policy that leaves out records has the same effect as a None: if the function failed on
        # the old value, no reader below has the row.
        leaves_out = self.on_error is not None and self.on_error.action != "fail"
        return self.may_delete or leaves_out

    @property
    def old_values(self) -> OldValues:
        """The node applies its function to the old values of its parent."""
        return "passed on"


class TableFilter(Node, frozen=True, kw_only=True):
    """Filters a table's changes; deletes a row that passed before and no longer does."""

    fn: Callable[[UserKey, UserValue], bool]

    @property
    def needs_old_values(self) -> bool:
        """It must not delete a row that never passed."""
        # As for `TableMapValues`, with a function that decides on both the old and the new value.
        return True

    @property
    def old_values(self) -> OldValues:
        """The node applies its function to the old values of its parent."""
        return "passed on"


View = TableMapValues | TableFilter
"""Nodes between a store and a reader of its rows."""


class Keyed(Node, frozen=True, kw_only=True):
    """A node that keeps rows by the keys of its records: a table."""

    store: StoreSpec
    key: AnySerde

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the rows."""
        return (self.store,)

    @property
    def needs_equal_keys(self) -> bool:
        """Records and rows with equal keys are in one task."""
        return True

    @property
    def table_key(self) -> AnySerde:
        """The key serde of the records."""
        return self.key

    @property
    def old_values(self) -> OldValues:
        """The node keeps the rows that its changes replace."""
        return "kept"


class Aggregate(Keyed, frozen=True, kw_only=True):
    """One running result per key; forwards every change."""

    aggregation: Aggregation


Order = Literal["key", "partition", "none"]
"""The records that stay in order while several calls are in flight."""
ORDERS: tuple[Order, ...] = ("key", "partition", "none")


class AsyncMapValues(Node, frozen=True, kw_only=True):
    """Makes a new value from the value, by an async function.

    Its store has the records whose calls are open. Its results have a time source of their own,
    because they come later than their records, and perhaps in another order.
    """

    fn: Callable[[UserValue], Awaitable[UserValue]]
    store: StoreSpec
    key: AnySerde
    value: AnySerde
    """The value serde of the input."""
    in_flight_max: int
    ordered: Order
    timeout_ms: int | None = None

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the records whose calls are open."""
        return (self.store,)

    @property
    def feeds(self) -> tuple[str, ...]:
        """One time source, for all its results."""
        # 1. Records 1 and 2 arrive and their calls start; with "none", call 2 may return first.
        # 2. Its result is emitted while record 5 is processed: it belongs to none of the records
        #    at that moment, and the nodes below must not take the time of record 5 for it.
        return (self.name,)


class TableJoin(Node, frozen=True, kw_only=True):
    """Joins each record of a stream with the table's row for its key at that moment."""

    table: str
    """The node that owns the table's store."""
    views: tuple[View, ...]
    """The views to apply to the row, in order."""
    key: AnySerde
    fn: Callable[[UserValue, UserValue], UserValue]
    left: bool
    """Whether records without a row are forwarded too."""

    @property
    def lookup_nodes(self) -> tuple[str, ...]:
        """The node that owns the rows of the table."""
        return (self.table,)

    @property
    def needs_equal_keys(self) -> bool:
        """A record's row is in the record's task."""
        return True

    @property
    def detail(self) -> str:
        """Names the table."""
        return f"with {self.table}{' (left)' if self.left else ''}"


class Sink(Node, frozen=True, kw_only=True):
    """Writes records to a topic."""

    topic: TopicSpec

    @property
    def writes(self) -> tuple[TopicSpec, ...]:
        """The topic of the sink."""
        return (self.topic,)

    @property
    def detail(self) -> str:
        """Names the topic."""
        return f"to topic {self.topic.name}"


class RepartitionSink(Node, frozen=True, kw_only=True):
    """Writes records to a repartition topic, each with its provenance."""

    topic: TopicSpec

    @property
    def writes(self) -> tuple[TopicSpec, ...]:
        """The topic of the sink."""
        return (self.topic,)

    @property
    def detail(self) -> str:
        """Names the topic."""
        return f"to topic {self.topic.name}"


Stateless = (
    Map
    | MapValues
    | FlatMap
    | FlatMapValues
    | Filter
    | FilterNot
    | Peek
    | WithHeaders
    | Rekey
    | TableMapValues
    | TableFilter
)
"""Nodes that consist of a function."""
Entry = Source | TableSource
"""Nodes that read a topic."""


class Port(Node, frozen=True, kw_only=True):
    """Adds to each value the number of its input."""

    number: int

    @property
    def detail(self) -> str:
        """Names the input."""
        return f"as input {self.number + 1}"


class SetTimestamp(Node, frozen=True, kw_only=True):
    """Makes a new timestamp from the value."""

    fn: Callable[[UserValue], UserValue]

    @property
    def feeds(self) -> tuple[str, ...]:
        """One time source, for all its records."""
        return (self.name,)


class Split(Node, frozen=True, kw_only=True):
    """Chooses a branch for each record: the first whose function is true."""

    branches: Mapping[str, Callable[[UserKey, UserValue], bool]]

    @property
    def detail(self) -> str:
        """Names the branches."""
        return f"into {', '.join(self.branches)}"


class Branch(Node, frozen=True, kw_only=True):
    """Forwards the records for which its split has chosen this branch."""

    branch: str

    @property
    def detail(self) -> str:
        """Names the branch."""
        return f"the branch {self.branch}"


class Dedupe(Node, frozen=True, kw_only=True):
    """Drops records whose key and identity were forwarded within a time before."""

    by: Callable[[UserValue], object]
    """Returns the identity of a value, which counts in addition to the key."""
    identity: AnySerde
    """The serde of identities."""
    key: AnySerde
    store: StoreSpec
    """The time at which each key and identity was forwarded."""
    within_ms: int

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the keys and identities that were forwarded."""
        return (self.store,)

    @property
    def needs_equal_keys(self) -> bool:
        """Duplicates have equal keys."""
        return True

    @property
    def detail(self) -> str:
        """Names the time within which duplicates are dropped."""
        return f"within {duration_text(self.within_ms)}"


How = Literal["inner", "left", "outer"]
"""The sides whose records are forwarded without a partner: neither, the left one, or both."""


def _signed_text(ms: int) -> str:
    """Return a bound of a join, which may be negative: `before="-1m"`."""
    return f"-{duration_text(-ms)}" if ms < 0 else duration_text(ms)


class JoinSide(Node, frozen=True, kw_only=True):
    """One side of a stream join: keeps its records for partners from the other side."""

    is_left: bool
    keep_ms: int
    """How long, behind stream time, a record may still find a partner."""
    store: StoreSpec
    key: AnySerde
    value: AnySerde

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the records that wait for partners."""
        return (self.store,)


class StreamJoin(Node, frozen=True, kw_only=True):
    """Joins pairs of records with equal keys; its parents are its sides, the left one first."""

    how: How
    window: JoinWindow
    key: AnySerde
    values: tuple[AnySerde, AnySerde]
    """The value serdes of the left and of the right side."""
    fn: Callable[[UserValue, UserValue], UserValue]
    unmatched: StoreSpec | None = None
    """Records that have no partner yet and may be forwarded alone; None for inner joins."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the unmatched records; none for inner joins."""
        return () if self.unmatched is None else (self.unmatched,)

    @property
    def needs_equal_keys(self) -> bool:
        """Partners are in one task."""
        return True

    @property
    def feeds(self) -> tuple[str, ...]:
        """One time source, for records that are forwarded alone when their window has closed."""
        # Time closes the window, and no record: an unmatched record belongs to none that arrives.
        return () if self.unmatched is None else (self.name,)

    @property
    def passes_on(self) -> bool:
        """A pair belongs to the record that arrived last."""
        return True

    @property
    def awaits_feeds(self) -> bool:
        """The result of a record depends on the time of the other sources."""
        # The time of the node decides which windows have closed, and so which records are alone.
        return True

    @property
    def detail(self) -> str:
        """Names the kind, the window and the grace."""
        window = self.window
        before, after = _signed_text(window.before_ms), _signed_text(window.after_ms)
        return (
            f"{self.how}, {before} before to {after} after, grace {duration_text(window.grace_ms)}"
        )
