"""LogDirectory: every partition under one folder, and the lock on it.

The metadata log (`quorum`) decides which topics exist. `topics.json` says which of them are here
(`TopicState`): folders are created before they are listed there, and deleted after they are
unlisted. The first process to open the directory holds its lock; another process gets an error
that names the holder's address. With `read_only` nothing is locked or changed, and a writer may be
at work.

Checkpoints say up to where each log is on disk and where it begins. The loop takes them and any
thread writes them, because that takes three syncs.

Rules of this module: opening after a clean shutdown scans nothing, any other opening scans what
may be torn; while anything is damaged, no shutdown counts as clean. A checkpoint may be older than
the truth, never newer, and never older than the checkpoint before it. Only a scan finds damage in
the middle of a log again, so the recovery point stays before a hole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from threading import Lock
from types import MappingProxyType
from typing import NamedTuple

from streamlog import repeated
from streamlog.broker.config.broker import PARTITIONS_MAX, BrokerConfig, TopicConfig
from streamlog.broker.storage.catalog import (
    LOCK,
    META,
    NO_BROKER_EPOCH,
    AlteredSettings,
    Catalog,
    DirectoryIds,
    ListenerFile,
    TopicEntry,
    describe_holder,
    doomed,
    new_topic_id,
)
from streamlog.broker.storage.data_directory import (
    Folders,
    Staging,
    identify_directory,
    partition_folder,
    strays,
)
from streamlog.broker.storage.disk.files import (
    File,
    Files,
    directory_error,
    make_durable_directory,
    unless_full,
    warn_of_unwritten_indexes,
    write_whole,
)
from streamlog.broker.storage.disk.offload import OffloadedJob
from streamlog.broker.storage.disk.os_files import OsFiles, process_id
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log.segment import Damage, SegmentEnd
from streamlog.broker.storage.log.segments import RollBudget
from streamlog.errors import (
    LogDirectoryError,
    LogDirectoryFailed,
    LogDirectoryLocked,
    LogDirectoryLost,
    LogError,
    StreamlogError,
    TopicExists,
    UnknownTopicOrPartition,
    UsageError,
)


class LogCheckpoint(NamedTuple):
    """What is kept of one log."""

    recovery_point: int
    """Before it, everything is on disk."""
    log_start_offset: int
    """Before it, everything was deleted."""
    high_watermark: int
    """Before it, a replicated partition was committed; 0 of others."""


class CheckpointsTaken(NamedTuple):
    """What held for all logs, by folder."""

    number: int
    recovery_points: dict[str, int]
    log_start_offsets: dict[str, int]
    high_watermarks: dict[str, int]


class LogCheckpoints:
    """The checkpoints of all logs of a directory, by folder.

    Reading and keeping raise OSError if the system refuses.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._numbers = count(1)
        self._keeping = Lock()
        self._kept = CheckpointsTaken(0, {}, {}, {})

    def read(self, topics: Iterable[TopicEntry]) -> dict[str, LogCheckpoint]:
        """What was kept of the logs of these topics; zeros if nothing was.

        Raises:
            CorruptData: the file is damaged.
        """
        points, starts = self._catalog.recovery_points(), self._catalog.log_start_offsets()
        marks = self._catalog.high_watermarks()
        folders = (
            partition_folder(topic.topic_id, number)
            for topic in topics
            for number in topic.partitions
        )
        return {
            each: LogCheckpoint(points.get(each, 0), starts.get(each, 0), marks.get(each, 0))
            for each in folders
        }

    def take(self, logs: Mapping[str, PartitionLog]) -> CheckpointsTaken:
        """What holds for these logs now; of others nothing is kept."""
        points = {folder: _scan_from(log) for folder, log in logs.items()}
        starts = {f: log.log_start_offset for f, log in logs.items() if log.log_start_offset}
        marks = {f: log.high_watermark for f, log in logs.items() if log.high_watermark}
        return CheckpointsTaken(next(self._numbers), points, starts, marks)

    def is_kept(self, taken: CheckpointsTaken) -> bool:
        """Whether the same was kept last."""
        return taken[1:] == self._kept[1:]

    def keep(self, taken: CheckpointsTaken) -> None:
        """Keep it, durably; callable from any thread.

        Nothing is left to do if what was taken later has come first.
        """
        with self._keeping:
            if taken.number > self._kept.number:
                self._catalog.write_checkpoints(
                    recovery_points=taken.recovery_points,
                    log_start_offsets=taken.log_start_offsets,
                    high_watermarks=taken.high_watermarks,
                )
                self._kept = taken


def _scan_from(log: PartitionLog) -> int:
    """The recovery point, held back before a hole: only a scan finds it again.

    Not so where a hole reaches up to the end of the log: by any earlier point it would be judged
    a write that was never finished, and cut off.
    """
    end_offset = log.log_end_offset
    holes: list[int] = []
    for place in log.damage:
        if place.next_offset is None or place.next_offset >= end_offset:
            return log.recovery_point
        holes.append(place.first_offset)
    return min([log.recovery_point, *holes])


INVALID_TOPIC = 17
INVALID_PARTITIONS = 37

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic and its logs, by number of the partition."""

    name: str
    topic_id: bytes
    """16 bytes, new whenever a topic is made."""
    partitions: dict[int, PartitionLog]
    """Those that are here; others may be on other brokers."""
    configs: dict[str, str]
    """The settings that were given for the topic, by Kafka's names."""
    config: TopicConfig
    """All settings that hold for it."""

    def entry(self) -> TopicEntry:
        """What is written down of it."""
        return TopicEntry(
            name=self.name,
            topic_id=self.topic_id,
            partitions=tuple(sorted(self.partitions)),
            configs=self.configs,
        )


def check_topic_name(name: str) -> None:
    """Whether a topic may be called so.

    Raises:
        LogError: with Kafka's code, it may not.
    """
    if not _TOPIC_NAME.fullmatch(name) or name in {".", ".."}:
        raise LogError(
            f"{name!r} can't name a topic: use 1 to 249 letters, digits, '.', '_' and '-'",
            code=INVALID_TOPIC,
        )


def check_partition_count(name: str, partitions: int, *, least: int) -> None:
    """Whether the topic may have so many partitions.

    Raises:
        LogError: with Kafka's code, it may not.
    """
    if not least <= partitions <= PARTITIONS_MAX:
        raise LogError(
            f"topic {name!r} can't have {partitions} partitions: use {least} to {PARTITIONS_MAX}",
            code=INVALID_PARTITIONS,
        )


def topic_state(
    entry: TopicEntry, logs: dict[int, PartitionLog], config: TopicConfig
) -> TopicState:
    """The topic that was written down so, with these logs and settings."""
    return TopicState(
        name=entry.name,
        topic_id=entry.topic_id,
        partitions=logs,
        configs=dict(entry.configs),
        config=config,
    )


_logger = repeated.logger(__name__)


class LogDirectory:
    """The data directory of one broker; made by `open`."""

    def __init__(self, files: Files, path: str, *, config: BrokerConfig, lock: File | None) -> None:
        self.path = path
        self.cluster_id = ""
        self.node_id = config.node_id
        self.directory_id = ""
        self.rejoins = False
        """Whether its node was there before, with a directory that is lost."""
        self.previous_broker_epoch = self.broker_epoch = NO_BROKER_EPOCH
        """Of the broker's process that has closed it in order, and of the one that has it now."""
        self.rolls: RollBudget[PartitionLog] = RollBudget()
        """Who of its logs may begin a segment, when many of them are due."""
        self.staging = Staging(files, path)
        """Files of jobs that are in no log yet."""
        self._files = files
        self._given_config = config
        self._config = config
        self._altered = AlteredSettings()
        self._lock = lock
        self._catalog = Catalog(files, path)
        self.lives = DirectoryIds(self._catalog, path, new_topic_id)
        """By which the controller tells this directory from an older copy of it."""
        self._folders = Folders(files, path)
        self._checkpoints = LogCheckpoints(self._catalog)
        self._listener = ListenerFile(self._catalog)
        self._least_ends: Mapping[str, int] = {}
        self._topics: dict[str, TopicState] = {}
        self._deleting: set[str] = set()
        """What is to be gone from the disk (`catalog.doomed`)."""
        self._failure: LogDirectoryError | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str,
        *,
        files: Files | None = None,
        config: BrokerConfig | None = None,
        wall_ms: int = 0,
        read_only: bool = False,
    ) -> LogDirectory:
        """Open a data directory, making it if there is none, and recover what a crash has left.

        `files` are the operating system's and `config` is the defaults if not given; `wall_ms`
        is what the lock says about when it was taken. With `read_only` the directory has to be
        there; it may be in use. A topic that the reader finds is as long as it was then.

        Raises:
            LogDirectoryLocked: another process holds it; says where that one listens.
            LogDirectoryLost: it is not a log, or a part without which it is none is missing.
            LogDirectoryFailed: the disk refused.
            CorruptData: one of its small files is damaged.
            ConfigError: `node_id` is not the one it was made with.
        """
        files = OsFiles() if files is None else files
        config = BrokerConfig() if config is None else config
        path = path.rstrip("/") or ("/" if path else ".")
        if read_only:
            directory = cls(files, path, config=config, lock=None)
            with directory._disk():
                directory._open_read_only()
            return directory
        try:
            make_durable_directory(files, path)
            lock = files.lock(f"{path}/{LOCK}")
        except OSError as error:
            raise LogDirectoryFailed(
                f"{path} can't be a data directory ({error.strerror}): check the path and who may"
                " write there"
            ) from error
        if lock is None:
            raise LogDirectoryLocked(f"{describe_holder(files, path)}: connect to that, or stop it")
        directory = cls(files, path, config=config, lock=lock)
        try:
            with directory._disk():
                directory._hold(lock, wall_ms)
                directory._open()
        except BaseException:
            directory._discard()
            raise
        return directory

    @property
    def topics(self) -> Mapping[str, TopicState]:
        """The topics of which something is here, by name."""
        return MappingProxyType(self._topics)

    @property
    def config(self) -> BrokerConfig:
        """All settings that hold now: as they were given, and altered since."""
        return self._config

    @property
    def given_config(self) -> BrokerConfig:
        """The settings that the broker was started with."""
        return self._given_config

    @property
    def altered(self) -> AlteredSettings:
        """What was altered while the broker ran."""
        return self._altered

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged places that are known, of all partitions."""
        return tuple(
            place
            for topic in self._topics.values()
            for log in topic.partitions.values()
            for place in log.damage
        )

    def log(self, topic: str, partition: int) -> PartitionLog:
        """The log of a partition.

        Raises:
            UnknownTopicOrPartition: there is none.
        """
        state = self._topics.get(topic)
        if state is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        log = state.partitions.get(partition)
        if log is None:
            there = ", ".join(map(str, state.partitions)) or "none"
            raise UnknownTopicOrPartition(
                f"topic {topic!r} has partitions {there} here, not {partition}"
            )
        return log

    def create_topic(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str] | None = None,
        topic_id: bytes | None = None,
    ) -> TopicState:
        """Make a topic; it is there, durably, when this returns.

        Raises:
            TopicExists: there is one of that name.
            LogError: with Kafka's code, the name or the number of partitions is not allowed.
            ConfigError: a setting is unknown or out of range.
            LogDirectoryError: the disk refused; there is no such topic.
        """
        self._check_writable()
        check_topic_name(name)
        if name in self._topics:
            raise TopicExists(f"topic {name!r} exists already")
        check_partition_count(name, partitions, least=1)
        given = dict(configs or {})
        config = self._config.topic.overridden(given)
        topic_id = new_topic_id() if topic_id is None else topic_id
        topic = TopicState(
            name=name, topic_id=topic_id, partitions={}, configs=given, config=config
        )
        return self._grown(topic, range(partitions))

    def host(
        self, name: str, topic_id: bytes, numbers: Iterable[int], configs: Mapping[str, str]
    ) -> TopicState:
        """Have these partitions of a topic, those that are not here yet made anew.

        Raises:
            ConfigError: a setting is unknown or out of range.
            LogDirectoryError: the disk refused; what was not here still is not.
        """
        self._check_writable()
        topic = self._topics.get(name)
        if topic is None:
            given = dict(configs)
            config = self._config.topic.overridden(given)
            topic = TopicState(
                name=name, topic_id=topic_id, partitions={}, configs=given, config=config
            )
        missing = sorted({*numbers} - {*topic.partitions})
        return self._grown(topic, missing) if missing else topic

    def _grown(self, topic: TopicState, numbers: Iterable[int]) -> TopicState:
        """The topic with these partitions besides."""
        logs: dict[int, PartitionLog] = {}
        with self._disk():
            self._finish_deletions()  # Or one that comes back would meet its old files.
            try:
                for number in numbers:
                    folder = f"{self.path}/{partition_folder(topic.topic_id, number)}"
                    label = f"{topic.name}-{number}"
                    logs[number] = PartitionLog.create(
                        self._files, folder, name=label, config=topic.config, rolls=self.rolls
                    )
                self._files.sync_directory(self.path)
                grown = replace(topic, partitions={**topic.partitions, **logs})
                self._write_topics([*{**self._topics, topic.name: grown}.values()])
            except (OSError, LogDirectoryError):
                # The folders stay behind, empty: they are used by the next attempt, or if there
                # is no such topic removed by the next opening.
                for log in logs.values():
                    log.discard()
                raise
        self._topics[topic.name] = grown
        return grown

    def partition_bytes(self, topic: str, partition: int) -> int:
        """Bytes of a partition's segments on disk.

        Raises:
            UnknownTopicOrPartition: there is none.
            LogDirectoryError: the disk refused.
        """
        self.log(topic, partition)
        with self._disk():
            return self._folders.size_bytes(
                partition_folder(self._topics[topic].topic_id, partition)
            )

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all that is in it.

        Raises:
            UnknownTopicOrPartition: there is none.
            LogDirectoryError: the disk refused; the next opening finishes a deletion that had
                begun.
        """
        topic = self._writable(name)
        with self._disk():
            self._forget(topic, (), {doomed(topic.topic_id)})
            self._finish_deletions()

    def delete_partitions(self, name: str, numbers: Iterable[int]) -> None:
        """Delete what is here of some of a topic's partitions, which are elsewhere.

        Raises what `delete_topic` raises.
        """
        topic = self._writable(name)
        gone = {*numbers} & {*topic.partitions}
        with self._disk():
            left = {*topic.partitions} - gone
            self._forget(topic, left, {doomed(topic.topic_id, number) for number in gone})
            self._finish_deletions()

    def set_aside(self, name: str) -> None:
        """Keep what is here of a topic that nobody knows, in folders that nobody looks into.

        Raises what `delete_topic` raises.
        """
        topic = self._writable(name)
        with self._disk():
            for log in topic.partitions.values():
                log.close()
            # First the folders: of a topic that is named and has none, new ones are made.
            kept = [
                self._folders.set_aside(partition_folder(topic.topic_id, number))
                for number in topic.partitions
            ]
            self._forget(topic, (), set())
        _logger.warning(
            "topic %s is not known to the cluster: what is here of it is kept aside as %s in %s,"
            " and can be removed if nobody misses it",
            *(name, ", ".join(kept), self.path),
        )

    def count_strays(self) -> int:
        """How many folders were set aside, as the cluster did not know their topics.

        Raises:
            LogDirectoryError: the disk refused.
        """
        with self._disk():
            return len(strays(self._files.list(self.path)))

    def _forget(self, topic: TopicState, left: Collection[int], doomed_ones: set[str]) -> None:
        """Have no partitions of a topic but those that are left; the others are doomed."""
        logs = {number: log for number, log in topic.partitions.items() if number in left}
        others = {name: each for name, each in self._topics.items() if each is not topic}
        if logs:
            others[topic.name] = replace(topic, partitions=logs)
        self._deleting |= doomed_ones
        try:
            self._write_topics(others.values())
        except OSError:
            # Or the next change of topics would doom what still exists.
            self._deleting -= doomed_ones
            raise
        self._topics = others
        for number, log in topic.partitions.items():
            if number not in logs:
                log.discard()

    def alter_topic(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace the settings that were given for a topic; they hold at once, and durably.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            ConfigError: a setting is unknown or out of range; nothing was changed.
            LogDirectoryError: the disk refused; nothing was changed.
        """
        topic = self._writable(name)
        config = self._config.topic.overridden(configs)
        after = replace(topic, configs=dict(configs), config=config)
        others = {**self._topics, name: after}
        with self._disk():
            self._write_topics(others.values())
        self._take_topic(after)

    def take_settings(self, altered: AlteredSettings) -> None:
        """Go by these altered settings of the broker from now on.

        Raises:
            ConfigError: a setting is unknown or out of range; nothing was changed.
        """
        given = self._given_config
        config = given.overridden(altered.default).overridden(altered.node)
        self._config, self._altered = config, altered
        for topic in list(self._topics.values()):
            self._take_topic(replace(topic, config=config.topic.overridden(topic.configs)))

    def _take_topic(self, topic: TopicState) -> None:
        self._topics[topic.name] = topic
        for log in topic.partitions.values():
            log.configure(topic.config)

    def least_end(self, topic: str, partition: int) -> int:
        """The offset that a log reaches at least, for a directory that is read only.

        Where one ends before, its last batches are damaged, or were cut off.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
        """
        self.log(topic, partition)
        folder = partition_folder(self._topics[topic].topic_id, partition)
        return self._least_ends.get(folder, 0)

    def look_again(self, topic: str, partition: int) -> PartitionLog:
        """The log as its files are now, for a directory that is read only.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            OffsetOutOfRange: its files are changing just now.
            LogDirectoryError: it is gone.
        """
        self.log(topic, partition)
        state = self._topics[topic]
        log = self._read_only_log(state, partition)
        start = self._catalog.log_start_offsets().get(partition_folder(state.topic_id, partition))
        log.advance_start(min(start or 0, log.log_end_offset))
        state.partitions[partition] = log
        return log

    def remove_retired(self, paths: Iterable[str]) -> None:
        """Remove files that `PartitionLog.retire` has renamed; what can't be is left for later."""
        self._folders.remove_files(paths)

    def next_producer_id(self) -> int:
        """Return the first producer id that no log of the directory knows."""
        producers = [log.producers for log in self._logs().values()]
        return 1 + max((max(each.last_offsets(), default=-1) for each in producers), default=-1)

    # ---- the broker's own ----

    def open_own_log(self, name: str, config: TopicConfig) -> PartitionLog:
        """A log that is no topic's, made if there is none; whoever opens it closes it.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self._check_writable()
        folder = f"{self.path}/{name}-0"
        with self._disk():
            try:
                self._files.list(folder)
            except FileNotFoundError:
                log = PartitionLog.create(self._files, folder, name=f"{name}-0", config=config)
                self._files.sync_directory(self.path)
                return log
        return PartitionLog.open(self._files, folder, name=f"{name}-0", config=config)

    def write_listener(self, host: str, port: int) -> None:
        """Tell processes that find the directory locked where to connect; on a full disk later.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self._check_writable()
        with self._disk():
            self._listener.write(host, port)

    @staticmethod
    def read_listener(path: str, *, files: Files | None = None) -> tuple[str, int] | None:
        """Host and port of the process that holds a directory; None if it does not listen (yet).

        Raises:
            LogDirectoryError: the disk refused.
            CorruptData: what is written there is damaged.
        """
        try:
            return Catalog(OsFiles() if files is None else files, path).listener()
        except OSError as error:
            raise directory_error(error, path) from error

    def flush(self) -> None:
        """Return when everything in every partition is on disk.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self._check_writable()
        for log in self._logs().values():
            log.flush()
        self.write_checkpoints()

    def write_checkpoints(self, *, if_changed: bool = False) -> None:
        """Keep up to where logs are synced, and from where on they have anything.

        Raises:
            LogDirectoryError: the disk refused.
        """
        job = self.begin_checkpoints(if_changed=if_changed)
        if job is not None:
            job.result()

    def begin_checkpoints(self, *, if_changed: bool = False) -> OffloadedJob[None] | None:
        """The same for what holds by now, as a job for any thread; None if it was kept before."""
        taken = self._checkpoints.take(self._logs())
        if if_changed and self._checkpoints.is_kept(taken) and not self._listener.is_write_pending:
            return None
        return OffloadedJob(partial(self._keep_checkpoints, taken))

    def _keep_checkpoints(self, taken: CheckpointsTaken) -> None:
        with self._disk():
            self._checkpoints.keep(taken)
            self._listener.settle()
            self._files.reserve.renew(self._files)

    def lacks_room(self) -> bool:
        """Whether logs are refused room, and still would be."""
        return self._files.reserve.look(self._files)

    def failure_of(self, error: OSError) -> LogDirectoryError:
        """What an error of the disk means."""
        return directory_error(error, self.path)

    def fail(self, failure: LogDirectoryError) -> None:
        """Take nothing more: a sync has failed, and nobody knows what the disk has."""
        self._failure = failure
        for log in self._logs().values():
            log.fail(failure)

    def check(self) -> None:
        """Whether it can still be used: a log that nobody writes to would not notice.

        Raises:
            LogDirectoryLost: it has been deleted.
            LogDirectoryFailed: the disk has failed.
        """
        if self._failure is not None:
            raise self._failure
        if self._lock is not None and not self._lock.linked():
            raise LogDirectoryLost(
                f"{self.path} has vanished while it was in use: the log stops here; put the "
                "data directory back in its place, or start with a new one"
            )

    def close(self) -> None:
        """Bring everything to disk, leave the mark of a clean shutdown, release the lock.

        Raises:
            LogDirectoryError: the disk refused, or the directory is gone; everything is closed
                and the lock released, and the next opening recovers.
        """
        if self._closed:
            return
        failures: list[StreamlogError] = []
        logs = list(self._logs().values())
        try:
            for log in logs:
                try:
                    log.close()
                except StreamlogError as error:
                    failures.append(error)
            if failures:
                raise failures[0]
            if self._lock is not None:
                self.check()
                self._close_in_order(whole=all(log.whole for log in logs))
        finally:
            self._discard()

    def _close_in_order(self, *, whole: bool) -> None:
        with self._disk():
            self._checkpoints.keep(self._checkpoints.take(self._logs()))
            self._catalog.remove_listener()
            if whole:
                ends = {folder: log.end for folder, log in self._logs().items()}
                self._catalog.mark_clean(ends, broker_epoch=self.broker_epoch)

    def _discard(self) -> None:
        self._closed = True
        for log in self._logs().values():
            log.discard()
        if self._lock is not None:
            self._lock.close()

    def _hold(self, lock: File, wall_ms: int) -> None:
        holder = json.dumps({"process_id": process_id(), "since_ms": wall_ms})
        with unless_full("who holds the directory"):
            lock.truncate(0)
            write_whole(lock, holder.encode(), 0)

    def _open(self) -> None:
        names = set(self._files.list(self.path))
        self._identify(names)
        if not self._catalog.knows_topics():
            self._folders.check_owned()
        ends, self.previous_broker_epoch = self._catalog.take_clean_mark()
        self._catalog.remove_listener()
        entries, self._deleting = self._catalog.topics()
        checkpoints = self._checkpoints.read(entries)
        for entry in entries:
            self._open_topic(entry, checkpoints, names, ends)
        with unless_full("that topics are deleted"):
            self._finish_deletions()
        self._folders.remove_unfinished(names, (t.topic_id for t in self._topics.values()))
        self._folders.log_strays(names)
        self._files.reserve.hold(self._files, self.path)
        with unless_full("a checkpoint"):
            self._checkpoints.keep(self._checkpoints.take(self._logs()))
        warn_of_unwritten_indexes(
            self.path, sum(log.has_unwritten_indexes for log in self._logs().values())
        )

    def _open_read_only(self) -> None:
        identity = self._catalog.identity()
        if identity is None:
            raise LogDirectoryLost(f"{self.path} is no data directory of a log: it has no {META}")
        self.cluster_id, self.directory_id = identity.cluster_id, identity.directory_id
        self.node_id = identity.node_id
        if not self._catalog.knows_topics():
            self._folders.check_owned()
        entries, _ = self._catalog.topics()
        # Read first: who is at work may go beyond it meanwhile.
        self._least_ends = self._catalog.least_ends()
        for entry in entries:
            logs = {number: self._read_only_log(entry, number) for number in entry.partitions}
            self._topics[entry.name] = topic_state(entry, logs, self._config.topic)
        # Read last: a log may have been cut since, but what it begins with was there.
        starts = self._catalog.log_start_offsets()
        for topic in self._topics.values():
            for number, log in topic.partitions.items():
                start = starts.get(partition_folder(topic.topic_id, number), 0)
                log.advance_start(min(start, log.log_end_offset))

    def _read_only_log(self, topic: TopicEntry | TopicState, number: int) -> PartitionLog:
        return PartitionLog.open(
            self._files,
            f"{self.path}/{partition_folder(topic.topic_id, number)}",
            name=f"{topic.name}-{number}",
            config=self._config.topic,
            read_only=True,
        )

    def _identify(self, names: set[str]) -> None:
        identity = identify_directory(self._catalog, self.path, names, self._config)
        self.cluster_id, self.directory_id = identity.cluster_id, identity.directory_id
        self.rejoins = identity.rejoins

    def _open_topic(
        self,
        entry: TopicEntry,
        checkpoints: Mapping[str, LogCheckpoint],
        names: set[str],
        ends: Mapping[str, SegmentEnd] | None,
    ) -> None:
        config = self._config.topic.overridden(entry.configs)
        logs: dict[int, PartitionLog] = {}
        self._topics[entry.name] = topic_state(entry, logs, config)
        for number in entry.partitions:
            folder = partition_folder(entry.topic_id, number)
            point, start, mark = checkpoints[folder]
            end = None if ends is None else ends.get(folder)
            if folder not in names:
                # It was there before the topic was. That it ends before offset 1 is damage.
                self._files.make_directory(f"{self.path}/{folder}")
                point, end = max(point, 1), None
            logs[number] = PartitionLog.open(
                self._files,
                f"{self.path}/{folder}",
                name=f"{entry.name}-{number}",
                config=config,
                clean=ends is not None,
                end=end,
                recovery_point=point,
                log_start_offset=start,
                rolls=self.rolls,
            )
            # Committed by others, and kept, while it was not on this disk yet: what was lost of it
            # is not committed here, and what comes in its place is so only when the leader says so.
            logs[number].high_watermark = min(mark, logs[number].log_end_offset)

    def _check_writable(self) -> None:
        if self._lock is None:
            raise UsageError(f"{self.path} was opened for reading only")
        if self._closed:
            raise UsageError(f"{self.path} has been closed")
        if self._failure is not None:
            raise self._failure

    def _writable(self, name: str) -> TopicState:
        self._check_writable()
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        return topic

    def _write_topics(self, topics: Iterable[TopicState]) -> None:
        self._catalog.write_topics([each.entry() for each in topics], self._deleting)

    def _logs(self) -> dict[str, PartitionLog]:
        """Every partition by its folder."""
        return {
            partition_folder(topic.topic_id, number): log
            for topic in self._topics.values()
            for number, log in topic.partitions.items()
        }

    def _finish_deletions(self) -> None:
        """Delete the folders of topics that are not in `topics.json` any more."""
        if not self._deleting:
            return
        self._folders.delete(self._deleting)
        deleting, self._deleting = self._deleting, set()
        try:
            self._write_topics(self._topics.values())
        except OSError:
            self._deleting = deleting
            raise

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise directory_error(error, self.path) from error
