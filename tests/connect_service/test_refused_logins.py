"""Refused logins: a task starts again by itself once the target takes its login."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.connect.herding.own_tasks import RestartWaits
from streamlog.connect_service import task_keeper
from streamlog.connect_service.service_files import secrets_of
from streamlog.log import Log
from tests.connect_service.running import Client, worker
from tests.servers.redis_server import RedisServer

USER = "rotated"


def config(server: RedisServer, secrets: Path, **others: str) -> dict[str, str]:
    return {
        "connector.class": "RedisSink",
        "topics": "orders",
        "url": server.url(199),
        "user": USER,
        "password": f"${{dir:{secrets}:password}}",
        "flush.every": "10ms",
        **others,
    }


async def put(client: Client, settings: dict[str, str]) -> None:
    status, body = await client.ask("PUT", "/connectors/r/config", settings)
    assert status == 201, body


async def failed(client: Client, name: str) -> str:
    """Wait until the task of a connector has failed; returns its trace."""
    statuses = client.service.herder.statuses
    key = name, 0
    await client.until(
        lambda: key in statuses.statuses and statuses.statuses[key].state == "FAILED"
    )
    return statuses.statuses[key].trace or ""


def test_a_password_that_was_rotated_is_taken_without_an_operator(
    tmp_path: Path,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "password").write_text("old")

    async def main() -> None:
        resolve = secrets_of([secrets])
        async with Log.open(f"embedded:{tmp_path}/log") as log:
            await log.admin().create_topics([NewTopic("orders", 1)])
            async with log.producer() as producer:
                await producer.send("orders", b'{"n": 1}', key=b'"k"')
            async with worker(log, "w:1", resolve=resolve) as client:
                await put(client, config(redis_server, secrets))
                trace = await failed(client, "r")
                assert "refuses the login" in trace
                assert trace.endswith("\nTask 0: it starts again by itself in 60 s")
                monkeypatch.setattr(task_keeper, "REFUSED_WAITS", RestartWaits(50, 50))
                await client.ask("POST", "/connectors/r/restart?includeTasks=true")
                (secrets / "password").write_text("new")
                await client.until_state("r", "RUNNING", tasks=1)
                await client.until(lambda: redis.hgetall("orders:k") == {b"n": b"1"})

    with closing(redis_server.client(199)) as redis, caplog.at_level(logging.WARNING):
        redis.execute_command("ACL", "SETUSER", USER, "on", ">new", "~*", "+@all")
        asyncio.run(main())
    assert "refuses the login" in caplog.text
    assert "it starts again by itself in 60 s" in caplog.text


def test_a_setting_that_is_wrong_waits_for_an_operator(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    async def main() -> None:
        async with (
            Log.open(f"embedded:{tmp_path}/log") as log,
            worker(log, "w:1", resolve=secrets_of([tmp_path])) as client,
        ):
            # The secret is not there, so the connector can't be made.
            await put(client, config(redis_server, tmp_path))
            told = "it stays FAILED until `streamlog connectors restart r --failed`"
            assert (await failed(client, "r")).endswith(f"\nTask 0: {told}")

    asyncio.run(main())
