"""Spark bridge: the log as a data source of Spark, and histories that run in Spark.

    from spark_bridge import session

    spark = session("history")
    rows = spark.read.format("streamlog").option("path", "./.streamlog/log") \
        .option("subscribe", "departures").load()

The package belongs to the extra: `pip install 'streamlog-py[spark]'`. It reads through
`streamlog.log` and does not import brokers, workers or apps.
"""

from __future__ import annotations

from spark_bridge.data_source import StreamlogDataSource
from spark_bridge.java import ensure_java
from spark_bridge.spark_session import register, session
from spark_bridge.state_source import StateDataSource

__all__ = ["StateDataSource", "StreamlogDataSource", "ensure_java", "register", "session"]
