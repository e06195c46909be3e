"""Metrics of a broker's parts, under the names of Kafka's JMX exporter, computed at each look.

Rules of this room: nothing here is called while records are served. Whatever goes over many
partitions or groups pauses every few of them (`Look`), so that a look does not hold the event loop.
Metrics that Kafka does not have begin with `streamlog_`.
"""
