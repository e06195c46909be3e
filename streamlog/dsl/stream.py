"""Stream: a place in the topology; an operator adds a node and returns the next place.

Rules of the room: nothing runs here; a node with state has the name the user gave, as that is the
identity of its state, the others may go without. What a stream can be made into has modules of its
own: `grouped`, `windowed`, `table`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from streamlog.dsl.awaiting import awaiting
from streamlog.dsl.branches import Branches
from streamlog.dsl.deduped import deduped
from streamlog.dsl.fits import check_alike, check_topic
from streamlog.dsl.grouped import Grouped
from streamlog.dsl.joins import Joining
from streamlog.dsl.named_tables import tables_at_hand, tables_of_class
from streamlog.dsl.place import (
    Place,
    idle_after_ms,
    partitioned,
    same_app,
    through_topic,
)
from streamlog.dsl.processor import (
    Processor,
    check_processor,
    has_timers,
    output_shapes,
    punctuations_of,
    stores_of,
)
from streamlog.dsl.shapes import element, item, item_element, returned
from streamlog.dsl.table import Table
from streamlog.dsl.table_joins import table_of
from streamlog.dsl.topic import Topic
from streamlog.dsl.windowed_keys import agree, alike
from streamlog.durations import Dur, When
from streamlog.errors import TopologyError, UsageError
from streamlog.record import Record
from streamlog.topology import (
    Branch,
    ErrorPolicy,
    Filter,
    FilterNot,
    FlatMap,
    FlatMapValues,
    Map,
    MapValues,
    Merge,
    Order,
    Peek,
    Process,
    Rekey,
    SetTimestamp,
    Sink,
    Split,
    TimerStore,
    check_name,
)

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
K2 = TypeVar("K2")
"""A new key."""
V2 = TypeVar("V2")
"""A new value, or the value of a table."""
KO = TypeVar("KO")
"""A key that a processor forwards."""
VO = TypeVar("VO")
"""A value that a processor forwards."""
R = TypeVar("R")
"""What a joiner returns."""
A = TypeVar("A")
"""The state and result of an aggregation."""


class Stream(Joining[K, V]):
    """Records with keys of type K and values of type V."""

    def map(
        self,
        fn: Callable[[K, V], tuple[K2, V2]],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K2, V2]:
        """A new key and value for each record. Prefer `map_values` if the key stays."""
        place = self._add(Map, name, fn=fn, on_error=on_error)
        key, value = (returned(fn, place.key, place.value, of=element(at)) for at in (0, 1))
        return Stream(Place(place.builder, place.node, key, value, name or ""))

    def map_values(
        self,
        fn: Callable[[V], V2],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V2]:
        """A new value for each record."""
        place = self._add(MapValues, name, fn=fn, on_error=on_error)
        return Stream(replace(place, value=returned(fn, place.value)))

    def amap_values(
        self,
        fn: Callable[[V], Awaitable[V2]],
        *,
        max_in_flight: int = 100,
        ordered: Order = "key",
        timeout: Dur | None = None,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V2]:
        """A new value for each record, by an async function; several are awaited at a time.

        A commit does not wait for them: records whose calls are open are state, and are given
        to the function again after a restart or a move to another worker.

        Args:
            fn: gives the value; what it does outside, it does at least once.
            max_in_flight: how many calls of it each task awaits at a time.
            ordered: which results keep the order of their records: those of one "key" (records
                without a key wait for nobody), of one "partition", or "none".
            timeout: a call that takes longer fails.
            name: the identity of the open calls; the function's own by default.
            on_error: what becomes of a record whose call fails; the app's policy by default.

        Raises:
            TopologyError: it is a lambda and has no name, or a setting is out of range.
        """
        return Stream(
            awaiting(
                self._place,
                fn,
                name,
                in_flight_max=max_in_flight,
                ordered=ordered,
                timeout=timeout,
                on_error=on_error,
            )
        )

    def flat_map(
        self,
        fn: Callable[[K, V], Iterable[tuple[K2, V2]]],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K2, V2]:
        """Any number of new keys and values for each record, in the order they are given.

        Prefer `flat_map_values` if the key stays.
        """
        place = self._add(FlatMap, name, fn=fn, on_error=on_error)
        key, value = (returned(fn, place.key, place.value, of=item_element(at)) for at in (0, 1))
        return Stream(Place(place.builder, place.node, key, value, name or ""))

    def flat_map_values(
        self,
        fn: Callable[[V], Iterable[V2]],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V2]:
        """Any number of new values for each record, in the order they are given."""
        place = self._add(FlatMapValues, name, fn=fn, on_error=on_error)
        value = returned(fn, place.value, of=item)
        return Stream(Place(place.builder, place.node, place.key, value, place.rekeyed))

    def filter(
        self,
        fn: Callable[[K, V], bool],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """The records for which the function is true."""
        return Stream(self._add(Filter, name, fn=fn, on_error=on_error))

    def filter_not(
        self,
        fn: Callable[[K, V], bool],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """The records for which the function is not true."""
        return Stream(self._add(FilterNot, name, fn=fn, on_error=on_error))

    def split(self, **branches: Callable[[K, V], bool]) -> Mapping[str, Stream[K, V]]:
        """Streams by name, each record in the first one whose function is true for it.

        A record that no function is true for goes nowhere; with `rest=lambda key, value: True`
        as the last one there is a stream for those.

        Raises:
            TopologyError: there are no branches; or one is asked for that is not there.
        """
        if not branches:
            raise TopologyError("split needs a name and a function for each branch")
        split = self._add(Split, None, branches=branches)
        found: Branches[Stream[K, V]] = Branches()
        for branch in branches:
            name = split.builder.unique_name("branch")
            split.builder.add(Branch(name=name, parents=(split.node,), branch=branch))
            found[branch] = Stream(replace(split, node=name))
        return found

    def set_timestamp(
        self,
        fn: Callable[[V], When],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """A new timestamp for each record: an aware datetime, ISO-8601 text, or milliseconds.

        Everything behind it is judged by the new timestamps, stream time included; a time that
        is missing, without a zone or before 1970 is an error of the record. Where a topic has its
        time in its values from the start, say so at `app.topic(timestamp=)` instead.

        Args:
            fn: the timestamp, of a value.
            name: of how far the new timestamps have come, which is kept.
            on_error: what becomes of a record whose timestamp can't be had.
        """
        return Stream(self._add(SetTimestamp, name, fn=fn, on_error=on_error))

    def peek(
        self,
        fn: Callable[[Record[K, V]], object],
        *,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """Call the function with each record; the records go on unchanged."""
        return Stream(self._add(Peek, None, fn=fn, on_error=on_error))

    def rekey(
        self,
        fn: Callable[[K, V], K2],
        *,
        name: str | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K2, V]:
        """A new key for each record.

        `name` names the repartition topic, should an operator follow that needs one.
        """
        place = self._add(Rekey, name, fn=fn, on_error=on_error)
        return Stream(replace(place, key=returned(fn, place.key, place.value), rekeyed=name or ""))

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
            check_alike(place, other._place)  # noqa: SLF001 - as above
        rekeyed = [s._place.rekeyed for s in (self, *others)]  # noqa: SLF001 - its own class
        name = place.builder.unique_name("merge")
        parents = (place.node, *(other._place.node for other in others))  # noqa: SLF001 - the same
        place.builder.add(Merge(name=name, parents=parents))
        shaken = next((each for each in rekeyed if each is not None), None)
        key = alike(place.key, *(other._place.key for other in others))  # noqa: SLF001 - the same
        return Stream(Place(place.builder, name, key, place.value, shaken))

    def group_by_key(self) -> Grouped[K, V]:
        """For aggregating the records of each key."""
        return Grouped(self._place)

    def group_by(
        self,
        fn: Callable[[K, V], K2],
        *,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Grouped[K2, V]:
        """For aggregating by a new key; `name` names the repartition topic.

        Records for which the function gives None are left out, and counted.
        """
        return self.rekey(fn, name=name, on_error=on_error).group_by_key()

    def dedupe(
        self,
        by: Callable[[V], object] | str,
        *,
        within: Dur,
        name: str,
        on_error: ErrorPolicy | None = None,
    ) -> Stream[K, V]:
        """Only the first of several records with equal keys and equal identities.

        A record goes on if no twin of it has gone on while stream time moved by `within`, so one
        that comes again later than that is taken for new. Records without a key are held against
        each other, in their partition. If the key was changed before, they go through a
        repartition topic.

        Args:
            by: what identifies a record beside its key: a function of the value, or the name of
                a field.
            within: for how long it is remembered; what is kept grows with it.
            name: of what is remembered, which is state.
            on_error: what becomes of a record whose identity can't be had.

        Raises:
            TopologyError: the name is taken, `within` is 0, or there is no such field.
        """
        place = deduped(self._place, by, within=within, name=name, on_error=on_error)
        return Stream(place)

    def process(
        self,
        p: type[Processor[K, V, KO, VO]],
        *,
        name: str,
        idle_after: Dur | None = None,
        on_error: ErrorPolicy | None = None,
        tables: Sequence[Table[Any, Any]] | None = None,
    ) -> Stream[KO, VO]:
        """Each record to an object of a class of your own, which has state; see `Processor`.

        A processor with stores or timers gets equal keys in one partition: if the key was
        changed before, the records go through a repartition topic. What it forwards may have
        any key.

        Args:
            p: the class; each task makes an object of it.
            name: of the processor, which is the identity of its state.
            idle_after: do not wait for sources that are read to their end and quiet for this
                long. Without this, one that is quiet or empty holds stream time back until
                time marks of the log bring it on.
            on_error: what becomes of a record on which `process` fails, and of which nothing
                stays then; the app's policy by default. A timer that fails ends the task.
            tables: those whose rows it has at hand, of the same keys; by default those that the
                program writes and its code names (see docs/tables.md). They are declared before.

        Raises:
            TopologyError: the name is taken, or the class has methods that can't be run.
        """
        check_processor(p)
        check_name("a processor", name)
        stores, place = stores_of(p, name), self._place
        who = f"processor {name!r}"
        at_hand = tables_at_hand(who, tables, tables_of_class(p), place.builder)
        if stores or at_hand or has_timers(p):
            place = partitioned(place, f"{name}-input")
        place.builder.add(
            Process(
                name=name,
                parents=(place.node,),
                make=p,
                stores=stores,
                tables=at_hand,
                tables_said=tables is not None,
                timers=TimerStore.of(name, place.key.serde) if has_timers(p) else None,
                punctuations=punctuations_of(p),
                idle_after_ms=idle_after_ms(idle_after),
                on_error=on_error,
            )
        )
        out_key, out_value = output_shapes(p)
        return Stream(Place(place.builder, name, out_key, out_value, rekeyed=name))

    def to_table(self, *, name: str, on_error: ErrorPolicy | None = None) -> Table[K, V]:
        """A table of the latest value per key; a record with None deletes the row.

        Records without a key are left out, and counted. If the key was changed before, they go
        through a repartition topic.

        Args:
            name: of the table, which is the identity of its state.
            on_error: what becomes of a record that can't be written down.

        Raises:
            TopologyError: the name is taken, or keys are those of windows.
        """
        return Table(table_of(self._place, name, on_error))

    def to(
        self,
        topic: Topic[K, V],
        *,
        on_error: ErrorPolicy | None = None,
    ) -> None:
        """Write the records to a topic.

        Raises:
            TopologyError: it is declared for other types than those that are known here.
        """
        check_topic(self._place, topic)
        agree(self._place.key, topic.spec)
        self._add(Sink, None, topic=topic.spec, on_error=on_error)

    def __aiter__(self) -> AsyncIterator[V]:
        """The values, inside an agent."""
        raise self._outside()

    def items(self) -> AsyncIterator[tuple[K, V]]:
        """Keys and values, inside an agent."""
        raise self._outside()

    def records(self) -> AsyncIterator[Record[K, V]]:
        """The records with their coordinates, inside an agent."""
        raise self._outside()

    def take(
        self,
        n: int,  # noqa: ARG002 - used inside an agent
        within: Dur,  # noqa: ARG002 - used inside an agent
    ) -> AsyncIterator[list[Record[K, V]]]:
        """Lists of `n` records, inside an agent.

        Args:
            n: the length of the lists.
            within: of the first record; a list goes out shorter when this time is over.

        A list counts as handled when the next one is asked for.
        """
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
