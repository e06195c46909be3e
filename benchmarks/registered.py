"""J1 over Avro: by a schema in a registry, beside the schema given by hand (`AvroSerde`).

The job of `engine` (filter, map, produce) runs as a task without a log: values are read, and the
results become record batches as for a producer. The registry is the one of tests, in memory: a
worker asks a real one once per schema, and not per record. Both read and write the one schema that
the types derive, so their bytes differ only in what names it. Then the same from log to log, by
worker processes (`registered_worker`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median

from benchmarks import registered_worker
from benchmarks.engine.jobs import Event, Sale
from benchmarks.harness import Reading
from benchmarks.registered_worker import RATE_LEAST
from streamlog import App
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord, encode_columns
from streamlog.records.record_columns import FieldColumns, RecordColumns
from streamlog.serdes import AvroSerde
from streamlog.serdes.derived import avro_schema_of
from streamlog.serdes.registered import MEMORY_REGISTRY

START_MS = 1_700_000_000_000
POLL_RECORDS = 5_000
"""As many as a worker hands over at a time."""
ROUNDS = 5


def _job(*, by_registry: bool) -> App:
    """J1, typed values."""
    app = App("registered")
    app.schemas.use(MEMORY_REGISTRY)
    if by_registry:
        events = app.topic("events", key=str, value=Event, schema="avro")
        output = app.topic("output", key=str, value=Sale, schema="avro")
    else:
        event = AvroSerde.registered({1: avro_schema_of(Event)}, Event)
        sale = AvroSerde.registered({2: avro_schema_of(Sale)}, Sale)
        events = app.topic("events", key=str, value=Event, value_serde=event)
        output = app.topic("output", key=str, value=Sale, value_serde=sale)
    even = app.stream(events).filter(lambda _, event: event.amount % 2 == 0)
    even.map_values(lambda event: Sale(event.user, 2 * event.amount, event.ts)).to(output)
    return app


def _arrivals(app: App, records: int) -> list[RecordColumns]:
    serde = app.topics["events"].value
    rows = [
        LogRecord(
            number,
            START_MS + number,
            b"user-%d" % (number % 1_000),
            serde.dumps(Event(f"user-{number % 1_000}", "tea", number, START_MS + number)),
            (),
        )
        for number in range(records)
    ]
    return [
        RecordColumns.of(rows[start : start + POLL_RECORDS])
        for start in range(0, records, POLL_RECORDS)
    ]


def _records_per_s(app: App, arrivals: list[RecordColumns]) -> float:
    task = Task(
        app.topology().subtopologies[0], TaskId(0, 0), partitions={"events": 1, "output": 1}
    )
    task.start_at({("events", 0): 0})
    count, began_ns = 0, time.process_time_ns()
    for records in arrivals:
        count += len(records)
        outbox = task.process(
            {("events", 0): records}, START_MS + count, ends={("events", 0): count}
        )
        for batch in outbox.writes:
            written = FieldColumns()
            written.timestamps, written.keys = [*batch.timestamps], [*batch.keys]
            written.values = [*batch.values]
            encode_columns(written)
    return count * 1e9 / (time.process_time_ns() - began_ns)


async def figures(directory: Path, records: int) -> AsyncIterator[Reading]:
    """Yield both rates, and their ratio."""
    apps = {"by hand": _job(by_registry=False), "by registry": _job(by_registry=True)}
    arrivals = {name: _arrivals(app, records) for name, app in apps.items()}
    rates: dict[str, list[float]] = {name: [] for name in apps}
    # In turns, so that a machine that slows down slows both.
    for _ in range(ROUNDS):
        for name, app in apps.items():
            rates[name].append(_records_per_s(app, arrivals[name]))
    found = {name: median(each) for name, each in rates.items()}
    for name, rate in found.items():
        yield Reading(f"J1, Avro {name}", rate, "records/s of CPU", digits=0)
    share = found["by registry"] / found["by hand"]
    yield Reading("J1, Avro: by registry over by hand", share, "", least=RATE_LEAST, digits=2)
    async for reading in registered_worker.figures(directory, records):
        yield reading
