"""Redis sources: `RedisStreams` reads streams by the ids of their entries, `RedisPubSub` channels.

A look at a stream is one transaction of the server: its state, and the entries behind the last one.
Calls are short and run in the thread of the task, which all its parts share: so a reader that finds
nothing sleeps, and does not wait at the server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, TypeAlias

from redis import exceptions
from redis.client import PubSub

from streamlog.connect import (
    ConnectError,
    Guarantee,
    Read,
    Retriable,
    Secret,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.redis.redis_server import RedisServer, look_at_server
from streamlog.connectors.redis.stream_count import StreamCount, StreamState
from streamlog.durations import TIMESTAMP_MS_MAX, Dur, When, duration_ms
from streamlog.errors import ConfigError, quantity
from streamlog.record import Record
from streamlog.repeated import logger
from streamlog.serdes.erased_types import UserObject, UserValue

log = logger(__name__)

READ_BYTES = 1024 * 1024
"""About what is asked for at once."""
ENTRIES_MAX = 1_000
"""The most entries that are asked for at once."""
FIRST_ENTRIES = 50
"""How many are asked for while their size is unknown."""
MESSAGES_MAX = 1_000
"""The most messages of one step."""
SEQUENCE_MAX = 2**64 - 1

StreamEntry: TypeAlias = tuple[bytes, dict[bytes, bytes]]
"""The id of an entry, and its fields."""


class RedisStreams(Source[str | None, UserValue], frozen=True, kw_only=True):
    """Reads the entries of Redis streams, each once.

    A value is the fields of an entry as a dict of texts, or the bytes of one field. Entries that
    are removed before they are read are missed; a warning and a figure tell how many (Redis 7).

    Attributes:
        url: the server and the number of its database, as `redis://HOST:6379/0`, or `rediss://` for
            TLS; without a password.
        user: the user of the server; the default one if this is left out.
        password: its password.
        tls: the files of TLS, for `rediss://`.
        streams: the keys of the streams, each a part of its own, and the connector's own name of
            the topic if it feeds several.
        start: where a stream begins that was never read: "beginning", or "end".
        value: the field whose bytes are the value; all fields as a dict by default. Entries without
            it are left out, and counted.
        key: the field whose text is the record's key; no key by default.
        time: the event time: "id", the milliseconds in the entry's id; or "arrival".
        poll: how long to wait after a look that found nothing.
        timeout: how long an answer may take.
    """

    guarantee: ClassVar[Guarantee] = "exactly_once"

    url: str
    streams: tuple[str, ...]
    user: str | None = None
    password: Secret | None = None
    tls: ClientTls | None = None
    start: Literal["beginning", "end"] = "beginning"
    value: str | None = None
    key: str | None = None
    time: Literal["id", "arrival"] = "id"
    poll: Dur = "100ms"
    timeout: Dur = "30s"

    @property
    def server(self) -> RedisServer:
        """The server."""
        return RedisServer(self.url, self.user, self.password, self.tls, self.timeout)

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        self.server.check()
        check_names("streams", self.streams)
        if not self.streams:
            raise ConfigError("streams is empty: name one stream at least")
        check_poll(self.poll)

    def topic_names(self) -> Sequence[str]:
        """Return the streams; none if there is only one."""
        return self.streams if len(self.streams) > 1 else ()

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return a part for each stream."""
        del context
        return [{"stream": name} for name in self.streams]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str | None, UserValue]]:
        """Yield the entries behind an offset, and look for more."""
        reader = StreamReader(self, str(partition["stream"]), offset, context)
        try:
            await context.in_thread(reader.connect)
            if offset is None and self.start == "end":
                yield await context.in_thread(reader.start_at_end)
            while True:
                entries = await context.in_thread(reader.look)
                for read in reader.reads(entries):
                    yield read
                if not entries:
                    await context.sleep(self.poll)
        finally:
            await context.in_thread(reader.close)


class StreamReader:
    """Where the reader of one stream is."""

    def __init__(
        self, source: RedisStreams, name: str, offset: SourceOffset | None, context: SourceContext
    ) -> None:
        self._source, self._name, self._context = source, name, context
        self._server = source.server
        self._client = self._server.client()
        self._id = "0-0" if offset is None else str(offset["id"])
        seen = None if offset is None else offset.get("count")
        self._count = StreamCount(seen if isinstance(seen, int) else None)
        self._limit = FIRST_ENTRIES

    def connect(self) -> None:
        """Connect, and look at the server."""
        with self._server.errors():
            look_at_server(self._client, self._server.url)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @property
    def offset(self) -> SourceOffset:
        """The offset behind what was read."""
        return {"id": self._id, "count": self._count.seen}

    def start_at_end(self) -> Read[str | None, UserValue]:
        """Continue behind the last entry that there is."""
        state, last, _ = self._ask()
        self._id = last
        self._count = StreamCount(None if state is None else state.added)
        return Read([], self.offset)

    def look(self) -> list[StreamEntry]:
        """Return the entries that follow, none if there is no other one yet."""
        state, last, entries = self._ask()
        if state is not None:
            missed = self._count.missed(state, len(entries), is_all=len(entries) < self._limit)
            if missed:
                self._tell_missed(missed)
        # Ids only rise, unless the stream or the server's data is another one.
        if id_of(last) < id_of(self._id):
            self._tell_behind(last)
        return entries

    def _ask(self) -> tuple[StreamState | None, str, list[StreamEntry]]:
        with self._server.errors():
            with self._client.pipeline(transaction=True) as steps:
                steps.xinfo_stream(self._name)
                steps.xrange(self._name, min=next_id(self._id), count=self._limit)
                info, entries = steps.execute(raise_on_error=False)
            return self._answers(info, entries)

    def _answers(
        self, info: UserObject, entries: UserObject
    ) -> tuple[StreamState | None, str, list[StreamEntry]]:
        if isinstance(info, exceptions.ResponseError) and "no such key" in str(info):
            # Not there yet, or deleted.
            return None, self._id, []
        # The pipeline raises nothing, so that a missing key could be told from a failure.
        for answer in (info, entries):
            if isinstance(answer, Exception):
                raise answer
        # Of Redis 7; before, what was removed is not known.
        added = info.get("entries-added")
        state = None if added is None else StreamState(int(added), int(info["length"]))
        return state, bytes(info["last-generated-id"]).decode(), entries

    def reads(self, entries: list[StreamEntry]) -> Iterator[Read[str | None, UserValue]]:
        """Yield entries in steps of a bounded size."""
        sizes = [sum(len(k) + len(v) for k, v in fields.items()) for _, fields in entries]
        if entries:
            # So that the next answer has about READ_BYTES, whatever an entry's size.
            fitting = READ_BYTES * len(entries) // max(sum(sizes), 1)
            self._limit = min(max(fitting, 1), 2 * self._limit, ENTRIES_MAX)
        held: list[StreamEntry] = []
        held_bytes = 0
        for entry, size in zip(entries, sizes, strict=True):
            if held and held_bytes + size > READ_BYTES:
                yield self._step(held)
                held, held_bytes = [], 0
            held.append(entry)
            held_bytes += size
        # The rest, which is smaller than a step.
        if held:
            yield self._step(held)

    def _step(self, entries: list[StreamEntry]) -> Read[str | None, UserValue]:
        found = [self._record(*entry) for entry in entries]
        records = [record for record in found if record is not None]
        # Not a `BadRecord`, which would bring the entry again: a source can't pass one by.
        if len(records) < len(found):
            self._context.count("entries_without_value", len(found) - len(records))
        # Entries that are left out count as read: the offset passes them.
        self._id = entries[-1][0].decode()
        self._count.read(len(entries))
        return Read(records, self.offset)

    def _record(self, entry_id: bytes, fields: dict[bytes, bytes]) -> Record[Any, Any] | None:
        source = self._source
        value: UserValue = {text_of(name): text_of(data) for name, data in fields.items()}
        if source.value is not None:
            value = fields.get(source.value.encode())
            if value is None:
                return None
        key = None if source.key is None else fields.get(source.key.encode())
        time_ms, _ = id_of(entry_id.decode())
        # An id may be any number, such as one of microseconds.
        is_time = source.time == "id" and time_ms <= TIMESTAMP_MS_MAX
        time: When = time_ms if is_time else self._context.now()
        return self._context.record(
            value, key=None if key is None else text_of(key), timestamp=time, topic=self._topic
        )

    @property
    def _topic(self) -> str:
        return self._name if len(self._source.streams) > 1 else ""

    def _tell_missed(self, missed: int) -> None:
        self._context.count("missed_entries", missed)
        log.warning(
            "source %r: %s of stream %s were removed behind %s before they were read: read faster,"
            " or let the stream keep more (MAXLEN)",
            self._context.name, quantity(missed, "entry", "entries"), self._name, self._id,
        )  # fmt: skip

    def _tell_behind(self, last: str) -> None:
        log.warning(
            "source %r: the last id of stream %s is %s, before %s, up to which it was read: the"
            " server has lost entries, or the stream was created again; entries up to that id are"
            " not read: reset the connector's offsets to read them",
            self._context.name, self._name, last, self._id,
        )  # fmt: skip


def id_of(text: str) -> tuple[int, int]:
    """Return the two numbers of an entry's id.

    Raises:
        ConnectError: it is none.
    """
    time_ms, dash, sequence = text.partition("-")
    if not (dash and time_ms.isdecimal() and sequence.isdecimal()):
        raise ConnectError(f"the offset has the id {text!r}, which is no id of a stream's entry")
    return int(time_ms), int(sequence)


def next_id(text: str) -> str:
    """Return the smallest id behind another one; Redis before 6.2 knows no exclusive ranges."""
    time_ms, sequence = id_of(text)
    return f"{time_ms}-{sequence + 1}" if sequence < SEQUENCE_MAX else f"{time_ms + 1}-0"


def text_of(data: bytes) -> str:
    r"""Return bytes as text; what is not UTF-8 becomes `\xff` and so on."""
    return data.decode(errors="backslashreplace")


def check_names(setting: str, names: Sequence[str]) -> None:
    """Raise ConfigError if a name is empty or comes twice."""
    if not all(names) or len({*names}) < len(names):
        raise ConfigError(f"{setting}={[*names]} has an empty name, or one twice")


def check_poll(poll: Dur) -> None:
    """Raise ConfigError if a server would be asked without a pause."""
    if not duration_ms(poll):
        raise ConfigError("poll is 0: the server would be asked without a pause")


class RedisPubSub(Source[str, bytes], frozen=True, kw_only=True):
    """Receives what is published to channels; a record's key is the channel, its value the message.

    At most once: Redis keeps nothing for a subscriber that is away, and disconnects one that is too
    slow (`client-output-buffer-limit pubsub`).

    Attributes:
        url: the server, as `redis://HOST:6379`, or `rediss://` for TLS; without a password.
        user: the user of the server; the default one if this is left out.
        password: its password.
        tls: the files of TLS, for `rediss://`.
        channels: the channels.
        patterns: patterns of channels, such as `news.*`.
        poll: how long to wait after a look that found nothing.
        timeout: how long an answer may take.
    """

    guarantee: ClassVar[Guarantee] = "at_most_once"

    url: str
    user: str | None = None
    password: Secret | None = None
    tls: ClientTls | None = None
    channels: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    poll: Dur = "100ms"
    timeout: Dur = "30s"

    @property
    def server(self) -> RedisServer:
        """The server."""
        return RedisServer(self.url, self.user, self.password, self.tls, self.timeout)

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        self.server.check()
        check_names("channels", self.channels)
        check_names("patterns", self.patterns)
        if not self.channels and not self.patterns:
            raise ConfigError("channels and patterns are empty: name one of them at least")
        check_poll(self.poll)

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, bytes]]:
        """Yield what arrives."""
        del partition, offset
        reader = ChannelReader(self)
        try:
            await context.in_thread(reader.subscribe)
            while True:
                messages = await context.in_thread(reader.take, context.now())
                if messages:
                    keys, values = zip(*messages, strict=True)
                    yield Read.raw(values, {}, keys=keys)
                else:
                    await context.sleep(self.poll)
        finally:
            await context.in_thread(reader.close)


class ChannelReader:
    """The subscription of one reader, on a connection of its own."""

    def __init__(self, source: RedisPubSub) -> None:
        self._source = source
        self._server = source.server
        self._silence = timedelta(milliseconds=duration_ms(source.timeout))
        self._client = self._server.client()
        self._received: PubSub = self._client.pubsub()  # type: ignore[no-untyped-call]
        self._heard: datetime | None = None
        self._is_asked = False

    def subscribe(self) -> None:
        """Connect, and subscribe to channels and patterns."""
        with self._server.errors():
            look_at_server(self._client, self._server.url)
            if self._source.channels:
                self._received.subscribe(*self._source.channels)
            if self._source.patterns:
                self._received.psubscribe(*self._source.patterns)

    def take(self, now: datetime) -> list[tuple[bytes, bytes]]:
        """Return channel and data of the messages that have arrived.

        Raises:
            Retriable: the connection is lost, or the server has not answered a PING.
        """
        found: list[tuple[bytes, bytes]] = []
        size = 0
        with self._server.errors():
            while len(found) < MESSAGES_MAX and size < READ_BYTES:
                message = self._received.get_message(timeout=0)
                if message is None:
                    self._listen(now)
                    break
                self._heard, self._is_asked = now, False
                # Not the answers to SUBSCRIBE and PING.
                if message["type"] in {"message", "pmessage"}:
                    found.append((message["channel"], message["data"]))
                    size += len(message["data"])
        return found

    def _listen(self, now: datetime) -> None:
        """Ask a server that has been silent for a PING: one that is gone is silent, too."""
        # Of the runtime's clock, which a driver moves: the first look begins the silence.
        if self._heard is None:
            self._heard = now
        if now - self._heard < self._silence:
            return
        if self._is_asked:
            raise Retriable(f"{self._server.url} has not answered a PING")
        self._received.ping()
        self._heard, self._is_asked = now, True

    def close(self) -> None:
        """Close the subscription and the connection."""
        self._received.close()
        self._client.close()
