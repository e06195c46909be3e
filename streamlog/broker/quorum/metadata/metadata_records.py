"""The records of `__cluster_metadata`, byte for byte as Kafka writes them.

A record's value is the version of the frame, the number of the kind of record and the version of
that kind, each an unsigned varint, and the message (`protocol/messages/metadata_log`). There are
no keys: the order is what counts. We write the newest version that is declared and read all that
are. Kinds that are not declared were written by another release, or by nobody: an error, because
a controller that steps over what it does not know decides on half a truth.
"""

from __future__ import annotations

from typing import TypeAlias, cast

from streamlog.errors import CorruptData, UnsupportedVersion
from streamlog.protocol.codec import decode, encode, read_uvarint, uvarint
from streamlog.protocol.messages.metadata_log import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
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
)

FRAME_VERSION = 1
OWN_KIND = 10_000
"""Kinds of our own have numbers from here on, far from Kafka's."""
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
}
_NUMBERS = {kind: number for number, kind in KINDS.items()}


def encode_record(record: MetadataRecord) -> bytes:
    """The value of a record of the metadata log.

    Raises:
        UsageError: a field holds what can't be written.
    """
    version = record.__versions__.last
    parts = (FRAME_VERSION, _NUMBERS[type(record)], version)
    return b"".join(map(uvarint, parts)) + encode(record, version)


def decode_record(data: Buffer) -> MetadataRecord:
    """What a record of the metadata log says.

    Raises:
        UnsupportedVersion: a newer release wrote it: a kind or a version not known here.
        CorruptData: it is cut short, or no such record.
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
            " release wrote it; start that one",
            version=version,
        )
    return cast("MetadataRecord", decode(kind, version, data, position))
