"""Socket buffers: what settings ask for is what the sockets of both sides have."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import closing, suppress
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.client.consumer.consumer_settings import ConsumerSettings
from streamlog.client.producer import ProducerSettings
from streamlog.errors import ConfigError
from streamlog.log import Log
from streamlog.record import TopicPartition

FACTOR = 2
"""Linux reserves twice the size for its own bookkeeping, and reports it."""


def buffers(port: int) -> dict[str, set[tuple[int, int]]]:
    """Return the send and receive buffers of this process's connections to a port."""
    found: dict[str, set[tuple[int, int]]] = {"broker": set(), "client": set()}
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError), closing(socket.socket(fileno=os.dup(int(each.name)))) as taken:
            if taken.family != socket.AF_INET or taken.type != socket.SOCK_STREAM:
                continue
            own, other = taken.getsockname()[1], taken.getpeername()[1]
            if port in (own, other):
                found["broker" if own == port else "client"].add(
                    (
                        taken.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
                        taken.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
                    )
                )
    return found


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_sockets_of_both_sides_have_the_buffers_that_were_set(kind: str) -> None:
    config = BrokerConfig().override(
        {"socket.send.buffer.bytes": "40000", "socket.receive.buffer.bytes": "50000"}
    )

    async def main() -> dict[str, set[tuple[int, int]]]:
        async with (
            Broker.open("log", files=MemoryFiles(), config=config) as broker,
            Acceptor(broker) as server,
            Log.open(f"kafka://127.0.0.1:{server.port}") as log,
        ):
            await log.admin().create_topics([NewTopic("t", 1)])
            if kind == "producer":
                async with log.producer(
                    send_buffer_bytes=20_000, receive_buffer_bytes=30_000
                ) as producer:
                    await (await producer.send("t", b"v", partition=0))
                    return buffers(server.port)
            async with log.consumer(
                send_buffer_bytes=20_000, receive_buffer_bytes=30_000
            ) as consumer:
                await consumer.end_offsets([TopicPartition("t", 0)])
                return buffers(server.port)

    found = asyncio.run(main())
    assert found["broker"] == {(FACTOR * 40_000, FACTOR * 50_000)}
    assert (FACTOR * 20_000, FACTOR * 30_000) in found["client"]


@pytest.mark.parametrize("size_bytes", [0, -2])
def test_a_size_that_is_no_size_is_refused(size_bytes: int) -> None:
    with pytest.raises(ConfigError, match="send_buffer_bytes is"):
        ProducerSettings(send_buffer_bytes=size_bytes)
    with pytest.raises(ConfigError, match="receive_buffer_bytes is"):
        ConsumerSettings(receive_buffer_bytes=size_bytes)
