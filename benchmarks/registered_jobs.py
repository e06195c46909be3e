"""J1 over Avro, as two apps: `streamlog -A benchmarks.registered_jobs worker`.

`REGISTERED_BY` in the environment says whose: `registry` or `hand` (`AvroSerde`).
"""

from __future__ import annotations

import os

from benchmarks.engine.jobs import Event, Sale
from streamlog import App
from streamlog.serdes import AvroSerde
from streamlog.serdes.derived import avro_schema_of

VARIANTS = ("hand", "registry")
PARTITIONS = 1


def job_of(variant: str, *, log: str, registry: str, state: str) -> App:
    """Return the app: filter, map, produce."""
    app = App(
        f"by-{variant}",
        log=log,
        schema_registry=registry if variant == "registry" else None,
        state_dir=state,
        commit_interval="500ms",
    )
    # Both read and write the one schema that the types derive: their bytes differ only in what
    # names it.
    if variant == "registry":
        events = app.topic(f"events-{variant}", key=str, value=Event, schema="avro", partitions=1)
        output = app.topic(f"output-{variant}", key=str, value=Sale, schema="avro", partitions=1)
    else:
        event = AvroSerde.registered({1: avro_schema_of(Event)}, Event)
        sale = AvroSerde.registered({2: avro_schema_of(Sale)}, Sale)
        events = app.topic(
            f"events-{variant}", key=str, value=Event, value_serde=event, partitions=1
        )
        output = app.topic(f"output-{variant}", key=str, value=Sale, value_serde=sale, partitions=1)
    even = app.stream(events).filter(lambda _, event: event.amount % 2 == 0)
    even.map_values(lambda event: Sale(event.user, 2 * event.amount, event.ts)).to(output)
    return app


app = job_of(
    os.environ.get("REGISTERED_BY", "hand"),
    log=os.environ.get("REGISTERED_LOG", "kafka://127.0.0.1:9092"),
    registry=os.environ.get("REGISTERED_URL", "http://127.0.0.1:8081"),
    state=os.environ.get("REGISTERED_STATE", "./.streamlog/registered-state"),
)
