"""Fetch answers over a socket, from files: the produced bytes, in order."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.broker.broker import Broker
from streamlog.broker.server.socket_server import Acceptor
from streamlog.protocol.api_table import api_of
from streamlog.protocol.frame import decode_response, encode_request
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from streamlog.records.batch import RecordBatch, set_offset_and_epoch
from tests.broker.node import FETCH_BY_NAME, batch, create, delete, produce

FETCH = api_of(FetchRequest)
PATIENCE_S = 120
PARTITIONS = 3
LOOPS = ["asyncio", *(["uvloop"] if importlib.util.find_spec("uvloop") else [])]
Story = Callable[[Broker, Acceptor], Awaitable[None]]


def serve(loop: str, directory: str | Path, story: Story) -> None:
    async def main() -> None:
        async with Broker.open(str(directory)) as broker, Acceptor(broker) as server:
            async with asyncio.timeout(PATIENCE_S):
                await story(broker, server)

    factory = importlib.import_module("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


@contextmanager
def connected(server: Acceptor) -> Iterator[socket.socket]:
    """Yield a client with a small receive buffer, so that the broker's writes are split."""
    with closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        client.connect_ex((server.host, server.port))
        yield client


async def read_exactly(client: socket.socket, size_bytes: int, chunk_bytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size_bytes:
        piece = await loop.sock_recv(client, min(chunk_bytes, size_bytes - len(data)))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data


@dataclass(frozen=True)
class Ask:
    """A Fetch: pairs of partition and offset, in the request's order, and its bounds."""

    offsets: tuple[tuple[int, int], ...]
    partition_max_bytes: int
    max_bytes: int

    def frame(self, number: int) -> bytes:
        partitions = [
            FetchPartition(
                partition=index,
                fetch_offset=offset,
                partition_max_bytes=self.partition_max_bytes,
            )
            for index, offset in self.offsets
        ]
        request = FetchRequest(
            max_bytes=self.max_bytes, topics=[FetchTopic(topic="t", partitions=partitions)]
        )
        return b"".join(encode_request(FETCH, FETCH_BY_NAME, number, "c", request))


def expected(logs: list[list[bytes]], ask: Ask) -> list[bytes]:
    """Return whole batches while there is room, and the very first in any case."""
    found = []
    room = ask.max_bytes
    for index, offset in ask.offsets:
        left = min(ask.partition_max_bytes, room)
        taken = b""
        for data in logs[index]:
            if RecordBatch(data).next_offset <= offset:
                continue
            first_of_all = not taken and not any(found)
            if len(data) > left and not first_of_all:
                break
            taken += data
            left -= len(data)
            if left <= 0:
                break
        room -= len(taken)
        found.append(taken)
    return found


sizes = st.lists(st.sampled_from([1, 50, 500, 5_000, 40_000]), max_size=12)
asks = st.lists(
    st.builds(
        Ask,
        st.permutations(range(PARTITIONS)).flatmap(
            lambda order: st.tuples(*(st.tuples(st.just(i), st.integers(0, 24)) for i in order))
        ),
        st.sampled_from([1, 700, 6_000, 100_000, 1 << 20]),
        st.sampled_from([1, 6_000, 60_000, 1 << 25]),
    ),
    min_size=1,
    max_size=40,
)


@pytest.mark.parametrize("loop", LOOPS)
@settings(deadline=None, max_examples=40)
@given(
    contents=st.lists(sizes, min_size=PARTITIONS, max_size=PARTITIONS),
    fetches=asks,
    chunk_bytes=st.sampled_from([700, 10_000, 1 << 20]),
)
def test_pipelined_fetches_return_the_produced_bytes(
    loop: str, contents: list[list[int]], fetches: list[Ask], chunk_bytes: int
) -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        create(broker, partitions=PARTITIONS)
        logs: list[list[bytes]] = []
        for index, values in enumerate(contents):
            logs.append([])
            for number, size in enumerate(values):
                data = bytearray(batch(os.urandom(size), b""))
                await produce(broker, bytes(data), index=index)
                set_offset_and_epoch(data, 2 * number, 0)
                logs[index].append(bytes(data))
        ends = [2 * len(values) for values in contents]
        within = [
            Ask(
                tuple((index, min(offset, ends[index])) for index, offset in ask.offsets),
                ask.partition_max_bytes,
                ask.max_bytes,
            )
            for ask in fetches
        ]
        with connected(server) as client:
            frames = b"".join(ask.frame(number) for number, ask in enumerate(within))
            await asyncio.get_running_loop().sock_sendall(client, frames)
            for number, ask in enumerate(within):
                (size_bytes,) = struct.unpack(">i", await read_exactly(client, 4, 4))
                frame = await read_exactly(client, size_bytes, chunk_bytes)
                correlation_id, response = decode_response(FETCH, FETCH_BY_NAME, frame)
                assert correlation_id == number
                assert isinstance(response, FetchResponse)
                partitions = response.responses[0].partitions
                assert [one.error_code for one in partitions] == [0] * PARTITIONS
                assert [bytes(one.records) for one in partitions] == expected(logs, ask)

    with tempfile.TemporaryDirectory() as directory:
        serve(loop, directory, story)


async def large_log(broker: Broker) -> bytes:
    """Write a partition of 8 MB, twice what a socket buffers; return a Fetch of all of it."""
    create(broker)
    data = bytearray(batch(os.urandom(1_000_000)))
    whole = b""
    for number in range(8):
        await produce(broker, bytes(data))
        set_offset_and_epoch(data, number, 0)
        whole += data
    return whole


def log_file(directory: Path) -> Path:
    (path,) = directory.glob("p-*/*.log")
    return path


ALL = Ask(((0, 0),), 1 << 25, 1 << 25)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_fetch_of_a_deleted_topic_is_sent_whole_from_its_file(loop: str, tmp_path: Path) -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        whole = await large_log(broker)
        with connected(server) as client:
            await asyncio.get_running_loop().sock_sendall(client, ALL.frame(0))
            head = await read_exactly(client, 100, 100)
            (connection,) = server._connections
            assert connection._writer.blocked
            assert connection._writer.held_bytes < 1_000
            delete(broker)
            (size_bytes,) = struct.unpack(">i", head[:4])
            frame = head[4:] + await read_exactly(client, size_bytes - 96, 1 << 20)
        _, response = decode_response(FETCH, FETCH_BY_NAME, frame)
        assert isinstance(response, FetchResponse)
        assert bytes(response.responses[0].partitions[0].records) == whole  # type: ignore[arg-type]

    serve(loop, tmp_path, story)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_file_truncated_while_it_is_sent_ends_the_connection(
    loop: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        await large_log(broker)
        with connected(server) as client, caplog.at_level(logging.WARNING):
            await asyncio.get_running_loop().sock_sendall(client, ALL.frame(0))
            head = await read_exactly(client, 100, 100)
            path = log_file(tmp_path)
            os.truncate(path, 0)
            (size_bytes,) = struct.unpack(">i", head[:4])
            with pytest.raises(ConnectionResetError):
                await read_exactly(client, size_bytes, 1 << 20)
        assert "truncated" in caplog.text

    serve(loop, tmp_path, story)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_half_closed_client_still_gets_its_answer(loop: str, tmp_path: Path) -> None:
    async def story(broker: Broker, server: Acceptor) -> None:
        whole = await large_log(broker)
        with connected(server) as client:
            await asyncio.get_running_loop().sock_sendall(client, ALL.frame(0))
            client.shutdown(socket.SHUT_WR)
            (size_bytes,) = struct.unpack(">i", await read_exactly(client, 4, 4))
            frame = await read_exactly(client, size_bytes, 1 << 20)
            assert whole in frame
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""

    serve(loop, tmp_path, story)
