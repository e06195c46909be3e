"""MqttSource: subscribes to topics of a broker, and acknowledges what is in the log.

The session at the broker is the offset: it has the messages that were not acknowledged. The offset
in the log only says which session that is, and to what it was subscribed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import ClassVar, Literal

import paho.mqtt.client as paho
from paho.mqtt.subscribeoptions import SubscribeOptions

from streamlog.connect import (
    Guarantee,
    Json,
    Read,
    Secret,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.mqtt.mqtt_connection import (
    CLIENT_ID_BYTES_MAX,
    INFLIGHT_LIMIT,
    MqttBroker,
    MqttConnection,
    MqttSession,
)
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError, quantity
from streamlog.record import Headers
from streamlog.repeated import logger

log = logger(__name__)

TAKEN_MAX = 1_000
"""The most messages of one step."""
STEP_BYTES = 4 * 1024 * 1024
"""About the bytes of one step."""
HELD_BYTES_MAX = 8 * 1024 * 1024
"""What waits of messages with QoS 0 before further ones are dropped: nothing holds them back."""
UNACKNOWLEDGED_BYTES_MAX = 1024 * 1024 * 1024
"""The most bytes that a broker may send before an acknowledgement; all may wait in memory."""
MESSAGE_BYTES_MAX = 1024 * 1024
"""The largest message that is taken by default."""
MESSAGE_BYTES_LIMIT = 15 * 1024 * 1024
"""A step of a source is 16 MiB at most."""
CLIENTS_MAX = 1_000
SESSION_MS_MIN = 1_000
SESSION_S_LIMIT = 2**32 - 2
"""The next number means "for ever"."""


class MqttSource(Source[str, bytes], frozen=True, kw_only=True):
    """Subscribes to topics of an MQTT broker; a record's key is the topic, its value the payload.

    At least once with `qos=1`: the broker keeps a session, and gets an acknowledgement once the
    record is in the log. Messages that were published with QoS 2 arrive with QoS 1: the broker
    forgets a message of QoS 2 before the log has it. At most once with `qos=0`.

    Attributes:
        url: the broker, as `mqtt://HOST:1883`, or `mqtts://` for TLS; without a password.
        topics: filters of topics, such as `sensors/+/state`.
        user: the user of the broker.
        password: its password.
        tls: the files of TLS, for `mqtts://`.
        qos: 1, or 0 for messages that may be lost.
        client_id: the name of the session, which no other client of the broker has; "streamlog-"
            and the connector's name by default.
        clients: how many tasks may share the messages, by shared subscriptions ($share). The
            sessions of the second and later ones end with "-1", "-2" and so on.
        session: how long the broker keeps the session of a client that is away.
        retained: "once": retained messages come when a topic is first subscribed to; "never".
        inflight: how many messages may wait for their commit; the broker may have a smaller limit.
        message_bytes_max: the broker drops larger messages for this client.
        timeout: how long an answer may take.
    """

    guarantee: ClassVar[Guarantee] = "at_least_once"

    url: str
    topics: tuple[str, ...]
    user: str | None = None
    password: Secret | None = None
    tls: ClientTls | None = None
    qos: Literal[0, 1] = 1
    client_id: str | None = None
    clients: int = 1
    session: Dur = "7d"
    retained: Literal["once", "never"] = "once"
    inflight: int = 1_000
    message_bytes_max: int = MESSAGE_BYTES_MAX
    timeout: Dur = "30s"

    @property
    def broker(self) -> MqttBroker:
        """The broker."""
        return MqttBroker(self.url, self.user, self.password, self.tls, self.timeout)

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        self.broker.check()
        if not self.topics or len({*self.topics}) < len(self.topics):
            raise ConfigError(f"topics={[*self.topics]} is empty, or has one twice")
        for each in self.topics:
            check_filter(each)
        if not 1 <= self.clients <= CLIENTS_MAX:
            raise ConfigError(f"clients={self.clients} is not from 1 to {CLIENTS_MAX}")
        if self.client_id is not None:
            check_client_id(self.client_id)
        if not 1 <= self.inflight <= INFLIGHT_LIMIT:
            raise ConfigError(f"inflight={self.inflight} is not from 1 to {INFLIGHT_LIMIT}")
        if not 1 <= self.message_bytes_max <= MESSAGE_BYTES_LIMIT:
            raise ConfigError(
                f"message_bytes_max={self.message_bytes_max} is not from 1 to {MESSAGE_BYTES_LIMIT}"
            )
        if self.inflight * self.message_bytes_max > UNACKNOWLEDGED_BYTES_MAX:
            raise ConfigError(
                f"inflight={self.inflight} messages of message_bytes_max={self.message_bytes_max} "
                "are more than 1 GiB, and all of them may wait in memory: lower one of the two"
            )
        if not SESSION_MS_MIN <= duration_ms(self.session) <= SESSION_S_LIMIT * 1_000:
            raise ConfigError(f"session={self.session!r} is shorter than 1s, or longer than 136 y")

    def session_id(self, client: int, context: SourceContext) -> str:
        """Return the name of a client's session.

        Raises:
            ConfigError: the connector's name can't be part of it.
        """
        base = self.client_id or f"streamlog-{context.name}"
        check_client_id(base)
        return f"{base}-{client}" if client else base

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return a part for each client."""
        del context
        return [{"client": number} for number in range(self.clients)]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, bytes]]:
        """Yield what arrives; the broker gets its acknowledgement once it counts."""
        receiver = MqttReceiver(self, int(str(partition["client"])), context)
        former = {} if offset is None else offset
        try:
            is_kept = await context.in_thread(receiver.open, former)
            if former.get("client_id") == receiver.client_id and not is_kept and self.qos:
                context.count("lost_sessions")
                log.warning(
                    "source %r: %s has no session of %s any more, which was to be kept for %s:"
                    " messages of the time between are lost",
                    context.name, self.url, receiver.client_id, self.session,
                )  # fmt: skip
            if former != receiver.offset:
                # From here on the session exists: without one, the next life has missed something.
                yield Read([], receiver.offset)
            while True:
                messages = await receiver.take()
                yield Read.raw(
                    [bytes(each.payload) for each in messages],
                    receiver.offset,
                    keys=[each.topic.encode() for each in messages],
                    headers=[headers_of(each) for each in messages],
                    committed=partial(receiver.acknowledge, messages),
                )
        finally:
            await context.in_thread(receiver.close)


class MqttReceiver:
    """The connection of one client, and the messages that it has brought.

    Args:
        source: the settings.
        client: its number.
        context: the runtime.

    Attributes:
        client_id: the name of its session.
        offset: what names the session in the log.
    """

    def __init__(self, source: MqttSource, client: int, context: SourceContext) -> None:
        self._source, self._context = source, context
        self.client_id = source.session_id(client, context)
        group = source.session_id(0, context)
        prefix = "" if source.clients == 1 else f"$share/{group}/"
        self._filters = [f"{prefix}{each}" for each in source.topics]
        self.offset: SourceOffset = {"client_id": self.client_id, "filters": [*self._filters]}
        session = MqttSession(
            self.client_id,
            # Nothing is worth keeping of messages that may be lost.
            expiry_s=duration_ms(source.session) // 1_000 if source.qos else 0,
            receive_max=source.inflight,
            packet_bytes_max=source.message_bytes_max,
        )
        self._connection = MqttConnection(source.broker, session)
        self._connection.client.on_message = self._on_message
        self._changing = threading.Lock()
        self._held: deque[paho.MQTTMessage] = deque()
        self._held_bytes = 0
        self._dropped = 0
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def open(self, former: SourceOffset) -> bool:
        """Connect and subscribe; returns whether the broker has kept the session.

        Args:
            former: the offset of the last life; {} for none.
        """
        source, connection = self._source, self._connection
        connection.open()
        if source.qos and connection.expiry_s * 1_000 < duration_ms(source.session):
            log.warning(
                "source %r: %s keeps the session of %s for %d s only, and not for %s",
                self._context.name, source.url, self.client_id, connection.expiry_s, source.session,
            )  # fmt: skip
        if connection.is_kept and former.get("client_id") == self.client_id:
            # The session is still subscribed to what the settings had before.
            dropped = [each for each in _texts(former.get("filters")) if each not in self._filters]
            if dropped:
                connection.unsubscribe(dropped)
        # Also for a session that was kept, as its subscriptions can't be asked for. Retained
        # messages come only for a subscription that is new.
        handling = 1 if source.retained == "once" else 2
        options = SubscribeOptions(qos=source.qos, retainAsPublished=True, retainHandling=handling)
        connection.subscribe(self._filters, options)
        return connection.is_kept

    async def take(self) -> list[paho.MQTTMessage]:
        """Return the messages that have arrived; wait for the first one.

        Raises:
            Retriable: the connection is lost. What it has brought comes again.
        """
        while not self._held:
            self._connection.check()
            self._arrived.clear()
            # It ends by itself, as the end of a connection does not set the event.
            await self._wait()
        with self._changing:
            taken, size = [self._held.popleft()], 0
            while True:
                size += len(taken[-1].payload)
                if not self._held or len(taken) == TAKEN_MAX:
                    break
                if size + len(self._held[0].payload) > STEP_BYTES:
                    break
                taken.append(self._held.popleft())
            self._held_bytes -= size
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._context.count("dropped_messages", dropped)
            log.warning(
                "source %r: dropped %s of QoS 0, as the log takes less than %s sends",
                self._context.name, quantity(dropped, "message"), self._source.url,
            )  # fmt: skip
        return taken

    async def _wait(self) -> None:
        # Between the look at `_held` and `clear`, a message may have come.
        if self._held:
            return
        try:
            async with asyncio.timeout(1):
                await self._arrived.wait()
        except TimeoutError:
            return

    def acknowledge(self, messages: Collection[paho.MQTTMessage]) -> None:
        """Tell the broker that messages are in the log; on a lost connection, they come again."""
        for each in messages:
            if each.qos and self._connection.failure is None:
                self._connection.client.ack(each.mid, each.qos)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()

    def _on_message(
        self, _client: paho.Client, _userdata: object, message: paho.MQTTMessage
    ) -> None:
        # In the library's thread.
        with self._changing:
            if message.qos == 0 and self._held_bytes >= HELD_BYTES_MAX:
                self._dropped += 1
                return
            self._held_bytes += len(message.payload)
            self._held.append(message)
        self._loop.call_soon_threadsafe(self._arrived.set)


def headers_of(message: paho.MQTTMessage) -> Headers:
    """Return user properties, content type, response topic and correlation data as headers."""
    found: list[tuple[str, bytes | None]] = []
    properties = message.properties
    for name, value in getattr(properties, "UserProperty", ()):
        found.append((name, value.encode()))
    for name, attribute in (
        ("content-type", "ContentType"),
        ("mqtt.response-topic", "ResponseTopic"),
        ("mqtt.correlation-data", "CorrelationData"),
    ):
        value = getattr(properties, attribute, None)
        if value is not None:
            found.append((name, value if isinstance(value, bytes) else str(value).encode()))
    if message.retain:
        found.append(("mqtt.retain", b"1"))
    return tuple(found)


def check_filter(text: str) -> None:
    """Raise ConfigError unless a text is a filter of topics (MQTT 5, 4.7)."""
    levels = text.split("/")
    is_whole = all({"+", "#"}.isdisjoint(each) or each in {"+", "#"} for each in levels)
    if not text or "\0" in text or not is_whole or "#" in levels[:-1]:
        raise ConfigError(
            f"topics has {text!r}, which is no filter: + and # are whole levels, # the last one"
        )
    if text.startswith("$share/"):
        raise ConfigError(f"topics has {text!r}: set clients, which shares the subscription")


def check_client_id(text: str) -> None:
    """Raise ConfigError if a text can't name a session and a shared subscription."""
    if not text or {*text} & {*"/+#\0"} or len(text.encode()) > CLIENT_ID_BYTES_MAX:
        raise ConfigError(f"client_id={text[:100]!r} is empty, too long, or has /, + or #")


def _texts(value: Json) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
