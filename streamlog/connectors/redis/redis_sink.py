"""RedisSink: writes a topic to hashes, strings, streams or channels, with its offsets.

Rows are kept in memory until the commit, where one script compares the offsets, writes the rows,
and sets the new offsets. No other command of any client runs in between. Three races decide what it
compares:

1. A zombie. Task A is stopped before its script; task B raises the epoch and reads the offset. A's
   script finds a higher epoch, and writes nothing.
2. A commit without an answer. The connection breaks after the script has run. The runtime recovers,
   and reads the offset that the script has set.
3. A server that went back. It crashes and loses its last second, epochs included: rows and offsets
   go back together. A script of before expects a later offset, and writes nothing; the runtime
   recovers, and writes again from the offset that the server has.

A script that fails in the middle would leave half of its rows, as Redis undoes nothing. So it looks
for what can fail (types, permissions, memory) before the first row, and sets the offsets at last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, ClassVar, Literal, Self

import msgspec
from redis import Redis

from streamlog.connect import (
    Batch,
    ConnectError,
    Effect,
    Fenced,
    Refused,
    Retriable,
    Secret,
    Sink,
    SinkContext,
    SinkTask,
    TopicPartition,
)
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.redis.redis_commands import (
    KeyTemplate,
    RedisShape,
    pack_commands,
    plan_commands,
)
from streamlog.connectors.redis.redis_server import RedisServer, look_at_server
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.repeated import logger

log = logger(__name__)

FLUSH_RECORDS_MAX = 100_000
FLUSH_BYTES_MAX = 64 * 1024 * 1024
"""The largest flush: the server does nothing else while its script runs, and keeps its arguments in
memory."""

COMMIT = """
local offsets, wanted = KEYS[1], ARGV[1]
local claims = cmsgpack.unpack(ARGV[2])
for _, claim in ipairs(claims) do
  local epoch = tonumber(redis.call('HGET', offsets, claim[1] .. ':epoch') or 0)
  if epoch > tonumber(claim[2]) then return {'fenced', claim[1]} end
  local found = redis.call('HGET', offsets, claim[1]) or ''
  if epoch < tonumber(claim[2]) or found ~= claim[3] then return {'moved', claim[1], found} end
end
local batches = {}
for at = 3, #ARGV do batches[at - 2] = cmsgpack.unpack(ARGV[at]) end
for _, commands in ipairs(batches) do
  for _, command in ipairs(commands) do
    if redis.acl_check_cmd and not redis.acl_check_cmd(unpack(command)) then
      return {'refused', command[2], command[1]}
    end
    if wanted ~= '' then
      local found = redis.call('TYPE', command[2]).ok
      if found ~= 'none' and found ~= wanted then return {'type', command[2], found} end
    end
  end
end
-- Changes nothing, and fails here if the server takes no writes: memory, disk, replicas, read-only.
redis.call('HSET', offsets, claims[1][1] .. ':epoch', claims[1][2])
for _, commands in ipairs(batches) do
  for _, command in ipairs(commands) do redis.call(unpack(command)) end
end
for _, claim in ipairs(claims) do redis.call('HSET', offsets, claim[1], claim[4]) end
return {'done'}
"""


class RedisSink(Sink[object, object], frozen=True, kw_only=True):
    """Writes records to hashes, strings, streams or channels of a Redis server.

    Exactly once on one server: rows and offsets are written by one script. They are as durable as
    the server is: what it loses in a crash, rows and offsets together, is written again.

    Attributes:
        url: the server and the number of its database, as `redis://HOST:6379/0`, or `rediss://` for
            TLS; without a password.
        user: the user of the server; the default one if this is left out.
        password: its password.
        tls: the files of TLS, for `rediss://`.
        form: "hash": a hash for each key, of the fields of the value; "string": the value of each
            key as it lies in the log; "stream": an entry for each record; "publish": a message for
            each record.
        key: the key or channel, with {topic}, {partition} and {key}; "{topic}:{key}" for hashes and
            strings, else "{topic}".
        ttl: after how long a hash or string expires that is not written again; never by default.
        maxlen: about how many entries a stream keeps; all by default.
        offsets_key: the beginning of the key with the offsets; the connector's name follows.
        timeout: how long an answer may take.
        flush: when rows are written; 100,000 records and 64 MiB at most.
    """

    effect: ClassVar[Effect] = "transactional"

    url: str
    user: str | None = None
    password: Secret | None = None
    tls: ClientTls | None = None
    form: Literal["hash", "string", "stream", "publish"] = "hash"
    key: str | None = None
    ttl: Dur | None = None
    maxlen: Annotated[int, msgspec.Meta(ge=1)] | None = None
    offsets_key: str = "streamlog:offsets"
    timeout: Dur = "30s"

    @property
    def server(self) -> RedisServer:
        """The server."""
        return RedisServer(self.url, self.user, self.password, self.tls, self.timeout)

    @property
    def shape(self) -> RedisShape:
        """How records become commands."""
        default = "{topic}:{key}" if self.form in {"hash", "string"} else "{topic}"
        ttl_ms = None if self.ttl is None else duration_ms(self.ttl)
        template = KeyTemplate(default if self.key is None else self.key)
        return RedisShape(self.form, template, ttl_ms, self.maxlen)

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the settings, and what to write instead.
        """
        self.server.check()
        shape = self.shape
        # One hash for the whole topic, that each record replaces, is never what is meant.
        if shape.replaces and not shape.key.has_key:
            raise ConfigError(
                f"form={self.form!r} needs {{key}} in key: all records would replace each other"
            )
        if self.ttl is not None and (not shape.replaces or not shape.ttl_ms):
            raise ConfigError("ttl is for form='hash' and 'string', and longer than 0")
        if self.maxlen is not None and (self.form != "stream" or self.maxlen < 1):
            raise ConfigError("maxlen is for form='stream', and 1 or more")
        if not self.offsets_key:
            raise ConfigError("offsets_key is empty")
        if self.flush.records > FLUSH_RECORDS_MAX or self.flush.size_bytes > FLUSH_BYTES_MAX:
            raise ConfigError(
                f"flush may have {FLUSH_RECORDS_MAX} records and {FLUSH_BYTES_MAX} bytes at most: "
                "the server does nothing else while it writes them"
            )

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that is not connected yet."""
        self.check()
        return RedisSinkTask(self, context)


@dataclass(slots=True)
class OffsetClaim:
    """A partition of this task, as it expects the server to have it."""

    epoch: int
    next_offset: str
    """The offset as the server has it; "" for none."""


class RedisSinkTask(SinkTask[object, object]):
    """Keeps the rows of a flush, and writes them in the thread of the task."""

    def __init__(self, sink: RedisSink, context: SinkContext) -> None:
        self._context = context
        self._writer = RedisWriter(sink, context)

    async def __aenter__(self) -> Self:
        """Connect, and look at the server."""
        await self._context.in_thread(self._writer.connect)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self._context.in_thread(self._writer.close)

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Raise the epoch of partitions, and return the offsets that the server has."""
        return await self._context.in_thread(self._writer.recover, partitions)

    async def begin(self) -> None:
        """Start with no rows."""
        self._writer.drop()

    async def write(self, batch: Batch[object, object]) -> None:
        """Keep the rows of a batch.

        Raises:
            BadRecords: some records have no row.
        """
        self._writer.keep(batch)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write rows and offsets."""
        await self._context.in_thread(self._writer.commit, offsets)

    async def abort(self) -> None:
        """Drop the rows; the server has none of them."""
        self._writer.drop()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Forget the epochs of partitions."""
        self._writer.forget(partitions)

    async def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Set the offsets on the server, or forget them where None, and fence running tasks."""
        await self._context.in_thread(self._writer.reset, offsets)


class RedisWriter:
    """What the task does, in calls that block.

    Args:
        sink: the settings.
        context: the runtime: the connector's name, and its figures.
    """

    def __init__(self, sink: RedisSink, context: SinkContext) -> None:
        self._server = sink.server
        self._shape = sink.shape
        self._context = context
        self._reserved = f"{sink.offsets_key}:".encode()
        self._offsets = f"{sink.offsets_key}:{context.name}"
        self._claims: dict[TopicPartition, OffsetClaim] = {}
        self._blobs: list[bytes] = []
        self._client: Redis | None = None

    def connect(self) -> None:
        """Connect, and look at the server.

        Raises:
            ConfigError: the server can't be used.
            Retriable: it can't be reached, or is a replica at present.
        """
        with ExitStack() as failed:
            client = failed.enter_context(closing(self._server.client()))
            with self._server.errors():
                self._warn_of(look_at_server(client, self._server.url))
            self._client, self._script = client, client.register_script(COMMIT)
            failed.pop_all()

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _warn_of(self, info: Mapping[str, object]) -> None:
        # Not a fault of the settings: behind a name, another server is the primary in a moment.
        if info.get("role") == "slave":
            raise Retriable(f"{self._server.url} is a replica, which takes no writes")
        if not info.get("aof_enabled"):
            log.warning(
                "sink %r: %s has no append-only file (appendonly no): a crash takes it back to its"
                " last snapshot, from where rows are written again if the log still has them",
                self._context.name, self._server.url,
            )  # fmt: skip
        policy = str(info.get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):
            log.warning(
                "sink %r: %s may evict any key (maxmemory-policy %s), rows and offsets included",
                self._context.name, self._server.url, policy,
            )  # fmt: skip

    @property
    def _connected(self) -> Redis:
        if self._client is None:
            raise Retriable(f"{self._server.url} is not connected")
        return self._client

    def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Raise the epoch of partitions, and return the offsets that the server has."""
        # By one transaction: a script of the former owner runs before or behind it.
        ordered = sorted(partitions)
        with self._server.errors(), self._connected.pipeline(transaction=True) as steps:
            for partition in ordered:
                field = field_of(partition)
                steps.hincrby(self._offsets, f"{field}:epoch", 1)
                steps.hget(self._offsets, field)
            answers = steps.execute()
        known: dict[TopicPartition, int] = {}
        for at, partition in enumerate(ordered):
            # Two answers for each partition.
            epoch, offset = answers[2 * at : 2 * at + 2]
            before = self._claims.get(partition)
            self._claims[partition] = OffsetClaim(int(epoch), (offset or b"").decode())
            if offset is not None:
                known[partition] = self._number(partition, offset)
            elif before is not None and before.next_offset:
                self._warn_of_loss(partition, before.next_offset)
        return known

    def _number(self, partition: TopicPartition, offset: bytes) -> int:
        if not offset.isdigit():
            raise ConnectError(
                f"{self._offsets} of {self._server.url} has {offset!r} as the offset of "
                f"{field_of(partition)}, which is no number"
            )
        return int(offset)

    def _warn_of_loss(self, partition: TopicPartition, offset: str) -> None:
        self._context.count("lost_offsets")
        log.warning(
            "sink %r: %s has lost its offset %s of %s, and with it perhaps all rows; rows follow"
            " from the group's offset on: reset the connector's offsets to write the topic again",
            self._context.name, self._server.url, offset, field_of(partition),
        )  # fmt: skip

    def drop(self) -> None:
        """Drop the rows that are kept."""
        self._blobs.clear()

    def keep(self, batch: Batch[object, object]) -> None:
        """Keep the commands of a batch for the script.

        Raises:
            BadRecords: some records have no row.
        """
        # Planned and packed here, so that bad records are known before anything is sent.
        commands, idle = plan_commands(batch, self._shape, self._reserved)
        if idle:
            self._context.count("tombstones", idle)
        if commands:
            self._blobs.append(pack_commands(commands))

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Run the script: rows and offsets, or nothing.

        Raises:
            Fenced: another task has taken over a partition.
            Retriable: the server can't answer, or has another offset than this task has written.
            ConfigError: the user may not log in, or not write a key.
            ConnectError: a record's key holds another type.
        """
        claims = []
        for partition, offset in sorted(offsets.items()):
            claim = self._claims.get(partition)
            # Revoked while a flush was under way: its next owner writes these rows.
            if claim is None:
                raise Fenced(f"{self._context.name}: {field_of(partition)} is not claimed")
            claims.append([field_of(partition), str(claim.epoch), claim.next_offset, str(offset)])
        # A batch is one argument: the protocol allows a million of them, which rows could exceed.
        arguments: list[bytes | str] = [self._shape.type]
        arguments += [msgspec.msgpack.encode(claims), *self._blobs]
        with self._server.errors():
            answer = self._script(keys=[self._offsets], args=arguments, client=self._connected)
        self._settle([bytes(part).decode(errors="backslashreplace") for part in answer])
        for partition, offset in offsets.items():
            self._claims[partition].next_offset = str(offset)
        self._blobs.clear()

    def _settle(self, answer: list[str]) -> None:
        match answer:
            case ["done"]:
                return
            case ["fenced", field]:
                raise Fenced(f"{self._context.name}: another task has taken over {field}")
            case ["moved", field, found]:
                raise Retriable(
                    f"{self._server.url} has {found or 'no offset'} for {field}, not what this "
                    "task has written: the server has lost its last writes"
                )
            case ["type", key, found]:
                # One key for all records: none of them is at fault.
                kind = ConnectError if self._shape.key.has_key else ConfigError
                raise kind(
                    f"key {key!r} holds a {found}, not a {self._shape.type}: delete it, or set key"
                )
            case ["refused", key, command]:
                raise Refused(
                    f"the user may not run {command} on {key!r}: grant it with ACL SETUSER"
                )
        raise ConnectError(f"{self._server.url} answers the script with {answer}")

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget the epochs of partitions."""
        for partition in partitions:
            self._claims.pop(partition, None)

    def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Set the offsets on the server, or forget them where None, and fence running tasks."""
        with self._server.errors(), self._connected.pipeline(transaction=True) as steps:
            for partition, offset in sorted(offsets.items()):
                field = field_of(partition)
                steps.hincrby(self._offsets, f"{field}:epoch", 1)
                if offset is None:
                    steps.hdel(self._offsets, field)
                else:
                    steps.hset(self._offsets, field, str(offset))
            steps.execute()
        # What this task had written is no loss once an operator has reset it.
        for partition in offsets:
            self._claims.pop(partition, None)


def field_of(partition: TopicPartition) -> str:
    """Return the field of a partition's offset; ":" can't be in the name of a topic."""
    return f"{partition.topic}-{partition.partition}"
