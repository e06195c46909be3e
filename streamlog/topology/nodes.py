"""Nodes: the steps of a topology, as frozen data.

A node holds the user's functions, names, serdes and stores, and runs nothing. `parents` are
names, so a node can be printed, compared and handed to any runner. Rule of the file: what a
node does is in its fields; the step of the same name in `processing` does it, and what others have
to know of a kind is a property of `Node`, so that nobody has to know all kinds. Names of stateful
nodes are the identity of their state (KIP-307). Not here: nodes with more than a few fields of
their own, which have modules of their own (`process`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.aggregator import Aggregator
from streamlog.topology.policies import ErrorPolicy
from streamlog.topology.topics import TopicSpec

OldValues = Literal["unknown", "kept", "passed on"]
"""It does not; it keeps rows; its parent tells it."""


@dataclass(frozen=True, slots=True)
class WholeNumbers:
    """States that are nothing but counts, and sums, minima and maxima of whole numbers.

    Whoever has such numbers by key can add them up in any order.
    """

    columns: tuple[Aggregator[Any, Any], ...]
    fields: tuple[Callable[[Any], Any] | str | None, ...]
    """What each takes of a value: a function, or the name of an attribute; None for a count."""
    is_row: bool
    """A state is a list of them; else it is the one number."""


PYTHON = "its functions are Python"
"""Why most aggregations are more than `WholeNumbers`."""


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How values fold into a result: `initial`, then `add` per value, then `result`.

    The state between two values is kept by `state`; what `result` returns is the row.
    """

    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    state: Serde[Any]
    merge: Callable[[Any, Any], Any] | None = None
    """One state of what two have had, in this order; neither is used any more. None: not known."""
    columns: Mapping[str, Aggregator[Any, Any]] | None = None
    """What it is put together of, if nothing but built-in columns."""
    numbers: WholeNumbers | str = PYTHON
    """What its states are, if that is all they are; else why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A step; `parents` are the names of the nodes whose records it gets."""

    name: str
    parents: tuple[str, ...] = ()
    on_error: ErrorPolicy | None = None
    """What becomes of records on which it fails; None: what the app says."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The stores that it owns."""
        return ()

    @property
    def looks_into(self) -> tuple[str, ...]:
        """Other nodes in whose stores it looks when a record comes: they are in its task."""
        return ()

    @property
    def needs_equal_keys(self) -> bool:
        """Equal keys of all that it reads have to be in the same task."""
        return False

    @property
    def feeds(self) -> tuple[str, ...]:
        """The sources that rows of its own making are: those that come at a time of their own.

        Each has its own sequence in each task, and its own stream time. What belongs to the record
        behind it is none.
        """
        return ()

    @property
    def passes_on(self) -> bool:
        """Some of its rows belong to the records behind them, as well as to its feeds."""
        return not self.feeds

    @property
    def keeps_time(self) -> bool:
        """It knows how far event time has come, and tells those below."""
        return bool(self.feeds)

    @property
    def awaits_feeds(self) -> bool:
        """Its time waits for the feeds above it, one by one between the other records."""
        return False

    @property
    def waits_idle_ms(self) -> int | None:
        """It does not wait for sources read to their end and quiet for so long; None: it does."""
        return None

    @property
    def writes(self) -> tuple[TopicSpec, ...]:
        """The topics that it writes to."""
        return ()

    @property
    def table_key(self) -> Serde[Any] | None:
        """How the keys of the table that it keeps are written; None: it keeps none.

        Its rows are then in the first of its stores.
        """
        return None

    @property
    def rows_kept_ms(self) -> int | None:
        """How long after its window a row may change at most; None: keys have no windows."""
        return None

    @property
    def needs_old_values(self) -> bool:
        """The changes of a table that it gets have to say which values they replace."""
        return False

    @property
    def old_values(self) -> OldValues:
        """Where it knows from what its changes replace, if somebody below needs that."""
        return "unknown"

    @property
    def detail(self) -> str:
        """What a line about it says beyond its kind, name and parents."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Node):
    """Records of a topic."""

    topic: TopicSpec

    @property
    def detail(self) -> str:
        """Its topic."""
        return f"from topic {self.topic.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(Node):
    """The latest value per key of a topic; its records are the changes."""

    topic: TopicSpec
    store: StoreSpec

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """Its rows."""
        return (self.store,)

    @property
    def table_key(self) -> Serde[Any]:
        """That of the topic."""
        return self.topic.key

    @property
    def table_value(self) -> Serde[Any]:
        """That of the topic."""
        return self.topic.value

    @property
    def old_values(self) -> OldValues:
        """Its rows."""
        return "kept"

    @property
    def detail(self) -> str:
        """Its topic."""
        return f"from topic {self.topic.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Node):
    """A new key and value from key and value."""

    fn: Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapValues(Node):
    """A new value from the value."""

    fn: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMap(Node):
    """Any number of new keys and values from key and value."""

    fn: Callable[[Any, Any], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMapValues(Node):
    """Any number of new values from the value."""

    fn: Callable[[Any], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """Records for which the function is true."""

    fn: Callable[[Any, Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterNot(Node):
    """Records for which the function is not true."""

    fn: Callable[[Any, Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peek(Node):
    """Calls the function with each record, which goes on unchanged."""

    fn: Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekey(Node):
    """A new key from key and value."""

    fn: Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Node):
    """The records of all parents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapValues(Node):
    """Changes of a table with mapped values; a deletion stays one."""

    fn: Callable[[Any], Any]
    may_delete: bool = True
    """Of some values the function gives None, and there is no row; False: it is declared not to."""

    @property
    def needs_old_values(self) -> bool:
        """A row that was not seen is not deleted; one on which the function fails is not there."""
        leaves_out = self.on_error is not None and self.on_error.action != "fail"
        return self.may_delete or leaves_out

    @property
    def old_values(self) -> OldValues:
        """The same function is called with them."""
        return "passed on"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFilter(Node):
    """Changes of a table; a row that passed before and does not pass now is deleted."""

    fn: Callable[[Any, Any], bool]

    @property
    def needs_old_values(self) -> bool:
        """A row that never passed is not deleted."""
        return True

    @property
    def old_values(self) -> OldValues:
        """The same function is called with them."""
        return "passed on"


View = TableMapValues | TableFilter
"""What stands between a store and who reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed(Node):
    """A node that keeps rows by the keys of its records: a table."""

    store: StoreSpec
    key: Serde[Any]

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """Its rows."""
        return (self.store,)

    @property
    def needs_equal_keys(self) -> bool:
        """Records and rows with equal keys are in the same task."""
        return True

    @property
    def table_key(self) -> Serde[Any]:
        """Of the records."""
        return self.key

    @property
    def old_values(self) -> OldValues:
        """Its rows."""
        return "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Keyed):
    """One running result per key; every change goes on."""

    aggregation: Aggregation


Order = Literal["key", "partition", "none"]
"""Whose records stay in order where several are at work at a time."""
ORDERS: tuple[Order, ...] = ("key", "partition", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncMapValues(Node):
    """A new value from the value, by an async function.

    Its store has the records whose calls are open. What it hands on is a source of its own, as
    it comes later than what it was made from, and maybe in another order.
    """

    fn: Callable[[Any], Awaitable[Any]]
    store: StoreSpec
    key: Serde[Any]
    value: Serde[Any]
    """Of the records that come in."""
    in_flight_max: int
    ordered: Order
    timeout_ms: int | None = None

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The records whose calls are open."""
        return (self.store,)

    @property
    def feeds(self) -> tuple[str, ...]:
        """Everything that it hands on."""
        return (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin(Node):
    """Each record of a stream with the row that a table has for its key at that moment."""

    table: str
    """The node that owns the table's store."""
    views: tuple[View, ...]
    """Applied to the row that was found, in order."""
    key: Serde[Any]
    fn: Callable[[Any, Any], Any]
    left: bool
    """Records without a row go on too."""

    @property
    def looks_into(self) -> tuple[str, ...]:
        """The table."""
        return (self.table,)

    @property
    def needs_equal_keys(self) -> bool:
        """A record's row is in its task."""
        return True

    @property
    def detail(self) -> str:
        """The table."""
        return f"with {self.table}{' (left)' if self.left else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Node):
    """Writes records to a topic."""

    topic: TopicSpec

    @property
    def writes(self) -> tuple[TopicSpec, ...]:
        """Its topic."""
        return (self.topic,)

    @property
    def detail(self) -> str:
        """Its topic."""
        return f"to topic {self.topic.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionSink(Node):
    """Writes records to a repartition topic, each with where it came from."""

    topic: TopicSpec

    @property
    def writes(self) -> tuple[TopicSpec, ...]:
        """Its topic."""
        return (self.topic,)

    @property
    def detail(self) -> str:
        """Its topic."""
        return f"to topic {self.topic.name}"


Stateless = (
    Map
    | MapValues
    | FlatMap
    | FlatMapValues
    | Filter
    | FilterNot
    | Peek
    | Rekey
    | TableMapValues
    | TableFilter
)
"""Nodes that are nothing but a function."""
Entry = Source | TableSource
"""Nodes that read a topic."""
