"""The measured jobs as apps: `streamlog -A benchmarks.connect.apps worker`.

Which job, and with which settings, stands in the environment (`CONNECT_*`, see `lab`).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.connect.orders import Order, order
from streamlog import App, Record, Topic
from streamlog.connect import (
    Batch,
    Effect,
    Flush,
    Sink,
    SinkContext,
    SinkTask,
    TopicPartition,
)
from streamlog.connectors.memory import MemoryRows, MemorySink, MemorySource
from streamlog.connectors.syslog import Syslog, SyslogMessage
from streamlog.connectors.tail import Tail
from streamlog.durations import EPOCH

Settings = dict[str, Any]
WARM_UP = 1_000
"""The records that come before those that are measured."""

app = App(
    os.environ.get("CONNECT_APP", "bench-connect"),
    log=os.environ.get("CONNECT_LOG", "kafka://127.0.0.1:9092"),
    state_dir=os.environ.get("CONNECT_STATE", "./.streamlog/benchmark-state"),
    commit_interval=os.environ.get("CONNECT_COMMIT_MS", "500") + "ms",
)


class GatedOrders(Iterable[Record[str, Order]]):
    """Orders in memory; those behind the first few are there once a file is."""

    def __init__(self, gate: Path, records: int) -> None:
        self._gate = gate
        self._rows = [Record(str(at), order(at), EPOCH) for at in range(WARM_UP + records)]
        gc.freeze()  # What is made for the measurement is no garbage to look for.

    def __iter__(self) -> Iterator[Record[str, Order]]:
        yield from self._rows[:WARM_UP]
        while not self._gate.exists():
            time.sleep(0.01)  # In the reader's own thread.
        yield from self._rows[WARM_UP:]


class DroppedRows(MemoryRows):
    """Keeps offsets alone, so that no memory grows."""

    def add(
        self,
        owner: int,
        batches: Sequence[Batch[Any, Any]],
        offsets: Mapping[TopicPartition, int],
    ) -> None:
        """Add the offsets behind batches."""
        del batches
        super().add(owner, (), offsets)


class SlowTarget(Sink[bytes, bytes], frozen=True, kw_only=True):
    """Takes a flush a second, and says in a file how many records it has."""

    effect: ClassVar[Effect] = "appending"
    path: str

    def open(self, context: SinkContext) -> SinkTask[bytes, bytes]:
        """Return a task that has taken nothing."""
        del context
        return _SlowTask(Path(self.path))


class _SlowTask(SinkTask[bytes, bytes]):
    def __init__(self, path: Path) -> None:
        self._path, self._taken = path, 0

    async def write(self, batch: Batch[bytes, bytes]) -> None:
        self._taken += len(batch)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        del offsets
        await asyncio.sleep(1)
        self._path.write_text(str(self._taken))


def slow_sink(settings: Settings) -> None:
    """A topic into a target that is slower than the log."""
    topic = app.topic(settings["topic"], key=bytes, value=bytes)
    # As many records as make the bytes of a flush, which is the bound.
    flush = Flush(records=1_000_000)
    app.sink(topic, SlowTarget(path=settings["path"], flush=flush), name="slow")


def tail(settings: Settings) -> None:
    """Lines of a file into a topic."""
    lines = app.topic(settings["topic"], key=bytes, value=bytes)
    app.source(lines, Tail(path=settings["path"]), name="tail")


def memory(settings: Settings) -> None:
    """Values from memory into a topic, and from there into memory."""
    topic = app.topic(settings["topic"], key=str, value=Order)
    rows = GatedOrders(Path(settings["gate"]), settings["records"])
    app.source(topic, MemorySource(values=rows, read_rows=WARM_UP), name="from-memory")
    into = MemoryRows() if settings["keeps"] else DroppedRows()
    app.sink(topic, MemorySink(into=into), name="to-memory")


def forward(settings: Settings) -> None:
    """From a topic to another, each value decoded and encoded."""
    entry = app.topic(settings["entry"], key=str, value=Order)
    entered = app.stream(entry).map_values(lambda each: each)
    entered.to(app.topic(settings["topic"], key=str, value=Order))


def sql_sink(settings: Settings) -> None:
    """A topic into a table, the newest row of each key."""
    from streamlog.connectors.sql import SqlSink  # noqa: PLC0415 - the extra `sql`

    topic = app.topic(settings["topic"], key=bytes, value=Order)
    sink = SqlSink(
        url=settings["url"],
        table=settings["table"],
        insert_mode="upsert",
        pk_mode="record_value",
        pk_fields=("id",),
    )
    app.sink(topic, sink, name="to-table")


def sql_source(settings: Settings) -> None:
    """A table into a topic."""
    from streamlog.connectors.sql import SqlSource  # noqa: PLC0415 - the extra `sql`

    source = SqlSource(
        url=settings["url"],
        tables=(settings["table"],),
        mode="incrementing",
        incrementing_column="id",
        poll="100ms",
    )
    topic: Topic[Any, Any] = app.topic(settings["topic"], key=int, value=Order)
    app.source(topic, source, name="from-table")


def cdc(settings: Settings) -> None:
    """The changes of a table into a topic."""
    from streamlog.connectors.postgres_cdc import PostgresCdc  # noqa: PLC0415 - the extra `sql`

    name = settings["table"]
    source = PostgresCdc(
        url=settings["url"],
        tables=(f"public.{name}",),
        slot=name,
        publication=name,
    )
    topic: Topic[Any, Any] = app.topic(settings["topic"], key=int, value=Order)
    app.source({f"public.{name}": topic}, source, name="changes")


def objects(settings: Settings) -> None:
    """A topic into files."""
    from streamlog.connectors.objects import FLUSH_BYTES_LIMIT, Objects  # noqa: PLC0415 - an extra

    value: Any = bytes if settings["raw"] else Order
    topic: Topic[Any, Any] = app.topic(settings["topic"], key=bytes, value=value)
    flush = Flush(records=settings["records"], size_bytes=FLUSH_BYTES_LIMIT, every="10m")
    sink = Objects(url=settings["url"], format=settings["format"], flush=flush)
    app.sink(topic, sink, name="to-files")


def webhook(settings: Settings) -> None:
    """Requests into a topic."""
    from streamlog.connectors.http.webhook import Webhook  # noqa: PLC0415 - the extra `http`

    source = Webhook(address=settings["address"], format=settings["format"])
    app.source(app.topic(settings["topic"], key=bytes, value=bytes), source, name="requests")


def syslog(settings: Settings) -> None:
    """Datagrams of syslog into a topic."""
    topic = app.topic(settings["topic"], key=str, value=SyslogMessage)
    app.source(topic, Syslog(address=settings["address"]), name="syslog")


JOBS = {
    "slow-sink": slow_sink,
    "tail": tail,
    "memory": memory,
    "forward": forward,
    "sql-sink": sql_sink,
    "sql-source": sql_source,
    "cdc": cdc,
    "objects": objects,
    "webhook": webhook,
    "syslog": syslog,
}
if "CONNECT_JOB" in os.environ:
    JOBS[os.environ["CONNECT_JOB"]](json.loads(os.environ["CONNECT_SETTINGS"]))
