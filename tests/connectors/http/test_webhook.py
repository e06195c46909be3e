from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import Secret
from streamlog.connectors.http import webhook
from streamlog.connectors.http.webhook import Webhook
from streamlog.errors import ConfigError
from tests.connectors.runs import Life, on_loop, reading
from tests.connectors.test_lines import until_listening
from tests.servers.server_process import free_port


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[tuple[Life, httpx.AsyncClient]]:
    """Run a webhook whose records are committed only by the test."""
    port = free_port()
    source = Webhook(address=f":{port}", **settings)
    async with (
        reading(source) as life,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        step = asyncio.ensure_future(life.step())
        await until_listening(source.address, "tcp")
        life.first = step  # type: ignore[attr-defined]
        yield life, client
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)


async def committed(life: Life, post: Any) -> httpx.Response:
    """Return the answer to a request whose records are read and committed."""
    answer = asyncio.ensure_future(post)
    await life.first  # type: ignore[attr-defined]
    assert not answer.done(), "nothing counts yet"
    life.commit()
    found: httpx.Response = await answer
    return found


@on_loop
async def test_a_request_is_answered_once_its_record_counts() -> None:
    async with served() as (life, client):
        body = b'{"id": 1}'
        answer = await committed(
            life, client.post("/", content=body, headers={"Idempotency-Key": "k1"})
        )
        assert answer.status_code == 200
        assert life.values == [body]
        assert life.records[0].headers == (("Idempotency-Key", b"k1"),)


@pytest.mark.parametrize(
    ("kind", "body", "values"),
    [
        ("ndjson", b'{"a":1}\n\n[2]\n', [b'{"a":1}', b"[2]"]),
        ("raw", b"\xff\x00", [b"\xff\x00"]),
        ("flume", b'[{"headers":{"h":"x"},"body":"one"},{"body":"two"}]', [b"one", b"two"]),
    ],
)
@on_loop
async def test_formats(kind: str, body: bytes, values: list[bytes]) -> None:
    async with served(format=kind) as (life, client):
        answer = await committed(life, client.post("/", content=body))
        assert answer.status_code == 200
        assert life.values == values
        if kind == "flume":
            assert life.records[0].headers == (("h", b"x"),)


LINES = st.lists(
    st.sampled_from(
        [b'{"a":1}', b"[2]", b" 3 ", b"4\r", b"\r", b"", b" ", b'"\\n"', b"[5", b"6]", b"7 8", b"x"]
    ),
    max_size=6,
).map(b"\n".join)


@given(st.lists(st.tuples(LINES, st.booleans()), min_size=1, max_size=3))
@on_loop
async def test_lines_are_the_values_however_they_lie(bodies: list[tuple[bytes, bool]]) -> None:
    """As spans or as bytes, with or without headers: line by line, as JSON's own reader sees it."""
    deliveries, wanted, names = [], list[bytes](), list[object]()
    for body, has_key in bodies:
        carried = (("key", b"k"),) if has_key else ()
        lines = [line for line in body.split(b"\n") if line.strip()]
        try:
            for line in lines:
                json.loads(line)
        except ValueError:
            with pytest.raises(msgspec.MsgspecError):
                webhook._lines(body, carried)
            continue
        delivery = webhook._lines(body, carried)
        assert (delivery.values, delivery.count) == (lines, len(lines))
        # One without records is answered at once.
        deliveries += [delivery] * bool(lines)
        wanted += lines
        names += [carried] * len(lines)
    assert webhook._headers(deliveries) == (names if any(names) else None)
    assert [*webhook._spans(deliveries)] == wanted


@on_loop
async def test_what_is_wrong_is_answered_at_once() -> None:
    async with served(path="/in", body_bytes_max=20) as (_, client):
        assert (await client.post("/in", content=b"{")).status_code == 400
        assert (await client.post("/in", content=b"[" * 21)).status_code == 413
        assert (await client.post("/other", content=b"1")).status_code == 404
        assert (await client.get("/in")).status_code == 405


@on_loop
async def test_a_signature_and_a_token_are_checked() -> None:
    signed = {"signature_secret": Secret("key"), "token": Secret("t")}
    async with served(**signed) as (life, client):
        signature = hmac.new(b"key", b"1", hashlib.sha256).hexdigest()
        good = {"X-Hub-Signature-256": f"sha256={signature}", "Authorization": "Bearer t"}
        wrong: list[dict[str, str]] = [
            {},
            good | {"Authorization": "Bearer x"},
            good | {"X-Hub-Signature-256": "sha256=00"},
            {"Authorization": "Bearer t"},
        ]
        for headers in wrong:
            assert (await client.post("/", content=b"1", headers=headers)).status_code == 401
        answer = await committed(life, client.post("/", content=b"1", headers=good))
        assert answer.status_code == 200


@on_loop
async def test_a_request_whose_commit_takes_too_long_is_to_be_sent_again() -> None:
    async with served(timeout="50ms") as (_, client):
        answer = await client.post("/", content=b"1")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


@on_loop
async def test_what_is_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Room for one of the two, with what their records cost.
    monkeypatch.setattr(webhook, "HELD_BYTES_MAX", 10 + webhook.VALUE_BYTES)
    async with served() as (life, client):
        waiting = asyncio.ensure_future(client.post("/", content=b"12345678"))
        await life.first  # type: ignore[attr-defined]
        assert (await client.post("/", content=b"123")).status_code == 503
        life.commit()
        assert (await waiting).status_code == 200
        assert life.values == [b"12345678"]


@asynccontextmanager
async def behind_a_log_that_stands(
    monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[tuple[Life, httpx.AsyncClient, webhook.WebhookDoor]]:
    """Run a webhook with room for two bodies of 8 bytes, one of which a step has taken."""
    doors: list[webhook.WebhookDoor] = []

    class Watched(webhook.WebhookDoor):
        def __init__(self, source: Webhook) -> None:
            super().__init__(source)
            doors.append(self)

    monkeypatch.setattr(webhook, "WebhookDoor", Watched)
    monkeypatch.setattr(webhook, "HELD_BYTES_MAX", 2 * (8 + webhook.VALUE_BYTES))
    async with served(**settings) as (life, client):
        first = asyncio.ensure_future(client.post("/", content=b"1" * 8))
        await life.first  # type: ignore[attr-defined]
        yield life, client, doors[0]
        await first


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(30_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to hold")


async def sent(port: int, body: bytes) -> asyncio.StreamWriter:
    """Send a whole request; its sender can go before the answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return writer


@pytest.mark.parametrize("is_abrupt", [True, False])
@on_loop
async def test_a_sender_that_goes_makes_room(
    monkeypatch: pytest.MonkeyPatch, is_abrupt: bool
) -> None:
    async with behind_a_log_that_stands(monkeypatch) as (life, client, door):
        gone = await sent(int(client.base_url.port or 0), b"2" * 8)
        await until(lambda: bool(door._queue))
        assert (await client.post("/", content=b"3")).status_code == 503
        if is_abrupt:
            gone.transport.abort()
        else:
            gone.close()
        await until(lambda: not door._queue)
        third = asyncio.ensure_future(client.post("/", content=b"3" * 8))
        await life.step()
        life.commit()
        assert (await third).status_code == 200
        assert life.values == [b"1" * 8, b"3" * 8], "it was told nothing, and sends it again"


@on_loop
async def test_what_a_step_has_taken_counts_without_its_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with behind_a_log_that_stands(monkeypatch) as (life, client, door):
        gone = await sent(int(client.base_url.port or 0), b"2" * 8)
        await life.step()
        gone.transport.abort()
        # It is in memory until the commit, however many senders come and go.
        for _ in range(3):
            assert (await client.post("/", content=b"3")).status_code == 503
        life.commit()
        assert door._open_bytes == 0
        assert life.values == [b"1" * 8, b"2" * 8]


@on_loop
async def test_senders_that_are_told_to_come_again_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with behind_a_log_that_stands(monkeypatch, timeout="50ms") as (life, client, door):
        held = door._open_bytes
        for _ in range(3):
            assert (await client.post("/", content=b"2" * 8)).status_code == 503
            assert (len(door._queue), door._open_bytes) == (0, held)
        life.commit()
        assert door._open_bytes == 0
        assert life.values == [b"1" * 8]


async def unfinished(port: int, **headers: str) -> tuple[asyncio.StreamReader, Any]:
    """Send the head of a request and 40 bytes of its body, which has 50."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n{more}\r\n".encode())
    writer.write(b"1" * 40)
    return reader, writer


@on_loop
async def test_bodies_that_are_being_sent_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "ARRIVING_BYTES_MAX", 100)
    async with served() as (life, client):
        opened = [await unfinished(int(client.base_url.port or 0)) for _ in range(3)]
        reading_one = [asyncio.ensure_future(reader.readline()) for reader, _ in opened]
        refused, waiting = await asyncio.wait(
            reading_one, timeout=30, return_when=asyncio.FIRST_COMPLETED
        )
        assert [each.result() for each in refused] == [b"HTTP/1.1 503 Service Unavailable\r\n"]
        assert len(waiting) == 2, "those that came first"
        # What was refused makes room.
        answer = await committed(life, client.post("/", content=b"1" * 20))
        assert answer.status_code == 200
        for _, writer in opened:
            writer.close()


@on_loop
async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async with served(timeout="50ms") as (_, client):
        reader, writer = await unfinished(int(client.base_url.port or 0))
        assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()


@on_loop
async def test_a_stranger_is_refused_before_the_body_has_arrived() -> None:
    async with served(token=Secret("t")) as (_, client):
        reader, writer = await unfinished(int(client.base_url.port or 0), Authorization="Bearer x")
        assert await reader.readline() == b"HTTP/1.1 401 Unauthorized\r\n"
        writer.close()


CLIENTS = 300
"""More than the pages of a worker take (`http_server.CONNECTIONS_MAX`)."""


@on_loop
async def test_many_clients_wait_for_one_commit() -> None:
    async with served() as (life, client):
        port = int(client.base_url.port or 0)
        head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 3\r\n\r\n"
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS)]
        for number, (_, writer) in enumerate(opened):
            writer.write(f"{head}{number + 100}".encode())
        found = len(await life.first)  # type: ignore[attr-defined]
        while found < CLIENTS:
            found += len(await life.step())
        life.commit()
        answers = [await reader.readline() for reader, _ in opened]
        assert answers == [b"HTTP/1.1 200 OK\r\n"] * CLIENTS
        assert sorted(life.values) == [b"%d" % (number + 100) for number in range(CLIENTS)]
        for _, writer in opened:
            writer.close()


@on_loop
async def test_a_step_is_no_larger_than_a_transaction_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook, "TAKEN_BYTES", 1)
    async with served() as (life, client):
        waiting = [asyncio.ensure_future(client.post("/", content=b"1")) for _ in range(9)]
        lengths = [len(await life.first)]  # type: ignore[attr-defined]
        while sum(lengths) < len(waiting):
            lengths.append(len(await life.step()))
        life.commit()
        assert lengths == [1] * len(waiting)
        assert {(await each).status_code for each in waiting} == {200}


@on_loop
async def test_requests_that_wait_when_the_source_ends_are_to_be_sent_again() -> None:
    async with served() as (life, client):
        waiting = asyncio.ensure_future(client.post("/", content=b"1"))
        await life.first  # type: ignore[attr-defined]
        await life._reads.aclose()  # type: ignore[attr-defined]
        assert (await waiting).status_code == 503


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "x"}, "is not HOST:PORT"),
        ({"address": ":1", "path": "in"}, "must begin with /"),
        ({"address": ":1", "body_bytes_max": 0}, "body_bytes_max=0"),
        ({"address": ":1", "timeout": "0s"}, "must be longer than 0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Webhook(**settings).check()
