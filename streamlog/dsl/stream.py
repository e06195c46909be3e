"""Topic and Stream: what an app reads, does with records one by one, and writes.

A stream is a place in the topology; its operators add a node and return the next place. Rule
of the file: a changed key is only remembered (`rekeyed`). The repartition topic comes in when
an operator follows that needs equal keys in one partition, as in Kafka Streams; a plain
`.to(topic)` needs none. Names of operators without state are made up if they are not given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from streamlog.dsl.shapes import Shape, element, item, returned
from streamlog.durations import When, moment, when_ms
from streamlog.errors import ProcessingError, SerdeError, StreamlogError, TopologyError, UsageError
from streamlog.record import Headers, Record
from streamlog.topology import (
    Filter,
    FlatMapValues,
    Map,
    MapValues,
    Merge,
    Peek,
    Rekey,
    RepartitionSink,
    Sink,
    Source,
    TableJoin,
    TopicSpec,
    TopologyBuilder,
    check_name,
)

if TYPE_CHECKING:
    from streamlog.dsl.grouped import Grouped
    from streamlog.dsl.table import Table
    from streamlog.records.batch import Record as RawRecord
    from streamlog.serdes import Serde

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
K2 = TypeVar("K2")
"""A new key."""
V2 = TypeVar("V2")
"""A new value, or the value of a table."""
R = TypeVar("R")
"""What a joiner returns."""


class Sent(NamedTuple):
    """Where a record that was sent has come to lie."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Sender(Protocol):
    """Port: writes one record of bytes and says where it lies. A worker's or a test driver's."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        timestamp_ms: int | None,
        headers: Headers,
        partition: int | None,
    ) -> Awaitable[tuple[str, int, int, int]]:
        """Topic, partition, offset and timestamp of the record, once it is acknowledged."""


class Outlet:
    """What the topics of an app are sent through, as long as the app runs."""

    def __init__(self) -> None:
        self.sender: Sender | None = None


class Topic(Generic[K, V]):
    """A topic with the types of its keys and values."""

    def __init__(self, spec: TopicSpec, outlet: Outlet) -> None:
        self.spec = spec
        self._outlet = outlet

    @property
    def name(self) -> str:
        """The topic's name in the log."""
        return self.spec.name

    async def send(
        self,
        value: V | None,
        *,
        key: K | None = None,
        timestamp: When | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Sent:
        """Write one record and wait until the log has it.

        Args:
            value: None deletes the key from tables.
            key: decides the partition.
            timestamp: now, if it is not given.
            headers: names to bytes.
            partition: instead of the key's.

        Raises:
            UsageError: nobody runs the app: neither a worker nor a test.
            SerdeError: key or value are not of the topic's types.
        """
        sender = self._outlet.sender
        if sender is None:
            raise UsageError(
                f"nobody runs the app, so nothing can be sent to {self.name!r}: send from an "
                "agent, timer or crontab of a running worker, or in `with app.test()`"
            )
        raw_key, raw_value = self.encoded(key, value)
        sent = await sender.send(
            self.name,
            raw_value,
            key=raw_key,
            timestamp_ms=None if timestamp is None else when_ms(timestamp),
            headers=tuple((headers or {}).items()),
            partition=partition,
        )
        return Sent._make(sent)

    def encoded(self, key: K | None, value: V | None) -> tuple[bytes | None, bytes | None]:
        """Key and value as bytes.

        Raises:
            SerdeError: they are not of the topic's types.
        """
        return (
            _encoded(self.spec.key, key, f"the key for {self.name!r}"),
            _encoded(self.spec.value, value, f"the value for {self.name!r}"),
        )

    def decoded(self, record: RawRecord, partition: int) -> Record[K, V]:
        """A record of this topic as its types.

        Raises:
            ProcessingError: it is not of these types, or its event time can't be told.
        """
        spec = self.spec
        try:
            key: Any = None if record.key is None else spec.key.loads(record.key)
            value: Any = None if record.value is None else spec.value.loads(record.value)
            timestamp_ms = record.timestamp_ms
            if spec.timestamp is not None and value is not None:
                timestamp_ms = when_ms(spec.timestamp(value))
        except Exception as error:  # noqa: BLE001 - the user's serde and extractor: raised again
            failure = error
        else:
            at = (self.name, partition, record.offset)
            return Record(key, value, moment(timestamp_ms), record.headers, *at)
        raise ProcessingError(
            f"the record at offset {record.offset} of {self.name}-{partition} can't be read: "
            f"{failure}",
            topic=self.name,
            partition=partition,
            offset=record.offset,
            node=self.name,
        ) from failure


def _encoded(serde: Serde[Any], obj: object, what: str) -> bytes | None:
    if obj is None:
        return None
    try:
        return serde.dumps(obj)
    except StreamlogError as error:
        raise SerdeError(f"{what}: {error}") from error


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the topology a stream is, and what is known of its records."""

    builder: TopologyBuilder
    node: str
    key: Shape
    value: Shape
    rekeyed: str | None = None
    """Keys may lie in any partition since this operator changed them; "" if it has no name."""


class Stream(Generic[K, V]):
    """Records with keys of type K and values of type V."""

    def __init__(self, place: Place) -> None:
        self._at = place

    @property
    def _place(self) -> Place:
        return self._at

    def map(
        self, fn: Callable[[K, V], tuple[K2, V2]], *, name: str | None = None
    ) -> Stream[K2, V2]:
        """A new key and value for each record. Prefer `map_values` if the key stays."""
        place = self._add(Map, name, fn=fn)
        key, value = returned(fn, of=element(0)), returned(fn, of=element(1))
        return Stream(Place(place.builder, place.node, key, value, name or ""))

    def map_values(self, fn: Callable[[V], V2], *, name: str | None = None) -> Stream[K, V2]:
        """A new value for each record."""
        place = self._add(MapValues, name, fn=fn)
        return Stream(Place(place.builder, place.node, place.key, returned(fn), place.rekeyed))

    def flat_map_values(
        self, fn: Callable[[V], Iterable[V2]], *, name: str | None = None
    ) -> Stream[K, V2]:
        """Any number of new values for each record, in the order they are given."""
        place = self._add(FlatMapValues, name, fn=fn)
        value = returned(fn, of=item)
        return Stream(Place(place.builder, place.node, place.key, value, place.rekeyed))

    def filter(self, fn: Callable[[K, V], bool], *, name: str | None = None) -> Stream[K, V]:
        """The records for which the function is true."""
        return Stream(self._add(Filter, name, fn=fn))

    def peek(self, fn: Callable[[Record[K, V]], object]) -> Stream[K, V]:
        """Call the function with each record; the records go on unchanged."""
        return Stream(self._add(Peek, None, fn=fn))

    def rekey(self, fn: Callable[[K, V], K2], *, name: str | None = None) -> Stream[K2, V]:
        """A new key for each record.

        `name` names the repartition topic, should an operator follow that needs one.
        """
        place = self._add(Rekey, name, fn=fn)
        return Stream(Place(place.builder, place.node, returned(fn), place.value, name or ""))

    def repartition(self, *, name: str, partitions: int | None = None) -> Stream[K, V]:
        """Through a topic of the app's own, so that equal keys lie in one partition.

        Args:
            name: of the topic, `<app>-<name>-repartition`.
            partitions: by default as many as the largest topic upstream.
        """
        place = self._place
        return Stream(through_topic(place, name, place.key, partitions=partitions))

    def merge(self, *others: Stream[K, V]) -> Stream[K, V]:
        """The records of all these streams, in the order of the task."""
        place = self._place
        for other in others:
            same_app(place, other._place, "merge")  # noqa: SLF001 - its own class
        rekeyed = [s._place.rekeyed for s in (self, *others)]  # noqa: SLF001 - its own class
        name = place.builder.unique_name("merge")
        parents = (place.node, *(other._place.node for other in others))  # noqa: SLF001 - the same
        place.builder.add(Merge(name=name, parents=parents))
        shaken = next((each for each in rekeyed if each is not None), None)
        return Stream(Place(place.builder, name, place.key, place.value, shaken))

    def group_by_key(self) -> Grouped[K, V]:
        """For aggregating the records of each key."""
        from streamlog.dsl.grouped import Grouped  # noqa: PLC0415 - they return one another

        return Grouped(self._place)

    def group_by(self, fn: Callable[[K, V], K2], *, name: str) -> Grouped[K2, V]:
        """For aggregating by a new key; `name` names the repartition topic.

        Records for which the function gives None are left out, and counted.
        """
        return self.rekey(fn, name=name).group_by_key()

    def join(
        self, other: Table[K, V2], fn: Callable[[V, V2], R], *, name: str | None = None
    ) -> Stream[K, R]:
        """Each record with the row of its key in the table; records without one are left out.

        The row is the one at the moment when the record is processed. Only the stream
        triggers. `name` names the repartition topic if the key was changed by an unnamed
        operator.
        """
        return self._join(other, fn, left=False, name=name)

    def left_join(
        self, other: Table[K, V2], fn: Callable[[V, V2 | None], R], *, name: str | None = None
    ) -> Stream[K, R]:
        """Each record with the row of its key in the table, or with None."""
        return self._join(other, fn, left=True, name=name)

    def to(self, topic: Topic[K, V]) -> None:
        """Write the records to a topic."""
        self._add(Sink, None, topic=topic.spec)

    def __aiter__(self) -> AsyncIterator[V]:
        """The values, inside an agent."""
        raise self._outside()

    def items(self) -> AsyncIterator[tuple[K, V]]:
        """Keys and values, inside an agent."""
        raise self._outside()

    def records(self) -> AsyncIterator[Record[K, V]]:
        """The records with their coordinates, inside an agent."""
        raise self._outside()

    def _outside(self) -> UsageError:
        return UsageError(
            "this stream is a part of the topology and can't be iterated over: `async for` "
            "belongs into a function under @app.agent(topic), which is given a stream"
        )

    def _add(self, kind: type[Any], name: str | None, **fields: object) -> Place:
        place = self._place
        if name is not None:
            check_name("an operator", name)
        node = name or place.builder.unique_name(kind.__name__.lower())
        place.builder.add(kind(name=node, parents=(place.node,), **fields))
        return Place(place.builder, node, place.key, place.value, place.rekeyed)

    def _join(
        self, other: Table[K, V2], fn: Callable[..., R], *, left: bool, name: str | None
    ) -> Stream[K, R]:
        side = other.side
        same_app(self._place, side.place, "join")
        if side.is_windowed:
            raise TopologyError(
                f"table {side.owner!r} is windowed, and a stream can't be joined with it: "
                "send .changes() to a topic keyed as the stream is, and join with its table"
            )
        place = partitioned(self._place, name, side.place.key)
        node = name if name is not None and name not in place.builder.nodes else None
        node = node or place.builder.unique_name("join")
        place.builder.add(
            TableJoin(
                name=node,
                parents=(place.node,),
                table=side.owner,
                views=side.views,
                key=side.place.key.serde,
                fn=fn,
                left=left,
            )
        )
        return Stream(Place(place.builder, node, place.key, returned(fn)))


def same_app(place: Place, other: Place, what: str) -> None:
    """Refuse to connect two apps."""
    if place.builder is not other.builder:
        raise TopologyError(
            f"can't {what} {place.node!r} of app {place.builder.app_id!r} with {other.node!r} of "
            f"app {other.builder.app_id!r}: let one write a topic that the other reads"
        )


def partitioned(place: Place, name: str | None, key: Shape | None = None) -> Place:
    """The same records with equal keys in one partition; through a topic if that is needed.

    `name` is that of the operator that needs it, for the topic if nothing else has a name.
    `key` is how the other side of a join writes its keys.
    """
    if place.rekeyed is None:
        return place
    topic = place.rekeyed or name
    if not topic:
        raise TopologyError(
            f"the key was changed by {place.node!r} or before it, so the records have to go "
            "through a repartition topic: name it, with name= at rekey, map or the join"
        )
    return through_topic(place, topic, key or place.key)


def through_topic(place: Place, name: str, key: Shape, *, partitions: int | None = None) -> Place:
    """The same records behind a repartition topic; made once for the same place and name."""
    builder = place.builder
    topic_name = check_name(
        "a topic", f"{builder.app_id}-{check_name('a topic', name)}-repartition"
    )
    spec = TopicSpec(topic_name, key.serde, place.value.serde, partitions=partitions, internal=True)
    source = f"{name}-repartition"
    sink = f"{name}-repartition-sink"
    after = Place(builder, source, Shape(key.declared, spec.key), Shape(given=spec.value))
    there = builder.nodes.get(sink)
    if (
        isinstance(there, RepartitionSink)
        and there.parents == (place.node,)
        and there.topic == spec
    ):
        return after
    builder.add(RepartitionSink(name=sink, parents=(place.node,), topic=spec))
    builder.add(Source(name=source, topic=spec))
    return after
