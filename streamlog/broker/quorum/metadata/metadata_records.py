"""The records of `__cluster_metadata`, in Kafka's encoding.

A record's value consists of the frame version, the number of the kind and the version of the kind,
each an unsigned varint, and of the message (`protocol/messages/metadata_log`). Records have no
keys. The newest declared version is written, and all declared versions are read.

Rules of this module: an unknown kind is an error, because another release wrote it. A controller
that skipped it would decide on incomplete metadata.
"""

from __future__ import annotations

from typing import TypeAlias, cast

from streamlog.errors import CorruptData, UnsupportedVersion
from streamlog.protocol.codec import decode, encode, read_uvarint, uvarint
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
from streamlog.protocol.schema import Buffer, Message

MetadataRecord: TypeAlias = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | ProducerIdsRecord
    | ClientQuotaRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | NoOpRecord
    | UserSecretRecord
    | MirrorLinkRecord
    | RemoveMirrorLinkRecord
    | MirrorTopicRecord
    | TopicSealRecord
    | AppMarkRecord
)

FRAME_VERSION = 1
OWN_KIND = 10_000
"""The first number of kinds that Kafka does not have, far from Kafka's numbers."""
# Kafka's numbers. The numbers in between are Kafka's record types that are not used here.
KINDS: dict[int, type[Message]] = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    9: RemoveTopicRecord,
    11: UserScramCredentialRecord,
    14: ClientQuotaRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    20: NoOpRecord,
    22: RemoveUserScramCredentialRecord,
    OWN_KIND: UserSecretRecord,
    OWN_KIND + 1: MirrorLinkRecord,
    OWN_KIND + 2: RemoveMirrorLinkRecord,
    OWN_KIND + 3: MirrorTopicRecord,
    OWN_KIND + 4: TopicSealRecord,
    OWN_KIND + 5: AppMarkRecord,
}
_NUMBERS = {kind: number for number, kind in KINDS.items()}


def encode_record(record: MetadataRecord) -> bytes:
    """Return the value of a record of the metadata log.

    Raises:
        UsageError: a field has a value that can't be encoded.
    """
    version = record.__versions__.last
    parts = (FRAME_VERSION, _NUMBERS[type(record)], version)
    return b"".join(map(uvarint, parts)) + encode(record, version)


def decode_record(data: Buffer) -> MetadataRecord:
    """Return the record in a value of the metadata log.

    Raises:
        UnsupportedVersion: its kind or version is unknown: a newer release wrote it.
        CorruptData: it is cut short, or malformed.
    """
    try:
        frame, position = read_uvarint(data, 0)
        number, position = read_uvarint(data, position)
        version, position = read_uvarint(data, position)
    except IndexError as error:
        raise CorruptData(f"a metadata record of {len(data)} bytes is cut short") from error
    kind = KINDS.get(number)
    if frame != FRAME_VERSION or kind is None:
        raise UnsupportedVersion(
            f"a metadata record of frame version {frame}, kind {number} is not known here: a newer"
            " release wrote it, so start that release",
            version=version,
        )
    return cast("MetadataRecord", decode(kind, version, data, position))
