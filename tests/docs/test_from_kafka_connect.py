"""The blocks of docs/from-kafka-connect.md: a worker's file, and a connector that moves."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from streamlog.connect_service.service_files import service_settings
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.properties import parse_properties
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import JoinGroupResponse
from tests.broker.coordinator.driving import joining
from tests.connect_service.running import running, worker

TEXT = (Path(__file__).parent.parent.parent / "docs/from-kafka-connect.md").read_text()
(WORKER,) = re.findall(r"```properties\n(.*?)```", TEXT, re.DOTALL)
CONNECTOR, OFFSETS = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
SINK = {
    "connector.class": "FileStreamSink", "topics": "shop-lines", "flush.every": "50ms",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}  # fmt: skip


def test_the_workers_file_names_the_clusters_topics() -> None:
    found = service_settings(parse_properties(WORKER, "documented"))
    assert found.group_id == "connect-cluster"
    assert (found.configs_topic, found.offsets_topic, found.status_topic) == (
        "connect-configs", "connect-offsets", "connect-status",
    )  # fmt: skip


def test_a_connector_continues_where_the_old_cluster_was(tmp_path: Path) -> None:
    source, sink = tmp_path / "shop.log", tmp_path / "out"
    source.write_text("first\nsecond\nthird\n")

    def documented(text: str) -> object:
        body: object = json.loads(text.replace("/var/log/shop.log", str(source)))
        return body

    async def main() -> None:
        async with asyncio.timeout(60), running(tmp_path / "data") as client:
            status, body = await client.ask("POST", "/connectors", documented(CONNECTOR))
            assert status == 201, body
            status, body = await client.ask(
                "PATCH", "/connectors/lines/offsets", documented(OFFSETS)
            )
            assert status == 200, body
            await client.ask("PUT", "/connectors/lines/resume")
            settings = {**SINK, "file": str(sink)}
            status, body = await client.ask(
                "POST", "/connectors", {"name": "out", "config": settings}
            )
            assert status == 201, body
            await client.until(lambda: sink.exists() and sink.read_text().count("\n") >= 2)

    asyncio.run(main())
    assert sorted(sink.read_text().splitlines()) == ["second", "third"]


async def join_as_java_worker(log: Log, member_id: str = "") -> JoinGroupResponse:
    """Ask to join as Java's workers do, whose groups are of the type "connect"."""
    request = joining(member_id, group_id="connect-cluster", protocol_type="connect")
    cluster = log._opened()
    return await cluster.call(
        await cluster.coordinator("connect-cluster"), request, JoinGroupResponse
    )


def test_a_java_worker_is_refused_beside_ours(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), running(tmp_path / "data") as client:
            refused = await join_as_java_worker(client.service.log)
            assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    asyncio.run(main())


def test_a_worker_ends_beside_a_java_worker_and_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Log.open(f"embedded:{tmp_path}/data") as log:
            named = await join_as_java_worker(log)
            assert (await join_as_java_worker(log, named.member_id)).error_code == 0
            async with worker(log, "127.0.0.1:8083"):
                pytest.fail("it joined")

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(main())
    error: BaseException = raised.value
    while isinstance(error, ExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, LogError)
    assert "group connect-cluster" in str(error)
    assert "another kind of group" in str(error)
