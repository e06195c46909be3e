"""Names: the connectors that a configuration can name, and the classes behind them.

Built-in connectors are in a table; those of other packages have an entry point in the group
`streamlog.connectors`, whose name is the connector's and whose object is its class. A class is
imported when it is asked for, so that a library that one connector needs is not needed by others.

Rule: a name never leads to an import path. What is not installed as a connector can't be named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal, TypeAlias

from streamlog.connect.java_connectors import JavaConnector
from streamlog.connect.sink import Sink
from streamlog.connect.source import Source
from streamlog.errors import ConfigError

ENTRY_POINTS: Final = "streamlog.connectors"
"""The group of the entry points of connectors in other packages."""
ConnectorClass: TypeAlias = type[Source[Any, Any]] | type[Sink[Any, Any]]

_SUFFIX: Final = "Connector"
"""Kafka Connect takes the name of a class without it."""
BUILT_IN: Final[Mapping[str, str]] = {
    "Delta": "streamlog.connectors.lakes.delta",
    "ElasticsearchSinkConnector": "streamlog.connectors.search.elasticsearch",
    "Exec": "streamlog.connectors.exec",
    "FileStreamSinkConnector": "streamlog.connectors.file_stream",
    "FileStreamSourceConnector": "streamlog.connectors.file_stream",
    "HttpSink": "streamlog.connectors.http.http_sink",
    "Iceberg": "streamlog.connectors.lakes.iceberg",
    "JdbcSinkConnector": "streamlog.connectors.sql.jdbc",
    "JdbcSourceConnector": "streamlog.connectors.sql.jdbc",
    "KafkaClusterSink": "streamlog.connectors.kafka",
    "KafkaClusterSource": "streamlog.connectors.kafka",
    "KafkaMirror": "streamlog.connectors.kafka",
    "Lines": "streamlog.connectors.lines",
    "MemorySink": "streamlog.connectors.memory",
    "MemorySource": "streamlog.connectors.memory",
    "MqttSink": "streamlog.connectors.mqtt",
    "MqttSource": "streamlog.connectors.mqtt",
    "Objects": "streamlog.connectors.objects",
    "Poll": "streamlog.connectors.http.poll",
    "PostgresCdc": "streamlog.connectors.postgres_cdc",
    "PostgresConnector": "streamlog.connectors.postgres_cdc.debezium",
    "Print": "streamlog.connectors.memory",
    "RedisPubSub": "streamlog.connectors.redis",
    "RedisSink": "streamlog.connectors.redis",
    "RedisStreams": "streamlog.connectors.redis",
    "S3SinkConnector": "streamlog.connectors.objects.s3_sink",
    "Search": "streamlog.connectors.search",
    "SpoolDir": "streamlog.connectors.spool_dir",
    "SqlSink": "streamlog.connectors.sql",
    "SqlSource": "streamlog.connectors.sql",
    "Sse": "streamlog.connectors.http.sse",
    "Syslog": "streamlog.connectors.syslog",
    "Tail": "streamlog.connectors.tail",
    "WebSocket": "streamlog.connectors.websocket",
    "Webhook": "streamlog.connectors.http.webhook",
}
"""The modules of the built-in connectors, by the names of their classes."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A connector that is installed."""

    name: str
    kind: Literal["source", "sink"]
    connector: ConnectorClass
    java: type[JavaConnector] | None = None
    """The settings of the Java class that the name is of, if it is one."""

    @property
    def settings(self) -> ConnectorClass | type[JavaConnector]:
        """The class whose fields are the settings of a configuration."""
        return self.java or self.connector


def plugin_names() -> list[str]:
    """Return the names of all connectors that are installed, without importing them."""
    return sorted({*BUILT_IN, *_installed()})


def find_plugin(name: str) -> Plugin:
    """Return a connector by its name, or by the last part of a dotted one.

    Raises:
        ConfigError: there is no connector of this name, or a library that it needs is missing.
    """
    # Connect takes "a.b.FileStreamSourceConnector" and "FileStreamSource" alike.
    short = name.rpartition(".")[2]
    if short not in BUILT_IN and f"{short}{_SUFFIX}" in BUILT_IN:
        short = f"{short}{_SUFFIX}"
    try:
        found = _load(short)
    except ImportError as error:
        raise ConfigError(
            f"connector {short} can't be imported: {error}; docs/connectors.md names the extra "
            "that it needs"
        ) from error
    java = None
    if isinstance(found, type) and issubclass(found, JavaConnector):
        java, found = found, found.stands_for
    if isinstance(found, type) and issubclass(found, Source):
        return Plugin(short, "source", found, java)
    if isinstance(found, type) and issubclass(found, Sink):
        return Plugin(short, "sink", found, java)
    raise ConfigError(f"{short} is neither a Source nor a Sink: its entry point is wrong")


def _load(name: str) -> object:
    # A built-in name wins: another package can't take its place.
    module = BUILT_IN.get(name)
    if module is not None:
        loaded: object = getattr(import_module(module), name)
        return loaded
    installed = _installed().get(name)
    if installed is None:
        raise ConfigError(
            f"there is no connector {name!r}; installed are {', '.join(plugin_names())}"
        )
    entry: object = installed.load()
    return entry


def _installed() -> dict[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=ENTRY_POINTS)}
