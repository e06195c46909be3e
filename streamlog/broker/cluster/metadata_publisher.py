"""MetadataPublisher: makes committed changes of the metadata take effect on this broker.

It creates and deletes logs, makes this broker lead or follow partitions, and applies settings,
users and ACLs. A batch of the metadata log is applied as a whole, in this order: live brokers,
settings, deletions, and then leaders and followers, each as of the end of the batch. A committed
change can't be refused any more: if the disk refuses it, that is logged, and the change is tried
again, at the latest at the next start.

Rule of the file: it deletes only what the metadata says is deleted or moved elsewhere. A topic that
the metadata does not know is kept under another name.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from streamlog import repeated
from streamlog.broker.quorum.metadata.cluster_metadata import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    AclsChanged,
    BrokerChanged,
    ConfigChanged,
    MetadataChange,
    PartitionChanged,
    QuotaChanged,
    TopicDeleted,
    UserChanged,
)
from streamlog.broker.replication.replica_state import ReplicaState
from streamlog.broker.storage.catalog import AlteredSettings
from streamlog.broker.storage.topic_state import HostedTopic
from streamlog.errors import LogDirectoryFull, StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.quorum.broker_lifecycle import PartitionKey
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata, TopicRegistration
    from streamlog.broker.quorum.metadata.registrations import PartitionRegistration
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.replication.replicas import Replicas
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.volumes import Volume

RETRY_MS = 1_000
"""The pause before logs that the disk has refused are created again."""
DAMAGE_CHECK_MS = 5_000
"""The interval of checks for damaged logs."""

_log = repeated.logger(__name__)


class Observers(msgspec.Struct, frozen=True, kw_only=True):
    """The callbacks for changes on this broker."""

    leading: Callable[[str, int], None]
    """This broker leads a partition from now on."""
    resigned: Callable[[str, int], None]
    """This broker no longer leads a partition."""
    deleting: Callable[[], None]
    """A log is about to be deleted: after this call, no job may use its files."""
    deleted: Callable[[], None]
    """A topic is deleted."""
    settings: Callable[[], None]
    """The broker's settings have changed."""
    users: Callable[[], None]
    """Users or credentials have changed."""
    acls: Callable[[], None]
    """ACLs have changed."""
    damaged: Callable[[Mapping[PartitionKey, int]], None]
    """Replicas lack records that they have counted, and other replicas have them."""
    offline: Callable[[Iterable[PartitionKey]], None]
    """The disk of replicas has failed."""
    mirrors: Callable[[], None]
    """Links or mirror topics have changed, or this broker leads others of their partitions."""


class MetadataPublisher:
    """Keeps a broker in the state that the metadata describes."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        directory: LogDirectory,
        partitions: Partitions,
        replicas: Replicas,
        observers: Observers,
    ) -> None:
        self._metadata = metadata
        self._directory = directory
        self._partitions = partitions
        self._replicas = replicas
        self._observers = observers
        self._incomplete: dict[str, None] = {}
        """Topics of which some logs could not be created."""
        self._damaged: set[tuple[str, int]] = set()
        """Partitions whose logs have reported damage."""
        self._damaged_in: dict[tuple[str, int], int] = {}
        """The leader epoch in which the damage was found."""
        self._has_mirrors = False
        """Whether there was a link or a mirror topic after the last batch of changes."""
        self._failed: set[Volume] = set()
        """The directories whose partitions are offline."""
        self._retry_ms: int | None = None
        self._look_ms: int | None = None
        """When to check for damage; None while no partition has replicas on other brokers."""

    def begin(self, broker_epoch: int) -> None:
        """Apply the metadata as a whole, before the first change.

        `broker_epoch` is the epoch of this broker's registration, which the metadata includes.
        After another registration of the same process, call it again.

        Raises:
            ConfigError: a setting is unknown here or out of range.
            LogDirectoryError: the disk refused.
        """
        metadata, directory = self._metadata, self._directory
        self._replicas.register(broker_epoch, broker_epoch)
        self._set_brokers()
        directory.take_settings(self._settings())
        for name, state in list(directory.topics.items()):
            with self._full_disk(name):
                self._check_topic(name, state.topic_id)
        for topic in metadata.topics.values():
            with self._full_disk(topic.name):
                self._host(topic)
        for topic, number, partition in metadata.partitions():
            if directory.node_id in partition.replicas:
                self._apply_partition(topic.name, number, partition)
        self._look_for_damage(has_fetched=False)
        self._observers.settings()
        self._observers.users()
        self._observers.acls()
        self._observers.mirrors()

    def apply(self, changes: Iterable[MetadataChange]) -> None:
        """Apply a committed batch of changes."""
        changes = list(changes)
        # Brokers first: a leader that this batch elects must know which followers are alive.
        if _some(changes, BrokerChanged):
            self._set_brokers()
        self._apply_settings(changes)
        for change in changes:
            if isinstance(change, TopicDeleted):
                self._delete(change.name, change.topic_id)
        partitions = dict.fromkeys(_partition_keys(changes))
        with collector_paused():
            self._host_new(partitions)
            for topic_id, number in partitions:
                self._update_partition(topic_id, number)
        self._give_up_damaged()  # Before anything is fetched in a new epoch.
        if _some(changes, UserChanged):
            self._observers.users()
        if _some(changes, AclsChanged):
            self._observers.acls()
        metadata = self._metadata
        mirrored, self._has_mirrors = self._has_mirrors, bool(metadata.links or metadata.mirrors)
        if mirrored or self._has_mirrors:
            self._observers.mirrors()

    def tick(self, now_ms: int) -> None:
        """Retry what the disk has refused, and check logs for damage and failed disks."""
        for volume in self._directory.volumes:
            if volume.failure is not None and volume not in self._failed:
                self._failed.add(volume)
                self._take_offline(volume)
        if self._look_ms is not None and now_ms >= self._look_ms:
            self._look_ms = now_ms + DAMAGE_CHECK_MS
            self._look_for_damage()
        if self._incomplete and self._retry_ms is None:
            self._retry_ms = now_ms + RETRY_MS
        if self._retry_ms is None or now_ms < self._retry_ms:
            return
        self._retry_ms = None
        incomplete, self._incomplete = self._incomplete, {}
        for name in incomplete:
            self._retry_topic(name)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None for never."""
        deadlines = [each for each in (self._retry_ms, self._look_ms) if each is not None]
        return min(deadlines, default=None)

    # Brokers and settings.

    def _set_brokers(self) -> None:
        """Pass the active brokers on to leaders, which admit only those to the in-sync set."""
        active = {
            broker_id: broker
            for broker_id, broker in self._metadata.brokers.items()
            if broker.is_active
        }
        self._replicas.set_brokers(
            {broker_id: broker.epoch for broker_id, broker in active.items()},
            {broker_id: broker.rack for broker_id, broker in active.items() if broker.rack},
        )

    def _apply_settings(self, changes: Iterable[MetadataChange]) -> None:
        """Apply settings before partitions, because new logs use them."""
        configs = [each for each in changes if isinstance(each, ConfigChanged)]
        if _some(changes, QuotaChanged) or any(
            each.resource_type == BROKER_RESOURCE for each in configs
        ):
            try:
                self._directory.take_settings(self._settings())
            except StreamlogError as error:
                _log.error("could not apply the cluster's settings on this broker: %s", error)
            self._observers.settings()
        topics = {each.resource_name for each in configs if each.resource_type == TOPIC_RESOURCE}
        for name in sorted(topics & {*self._directory.topics}):
            try:
                self._directory.alter_topic(name, self._metadata.config(TOPIC_RESOURCE, name))
            except StreamlogError as error:
                _log.error(
                    "could not apply the settings of topic %s on this broker: %s", name, error
                )
        if configs:
            self._replicas.configure()

    def _settings(self) -> AlteredSettings:
        metadata = self._metadata
        return AlteredSettings(
            default=dict(metadata.config(BROKER_RESOURCE, ALL_BROKERS)),
            node=dict(metadata.config(BROKER_RESOURCE, str(self._directory.node_id))),
            quotas=metadata.quotas(),
        )

    # Logs.

    def _host(self, topic: TopicRegistration) -> None:
        """Create the logs of a topic's partitions that belong here, with the topic's settings."""
        hosted = self._hosted(topic)
        if hosted.numbers:
            self._directory.host([hosted])
            if self._directory.topics[topic.name].configs != hosted.configs:
                self._directory.alter_topic(topic.name, hosted.configs)

    def _host_new(self, changed: Iterable[PartitionKey]) -> None:
        """Create the logs of new topics together: each write of the list of topics takes a sync."""
        node_id, here, topics = self._directory.node_id, self._directory.topics, {}
        for topic_id, number in changed:
            topic = self._metadata.topics.get(topic_id)
            # Most changes are of topics that are here, or not for this broker.
            if topic is None or topic.name in here:
                continue
            if node_id in topic.partitions[number].replicas:
                topics[topic_id] = topic
        try:
            self._directory.host([self._hosted(each) for each in topics.values()])
        except StreamlogError as error:
            # Each topic is tried by itself next, and what it lacks is then logged by its name.
            _log.debug("new topics can't be created together: %s", error)

    def _hosted(self, topic: TopicRegistration) -> HostedTopic:
        node_id = self._directory.node_id
        own = [n for n, partition in topic.partitions.items() if node_id in partition.replicas]
        configs = dict(self._metadata.config(TOPIC_RESOURCE, topic.name))
        return HostedTopic(topic.name, topic.topic_id, own, configs)

    @contextmanager
    def _full_disk(self, topic: str) -> Iterator[None]:
        """Log an error of a full disk and continue; the topic is tried again later."""
        try:
            yield
        except LogDirectoryFull as error:
            _log.error("could not apply the cluster's state of topic %s: %s", topic, error)
            self._incomplete[topic] = None

    def _make(self, topic: TopicRegistration) -> None:
        try:
            self._host(topic)
        except StreamlogError as error:
            _log.error(
                "topic %s lacks partitions on this broker until the disk accepts them: %s",
                topic.name,
                error,
            )
            self._incomplete[topic.name] = None

    def _retry_topic(self, name: str) -> None:
        topic = self._metadata.topic(name)
        if topic is None:
            return
        self._make(topic)
        for number, partition in topic.partitions.items():
            if self._directory.node_id in partition.replicas:
                self._apply_partition(name, number, partition)

    def _check_topic(self, name: str, topic_id: bytes) -> None:
        """Delete, at the start, what the metadata says is deleted or moved elsewhere."""
        topic = self._metadata.topics.get(topic_id)
        if topic is None:
            self._release(name, list(self._directory.topics[name].partitions))
            if topic_id in self._metadata.deleted_topics:
                self._directory.delete_topic(name)
            # Deleted on purpose, or unknown? An unknown topic may be the result of a metadata log
            # that was restored from a backup: its records are kept, under another name.
            else:
                self._directory.keep_stray(name)
            return
        node_id, state = self._directory.node_id, self._directory.topics[name]
        elsewhere = [
            number
            for number in state.partitions
            if number not in topic.partitions or node_id not in topic.partitions[number].replicas
        ]
        if elsewhere:
            self._release(name, elsewhere)
            self._directory.delete_partitions(name, elsewhere)

    def _delete(self, name: str, topic_id: bytes) -> None:
        state = self._directory.topics.get(name)
        self._incomplete.pop(name, None)
        if state is not None and state.topic_id == topic_id:
            self._release(name, list(state.partitions))
            try:
                self._directory.delete_topic(name)
            except StreamlogError as error:
                _log.error(
                    "deleted topic %s, but its files stay until the next start: %s", name, error
                )
        self._observers.deleted()

    def _release(self, name: str, numbers: Iterable[int]) -> None:
        """Stop using partitions whose logs are about to be deleted."""
        self._observers.deleting()
        for number in numbers:
            if self._partitions.resign(name, number):
                self._observers.resigned(name, number)
            self._replicas.drop(name, number)
            self._partitions.drop(name, number)

    def _take_offline(self, volume: Volume) -> None:
        """Stop serving the partitions of a disk that has failed, and report them."""
        offline: list[PartitionKey] = []
        for name, number in self._directory.partitions_in(volume):
            self._release(name, [number])
            offline.append((self._directory.topics[name].topic_id, number))
        self._observers.offline(offline)

    def _is_offline(self, name: str, number: int) -> bool:
        try:
            self._directory.check_online(name, number)
        except StreamlogError:
            return True
        return False

    # Damage.

    def _look_for_damage(self, *, has_fetched: bool = True) -> None:
        if damaged := self._give_up_damaged(has_fetched=has_fetched):
            self._observers.damaged(damaged)

    def _give_up_damaged(self, *, has_fetched: bool = True) -> dict[PartitionKey, int]:
        """Fetch damaged replicas again; return those that the controller has to know of first.

        The result has the leader epoch of each replica as this broker knows it.

        Nothing is discarded in the epoch in which the damage was found: this process `has_fetched`
        the leader for offsets after the damage, and the leader would take an emptied log for one
        that is caught up. The controller removes it from the in-sync set and begins a new epoch.
        """
        unreported: dict[PartitionKey, int] = {}
        for name, number in sorted(self._damaged):
            topic, hosted = self._metadata.topic(name), self._partitions.hosted(name, number)
            if topic is None or hosted is None or not hosted.log.lacks_records:
                self._damaged.discard((name, number))
                self._damaged_in.pop((name, number), None)
                continue
            partition, node_id = topic.partitions[number], self._directory.node_id
            found_in = self._damaged_in.setdefault((name, number), partition.leader_epoch)
            if is_relied_on(partition, node_id):
                unreported[topic.topic_id, number] = partition.leader_epoch
            elif hosted.replica is None or hosted.is_leader or node_id in partition.isr:
                continue  # No other replica has the records.
            # 1. The log is damaged at 50 and ends at 100; this process has fetched from 100 in
            #    epoch 5. 2. If the log were emptied now, the leader would still count a replica
            #    that had reached 100. 3. So the controller must remove it from the in-sync set,
            #    which begins epoch 6, before it starts again.
            elif has_fetched and partition.leader_epoch == found_in:
                unreported[topic.topic_id, number] = partition.leader_epoch
            else:
                try:
                    hosted.replica.refetch_damage()
                except StreamlogError as error:
                    _log.error(
                        "could not fetch the damaged part of %s again: %s", hosted.log.name, error
                    )
        return unreported

    # Leadership.

    def _update_partition(self, topic_id: bytes, number: int) -> None:
        topic = self._metadata.topics.get(topic_id)
        if topic is None:
            return  # It was deleted meanwhile.
        name, partition = topic.name, topic.partitions[number]
        state = self._directory.topics.get(name)
        is_here = state is not None and number in state.partitions
        if self._directory.node_id in partition.replicas:
            if not is_here:
                self._make(topic)
            self._apply_partition(name, number, partition)
        elif is_here:
            self._release(name, [number])
            try:
                self._directory.delete_partitions(name, [number])
            except StreamlogError as error:
                _log.error(
                    "%s-%d moved to other brokers, but its files stay here until the next"
                    " start: %s",
                    *(name, number, error),
                )

    def _apply_partition(self, name: str, number: int, state: PartitionRegistration) -> None:
        """Lead or follow a partition as the metadata says, unless its disk has failed."""
        if self._is_offline(name, number):
            return
        if self._look_ms is None and len(state.replicas) > 1:
            self._look_ms = 0
        try:
            partition = self._partitions.host(name, number)
            partition.log.watch_damage(partial(self._damaged.add, (name, number)))
            self._replicas.apply(partition, self._state(name, number, state), self._metadata.offset)
            if not partition.is_leader:
                if self._partitions.resign(name, number):
                    self._observers.resigned(name, number)
            elif self._partitions.lead(name, number):
                self._observers.leading(name, number)
        except StreamlogError as error:
            _log.error("could not open %s-%d on this broker: %s", name, number, error)

    def _state(self, topic: str, number: int, partition: PartitionRegistration) -> ReplicaState:
        found = self._metadata.topic(topic)
        mirror = None if found is None else self._metadata.mirrors.get(found.topic_id)
        seal = None if found is None else self._metadata.seals.get(found.topic_id)
        return ReplicaState(
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            replicas=partition.replicas,
            isr=partition.isr,
            elr=partition.elr,
            last_unclean_epoch=partition.last_unclean_epoch,
            mirror_of=None if mirror is None else mirror.mirror_of,
            cut=None if mirror is None else mirror.cut_of(number),
            sealed_for=seal.target_cluster_id if seal is not None and seal.is_closed else "",
        )


def damaged_replicas(metadata: ClusterMetadata, directory: LogDirectory) -> dict[PartitionKey, int]:
    """Return damaged replicas that others can replace, with their known leader epochs.

    They are reported with the registration, so that none of them is elected. See `is_relied_on`.
    """
    found: dict[PartitionKey, int] = {}
    for topic, number, partition in metadata.partitions():
        state = directory.topics.get(topic.name)
        log = None if state is None else state.partitions.get(number)
        if log is not None and log.lacks_records and is_relied_on(partition, directory.node_id):
            found[topic.topic_id, number] = partition.leader_epoch
    return found


def is_relied_on(partition: PartitionRegistration, broker_id: int) -> bool:
    """Whether a replica counts as complete, and is not the only one that does.

    The only complete replica stays, damaged or not: no other has more records, and those around the
    damage can be read.
    """
    complete = {*partition.isr, *partition.elr}
    return broker_id in complete and len(complete) > 1


def _partition_keys(changes: Iterable[MetadataChange]) -> Iterator[tuple[bytes, int]]:
    for change in changes:
        if isinstance(change, PartitionChanged):
            yield change.topic_id, change.partition


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector of cycles in the block.

    A new partition has fifty objects, and all of them stay. The collector would walk them again
    with each quarter that they grow: half of the time of creating thousands (measured), and much of
    a start with as many.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _some(changes: Iterable[MetadataChange], kind: type) -> bool:
    return any(isinstance(change, kind) for change in changes)
