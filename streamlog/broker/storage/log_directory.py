"""LogDirectory: all partitions of one broker, and the locks on its directories.

A broker has one directory, or several on different disks (`volumes`): what follows is about the
first, and about partition folders in any of them.

The metadata log (`quorum`) decides which topics exist. `topics.json` lists the topics that have
partitions here (`TopicState`). The first append to a partition makes its folder; folders are
deleted after they are removed from the list. The first process to open the directory holds its
lock; another process gets an error with the holder's address. With `read_only` nothing is locked or
changed, and a broker may be writing.

Rules of this module: opening after a clean shutdown scans nothing, any other opening scans what may
be torn; while anything is damaged, no shutdown counts as clean. Not done here: what checkpoints
contain (`checkpoints`), the copies of partitions that move to another directory (`log_moves`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

from streamlog import repeated
from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.catalog import (
    META,
    NO_BROKER_EPOCH,
    AlteredSettings,
    Catalog,
    DirectoryIds,
    Identity,
    ListenerFile,
    TopicEntry,
    deletion_key,
    new_topic_id,
)
from streamlog.broker.storage.checkpoints import (
    CheckpointsTaken,
    LogCheckpoint,
    LogCheckpoints,
    future_key,
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
    unless_full,
    warn_of_unwritten_indexes,
)
from streamlog.broker.storage.disk.offload import OffloadedJob
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log.segment import Damage, SegmentEnd
from streamlog.broker.storage.log.segments import RollBudget
from streamlog.broker.storage.topic_state import (
    HostedTopic,
    TopicState,
    arrived,
    check_partition_count,
    check_topic_name,
    retargeted,
    topic_state,
)
from streamlog.broker.storage.volumes import (
    Volume,
    Volumes,
    close_logs,
    end_recovery,
    lock_directory,
    open_volume,
)
from streamlog.errors import (
    LogDirectoryError,
    LogDirectoryFailed,
    LogDirectoryFull,
    LogDirectoryLost,
    StreamlogError,
    TopicExists,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.metrics.registry import Registry
from streamlog.replace import replace

_logger = repeated.logger(__name__)


class LogDirectory:
    """The data directory of one broker, or its directories; call `open`."""

    def __init__(self, files: Files, path: str, *, config: BrokerConfig, lock: File | None) -> None:
        self.path = path
        """The first directory."""
        self.cluster_id = ""
        self.node_id = config.node_id
        self.directory_id = ""
        self.rejoins = False
        """Whether the node existed before, with a directory that is lost."""
        self.previous_broker_epoch = self.broker_epoch = NO_BROKER_EPOCH
        """The epochs of the broker process that closed the directory in order, and of this one."""
        self.rolls: RollBudget[PartitionLog] = RollBudget()
        """Limits the segments that logs roll at once."""
        self.metrics = Registry()
        """The metrics of this broker; every part of it declares its own here."""
        self.staging = Staging(files, path)
        """The files of jobs that are not published yet."""
        self._files = files
        self._given_config = config
        self._config = config
        self._altered = AlteredSettings()
        self._lock = lock
        self._catalog = Catalog(files, path)
        self.directory_ids = DirectoryIds(self._catalog, path, new_topic_id)
        """The ids by which the controller detects an older copy of this directory."""
        self._folders = Folders(files, path)
        self.volumes = Volumes(Volume(files, path, lock=lock))
        """The directories, each on a disk of its own."""
        self._checkpoints = LogCheckpoints(self._catalog)
        self.listener = ListenerFile(self._catalog)
        self._minimum_ends: Mapping[str, int] = {}
        self._topics: dict[str, TopicState] = {}
        self._copied: dict[str, int] = {}
        """The recovery points of copies in other directories, by `future_key`."""
        self._deleting: set[str] = set()
        """What is still to be deleted from the disk (`catalog.deletion_key`)."""
        self._failure: LogDirectoryError | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str,
        *,
        others: Sequence[str] = (),
        files: Files | None = None,
        config: BrokerConfig | None = None,
        wall_ms: int = 0,
        read_only: bool = False,
    ) -> LogDirectory:
        """Open a data directory, create it if it does not exist, and recover from a crash.

        `others` are further directories of the broker, on other disks; with `read_only` they are
        found by their paths in the first. `files` defaults to the operating system's, `config` to
        the defaults; `wall_ms` is written to the lock files. With `read_only` the directory must
        exist, and may be in use; logs end where they ended when they were opened.

        Raises:
            LogDirectoryLocked: another process holds it; the message has its address.
            LogDirectoryLost: it is not a data directory, or an essential file is missing.
            LogDirectoryFailed: the disk refused.
            CorruptData: one of its small files is damaged.
            ConfigError: it belongs to another `node_id`.
        """
        files = OsFiles() if files is None else files
        config = BrokerConfig() if config is None else config
        path = path.rstrip("/") or ("/" if path else ".")
        if read_only:
            directory = cls(files, path, config=config, lock=None)
            with directory._disk():
                directory._open_read_only()
            return directory
        lock = lock_directory(files, path, wall_ms)
        directory = cls(files, path, config=config, lock=lock)
        try:
            with directory._disk():
                directory._open([each.rstrip("/") or "/" for each in others], wall_ms)
        except BaseException:
            directory._discard()
            raise
        return directory

    @property
    def topics(self) -> Mapping[str, TopicState]:
        """The topics with partitions here, by name."""
        return MappingProxyType(self._topics)

    @property
    def config(self) -> BrokerConfig:
        """The effective settings of the broker."""
        return self._config

    @property
    def given_config(self) -> BrokerConfig:
        """The settings that the broker was started with."""
        return self._given_config

    @property
    def altered(self) -> AlteredSettings:
        """The settings that were altered while the broker ran."""
        return self._altered

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged ranges of all partitions found so far."""
        return tuple(finding for log in self._every_log() for finding in log.damage)

    def log(self, topic: str, partition: int) -> PartitionLog:
        """Return the log of a partition.

        Raises:
            UnknownTopicOrPartition: the partition is not here.
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
        """Create a topic; it exists durably when this returns.

        Raises:
            TopicExists: the name is taken.
            LogError: with Kafka's code, the name or the number of partitions is not allowed.
            ConfigError: a setting is unknown or out of range.
            LogDirectoryError: the disk refused; the topic does not exist.
        """
        self._check_writable()
        check_topic_name(name)
        if name in self._topics:
            raise TopicExists(f"topic {name!r} already exists")
        check_partition_count(name, partitions, least=1)
        self.host([HostedTopic(name, topic_id or new_topic_id(), range(partitions), configs or {})])
        return self._topics[name]

    def host(self, hosted: Iterable[HostedTopic]) -> None:
        """Create the logs of these partitions, unless they exist, with one write of the topics.

        Raises:
            ConfigError: a setting of a topic is unknown or out of range.
            LogDirectoryError: the disk refused; nothing was created.
        """
        self._check_writable()
        grown: list[tuple[TopicState, list[int]]] = []
        for each in hosted:
            topic = self._topics.get(each.name)
            if topic is None:
                topic = TopicState(
                    name=each.name,
                    topic_id=each.topic_id,
                    partitions={},
                    configs=dict(each.configs),
                    config=self._config.topic.override(each.configs),
                )
            if missing := sorted({*each.numbers} - {*topic.partitions}):
                grown.append((topic, missing))
        if grown:
            self._add_partitions(grown)

    def _add_partitions(self, topics: Sequence[tuple[TopicState, Iterable[int]]]) -> None:
        """Add these partitions to the topics, durably, all or none."""
        counts = self._counts() if len(self.volumes) > 1 else Counter[Volume]()
        with self._disk():
            self._finish_deletions()  # A partition that returns must not find its old files.
            grown = {
                topic.name: self._grown(topic, self._placed(topic.name, numbers, counts))
                for topic, numbers in topics
            }
            self._write_topics([*{**self._topics, **grown}.values()])
        self._topics |= grown

    def _grown(self, topic: TopicState, placed: Mapping[int, Volume]) -> TopicState:
        """Return a topic with more partitions, whose logs are empty."""
        logs = {
            number: self._empty_log(topic, number, volume, topic.config)
            for number, volume in placed.items()
        }
        directories = {
            number: volume.directory_id
            for number, volume in placed.items()
            if volume is not self.volumes.first
        }
        logs, directories = topic.partitions | logs, {**topic.directories, **directories}
        return replace(topic, partitions=logs, directories=directories)

    def _empty_log(
        self, topic: TopicState | TopicEntry, number: int, volume: Volume, config: TopicConfig
    ) -> PartitionLog:
        path = f"{volume.path}/{partition_folder(topic.topic_id, number)}"
        name = f"{topic.name}-{number}"
        log = PartitionLog.create(volume.files, path, name=name, config=config, rolls=self.rolls)
        self._watch(volume, log)
        return log

    def _placed(
        self, topic: str, numbers: Iterable[int], counts: Counter[Volume]
    ) -> dict[int, Volume]:
        """Return the directories of new partitions; `counts` has the partitions in each."""
        if len(self.volumes) == 1:
            return dict.fromkeys(numbers, self.volumes.first)
        cordoned = self._config.cordoned_directories
        placed = self.volumes.choose(topic, numbers, counts, cordoned)
        counts.update(placed.values())  # Those of the next topic are placed with these in mind.
        return placed

    def partition_bytes(self, topic: str, partition: int) -> int:
        """Return the bytes of a partition's segments on disk.

        Raises:
            UnknownTopicOrPartition: the partition is not here.
            LogDirectoryError: the disk refused.
        """
        volume = self.volume_of(topic, partition)
        with self._disk():
            return volume.folders.size_bytes(
                partition_folder(self._topics[topic].topic_id, partition)
            )

    def copy_bytes(self, topic: str, partition: int, volume: Volume) -> int:
        """Return the bytes of a partition's copy in another directory; 0 before it has begun.

        Raises what `partition_bytes` raises.
        """
        folder = partition_folder(self._topics[topic].topic_id, partition)
        with self._disk():
            return volume.folders.size_bytes(folder)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its files.

        Raises:
            UnknownTopicOrPartition: the topic is not here.
            LogDirectoryError: the disk refused; the next opening finishes a deletion that has
                begun.
        """
        topic = self._writable(name)
        with self._disk():
            self._forget(topic, (), {deletion_key(topic.topic_id)})
            self._finish_deletions()

    def delete_partitions(self, name: str, numbers: Iterable[int]) -> None:
        """Delete some of a topic's partitions here; other brokers have them.

        Raises what `delete_topic` raises.
        """
        topic = self._writable(name)
        gone = {*numbers} & {*topic.partitions}
        with self._disk():
            left = {*topic.partitions} - gone
            self._forget(topic, left, {deletion_key(topic.topic_id, number) for number in gone})
            self._finish_deletions()

    def keep_stray(self, name: str) -> None:
        """Keep the folders of a topic that the cluster does not know, under unused names.

        Raises what `delete_topic` raises.
        """
        topic = self._writable(name)
        with self._disk():
            for log in topic.partitions.values():
                log.close()
            for copied, number, volume in [*self.moves(), *self.leftovers()]:
                if copied == name and volume.failure is None:
                    volume.folders.delete({deletion_key(topic.topic_id, number)})
            # Folders first: after a crash between the steps, a topic that is listed without folders
            # begins anew, and its records are safe under the other names.
            kept = [
                self._volume(topic, number).folders.rename_stray(
                    partition_folder(topic.topic_id, number)
                )
                for number, log in topic.partitions.items()
                if log.has_folder
            ]
            self._forget(topic, (), set())
        _logger.warning(
            "topic %s is unknown to the cluster: its partitions are kept as %s in %s; remove them"
            " if nothing in them is needed",
            *(name, ", ".join(kept) or "nothing", ", ".join(each.path for each in self.volumes)),
        )

    def count_strays(self) -> int:
        """Count the stray folders, whose topics the cluster did not know.

        Raises:
            LogDirectoryError: the disk refused.
        """
        with self._disk():
            return sum(len(strays(each.files.list(each.path))) for each in self.volumes.working())

    def _forget(self, topic: TopicState, left: Collection[int], keys: set[str]) -> None:
        """Keep only the partitions `left` of a topic; the others are marked for deletion."""
        logs = {number: log for number, log in topic.partitions.items() if number in left}
        others = {name: each for name, each in self._topics.items() if each is not topic}
        if logs:
            others[topic.name] = replace(topic, partitions=logs)
        self._deleting |= keys
        # One write of `topics.json` removes the partitions from the list and records that their
        # folders must go. After it, a crash at any time is finished by `_finish_deletions`.
        try:
            self._write_topics(others.values())
        except OSError:
            # The next write of the list must not delete what still exists.
            self._deleting -= keys
            raise
        self._topics = others
        for number, log in topic.partitions.items():
            if number not in logs:
                log.discard()

    def alter_topic(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace the settings given for a topic, at once and durably.

        Raises:
            UnknownTopicOrPartition: the topic is not here.
            ConfigError: a setting is unknown or out of range; nothing was changed.
            LogDirectoryError: the disk refused; nothing was changed.
        """
        topic = self._writable(name)
        config = self._config.topic.override(configs)
        after = replace(topic, configs=dict(configs), config=config)
        others = {**self._topics, name: after}
        with self._disk():
            self._write_topics(others.values())
        self._take_topic(after)

    def take_settings(self, altered: AlteredSettings) -> None:
        """Use these altered settings of the broker from now on.

        Raises:
            ConfigError: a setting is unknown or out of range; nothing was changed.
        """
        given = self._given_config
        config = given.override(altered.default).override(altered.node)
        self._config, self._altered = config, altered
        for topic in list(self._topics.values()):
            self._take_topic(replace(topic, config=config.topic.override(topic.configs)))

    def _take_topic(self, topic: TopicState) -> None:
        self._topics[topic.name] = topic
        for log in topic.partitions.values():
            log.configure(topic.config)

    def minimum_end(self, topic: str, partition: int) -> int:
        """Return the offset that a log reaches at least, for a directory that is read only.

        If the log ends before it, its last batches are damaged or were cut off.

        Raises:
            UnknownTopicOrPartition: the partition is not here.
        """
        self.log(topic, partition)
        folder = partition_folder(self._topics[topic].topic_id, partition)
        return self._minimum_ends.get(folder, 0)

    def reopen(self, topic: str, partition: int) -> PartitionLog:
        """Open a log again as its files are now, for a directory that is read only.

        Raises:
            UnknownTopicOrPartition: the partition is not here.
            OffsetOutOfRange: its files are changing right now.
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
        """Remove files that `PartitionLog.retire` has renamed; the next start retries failures."""
        self._folders.remove_files(paths)

    def next_producer_id(self) -> int:
        """Return the first producer id that no log of the directory knows."""
        producers = [log.producers for log in self._logs().values()]
        return 1 + max((max(each.last_offsets(), default=-1) for each in producers), default=-1)

    # Partitions that move to another directory, see `replication.future_log`.

    def moves(self) -> list[tuple[str, int, Volume]]:
        """Return the partitions that move to another directory, and which one."""
        found = []
        for topic in self._topics.values():
            for number, directory_id in topic.futures.items():
                volume = self.volumes.of(directory_id)
                if volume is not None and number in topic.partitions:
                    found.append((topic.name, number, volume))
        return found

    def future_of(self, topic: str, partition: int) -> Volume | None:
        """Return the directory that a partition moves to; None if it does not move."""
        state = self._topics.get(topic)
        target = None if state is None else state.futures.get(partition)
        return None if target is None else self.volumes.of(target)

    def leftovers(self) -> list[tuple[str, int, Volume]]:
        """Return the copies of partitions to delete, on disks that work."""
        return [
            (topic.name, number, volume)
            for topic in self._topics.values()
            for number, directories in topic.leaving.items()
            for volume in self.volumes.working()
            if volume.directory_id in directories and number in topic.partitions
        ]

    def plan_moves(self, targets: Mapping[tuple[str, int], Volume]) -> None:
        """Durably note that partitions move to other directories.

        The directory in which a partition is ends its move.

        Raises:
            UnknownTopicOrPartition: a partition is not here.
            LogDirectoryError: the disk refused; nothing was changed.
        """
        changed = dict(self._topics)
        for (name, number), target in targets.items():
            present = self.volume_of(name, number)
            ids = (present.directory_id, target.directory_id)
            changed[name] = retargeted(changed[name], {number: ids})
            if changed[name].futures != self._topics[name].futures:
                self.note_copied(name, number, None)
        self._replace_topics(changed)

    def end_move(self, topic: str, partition: int, log: PartitionLog) -> PartitionLog:
        """Durably make the copy the partition's log; return the one that it replaces.

        Raises:
            LogDirectoryError: the disk refused; the partition stays where it is.
        """
        state, present = self._writable(topic), self.volume_of(topic, partition)
        moved = arrived(state, partition, present.directory_id, self.directory_id)
        self._replace_topics({**self._topics, topic: moved})
        # In place: the list names the directory, so from here on this is the partition's log.
        replaced, moved.partitions[partition] = moved.partitions[partition], log
        self.note_copied(topic, partition, None)
        log.succeed(replaced, self.rolls)
        self._watch(self._volume(moved, partition), log)
        return replaced

    def forget_leftover(self, topic: str, partition: int, volume: Volume) -> None:
        """Note durably that a copy was deleted. Raises what `plan_moves` raises."""
        state = self._topics.get(topic)
        if state is not None and partition in state.leaving:
            left = tuple(n for n in state.leaving[partition] if n != volume.directory_id)
            kept = replace(state, leaving={**state.leaving, partition: left})
            self._replace_topics({**self._topics, topic: kept})

    def note_copied(self, topic: str, partition: int, recovery_point: int | None) -> None:
        """Note up to where a copy is on disk, for the next checkpoint; None if there is none."""
        key = future_key(self._topics[topic].topic_id, partition)
        if recovery_point is None:
            self._copied.pop(key, None)
        else:
            self._copied[key] = recovery_point

    def copied_point(self, topic: str, partition: int) -> int:
        """Return up to where a copy is known to be on disk."""
        return self._copied.get(future_key(self._topics[topic].topic_id, partition), 0)

    def _copied_points(self) -> dict[str, int]:
        keys = {
            future_key(topic.topic_id, number)
            for topic in self._topics.values()
            for number in topic.futures
        }
        return {key: point for key, point in self._copied.items() if key in keys}

    def _replace_topics(self, topics: dict[str, TopicState]) -> None:
        with self._disk():
            self._write_topics(topics.values())
        self._topics = topics

    # The broker's own logs and files.

    def open_own_log(self, name: str, config: TopicConfig) -> PartitionLog:
        """Open a log that belongs to no topic, and create it if needed; the caller closes it.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self._check_writable()
        folder = f"{self.path}/{name}-0"
        with self._disk():
            try:
                self._files.list(folder)
            except FileNotFoundError:
                # Not listed in `topics.json`: its owner knows its name, and finds it by that.
                self._files.make_directory(folder)
                log = PartitionLog.create(self._files, folder, name=f"{name}-0", config=config)
                self._files.sync_directory(self.path)
                return log
        return PartitionLog.open(self._files, folder, name=f"{name}-0", config=config)

    def write_listener(self, host: str, port: int) -> None:
        """Write the broker's address for processes that find the lock taken.

        On a full disk, it is written later.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self._check_writable()
        with self._disk():
            self.listener.write(host, port)

    def flush(self) -> None:
        """Sync all partitions.

        Raises:
            LogDirectoryError: the disk refused.
        """
        self._check_writable()
        for topic in self._topics.values():
            for number, log in topic.partitions.items():
                if self._volume(topic, number).failure is None:
                    log.flush()
        self.write_checkpoints()

    def write_checkpoints(self, *, if_changed: bool = False) -> None:
        """Write the checkpoints of all logs durably, or only if they have changed.

        Raises:
            LogDirectoryError: the disk refused.
        """
        job = self.begin_checkpoints(if_changed=if_changed)
        if job is not None:
            job.result()

    def begin_checkpoints(self, *, if_changed: bool = False) -> OffloadedJob[None] | None:
        """Take the checkpoints, and return the job that writes them; None if they are unchanged."""
        copied = self._copied_points()
        may_skip = if_changed and not self.listener.is_write_pending
        if may_skip and self._checkpoints.are_current(self._every_log(), copied):
            return None
        taken = self._checkpoints.take(self._logs(), copied)
        if may_skip and self._checkpoints.is_kept(taken):
            return None
        return OffloadedJob(partial(self._keep_checkpoints, taken))

    def _keep_checkpoints(self, taken: CheckpointsTaken) -> None:
        with self._disk():
            self._checkpoints.keep(taken)
            self.listener.settle()
            for volume in self.volumes.working():
                self._renew_reserve(volume)

    def _renew_reserve(self, volume: Volume) -> None:
        try:
            with self._volume_errors(volume):
                volume.files.reserve.renew(volume.files)
        except LogDirectoryError:
            if volume.failure is None:
                raise

    @contextmanager
    def _volume_errors(self, volume: Volume) -> Iterator[None]:
        """Raise system errors as errors of a directory, and fail one whose disk has failed."""
        try:
            try:
                yield
            except OSError as error:
                raise directory_error(error, volume.path) from error
        except LogDirectoryFailed as failure:
            is_broken = not isinstance(failure, LogDirectoryFull)
            if is_broken and volume is not self.volumes.first:
                self.fail_volume(volume, failure)
            raise

    def lacks_room(self) -> bool:
        """Whether logs were refused space, and a disk is still full."""
        return any(each.files.reserve.look(each.files) for each in self.volumes.working())

    def failure_of(self, error: OSError) -> LogDirectoryError:
        """Return what a disk error means for the directory."""
        return directory_error(error, self.path)

    @property
    def failure(self) -> LogDirectoryError | None:
        """Why nothing more is accepted; None while the first disk works."""
        return self._failure

    def fail(self, failure: LogDirectoryError) -> None:
        """Accept nothing more: a sync has failed, and the contents of the disk are unknown."""
        self._failure = failure
        for log in self._logs().values():
            log.fail(failure)

    def fail_volume(self, volume: Volume, failure: LogDirectoryError) -> None:
        """Accept nothing more in one directory; callable from any thread.

        The partitions in it stay listed, and are there again after a start on which the disk works.
        Without its first directory, the broker can't go on.
        """
        if volume is self.volumes.first:
            self.fail(failure)
            return
        if volume.failure is not None:
            return
        volume.failure = failure
        _logger.critical(
            "the disk of %s failed: its partitions are offline until the broker starts again"
            " without error, and other directories serve on: %s",
            *(volume.path, failure),
        )
        for name, number in self.partitions_in(volume):
            self._topics[name].partitions[number].fail(failure)

    def partitions_in(self, volume: Volume) -> list[tuple[str, int]]:
        """Return the partitions in a directory."""
        return [
            (topic.name, number)
            for topic in list(self._topics.values())
            for number in list(topic.partitions)
            if self._volume(topic, number) is volume
        ]

    def check_online(self, topic: str, partition: int) -> None:
        """Check that the disk of a partition has not failed, if the partition is here.

        Raises:
            LogDirectoryError: it has.
        """
        state = self._topics.get(topic)
        if state is None or partition not in state.partitions:
            return
        failure = self._volume(state, partition).failure
        if failure is not None:
            raise failure

    def _watch(self, volume: Volume, log: PartitionLog) -> None:
        """Fail the directory when its disk fails, unless it is the only one or the first."""
        # Errors of the first disk are handled as those of the only one: a write that it refuses is
        # answered with an error, and a sync that fails ends the broker.
        if volume is not self.volumes.first:
            log.watch_disk(partial(self.fail_volume, volume))

    def check(self) -> None:
        """Check that the directory is usable; a log without writes would not notice.

        Raises:
            LogDirectoryLost: it has been deleted.
            LogDirectoryFailed: the disk has failed.
        """
        if self._failure is not None:
            raise self._failure
        for volume in self.volumes.working():
            try:
                volume.check()
            except LogDirectoryLost as error:
                if volume is self.volumes.first:
                    raise
                self.fail_volume(volume, error)

    def close(self) -> None:
        """Sync everything, mark the shutdown as clean, and release the lock.

        Raises:
            LogDirectoryError: the disk refused, or the directory is gone; everything is closed
                and the lock released, and the next opening recovers.
        """
        if self._closed:
            return
        failures: list[StreamlogError] = []
        try:
            for volume in self.volumes:
                if volume.failure is None:
                    failures += close_logs(
                        volume, [self.log(*p) for p in self.partitions_in(volume)]
                    )
            # One log that can't be closed leaves the shutdown unclean for all: the mark has no
            # exceptions.
            if failures:
                raise failures[0]
            if self._lock is not None:
                self.check()
                # Without a mark, the next start examines what a failed disk has.
                whole = all(log.is_whole for log in self._logs().values())
                self._close_in_order(whole=whole)
        finally:
            self._discard()

    def _close_in_order(self, *, whole: bool) -> None:
        # The mark comes last, after the checkpoints: it promises that they, and all files, are
        # right. Damaged logs get no mark, so the next opening scans and reports them again.
        with self._disk():
            self._checkpoints.keep(self._checkpoints.take(self._logs(), self._copied_points()))
            self._catalog.remove_listener()
            if whole:
                ends = {folder: log.end for folder, log in self._logs().items()}
                self._catalog.mark_clean(ends, broker_epoch=self.broker_epoch)

    def _discard(self) -> None:
        self._closed = True
        for log in self._logs().values():
            log.discard()
        self.volumes.close()

    def _open(self, others: Sequence[str], wall_ms: int) -> None:
        self._identify(set(self._files.list(self.path)))
        self._open_volumes(others, wall_ms)
        names = {volume: set(volume.files.list(volume.path)) for volume in self.volumes}
        if not self._catalog.knows_topics():
            for volume in self.volumes:
                volume.folders.check_owned()
        ends, self.previous_broker_epoch = self._catalog.take_clean_mark()
        self._catalog.remove_listener()
        entries, self._deleting = self._catalog.topics()
        checkpoints = self._checkpoints.read(entries)
        self._copied = self._checkpoints.recovery_points()
        placed = [self._placed_again(entry, names, checkpoints) for entry in entries]
        for entry in placed:
            self._open_topic(entry, checkpoints, names, ends)
        for volume in self.volumes:
            with self._volume_errors(volume):
                end_recovery(volume, [self.log(*each) for each in self.partitions_in(volume)])
        if placed != entries:
            self._write_topics(self._topics.values())
        with unless_full("the end of a deletion"):
            self._finish_deletions()
        for volume, found in names.items():
            self._tidy(volume, found)
        self._files.reserve.hold(self._files, self.path)
        with unless_full("a checkpoint"):
            self._checkpoints.keep(self._checkpoints.take(self._logs(), self._copied_points()))
        warn_of_unwritten_indexes(
            self.path, sum(log.has_unwritten_indexes for log in self._logs().values())
        )

    def _open_volumes(self, others: Sequence[str], wall_ms: int) -> None:
        """Open the other directories of the broker, and note where all of them are."""
        self.volumes.first.directory_id = self.directory_id
        known = self._catalog.directories()
        if not others and not known:
            return
        identity = Identity(
            cluster_id=self.cluster_id, node_id=self.node_id, directory_id=self.directory_id
        )
        for path in others:
            self.volumes.add(open_volume(self._files, path, identity, wall_ms=wall_ms))
        # Before a partition is placed: a reader of the first directory finds the others by this.
        paths = known | {each.directory_id: each.path for each in self.volumes}
        if paths != known:
            self._catalog.write_directories(paths)

    def _tidy(self, volume: Volume, names: set[str]) -> None:
        """Remove what an unfinished creation has left, and log what belongs to no partition."""
        volume.folders.remove_unfinished(names, (t.topic_id for t in self._topics.values()))
        listed = {
            partition_folder(topic.topic_id, number): self._volume(topic, number)
            for topic in self._topics.values()
            for number in topic.partitions
            # Not a copy of a partition that moves, or that has moved.
            if volume.directory_id
            not in (topic.futures.get(number), *topic.leaving.get(number, ()))
        }
        for name in sorted(names & listed.keys()):
            # A disk has returned that was missing, and its partition has begun anew elsewhere.
            if listed[name] is not volume:
                stray = volume.folders.rename_stray(name)
                names.add(stray)
                _logger.warning(
                    "%s/%s is an older copy of a partition in %s: it is kept as %s",
                    *(volume.path, name, listed[name].path, stray),
                )
        volume.folders.log_strays(names)

    def _volume(self, topic: TopicState | TopicEntry, number: int) -> Volume:
        """Return the directory of a partition."""
        volume = self.volumes.of(topic.directories.get(number))
        if volume is None:
            known = self._catalog.directories()
            missing = topic.directories[number]
            raise LogDirectoryLost(
                f"{topic.name}-{number} is in the directory with the id {missing}"
                f" ({known.get(missing, 'path unknown')}), which is not in log.dirs"
            )
        return volume

    def volume_of(self, topic: str, partition: int) -> Volume:
        """Return the directory of a partition.

        Raises:
            UnknownTopicOrPartition: the partition is not here.
        """
        self.log(topic, partition)
        return self._volume(self._topics[topic], partition)

    def _counts(self) -> Counter[Volume]:
        """Count the partitions in each directory."""
        return Counter(
            self._volume(topic, number)
            for topic in self._topics.values()
            for number in topic.partitions
        )

    def _open_read_only(self) -> None:
        identity = self._catalog.identity()
        if identity is None:
            raise LogDirectoryLost(f"{self.path} is not a data directory: it has no {META}")
        self.cluster_id, self.directory_id = identity.cluster_id, identity.directory_id
        self.node_id = identity.node_id
        if not self._catalog.knows_topics():
            self._folders.check_owned()
        self.volumes.first.directory_id = self.directory_id
        for directory_id, path in self._catalog.directories().items():
            if directory_id != self.directory_id:
                self.volumes.add(Volume(self._files, path, directory_id=directory_id))
        entries, _ = self._catalog.topics()
        # Before the logs: a broker at work may extend them after this.
        self._minimum_ends = self._catalog.minimum_ends()
        for entry in entries:
            logs = {number: self._read_only_log(entry, number) for number in entry.partitions}
            self._topics[entry.name] = topic_state(entry, logs, self._config.topic)
        # After the logs: a log start read here may be higher than the one in the log that was
        # opened, never lower.
        starts = self._catalog.log_start_offsets()
        for topic in self._topics.values():
            for number, log in topic.partitions.items():
                start = starts.get(partition_folder(topic.topic_id, number), 0)
                log.advance_start(min(start, log.log_end_offset))

    def _read_only_log(self, topic: TopicEntry | TopicState, number: int) -> PartitionLog:
        volume = self._volume(topic, number)
        return PartitionLog.open(
            volume.files,
            f"{volume.path}/{partition_folder(topic.topic_id, number)}",
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
        names: Mapping[Volume, set[str]],
        ends: Mapping[str, SegmentEnd] | None,
    ) -> None:
        config = self._config.topic.override(entry.configs)
        logs: dict[int, PartitionLog] = {}
        self._topics[entry.name] = topic_state(entry, logs, config)
        for number in entry.partitions:
            folder = partition_folder(entry.topic_id, number)
            point, start, mark = checkpoints[folder]
            end = None if ends is None else ends.get(folder)
            volume = self._volume(entry, number)
            if folder not in names[volume]:
                if point or (end is not None and end.next_offset):
                    # It had synced records, so its folder was lost. A recovery point of 1 makes an
                    # empty log count as damaged.
                    volume.files.make_directory(f"{volume.path}/{folder}")
                    point, end = max(point, 1), None
                elif not start:
                    logs[number] = self._empty_log(entry, number, volume, config)
                    continue
            logs[number] = PartitionLog.open(
                volume.files,
                f"{volume.path}/{folder}",
                name=f"{entry.name}-{number}",
                config=config,
                clean=ends is not None,
                end=end,
                recovery_point=point,
                log_start_offset=start,
                rolls=self.rolls,
                defers_sync=True,
            )
            self._watch(volume, logs[number])
            # The checkpoint may know of records that other brokers have committed and that were not
            # on this disk. Lost ones are not committed here; the leader says when others are.
            logs[number].high_watermark = min(mark, logs[number].log_end_offset)

    def _placed_again(
        self,
        entry: TopicEntry,
        names: Mapping[Volume, set[str]],
        checkpoints: dict[str, LogCheckpoint],
    ) -> TopicEntry:
        """Return a topic's entry with its partitions of lost directories placed in others.

        Their folders don't exist there, and their checkpoints now say that they had records, so
        their logs count as damaged: they are fetched again if other brokers have them.
        """
        # A move to a directory that is gone has ended.
        futures = {n: each for n, each in entry.futures.items() if self.volumes.of(each)}
        lost = [n for n, each in entry.directories.items() if self.volumes.of(each) is None]
        if not lost:
            return replace(entry, futures=futures)
        paths = self._catalog.directories()
        for number in lost:
            missing = entry.directories[number]
            _logger.critical(
                "%s-%d was in the directory with the id %s (%s), which is not there: it begins"
                " anew in another one",
                *(entry.name, number, missing, paths.get(missing, "path unknown")),
            )
            # A copy that was not complete must not pass for the partition.
            folder = partition_folder(entry.topic_id, number)
            point = max(checkpoints[folder].recovery_point, 1)
            checkpoints[folder] = checkpoints[folder]._replace(recovery_point=point)
            for volume, found in names.items():
                if folder in found:
                    found.discard(folder)
                    found.add(volume.folders.rename_stray(folder))
        kept = {n: each for n, each in entry.directories.items() if n not in lost}
        placed = {
            n: each.directory_id
            for n, each in self._placed(entry.name, lost, self._counts()).items()
        }
        first = self.directory_id
        return replace(
            entry,
            directories=kept | {n: each for n, each in placed.items() if each != first},
            futures={n: each for n, each in futures.items() if n not in lost},
            leaving={n: each for n, each in entry.leaving.items() if n not in lost},
        )

    def _check_writable(self) -> None:
        if self._lock is None:
            raise UsageError(f"{self.path} was opened for reading only")
        if self._closed:
            raise UsageError(f"{self.path} is closed")
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

    def _every_log(self) -> list[PartitionLog]:
        """Return all logs, in the order of `_logs`."""
        return [log for topic in self._topics.values() for log in topic.partitions.values()]

    def _logs(self) -> dict[str, PartitionLog]:
        """Return all logs by folder."""
        return {
            partition_folder(topic.topic_id, number): log
            for topic in self._topics.values()
            for number, log in topic.partitions.items()
        }

    def _finish_deletions(self) -> None:
        """Delete the folders of topics and partitions that `topics.json` lists for deletion."""
        if not self._deleting:
            return
        for volume in self.volumes.working():
            try:
                with self._volume_errors(volume):
                    volume.folders.delete(self._deleting)
            except LogDirectoryError:
                if volume.failure is None:
                    raise
        if len(self.volumes.working()) < len(self.volumes):
            return  # A start on which the failed disk works deletes what is on it.
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
