"""Applying: what has changed in the metadata becomes true of this broker.

Logs are made and deleted, partitions begin and cease to be led, settings, users and ACLs hold, in
the order in which the metadata log says so. What is committed is not refused any more: what the
disk does not do now is told in the process's log, tried again, and found by the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from streamlog.broker.quorum.metadata import ALL_BROKERS, BROKER_RESOURCE, TOPIC_RESOURCE
from streamlog.broker.quorum.metadata_changes import (
    AclsChanged,
    ConfigChanged,
    MetadataChange,
    PartitionChanged,
    QuotaChanged,
    TopicDeleted,
    UserChanged,
)
from streamlog.broker.storage.catalog import AlteredSettings
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata import ClusterMetadata, TopicRegistration
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.storage.log_directory import LogDirectory

RETRY_MS = 1_000
"""Between two tries to make logs that the disk has refused to make."""

C = TypeVar("C")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Who is told of what."""

    leading: Callable[[str, int], None]
    """A partition is led here."""
    resigned: Callable[[str, int], None]
    """It is no more."""
    deleting: Callable[[], None]
    """A topic is about to be deleted: nobody may be at work in its files after this."""
    deleted: Callable[[str], None]
    """It is gone."""
    settings: Callable[[], None]
    """Other settings of the broker hold."""
    users: Callable[[], None]
    """Other users, or credentials, are there."""
    acls: Callable[[], None]
    """Other ACLs hold."""


class Applying:
    """Keeps a broker as the metadata says."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        directory: LogDirectory,
        partitions: Partitions,
        observers: Observers,
    ) -> None:
        self._metadata = metadata
        self._directory = directory
        self._partitions = partitions
        self._tell = observers
        self._lacking: dict[str, None] = {}
        """Topics some of whose logs could not be made."""
        self._retry_ms: int | None = None

    def begin(self) -> None:
        """Be what the metadata says as a whole, before the first change.

        Raises:
            ConfigError: a setting is unknown here or out of range.
            LogDirectoryError: the disk refused.
        """
        metadata, directory = self._metadata, self._directory
        directory.take_settings(self._settings())
        for name, state in list(directory.topics.items()):
            topic = metadata.topic(name)
            if topic is None or topic.topic_id != state.topic_id:
                directory.delete_topic(name)
        for topic in metadata.topics.values():
            self._host(topic)
            here = directory.topics.get(topic.name)
            configs = dict(metadata.config(TOPIC_RESOURCE, topic.name))
            if here is not None and here.configs != configs:
                directory.alter_topic(topic.name, configs)
        for topic, number, partition in metadata.partitions():
            if partition.leader == directory.node_id:
                self._lead(topic.name, number, partition.leader_epoch)
        self._tell.settings()
        self._tell.users()
        self._tell.acls()

    def apply(self, changes: Iterable[MetadataChange]) -> None:
        """Do what follows from changes that are committed, in their order."""
        changes = list(changes)
        self._settle(changes)
        for change in changes:
            match change:
                case TopicDeleted(topic_id=topic_id, name=name):
                    self._delete(name, topic_id)
                case PartitionChanged():
                    self._lead_or_not(change)
        if _some(changes, UserChanged):
            self._tell.users()
        if _some(changes, AclsChanged):
            self._tell.acls()

    def tick(self, now_ms: int) -> None:
        """Try again what the disk has refused."""
        if self._lacking and self._retry_ms is None:
            self._retry_ms = now_ms + RETRY_MS
        if self._retry_ms is None or now_ms < self._retry_ms:
            return
        self._retry_ms = None
        lacking, self._lacking = self._lacking, {}
        for name in lacking:
            self._make_again(name)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None for never."""
        return self._retry_ms

    # ---- settings ----

    def _settle(self, changes: Iterable[MetadataChange]) -> None:
        """Settings first: logs are made by them."""
        configs = [each for each in changes if isinstance(each, ConfigChanged)]
        if _some(changes, QuotaChanged) or any(
            each.resource_type == BROKER_RESOURCE for each in configs
        ):
            try:
                self._directory.take_settings(self._settings())
            except StreamlogError as error:
                _log.error("settings of the cluster can't hold on this broker: %s", error)
            self._tell.settings()
        topics = {each.resource_name for each in configs if each.resource_type == TOPIC_RESOURCE}
        for name in sorted(topics & {*self._directory.topics}):
            try:
                self._directory.alter_topic(name, self._metadata.config(TOPIC_RESOURCE, name))
            except StreamlogError as error:
                _log.error("settings of topic %s can't hold on this broker: %s", name, error)

    def _settings(self) -> AlteredSettings:
        metadata = self._metadata
        return AlteredSettings(
            default=dict(metadata.config(BROKER_RESOURCE, ALL_BROKERS)),
            node=dict(metadata.config(BROKER_RESOURCE, str(self._directory.node_id))),
            quotas=metadata.quotas(),
        )

    # ---- topics ----

    def _host(self, topic: TopicRegistration) -> None:
        """Have the logs of all partitions of a topic that are to be here."""
        node_id = self._directory.node_id
        own = [n for n, partition in topic.partitions.items() if node_id in partition.replicas]
        if own:
            configs = self._metadata.config(TOPIC_RESOURCE, topic.name)
            self._directory.host(topic.name, topic.topic_id, own, configs)

    def _make(self, topic: TopicRegistration) -> None:
        try:
            self._host(topic)
        except StreamlogError as error:
            _log.error(
                "topic %s lacks partitions here until the disk takes them: %s", topic.name, error
            )
            self._lacking[topic.name] = None

    def _make_again(self, name: str) -> None:
        topic = self._metadata.topic(name)
        if topic is None:
            return
        self._make(topic)
        for number, partition in topic.partitions.items():
            if partition.leader == self._directory.node_id:
                self._lead(name, number, partition.leader_epoch)

    def _delete(self, name: str, topic_id: bytes) -> None:
        state = self._directory.topics.get(name)
        self._lacking.pop(name, None)
        if state is None or state.topic_id != topic_id:
            self._tell.deleted(name)
            return
        self._tell.deleting()
        for number in list(state.partitions):
            if self._partitions.resign(name, number):
                self._tell.resigned(name, number)
        try:
            self._directory.delete_topic(name)
        except StreamlogError as error:
            _log.error(
                "topic %s is deleted and its files stay until the next start: %s", name, error
            )
        self._tell.deleted(name)

    def _lead_or_not(self, change: PartitionChanged) -> None:
        topic = self._metadata.topics.get(change.topic_id)
        if topic is None:
            return  # It was deleted since.
        state, number = self._directory.topics.get(topic.name), change.partition
        node_id, after = self._directory.node_id, change.after
        if node_id in after.replicas and (state is None or number not in state.partitions):
            self._make(topic)
        if after.leader == node_id:
            self._lead(topic.name, number, after.leader_epoch)
        elif self._partitions.resign(topic.name, number):
            self._tell.resigned(topic.name, number)

    def _lead(self, name: str, number: int, leader_epoch: int) -> None:
        was_led = self._partitions.leads(name, number)
        try:
            self._partitions.lead(name, number, leader_epoch)
            if not was_led:
                self._tell.leading(name, number)
        except StreamlogError as error:
            _log.error("%s-%d can't be led by this broker: %s", name, number, error)


def _some(changes: Iterable[MetadataChange], kind: type) -> bool:
    return any(isinstance(change, kind) for change in changes)
