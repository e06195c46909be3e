from __future__ import annotations

import asyncio
import base64
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme
from starlette.requests import Request
from starlette.responses import Response

from streamlog.connect import BadRecords, ConnectError, Retriable, Secret
from streamlog.connect_tasks.sink_task import config_of
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.search import Search
from streamlog.errors import ConfigError, StreamlogError
from streamlog.testing import check_sink
from tests.connectors.http.servers import answering
from tests.connectors.runs import RealContext, on_loop, writing
from tests.connectors.search.bulk_double import BulkDouble
from tests.connectors.search.test_bulk_actions import PLACE, batch

SEEDS = range(20) if os.environ.get("STREAMLOG_PROFILE") == "thorough" else range(2)


def sink(url: str, **settings: Any) -> Search:
    return Search(urls=(url,), **settings)


@on_loop
async def test_documents_are_written_replaced_and_deleted() -> None:
    server, context = BulkDouble(), RealContext()
    async with answering(server.respond) as url, writing(sink(url), context) as task:
        await task.begin()
        await task.write(batch(("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3}), ("b", None)))
        await task.commit({PLACE: 11})
        # An older owner that continues changes nothing.
        await task.write(batch(("a", {"n": 0}), ("b", {"n": 0})))
    assert server.documents("orders") == {"a": {"n": 3}}
    assert context.counts["conflicts"] == 2


@on_loop
async def test_bad_documents_are_named_and_the_others_are_not_sent_again() -> None:
    server = BulkDouble()
    async with answering(server.respond) as url, writing(sink(url)) as task:
        with pytest.raises(BadRecords) as raised:
            await task.write(batch(("a", {"n": 1}), ("b", {"n": "x"}), ("c", {"n": 3})))
        assert [*raised.value.why] == [1]
        await task.abort()
        await task.write(batch(("a", {"n": 1}), ("c", {"n": 3}), ("d", {"n": 4}), first=7))
    assert [body.count(b'"index"') for _, body in server.requests] == [3, 1]


@on_loop
async def test_what_finds_no_room_is_sent_again_with_what_follows_it() -> None:
    server = BulkDouble()
    server.has_room = lambda key: key != "a" or len(server.requests) > 1
    async with answering(server.respond) as url, writing(sink(url)) as task:
        rows = batch(("a", {"n": 1}), ("b", {"n": 2}), ("a", None))
        with pytest.raises(Retriable, match="429"):
            await task.write(rows)
        await task.abort()
        await task.write(rows)
    assert b'"b"' not in server.requests[1][1]
    assert server.documents("orders") == {"b": {"n": 2}}


@on_loop
async def test_bodies_are_bounded_and_halved_where_the_server_wants_smaller_ones() -> None:
    server, context = BulkDouble(), RealContext()
    server.before = lambda body: Response("", 413) if len(body) > 300 else None
    async with (
        answering(server.respond) as url,
        writing(sink(url, body_bytes=600), context) as task,
    ):
        await task.write(batch(*[(f"k{n}", {"n": n}) for n in range(20)]))
        with pytest.raises(BadRecords, match="too large"):
            await task.write(batch(("z", {"s": "x" * 300}), ("y", {"s": "x"}), first=50))
    assert len(server.documents("orders")) == 21
    assert max(len(body) for _, body in server.requests[:10]) <= 600


@pytest.mark.parametrize(
    ("status", "error"),
    [(429, Retriable), (502, Retriable), (400, ConnectError), (401, ConfigError)],
)
@on_loop
async def test_answers_to_whole_requests(status: int, error: type[StreamlogError]) -> None:
    server = BulkDouble()
    server.before = lambda _: Response("no", status, headers={"Retry-After": "3"})
    async with answering(server.respond) as url, writing(sink(url)) as task:
        with pytest.raises(error) as raised:
            await task.write(batch(("a", {})))
    assert isinstance(raised.value, Retriable) == (error is Retriable)


@on_loop
async def test_the_next_node_is_used_if_one_is_away() -> None:
    server = BulkDouble()
    async with answering(server.respond) as url, answering(server.respond) as gone:
        pass
    async with answering(server.respond) as url, writing(Search(urls=(gone, f"{url}/"))) as task:
        with pytest.raises(Retriable, match="ConnectError"):
            await task.write(batch(("a", {})))
        await task.write(batch(("a", {})))
    assert server.documents("orders") == {"a": {}}


@on_loop
async def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    server = BulkDouble()

    async def cut(request: Request) -> Response:
        answer = await server.respond(request)
        if len(server.requests) == 1:
            answer.headers["content-length"] = "999999"
        return answer

    async with answering(cut) as url, writing(sink(url, timeout="1s")) as task:
        with pytest.raises(Retriable):
            await task.write(batch(("a", {"n": 1})))
        await task.write(batch(("a", {"n": 1})))
    assert server.documents("orders") == {"a": {"n": 1}}


@on_loop
async def test_newer_versions_of_a_former_topic_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = BulkDouble()
    server.indexes["orders"] = {"a": (500, {"old": True})}
    async with answering(server.respond) as url, writing(sink(url)) as task:
        await task.write(batch(("a", {"n": 1})))
    assert "versions up to 500" in caplog.text
    assert server.documents("orders") == {"a": {"old": True}}


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        ({"user": "u", "password": Secret("p")}, f"Basic {base64.b64encode(b'u:p').decode()}"),
        ({"api_key": Secret("k")}, "ApiKey k"),
        ({}, None),
    ],
)
@on_loop
async def test_logins(settings: dict[str, Any], sent: str | None) -> None:
    server = BulkDouble()
    async with answering(server.respond) as url, writing(sink(url, **settings)) as task:
        await task.write(batch(("a", {})))
    assert server.requests[0][0].get("authorization") == sent


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"urls": ()}, "urls"),
        ({"urls": ("ftp://x",)}, "no URL"),
        ({"index": "{key}"}, "index="),
        ({"data_stream": True, "ids": "key"}, "ids='offset'"),
        ({"data_stream": True, "tombstones": "delete"}, "ids='key'"),
        ({"index": "{timestamp:%Y}", "tombstones": "delete"}, "without {timestamp}"),
        ({"user": "u"}, "password"),
        ({"password": Secret("p")}, "user"),
        ({"user": "u", "password": Secret("p"), "api_key": Secret("k")}, "one of them"),
        ({"tls": ClientTls(ca="x")}, "https://"),
        ({"urls": ("https://x",), "tls": ClientTls(key="x")}, "tls.certificate"),
        ({"body_bytes": 0}, "body_bytes"),
        ({"timeout": "0s"}, "timeout"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Search(**{"urls": ("http://x",), **settings}).check()


def test_files_of_tls_are_read_when_a_task_opens(tmp_path: Path) -> None:
    authority, pem = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(pem))
    Search(urls=("https://x",), tls=ClientTls(ca=str(pem))).open(RealContext())
    for tls in (ClientTls(ca=str(tmp_path / "no")), ClientTls(certificate=str(pem), key=str(pem))):
        with pytest.raises(ConfigError, match="tls"):
            Search(urls=("https://x",), tls=tls).open(RealContext())


def test_a_range_outlives_a_change_of_nodes_and_logins() -> None:
    first = Search(urls=("http://a",), index="i")
    assert config_of(first) == config_of(Search(urls=("http://b",), index="i", timeout="1s"))
    assert config_of(first) != config_of(Search(urls=("http://a",), index="j"))


class Indexes:
    """The documents of a double."""

    def __init__(self, server: BulkDouble) -> None:
        self.server = server

    async def put(self, rows: Sequence[object]) -> None:
        raise AssertionError("the sink writes them")

    async def rows(self) -> Sequence[object]:
        return [
            {"id": key, **document} for key, document in self.server.documents("checked").items()
        ]


@pytest.mark.parametrize("seed", SEEDS)
def test_it_passes_the_suite_of_sinks_beside_a_double(seed: int) -> None:
    server, chance = BulkDouble(), random.Random(seed)
    # A busy server: some documents find no room, some requests fail as a whole.
    server.has_room = lambda _: chance.random() > 0.02
    server.before = lambda _: Response("", 503) if chance.random() < 0.05 else None

    async def main() -> None:
        async with answering(server.respond) as url:
            await check_sink(
                lambda: sink(url, ids=("key", "offset")[seed % 2], timeout="5s"),
                Indexes(server),
                lives=6,
                seed=seed,
            )

    asyncio.run(main())
