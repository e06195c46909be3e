"""MqttSink: publishes a topic of the log to topics of a broker."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import ClassVar, Literal, Self
from uuid import uuid4

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from streamlog.connect import (
    BadRecord,
    BadRecords,
    Batch,
    ConnectError,
    Effect,
    Refused,
    Retriable,
    Secret,
    Sink,
    SinkContext,
    SinkTask,
    TopicPartition,
)
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.mqtt.mqtt_connection import (
    BLAMES_MESSAGE,
    INFLIGHT_LIMIT,
    LOOK_AT,
    REFUSALS,
    MqttBroker,
    MqttConnection,
    MqttSession,
)
from streamlog.durations import Dur
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import AnyRecord

LOOK_S = 0.2
"""How often a waiting flush looks whether the connection has ended."""
TEXT_BYTES_MAX = 65_535
"""The longest text of the protocol: of a topic, or of a user property."""
PAYLOAD_BYTES_MAX = 256 * 1024 * 1024 - 1
"""The largest packet of the protocol."""
QUOTA_EXCEEDED = 151
"""The reason code of a limit that has been reached for the time being."""
PUBLISH_OVERHEAD = 1_024
"""What the head of a message may take beside topic, payload and headers."""


class MqttSink(Sink[object, object], frozen=True, kw_only=True):
    """Publishes values as they lie in the log to topics of an MQTT broker.

    At least once with `qos` 1 or 2: a flush counts when the broker has acknowledged all of it.
    Headers become user properties.

    Attributes:
        url: the broker, as `mqtt://HOST:1883`, or `mqtts://` for TLS; without a password.
        topic: the topic, with {topic} (the log's) and {key}.
        user: the user of the broker.
        password: its password.
        tls: the files of TLS, for `mqtts://`.
        qos: 0 (may be lost), 1, or 2.
        retain: whether the broker keeps the last message of each topic; a tombstone deletes it.
        inflight: how many messages are sent before the broker acknowledges them.
        timeout: how long an answer may take.
    """

    effect: ClassVar[Effect] = "appending"

    url: str
    topic: str
    user: str | None = None
    password: Secret | None = None
    tls: ClientTls | None = None
    qos: Literal[0, 1, 2] = 1
    retain: bool = False
    inflight: int = 20
    timeout: Dur = "30s"

    @property
    def broker(self) -> MqttBroker:
        """The broker."""
        return MqttBroker(self.url, self.user, self.password, self.tls, self.timeout)

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        self.broker.check()
        rest = self.topic.replace("{topic}", "").replace("{key}", "")
        if not self.topic or {*rest} & {*"{}+#\0"}:
            raise ConfigError(
                f"topic={self.topic!r} may have {{topic}} and {{key}}, and neither + nor #"
            )
        if not 1 <= self.inflight <= INFLIGHT_LIMIT:
            raise ConfigError(f"inflight={self.inflight} is not from 1 to {INFLIGHT_LIMIT}")

    def topic_of(self, record: AnyRecord) -> str:
        """Return the topic for a record.

        Raises:
            BadRecord: its key gives none.
        """
        name = self.topic.replace("{topic}", record.topic)
        if "{key}" in name:
            if record.key is None:
                raise BadRecord("it has no key, which the setting topic needs")
            name = name.replace("{key}", _text(record.key, "its key"))
        if not name or {*name} & {*"+#\0"} or len(name.encode()) > TEXT_BYTES_MAX:
            raise BadRecord(f"its topic {name[:100]!r} is empty, too long, or has + or #")
        # Topics that begin so are the broker's own, and a key must not reach them.
        if name.startswith("$") and not self.topic.startswith("$"):
            raise BadRecord(f"its topic {name[:100]!r} begins with $")
        return name

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that is not connected yet."""
        self.check()
        return MqttSinkTask(self, context)


def _text(value: object, what: str) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(f"{what} is not UTF-8: {error}") from error


class Outgoing:
    """Counts the messages of one flush, and those that the broker has acknowledged."""

    def __init__(self) -> None:
        self.published = 0
        self._settled = 0
        self._refused: ReasonCode | None = None
        self._changed = threading.Condition()

    def settle(self, reason: ReasonCode) -> None:
        """Note an acknowledgement; called in the library's thread."""
        with self._changed:
            self._settled += 1
            # A code that blames the settings is raised before one that blames a message.
            if reason.is_failure and (self._refused is None or _is_final(reason)):
                self._refused = reason
            self._changed.notify_all()

    def wait(self, connection: MqttConnection, url: str, wait_s: float) -> None:
        """Wait until everything is acknowledged; slow is no failure, standing still is.

        Raises:
            Retriable: the connection is lost, or nothing was acknowledged for `wait_s`.
            ConnectError: the broker refuses a message for what it is.
            ConfigError: it refuses any message, such as for a missing right.
        """
        quiet_s = 0.0
        with self._changed:
            while self._settled < self.published:
                # Mosquitto refuses the first message of several, and drops the connection.
                if self._refused is not None and connection.failure is not None:
                    raise _refusal(url, self._refused)
                # In short waits, as the end of a connection notifies no waiter.
                connection.check()
                before = self._settled
                self._changed.wait(LOOK_S)
                quiet_s = quiet_s + LOOK_S if self._settled == before else 0.0
                if quiet_s > wait_s:
                    raise Retriable(f"{url} has acknowledged no message for {wait_s} s")
        if self._refused is not None:
            raise _refusal(url, self._refused)


def _is_final(reason: ReasonCode) -> bool:
    return reason.value in REFUSALS and reason.value not in BLAMES_MESSAGE


def _refusal(url: str, reason: ReasonCode) -> ConnectError | ConfigError:
    text = f"{url} refuses a message: {reason}"
    if reason.value == QUOTA_EXCEEDED:
        return Retriable(text)
    return Refused(f"{text}; {LOOK_AT}") if _is_final(reason) else ConnectError(text)


class MqttSinkTask(SinkTask[object, object]):
    """A connection, and the messages of the present flush."""

    def __init__(self, sink: MqttSink, context: SinkContext) -> None:
        self._sink, self._context = sink, context
        # The same over all connections: the broker ends the former one, so what it has not read
        # of it can't follow what the next one brings.
        self._session = MqttSession(f"streamlog-{uuid4().hex}")
        self._connection: MqttConnection | None = None
        self._outgoing = Outgoing()

    async def __aenter__(self) -> Self:
        """Connect."""
        await self._context.in_thread(self._connect)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect."""
        await self._context.in_thread(self._close)

    def _connect(self) -> None:
        connection = MqttConnection(self._sink.broker, self._session, self._sink.inflight)
        connection.client.on_publish = self._on_publish
        with ExitStack() as failed:
            failed.callback(connection.close)
            connection.open()
            failed.pop_all()
        self._connection = connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _cut(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut()

    async def begin(self) -> None:
        """Start with no messages, on a new connection if the last one is lost."""
        self._outgoing = Outgoing()
        connection = self._connection
        if connection is None or connection.failure is not None:
            await self._context.in_thread(self._cut)
            await self._context.in_thread(self._connect)

    async def write(self, batch: Batch[object, object]) -> None:
        """Publish the records of a batch, in order.

        Raises:
            BadRecords: some have no topic, or are larger than the broker takes.
        """
        connection = self._connection
        if connection is None:
            raise Retriable(f"{self._sink.url} is not connected")
        # Thousands of calls of the library, which would hold up the loop.
        await self._context.in_thread(self._publish, connection, batch)

    def _publish(self, connection: MqttConnection, batch: Batch[object, object]) -> None:
        messages: list[tuple[str, bytes, Properties]] = []
        why: dict[int, str] = {}
        raw = batch.raw()
        for index, (record, (_, value)) in enumerate(zip(batch.records, raw, strict=True)):
            if value is None and not self._sink.retain:
                self._context.count("tombstones")
                continue
            try:
                messages.append(self._message(record, value or b"", connection.packet_bytes_max))
            except BadRecord as error:
                why[index] = str(error)
        # Nothing of a batch with bad records is sent: it comes again without them.
        if why:
            raise BadRecords(why)
        for topic, payload, properties in messages:
            # Counted before: the acknowledgement may come while this still returns.
            self._outgoing.published += 1
            connection.client.publish(topic, payload, self._sink.qos, self._sink.retain, properties)

    def _message(
        self, record: AnyRecord, payload: bytes, bytes_max: int | None
    ) -> tuple[str, bytes, Properties]:
        topic = self._sink.topic_of(record)
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        pairs = [
            (name, _text(value or b"", f"its header {name}")) for name, value in record.headers
        ]
        if any(len(text.encode()) > TEXT_BYTES_MAX for pair in pairs for text in pair):
            raise BadRecord(f"a header is longer than {TEXT_BYTES_MAX} bytes")
        if pairs:
            properties.UserProperty = pairs
        size = len(topic.encode()) + len(payload)
        size += sum(len(text.encode()) + 2 for pair in pairs for text in pair) + PUBLISH_OVERHEAD
        # The broker would end the connection at such a message, again and again.
        limit = PAYLOAD_BYTES_MAX if bytes_max is None else bytes_max
        if size > limit:
            raise BadRecord(f"its message has about {size} bytes; the broker takes {limit}")
        return topic, payload, properties

    def _on_publish(
        self,
        _client: paho.Client,
        _userdata: object,
        _mid: int,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        self._outgoing.settle(reason)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Wait until the broker has acknowledged everything.

        Raises:
            Retriable: the connection is lost, or the broker has not answered.
            ConnectError: it refuses a message for what it is.
            ConfigError: it refuses any message, such as for a missing right.
        """
        del offsets
        connection, sink = self._connection, self._sink
        if connection is None:
            raise Retriable(f"{sink.url} is not connected")
        wait_s = sink.broker.timeout_s
        await self._context.in_thread(self._outgoing.wait, connection, sink.url, wait_s)

    async def abort(self) -> None:
        """Forget what was published; it is published again."""
        if self._outgoing.published:
            # What the library still holds of this flush must not follow the next one.
            await self._context.in_thread(self._cut)
        self._outgoing = Outgoing()
