"""History through Spark: the log as a data source.

    from spark_bridge import session

    spark = session("history")
    rows = spark.read.format("streamlog").option("path", "./.streamlog/log") \
        .option("subscribe", "departures").load()

The top-level name is the extra's: `pip install 'streamlog[spark]'`. It reads through
`streamlog.log` and knows no broker, worker or app.
"""

from __future__ import annotations

from spark_bridge.data_source import StreamlogDataSource
from spark_bridge.java import ensure_java
from spark_bridge.spark_session import register, session

__all__ = ["StreamlogDataSource", "ensure_java", "register", "session"]
