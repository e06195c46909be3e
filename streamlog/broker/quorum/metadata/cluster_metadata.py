"""ClusterMetadata: the metadata image, which is the outcome of the metadata log up to an offset.

`replay` applies one record and returns its change, which brokers act on. `ClusterTopics` gives the
replicas the topics of an image.

Rules of this module: the image changes by `replay` only, so that nodes that have replayed the same
records have equal images.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import ClassVar, Self, TypeAlias, TypeVar

import msgspec

from streamlog.broker.config.resources import Entity, QuotaTable, entity_of
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord, encode_record
from streamlog.broker.quorum.metadata.mirror_topics import MirrorLink, MirrorState, MirrorTopic
from streamlog.broker.quorum.metadata.registrations import (
    NO_LEADER,
    BrokerRegistration,
    PartitionRegistration,
)
from streamlog.broker.quorum.metadata.topic_seals import SealState, TopicSeal
from streamlog.broker.security.acl_authorizer import AclRule, Acls
from streamlog.broker.security.users import Users
from streamlog.errors import CorruptData
from streamlog.protocol.acls import Operation, Pattern, Permission, ResourceType
from streamlog.protocol.messages.metadata_log import (
    AccessControlEntryRecord,
    AppMarkRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    MirrorLinkRecord,
    MirrorTopicRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntityData,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveMirrorLinkRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    TopicSealRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    UserSecretRecord,
)
from streamlog.protocol.schema import id_text
from streamlog.protocol.scram import ScramCredential, ScramMechanism


class ClusterTopics:
    """A view of the topics of a metadata image, always up to date."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def names(self) -> Collection[str]:
        """Return the names of all topics, sorted."""
        return self._metadata.topic_names()

    def topic_id(self, name: str) -> bytes | None:
        """Return a topic's id; None if there is no topic of this name."""
        topic = self._metadata.topic(name)
        return None if topic is None else topic.topic_id

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id; None if there is none."""
        topic = self._metadata.topics.get(topic_id)
        return None if topic is None else topic.name

    def leader(self, name: str, partition: int) -> tuple[int, int] | None:
        """Return a partition's leader and leader epoch; None if it has no leader."""
        topic = self._metadata.topic(name)
        found = None if topic is None else topic.partitions.get(partition)
        if found is None or found.leader == NO_LEADER:
            return None
        return found.leader, found.leader_epoch

    def partitions(self, name: str) -> int:
        """Return the number of a topic's partitions; 0 if there is no such topic."""
        topic = self._metadata.topic(name)
        return 0 if topic is None else len(topic.partitions)


class BrokerChanged(msgspec.Struct, frozen=True):
    """A broker was registered (None before), changed, or unregistered (None after)."""

    broker_id: int
    before: BrokerRegistration | None
    after: BrokerRegistration | None


class TopicCreated(msgspec.Struct, frozen=True):
    """A topic was created; its partitions follow as further changes."""

    topic_id: bytes
    name: str


class TopicDeleted(msgspec.Struct, frozen=True):
    """A topic was deleted, with these partitions."""

    topic_id: bytes
    name: str
    partitions: tuple[int, ...]


class PartitionChanged(msgspec.Struct, frozen=True):
    """A partition was created (None before) or changed."""

    topic_id: bytes
    topic: str
    partition: int
    before: PartitionRegistration | None
    after: PartitionRegistration


class ConfigChanged(msgspec.Struct, frozen=True):
    """A setting of a resource was changed, or reset to its default (None)."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class QuotaChanged(msgspec.Struct, frozen=True):
    """The quotas of a user, a client or an address were changed."""

    entity: Entity


class UserChanged(msgspec.Struct, frozen=True):
    """A user's credentials were changed; with the name "", the secret of all users."""

    name: str


class AclsChanged(msgspec.Struct, frozen=True):
    """An ACL was added or removed."""


class ProducerIdsTaken(msgspec.Struct, frozen=True):
    """A broker has reserved producer ids up to below `next_producer_id`."""

    broker_id: int
    next_producer_id: int


class LinkChanged(msgspec.Struct, frozen=True):
    """A link was created or changed (None before or after: there was, or is, none)."""

    before: MirrorLink | None
    after: MirrorLink | None


class MirrorChanged(msgspec.Struct, frozen=True):
    """A topic became a mirror, or its state as a mirror changed."""

    topic_id: bytes


class SealChanged(msgspec.Struct, frozen=True):
    """A topic was sealed, has moved, or takes records again."""

    topic_id: bytes


MetadataChange: TypeAlias = (
    BrokerChanged
    | TopicCreated
    | TopicDeleted
    | PartitionChanged
    | ConfigChanged
    | QuotaChanged
    | UserChanged
    | AclsChanged
    | ProducerIdsTaken
    | LinkChanged
    | MirrorChanged
    | SealChanged
)


TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
ALL_BROKERS = ""
"""The resource name of the settings of all brokers."""
_ID_BYTES = 16
DELETIONS_KEPT = 10_000
"""The most ids of deleted topics that are kept in memory."""

E = TypeVar("E")


@dataclass(slots=True)
class TopicRegistration:
    """A topic and its partitions; only `ClusterMetadata` changes it."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionRegistration] = field(default_factory=dict)


def acl_id(acl: AclRule, link_id: bytes = b"") -> bytes:
    """Return the id of an ACL, a hash of its content and of the link that copies it, if any.

    Equal ACLs have one id, and that of an operator is another one than the copy of a link: what a
    link removes is never an operator's.
    """
    text = json.dumps(acl.kept())
    return sha256(link_id + text.encode()).digest()[:_ID_BYTES]


def acl_record(acl: AclRule, link_id: bytes = b"") -> AccessControlEntryRecord:
    """Return the record that adds an ACL, for a link or for an operator."""
    return _entry_record(acl_id(acl, link_id), acl)


def _entry_record(entry_id: bytes, acl: AclRule) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=entry_id,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def quota_record(entity: Entity, key: str, value: float | None) -> ClientQuotaRecord:
    """Return the record that sets a quota, or removes it (None)."""
    return ClientQuotaRecord(
        entity=[QuotaEntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        key=key,
        value=float(value or 0),
        remove=value is None,
    )


def credential_record(user: str, credential: ScramCredential) -> UserScramCredentialRecord:
    """Return the record of a user's SCRAM credential, which does not contain the password."""
    return UserScramCredentialRecord(
        name=user,
        mechanism=credential.mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


class ClusterMetadata:
    """The metadata image at `offset`, the offset of the last replayed record.

    The offset is -1 before the first record.
    """

    def __init__(self) -> None:
        self.offset = -1
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[bytes, TopicRegistration] = {}
        self.links: dict[bytes, MirrorLink] = {}
        self.app_marks: dict[bytes, AppMarkRecord] = {}
        """By link, see `mirroring.apps.app_marks`."""
        self.mirrors: dict[bytes, MirrorTopic] = {}
        """By topic id: topics that are mirrors, or that were before their promotion."""
        self.seals: dict[bytes, TopicSeal] = {}
        """By topic id: topics that another cluster takes over, or was to take over."""
        self.next_producer_id = 0
        self.user_secret = b""
        """The secret from which an unknown user gets made-up credentials; empty if not set.

        So a client can't tell an unknown user from a wrong password."""
        self.deleted_topics: dict[bytes, None] = {}
        """The ids of the topics that were deleted last, oldest first. By them a broker knows at
        its start that a topic was deleted on purpose. Not part of the image: a snapshot does
        not contain them."""
        self._topic_ids: dict[str, bytes] = {}
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._rates: dict[Entity, dict[str, float]] = {}
        self._credentials: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        self._acls: dict[bytes, AclRule] = {}

    @classmethod
    def of_snapshot(cls, records: Iterable[MetadataRecord], offset: int) -> Self:
        """Return the image of a snapshot at `offset`.

        Raises:
            CorruptData: the records contradict each other.
        """
        image = cls()
        for record in records:
            image.replay(record, offset)
        image.offset = offset  # For a snapshot without records too.
        return image

    def become(self, other: ClusterMetadata) -> None:
        """Take over the content of another image, which is not used afterwards.

        The object keeps its identity, so that all its users see the new content.
        """
        vars(self).update(vars(other))

    # ---- queries ----

    def topic(self, name: str) -> TopicRegistration | None:
        """Return the topic of this name; None if there is none."""
        topic_id = self._topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def topic_names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._topic_ids)

    def partition(self, topic_id: bytes, number: int) -> PartitionRegistration | None:
        """Return a partition; None if there is none."""
        topic = self.topics.get(topic_id)
        return None if topic is None else topic.partitions.get(number)

    def partitions(self) -> Iterator[tuple[TopicRegistration, int, PartitionRegistration]]:
        """Iterate over all partitions, ordered by topic id and number."""
        for topic in sorted(self.topics.values(), key=lambda each: each.topic_id):
            for number, partition in sorted(topic.partitions.items()):
                yield topic, number, partition

    def config(self, resource_type: int, resource_name: str) -> Mapping[str, str]:
        """Return the dynamic settings of a resource itself, without inherited ones."""
        return self._configs.get((resource_type, resource_name), {})

    def configured(self, resource_type: int) -> list[str]:
        """Return the names of a type's resources that have dynamic settings, sorted."""
        return sorted(name for kind, name in self._configs if kind == resource_type)

    def link(self, name: str) -> MirrorLink | None:
        """Return the link of this name; None if there is none."""
        return next((each for each in self.links.values() if each.name == name), None)

    def quotas(self) -> QuotaTable:
        """Return a copy of the quotas."""
        return QuotaTable(self._rates)

    def users(self) -> Users:
        """Return a copy of the users and their credentials."""
        return Users(self.user_secret, {name: {**own} for name, own in self._credentials.items()})

    def acls(self) -> Acls:
        """Return a copy of the ACLs."""
        return Acls(self._acls.values())

    def acl_entries(self) -> Mapping[bytes, AclRule]:
        """Return the ACLs by their ids; one that links have copied, too, has several."""
        return self._acls

    def link_acls(self, link_id: bytes) -> set[AclRule]:
        """Return the ACLs that a link has copied."""
        return {acl for key, acl in self._acls.items() if key == acl_id(acl, link_id)}

    def digest(self) -> str:
        """Return a hash of the image; equal images have equal hashes."""
        found = sha256()
        for record in self.snapshot():
            value = encode_record(record)
            # The length first: otherwise two divisions of the same bytes into records would have
            # one hash.
            found.update(len(value).to_bytes(4))
            found.update(value)
        return found.hexdigest()

    # ---- replay ----

    # Each method checks the record before it changes anything: an image that was changed by half a
    # record would differ from those of the other nodes.

    def replay(self, record: MetadataRecord, offset: int) -> MetadataChange | None:
        """Apply the record at `offset`; return its change, or None if nothing has changed.

        Raises:
            CorruptData: the record contradicts the image, which is unchanged.
        """
        change = self._REPLAYS[type(record)](self, record, offset)
        self.offset = offset
        return change

    def _register(self, record: RegisterBrokerRecord, offset: int) -> MetadataChange:
        before = self.brokers.get(record.broker_id)
        after = BrokerRegistration.of_record(record, offset)
        self.brokers[record.broker_id] = after
        return BrokerChanged(record.broker_id, before, after)

    def _unregister(self, record: UnregisterBrokerRecord, offset: int) -> MetadataChange:
        before = self._broker(record.broker_id, record.broker_epoch, offset)
        del self.brokers[record.broker_id]
        return BrokerChanged(record.broker_id, before, None)

    def _change_broker(self, record: BrokerRegistrationChangeRecord, offset: int) -> MetadataChange:
        before = self._broker(record.broker_id, record.broker_epoch, offset)
        after = before.changed(record)
        self.brokers[record.broker_id] = after
        return BrokerChanged(record.broker_id, before, after)

    def _create_topic(self, record: TopicRecord, offset: int) -> MetadataChange:
        if record.name in self._topic_ids or record.topic_id in self.topics:
            raise _misfit(offset, f"topic {record.name} exists already")
        self.topics[record.topic_id] = TopicRegistration(record.name, record.topic_id)
        self._topic_ids[record.name] = record.topic_id
        return TopicCreated(record.topic_id, record.name)

    def _remove_topic(self, record: RemoveTopicRecord, offset: int) -> MetadataChange:
        topic = self._known_topic(record.topic_id, offset)
        del self.topics[record.topic_id]
        del self._topic_ids[topic.name]
        self.mirrors.pop(record.topic_id, None)
        self.seals.pop(record.topic_id, None)
        # A topic that is created later under this name begins without settings.
        self._configs.pop((TOPIC_RESOURCE, topic.name), None)
        self.deleted_topics[topic.topic_id] = None
        if len(self.deleted_topics) > DELETIONS_KEPT:
            # A dict keeps the order of insertion: this is the oldest deletion.
            del self.deleted_topics[next(iter(self.deleted_topics))]
        return TopicDeleted(topic.topic_id, topic.name, tuple(sorted(topic.partitions)))

    def _put_partition(self, record: PartitionRecord, offset: int) -> MetadataChange:
        topic = self._known_topic(record.topic_id, offset)
        number = record.partition_id
        before = topic.partitions.get(number)
        after = PartitionRegistration.of_record(record)
        topic.partitions[number] = after
        return PartitionChanged(topic.topic_id, topic.name, number, before, after)

    def _change_partition(self, record: PartitionChangeRecord, offset: int) -> MetadataChange:
        topic = self._known_topic(record.topic_id, offset)
        number = record.partition_id
        before = topic.partitions.get(number)
        if before is None:
            raise _misfit(offset, f"there is no partition {number} of {topic.name}")
        after = before.changed(record)
        topic.partitions[number] = after
        return PartitionChanged(topic.topic_id, topic.name, number, before, after)

    def _configure(self, record: ConfigRecord, _: int) -> MetadataChange:
        resource = record.resource_type, record.resource_name
        own = self._configs.setdefault(resource, {})
        if record.value is None:
            own.pop(record.name, None)
        else:
            own[record.name] = record.value
        # No empty entries: `configured` lists the resources that have settings.
        if not own:
            del self._configs[resource]
        return ConfigChanged(*resource, record.name, record.value)

    def _take_producer_ids(self, record: ProducerIdsRecord, offset: int) -> MetadataChange:
        # To go back would give two producers one id.
        if record.next_producer_id < self.next_producer_id:
            raise _misfit(
                offset,
                f"the next producer id goes back from {self.next_producer_id} to"
                f" {record.next_producer_id}",
            )
        self.next_producer_id = record.next_producer_id
        return ProducerIdsTaken(record.broker_id, record.next_producer_id)

    def _set_quota(self, record: ClientQuotaRecord, _: int) -> MetadataChange:
        entity = entity_of((each.entity_type, each.entity_name) for each in record.entity)
        own = self._rates.setdefault(entity, {})
        if record.remove:
            own.pop(record.key, None)
        else:
            own[record.key] = record.value
        if not own:
            del self._rates[entity]
        return QuotaChanged(entity)

    def _keep_credential(self, record: UserScramCredentialRecord, offset: int) -> MetadataChange:
        mechanism = _known(ScramMechanism, record.mechanism, offset)
        self._credentials.setdefault(record.name, {})[mechanism] = ScramCredential(
            mechanism=mechanism,
            salt=record.salt,
            iterations=record.iterations,
            stored_key=record.stored_key,
            server_key=record.server_key,
        )
        return UserChanged(record.name)

    def _forget_credential(
        self, record: RemoveUserScramCredentialRecord, offset: int
    ) -> MetadataChange:
        mechanism = _known(ScramMechanism, record.mechanism, offset)
        own = self._credentials.get(record.name, {})
        if own.pop(mechanism, None) is None:
            raise _misfit(offset, f"{record.name!r} has no {mechanism.sasl_name} credential")
        if not own:
            del self._credentials[record.name]
        return UserChanged(record.name)

    def _add_acl(self, record: AccessControlEntryRecord, offset: int) -> MetadataChange:
        self._acls[record.id] = AclRule(
            resource_type=_known(ResourceType, record.resource_type, offset),
            name=record.resource_name,
            pattern=_known(Pattern, record.pattern_type, offset),
            principal=record.principal,
            host=record.host,
            operation=_known(Operation, record.operation, offset),
            permission=_known(Permission, record.permission_type, offset),
        )
        return AclsChanged()

    def _remove_acl(self, record: RemoveAccessControlEntryRecord, offset: int) -> MetadataChange:
        if self._acls.pop(record.id, None) is None:
            raise _misfit(offset, f"there is no ACL {id_text(record.id)}")
        return AclsChanged()

    def _keep_secret(self, record: UserSecretRecord, _: int) -> MetadataChange:
        self.user_secret = record.secret
        return UserChanged("")

    def _put_link(self, record: MirrorLinkRecord, offset: int) -> MetadataChange:
        before, after = self.links.get(record.link_id), MirrorLink.of_record(record)
        other = self.link(after.name)
        if other is not None and other.link_id != after.link_id:
            raise _misfit(offset, f"two links have the name {after.name}")
        self.links[after.link_id] = after
        return LinkChanged(before, after)

    def _remove_link(self, record: RemoveMirrorLinkRecord, offset: int) -> MetadataChange:
        before = self.links.pop(record.link_id, None)
        if before is None:
            raise _misfit(offset, f"there is no link with id {id_text(record.link_id)}")
        self.app_marks.pop(record.link_id, None)
        return LinkChanged(before, None)

    def _mark_apps(self, record: AppMarkRecord, offset: int) -> None:
        """Keep a mark for the promotion that may need it; no part of a broker waits for it."""
        if record.link_id not in self.links:
            raise _misfit(offset, f"there is no link with id {id_text(record.link_id)}")
        self.app_marks[record.link_id] = record

    def _put_mirror(self, record: MirrorTopicRecord, offset: int) -> MetadataChange:
        self._known_topic(record.topic_id, offset)
        _known(MirrorState, record.state, offset)
        self.mirrors[record.topic_id] = MirrorTopic.of_record(record)
        return MirrorChanged(record.topic_id)

    def _put_seal(self, record: TopicSealRecord, offset: int) -> MetadataChange:
        self._known_topic(record.topic_id, offset)
        _known(SealState, record.state, offset)
        self.seals[record.topic_id] = TopicSeal.of_record(record)
        return SealChanged(record.topic_id)

    def _nothing(self, _: NoOpRecord, __: int) -> None:
        """Change nothing: a record that only shows that time has passed."""

    def _known_topic(self, topic_id: bytes, offset: int) -> TopicRegistration:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise _misfit(offset, f"there is no topic with id {id_text(topic_id)}")
        return topic

    def _broker(self, broker_id: int, epoch: int, offset: int) -> BrokerRegistration:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            there = "is not registered" if broker is None else f"has epoch {broker.epoch}"
            what = f"a record is for epoch {epoch} of broker {broker_id}, which {there}"
            raise _misfit(offset, what)
        return broker

    # Each method takes the record type that is its key; the type of a dict can't express that.
    _REPLAYS: ClassVar[Mapping[type, Callable[..., MetadataChange | None]]] = {
        RegisterBrokerRecord: _register,
        UnregisterBrokerRecord: _unregister,
        BrokerRegistrationChangeRecord: _change_broker,
        TopicRecord: _create_topic,
        RemoveTopicRecord: _remove_topic,
        PartitionRecord: _put_partition,
        PartitionChangeRecord: _change_partition,
        ConfigRecord: _configure,
        ProducerIdsRecord: _take_producer_ids,
        ClientQuotaRecord: _set_quota,
        UserScramCredentialRecord: _keep_credential,
        RemoveUserScramCredentialRecord: _forget_credential,
        AccessControlEntryRecord: _add_acl,
        RemoveAccessControlEntryRecord: _remove_acl,
        UserSecretRecord: _keep_secret,
        NoOpRecord: _nothing,
        MirrorLinkRecord: _put_link,
        RemoveMirrorLinkRecord: _remove_link,
        AppMarkRecord: _mark_apps,
        MirrorTopicRecord: _put_mirror,
        TopicSealRecord: _put_seal,
    }

    # ---- snapshot ----

    def snapshot(self) -> Iterator[MetadataRecord]:
        """Iterate over records that build this image anew; equal images give equal records.

        The order matters for the replay: a topic comes before its partitions.
        """
        for _, broker in sorted(self.brokers.items()):
            yield broker.record()
        for link_id, link in sorted(self.links.items()):
            yield link.record()
            if link_id in self.app_marks:
                yield self.app_marks[link_id]
        yield from self._topic_records()
        for (kind, resource), own in sorted(self._configs.items()):
            for name, value in sorted(own.items()):
                yield ConfigRecord(
                    resource_type=kind, resource_name=resource, name=name, value=value
                )
        # By `repr`, because the name of an entity may be None, which is not comparable with text.
        for entity, rates in sorted(self._rates.items(), key=lambda each: repr(each[0])):
            for key, rate in sorted(rates.items()):
                yield quota_record(entity, key, rate)
        yield from self._secrets()
        for entry_id, acl in sorted(self._acls.items()):
            yield _entry_record(entry_id, acl)
        if self.next_producer_id:
            yield ProducerIdsRecord(broker_id=-1, next_producer_id=self.next_producer_id)

    def _topic_records(self) -> Iterator[MetadataRecord]:
        for topic in sorted(self.topics.values(), key=lambda each: each.topic_id):
            yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
            for number, partition in sorted(topic.partitions.items()):
                yield partition.record(topic.topic_id, number)
            if topic.topic_id in self.mirrors:
                yield self.mirrors[topic.topic_id].record()
            if topic.topic_id in self.seals:
                yield self.seals[topic.topic_id].record()

    def _secrets(self) -> Iterator[MetadataRecord]:
        if self.user_secret:
            yield UserSecretRecord(secret=self.user_secret)
        for name, credentials in sorted(self._credentials.items()):
            for _, credential in sorted(credentials.items()):
                yield credential_record(name, credential)


def _misfit(offset: int, what: str) -> CorruptData:
    return CorruptData(
        f"__cluster_metadata, offset {offset}: {what}; the log is damaged: restore it from another"
        " controller"
    )


def _known(kind: Callable[[int], E], number: int, offset: int) -> E:
    try:
        return kind(number)
    except ValueError as error:
        raise _misfit(offset, str(error)) from error
