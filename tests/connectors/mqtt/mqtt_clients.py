"""Clients of a broker for tests: one that publishes, one that collects what others publish."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.servers.mosquitto import MosquittoServer

LIMIT_S = 60


@contextmanager
def client_of(server: MosquittoServer, client_id: str = "") -> Iterator[paho.Client]:
    """Return a client that is connected, and connects again after a restart of the server."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
    client.reconnect_delay_set(min_delay=1, max_delay=1)
    client.connect("127.0.0.1", server.port)
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def publish(
    client: paho.Client, topic: str, *payloads: bytes, qos: int = 1, retain: bool = False,
    properties: Properties | None = None,
) -> None:  # fmt: skip
    """Publish, and wait until the broker has taken all."""
    sent = [client.publish(topic, each, qos, retain, properties) for each in payloads]
    for each in sent:
        each.wait_for_publish(LIMIT_S)


def publish_properties(**values: object) -> Properties:
    """Return the properties of a message."""
    properties = Properties(PacketTypes.PUBLISH)
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


class Collector:
    """Subscribes to everything, and keeps what comes."""

    def __init__(self, client: paho.Client) -> None:
        self.messages: list[paho.MQTTMessage] = []
        self._changed = threading.Condition()
        self._client = client
        self._sentinels = 0
        client.on_message = self._on_message
        subscribed = threading.Event()
        client.on_subscribe = lambda *_: subscribed.set()
        client.subscribe("#", qos=2)
        assert subscribed.wait(LIMIT_S)

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def collected(self) -> list[paho.MQTTMessage]:
        """Return what was published before this call."""
        self._sentinels += 1
        end = b"%d" % self._sentinels
        publish(self._client, "sentinel", end, qos=2)
        with self._changed:
            came = self._changed.wait_for(
                lambda: any((m.topic, m.payload) == ("sentinel", end) for m in self.messages),
                LIMIT_S,
            )
            assert came
            return [each for each in self.messages if each.topic != "sentinel"]
