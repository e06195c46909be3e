"""Declarations: the topics of a program, and the streams, tables and agents that read them.

Rule: declaring is cheap and pure. The app turns declarations into a topology; workers, the test
driver and histories run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, overload

from streamlog.dsl.agent import Agent, AgentRef
from streamlog.dsl.app_runtime import AppRuntime
from streamlog.dsl.global_table import GlobalTable
from streamlog.dsl.services import AppServices
from streamlog.dsl.stream import Stream
from streamlog.dsl.stream_position import AppBuilder, StreamPosition, TableView
from streamlog.dsl.table import Table
from streamlog.dsl.topic import Topic, refuse_other
from streamlog.dsl.value_types import Shape, topic_key
from streamlog.dsl.writable_tables import writable_table
from streamlog.durations import Dur, When, duration_ms
from streamlog.errors import SerdeError, TopologyError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.stream_nodes import Order, Source, TableSource
from streamlog.nodes.table_nodes import BACKENDS, Backend, VersionedTable
from streamlog.nodes.table_nodes import GlobalTableNode as GlobalDefinition
from streamlog.nodes.topic_spec import SourceLostPolicy, TopicSpec, check_name, check_source_lost
from streamlog.records.partitioners import DEFAULT, PARTITIONERS, Partitioner
from streamlog.serdes import Serde, serde_for
from streamlog.tables.stores.store import StoreSpec
from streamlog.topology import Topology, dead_letter_topics
from streamlog.windows.definitions import Windows


def topic_table(
    builder: AppBuilder, spec: TopicSpec, *, name: str | None, history: Dur | None
) -> Table[Any, Any]:
    """Declare one; see `App.table`."""
    node = check_name("a table", name or spec.name)
    if history is None:
        builder.add(TableSource(name=node, topic=spec, store=StoreSpec(node)))
    else:
        versions = StoreSpec(f"{node}/versions")
        history_ms = duration_ms(history)
        builder.add(
            VersionedTable(
                name=node,
                topic=spec,
                store=StoreSpec(node),
                versions=versions,
                history_ms=history_ms,
            )
        )
    return Table(
        TableView(
            StreamPosition(builder, node, Shape(given=spec.key), Shape(given=spec.value)), node
        )
    )


K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
AgentFunction = Callable[[Stream[K, V]], Any]
"""`async def`, which may yield."""


class Declarations(AppServices):
    """What a program declares."""

    def __init__(
        self,
        app_id: str,
        *,
        timezone: str,
        on_error: ErrorPolicy,
        timestamp_ahead_max: Dur | None = None,
    ) -> None:
        """Nothing is declared yet.

        Args:
            app_id: names the consumer group and the internal topics.
            timezone: of crontabs.
            on_error: what becomes of records on which something fails, where nobody says it.
            timestamp_ahead_max: that of topics that say nothing of their own.

        Raises:
            ConfigError: `timestamp_ahead_max` is no duration.
            TopologyError: the id can't be a part of a topic's name.
        """
        super().__init__(timezone)
        self.id = app_id
        self.on_error = on_error
        self._ahead_max = timestamp_ahead_max
        if timestamp_ahead_max is not None:
            duration_ms(timestamp_ahead_max)
        self.outlet = AppRuntime()
        """What `Topic.send` goes through while the app runs."""
        self._builder = AppBuilder(app_id, self.outlet, on_error=on_error)
        self._topics: dict[str, TopicSpec] = {}
        self._agents: dict[str, Agent[Any, Any]] = {}

    @property
    def topics(self) -> Mapping[str, TopicSpec]:
        """The declared topics by name."""
        return MappingProxyType(self._topics)

    @property
    def agents(self) -> tuple[Agent[Any, Any], ...]:
        """The agents, in the order of their declaration."""
        return tuple(self._agents.values())

    def topic(
        self,
        name: str,
        *,
        key: type[K],
        value: type[V],
        partitions: int | None = None,
        retention: Dur | None = None,
        compact: bool = False,
        partitioner: Partitioner = DEFAULT,
        timestamp: Callable[[V], When] | None = None,
        timestamp_ahead_max: Dur | None = None,
        source_lost: SourceLostPolicy | None = None,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        windows: Windows | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Topic[K, V]:
        """Declare a topic.

        Args:
            name: in the log.
            key: type of the keys.
            value: type of the values: str, bytes, int, float, a dataclass, ...
            partitions: if it has to be created; the log's default if not given.
            retention: if it has to be created: how long records are kept, counted from the
                newest timestamp around them; by default as the log is set (ours: for ever).
            compact: if it has to be created: keep the latest record per key only.
            partitioner: where the producers of the topic put a key: "murmur2" (Java, streamlog),
                "crc32" (the default of librdkafka, hence of kcat and confluent-kafka), "fnv1a"
                (sarama), or a function of the key's bytes and the number of partitions.
            timestamp: event time from the value, instead of the record's own timestamp.
            timestamp_ahead_max: records whose event time is further ahead of the clock are refused
                by `on_error`, and move no time; by default the app's.
            source_lost: what a worker that reads the topic does if it was deleted and created
                again, or its log truncated: "fail", "earliest" or "latest"; by default the app's.
            key_serde: instead of the one that belongs to the type.
            value_serde: instead of the one that belongs to the type.
            windows: those in keys of type Windowed, if the app does not write them itself: their
                bytes are as Kafka Streams has them, and don't say where a window ends.
            on_error: what becomes of its records that can't be read, and of those that can't be
                written to it, where operator or agent say nothing of their own; the app's policy
                by default.

        Raises:
            TopologyError: the name is taken or can't be a topic's, partitions is below 1, there is
                no such partitioner, or there are windows, and no key=Windowed[...].
            ConfigError: the retention or `timestamp_ahead_max` is no duration, or there is no such
                choice of `topic_spec`.
            SerdeError: a type can't be written down.
        """
        check_name("a topic", name)
        if name in self._topics:
            raise TopologyError(f"topic {name!r} is declared already: keep what app.topic returned")
        if partitions is not None and partitions < 1:
            raise TopologyError(f"topic {name!r} must have 1 partition or more, not {partitions}")
        if not callable(partitioner) and partitioner not in PARTITIONERS:
            raise TopologyError(
                f"topic {name!r}: there is no partitioner {partitioner!r}: use one of "
                f"{', '.join(PARTITIONERS)}, or a function of the key's bytes and the count"
            )
        ahead_max = self._ahead_max if timestamp_ahead_max is None else timestamp_ahead_max
        spec = TopicSpec(
            name,
            key_serde or topic_key(name, key, windows),
            value_serde or _serde(name, "value", value),
            timestamp=timestamp,
            timestamp_ahead_max_ms=None if ahead_max is None else duration_ms(ahead_max),
            source_lost=check_source_lost(source_lost, f"topic {name!r}: "),
            partitions=partitions,
            compact=compact,
            partitioner=partitioner,
            retention_ms=None if retention is None else duration_ms(retention),
        )
        self._topics[name] = spec
        if on_error is not None:
            self._builder.topic_policies[name] = on_error
        return Topic(spec, self.outlet)

    def stream(self, *topics: Topic[K, V]) -> Stream[K, V]:
        """The records of these topics, those of several in the order of event time.

        Raises:
            TopologyError: none is given, or one belongs to another app.
        """
        if not topics:
            raise TopologyError("app.stream needs a topic")
        streams = [Stream[K, V](self._source(topic)) for topic in topics]
        return streams[0].merge(*streams[1:]) if len(streams) > 1 else streams[0]

    @overload
    def table(
        self, source: Topic[K, V], *, name: str | None = None, history: Dur | None = None
    ) -> Table[K, V]: ...
    @overload
    def table(
        self,
        source: str,
        *,
        key: type[K],
        value: type[V],
        default: Callable[[], V] | None = None,
        ttl: Dur | None = None,
        partitions: int | None = None,
    ) -> Table[K, V]: ...
    def table(
        self,
        source: Topic[K, V] | str,
        *,
        name: str | None = None,
        history: Dur | None = None,
        key: type[K] | None = None,
        value: type[V] | None = None,
        default: Callable[[], V] | None = None,
        ttl: Dur | None = None,
        partitions: int | None = None,
    ) -> Table[K, V]:
        """The latest value per key of a topic; None deletes. Or one that the program writes.

        The latest is the last one in the topic. With a history it is the one with the latest
        timestamp, and the rows before it are known as well, for joins with `as_of`: a row takes
        effect at its timestamp, whenever it arrives.

        Given a name instead of a topic, its rows are set by agents and processors that own the key
        (`table[key] += 1`), and by `put` from anywhere.

        Args:
            source: the topic; or the name of a table that the program writes.
            name: of the table, which is the identity of its state; the topic's by default.
            history: how far back behind the table's stream time it is to be known what held.
                A row that is older than that is late, and left out.
            key: type of the keys, of one that the program writes.
            value: type of its values.
            default: gives the value of a key that has none.
            ttl: a row is over when the table's time, that of the newest write, is so far beyond
                the one at which the row was written.
            partitions: as many as the topics of those who write have; the log's default if only
                puts do.

        Raises:
            TopologyError: the name is taken, or the topic belongs to another app.
            SerdeError: a type can't be written down.
        """
        if isinstance(source, str):
            if name is not None or history is not None:
                raise TopologyError(
                    f"table {source!r} has its name there, and name= and history= are for tables "
                    "of topics"
                )
            return writable_table(
                self._builder, source, key=key, value=value, default=default, ttl=ttl,
                partitions=partitions,
            )  # fmt: skip
        if any(each is not None for each in (key, value, default, ttl, partitions)):
            raise TopologyError(
                f"the table of topic {source.name!r} has the topic's types and rows: key, value, "
                "default, ttl and partitions are for tables that the program writes, declared by "
                "a name"
            )
        return topic_table(self._builder, self._own(source), name=name, history=history)

    def global_table(
        self, source: Topic[K, V], *, name: str | None = None, backend: Backend = "memory"
    ) -> GlobalTable[K, V]:
        """The latest value per key of a whole topic, in every worker; None deletes.

        For `Stream.lookup`, by any key, and for agents. Every worker reads all of it before its
        tasks start, and follows it from then on.

        Args:
            source: the topic, best a compacted one.
            name: of the table; the topic's by default.
            backend: "memory", or "rocksdb" for a table that is larger than that: it is kept in the
                state directory, and a worker that comes back reads what it has missed.

        Raises:
            TopologyError: the name is taken, the topic belongs to another app, or there is no such
                backend.
        """
        if backend not in BACKENDS:
            raise TopologyError(f"backend is 'memory' or 'rocksdb', not {backend!r}")
        spec = self._own(source)
        policy = self._builder.topic_policies.get(spec.name, self.on_error)
        name = check_name("a table", name or spec.name)
        definition = GlobalDefinition(name, spec, backend, policy)
        self._builder.add_global_table(definition)
        return GlobalTable(self._builder, definition)

    def agent(
        self,
        source: Topic[K, V],
        *,
        concurrency: int = 1,
        ordered: Order = "key",
        sink: Topic[Any, Any] | None = None,
        on_error: ErrorPolicy | None = None,
        name: str | None = None,
        tables: Sequence[Table[Any, Any]] | None = None,
    ) -> Callable[[AgentFunction[K, V]], AgentRef[K, V]]:
        """Let an async function iterate over the records of a topic; a decorator.

        Args:
            source: the topic.
            concurrency: how many calls of the function share the records of each worker.
            ordered: whose records are handled one after the other by them: those of one "key"
                (records without a key wait for nobody), of one "partition", or of "none".
            sink: where what the function yields is written, with key and event time of the
                record in hand; a `Record` is written as it says.
            on_error: what becomes of records that can't be read, or that the function has in hand
                when it raises; the topic's policy by default, else the app's. The function is
                called anew.
            name: the function's by default.
            tables: whose rows it works on, `table[key] = value`; by default those that its code
                names (see docs/tables.md).

        Raises:
            TopologyError: the name is taken, or the function can't be an agent.
        """
        self._own(source)
        if sink is not None:
            self._own(sink)
        policy = on_error or self._builder.topic_policies.get(source.name, self.on_error)

        def declare(fn: AgentFunction[K, V]) -> AgentRef[K, V]:
            agent = Agent(
                name or fn.__name__,
                source,
                fn,
                concurrency=concurrency,
                ordered=ordered,
                sink=sink,
                on_error=policy.named(self.id),
                tables=tables,
            )
            if agent.name in self._agents:
                raise TopologyError(f"there is an agent {agent.name!r} already: give it a name=")
            self._agents[agent.name] = agent
            return AgentRef(agent, self.outlet)

        return declare

    def _topics_of(self, topology: Topology) -> dict[str, TopicSpec]:
        """The declared topics, and those for dead letters."""
        policies = [agent.on_error for agent in self._agents.values()]
        letters = dead_letter_topics(policy.dlq_topic(self.id) for policy in policies)
        return {**letters, **topology.dead_letters, **self._topics}

    def _own(self, topic: Topic[Any, Any]) -> TopicSpec:
        refuse_other(topic)
        if self._topics.get(topic.name) is not topic.spec:
            raise TopologyError(
                f"topic {topic.name!r} does not belong to app {self.id!r}: declare it here too, "
                "with app.topic"
            )
        return topic.spec

    def _source(self, topic: Topic[Any, Any]) -> StreamPosition:
        spec = self._own(topic)
        node = f"{spec.name}-source"
        if node not in self._builder.nodes:
            self._builder.add(Source(name=node, topic=spec))
        return self._place(node, spec)

    def _place(self, node: str, spec: TopicSpec) -> StreamPosition:
        return StreamPosition(self._builder, node, Shape(given=spec.key), Shape(given=spec.value))


def _serde(topic: str, what: str, declared: object) -> Serde[Any]:
    try:
        return serde_for(declared)
    except SerdeError as error:
        raise SerdeError(f"the {what} of topic {topic!r}: {error}") from error
