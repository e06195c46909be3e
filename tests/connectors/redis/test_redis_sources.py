"""The sources of Redis against real servers: each entry once; what was missed is told."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import closing
from itertools import count

import pytest
import redis

from streamlog.connect import ConnectError, Retriable, Secret
from streamlog.connectors.redis import RedisPubSub, RedisStreams
from streamlog.connectors.redis.redis_sources import id_of, next_id, text_of
from streamlog.errors import ConfigError
from streamlog.testing import check_source
from tests.connectors.runs import on_loop, reading
from tests.servers.redis_server import RedisServer

NAMES = (f"stream-{number}" for number in count())
THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"


class Streams:
    """Streams that get entries, while their server is killed now and then."""

    def __init__(self, server: RedisServer, names: Sequence[str], kill_every: int = 0) -> None:
        self.server, self.names, self.kill_every = server, names, kill_every
        self.values: list[object] = []
        self.puts = 0

    async def put(self, rows: Sequence[object]) -> None:
        self.puts += 1
        if self.kill_every and self.puts % self.kill_every == 0:
            self.server.kill_and_restart()
        with closing(self.server.client()) as client:
            for row in rows:
                number = int(str(row))
                client.xadd(self.names[number % len(self.names)], {"number": number})
                self.values.append({"number": str(number)})

    async def rows(self) -> Sequence[object]:
        return self.values


@pytest.mark.parametrize("seed", range(20 if THOROUGH else 2))
def test_each_entry_is_read_once(redis_server: RedisServer, seed: int) -> None:
    names = (next(NAMES), next(NAMES))
    source = RedisStreams(url=redis_server.url(), streams=names)
    asyncio.run(check_source(lambda: source, Streams(redis_server, names), seed=seed))


def test_kills_of_the_server() -> None:
    # With "everysec", Redis may put off a write while it syncs; a kill loses it then.
    with RedisServer(appendfsync="always") as server:
        source = RedisStreams(url=server.url(), streams=("a",))
        outside = Streams(server, ["a"], kill_every=4)
        asyncio.run(check_source(lambda: source, outside, lives=60 if THOROUGH else 8))


@on_loop
async def test_values_keys_and_times(redis_server: RedisServer) -> None:
    name = next(NAMES)
    with closing(redis_server.client()) as client:
        client.xadd(name, {"_key": "k", "value": b"\xff\x00", "x": "ä"}, id="1700000000000-3")
        client.xadd(name, {"other": b"\xff"}, id="1700000000001-0")
        client.xadd(name, {"value": "far"}, id=f"{2**63}-{2**64 - 1}")
    fields = RedisStreams(url=redis_server.url(), streams=(name,), key="_key")
    async with reading(fields) as life:
        await life.take(3)
        assert life.values[1:] == [{"other": r"\xff"}, {"value": "far"}]
        assert [record.key for record in life.records] == ["k", None, None]
        assert life.records[0].timestamp.timestamp() == 1_700_000_000
        # An id that is no time in milliseconds is none of a record.
        assert life.records[2].timestamp.year < 2200
        assert life.offset == {"id": f"{2**63}-{2**64 - 1}", "count": 3}
    raw = RedisStreams(url=redis_server.url(), streams=(name,), value="value", time="arrival")
    async with reading(raw) as life:
        assert await life.take(2) == [b"\xff\x00", b"far"]
        assert life.records[0].timestamp.year > 2023
        assert life.context.counts == {"entries_without_value": 1}


@on_loop
async def test_a_reader_begins_at_the_end_and_waits_for_more(redis_server: RedisServer) -> None:
    name = next(NAMES)
    with closing(redis_server.client()) as client:
        source = RedisStreams(url=redis_server.url(), streams=(name, "none"), start="end")
        async with reading(source, part={"stream": name}) as life:
            read = await life.step()
            assert (len(read), read.offset) == (0, {"id": "0-0", "count": None})
        client.xadd(name, {"n": 1})
        async with reading(source, part={"stream": name}) as life:
            read = await life.step()
            assert (len(read), read.offset["count"]) == (0, 1)
            waiting = asyncio.ensure_future(life.take(1))
            await asyncio.to_thread(wait_for_looks, client, 3)
            client.xadd(name, {"n": 2})
            assert await waiting == [{"n": "2"}]
            assert life.records[0].topic == name


def wait_for_looks(client: redis.Redis, number: int) -> None:
    before = looks(client)
    while looks(client) < before + number:
        pass


def looks(client: redis.Redis) -> int:
    # A server that has not run a command yet has no figures of it.
    return int(client.info("commandstats").get("cmdstat_xrange", {"calls": 0})["calls"])


@on_loop
async def test_entries_that_were_removed_unread_are_told(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    name = next(NAMES)
    source = RedisStreams(url=redis_server.url(), streams=(name,))
    with closing(redis_server.client()) as client:
        for number in range(10):
            client.xadd(name, {"n": number})
        client.xtrim(name, maxlen=8, approximate=False)
        async with reading(source) as life:
            assert len(await life.take(8)) == 8
            assert not life.context.counts
        for number in range(10, 300):
            client.xadd(name, {"n": number})
        client.xtrim(name, maxlen=200, approximate=False)
        async with reading(source, life.offset) as life:
            await life.take(200)
            assert life.context.counts == {"missed_entries": 90}
            assert life.values[0] == {"n": "100"}
        assert "90 entries of stream" in caplog.text
        client.delete(name)
        client.xadd(name, {"n": 0}, id="1-1")
        client.xadd(name, {"n": 1})
        async with reading(source, life.offset) as life:
            assert await life.take(1) == [{"n": "1"}]


@on_loop
async def test_a_stream_with_smaller_ids_is_told(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    name = next(NAMES)
    with closing(redis_server.client()) as client:
        client.xadd(name, {"n": 0}, id="5-0")
        source = RedisStreams(url=redis_server.url(), streams=(name,))
        async with reading(source, {"id": "9-0", "count": 4}) as life:
            waiting = asyncio.ensure_future(life.take(1))
            await asyncio.to_thread(wait_for_looks, client, 2)
            assert "last id of stream" in caplog.text
            client.xadd(name, {"n": 1}, id="9-1")
            assert await waiting == [{"n": "1"}]


@on_loop
async def test_large_entries_make_small_steps(redis_server: RedisServer) -> None:
    name = next(NAMES)
    with closing(redis_server.client()) as client:
        for number in range(30):
            client.xadd(name, {"n": number, "data": b"x" * 300_000})
        async with reading(RedisStreams(url=redis_server.url(), streams=(name,))) as life:
            steps = 0
            while len(life.records) < 30:
                assert len(await life.step()) <= 4
                life.commit()
                steps += 1
        assert [value["n"] for value in life.values] == [str(number) for number in range(30)]
        client.delete(name)


@on_loop
async def test_a_key_of_another_type_fails_the_task(redis_server: RedisServer) -> None:
    name = next(NAMES)
    with closing(redis_server.client()) as client:
        client.set(name, "text")
        with pytest.raises(ConnectError, match="WRONGTYPE"):
            async with reading(RedisStreams(url=redis_server.url(), streams=(name,))) as life:
                await life.step()


def test_ids() -> None:
    assert next_id("5-6") == "5-7"
    assert next_id(f"5-{2**64 - 1}") == "6-0"
    assert text_of(b"\xe4") == r"\xe4"
    for text in ("5", "x-1", "-", "5-"):
        with pytest.raises(ConnectError, match="no id of a stream"):
            id_of(text)


@on_loop
async def test_what_is_published_arrives(redis_server: RedisServer) -> None:
    source = RedisPubSub(url=redis_server.url(), channels=("a",), patterns=("b.*",))
    with closing(redis_server.client()) as client:
        async with reading(source) as life:
            waiting = asyncio.ensure_future(life.take(2_003))
            await asyncio.to_thread(wait_for_subscribers, client, "a")
            client.publish("a", b"\xff")
            client.publish("c", b"of nobody")
            client.publish("b.c", b"")
            for number in range(2_001):
                client.publish("a", str(number))
            assert await waiting == [b"\xff", b"", *(b"%d" % number for number in range(2_001))]
            assert [record.key for record in life.records[:2]] == [b"a", b"b.c"]
            client.client_kill_filter(_type="pubsub")
            with pytest.raises(Retriable):
                await life.step()


def wait_for_subscribers(client: redis.Redis, channel: str) -> None:
    while not (client.pubsub_numsub(channel)[0][1] and client.pubsub_numpat()):
        pass


@on_loop
async def test_a_server_that_stands_still_is_noticed() -> None:
    with RedisServer() as server:
        source = RedisPubSub(url=server.url(), channels=("a",), timeout="200ms", poll="20ms")
        async with reading(source) as life:
            waiting = asyncio.ensure_future(life.step())
            with closing(server.client()) as client:
                await asyncio.to_thread(wait_for_a_ping, client)
            assert not waiting.done()
            server.signal(signal.SIGSTOP)
            with pytest.raises(Retriable, match="has not answered a PING"):
                await waiting
            server.signal(signal.SIGCONT)


def wait_for_a_ping(client: redis.Redis) -> None:
    while client.info("commandstats").get("cmdstat_ping", {}).get("calls", 0) < 4:
        pass


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (RedisStreams(url="redis://h", streams=()), "streams is empty"),
        (RedisStreams(url="redis://h", streams=("a", "a")), "one twice"),
        (RedisStreams(url="redis://h", streams=("",)), "empty name"),
        (RedisStreams(url="redis://h", streams=("a",), poll="0s"), "without a pause"),
        (RedisStreams(url="redis://h", streams=("a",), password=Secret("p"), user=None), ""),
        (RedisPubSub(url="redis://h"), "name one of them at least"),
        (RedisPubSub(url="redis://h", patterns=("a", "a")), "one twice"),
        (RedisPubSub(url="unix:///s", channels=("a",)), "is not redis://"),
    ],
)
def test_settings(source: RedisStreams | RedisPubSub, message: str) -> None:
    if not message:
        source.check()
        return
    with pytest.raises(ConfigError, match=message):
        source.check()
