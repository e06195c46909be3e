"""Nodes: the steps of a topology, as frozen data.

A node holds the user's functions, names, serdes and stores, and runs nothing. `parents` are
names, so a node can be printed, compared and handed to any runner. Rule of the file: what a
node does is in its fields; the step of the same name in `processing` does it. Names of
stateful nodes are the identity of their state (KIP-307).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.policies import ErrorPolicy
from streamlog.topology.topics import TopicSpec
from streamlog.windows.definitions import Tumbling
from streamlog.windows.emit import Emit


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How values fold into a result: `initial`, then `add` per value, then `result`.

    The state between two values is kept by `state`; what `result` returns is the row.
    """

    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    state: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A step; `parents` are the names of the nodes whose records it gets."""

    name: str
    parents: tuple[str, ...] = ()
    on_error: ErrorPolicy | None = None
    """What becomes of records on which it fails; None: what the app says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Node):
    """Records of a topic."""

    topic: TopicSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource(Node):
    """The latest value per key of a topic; its records are the changes."""

    topic: TopicSpec
    store: StoreSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Map(Node):
    """A new key and value from key and value."""

    fn: Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapValues(Node):
    """A new value from the value."""

    fn: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatMapValues(Node):
    """Any number of new values from the value."""

    fn: Callable[[Any], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Node):
    """Records for which the function is true."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFilter(Node):
    """Changes of a table; a value that does not pass becomes a deletion."""

    fn: Callable[[Any, Any], bool]


View = TableMapValues | TableFilter
"""What stands between a store and who reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate(Node):
    """One running result per key; every change goes on."""

    store: StoreSpec
    key: Serde[Any]
    aggregation: Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedAggregate(Node):
    """One result per key and window."""

    store: StoreSpec
    key: Serde[Any]
    aggregation: Aggregation
    windows: Tumbling
    emit: Emit
    late: TopicSpec | Callable[[Any], object] | None = None
    """Where late records go: a topic (as `Late`), a function, or only into the count."""
    idle_after_ms: int | None = None
    """A source read to its end and quiet for this long no longer holds windows back."""

    @property
    def is_feeder(self) -> bool:
        """Its rows are a source of their own, with a time and a sequence of their own.

        On close, rows come in (end, start, key) order whatever the interleaving of the inputs
        was: their number is their identity. At commits, it is that of the record that changed the
        row last, counted here. On update, they belong to the record behind them.
        """
        return self.emit is not Emit.UPDATE


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink(Node):
    """Writes records to a topic."""

    topic: TopicSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionSink(Node):
    """Writes records to a repartition topic, each with where it came from."""

    topic: TopicSpec


Stateless = Map | MapValues | FlatMapValues | Filter | Peek | Rekey | TableMapValues | TableFilter
"""Nodes that are nothing but a function."""
Entry = Source | TableSource
"""Nodes that read a topic."""
Stateful = TableSource | Aggregate | WindowedAggregate | AsyncMapValues
"""Nodes that own a store."""
