"""Redis commands: what records do to the keys of a server.

Rule: pure. A command is a list of its name and its arguments, as the script of the sink runs it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from streamlog.connect import BadRecord, BadRecords, Batch, fields_of
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import AnyRecord

RedisForm: TypeAlias = Literal["hash", "string", "stream", "publish"]
RedisCommand: TypeAlias = list[bytes | str]

FIELDS_MAX = 1_000
"""The most fields of one row: a script passes a command's arguments on Lua's stack, which holds
8,000."""
ARRAY, STRING = b"\xdd", b"\xdb"
"""The heads of an array and of a string in MessagePack, which a length of four bytes follows."""
KEY_COLUMN = "_key"
VALUE_COLUMN = "value"
_PART = re.compile(r"\{([^{}]*)\}")
_NAMES = frozenset({"topic", "partition", "key"})


class KeyTemplate:
    """The name of a key or channel, with `{topic}`, `{partition}` and `{key}`."""

    def __init__(self, text: str) -> None:
        """Parse a template.

        Raises:
            ConfigError: it is empty, or names something else.
        """
        if not text:
            raise ConfigError("key is empty: write a template such as {topic}:{key}")
        # Text and names take turns.
        self._parts = _PART.split(text)
        unknown = {*self._parts[1::2]} - _NAMES
        if unknown or any("{" in part or "}" in part for part in self._parts[::2]):
            raise ConfigError(f"key={text!r} may have {{topic}}, {{partition}} and {{key}} only")

    @property
    def has_key(self) -> bool:
        """Whether each key of records has a key of its own on the server."""
        return "key" in self._parts[1::2]

    def name(self, record: AnyRecord) -> bytes:
        """Return the name for a record.

        Raises:
            BadRecord: it needs a key, and has none.
        """
        return b"".join(
            self._value(part, record) if at % 2 else part.encode()
            for at, part in enumerate(self._parts)
        )

    def _value(self, name: str, record: AnyRecord) -> bytes:
        if name == "topic":
            return record.topic.encode()
        if name == "partition":
            return str(record.partition).encode()
        if record.key is None:
            raise BadRecord("it has no key, which the setting key needs")
        return redis_text(record.key)


def redis_text(value: object) -> bytes:
    """Return a value as bytes: text as it is, numbers as Python writes them, the rest as JSON."""
    match value:
        case bytes():
            return value
        case str():
            return value.encode()
        case bool():
            return b"true" if value else b"false"
        # JSON has no NaN and no infinity.
        case int() | float():
            return repr(value).encode()
    text = msgspec.json.encode(value, enc_hook=_plain)
    # A date, a UUID or an enum is one text, which needs no quotes.
    return msgspec.json.decode(text, type=str).encode() if text[:1] == b'"' else text


def _plain(value: object) -> object:
    try:
        return dict(fields_of(value))
    except BadRecord:
        return str(value)


@dataclass(frozen=True, slots=True)
class RedisShape:
    """How records become commands.

    Attributes:
        form: the kind of key.
        key: its name.
        ttl_ms: after how long a hash or string expires; None for never.
        maxlen: about how many entries a stream keeps; None for all.
    """

    form: RedisForm
    key: KeyTemplate
    ttl_ms: int | None = None
    maxlen: int | None = None

    @property
    def replaces(self) -> bool:
        """Whether a record replaces the one with its key, and a tombstone deletes it."""
        return self.form in {"hash", "string"}

    @property
    def type(self) -> str:
        """The type of the keys, as TYPE answers; "" for channels, which have none."""
        return "" if self.form == "publish" else self.form

    def commands(self, record: AnyRecord, raw: bytes | None) -> list[RedisCommand]:
        """Return what a record does; nothing for a tombstone in a stream or channel.

        Args:
            record: the record.
            raw: its value as it lies in the log.

        Raises:
            BadRecord: it has no key, or too many or no fields.
        """
        key = self.key.name(record)
        if raw is None or record.value is None:
            return [["DEL", key]] if self.replaces else []
        match self.form:
            case "string":
                expiry = [] if self.ttl_ms is None else ["PX", str(self.ttl_ms)]
                return [["SET", key, raw, *expiry]]
            case "publish":
                return [["PUBLISH", key, raw]]
            case "stream":
                limit = [] if self.maxlen is None else ["MAXLEN", "~", str(self.maxlen)]
                return [["XADD", key, *limit, "*", *_entry(record, raw)]]
            case "hash":
                return self._hash(key, _fields(record, raw))

    def _hash(self, key: bytes, fields: RedisCommand) -> list[RedisCommand]:
        # Deleted first: a field that the new row lacks must not stay.
        found: list[RedisCommand] = [["DEL", key]]
        if fields:
            found.append(["HSET", key, *fields])
            if self.ttl_ms is not None:
                found.append(["PEXPIRE", key, str(self.ttl_ms)])
        return found


def _entry(record: AnyRecord, raw: bytes) -> RedisCommand:
    fields = _fields(record, raw)
    if record.key is not None:
        fields = [KEY_COLUMN, redis_text(record.key), *fields]
    if not fields:
        raise BadRecord("it has neither a key nor a field that is not null, as an entry needs")
    return fields


def _fields(record: AnyRecord, raw: bytes) -> RedisCommand:
    """Return names and values of a record's fields, without those that are null."""
    # Text and bytes have no fields; looking for them would raise for each record.
    if isinstance(record.value, bytes | str):
        return [VALUE_COLUMN, raw]
    try:
        fields = fields_of(record.value)
    except BadRecord:
        return [VALUE_COLUMN, raw]
    if len(fields) > FIELDS_MAX:
        raise BadRecord(f"it has {len(fields)} fields; a row may have {FIELDS_MAX}")
    found: RedisCommand = []
    for name, value in fields.items():
        if value is not None:
            found += [redis_text(name), redis_text(value)]
    return found


def plan_commands(
    batch: Batch[object, object], shape: RedisShape, reserved: bytes
) -> tuple[list[RedisCommand], int]:
    """Return what the records of a batch do, in order, and how many do nothing.

    Args:
        batch: the records.
        shape: how they become commands.
        reserved: the beginning of the names of keys that no record may write.

    Raises:
        BadRecords: some records have no command; the error has the reason for each.
    """
    commands: list[RedisCommand] = []
    idle = 0
    bad: dict[int, str] = {}
    values: Sequence[tuple[bytes | None, bytes | None]] = batch.raw()
    for index, (record, (_, raw)) in enumerate(zip(batch.records, values, strict=True)):
        try:
            found = shape.commands(record, raw)
        except (BadRecord, TypeError, UnicodeEncodeError, msgspec.MsgspecError) as error:
            bad[index] = str(error)
            continue
        # 1. A record's key says "streamlog:offsets:orders". 2. Its row replaces the offsets.
        if found and shape.type and bytes(found[0][1]).startswith(reserved):  # type: ignore[arg-type]
            bad[index] = f"its key begins with {reserved.decode()}, where the offsets are"
            continue
        # A tombstone of a stream or channel.
        idle += not found
        commands += found
    if bad:
        raise BadRecords(bad)
    return commands, idle


def pack_commands(commands: Sequence[RedisCommand]) -> bytes:
    """Return commands in MessagePack, as `cmsgpack` of a script reads it.

    Bytes are MessagePack's strings: the library of Redis does not know its binary type.
    """
    parts = [ARRAY, _size(commands)]
    for command in commands:
        parts += [ARRAY, _size(command)]
        for argument in command:
            data = argument.encode() if isinstance(argument, str) else argument
            parts += [STRING, _size(data), data]
    return b"".join(parts)


def _size(of: Sequence[object]) -> bytes:
    return len(of).to_bytes(4, "big")
