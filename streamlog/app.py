"""App: what a program declares, and the door to everything that runs it.

Topics, streams, tables, agents, timers and crontabs are collected here; nothing runs until
`test` makes a driver of them or `main` starts a worker. Rule of the file: declaring is cheap
and pure, so a module that holds an app can be imported by anybody; what needs a log, a loop
or another library is imported inside the method that needs it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from streamlog.app_settings import (
    Guarantee,
    checked_guarantee,
    interval_ms,
    memory_bytes,
    policy_of,
    refuse,
    security_of,
)
from streamlog.dsl.access import GlobalAccess, TableAccess
from streamlog.dsl.agent import Agent, AgentRef
from streamlog.dsl.duties import Duties
from streamlog.dsl.global_table import GlobalTable
from streamlog.dsl.place import AppBuilder, Place
from streamlog.dsl.shapes import Shape
from streamlog.dsl.stream import Stream
from streamlog.dsl.table import Table
from streamlog.dsl.topic import Asker, Outlet, Topic
from streamlog.dsl.topic_table import topic_table
from streamlog.dsl.windowed_keys import topic_key
from streamlog.dsl.writable import built, writable_table
from streamlog.durations import Dur, When, duration_ms, when_ms
from streamlog.errors import ConfigError, SerdeError, TopologyError
from streamlog.record import Headers
from streamlog.serdes import Serde, serde_for
from streamlog.tables.cache_budget import MEMORY_BYTES
from streamlog.topology import (
    ErrorPolicy,
    Order,
    Source,
    TopicSpec,
    Topology,
    check_name,
    dead_letter_topics,
    on_error,
)
from streamlog.topology import GlobalTable as GlobalDefinition
from streamlog.topology.global_tables import BACKENDS, Backend
from streamlog.windows.definitions import Windows

if TYPE_CHECKING:
    from streamlog.client.producer import Producer
    from streamlog.history.job import BackfillJob
    from streamlog.snapshots.snapshot import Snapshot
    from streamlog.testing import Rehearsal, Simulation, TestDriver
    from streamlog.transport.security import Security
    from streamlog.worker.hand_over import HandedOver
    from streamlog.worker.program import Program

K = TypeVar("K")
"""A key."""
V = TypeVar("V")
"""A value."""
AgentFunction = Callable[[Stream[K, V]], Any]
"""`async def`, which may yield."""


class App(Duties):
    """A program over topics.

    Example:
        >>> app = App("hello")
        >>> app.topic("greetings", key=str, value=str).name
        'greetings'
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the word that everybody uses for it
        *,
        log: str = "embedded:./.streamlog/log",
        security: Security | Mapping[str, str] | None = None,
        state_dir: str = "./.streamlog/state",
        state_memory_bytes: int = MEMORY_BYTES,
        state_cleanup_delay: Dur = "10m",
        standby_replicas: int = 0,
        warmup_replicas: int = 2,
        acceptable_lag: int = 10_000,
        timezone: str = "UTC",
        commit_interval: Dur = "500ms",
        on_error: ErrorPolicy = on_error.FAIL,
        watchdog: Dur = "30s",
        watchdog_exit: Dur | None = None,
        guarantee: Guarantee = "exactly_once",
        web: str | None = None,
        **unknown: object,
    ) -> None:
        """An app that has nothing to do yet.

        Args:
            id: names the consumer group and the internal topics. Another id is another app.
            log: "embedded:DIR", "kafka://HOST:PORT" or "kafka+ssl://HOST:PORT".
            security: how brokers with TLS or SASL are talked to, by the names of docs/security.md
                (`{"security.protocol": "SASL_SSL", ...}`), or as `Security`, which may ask for a
                password where it is kept. What command line or environment say replaces it.
            state_dir: where workers keep the state of their tasks.
            state_memory_bytes: what each worker process may take for the state of its tasks: caches
                and what is not on disk yet; by default 192 MiB.
            state_cleanup_delay: the state of a task that has moved to another machine is removed
                after this, unless the task comes back.
            standby_replicas: so many workers on other disks follow the state of each task, to take
                over at once.
            warmup_replicas: so many moves of state get ready at the same time, of all workers.
            acceptable_lag: a task moves to a worker whose copy of its state is at most so many
                records behind.
            timezone: of crontabs.
            commit_interval: what is repeated after a crash is at most this long; and exactly once,
                so long a row waits until it can be read.
            guarantee: "exactly_once": what tasks write, their state and how far they have read
                count together or not at all. "at_least_once": rows are written at once, and again
                after a crash.
            on_error: what becomes of records that can't be read, on which a function fails or that
                can't be written, where operator or agent say nothing of their own.
            watchdog: a task or agent that is behind and has not moved for so long is told of, with
                what it waits for.
            watchdog_exit: after so long the worker ends (code 7), for a supervisor to replace it;
                by default it never does for that.
            web: "HOST:PORT" of each worker's HTTP server (the extra `[web]`); no server if it is
                not given. ":PORT" is on 127.0.0.1, port 0 is a free one.
            unknown: refused.

        Raises:
            ConfigError: a setting is unknown or out of range.
            TopologyError: the id can't be a part of a topic's name.
        """
        refuse(unknown)
        super().__init__(timezone)
        self.id = id
        self.log = log
        self.security = security_of(security)
        self.state_dir = state_dir
        self.state_memory_bytes = memory_bytes(state_memory_bytes)
        self.state_cleanup_delay_ms = duration_ms(state_cleanup_delay)
        self.policy = policy_of(standby_replicas, warmup_replicas, acceptable_lag)
        self.commit_interval_ms = interval_ms("commit_interval", commit_interval)
        self.watchdog_ms = interval_ms("watchdog", watchdog)
        self.watchdog_exit_ms = None if watchdog_exit is None else duration_ms(watchdog_exit)
        self.guarantee = checked_guarantee(guarantee)
        self.web = web
        self.outlet = Outlet()
        """What `Topic.send` goes through while the app runs."""
        self.on_error = on_error
        self._builder = AppBuilder(id, self.outlet, on_error=on_error)
        self._topics: dict[str, TopicSpec] = {}
        self._agents: dict[str, Agent[Any, Any]] = {}
        self._warned: set[str] = set()

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
        timestamp: Callable[[V], When] | None = None,
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
            timestamp: event time from the value, instead of the record's own timestamp.
            key_serde: instead of the one that belongs to the type.
            value_serde: instead of the one that belongs to the type.
            windows: those in keys of type Windowed, if the app does not write them itself: their
                bytes are as Kafka Streams has them, and don't say where a window ends.
            on_error: what becomes of its records that can't be read, and of those that can't be
                written to it, where operator or agent say nothing of their own; the app's policy
                by default.

        Raises:
            TopologyError: the name is taken or can't be a topic's, partitions is below 1, or
                there are windows, and no key=Windowed[...].
            ConfigError: the retention is no duration.
            SerdeError: a type can't be written down.
        """
        check_name("a topic", name)
        if name in self._topics:
            raise TopologyError(f"topic {name!r} is declared already: keep what app.topic returned")
        if partitions is not None and partitions < 1:
            raise TopologyError(f"topic {name!r} must have 1 partition or more, not {partitions}")
        spec = TopicSpec(
            name,
            key_serde or topic_key(name, key, windows),
            value_serde or _serde(name, "value", value),
            timestamp=timestamp,
            partitions=partitions,
            compact=compact,
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
        definition = GlobalDefinition(check_name("a table", name or spec.name), spec, backend)
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

    def topology(self) -> Topology:
        """What the streams and tables declared so far come to.

        Warns:
            UserWarning: something is allowed but hardly meant.
        """
        topology = built(self._builder, self.agents)
        for text in topology.warnings():
            if text not in self._warned:
                self._warned.add(text)
                warnings.warn(text, UserWarning, stacklevel=3)
        return topology

    def test(
        self,
        *,
        start: When = "2025-01-01T00:00:00Z",
        partitions: int | None = None,
        seed: int | None = None,
        after: TestDriver | None = None,
    ) -> AbstractContextManager[TestDriver]:
        """A driver that runs the app without a log.

        Args:
            start: the time at which the test begins.
            partitions: of every topic, instead of what they declare (1, if they do not).
            seed: give the tasks their turns in the order of chance, always the same one.
            after: of an older version of the app, at work; it stops, and this one goes on with
                its topics and state, where it was.

        Raises:
            StateLost: this version could not go on with the state of the one before.
            UsageError: the one before does not run.
        """
        from streamlog.testing import TestDriver  # noqa: PLC0415 - for tests only

        rehearsal = self._rehearsal(start, partitions, 1)
        return TestDriver(replace(rehearsal, seed=seed, after=after))

    def simulate(
        self,
        *,
        seed: int = 0,
        runs: int = 20,
        start: When = "2025-01-01T00:00:00Z",
        partitions: int | None = None,
    ) -> AbstractContextManager[Simulation]:
        """Try a history on workers that are killed and replaced: do all write the same rows?

        In the block records are put in. At its end the test driver says what comes of them, and
        every run has to write the same, whatever its batches, its workers and their ends; if one
        does not, `RunsDiffer` tells which rows, and what was done.

        Args:
            seed: of the first run; the others have the numbers after it.
            runs: how many.
            start: the time of records that have none, and of the clock, which stands still.
            partitions: of every topic, instead of what they declare (3, if they do not).

        Example:
            with app.simulate(seed=7) as s:
                for sale in SALES:
                    s.input(sales).send(sale, key=sale.shop)
            print(s.report)
        """
        from streamlog.testing import Simulation  # noqa: PLC0415 - for tests only

        return Simulation(self._rehearsal(start, partitions, 3), seed=seed, runs=runs)

    def backfill(
        self,
        *,
        since: When | Literal["earliest"] = "earliest",
        until: When | Literal["now"] = "now",
        engine: Literal["spark", "local"] = "local",
        spark: object = None,
        outputs: Literal["discard", "stage", "publish"] = "discard",
        job_id: str | None = None,
        directory: str | None = None,
        progress: bool | None = None,
    ) -> BackfillJob:
        """The history of the streams and tables over what the log holds, as a job to be run.

        The same topology, the same rows as live workers give, and a snapshot of where it all came
        to, for live workers to go on from. Nothing runs before `run`; `explain` says what will.

        Args:
            since: where streams begin: the first record that is not older. Tables are always
                taken from their beginning.
            until: where it ends: before the first record of each partition whose stream time is
                not earlier. "now": as far as all streams have come. Text without a time zone, such
                as "2024-01-31", is in the app's.
            engine: "local": in this process. "spark": by Spark (the extra `[spark]`).
            spark: its session; one on all cores of this machine by default.
            outputs: what becomes of the rows: they are dropped, or staged in files, or published,
                all at once when the history is over.
            job_id: of the job and its snapshot; a new one by default. What was published under an
                id is not published again.
            directory: where snapshots are kept, or an fsspec URL; beside the log by default.
            progress: show bars; by default if a person watches.

        Raises:
            TopologyError: the topology can't be built.
        """
        from streamlog.history.job import Backfill, BackfillJob  # noqa: PLC0415 - brings the log in

        return BackfillJob(
            Backfill(
                program=self.program(),
                log_url=self.log,
                security=self.security,
                since=since,
                until=until,
                engine=engine,
                spark=spark,
                outputs=outputs,
                timezone=self.timezone,
                job_id=job_id,
                directory=directory,
                progress=progress,
            )
        )

    def hand_over(
        self,
        snapshot: Snapshot,
        *,
        version: str | None = None,
        mode: Literal["replace", "blue_green"] = "replace",
        rewind: bool = False,
    ) -> HandedOver:
        """Let live workers begin with what a history has come to: no record twice, and none lost.

        One transaction writes their state, the rows that were staged, and the places at which they
        go on. It may be repeated: a snapshot that was handed over already changes nothing.

        Args:
            snapshot: the result of `backfill(...).run()`, or `Snapshot.open(url)`.
            version: of "blue_green": the name of the new version.
            mode: "replace": the app itself goes on from there; its workers are stopped meanwhile.
                "blue_green": a version of it does, beside the app, which may run on. Its id is
                "<app>-<version>", and so are those of its workers (`worker --version`); rows go to
                "<topic>-<version>". Agents and schedules stay with the app.
            rewind: also if the app has gone further than that, and its rows from there on are in
                the output topics and will be there once more.

        Raises:
            TopologyError: the snapshot is of another program, or of other partition counts; or the
                version can't be a part of a topic's name.
            ConfigError: mode and version do not go together.
            UsageError: workers are running, the app has gone further, or this is called by code
                that runs on an event loop.
            OffsetOutOfRange: the log has not everything that comes behind the snapshot.
            CorruptData: a file of the snapshot is missing or damaged.
            StreamlogError: the log can't be reached or written to; nothing was changed.
        """
        from streamlog.worker.hand_over import handed_over  # noqa: PLC0415 - brings the log in

        program = self.program()
        if mode not in {"replace", "blue_green"} or (mode == "replace") != (version is None):
            raise ConfigError(
                f"mode is {mode!r} and version is {version!r}: it is 'replace' without a version, "
                "or 'blue_green' with one"
            )
        return handed_over(
            program if version is None else program.beside(version),
            snapshot,
            log_url=self.log,
            security=self.security,
            mode=mode,
            rewind=rewind,
        )

    def _rehearsal(self, start: When, partitions: int | None, default: int) -> Rehearsal:
        from streamlog.client.partitioner import partition_of_key  # noqa: PLC0415 - for tests only
        from streamlog.testing import Rehearsal  # noqa: PLC0415 - for tests only

        topology = self.topology()
        return Rehearsal(
            topology=topology,
            partitions={
                name: partitions or spec.partitions or default
                for name, spec in self._topics_of(topology).items()
            },
            partition_of=partition_of_key,
            outlet=self.outlet,
            agents=self.agents,
            timers=self.timers,
            crontabs=self.crontabs,
            tasks=self.tasks,
            start_ms=when_ms(start),
        )

    def program(self) -> Program:
        """The app as a worker runs it."""
        from streamlog.worker.program import Program  # noqa: PLC0415 - the same
        from streamlog.worker.watching import Limits  # noqa: PLC0415 - brings the whole log in

        topology = self.topology()
        return Program(
            app_id=self.id,
            topology=topology,
            topics=self._topics_of(topology),
            state_dir=self.state_dir,
            state_memory_bytes=self.state_memory_bytes,
            state_cleanup_delay_ms=self.state_cleanup_delay_ms,
            agents=self.agents,
            timers=self.timers,
            crontabs=self.crontabs,
            tasks=self.tasks,
            pages=self.pages,
            commit_interval_ms=self.commit_interval_ms,
            limits=Limits(self.watchdog_ms, self.watchdog_exit_ms),
            policy=self.policy,
            guarantee=self.guarantee,
            web=self.web,
            bind=self._bind,
            bind_tables=self._bind_tables,
            bind_global_tables=self._bind_global_tables,
            bind_asker=self._bind_asker,
        )

    def main(self) -> None:
        """The command line with this app: a worker, unless the arguments say otherwise."""
        # By name, as it is the one call upwards through the layers: the command line knows
        # the app, and the app's module is what the user runs.
        importlib.import_module("streamlog.cli").main(self)

    def _topics_of(self, topology: Topology) -> dict[str, TopicSpec]:
        """The declared topics, and those for dead letters."""
        policies = [agent.on_error for agent in self._agents.values()]
        letters = dead_letter_topics(policy.dlq_topic(self.id) for policy in policies)
        return {**letters, **topology.dead_letters, **self._topics}

    def _bind(self, producer: Producer) -> None:
        self.outlet.sender = _ProducerSender(producer)

    def _bind_asker(self, asker: Asker) -> None:
        self.outlet.asker = asker

    def _bind_tables(self, tables: TableAccess) -> None:
        self.outlet.tables = tables

    def _bind_global_tables(self, tables: GlobalAccess) -> None:
        self.outlet.global_tables = tables

    def _own(self, topic: Topic[Any, Any]) -> TopicSpec:
        if self._topics.get(topic.name) is not topic.spec:
            raise TopologyError(
                f"topic {topic.name!r} does not belong to app {self.id!r}: declare it here too, "
                "with app.topic"
            )
        return topic.spec

    def _source(self, topic: Topic[Any, Any]) -> Place:
        spec = self._own(topic)
        node = f"{spec.name}-source"
        if node not in self._builder.nodes:
            self._builder.add(Source(name=node, topic=spec))
        return self._place(node, spec)

    def _place(self, node: str, spec: TopicSpec) -> Place:
        return Place(self._builder, node, Shape(given=spec.key), Shape(given=spec.value))


def _serde(topic: str, what: str, declared: object) -> Serde[Any]:
    try:
        return serde_for(declared)
    except SerdeError as error:
        raise SerdeError(f"the {what} of topic {topic!r}: {error}") from error


class _ProducerSender:
    """`Topic.send` in a worker."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        timestamp_ms: int | None,
        headers: Headers,
        partition: int | None,
    ) -> tuple[str, int, int, int]:
        """Send, and wait until the record is acknowledged."""
        sent = await self._producer.send(
            topic,
            value,
            key=key,
            timestamp_ms=timestamp_ms,
            headers=headers,
            partition=partition,
        )
        return await sent
