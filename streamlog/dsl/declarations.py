"""Declarations: the topics of a program, and the streams, tables, agents and connectors at them.

Rule: declaring is cheap and pure. The app turns declarations into a topology; workers, the test
driver and histories run it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar, overload

from streamlog.blueprints.topic_patterns import matches, named
from streamlog.connect.declared_connectors import (
    DISCOVER_EVERY,
    Connector,
    SinkConnector,
    SourceConnector,
    check_sink,
    check_source,
    check_transforms,
    discover_ms,
    named_policy,
)
from streamlog.connect.sink import Sink as SinkPort
from streamlog.connect.source import Source as SourcePort
from streamlog.connect.source import Transform
from streamlog.dsl.agent import Agent, AgentRef
from streamlog.dsl.app_runtime import AppRuntime
from streamlog.dsl.global_table import GlobalTable
from streamlog.dsl.services import AppServices
from streamlog.dsl.stream import Stream
from streamlog.dsl.stream_position import AppBuilder, StreamPosition, TableView
from streamlog.dsl.table import Table
from streamlog.dsl.topic import Topic, TopicsByPattern, refuse_other
from streamlog.dsl.value_types import Shape, topic_key
from streamlog.dsl.writable_tables import writable_table
from streamlog.durations import Dur, When, duration_ms
from streamlog.errors import ConfigError, SerdeError, TopologyError
from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.stream_nodes import Order, Source, TableSource
from streamlog.nodes.table_nodes import BACKENDS, Backend, VersionedTable
from streamlog.nodes.table_nodes import GlobalTableNode as GlobalDefinition
from streamlog.nodes.topic_spec import SourceLostPolicy, TopicSpec, check_name, check_source_lost
from streamlog.records.partitioners import DEFAULT, PARTITIONERS, Partitioner
from streamlog.replace import replace
from streamlog.serdes import Serde, serde_for
from streamlog.serdes.erased_types import AnySerde, TypeForm, UserKey, UserObject, UserValue
from streamlog.serdes.registered.registry_serde import registry_serde
from streamlog.serdes.registered.schema_source import SchemaAccess
from streamlog.serdes.registered.topic_schema import (
    SchemaFormat,
    SchemaPolicy,
    TopicSchema,
    check_policy,
    topic_schema_of,
)
from streamlog.tables.stores.store import StoreSpec
from streamlog.topology import Topology, dead_letter_topics
from streamlog.windows.definitions import Windows


def topic_table(
    builder: AppBuilder, spec: TopicSpec, *, name: str | None, history: Dur | None
) -> Table[UserKey, UserValue]:
    """Declare the table of a topic; see `App.table`."""
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
AgentFunction = Callable[[Stream[K, V]], UserObject]
"""An `async def` function, which may yield."""


class Declarations(AppServices):
    """The declarations of a program: topics, streams, tables, agents and connectors."""

    def __init__(
        self,
        app_id: str,
        *,
        timezone: str,
        on_error: ErrorPolicy,
        timestamp_ahead_max: Dur | None = None,
    ) -> None:
        """Create an empty set of declarations.

        Args:
            app_id: names the consumer group and the internal topics.
            timezone: the time zone of crontabs.
            on_error: the policy for records on which a node fails, unless a topic, an operator or
                an agent has its own.
            timestamp_ahead_max: the limit for topics that set none of their own.

        Raises:
            ConfigError: `timestamp_ahead_max` is not a duration.
            TopologyError: the id can't be a part of a topic's name.
        """
        super().__init__(timezone)
        self.id = app_id
        self.on_error = on_error
        self._ahead_max = timestamp_ahead_max
        if timestamp_ahead_max is not None:
            # For the error: the limit is checked here, where it is set, and not at the first topic.
            duration_ms(timestamp_ahead_max)
        self.schemas = SchemaAccess()
        """The source of the schemas that a registry keeps."""
        self.runtime = AppRuntime()
        """The access to the running app, through which `Topic.send` sends."""
        self._builder = AppBuilder(app_id, self.runtime, on_error=on_error)
        self._topics: dict[str, TopicSpec] = {}
        self._patterns: dict[str, TopicSpec] = {}
        self._agents: dict[str, Agent[UserKey, UserValue]] = {}

    @property
    def topics(self) -> Mapping[str, TopicSpec]:
        """The declared topics by name."""
        return MappingProxyType(self._topics)

    def spec_of(self, name: str) -> TopicSpec | None:
        """Return the topic of this name, if it is declared or a declared pattern matches it."""
        if name in self._topics:
            return self._topics[name]
        found = matches(self._patterns.values(), [name], [self.id])
        patterns = [self._patterns[pattern] for pattern, names in found.items() if names]
        return named(patterns[0], name) if patterns else None

    @property
    def patterns(self) -> Mapping[str, TopicSpec]:
        """The declared patterns of topics, by their names."""
        return MappingProxyType(self._patterns)

    @property
    def agents(self) -> tuple[Agent[UserKey, UserValue], ...]:
        """The agents, in the order of their declaration."""
        return tuple(self._agents.values())

    @property
    def connectors(self) -> tuple[Connector, ...]:
        """The connectors, in the order of their declaration."""
        return self._builder.connectors.all

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
        schema: SchemaFormat | TopicSchema | None = None,
        key_schema: SchemaFormat | TopicSchema | None = None,
        schema_policy: SchemaPolicy = "register",
        windows: Windows | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> Topic[K, V]:
        """Declare a topic with the types of its keys and values.

        A worker creates the topic if the log does not have it. `partitions`, `retention` and
        `compact` apply only then.

        Args:
            name: the topic's name in the log.
            key: the type of the keys.
            value: the type of the values, such as str, bytes, int, float or a dataclass.
            partitions: the number of partitions, 1 or more; the log's default by default.
            retention: how long the log keeps records, by the newest timestamp of their segment; by
                default the log's setting (the embedded log keeps records for ever).
            compact: keep only the latest record per key.
            partitioner: how the topic's producers choose the partition of a key: "murmur2" (Java,
                streamlog), "crc32" (the default of librdkafka, hence of kcat and confluent-kafka),
                "fnv1a" (sarama), or a function of the key's bytes and the number of partitions.
            timestamp: returns the event time of a value; by default the record's timestamp counts.
            timestamp_ahead_max: how far a record's event time may be ahead of the clock; `on_error`
                decides on records beyond it, and they do not advance stream time. By default the
                app's limit.
            source_lost: what a worker does if the topic was deleted and created again, or its log
                was truncated: "fail", "earliest" or "latest"; by default the app's setting.
            key_serde: the serde of the keys; by default the one of the type.
            value_serde: the serde of the values; by default the one of the type.
            schema: "avro", "json" or "protobuf": values in this format, whose schema is derived
                from the type and kept in a schema registry; `TopicSchema` sets more. By default
                values have no schema.
            key_schema: the same for keys.
            schema_policy: "register" lets a worker register a schema that the registry does not
                have, "check" makes it refuse to start without. Both refuse a schema that breaks
                compatibility (exit code 8). "off" does neither.
            windows: the windows of keys of type `Windowed`, for a topic that another program
                writes. These keys have the bytes of Kafka Streams, which do not contain the end of
                a window.
            on_error: the policy for records that can't be read from the topic or written to it,
                unless an operator or agent has its own; by default the app's policy.

        Raises:
            TopologyError: the name is taken or is not a valid topic name, `partitions` is below 1,
                the partitioner is unknown, or there are windows without key=Windowed[...].
            ConfigError: `retention` or `timestamp_ahead_max` is not a duration, `source_lost` or a
                setting of a schema is unknown, or there is a schema besides a serde.
            SerdeError: a type can't be serialized, or has no equivalent in a schema.
        """
        check_name("a topic", name)
        if name in self._topics or name in self._patterns:
            raise TopologyError(
                f"topic {name!r} is already declared: use the object that app.topic returned"
            )
        if partitions is not None and partitions < 1:
            raise TopologyError(f"topic {name!r}: partitions must be 1 or more, not {partitions}")
        _check_partitioner(name, partitioner)
        ahead_max = self._ahead_max if timestamp_ahead_max is None else timestamp_ahead_max
        spec = TopicSpec(
            name,
            self._registered(name, "key", key, key_schema, key_serde)
            or topic_key(name, key, windows),
            self._registered(name, "value", value, schema, value_serde)
            or _serde(name, "value", value),
            timestamp=timestamp,
            timestamp_ahead_max_ms=None if ahead_max is None else duration_ms(ahead_max),
            source_lost=check_source_lost(source_lost, f"topic {name!r}: "),
            partitions=partitions,
            compact=compact,
            partitioner=partitioner,
            retention_ms=None if retention is None else duration_ms(retention),
            schema_policy=check_policy(schema_policy),
        )
        self._topics[name] = spec
        if on_error is not None:
            self._builder.topic_policies[name] = on_error
        return Topic(spec, self.runtime)

    def topic_pattern(
        self,
        name: str,
        pattern: str | re.Pattern[str],
        *,
        key: type[K],
        value: type[V],
        partitioner: Partitioner = DEFAULT,
        timestamp: Callable[[V], When] | None = None,
        timestamp_ahead_max: Dur | None = None,
        source_lost: SourceLostPolicy | None = None,
        key_serde: Serde[K] | None = None,
        value_serde: Serde[V] | None = None,
        windows: Windows | None = None,
        on_error: ErrorPolicy | None = None,
    ) -> TopicsByPattern[K, V]:
        """Declare the topics whose names match a pattern, to be read as one.

        Streams, tables and agents read them. Workers look for new and deleted topics every
        `metadata.max.age.ms` and after each rebalance (see docs/topics-by-pattern.md).

        Args:
            name: names the topics in the app, as in `name` of `topic`; no topic has this name.
            pattern: a regular expression that matches whole names. Topics whose names begin with
                the app's id and a dash, or with two underscores, never match.
            key: the type of the keys.
            value: the type of the values.
            partitioner: as for `topic`, of all of them.
            timestamp: as for `topic`.
            timestamp_ahead_max: as for `topic`.
            source_lost: as for `topic`.
            key_serde: as for `topic`.
            value_serde: as for `topic`.
            windows: as for `topic`.
            on_error: as for `topic`.

        Raises:
            TopologyError: the name is taken, the pattern is no regular expression, or as for
                `topic`.
            ConfigError, SerdeError: as for `topic`.
        """
        expression = _expression(name, pattern)
        declared = self.topic(
            name, key=key, value=value, partitioner=partitioner, timestamp=timestamp,
            timestamp_ahead_max=timestamp_ahead_max, source_lost=source_lost, key_serde=key_serde,
            value_serde=value_serde, windows=windows, on_error=on_error,
        )  # fmt: skip
        spec = replace(declared.spec, pattern=expression)
        del self._topics[name]
        self._patterns[name] = spec
        return TopicsByPattern(spec, self.runtime)

    def _registered(
        self,
        topic: str,
        field: Literal["key", "value"],
        declared: TypeForm,
        schema: SchemaFormat | TopicSchema | None,
        serde: AnySerde | None,
    ) -> AnySerde | None:
        """Return the serde of a key or value with a schema, else the serde that was given."""
        found = topic_schema_of(schema)
        if found is None:
            return serde
        if serde is not None:
            raise ConfigError(f"topic {topic!r}: the {field} has a schema and a serde: drop one")
        try:
            return registry_serde(found, declared, topic, field, self.schemas)
        except SerdeError as error:
            raise SerdeError(f"the {field} of topic {topic!r}: {error}") from error

    def stream(self, *topics: Topic[K, V]) -> Stream[K, V]:
        """Read the records of these topics; several topics are read in the order of event time.

        Raises:
            TopologyError: no topic is given, or one belongs to another app.
        """
        if not topics:
            raise TopologyError("app.stream needs a topic: app.stream(orders)")
        # One source per topic: a task reads a topic once, even if several streams begin with it.
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
        """Declare a table of a topic, or a table that the program writes.

        The table of a topic has the latest value per key, which is the last one in the topic; a
        value of None deletes the row. With a history, the latest value is the one with the largest
        timestamp, and earlier rows stay known for joins with `as_of`: a row takes effect at its
        timestamp, whenever it arrives (KIP-889).

        A table with a name instead of a topic is written by the program: by agents and processors
        that own the key (`table[key] += 1`), and by `put` from anywhere.

        Args:
            source: the topic, or the name of a table that the program writes.
            name: the name of a topic's table, which identifies its state; the topic's by default.
            history: how long, before the table's stream time, earlier rows stay known. An older
                row is late and left out.
            key: the type of the keys, for a table that the program writes.
            value: the type of the values, for a table that the program writes.
            default: returns the value of a key without a row.
            ttl: how far the table's time, which is that of its newest write, may pass the write of
                a row before the row expires.
            partitions: the number of partitions, equal to that of the writers' topics; the log's
                default if only `put` writes.

        Raises:
            TopologyError: the name is taken, the topic belongs to another app, or an argument is
                for the other kind of table.
            SerdeError: a type can't be serialized.
        """
        if isinstance(source, str):
            if name is not None or history is not None:
                raise TopologyError(
                    f"table {source!r} is written by the program, and name= and history= are for "
                    "tables of topics: leave them out"
                )
            return writable_table(
                self._builder, source, key=key, value=value, default=default, ttl=ttl,
                partitions=partitions,
            )  # fmt: skip
        if any(each is not None for each in (key, value, default, ttl, partitions)):
            raise TopologyError(
                f"the table of topic {source.name!r} has the topic's types and rows: leave key=, "
                "value=, default=, ttl= and partitions= out, which are for tables that the program "
                "writes, app.table('name', ...)"
            )
        spec = self._own(source)
        if spec.pattern is None:
            return topic_table(self._builder, spec, name=name, history=history)
        if history is not None:
            raise TopologyError(
                f"table {name or spec.name!r} reads the topics that match {spec.pattern}, and a "
                "history= is for the table of one topic: leave it out, or declare one table each"
            )
        return self.stream(source).to_table(name=name or spec.name)

    def global_table(
        self, source: Topic[K, V], *, name: str | None = None, backend: Backend = "memory"
    ) -> GlobalTable[K, V]:
        """Declare a table of a topic that every worker holds whole, for `Stream.lookup` and agents.

        Every worker reads the topic to its end before its tasks start, and follows it from then on.
        The table has the latest value per key; a value of None deletes the row (KIP-99).

        Args:
            source: the topic, preferably a compacted one.
            name: the table's name; the topic's by default.
            backend: "memory", or "rocksdb" for a table that does not fit into memory. The latter is
                kept in the state directory, so a worker that restarts reads only what it has
                missed.

        Raises:
            TopologyError: the name is taken, the topic belongs to another app, or the backend is
                unknown.
        """
        if backend not in BACKENDS:
            raise TopologyError(f"backend must be 'memory' or 'rocksdb', not {backend!r}")
        spec = self._single(source)
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
        sink: Topic[UserKey, UserValue] | None = None,
        on_error: ErrorPolicy | None = None,
        name: str | None = None,
        tables: Sequence[Table[UserKey, UserValue]] | None = None,
    ) -> Callable[[AgentFunction[K, V]], AgentRef[K, V]]:
        """Declare an agent: an async function that iterates over the records of a topic.

        This is a decorator. The function receives a `Stream`, and a record counts as handled when
        the function asks for the next one.

        Args:
            source: the topic.
            concurrency: the number of calls of the function that share the records of each worker;
                1 or more.
            ordered: which records are handled one after the other: those of one "key" (records
                without a key do not wait), those of one "partition", or "none".
            sink: the topic of the values that the function yields, with key and event time of the
                current record; a yielded `Record` has its own.
            on_error: the policy for records that can't be read, and for records that the function
                was handling when it raised; by default the topic's policy, else the app's. The
                function is then called again.
            name: the agent's name; the function's by default.
            tables: tables whose rows the agent reads and writes directly, `table[key] = value`; by
                default those that its code names (see docs/tables.md).

        Returns:
            A decorator that returns the agent's `AgentRef`.

        Raises:
            TopologyError: the name is taken, or the function can't be an agent.
        """
        self._own(source)
        if sink is not None:
            self._single(sink)
        policy = on_error or self._builder.topic_policies.get(source.name, self.on_error)

        def declare(fn: AgentFunction[K, V]) -> AgentRef[K, V]:
            agent = Agent(
                name or fn.__name__,
                source,
                fn,
                concurrency=concurrency,
                ordered=ordered,
                sink=sink,
                # With the app's dead-letter topic named, the agent runs without knowing the app.
                on_error=policy.named(self.id),
                tables=tables,
            )
            if agent.name in self._agents:
                raise TopologyError(f"agent {agent.name!r} is already declared: pass another name=")
            self._agents[agent.name] = agent
            return AgentRef(agent, self.runtime)

        return declare

    @overload
    def source(
        self,
        to: Topic[K, V],
        connector: SourcePort[K | None, V],
        *,
        name: str | None = None,
        tasks: int = 1,
        discover_every: Dur = DISCOVER_EVERY,
        transforms: Sequence[Transform] = (),
        on_error: ErrorPolicy | None = None,
    ) -> None: ...
    @overload
    def source(
        self,
        to: Mapping[str, Topic[Any, Any]],
        connector: SourcePort[UserKey, UserValue],
        *,
        name: str | None = None,
        tasks: int = 1,
        discover_every: Dur = DISCOVER_EVERY,
        transforms: Sequence[Transform] = (),
        on_error: ErrorPolicy | None = None,
    ) -> None: ...
    def source(
        self,
        to: Topic[UserKey, UserValue] | Mapping[str, Topic[UserKey, UserValue]],
        connector: SourcePort[UserKey, UserValue],
        *,
        name: str | None = None,
        tasks: int = 1,
        discover_every: Dur = DISCOVER_EVERY,
        transforms: Sequence[Transform] = (),
        on_error: ErrorPolicy | None = None,
    ) -> None:
        """Let a connector write what it reads outside to a topic, or to several.

        Records and the offset behind them are written in one transaction of the worker.

        Args:
            to: the topic, or topics by the names that the connector gives them (tables).
            connector: the source.
            name: the identity of its offsets; the topic's name by default. Several topics need it.
            tasks: the largest number of tasks, which share the parts of the source.
            discover_every: how often the source is asked for its parts.
            transforms: functions of a record that return the record to write, or None.
            on_error: the policy for records that can't be carried; by default the topic's policy,
                else the app's.

        Raises:
            TopologyError: the name is missing or taken, a topic belongs to another app, or the
                connector is no source.
            ConfigError: the settings of the connector contradict each other.
        """
        check_source(connector)
        topics = to if isinstance(to, Mapping) else {"": to}
        # One topic takes whatever the connector calls it; see `SourceConnector.topic_of`.
        specs = {own: self._single(topic) for own, topic in topics.items()}
        if not specs or (name is None and "" not in specs):
            raise TopologyError(
                "app.source with several topics needs a name, which identifies its offsets: "
                "pass name="
            )
        first = next(iter(specs.values())).name
        self._builder.connectors.add(
            SourceConnector(
                name=first if name is None else name,
                source=connector,
                topics=specs,
                tasks=tasks,
                discover_every_ms=discover_ms(discover_every),
                transforms=check_transforms(transforms),
                policy=self._policy_at(first, on_error),
            )
        )

    def sink(
        self,
        of: Topic[K, V] | Sequence[Topic[K, V]],
        connector: SinkPort[K, V],
        *,
        name: str | None = None,
        tasks: int = 1,
        transforms: Sequence[Transform] = (),
        on_error: ErrorPolicy | None = None,
    ) -> None:
        """Let a connector carry the records of topics outside, whichever program writes them.

        Args:
            of: the topic, or several of equal types.
            connector: the sink.
            name: names the consumer group, `<app>-NAME`; the topic's name by default.
            tasks: the largest number of tasks, which share the partitions.
            transforms: functions of a record that return the record to carry, or None.
            on_error: the policy for records that can't be carried; by default the topic's policy,
                else the app's.

        Raises:
            TopologyError: the name is missing or taken, a topic belongs to another app, or the
                connector is no sink.
            ConfigError: the settings of the connector contradict each other.
        """
        check_sink(connector)
        topics = [of] if isinstance(of, Topic) else [*of]
        specs = [self._single(topic) for topic in topics]
        if not specs or (name is None and len(specs) > 1):
            raise TopologyError("app.sink needs one topic, or several and a name: pass name=")
        self._builder.connectors.add(
            SinkConnector(
                name=specs[0].name if name is None else name,
                sink=connector,
                topics=specs,
                tasks=tasks,
                transforms=check_transforms(transforms),
                policy=self._policy_at(specs[0].name, on_error),
            )
        )

    def _policy_at(self, topic: str, own: ErrorPolicy | None) -> ErrorPolicy:
        found = own or self._builder.topic_policies.get(topic, self.on_error)
        return named_policy(found, self.id, topic)

    def _topics_of(self, topology: Topology) -> dict[str, TopicSpec]:
        """Return the declared topics and the dead-letter topics, by name."""
        policies = [agent.on_error for agent in self._agents.values()]
        policies += [connector.policy for connector in self.connectors]
        letters = dead_letter_topics(policy.dlq_topic(self.id) for policy in policies)
        # The last one wins: a dead-letter topic that the program declares has the declared types.
        # A sink of a stream has a topic that no call of `topic` has declared.
        own = self._builder.connectors.own_topics
        return {**letters, **topology.dead_letters, **own, **self._topics}

    def _own(self, topic: Topic[UserKey, UserValue]) -> TopicSpec:
        refuse_other(topic)
        # By identity: another app may have a topic of this name with other types.
        if (self._topics | self._patterns).get(topic.name) is not topic.spec:
            raise TopologyError(
                f"topic {topic.name!r} does not belong to app {self.id!r}: declare it here too, "
                "with app.topic"
            )
        return topic.spec

    def _single(self, topic: Topic[UserKey, UserValue]) -> TopicSpec:
        spec = self._own(topic)
        if spec.pattern is not None:
            raise TopologyError(
                f"{spec.name!r} stands for the topics that match {spec.pattern}; streams, tables "
                "and agents read such topics, anything else takes one topic"
            )
        return spec

    def _source(self, topic: Topic[UserKey, UserValue]) -> StreamPosition:
        spec = self._own(topic)
        node = f"{spec.name}-source"
        if node not in self._builder.nodes:
            self._builder.add(Source(name=node, topic=spec))
        return self._position(node, spec)

    def _position(self, node: str, spec: TopicSpec) -> StreamPosition:
        return StreamPosition(self._builder, node, Shape(given=spec.key), Shape(given=spec.value))


def _check_partitioner(topic: str, partitioner: Partitioner) -> None:
    if not callable(partitioner) and partitioner not in PARTITIONERS:
        raise TopologyError(
            f"topic {topic!r}: unknown partitioner {partitioner!r}: use one of "
            f"{', '.join(PARTITIONERS)}, or a function of the key's bytes and the number of "
            "partitions"
        )


def _serde(topic: str, what: str, declared: object) -> AnySerde:
    try:
        return serde_for(declared)
    except SerdeError as error:
        raise SerdeError(f"the {what} of topic {topic!r}: {error}") from error


def _expression(name: str, pattern: str | re.Pattern[str]) -> str:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise TopologyError(
            f"topics {name!r}: {pattern!r} is no regular expression: {error}"
        ) from error
    if compiled.flags & ~re.UNICODE:
        raise TopologyError(
            f"topics {name!r}: {pattern!r} has flags, and only the expression is kept: write them "
            "into it, as in (?i)orders-.+"
        )
    return compiled.pattern
