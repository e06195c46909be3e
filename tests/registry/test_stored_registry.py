"""A registry survives its broker, opens a copied topic, and refuses a topic that loses schemas."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from streamlog.broker.config.broker import BrokerConfig
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.log import Log
from streamlog.registry.examination import Examiner, ResolvedSchema
from streamlog.registry.registry_state import SchemaContent
from tests.registry.running import run_registry

RECORDS: list[tuple[dict[str, object], dict[str, object] | None]] = [
    ({"keytype": "NOOP", "magic": 0}, None),
    (
        {"keytype": "SCHEMA", "subject": "orders-value", "version": 1, "magic": 1},
        {
            "subject": "orders-value",
            "version": 1,
            "id": 41,
            "schema": '{"type":"record","name":"Order","fields":[{"name":"x","type":"int"}]}',
            "deleted": False,
        },
    ),
    ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "FULL"}),
]
"""What Confluent's registry has written."""


def write_topic(data: Path, policy: str = "compact", partitions: int = 1) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{data}") as log:
            await log.admin().create_topics(
                [NewTopic("_schemas", partitions, configs={"cleanup.policy": policy})]
            )
            async with log.producer() as producer:
                for key, value in RECORDS:
                    content = None if value is None else json.dumps(value).encode()
                    await producer.send(
                        "_schemas", content, key=json.dumps(key).encode(), partition=0
                    )

    asyncio.run(main())


def test_a_copied_topic_is_a_working_registry(tmp_path: Path) -> None:
    write_topic(tmp_path)
    with run_registry(tmp_path) as registry:
        assert registry.get("/subjects") == ["orders-value"]
        assert registry.get("/config") == {"compatibilityLevel": "FULL"}
        schema = {"type": "record", "name": "Order", "fields": [{"name": "x", "type": "int"}]}
        assert registry.register("orders-value", schema) == 41
        assert registry.register("other", '"int"') == 42
    with run_registry(tmp_path) as registry:
        assert registry.get("/subjects") == ["orders-value", "other"]
        assert registry.ask("DELETE", "/subjects/other").content == [1]
        assert registry.ask("DELETE", "/subjects/other?permanent=true").content == [1]
    with run_registry(tmp_path) as registry:
        # The id of what was deleted for good is not given out again.
        assert registry.register("another", '"long"') == 43


def test_a_topic_that_loses_schemas_or_is_spread_is_refused(tmp_path: Path) -> None:
    for name, policy, partitions in (("a", "delete", 1), ("b", "compact", 2)):
        write_topic(tmp_path / name, policy, partitions)
        with run_registry(tmp_path / name) as registry:
            refused = registry.ask("POST", "/subjects/s/versions", {"schema": '"int"'})
            assert refused.code == 50001
            assert ("cleanup.policy=compact" in refused.content["message"]) == (partitions == 1)


def test_a_schema_that_takes_too_long_is_refused_and_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    usual = Examiner.content

    def slow(self: Examiner, resolved: ResolvedSchema, **more: bool) -> SchemaContent:
        if "Slow" in resolved.schema.text:
            released.wait(60)
        return usual(self, resolved, **more)

    monkeypatch.setattr(Examiner, "content", slow)
    with run_registry(tmp_path, {"schema.registry.timeout.ms": "300"}) as registry:
        try:
            schema = json.dumps({"type": "enum", "name": "Slow", "symbols": ["A"]})
            refused = registry.ask("POST", "/subjects/s/versions", {"schema": schema})
            assert (refused.status, refused.code) == (500, 50002)
            assert registry.get("/subjects") == []
        finally:
            released.set()
        while registry.ask("POST", "/subjects/s/versions", {"schema": '"int"'}).status != 200:
            pass


def test_an_embedded_log_serves_its_registry(tmp_path: Path) -> None:
    config = BrokerConfig().override({"schema.registry.listener": "127.0.0.1:0"})

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}", config=config) as log:
            assert log.registry_url is not None
            assert log.registry_url.startswith("http://127.0.0.1:")
        async with Log.open(f"embedded:{tmp_path}") as log:
            assert log.registry_url is None

    asyncio.run(main())
