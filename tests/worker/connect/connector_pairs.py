"""Apps of a source and a sink each: every connector that promises exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from streamlog import App
from streamlog.connect import Flush, Sink, Source
from streamlog.connectors.http.poll import Poll
from streamlog.connectors.http.sse import Sse
from streamlog.connectors.kafka import KafkaClusterSink, KafkaClusterSource
from streamlog.connectors.lakes.delta import Delta
from streamlog.connectors.lakes.iceberg import Iceberg
from streamlog.connectors.objects import Objects
from streamlog.connectors.postgres_cdc import PostgresCdc
from streamlog.connectors.redis import RedisSink, RedisStreams
from streamlog.connectors.search import Search
from streamlog.connectors.spool_dir import SpoolDir
from streamlog.connectors.sql import SqlSink, SqlSource
from streamlog.connectors.tail import Tail

Settings = Mapping[str, str]
FLUSH = Flush(records=20, every="50ms")
LAKE_FLUSH = Flush(records=1_000, every="50ms")
"""A lake takes a second for a commit after some hundreds of them; rows come meanwhile."""
TABLE = "numbers"


class Row(msgspec.Struct):
    """A row of a table."""

    n: int


def _sql_source(given: Settings) -> SqlSource:
    return SqlSource(
        url=given["source"], tables=(TABLE,), mode="incrementing", incrementing_column="n",
        poll="20ms",
    )  # fmt: skip


def _poll(given: Settings) -> Poll:
    return Poll(
        url=f"{given['source']}/rows", every="20ms", mode="cursor", cursor_field="n",
        cursor_parameter="since",
    )  # fmt: skip


def _iceberg(given: Settings) -> Iceberg:
    properties = {"type": "sql", "uri": given["catalog"], "warehouse": given["target"]}
    return Iceberg(properties=properties, table="main.numbers", flush=LAKE_FLUSH)


def _kafka_sink(given: Settings) -> KafkaClusterSink:
    return KafkaClusterSink(
        bootstrap_servers=given["target"], topic="out", transactional_id="pair",
        transaction_timeout="5s", flush=FLUSH,
    )  # fmt: skip


SOURCES: Mapping[str, Callable[[Settings], Source[Any, Any]]] = {
    "Tail": lambda given: Tail(path=given["source"], poll="5ms", poll_max="20ms"),
    "SpoolDir": lambda given: SpoolDir(directory=given["source"], settle="0s", poll="20ms"),
    "SqlSource": _sql_source,
    "PostgresCdc": lambda given: PostgresCdc(
        # Of a copy, rows that change meanwhile may come twice, as a read and as a change.
        url=given["source"],
        tables=("public.numbers",),
        status_interval="1s",
        snapshot="never",
    ),
    "RedisStreams": lambda given: RedisStreams(
        url=given["source"], streams=("in",), value="n", poll="10ms"
    ),
    "KafkaClusterSource": lambda given: KafkaClusterSource(
        bootstrap_servers=given["source"], topics=("in",)
    ),
    "Poll": _poll,
    "Sse": lambda given: Sse(url=f"{given['source']}/events", retry="20ms"),
}
SINKS: Mapping[str, Callable[[Settings], Sink[Any, Any]]] = {
    "Objects": lambda given: Objects(url=given["target"], format="jsonl", flush=FLUSH),
    "SqlSink": lambda given: SqlSink(
        url=given["target"], table=TABLE, auto_create=True, flush=FLUSH
    ),
    "Delta": lambda given: Delta(url=given["target"], flush=LAKE_FLUSH),
    "Iceberg": _iceberg,
    "RedisSink": lambda given: RedisSink(
        url=given["target"], form="stream", key="out", flush=FLUSH
    ),
    "KafkaClusterSink": _kafka_sink,
    "Search": lambda given: Search(
        urls=(given["target"],), index="numbers", ids="offset", flush=FLUSH
    ),
}
KEYS: Mapping[str, type] = {"SqlSource": int, "PostgresCdc": int}
VALUES: Mapping[str, type] = {"SqlSource": Row, "PostgresCdc": Row, "Poll": Row}
"""The types of values, of sources that give no bytes."""


def app_of(name: str, source: str, sink: str, given: Settings) -> App:
    """Return the app of a pair; its topic is `NAME-rows`."""
    app = App(name, state_dir="state", commit_interval="20ms")
    rows = app.topic(
        f"{name}-rows", key=KEYS.get(source), value=VALUES.get(source, bytes), partitions=2
    )
    app.source(rows, SOURCES[source](given), name="in")
    app.sink(rows, SINKS[sink](given), name="out", tasks=2)
    return app
