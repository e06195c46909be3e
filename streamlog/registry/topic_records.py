"""The records of `_schemas`: Confluent's JSON, read and written.

A key has a type (`keytype`) and names what the record is about; the newest value of a key counts,
and a record without a value deletes it. Other registries write the members of a key in other
orders, which compaction takes for other keys. So `RegistryState` remembers how a key was spelt.

The value of a NOOP is ours, and other registries skip it: the highest id that each context has
given out. After the last version with an id is deleted for good, and its record compacted, nothing
else in the topic would keep the id from being given out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

TOPIC: Final = "_schemas"
TOPIC_CONFIGS: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}
TENANT: Final = "default"
JSON: Final = msgspec.json.Encoder()


class KeyType(StrEnum):
    """What a record is about."""

    SCHEMA = "SCHEMA"
    CONFIG = "CONFIG"
    MODE = "MODE"
    DELETE_SUBJECT = "DELETE_SUBJECT"
    CLEAR_SUBJECT = "CLEAR_SUBJECT"
    CONTEXT = "CONTEXT"
    NOOP = "NOOP"


class RecordKey(NamedTuple):
    """The key of a record."""

    type: KeyType
    subject: str | None = None
    """The subject; None for all subjects, and in the key of a NOOP. For CONTEXT: the context."""
    version: int = 0
    """The version, in the key of a schema."""

    def encode(self) -> bytes:
        """Return the key as Confluent's registry writes it, member by member in its order."""
        match self.type:
            case KeyType.SCHEMA:
                members: dict[str, object] = {
                    "keytype": self.type,
                    "subject": self.subject,
                    "version": self.version,
                    "magic": 1,
                }
            case KeyType.NOOP:
                members = {"keytype": self.type, "magic": 0}
            case KeyType.CONTEXT:
                members = {
                    "keytype": self.type,
                    "tenant": TENANT,
                    "context": self.subject,
                    "magic": 0,
                }
            case _:
                members = {"keytype": self.type, "subject": self.subject, "magic": 0}
        return JSON.encode(members)


NOOP: Final = RecordKey(KeyType.NOOP)


class SchemasRecord(NamedTuple):
    """A record to append; without a value it deletes its key."""

    key: RecordKey
    value: Mapping[str, object] | None

    def encode_value(self) -> bytes | None:
        """Return the value as JSON."""
        return None if self.value is None else JSON.encode(self.value)


class _Key(msgspec.Struct):
    keytype: str
    subject: str | None = None
    version: int = 0
    context: str | None = None


class ReferenceValue(msgspec.Struct, frozen=True):
    """A reference of a schema."""

    name: str
    subject: str
    version: int


class SchemaValue(msgspec.Struct):
    """The value of a schema's version."""

    subject: str
    version: int
    id: int
    schema: str
    schema_type: str | None = msgspec.field(default=None, name="schemaType")
    references: list[ReferenceValue] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = msgspec.field(default=None, name="ruleSet")
    deleted: bool = False


class ModeValue(msgspec.Struct):
    """The value of a mode."""

    mode: str


class DeleteSubjectValue(msgspec.Struct):
    """The value of a subject's deletion: it deletes the versions up to this one."""

    subject: str
    version: int


class NoopValue(msgspec.Struct):
    """The highest id of each context."""

    max_ids: dict[str, int] = msgspec.field(default_factory=dict, name="maxIds")


class UnreadableRecord(ValueError):
    """A record that is not a registry's; the text says why."""


V = TypeVar("V")
_KEYS: Final = msgspec.json.Decoder(_Key)
_KNOWN: Final[Mapping[str, KeyType]] = {each.value: each for each in KeyType}


def decode_key(data: bytes) -> RecordKey:
    """Return the key of a record.

    Raises:
        UnreadableRecord: it is not the key of a registry's record.
    """
    try:
        found = _KEYS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableRecord(f"the key is not JSON of a schema registry: {error}") from None
    kind = _KNOWN.get(found.keytype)
    if kind is None:
        raise UnreadableRecord(f"keytype {found.keytype!r} is unknown")
    match kind:
        case KeyType.SCHEMA:
            if not found.subject or found.version < 1:
                raise UnreadableRecord("the key of a schema lacks its subject or version")
            return RecordKey(kind, found.subject, found.version)
        # Every NOOP has one key here, whatever else its JSON has: only the newest value counts.
        case KeyType.NOOP:
            return NOOP
        case KeyType.CONTEXT:
            return RecordKey(kind, found.context)
        case _:
            return RecordKey(kind, found.subject)


def decode_value(data: bytes, kind: type[V]) -> V:
    """Return the value of a record.

    Raises:
        UnreadableRecord: it is not a value of this kind.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableRecord(f"the value is not a {kind.__name__}: {error}") from None
