"""Paths of whole parts: requests through a broker, records through a producer, batches to a task.

`hot_paths` counts their instructions. Each path runs what its users run, from the outermost call
on: bytes arrive at a connection, `send` is called, a task is given what a fetch has brought. No
path gives the event loop a turn, so that nothing but its input decides what it does, and counts
repeat; `run` raises an error if something has to wait. System calls, and the disk, cost no
instructions here.
"""

from __future__ import annotations

import os
import tempfile
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from selectors import EVENT_READ
from socket import socketpair
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from benchmarks.callgrind import CountedPath
from benchmarks.instructions import Sink, create_topic, deliver, fetch, open_connection, produce
from benchmarks.record_paths import BATCH, KEYS, PARTITIONS, ROWS, TIMES, VALUES
from streamlog import App, Emit, Windowed, agg, tumbling
from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.server.connection import Connection
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer, open_batches
from streamlog.client.producer.deliveries import DeliveryRun
from streamlog.client.producer.sender import RecordMetadata
from streamlog.log import Log
from streamlog.metrics.event_loop import MeasuredSelector
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import split_batches
from streamlog.records.header import write_offset_and_epoch
from streamlog.records.record_columns import record_bytes
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.topology import Subtopology

REQUESTS: Final = 20
"""In a batch of requests, which cost far more than rows."""
TOGETHER: Final = 16
"""Requests that one read of the socket brings."""
LOOKS: Final = 100
"""In a batch of looks for events."""
SENT: Final = "sent"
"""The topic of the producer."""
LINGER_MS: Final = 60_000
"""Long enough for a batch to take all records that are counted."""
T = TypeVar("T")


class FileSink(Sink):
    """A client to which files can be sent as well: `file` takes them."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._file.fileno()


class Event(msgspec.Struct):
    """What tasks read: one of `VALUES`."""

    n: int
    text: str


class Sale(msgspec.Struct):
    """What a task makes of it."""

    n: int


class Total(msgspec.Struct):
    """What there is of a key in one window."""

    events: int
    amount: int


@asynccontextmanager
async def open_whole_paths() -> AsyncIterator[dict[str, CountedPath]]:
    """Open a broker, a producer, and tasks; yield their paths by name."""
    with (
        tempfile.TemporaryDirectory(prefix="streamlog-paths-") as directory,
        Path(os.devnull).open("wb") as null,  # noqa: ASYNC230 - never waits
        _ready_selector() as selector,
    ):
        config = BrokerConfig(flush="os")
        async with Broker.open(directory, config=config) as broker, Log.within(broker) as log:
            await create_topic(broker)
            await log.admin().create_topics([NewTopic(SENT, PARTITIONS)])
            async with log.producer(linger_ms=LINGER_MS) as producer:
                # From here on, each partition has an open batch, which records can join.
                for partition in range(PARTITIONS):
                    await producer.send(SENT, b"", partition=partition)
                yield {
                    **_broker_paths(broker, FileSink(null)),
                    "send records": CountedPath(partial(_send, producer), ROWS),
                    "ask what was delivered": CountedPath(
                        partial(_ask_deliveries, get_running_loop()), ROWS
                    ),
                    **_task_paths(),
                    "look for events": CountedPath(partial(_look, selector), LOOKS),
                }


@contextmanager
def _ready_selector() -> Iterator[MeasuredSelector]:
    """Open a broker's selector with a socket that has something to read."""
    ours, theirs = socketpair()
    with ours, theirs, MeasuredSelector() as selector:
        theirs.send(b"a byte")
        selector.register(ours, EVENT_READ)
        yield selector


def _look(selector: MeasuredSelector) -> None:
    for _ in range(LOOKS):
        if not selector.select(0):
            raise RuntimeError("there is a byte to read, and the selector finds none")


def _broker_paths(broker: Broker, client: Sink) -> dict[str, CountedPath]:
    connection = open_connection(broker, client)
    one = produce()

    def requests(data: bytes) -> CountedPath:
        return CountedPath(partial(_request, connection, client, [data] * REQUESTS), REQUESTS)

    return {
        "Produce of one message": requests(one),
        "Produces that come together": CountedPath(
            partial(_request, connection, client, [one * TOGETHER]), TOGETHER
        ),
        "Fetch of one message": requests(fetch(0, 300)),
        "Fetch of 16 KB": requests(fetch(0, 16 * 1024)),
    }


def _request(connection: Connection, client: Sink, requests: list[bytes]) -> None:
    for data in requests:
        client.answered.clear()
        deliver(connection, data)
        if not client.answered.is_set():
            raise RuntimeError("the broker did not answer at once")


def _send(producer: Producer) -> None:
    """Send records one by one, as a program does that waits for none of them."""
    for key, value in zip(KEYS, VALUES, strict=True):
        _at_once(producer.send(SENT, value, key=key))


def _at_once(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that need not wait; return its result."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    call.close()
    raise RuntimeError(f"{call} had to wait")


def _ask_deliveries(loop: AbstractEventLoop) -> None:
    """Write a batch of records that came one by one, and ask for the place of each."""
    batch = open_batches.OpenBatch()
    new_run = partial(DeliveryRun, loop)
    deliveries: list[Any] = []
    for at, key, value in zip(TIMES, KEYS, VALUES, strict=True):
        open_batches.put(batch, (at, key, value, ()), record_bytes(key, value, ()))
        deliveries.append(open_batches.expect(batch, new_run))
    open_batches.deliver(batch, RecordMetadata(SENT, 0, 7, -1))
    for delivery in deliveries:
        delivery.result()


def _task_paths() -> dict[str, CountedPath]:
    app = App("counted")
    events = app.stream(app.topic("events", key=str, value=Event))
    even = events.filter(lambda _, event: event.n % 2 == 0)
    even.map_values(lambda event: Sale(2 * event.n)).to(app.topic("sales", key=str, value=Sale))
    orders = app.stream(app.topic("orders", key=str, value=Event))
    windowed = orders.group_by_key().windowed(tumbling("10s")).emit(Emit.UPDATE)
    totals = windowed.agg(Total, name="totals", events=agg.count(), amount=agg.sum("n"))
    totals.changes().to(app.topic("totals", key=Windowed[str], value=Total))
    mapping, counting = app.topology().subtopologies
    return {
        "filter and map, by a task": CountedPath(_task_path(mapping, "events"), ROWS),
        "count and sum by window, by a task": CountedPath(_task_path(counting, "orders"), ROWS),
    }


def _task_path(sub: Subtopology, topic: str) -> Callable[[], object]:
    source = (topic, 0)
    task = Task(sub, TaskId(0, 0), partitions={topic: 1}, store=MemoryStore())
    task.start_at({source: 0})
    data, end = bytearray(BATCH), 0

    def take_batch() -> None:
        """Take what a fetch has brought, and commit."""
        nonlocal end
        write_offset_and_epoch(data, end, 0)
        end += ROWS
        (batch,) = split_batches(data)
        outbox = task.process({source: batch.columns()}, TIMES[-1], ends={source: end})
        if not outbox.writes:
            raise RuntimeError(f"the task of {topic} writes no records")
        task.committed(task.checkpoint(), next_offset=end)

    return take_batch
