"""Several workers of one service: shared tasks, forwarded requests, leaders that come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from streamlog.connect import names
from streamlog.connect_service.peer_forwarding import PeerForwarding
from streamlog.connect_service.rest_answers import RestCall, parse_call
from streamlog.errors import TransactionAborted
from streamlog.http_server import listen
from streamlog.log import Log
from tests.connect_service.outside import BROKEN, WRITTEN
from tests.connect_service.running import Client, opened, worker_with_http

SOURCE = {"connector.class": "Numbers", "topic": "numbers", "tasks.max": "3", "count": "150"}
SINK = {"connector.class": "Listed", "topics": "numbers", "into": "a", "tasks.max": "2"}
ROWS = Counter((part, number) for part in range(3) for number in range(150))


@pytest.fixture(autouse=True)
def _connectors(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "tests.connect_service.outside"
    monkeypatch.setattr(names, "BUILT_IN", {"Numbers": here, "Listed": here})
    WRITTEN.clear()
    BROKEN.clear()


async def rows_of(log: Log) -> Counter[tuple[int, int]]:
    """Return what the topic has, as a reader of committed records sees it."""
    import msgspec  # noqa: PLC0415 - used here alone

    from streamlog.record import TopicPartition  # noqa: PLC0415

    found: Counter[tuple[int, int]] = Counter()
    consumer = log.consumer(isolation_level="read_committed", auto_offset_reset="earliest")
    async with consumer as reader:
        parts = [TopicPartition("numbers", at) for at in range(await reader.partitions("numbers"))]
        reader.assign(parts)
        ends = await reader.end_offsets(parts)
        while any(reader.positions().get(part, 0) < end for part, end in ends.items()):
            for records in (await reader.poll(timeout_ms=100)).values():
                for record in records:
                    row = msgspec.json.decode(record.value or b"{}")
                    found[row["part"], row["number"]] += 1
    return found


async def owners(client: Client, name: str) -> list[str]:
    body = await client.get(f"/connectors/{name}/status")
    return [task["worker_id"] for task in body["tasks"]]


def leader_of(*clients: Client) -> Client:
    (found,) = [each for each in clients if each.service.herder.is_leader]
    return found


@contextmanager
def counted_requests(client: Client, into: list[str]) -> Iterator[None]:
    """Note the requests that a worker gets from others."""
    whole = PeerForwarding.answer

    async def answer(self: PeerForwarding, call: RestCall) -> tuple[int, object]:
        if self is client.rest and call.headers:
            into.append(f"{call.method} {call.target}")
        return await whole(self, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PeerForwarding, "answer", answer)
        yield


def test_two_workers_share_tasks_and_the_one_that_stays_takes_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(asyncio.timeout(60))
            log = await stack.enter_async_context(Log.open(f"embedded:{tmp_path}"))
            a = await stack.enter_async_context(worker_with_http(log))
            async with worker_with_http(log) as b:
                await a.until(lambda: len(a.service.group.peers) == 2)
                follower = b if leader_of(a, b) is a else a
                got: list[str] = []
                with counted_requests(leader_of(a, b), got):
                    status, body = await follower.ask("PUT", "/connectors/in/config", SOURCE)
                    assert (status, body["name"]) == (201, "in")
                    # What was changed through a worker is there when it answers.
                    assert await follower.get("/connectors") == ["in"]
                    assert (await follower.ask("PUT", "/connectors/out/config", SINK))[0] == 201
                    assert (await follower.ask("PUT", "/connectors/no/pause"))[0] == 404
                assert got == [
                    "PUT /connectors/in/config",
                    "PUT /connectors/out/config",
                    "PUT /connectors/no/pause",
                ]
                await b.until_state("in", "RUNNING", tasks=3)
                await b.until_state("out", "RUNNING", tasks=2)
                ids = {a.service.worker_id, b.service.worker_id}
                assert {*await owners(a, "in")} | {*await owners(a, "out")} == ids
                for at, owner in enumerate(await owners(a, "in")):
                    # Whoever is asked, the worker that has the task restarts it.
                    other = a if owner == b.service.worker_id else b
                    assert (await other.ask("POST", f"/connectors/in/tasks/{at}/restart"))[0] == 204
                await b.until_state("in", "RUNNING", tasks=3)
            # b has left, in the middle of its work: whatever it had goes on here.
            await a.until_state("in", "RUNNING", tasks=3)
            await a.until_state("out", "RUNNING", tasks=2)
            async with asyncio.timeout(30):
                while {*await owners(a, "in")} != {a.service.worker_id}:
                    await a.service.group.moved_on()
            assert a.service.herder.is_leader
            async with asyncio.timeout(30):
                while await rows_of(log) != ROWS:
                    assert not await rows_of(log) - ROWS, "a row was written twice"
            status, _ = await a.ask("DELETE", "/connectors/in")
            assert status == 204

    asyncio.run(main())


def test_the_group_refuses_what_was_begun_in_a_generation_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            Log.open(f"embedded:{tmp_path}") as log,
            worker_with_http(log) as a,
            log.producer(transactional_id="deposed") as producer,
        ):
            group = a.service.group
            with group.staying() as member:
                assert member is not None
            async with worker_with_http(log):
                await a.until(lambda: len(group.peers) == 2 and group.is_settled)
                with group.staying(member.generation_id) as late:
                    assert late is None, "the worker itself knows"
                with pytest.raises(TransactionAborted):  # noqa: PT012 - the whole is refused
                    async with producer.transaction() as transaction:
                        await producer.send("connect-configs", b"{}", key=b"connector-late")
                        await producer.flush()
                        await group.fence(transaction, member)
                assert (await a.ask("GET", "/connectors"))[1] == []

    asyncio.run(main())


def test_a_forwarded_request_needs_a_signature_that_holds(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            Log.open(f"embedded:{tmp_path}") as log,
            worker_with_http(log) as a,
        ):
            target, body = "/connectors/in/config", b'{"connector.class": "Numbers", "topic": "t"}'
            await a.until(lambda: a.service.keys.is_known)
            signed = a.service.keys.sign("PUT", target, body)
            forged = {**signed, "x-connect-authorization": "AAAA"}
            status, _ = await a.rest.answer(parse_call("PUT", target, body, forged))
            assert status == 403
            status, _ = await a.rest.answer(parse_call("PUT", target, body, signed))
            assert status == 201

    asyncio.run(main())


def test_a_request_waits_for_a_leader_and_then_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamlog.connect_service import peer_forwarding  # noqa: PLC0415 - used here alone

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            Log.open(f"embedded:{tmp_path}") as log,
            worker_with_http(log) as a,
            worker_with_http(log) as b,
        ):
            await a.until(lambda: len(a.service.group.peers) == 2 and a.service.group.is_settled)
            follower = b if leader_of(a, b) is a else a
            monkeypatch.setattr(peer_forwarding, "FORWARD_MS", 300)
            monkeypatch.setattr(peer_forwarding.PeerForwarding, "_accepts", _accepts_none)
            status, body = await follower.ask("PUT", "/connectors/in/config", SOURCE)
            assert (status, "no known leader URL" in body["message"]) == (409, True)
            assert (await follower.ask("GET", "/connectors")) == (200, [])

    asyncio.run(main())


async def _accepts_none(_self: object, _endpoint: str) -> bool:
    return False


def test_a_connector_of_a_worker_that_can_not_be_made_fails_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(60),
            Log.open(f"embedded:{tmp_path}") as log,
            worker_with_http(log) as a,
            worker_with_http(log) as b,
        ):
            BROKEN.add("x")
            config = {**SOURCE, "label": "x", "errors.auto.restart": "false"}
            assert (await b.ask("PUT", "/connectors/bad/config", config))[0] == 201
            good = {**SOURCE, "topic": "good", "count": "3"}
            assert (await a.ask("PUT", "/connectors/good/config", good))[0] == 201
            await a.until_state("good", "RUNNING", tasks=3)

            async def states() -> set[str]:
                body = await b.get("/connectors/bad/status")
                return {task["state"] for task in body["tasks"]}

            async with asyncio.timeout(30):
                while await states() != {"FAILED"}:
                    await a.service.group.moved_on()
            BROKEN.clear()
            # Each worker restarts its own as it reads the wish.
            wish = "/connectors/bad/restart?includeTasks=true&onlyFailed=true"
            assert (await b.ask("POST", wish))[0] == 202
            async with asyncio.timeout(30):
                while await states() != {"RUNNING"}:
                    await a.service.group.moved_on()

    asyncio.run(main())


def test_a_worker_that_starts_answers_once_it_has_read_the_topics(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Log.open(f"embedded:{tmp_path}") as log:
            async with worker_with_http(log) as a:
                assert (await a.ask("PUT", "/connectors/in/config", SOURCE))[0] == 201
            with listen("127.0.0.1:0") as listener:
                async with opened(log, listener.endpoint) as service:
                    client = Client(service)
                    assert not service.ready.is_set()
                    assert (await client.ask("GET", "/health"))[0] == 503
                    assert await client.get("/connectors") == ["in"]

    asyncio.run(main())
