"""A topic into a table of PostgreSQL with Quix Streams. In the peers' environment, alone."""

import os

from quixstreams import Application
from quixstreams.sinks.community.postgresql import PostgreSQLSink

app = Application(
    broker_address=os.environ["PEER_BROKER"],
    consumer_group=os.environ["PEER_TABLE"],
    auto_offset_reset="earliest",
    commit_every=5_000,
    loglevel="ERROR",
)
sink = PostgreSQLSink(
    host="127.0.0.1",
    port=int(os.environ["PEER_PORT"]),
    dbname=os.environ["PEER_DATABASE"],
    user="postgres",
    password="",
    table_name=os.environ["PEER_TABLE"],
    primary_key_columns=("id",),
    upsert_on_primary_key=True,
    schema_auto_update=False,
    include_metadata=False,
)
if __name__ == "__main__":
    app.dataframe(app.topic(os.environ["PEER_TOPIC"], value_deserializer="json")).sink(sink)
    app.run()
