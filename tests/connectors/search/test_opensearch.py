"""Beside a real OpenSearch, in a JVM: `make test-opensearch`.

Elasticsearch is not in package registries. What of it differs from OpenSearch (types of errors) is
in `test_bulk_actions.py` by its documentation only.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from streamlog.connect import BadRecords, Retriable
from streamlog.connectors.search import Search
from streamlog.connectors.search.bulk_actions import plan_actions, settle
from streamlog.connectors.search.search_task import FILTER
from streamlog.errors import ConfigError
from streamlog.testing import check_sink
from tests.connectors.runs import RealContext, on_loop, writing
from tests.connectors.search.bulk_double import BulkDouble
from tests.connectors.search.test_bulk_actions import PLACE, batch
from tests.servers.opensearch import OpenSearchServer

pytestmark = pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough",
    reason="starts a JVM: make test-opensearch",
)


@pytest.fixture(scope="module")
def server() -> Iterator[OpenSearchServer]:
    with OpenSearchServer() as started:
        yield started


def documents(server: OpenSearchServer, index: str) -> dict[str, Any]:
    httpx.post(f"{server.url}/{index}/_refresh", timeout=60).raise_for_status()
    found = httpx.get(f"{server.url}/{index}/_search", params={"size": 10_000}, timeout=60).json()
    return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}


def put(server: OpenSearchServer, path: str, body: Any) -> None:
    httpx.put(f"{server.url}/{path}", json=body, timeout=60).raise_for_status()


class Documents:
    """The documents of an index."""

    def __init__(self, server: OpenSearchServer, index: str) -> None:
        self.server, self.index = server, index

    async def put(self, rows: Sequence[object]) -> None:
        raise AssertionError("the sink writes them")

    async def rows(self) -> Sequence[object]:
        found = await asyncio.to_thread(documents, self.server, self.index)
        return [{"id": key, **document} for key, document in found.items()]


@pytest.mark.parametrize("seed", range(4))
def test_it_passes_the_suite_of_sinks(server: OpenSearchServer, seed: int) -> None:
    index = f"suite-{seed}"
    asyncio.run(
        check_sink(
            lambda: Search(urls=(server.url,), index=index, ids=("key", "offset")[seed % 2]),
            Documents(server, index),
            seed=seed,
        )
    )


def test_it_passes_the_suite_of_sinks_with_a_data_stream(server: OpenSearchServer) -> None:
    put(server, "_index_template/s", {"index_patterns": ["stream-*"], "data_stream": {}})
    asyncio.run(
        check_sink(
            lambda: Search(urls=(server.url,), index="stream-checked", data_stream=True),
            Documents(server, "stream-checked"),
        )
    )


@on_loop
async def test_writes_deletions_and_older_writes(server: OpenSearchServer) -> None:
    context = RealContext()
    async with writing(Search(urls=(server.url,), index="plain"), context) as task:
        await task.write(batch(("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3}), ("b", None)))
        await task.commit({PLACE: 11})
        await task.write(batch(("a", {"n": 0}), ("b", {"n": 0}), ("c", None)))
        await task.commit({PLACE: 10})
        with pytest.raises(BadRecords) as raised:
            await task.write(
                batch(("d", {"n": 4}), ("e", {"n": "text"}), ("f", {"n": 5}), first=20)
            )
    assert [*raised.value.why] == [1]
    assert documents(server, "plain") == {"a": {"n": 3}, "d": {"n": 4}, "f": {"n": 5}}
    assert context.counts["conflicts"] == 2


@on_loop
async def test_settings_of_the_server_that_refuse_all_documents(server: OpenSearchServer) -> None:
    put(server, "_index_template/d", {"index_patterns": ["ds-*"], "data_stream": {}})
    put(server, "closed", {})
    await asyncio.to_thread(httpx.post, f"{server.url}/closed/_close", timeout=60)
    for index in ("closed", "ds-x"):
        async with writing(Search(urls=(server.url,), index=index)) as task:
            with pytest.raises(ConfigError):
                await task.write(batch(("a", {"@timestamp": "2026-01-01"})))


@on_loop
async def test_a_full_disk_is_waited_for(server: OpenSearchServer) -> None:
    put(server, "full", {})
    async with writing(Search(urls=(server.url,), index="full")) as task:
        put(server, "full/_settings", {"index.blocks.read_only_allow_delete": True})
        with pytest.raises(Retriable, match="flood-stage"):
            await task.write(batch(("a", {"n": 1})))
        put(server, "full/_settings", {"index.blocks.read_only_allow_delete": None})
        await task.write(batch(("a", {"n": 1})))
    assert documents(server, "full") == {"a": {"n": 1}}


@on_loop
async def test_a_server_that_is_killed_is_waited_for() -> None:
    with OpenSearchServer() as own:
        async with writing(Search(urls=(own.url,), index="k")) as task:
            await task.write(batch(("a", {"n": 1})))
            own.kill()
            with pytest.raises(Retriable):
                await task.write(batch(("b", {"n": 2}), first=20))
            own.start()
            while True:
                try:
                    await task.write(batch(("b", {"n": 2}), first=20))
                except Retriable:
                    await asyncio.sleep(0.2)
                else:
                    break
        assert documents(own, "k") == {"a": {"n": 1}, "b": {"n": 2}}


@pytest.mark.parametrize("seed", range(3))
def test_the_double_answers_as_opensearch_does(server: OpenSearchServer, seed: int) -> None:
    chance, double, index = random.Random(seed), BulkDouble(), f"equal-{seed}"
    put(server, index, {"mappings": {"properties": {"n": {"type": "long"}}}})
    double.types[index, "n"] = int
    sink = Search(urls=(server.url,), index=index)
    for _ in range(40):
        rows = [
            (
                f"k{chance.randrange(6)}",
                chance.choice([None, {"n": 1}, {"n": chance.random() > 0.5}]),
            )
            if chance.random() < 0.2
            else (f"k{chance.randrange(6)}", chance.choice([None, {"n": chance.randrange(99)}]))
            for _ in range(chance.randrange(1, 6))
        ]
        planned = plan_actions(sink.rules, batch(*rows, first=chance.randrange(100))).actions
        body = b"".join(action.lines for action in planned).replace(b"true", b'"t"')
        body = body.replace(b"false", b'"f"')
        real = httpx.post(
            f"{server.url}/_bulk",
            params={"filter_path": FILTER},
            content=body,
            headers={"Content-Type": "application/x-ndjson"},
            timeout=60,
        ).content
        ours = bytes(double.answer(body).body)
        assert _outline(real) == _outline(ours)
        assert settle(planned, real).done == settle(planned, ours).done
        assert documents(server, index) == double.documents(index)


def _outline(answer: bytes) -> list[tuple[str, int, str]]:
    found = [next(iter(item.items())) for item in json.loads(answer)["items"]]
    return [(op, each["status"], each.get("error", {}).get("type", "")) for op, each in found]
