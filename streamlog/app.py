"""App: the declarations of a program, and the entry to everything that runs it.

An app collects declarations (`dsl.declarations`, `dsl.services`). Nothing runs until `test` creates
a driver, `backfill` a history, or `main` a worker. Rule of the file: declaring is cheap and pure,
so any program can import a module that holds an app. A method that needs a log, an event loop or
another library imports it itself.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from streamlog.blueprints.topic_patterns import matches, named, refuse_overlaps, with_matches
from streamlog.dsl.agent import with_found_topics
from streamlog.dsl.app_runtime import GlobalAccess, RequestSender, SchemaAssigner, TableAccess
from streamlog.dsl.declarations import Declarations
from streamlog.dsl.topic import Topic
from streamlog.dsl.writable_tables import build_topology
from streamlog.durations import Dur, When, duration_ms, when_ms
from streamlog.errors import ConfigError, SerdeError, UsageError
from streamlog.http_access.access_settings import OPEN_ACCESS, HttpAccess
from streamlog.interrupts import exit_at_once, exit_quietly_if_uncaught
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.topic_spec import SourceLostPolicy, check_source_lost
from streamlog.record import Headers
from streamlog.replace import replace
from streamlog.serdes.registered.schema_source import NO_REGISTRY, SchemaSource
from streamlog.tables.state.store_transaction import MEMORY_BYTES, MEMORY_BYTES_MIN
from streamlog.topology import Topology

if TYPE_CHECKING:
    from streamlog.client.named_settings import ClientOptions
    from streamlog.client.producer import Producer
    from streamlog.history.job import BackfillJob
    from streamlog.history.live_comparison import LiveComparison
    from streamlog.registry_client import RegistrySettings
    from streamlog.snapshots.object_store import SnapshotSettings
    from streamlog.snapshots.snapshot import Snapshot
    from streamlog.testing import Rehearsal, Simulation, TestDriver
    from streamlog.transport.security import Security
    from streamlog.worker.assignment.rebalance_plan import Policy
    from streamlog.worker.operations.hand_over import HandOverResult
    from streamlog.worker.program import Program


# `worker.program` declares it as well: this module imports that one only inside methods.
Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]
GUARANTEES: Final = ("exactly_once", "at_least_once")
SETTINGS = (
    "log",
    "security",
    "state_dir",
    "state_memory_bytes",
    "state_cleanup_delay",
    "snapshots",
    "snapshot_interval",
    "snapshot_bytes_per_s",
    "histories",
    "standby_replicas",
    "warmup_replicas",
    "acceptable_lag",
    "timezone",
    "commit_interval",
    "on_error",
    "timestamp_ahead_max",
    "watchdog",
    "watchdog_exit",
    "guarantee",
    "source_lost",
    "web",
    "web_access",
    "trace_ratio",
    "otel_metrics",
    "schema_registry",
)


def check_guarantee(guarantee: Guarantee) -> Guarantee:
    """Return the guarantee if it is one of `GUARANTEES`.

    Raises:
        ConfigError: the guarantee is unknown.
    """
    if guarantee not in GUARANTEES:
        raise ConfigError(f"guarantee is {guarantee!r}: use one of {', '.join(GUARANTEES)}")
    return guarantee


def interval_ms(name: str, given: Dur) -> int:
    """Return a duration in milliseconds, at least 1.

    Raises:
        ConfigError: the duration is 0 or malformed.
    """
    given_ms = duration_ms(given)
    if not given_ms:
        raise ConfigError(f"{name} must be longer than 0 ms")
    return given_ms


def watchdog_of(report: Dur, end: Dur | None) -> tuple[int, int | None]:
    """Return after how long a standstill is reported, and after how long it ends the worker."""
    return interval_ms("watchdog", report), None if end is None else duration_ms(end)


def ratio_of(given: float | None) -> float | None:
    """Return the share of records that begin a trace.

    Raises:
        ConfigError: it is not between 0 and 1.
    """
    if given is not None and not 0 <= given <= 1:
        raise ConfigError(f"trace_ratio is {given}: set it to 0 to 1, or to None for no traces")
    return given


def memory_bytes(given: int) -> int:
    """Return the bytes of memory that a worker process may use for state.

    Raises:
        ConfigError: the number is below `MEMORY_BYTES_MIN`.
    """
    if given < MEMORY_BYTES_MIN:
        raise ConfigError(f"state_memory_bytes is {given}: set it to {MEMORY_BYTES_MIN} or more")
    return given


def refuse(unknown: Iterable[str]) -> None:
    """Raise ConfigError for the first unknown setting, if there is one."""
    for name in unknown:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"its settings are {', '.join(SETTINGS)}"
        raise ConfigError(f"App has no setting {name!r}: {hint}")


def policy_of(standby_replicas: int, warmup_replicas: int, acceptable_lag: int) -> Policy:
    """Return the policy by which tasks move between workers.

    Raises:
        ConfigError: a number is out of range.
    """
    from streamlog.worker.assignment.rebalance_plan import Policy  # noqa: PLC0415 - the topology alone does not need it

    least = {"standby_replicas": 0, "warmup_replicas": 1, "acceptable_lag": 0}
    given = (standby_replicas, warmup_replicas, acceptable_lag)
    for (name, minimum), value in zip(least.items(), given, strict=True):
        if value < minimum:
            raise ConfigError(f"{name} is {value}: set it to {minimum} or more")
    return Policy(
        acceptable_lag=acceptable_lag, warmups_max=warmup_replicas, standbys=standby_replicas
    )


def security_of(given: Security | Mapping[str, str] | None) -> Security | None:
    """Return `Security`, from a mapping of settings if necessary; raises what `Security` raises."""
    if not isinstance(given, Mapping):
        return given
    from streamlog.transport.security import Security  # noqa: PLC0415 - an app without needs no ssl

    return Security.of(given)


def registry_of(given: str | Mapping[str, str] | None) -> RegistrySettings | None:
    """Return the settings of the schema registry; raises what `RegistrySettings.of` does."""
    if given is None:
        return None
    from streamlog.registry_client import RegistrySettings  # noqa: PLC0415 - an app without needs no http

    return RegistrySettings.of(given)


def snapshots_of(url: str | None, interval: Dur, bytes_per_s: int) -> SnapshotSettings | None:
    """Return the settings of snapshots in object storage; raises what `SnapshotSettings` does."""
    given_ms = interval_ms("snapshot_interval", interval)
    if url is None:
        return None
    from streamlog.snapshots.object_store import SnapshotSettings  # noqa: PLC0415 - an app without needs none

    return SnapshotSettings(url=url, interval_ms=given_ms, bytes_per_s=bytes_per_s)


def end_scripts_quietly(caller: Mapping[str, object]) -> None:
    """End a script without a traceback if it is interrupted; `caller` has its global names."""
    # A library that defines an app must not change the program's hook.
    if caller.get("__name__") == "__main__":
        exit_quietly_if_uncaught()


def clients_of(
    consumer: Mapping[str, object] | None, producer: Mapping[str, object] | None
) -> ClientOptions | None:
    """Return the options of an app's clients; raises what `client_options` does."""
    if not consumer and not producer:
        return None
    from streamlog.client import named_settings  # noqa: PLC0415 - an app without needs no client

    return named_settings.client_options(consumer, producer)


class App(Declarations):
    """A stream processing program: topics, streams, tables and agents, with their settings.

    Example:
        >>> app = App("hello")
        >>> app.topic("greetings", key=str, value=str).name
        'greetings'
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the established name of this setting
        *,
        log: str = "embedded:./.streamlog/log",
        security: Security | Mapping[str, str] | None = None,
        state_dir: str = "./.streamlog/state",
        state_memory_bytes: int = MEMORY_BYTES,
        state_cleanup_delay: Dur = "10m",
        snapshots: str | None = None,
        snapshot_interval: Dur = "10m",
        snapshot_bytes_per_s: int = 64 * 1024 * 1024,
        histories: str | None = None,
        standby_replicas: int = 0,
        warmup_replicas: int = 2,
        acceptable_lag: int = 10_000,
        timezone: str = "UTC",
        commit_interval: Dur = "500ms",
        on_error: ErrorPolicy = on_error.FAIL,
        timestamp_ahead_max: Dur | None = None,
        watchdog: Dur = "30s",
        watchdog_exit: Dur | None = None,
        guarantee: Guarantee = "exactly_once",
        source_lost: SourceLostPolicy | None = None,
        web: str | None = None,
        web_access: HttpAccess = OPEN_ACCESS,
        trace_ratio: float | None = None,
        otel_metrics: bool = False,
        schema_registry: str | Mapping[str, str] | None = None,
        consumer: Mapping[str, object] | None = None,
        producer: Mapping[str, object] | None = None,
        **unknown: object,
    ) -> None:
        """Create an app that declares nothing yet.

        Durations are text such as "500ms" or "10m", or a `timedelta`.

        Args:
            id: names the app, its consumer group and its internal topics.
            log: "embedded:DIR", "kafka://HOST:PORT" or "kafka+ssl://HOST:PORT".
            security: the TLS and SASL settings of the connection to brokers, by the names of
                docs/security.md (`{"security.protocol": "SASL_SSL", ...}`), or a `Security`, which
                may fetch a password from where it is kept. Settings on the command line and in the
                environment replace it.
            state_dir: the directory in which workers keep the state of their tasks.
            state_memory_bytes: the bytes of memory that each worker process may use for caches and
                for state that is not on disk yet; 192 MiB by default.
            state_cleanup_delay: how long a worker keeps the state of a task that has moved to
                another machine, in case the task comes back.
            snapshots: where workers snapshot the state of their tasks while they run, so that a
                worker with an empty disk begins with it and reads only what followed from the
                changelog: "s3://BUCKET/PREFIX", "gs://BUCKET/PREFIX", "az://CONTAINER/PREFIX" or
                "file:///DIRECTORY" (needs the extra `[objects]`). Nowhere by default.
            snapshot_interval: the time between two snapshots of a task. Each one writes the files
                that have changed since the one before.
            snapshot_bytes_per_s: the limit of a worker's uploads, in bytes per second; 1 or more.
            histories: where histories keep their snapshots and notes, and the console looks for
                them: a path, or a URL of fsspec such as "s3://BUCKET/PREFIX" (needs the extra
                `[history]`). By default the directory `snapshots` next to the embedded log, for
                another log next to `state_dir`.
            standby_replicas: the number of copies of each task's state that workers on other disks
                keep up to date, so that one of them can take over at once; 0 or more.
            warmup_replicas: the number of state moves, over all workers, that prepare at one time;
                1 or more (KIP-441).
            acceptable_lag: the number of records by which a worker's copy of a task's state may lag
                when the task moves there; 0 or more (KIP-441).
            timezone: the time zone of crontabs, such as "Europe/Berlin".
            commit_interval: the longest time between two commits. A crash repeats at most this
                much work; with "exactly_once" a row becomes readable after at most this time.
            guarantee: "exactly_once" commits rows, state and input offsets together or not at all
                (KIP-447). "at_least_once" writes rows immediately, and writes them again after a
                crash.
            source_lost: what a worker does if an input topic was deleted and created again, or its
                log was truncated. "fail" ends the worker (exit code 5), "earliest" reads every
                record there that it has not read, "latest" continues at the end. By default the
                worker fails if state depends on the topic, and reads from the earliest otherwise.
            on_error: what happens to a record that can't be read, that can't be written, or on
                which a function fails, unless the operator, agent or topic has its own policy.
            timestamp_ahead_max: how far a record's event time may be ahead of the clock; `on_error`
                decides on records beyond it. It applies to topics that set no limit of their own;
                there is no limit by default.
            watchdog: how long a task or agent that lags may make no progress before the worker
                reports it, with what it waits for.
            watchdog_exit: how long it may make no progress before the worker ends (exit code 7), so
                that a supervisor can replace it; by default the worker never ends for this reason.
            web: "HOST:PORT" of each worker's HTTP server (needs the extra `[web]`). ":PORT" listens
                on 127.0.0.1, and port 0 takes a free one. There is no server by default.
            web_access: who may use that server, and its certificates. An address that other
                machines reach needs users and a certificate, or `HttpAccess(is_insecure=True)`.
            trace_ratio: switches on traces (needs the extra `[otel]`; see docs/watching.md): the
                share, 0 to 1, of the records without a `traceparent` header that begin a trace.
                Records with the header are followed if their trace is sampled. None: no traces.
            otel_metrics: whether each worker exports its metrics by OTLP (needs the extra `[otel]`;
                see docs/watching.md), with or without `web`.
            schema_registry: the URLs of the schema registry of topics with `schema=`, separated by
                commas, or settings by Confluent's names (`{"schema.registry.url": "https://...",
                "basic.auth.user.info": "user:password"}`). By default the registry that the log
                itself serves.
            consumer: settings of the consumer of the app's inputs, by Kafka's names
                (`{"fetch.max.bytes": 8_000_000}`); docs/configuration.md lists them.
            producer: settings of the producers of the app's rows, by Kafka's names
                (`{"compression.type": "zstd"}`).
            unknown: any other setting raises ConfigError.

        Raises:
            ConfigError: a setting is unknown or out of range.
            TopologyError: the id can't be a part of a topic's name.
        """
        refuse(unknown)
        end_scripts_quietly(sys._getframe(1).f_globals)  # noqa: SLF001 - no other way
        super().__init__(
            id, timezone=timezone, on_error=on_error, timestamp_ahead_max=timestamp_ahead_max
        )
        self.log, self.state_dir, self.web, self.web_access = log, state_dir, web, web_access
        # Each setting is checked here, so that the error names the line that creates the app.
        self.security, self.schema_registry = security_of(security), registry_of(schema_registry)
        self.state_memory_bytes, self.histories = memory_bytes(state_memory_bytes), histories
        self.state_cleanup_delay_ms = duration_ms(state_cleanup_delay)
        self.snapshots = snapshots_of(snapshots, snapshot_interval, snapshot_bytes_per_s)
        self.policy = policy_of(standby_replicas, warmup_replicas, acceptable_lag)
        self.commit_interval_ms = interval_ms("commit_interval", commit_interval)
        self.watchdog_ms, self.watchdog_exit_ms = watchdog_of(watchdog, watchdog_exit)
        self.guarantee, self.trace_ratio = check_guarantee(guarantee), ratio_of(trace_ratio)
        self.source_lost, self.otel_metrics = check_source_lost(source_lost), otel_metrics
        self.clients, self._warned = clients_of(consumer, producer), set[str]()
        self.schemas.connect_by(self._connect_registry)

    def topology(self) -> Topology:
        """Return the topology of the streams and tables declared so far.

        Raises:
            TopologyError: the topology can't be built.

        Warns:
            UserWarning: a declaration is valid, but probably a mistake.
        """
        topology = build_topology(self._builder, self.agents)
        refuse_overlaps(self._patterns.values(), self._topics_of(topology))
        for text in topology.warnings():
            # Several methods ask for the topology: each warning is given once.
            if text not in self._warned:
                self._warned.add(text)
                # Level 3 is the line of the program that calls such a method.
                warnings.warn(text, UserWarning, stacklevel=3)
        return topology

    def test(
        self,
        *,
        start: When = "2025-01-01T00:00:00Z",
        partitions: int | None = None,
        seed: int | None = None,
        after: TestDriver | None = None,
        topics: Iterable[str] = (),
    ) -> AbstractContextManager[TestDriver]:
        """Return a driver that runs the app without a log.

        Args:
            start: the time of the clock when the test begins.
            partitions: the number of partitions of every topic, 1 or more; by default each topic's
                own number, or 1.
            seed: runs the tasks in a random order, which is equal for equal seeds; by default in a
                fixed order.
            after: the running driver of an older version of the app. It stops, and the new driver
                continues with its topics, its state and its positions.
            topics: the names of topics that the app's patterns may match. To test what happens when
                one is added, pass more of them with the driver before as `after`.

        Raises:
            StateLost: this version can't continue with the older version's state.
            UsageError: the older version's driver does not run, or `topics` has none that a pattern
                of the app matches.
        """
        from streamlog.testing import TestDriver  # noqa: PLC0415 - for tests only

        rehearsal = self._rehearsal(start, partitions, 1, topics)
        return TestDriver(replace(rehearsal, seed=seed, after=after))

    def simulate(
        self,
        *,
        seed: int = 0,
        runs: int = 20,
        start: When = "2025-01-01T00:00:00Z",
        partitions: int | None = None,
        topics: Iterable[str] = (),
    ) -> AbstractContextManager[Simulation]:
        """Check that workers that crash and are replaced write the rows of an undisturbed run.

        The `with` block puts records in. At its end the test driver computes the expected rows,
        and every run has to write exactly those, whatever its batches, workers and crashes.

        Args:
            seed: the seed of the first run; each further run uses the next number.
            runs: the number of runs, 1 or more.
            start: the time of the clock, which does not advance, and of records without a
                timestamp.
            partitions: the number of partitions of every topic, 1 or more; by default each topic's
                own number, or 3.
            topics: the names of topics that the app's patterns may match.

        Raises:
            RunsDiffer: at the end of the block, if a run wrote other rows; the message names the
                rows and the events of the run.

        Example:
            with app.simulate(seed=7) as s:
                for sale in SALES:
                    s.input(sales).send(sale, key=sale.shop)
            print(s.report)
        """
        from streamlog.testing import Simulation  # noqa: PLC0415 - for tests only

        return Simulation(self._rehearsal(start, partitions, 3, topics), seed=seed, runs=runs)

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
        lower: Literal["auto", "off"] = "auto",
    ) -> BackfillJob:
        """Return a job that runs the streams and tables over the history in the log.

        The job computes the rows that live workers compute, and a snapshot of the final state with
        which live workers can start. Nothing runs before the job's `run`; `explain` describes what
        `run` will do.

        Args:
            since: streams begin at the first record that is not older than this time. Tables always
                begin at their first record.
            until: each partition ends before its first record whose stream time is not earlier.
                "now" ends at the time that all streams have reached. Text without a zone is in the
                app's time zone.
            engine: "local" runs in this process, "spark" on Spark (needs the extra `[spark]`).
            spark: the Spark session; by default one on all cores of this machine.
            outputs: "discard" drops the rows, "stage" writes them to files, "publish" makes them
                visible in their topics, all at once, when the history is complete.
            job_id: names the job and its snapshot. A job that has published under this id does not
                publish again.
            directory: the directory or fsspec URL of snapshots; by default that of the app's
                setting `histories`.
            progress: True shows bars, False nothing; by default, bars on a terminal, and elsewhere
                lines in the log.
            lower: "auto" lets Spark fold windows natively where the rows are equal; "off" never
                does.

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
                lower=lower,
            )
        )

    def hand_over(
        self,
        snapshot: Snapshot,
        *,
        version: str | None = None,
        mode: Literal["replace", "blue_green"] = "replace",
        rewind: bool = False,
    ) -> HandOverResult:
        """Start live workers where a history ended, without a lost or repeated record.

        One transaction writes the state of the workers, the staged rows, and the offsets at which
        the workers continue. The call is idempotent: a second hand-over of one snapshot changes
        nothing.

        Args:
            snapshot: the result of `backfill(...).run()`, or `Snapshot.open(url)`.
            version: with "blue_green", the name of the new version.
            mode: "replace" continues the app itself from the snapshot; its workers must be stopped.
                "blue_green" starts a version next to the app, which may keep running. The
                version's app id is "<app>-<version>" (`worker --version` starts its workers), and
                its rows go to "<topic>-<version>". Agents and schedules stay with the app.
            rewind: hand over even if the app has read beyond the snapshot. Rows that it wrote from
                there on are in the output topics, and will be written once more.

        Raises:
            TopologyError: the snapshot belongs to another program or to other partition counts, or
                the version can't be a part of a topic's name.
            ConfigError: the mode needs a version and has none, or the other way round.
            UsageError: workers are running, the app has read beyond the snapshot, or the caller
                runs on an event loop.
            OffsetOutOfRange: the log no longer holds all records that follow the snapshot.
            CorruptData: a file of the snapshot is missing or damaged.
            StreamlogError: the log can't be reached or written; nothing has changed.
        """
        from streamlog.worker.operations.hand_over import run_hand_over  # noqa: PLC0415 - brings the log in

        program = self.program()
        if mode not in {"replace", "blue_green"} or (mode == "replace") != (version is None):
            raise ConfigError(
                f"mode is {mode!r} and version is {version!r}: use mode='replace' without a "
                "version, or mode='blue_green' with one"
            )
        return run_hand_over(
            program if version is None else program.as_version(version),
            snapshot,
            log_url=self.log,
            security=self.security,
            mode=mode,
            rewind=rewind,
        )

    def compare(
        self,
        topic: Topic[Any, Any],
        *,
        version: str,
        since: When | None = None,
        patience: Dur = "30s",
    ) -> LiveComparison:
        """Compare the rows that a version has written to a topic with the rows of the app.

        Both may keep running: the call waits until the one that lags has reached the other, and
        leaves out rows that are written meanwhile.

        Args:
            topic: an output topic of both, by the app's name for it.
            version: the name of the version.
            since: leaves out rows with earlier timestamps; by default those from before the version
                began. Text without a time zone is in UTC.
            patience: how long to wait for the one that lags.

        Returns:
            For each partition the number of equal rows and of rows that only one of both has
            written, with the first of these decoded.

        Raises:
            UsageError: there is no such version, it does not write this topic, one of both does not
                reach the other within `patience`, or the caller runs on an event loop.
            StreamlogError: the log can't be read.
        """
        from streamlog.clock import SystemClock  # noqa: PLC0415 - the same
        from streamlog.history.live_comparison import compared_live  # noqa: PLC0415 - the same
        from streamlog.history.readers import LogReader  # noqa: PLC0415 - brings the log in

        with LogReader(self.log, self.security) as reader:
            return compared_live(
                topic,
                version,
                self.program(),
                reader,
                clock=SystemClock(),
                patience_ms=duration_ms(patience),
                since_ms=None if since is None else when_ms(since),
            )

    def _rehearsal(
        self, start: When, partitions: int | None, default: int, names: Iterable[str]
    ) -> Rehearsal:
        from streamlog.testing import Rehearsal  # noqa: PLC0415 - for tests only

        topology = self.topology()
        matched = self._matched(names)
        found = {
            name: named(self._patterns[pattern], name)
            for pattern, several in matched.items()
            for name in several
        }
        topics = {**self._topics_of(topology), **found}
        return Rehearsal(
            topology=with_matches(topology, matched) if matched else topology,
            declared=topology,
            partitions={
                name: partitions or spec.partitions or default for name, spec in topics.items()
            },
            partitioners={name: spec.partitioner for name, spec in topics.items()},
            runtime=self.runtime,
            schemas=self.schemas,
            agents=with_found_topics(self.agents, matched, found),
            timers=self.timers,
            crontabs=self.crontabs,
            tasks=self.tasks,
            connectors=self.connectors,
            start_ms=when_ms(start),
        )

    def _matched(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return which of the names match the patterns of the app.

        Raises:
            UsageError: none match one of the patterns.
        """
        matched = matches(self._patterns.values(), names, [self.id])
        for name, several in matched.items():
            if not several:
                raise UsageError(
                    f"{name!r} stands for the topics that match {self._patterns[name].pattern}, "
                    "and the test has none: pass their names, app.test(topics=['NAME'])"
                )
        return matched

    def program(self) -> Program:
        """Return the app in the form that a worker runs."""
        from streamlog.client.named_settings import NO_OPTIONS  # noqa: PLC0415 - a worker's
        from streamlog.worker.health.loop_watch import Limits  # noqa: PLC0415 - brings the whole log in
        from streamlog.worker.program import Program  # noqa: PLC0415 - the same

        topology = self.topology()
        # A test in this process may have put a registry in memory here.
        self.schemas.use(None)
        return Program(
            app_id=self.id,
            topology=topology,
            topics=self._topics_of(topology),
            state_dir=self.state_dir,
            state_memory_bytes=self.state_memory_bytes,
            state_cleanup_delay_ms=self.state_cleanup_delay_ms,
            snapshots=self.snapshots,
            histories=self.histories,
            agents=self.agents,
            timers=self.timers,
            crontabs=self.crontabs,
            tasks=self.tasks,
            pages=self.pages,
            connectors=self.connectors,
            commands=tuple(self.commands.values()),
            commit_interval_ms=self.commit_interval_ms,
            limits=Limits(self.watchdog_ms, self.watchdog_exit_ms),
            policy=self.policy,
            guarantee=self.guarantee,
            source_lost=self.source_lost,
            web=self.web,
            web_access=self.web_access,
            trace_ratio=self.trace_ratio,
            otel_metrics=self.otel_metrics,
            schema_registry=self.schema_registry,
            clients=self.clients or NO_OPTIONS,
            schemas=self.schemas,
            bind_schemas=self._bind_schemas,
            bind=self._bind,
            bind_tables=self._bind_tables,
            bind_global_tables=self._bind_global_tables,
            bind_requests=self._bind_requests,
        )

    def main(self) -> None:
        """Run the command line for this app; without a command it starts a worker."""
        # By name, as it is the one call upwards through the layers: the command line knows
        # the app, and the app's module is what the user runs.
        exit_at_once()
        importlib.import_module("streamlog.cli").main(self)

    def _connect_registry(self) -> SchemaSource:
        """Return the source of schemas for programs other than a worker and a test."""
        from streamlog.registry_client import SchemaBook  # noqa: PLC0415 - only with a registry

        if self.schema_registry is None:
            raise SerdeError(NO_REGISTRY)
        return SchemaBook(self.schema_registry, app_id=self.id)

    def _bind(self, producer: Producer) -> None:
        self.runtime.sender = _ProducerSender(producer)

    def _bind_schemas(self, schemas: SchemaAssigner) -> None:
        self.runtime.schemas = schemas

    def _bind_requests(self, requests: RequestSender) -> None:
        self.runtime.requests = requests

    def _bind_tables(self, tables: TableAccess) -> None:
        self.runtime.tables = tables

    def _bind_global_tables(self, tables: GlobalAccess) -> None:
        self.runtime.global_tables = tables


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
        """Send a record and wait until the log has acknowledged it."""
        sent = await self._producer.send(
            topic,
            value,
            key=key,
            timestamp_ms=timestamp_ms,
            headers=headers,
            partition=partition,
        )
        return await sent
