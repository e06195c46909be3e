"""MqttConnection: one connection to a broker, and what its answers mean.

The library works in a thread of its own, and calls back there. The calls here block; they run in
the thread of the task.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from streamlog.connect import ConnectError, Refused, Retriable, Secret
from streamlog.connectors.client_tls import ClientTls, split_server_url
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError

PORTS = {"mqtt": 1883, "mqtts": 8883}
KEEPALIVE_S = 30
"""How often a silent connection is tried; a dead one is noticed after about twice this time."""
CLOSE_S = 2
"""How long a broker may take to read what was sent before the connection is cut."""
CLIENT_ID_BYTES_MAX = 65_535
INFLIGHT_LIMIT = 65_535
"""The largest Receive Maximum of the protocol, which a broker that names none has."""
REFUSALS = frozenset({132, 133, 134, 135, 138, 140, 144, 149, 154, 155, 156, 157})
"""Reason codes that no later attempt changes: protocol, client id, login, rights, names of topics,
sizes, what the broker does not support, and another broker to use."""
BLAMES_MESSAGE = frozenset({144, 149, 153})
"""Reason codes that are about one message: the name of its topic, its size, its payload."""
LOOK_AT = "look at url, user and password, at the user's rights, and at qos and retain"
TAKEN_OVER = 142
"""Another client has connected with the same client id."""


@dataclass(frozen=True, slots=True)
class MqttBroker:
    """The settings of a broker.

    Attributes:
        url: `mqtt://HOST:PORT`, or `mqtts://` for TLS.
        user: the user; None for none.
        password: its password.
        tls: the files of TLS, for `mqtts://`.
        timeout: how long an answer may take.
    """

    url: str
    user: str | None
    password: Secret | None
    tls: ClientTls | None
    timeout: Dur

    def check(self) -> None:
        """Raise ConfigError if a setting is none."""
        parts, _ = split_server_url(self.url, PORTS)
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ConfigError("url takes no path or parameters: write mqtt://HOST:PORT")
        if self.tls is not None:
            self.tls.check()
            if parts.scheme != "mqtts":
                raise ConfigError("tls needs a url that begins with mqtts://")
        if self.password is not None and self.user is None:
            raise ConfigError("password needs user")
        if not self.timeout_s:
            raise ConfigError(f"timeout={self.timeout!r} must be longer than 0")

    @property
    def timeout_s(self) -> float:
        """How long an answer may take, in seconds."""
        return duration_ms(self.timeout) / 1000


@dataclass(frozen=True, slots=True)
class MqttSession:
    """What a client asks of its broker.

    Attributes:
        client_id: under which the broker keeps the session.
        expiry_s: how long it keeps the session of a client that is away; 0 ends it with the
            connection.
        receive_max: how many messages the broker may send before they are acknowledged.
        packet_bytes_max: the largest packet that the client takes; None for any.
    """

    client_id: str
    expiry_s: int = 0
    receive_max: int = INFLIGHT_LIMIT
    packet_bytes_max: int | None = None

    def properties(self) -> Properties:
        """Return the properties of CONNECT."""
        found = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        found.SessionExpiryInterval = self.expiry_s
        found.ReceiveMaximum = self.receive_max
        if self.packet_bytes_max is not None:
            found.MaximumPacketSize = self.packet_bytes_max
        return found


class MqttConnection:
    """One connection to a broker.

    Args:
        broker: the settings.
        session: what is asked of the broker.
        inflight: how many messages may be published before they are acknowledged.

    Attributes:
        client: the library's client; its `on_message` and `on_publish` are the user's.
        failure: why the connection has ended, or was refused; None while it is open.
        is_kept: whether the broker has kept a session of this client id.
        expiry_s: how long the broker keeps the session, which may be less than was asked for.
        packet_bytes_max: the largest packet that the broker takes; None for any.
    """

    def __init__(self, broker: MqttBroker, session: MqttSession, inflight: int = 1) -> None:
        self._broker, self._session, self._inflight = broker, session, inflight
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._qos = 0
        self.is_kept = False
        self.expiry_s = session.expiry_s
        self.packet_bytes_max: int | None = None
        self.failure: Exception | None = None
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=session.client_id,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        self.client.max_inflight_messages = inflight
        # A flush is what is bounded, not the queue of the library.
        self.client.max_queued_messages = 0
        if broker.user is not None:
            password = None if broker.password is None else broker.password.reveal()
            self.client.username_pw_set(broker.user, password)
        if split_server_url(broker.url, PORTS)[0].scheme == "mqtts":
            self.client.tls_set_context((broker.tls or ClientTls()).context())
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_subscribe = self._on_subscribe
        self.client.on_unsubscribe = self._on_unsubscribe

    def open(self) -> None:
        """Connect; a session that nothing is kept of begins anew.

        Raises:
            Retriable: the broker can't be reached, or can't answer now.
            ConfigError: it refuses the client.
        """
        parts, port = split_server_url(self._broker.url, PORTS)
        self.client.connect_timeout = self._broker.timeout_s
        try:
            self.client.connect(
                parts.hostname or "",
                port,
                KEEPALIVE_S,
                clean_start=not self._session.expiry_s,
                properties=self._session.properties(),
            )
        except OSError as error:
            raise Retriable(f"{self._broker.url}: {error}") from error
        self.client.loop_start()
        self._await_answer("CONNECT")

    def subscribe(self, filters: Sequence[str], options: SubscribeOptions) -> None:
        """Subscribe, and wait until the broker has confirmed.

        Raises:
            ConnectError: it refuses one of the filters, or grants a lower QoS.
        """
        self._answered.clear()
        self._qos = options.QoS
        self.client.subscribe([(each, options) for each in filters])
        self._await_answer("SUBSCRIBE")

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """End subscriptions, and wait until the broker has confirmed."""
        self._answered.clear()
        self.client.unsubscribe([*filters])
        self._await_answer("UNSUBSCRIBE")

    def check(self) -> None:
        """Raise what has ended the connection, if anything has."""
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Send what waits, and disconnect; the broker keeps the session as it was asked to."""
        if self.client.disconnect() == paho.MQTT_ERR_SUCCESS:
            self._ended.wait(CLOSE_S)
        self.cut()

    def cut(self) -> None:
        """End the connection without a word, whatever waits to be sent."""
        # The library's thread would wait for a broker that reads nothing: until keep-alive, twice.
        connected = self.client.socket()
        # TLS sockets are sockets as well; the library's third kind, of WebSockets, is not used.
        if isinstance(connected, socket.socket):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        self.client.loop_stop()

    def _fail(self, error: Exception) -> None:
        # The first reason counts; the others follow from it.
        self.failure = self.failure or error
        self._answered.set()

    def _await_answer(self, to: str) -> None:
        if not self._answered.wait(self._broker.timeout_s):
            raise Retriable(f"{self._broker.url} has not answered {to}")
        self.check()

    def _on_connect(
        self,
        _client: paho.Client,
        _userdata: object,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            text = f"{self._broker.url} refuses the connection: {reason}"
            is_final = reason.value in REFUSALS
            self._fail(Refused(f"{text}; {LOOK_AT}") if is_final else Retriable(text))
            return
        # The library sends as many as it was told before, and the broker would disconnect.
        limit = getattr(properties, "ReceiveMaximum", INFLIGHT_LIMIT)
        if limit < self._inflight:
            self._fail(
                ConfigError(
                    f"{self._broker.url} takes {limit} messages before it acknowledges them: set"
                    f" inflight to {limit} instead of {self._inflight}"
                )
            )
            return
        self.is_kept = flags.session_present
        self.expiry_s = getattr(properties, "SessionExpiryInterval", self.expiry_s)
        self.packet_bytes_max = getattr(properties, "MaximumPacketSize", None)
        self._answered.set()

    def _on_disconnect(
        self,
        _client: paho.Client,
        _userdata: object,
        _flags: paho.DisconnectFlags,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        self._ended.set()
        text = f"{self._broker.url}: connection lost: {reason}"
        if reason.value in REFUSALS:
            # A message at fault is found by halves; anything else would meet every message.
            is_of_message = reason.value in BLAMES_MESSAGE
            self._fail(ConnectError(text) if is_of_message else Refused(f"{text}; {LOOK_AT}"))
            return
        # 1. A worker is suspended, and another one takes its task. 2. The broker ends the former
        # connection. 3. Without a pause, the two would end each other's connection in turns.
        self._fail(Retriable(text, after="30s" if reason.value == TAKEN_OVER else None))

    def _on_subscribe(
        self,
        _client: paho.Client,
        _userdata: object,
        _mid: int,
        reasons: Sequence[ReasonCode],
        _properties: Properties | None,
    ) -> None:
        refused = [str(each) for each in reasons if each.is_failure]
        if refused:
            self._fail(ConnectError(f"{self._broker.url} refuses a topic: {', '.join(refused)}"))
        elif any(each.value < self._qos for each in reasons):
            self._fail(
                ConnectError(f"{self._broker.url} grants a lower QoS than {self._qos} for a topic")
            )
        self._answered.set()

    def _on_unsubscribe(
        self,
        _client: paho.Client,
        _userdata: object,
        _mid: int,
        _reasons: object,
        _properties: Properties | None,
    ) -> None:
        self._answered.set()
