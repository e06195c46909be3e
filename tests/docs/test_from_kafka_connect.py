"""The blocks of docs/from-kafka-connect.md: a worker's file, and a connector that moves."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from streamlog.connect_service.service_files import service_settings
from streamlog.properties import parse_properties
from tests.connect_service.running import running

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
