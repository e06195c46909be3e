"""TcpTransport.begin: answers that are passed on as they arrive, and every way to get none."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine

import pytest

from streamlog.errors import ConnectionLost, CorruptData, RequestTimedOut, StreamlogError
from streamlog.protocol.frame import decode_request
from streamlog.protocol.messages.cluster_metadata import MetadataRequest
from streamlog.transport.client_connection import Outcome, TcpTransport
from tests.transport.test_client_connection import (
    Peer,
    agree,
    cluster_id,
    connected,
    frame,
    metadata,
    peer,
)


class Taken:
    """The outcomes of one request."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.came = asyncio.Event()
        self.was_in_task = False

    def __call__(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.was_in_task = asyncio.current_task() is not None
        self.came.set()


def asked(behave: Peer, body: Callable[[TcpTransport], Coroutine[object, object, None]]) -> None:
    """Run `body` with a connection to a peer that behaves like that."""

    async def main() -> None:
        async with peer(behave) as address:
            transport = await connected(address)
            async with asyncio.timeout(60):
                await body(transport)
            await transport.close()

    asyncio.run(main())


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with its correlation id as the cluster id."""
    await agree(reader, writer)
    while True:
        number = decode_request(await frame(reader)).correlation_id
        writer.write(metadata(number, f"cluster {number}"))


def test_answers_are_passed_on_outside_of_tasks_and_in_order() -> None:
    async def body(transport: TcpTransport) -> None:
        taken = Taken()
        for _ in range(3):
            transport.begin(MetadataRequest(topics=[]), taken)
        last = await transport.call(MetadataRequest(topics=[]), timeout_ms=60_000)
        names = [cluster_id(each) for each in taken.outcomes]
        assert names == sorted(names)
        assert len(names) == 3
        assert (cluster_id(last) or "") > (names[-1] or "")
        assert not taken.was_in_task

    asked(answer_all, body)


def test_no_outcome_comes_within_begin() -> None:
    async def body(transport: TcpTransport) -> None:
        await transport.close()
        taken = Taken()
        with pytest.raises(ConnectionLost):
            transport.begin(MetadataRequest(topics=[]), taken)
        assert not taken.outcomes

    asked(answer_all, body)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(b"", ConnectionLost), (struct.pack(">ii", 5, 2) + b"\x00", CorruptData)],
)
def test_a_lost_connection_and_garbage_are_outcomes(
    answer: bytes, error: type[StreamlogError]
) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        await frame(reader)
        writer.write(answer)
        writer.close()

    async def body(transport: TcpTransport) -> None:
        taken = Taken()
        transport.begin(MetadataRequest(topics=[]), taken)
        await taken.came.wait()
        (outcome,) = taken.outcomes
        assert isinstance(outcome, error)

    asked(behave, body)


@pytest.mark.parametrize("gives_up", [True, False])
def test_an_answer_that_is_not_wanted_any_more_disturbs_no_other(*, gives_up: bool) -> None:
    async def body(transport: TcpTransport) -> None:
        first, second = Taken(), Taken()
        answer = transport.begin(MetadataRequest(topics=[]), first)
        transport.begin(MetadataRequest(topics=[]), second)
        if gives_up:
            answer.pass_on(RequestTimedOut("long enough"))
        else:
            answer.cancel()
        await second.came.wait()
        assert len(first.outcomes) == gives_up
        assert [type(each).__name__ for each in second.outcomes] == ["MetadataResponse"]

    asked(answer_all, body)
