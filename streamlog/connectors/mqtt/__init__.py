"""MQTT: `MqttSource` subscribes to topics of a broker, `MqttSink` publishes to them. MQTT 5.

Rule of the room: the library never connects again by itself. An acknowledgement belongs to the
connection that brought the message, as another one numbers its messages anew. So a lost connection
ends the reader, which begins with another client and the session that the broker has kept.
"""

from streamlog.connectors.mqtt.mqtt_sink import MqttSink
from streamlog.connectors.mqtt.mqtt_source import MqttSource

__all__ = ["MqttSink", "MqttSource"]
