"""Nodes of streams: sources, sinks, stateless operators, aggregations and joins of streams.

A node holds the user's functions, names, serdes and stores, and runs nothing. `parents` are names,
so a node can be printed, compared and given to any runner. Names of stateful nodes are the identity
of their state (KIP-307).

Rule: a node's fields define what it does, and the step in `processing` that is named after it does
it. What other rooms need to know of a kind of node is a property of `Node`, so that no room lists
all kinds. Not here: windows (`window_nodes`), tables (`table_nodes`), processors (`process_nodes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.serdes import Serde
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.join_windows import JoinWindow

V = TypeVar("V")
"""A value that is aggregated."""
R = TypeVar("R")
"""What a column results in."""

Field = Callable[[V], Any] | str
"""What is taken of each value: a function, or the name of a field; `a.b` is b of a."""


@dataclasses.dataclass(frozen=True, slots=True)
class Aggregator(Generic[V, R]):
    """One column."""

    name: str
    """What it does: `count`, `sum` and so on."""
    field: Field[V] | None = None
    """What of: None for a count."""
    by: Field[V] | None = None
    """What the values are ordered by, if not by themselves or as they come."""
    options: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Its settings, by name."""


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
    def lookup_nodes(self) -> tuple[str, ...]:
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
    def tracks_time(self) -> bool:
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
    def lookup_nodes(self) -> tuple[str, ...]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Port(Node):
    """Values with the number of the input that they came by."""

    number: int

    @property
    def detail(self) -> str:
        """Its number."""
        return f"as input {self.number + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimestamp(Node):
    """A new timestamp from the value."""

    fn: Callable[[Any], Any]

    @property
    def feeds(self) -> tuple[str, ...]:
        """Everything that it hands on."""
        return (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(Node):
    """Chooses a branch for each record: the first whose function is true."""

    branches: Mapping[str, Callable[[Any, Any], bool]]

    @property
    def detail(self) -> str:
        """Its branches."""
        return f"into {', '.join(self.branches)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Node):
    """The records for which its split has chosen this branch."""

    branch: str

    @property
    def detail(self) -> str:
        """Which."""
        return f"the branch {self.branch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedupe(Node):
    """Records whose key and identity have not gone on within a time before."""

    by: Callable[[Any], object]
    """What identifies a record beside its key, of its value."""
    identity: Serde[Any]
    """How that is written."""
    key: Serde[Any]
    store: StoreSpec
    """When each has gone on."""
    within_ms: int

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """What has gone on."""
        return (self.store,)

    @property
    def needs_equal_keys(self) -> bool:
        """Twins have equal keys."""
        return True

    @property
    def detail(self) -> str:
        """For how long."""
        return f"within {self.within_ms} ms"


How = Literal["inner", "left", "outer"]
"""Which sides' records go on without a partner: none, the left one's, both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSide(Node):
    """One of the streams: keeps its records for those of the other one."""

    is_left: bool
    keep_ms: int
    """For how long behind stream time a record may find a partner."""
    store: StoreSpec
    key: Serde[Any]
    value: Serde[Any]

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """Its records."""
        return (self.store,)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJoin(Node):
    """Pairs of records with equal keys; its parents are its sides, the left one first."""

    how: How
    window: JoinWindow
    key: Serde[Any]
    values: tuple[Serde[Any], Serde[Any]]
    """Of the records of the left side, and of the right one."""
    fn: Callable[[Any, Any], Any]
    unmatched: StoreSpec | None = None
    """The records that have found no partner so far and may go on alone; None for inner joins."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The unmatched records."""
        return () if self.unmatched is None else (self.unmatched,)

    @property
    def needs_equal_keys(self) -> bool:
        """Partners are in the same task."""
        return True

    @property
    def feeds(self) -> tuple[str, ...]:
        """What goes on alone, when its window has closed."""
        return () if self.unmatched is None else (self.name,)

    @property
    def passes_on(self) -> bool:
        """A pair belongs to the record that came last."""
        return True

    @property
    def awaits_feeds(self) -> bool:
        """What it does with a record depends on how far the others have come."""
        return True

    @property
    def detail(self) -> str:
        """Its window."""
        window = self.window
        return (
            f"{self.how}, {window.before_ms} ms before to {window.after_ms} ms after, "
            f"grace {window.grace_ms} ms"
        )
