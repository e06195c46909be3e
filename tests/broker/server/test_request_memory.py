"""Large requests share bounded memory in turn, and none waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import ConnectionConfig
from streamlog.broker.server import connections as sweeping
from streamlog.broker.server import throttling
from streamlog.broker.server.connection import Connection
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.server.throttling import RECEIVE_BYTES_PER_S_MIN, SLOW_MS, RequestMemory
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.protocol.api_table import api_of
from streamlog.protocol.frame import encode_request
from streamlog.protocol.frame_reader import READ_BYTES
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest
from streamlog.protocol.messages.produce_and_fetch import ProduceRequest, ProduceResponse
from tests.broker.node import batch, create, produce_request
from tests.broker.server.test_socket_server import Peer, peer, until

BOUND = 100
PEERS = 20
BATCH_BYTES = 400_000
PRODUCE = api_of(ProduceRequest)


class Sender:
    """A connection that records how much memory it holds and how often it was granted some."""

    def __init__(self, kept_bytes: int | None = None) -> None:
        self.held_bytes = 0
        self.kept_bytes = kept_bytes
        """How many of the held bytes `give_back` keeps; None for all."""
        self.received: int | None = 0
        self.turns = 0

    def go_on(self, size_bytes: int) -> None:
        self.held_bytes = size_bytes
        self.turns += 1

    def give_back(self) -> int:
        if self.kept_bytes is not None:
            self.held_bytes = self.kept_bytes
        return self.held_bytes

    def received_bytes(self) -> int | None:
        return self.received

    def ask(self, memory: RequestMemory[Sender], size_bytes: int, *, wait: bool = True) -> bool:
        granted = memory.want(self, size_bytes, wait=wait)
        if granted:
            self.held_bytes = size_bytes
        return granted


def new_memory() -> RequestMemory[Sender]:
    return RequestMemory(lambda: BOUND)


def test_memory_is_granted_in_the_order_of_requests() -> None:
    memory = new_memory()
    one, large, small = Sender(), Sender(), Sender()
    assert one.ask(memory, 80)
    assert not large.ask(memory, 90)
    assert not small.ask(memory, 10), "or the large one would wait forever"
    assert not large.ask(memory, 90), "asking again does not lose the turn"
    assert one.ask(memory, 0)
    assert (large.turns, small.turns, memory.used_bytes) == (1, 1, 100)


def test_a_request_above_the_bound_is_received_alone() -> None:
    memory = new_memory()
    one, huge = Sender(), Sender()
    assert one.ask(memory, 1)
    assert not huge.ask(memory, 1000)
    memory.leave(one)
    assert (huge.held_bytes, memory.used_bytes) == (1000, 1000)
    assert not one.ask(memory, 1)
    assert huge.ask(memory, 0)
    assert one.held_bytes == 1


def test_unneeded_memory_is_given_back_on_demand() -> None:
    memory = new_memory()
    idle, half = Sender(kept_bytes=0), Sender(kept_bytes=30)
    assert idle.ask(memory, 40)
    assert half.ask(memory, 60)
    one = Sender()
    assert one.ask(memory, 70)
    assert (idle.held_bytes, half.held_bytes, memory.used_bytes) == (0, 30, 100)


def test_a_request_without_wait_is_not_queued() -> None:
    memory = new_memory()
    one, other = Sender(), Sender()
    assert one.ask(memory, 100)
    assert not other.ask(memory, 1, wait=False)
    assert one.ask(memory, 0)
    assert (other.turns, memory.used_bytes) == (0, 0)


def test_slow_senders_are_found_only_while_others_wait() -> None:
    memory = new_memory()
    fast, slow, paused = Sender(), Sender(), Sender()
    paused.received = None
    for sender in (fast, slow, paused):
        assert sender.ask(memory, 30)
    assert memory.slow(0) == []
    assert memory.slow(10 * SLOW_MS) == []
    assert not Sender().ask(memory, 50)
    assert memory.slow(20 * SLOW_MS) == []
    assert memory.slow(20 * SLOW_MS + SLOW_MS - 1) == [], "the waiting time is still too short"
    fast.received = RECEIVE_BYTES_PER_S_MIN * SLOW_MS // 1000
    slow.received = fast.received - 1
    assert memory.slow(21 * SLOW_MS) == [slow]


def test_a_holder_that_needs_more_goes_before_waiting_senders() -> None:
    memory = new_memory()
    one, other = Sender(), Sender()
    assert one.ask(memory, 2)
    assert not other.ask(memory, 99)
    assert not one.ask(memory, 3), "the grant comes through go_on"
    assert (one.held_bytes, one.turns, other.turns) == (3, 1, 0)
    assert one.ask(memory, 0)
    assert other.held_bytes == 99


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 150), st.booleans(), st.booleans()),
        max_size=60,
    )
)
def test_memory_stays_bounded_and_every_sender_gets_some(
    steps: list[tuple[int, int, bool, bool]],
) -> None:
    memory = new_memory()
    senders = [Sender() for _ in range(6)]
    waiting: dict[Sender, int] = {}
    for number, size_bytes, wait, leaves in steps:
        sender = senders[number]
        if leaves:
            memory.leave(sender)
            sender.held_bytes = 0
            waiting.pop(sender, None)
        elif sender.ask(memory, size_bytes, wait=wait):
            waiting.pop(sender, None)
        elif wait or sender in waiting:
            waiting[sender] = size_bytes
        waiting = {each: size for each, size in waiting.items() if each.held_bytes != size}
        held = [each.held_bytes for each in senders if each.held_bytes]
        assert memory.used_bytes == sum(held)
        assert memory.used_bytes - max(held, default=0) <= BOUND, (
            "more than one holder is above the bound"
        )
    for _ in range(len(senders)):
        for sender in [each for each in senders if each not in waiting]:
            memory.leave(sender)
            sender.held_bytes = 0
        waiting = {each: size for each, size in waiting.items() if each.held_bytes != size}
    assert not waiting


# ---- in a server ----


def serve(story: Callable[[Broker, Acceptor], Awaitable[None]], bound_bytes: int) -> None:
    config = BrokerConfig(connections=ConnectionConfig(queued_request_bytes=bound_bytes))

    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles(), config=config) as broker,
            Acceptor(broker) as server,
        ):
            create(broker)
            await story(broker, server)

    asyncio.run(main())


def frame() -> bytes:
    request = produce_request(batch(b"x" * BATCH_BYTES))
    return b"".join(encode_request(PRODUCE, PRODUCE.max_version, 7, "slow", request))


def buffered(server: Acceptor) -> int:
    """Return the bytes of all read buffers beyond their initial size."""
    return sum(len(each._reader._buffer) - READ_BYTES for each in server._connections)


async def is_answered(one: Peer) -> None:
    number, response = await one.answer(ProduceRequest)
    assert number == 7
    assert isinstance(response, ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == 0


def test_many_slow_writers_stay_within_the_bound() -> None:
    bound_bytes = 3 * BATCH_BYTES

    async def story(broker: Broker, server: Acceptor) -> None:
        memory = server._connections.memory
        data = frame()
        async with AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(peer(server)) for _ in range(PEERS)]
            for one in peers:
                one.write(data[: READ_BYTES // 2])
            await until(lambda: len(memory._held) + len(memory._waiting) == PEERS)
            assert len(memory._held) == 3
            small = await stack.enter_async_context(peer(server))
            small.ask(ApiVersionsRequest(), 1)
            await small.answer(ApiVersionsRequest)
            for one in peers:
                one.write(data[READ_BYTES // 2 :])
            answers = asyncio.gather(*map(is_answered, peers))
            while not answers.done():
                assert memory.used_bytes <= bound_bytes
                assert buffered(server) <= bound_bytes
                await asyncio.sleep(0)
            await answers
            assert memory._waiting == {}
            assert broker.directory.log("t", 0).log_end_offset == PEERS
        await until(lambda: len(server._connections) == 0)
        assert memory.used_bytes == 0

    serve(story, bound_bytes)


def test_a_buffer_that_has_grown_is_asked_for_once_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that leave later ask for nothing: what was granted for the read is still there."""
    asked: list[int] = []
    gets_memory = Connection.gets_memory

    def counted(connection: Connection) -> bool:
        asked.append(connection._reads_done)
        return gets_memory(connection)

    monkeypatch.setattr(Connection, "gets_memory", counted)

    async def story(_: Broker, server: Acceptor) -> None:
        async with peer(server) as one:
            one.write(frame())
            await is_answered(one)
            asked.clear()
            for _number in range(20):  # Each is answered after its sync.
                one.ask(produce_request(batch(b"a")), 7)
                await is_answered(one)
        assert len(asked) >= 20
        assert len({*asked}) == len(asked)

    serve(story, 10 * BATCH_BYTES)


def test_a_disconnect_within_a_request_frees_its_memory() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        memory = server._connections.memory
        data = frame()
        async with peer(server) as waits:
            async with peer(server) as leaves:
                leaves.write(data[:100_000])
                await until(lambda: memory.used_bytes > BATCH_BYTES - READ_BYTES)
                waits.write(data)
                await until(lambda: len(memory._waiting) == 1)
            await is_answered(waits)

    serve(story, BATCH_BYTES)


def test_a_slow_sender_is_disconnected_while_others_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(throttling, "SLOW_MS", 50)
    monkeypatch.setattr(sweeping, "SWEEP_MS", 20)

    async def story(_: Broker, server: Acceptor) -> None:
        memory = server._connections.memory
        data = frame()
        async with peer(server) as stuck, peer(server) as waits:
            stuck.write(data[:100_000])
            await until(lambda: memory.used_bytes > BATCH_BYTES - READ_BYTES)
            waits.write(data)
            assert await stuck.hung_up()
            await is_answered(waits)

    serve(story, BATCH_BYTES)
    assert "queued.max.request.bytes" in caplog.text


def test_an_idle_clients_buffer_is_reclaimed_for_others() -> None:
    async def story(_: Broker, server: Acceptor) -> None:
        memory = server._connections.memory
        data = frame()
        async with peer(server) as idle, peer(server) as other:
            idle.write(data)
            await is_answered(idle)
            other.write(data)
            await is_answered(other)
            assert buffered(server) <= BATCH_BYTES + READ_BYTES
            assert memory.used_bytes == buffered(server)

    serve(story, BATCH_BYTES + READ_BYTES)
