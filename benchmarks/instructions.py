"""What single small requests cost a broker, in instructions of the processor.

`python -m benchmarks.instructions [--beside CHECKOUT]` needs valgrind. Times of a request differ by
a fifth from run to run on a shared machine; instructions differ by less than a thousandth, so a
change of 1 % shows, and they can be counted while other programs run. Each kind of request is sent
to a broker in this process, over a transport that drops the answers, `FEW` and `MANY` times; the
difference counts. Not measured here: system calls, sockets, and waits for memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.security.principals import RequestContext
from streamlog.broker.server.connection import Client, Connection
from streamlog.broker.server.connections import Connections
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.protocol.api_table import api_of
from streamlog.protocol.frame import encode_request
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.protocol.messages.topics_and_configs import CreatableTopic, CreateTopicsRequest
from streamlog.protocol.schema import Message
from streamlog.records.batch import encode_batch

FEW, MANY = 200, 1_200
KINDS = {
    "produce": "Produce of one message",
    "fetch": "Fetch of one message",
    "fetch_16k": "Fetch of 16 KB",
    "through": "Fetch that waits, and the Produce that it waits for",
}
TOPIC = "t"
BATCH = encode_batch([(1_000, None, b"x" * 200, ())])
PRODUCE_VERSION, FETCH_VERSION = 9, 12


class Sink(asyncio.Transport):
    """A client that takes every answer at once; it is its own second socket."""

    def __init__(self) -> None:
        super().__init__(
            {
                "peername": ("10.0.0.1", 5),
                "sockname": ("127.0.0.1", 9092),
                "second_socket": lambda: self,
            }
        )
        self.answered = asyncio.Event()
        """Set by every answer."""

    def settimeout(self, _: float) -> None:
        """Do nothing: nothing waits here."""

    def send(self, data: bytes, _: int = 0) -> int:
        """Take all of it."""
        self.answered.set()
        return len(data)

    def sendmsg(self, buffers: Sequence[bytes], *_: object) -> int:
        """Take all of them."""
        self.answered.set()
        return sum(map(len, buffers))

    def pause_reading(self) -> None:
        """Do nothing: the program decides what it sends."""

    def resume_reading(self) -> None:
        """Do nothing: the program decides what it sends."""


def open_connection(broker: Broker, client: Sink | None = None) -> Connection:
    """Return a connection of the broker whose client is a `Sink`."""
    directory = broker.directory
    connections: Connections[Client] = Connections(
        lambda: directory.config.connections, quota_table=lambda: directory.altered.quotas
    )
    connection = Connection(
        broker, listener="L", endpoint=("127.0.0.1", 9), connections=connections, gate=None
    )
    connection.connection_made(Sink() if client is None else client)
    return connection


def deliver(connection: Connection, data: bytes) -> None:
    """Let bytes arrive, as the event loop does."""
    position = 0
    while position < len(data):
        room = connection.get_buffer(-1)
        size_bytes = min(len(room), len(data) - position)
        room[:size_bytes] = data[position : position + size_bytes]
        position += size_bytes
        connection.buffer_updated(size_bytes)


def frame_of(request: Message, version: int) -> bytes:
    """Return the bytes of a request."""
    return b"".join(encode_request(api_of(type(request)), version, 1, "c", request))


def produce() -> bytes:
    """Return a Produce of one message to the topic's one partition."""
    data = PartitionProduceData(index=0, records=memoryview(BATCH))
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    return frame_of(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic]), PRODUCE_VERSION)


def fetch(offset: int, max_bytes: int) -> bytes:
    """Return a Fetch of the topic's one partition."""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topic = FetchTopic(topic=TOPIC, partitions=[partition])
    request = FetchRequest(max_wait_ms=5_000, min_bytes=1, max_bytes=max_bytes, topics=[topic])
    return frame_of(request, FETCH_VERSION)


async def work(kind: str, times: int) -> None:
    """Send one kind of request this many times; the counting program runs this."""
    config = BrokerConfig(flush="os")
    async with Broker.open("data", config=config, files=MemoryFiles()) as broker:
        await create_topic(broker)
        reader = Sink()
        producer, consumer = open_connection(broker), open_connection(broker, reader)
        one = produce()
        for _ in range(FEW):
            deliver(producer, one)
        for number in range(times):
            if kind == "produce":
                deliver(producer, one)
            elif kind == "through":
                reader.answered.clear()
                deliver(consumer, fetch(FEW + number, 300))
                deliver(producer, one)
                await reader.answered.wait()
            else:
                deliver(consumer, fetch(0, 300 if kind == "fetch" else 16 * 1024))


async def create_topic(broker: Broker) -> None:
    """Create the topic, with one partition."""
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic])
    answer = broker.begin(request, RequestContext(5, "c", "/10.0.0.1"))
    if isinstance(answer, asyncio.Future):
        await answer


def count(checkout: Path, kind: str, times: int) -> int:
    """Return the instructions of a whole run of `work` in a checkout.

    Raises:
        SystemExit: the program failed; its output is the message.
    """
    python = checkout / ".venv" / "bin" / "python"
    command = [
        "valgrind",
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        str(python if python.exists() else sys.executable),
        *(__file__, "--work", kind, "--times", str(times)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"}
    run = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode or found is None:
        raise SystemExit(f"{' '.join(command)} failed:\n{run.stdout}{run.stderr}")
    return int(found[1])


def per_request(checkout: Path, kind: str) -> float:
    """Return the instructions of one request."""
    return (count(checkout, kind, MANY) - count(checkout, kind, FEW)) / (MANY - FEW)


def main() -> None:
    """Print the instructions of each kind of request, here and in the other checkout."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("--beside", type=Path, help="another checkout, with a venv and built")
    parser.add_argument("--work", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, default=FEW, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        asyncio.run(work(given.work, given.times))
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind counts the instructions: apt install valgrind")
    table = Table(title="instructions a request, in thousands", title_justify="left")
    table.add_column("request")
    columns = ["beside", "here", "here / beside"] if given.beside else ["here"]
    for name in columns:
        table.add_column(name, justify="right")
    for kind, text in KINDS.items():
        here = per_request(Path.cwd(), kind)
        cells = [f"{here / 1_000:.1f}"]
        if given.beside:
            beside = per_request(given.beside.resolve(), kind)
            cells = [f"{beside / 1_000:.1f}", *cells, f"{here / beside:.3f}"]
        table.add_row(text, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
