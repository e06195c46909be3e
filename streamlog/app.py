"""App: what a program declares, and the door to everything that runs it.

What is declared (`dsl.declarations`, `dsl.duties`) is collected; nothing runs until `test` makes
a driver of it, `backfill` a history or `main` a worker. Rule of the file: declaring is cheap
and pure, so a module that holds an app can be imported by anybody; what needs a log, a loop
or another library is imported inside the method that needs it.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from streamlog.dsl.app_runtime import GlobalAccess, RequestSender, TableAccess
from streamlog.dsl.declarations import Declarations
from streamlog.dsl.topic import Topic
from streamlog.dsl.writable_tables import build_topology
from streamlog.durations import Dur, When, duration_ms, when_ms
from streamlog.errors import ConfigError
from streamlog.interrupts import exit_at_once, exit_quietly_if_uncaught
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.topic_spec import SourceLostPolicy, check_source_lost
from streamlog.record import Headers
from streamlog.tables.state.store_transaction import MEMORY_BYTES, MEMORY_BYTES_MIN
from streamlog.topology import Topology

if TYPE_CHECKING:
    from streamlog.client.producer import Producer
    from streamlog.history.job import BackfillJob
    from streamlog.history.live_comparison import LiveComparison
    from streamlog.snapshots.snapshot import Snapshot
    from streamlog.testing import Rehearsal, Simulation, TestDriver
    from streamlog.transport.security import Security
    from streamlog.worker.assignment.rebalance_plan import Policy
    from streamlog.worker.operations.hand_over import HandedOver
    from streamlog.worker.program import Program


Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]
GUARANTEES: Final = ("exactly_once", "at_least_once")
SETTINGS = (
    "log",
    "security",
    "state_dir",
    "state_memory_bytes",
    "state_cleanup_delay",
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
)


def check_guarantee(guarantee: Guarantee) -> Guarantee:
    """The guarantee.

    Raises:
        ConfigError: there is no such one.
    """
    if guarantee not in GUARANTEES:
        raise ConfigError(f"guarantee is {guarantee!r}: it is one of {', '.join(GUARANTEES)}")
    return guarantee


def interval_ms(name: str, given: Dur) -> int:
    """A duration that is not 0.

    Raises:
        ConfigError: it is, or it is no duration.
    """
    given_ms = duration_ms(given)
    if not given_ms:
        raise ConfigError(f"{name} must be longer than 0 ms")
    return given_ms


def memory_bytes(given: int) -> int:
    """What a worker process may take for state.

    Raises:
        ConfigError: it is too little.
    """
    if given < MEMORY_BYTES_MIN:
        raise ConfigError(f"state_memory_bytes is {given}: give it {MEMORY_BYTES_MIN} or more")
    return given


def refuse(unknown: Iterable[str]) -> None:
    """Raises ConfigError for the first of them, if there is one."""
    for name in unknown:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(SETTINGS)}"
        raise ConfigError(f"App has no setting {name!r}: {hint}")


def policy_of(standby_replicas: int, warmup_replicas: int, acceptable_lag: int) -> Policy:
    """How tasks move between workers.

    Raises:
        ConfigError: a number is out of range.
    """
    from streamlog.worker.assignment.rebalance_plan import Policy  # noqa: PLC0415 - not for who only wants the topology

    least = {"standby_replicas": 0, "warmup_replicas": 1, "acceptable_lag": 0}
    given = (standby_replicas, warmup_replicas, acceptable_lag)
    for (name, minimum), value in zip(least.items(), given, strict=True):
        if value < minimum:
            raise ConfigError(f"{name} is {value}: it has to be {minimum} or more")
    return Policy(
        acceptable_lag=acceptable_lag, warmups_max=warmup_replicas, standbys=standby_replicas
    )


def security_of(given: Security | Mapping[str, str] | None) -> Security | None:
    """Made of settings by their names, if it was given so. Raises what `Security` raises."""
    if not isinstance(given, Mapping):
        return given
    from streamlog.transport.security import Security  # noqa: PLC0415 - an app without needs no ssl

    return Security.of(given)


class App(Declarations):
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
        timestamp_ahead_max: Dur | None = None,
        watchdog: Dur = "30s",
        watchdog_exit: Dur | None = None,
        guarantee: Guarantee = "exactly_once",
        source_lost: SourceLostPolicy | None = None,
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
            source_lost: what a worker does if a topic that it reads was deleted and created again,
                or its log truncated: "fail" ends it (code 5), "earliest" reads every record that
                is there and was not read, "latest" reads on at the end. By default it fails where
                state is made of the topic's records, and reads from the earliest elsewhere.
            on_error: what becomes of records that can't be read, on which a function fails or that
                can't be written, where operator or agent say nothing of their own.
            timestamp_ahead_max: records whose event time is further ahead of the clock are refused
                by `on_error`, for topics that say nothing of their own; by default none is.
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
        if sys._getframe(1).f_globals.get("__name__") == "__main__":  # noqa: SLF001 - no other way
            exit_quietly_if_uncaught()
        super().__init__(
            id, timezone=timezone, on_error=on_error, timestamp_ahead_max=timestamp_ahead_max
        )
        self.log = log
        self.security = security_of(security)
        self.state_dir = state_dir
        self.state_memory_bytes = memory_bytes(state_memory_bytes)
        self.state_cleanup_delay_ms = duration_ms(state_cleanup_delay)
        self.policy = policy_of(standby_replicas, warmup_replicas, acceptable_lag)
        self.commit_interval_ms = interval_ms("commit_interval", commit_interval)
        self.watchdog_ms = interval_ms("watchdog", watchdog)
        self.watchdog_exit_ms = None if watchdog_exit is None else duration_ms(watchdog_exit)
        self.guarantee = check_guarantee(guarantee)
        self.source_lost = check_source_lost(source_lost)
        self.web = web
        self._warned: set[str] = set()

    def topology(self) -> Topology:
        """What the streams and tables declared so far come to.

        Warns:
            UserWarning: something is allowed but hardly meant.
        """
        topology = build_topology(self._builder, self.agents)
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
        lower: Literal["auto", "off"] = "auto",
    ) -> BackfillJob:
        """The history of the streams and tables over what the log holds, as a job to be run.

        The same rows as live workers give, and a snapshot of where it all came to, for them to go
        on from. Nothing runs before `run`; `explain` says what will.

        Args:
            since: where streams begin: the first record that is not older. Of tables, all is taken.
            until: where it ends: before the first record of each partition whose stream time is
                not earlier. "now": as far as all streams have come. Text is in the app's time zone.
            engine: "local": in this process. "spark": by Spark (the extra `[spark]`).
            spark: its session; one on all cores of this machine by default.
            outputs: what becomes of the rows: they are dropped, or staged in files, or published,
                all at once when the history is over.
            job_id: of the job and its snapshot. What was published under an id is not again.
            directory: where snapshots are kept, or an fsspec URL; beside the log by default.
            progress: show bars; by default if a person watches.
            lower: "auto": Spark folds windows natively where rows stay the same; "off": never.

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
        from streamlog.worker.operations.hand_over import handed_over  # noqa: PLC0415 - brings the log in

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

    def compare(
        self,
        topic: Topic[Any, Any],
        *,
        version: str,
        since: When | None = None,
        patience: Dur = "30s",
    ) -> LiveComparison:
        """What a version beside the app has published to a topic, against what the app has.

        Both may run on: who is behind is waited for, and what is published meanwhile is left out.

        Args:
            topic: that both write, as the app calls it.
            version: its name.
            since: rows with earlier times are left out; by default those from before the version
                began. Text is in UTC if it names no time zone.
            patience: so long whoever is behind is waited for.

        Raises:
            UsageError: there is no such version, it does not write this topic, or one of both does
                not come to where the other one is; or this is called by code that runs on an event
                loop.
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

    def _rehearsal(self, start: When, partitions: int | None, default: int) -> Rehearsal:
        from streamlog.testing import Rehearsal  # noqa: PLC0415 - for tests only

        topology = self.topology()
        topics = self._topics_of(topology)
        return Rehearsal(
            topology=topology,
            partitions={
                name: partitions or spec.partitions or default for name, spec in topics.items()
            },
            partitioners={name: spec.partitioner for name, spec in topics.items()},
            outlet=self.outlet,
            agents=self.agents,
            timers=self.timers,
            crontabs=self.crontabs,
            tasks=self.tasks,
            start_ms=when_ms(start),
        )

    def program(self) -> Program:
        """The app as a worker runs it."""
        from streamlog.worker.health.loop_watch import Limits  # noqa: PLC0415 - brings the whole log in
        from streamlog.worker.program import Program  # noqa: PLC0415 - the same

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
            source_lost=self.source_lost,
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
        exit_at_once()
        importlib.import_module("streamlog.cli").main(self)

    def _bind(self, producer: Producer) -> None:
        self.outlet.sender = _ProducerSender(producer)

    def _bind_asker(self, asker: RequestSender) -> None:
        self.outlet.asker = asker

    def _bind_tables(self, tables: TableAccess) -> None:
        self.outlet.tables = tables

    def _bind_global_tables(self, tables: GlobalAccess) -> None:
        self.outlet.global_tables = tables


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
