"""A broker's answers over HTTP."""

from __future__ import annotations

import asyncio
import json

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.cli.broker_command import web_of
from streamlog.cli.broker_web import BrokerHealth, serve_health
from streamlog.errors import ListenError
from streamlog.metrics.prometheus import exposition
from tests.broker.node import create


async def fetch(endpoint: str, path: str) -> tuple[int, str]:
    host, _, port = endpoint.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
    )
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


def test_a_broker_reports_its_state_and_metrics() -> None:
    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles()) as broker,
            serve_health(broker, "127.0.0.1:0") as endpoint,
        ):
            create(broker, "orders", 3)
            code, body = await fetch(endpoint, "/ready")
            assert (code, json.loads(body)["ready"]) == (200, True)
            assert json.loads((await fetch(endpoint, "/live"))[1])["state"] == "running"
            code, body = await fetch(endpoint, "/metrics")
            lines = body.splitlines()
            assert code == 200
            for line in (
                "kafka_server_replicamanager_partitioncount 3",
                "kafka_server_replicamanager_leadercount 3",
                "kafka_server_replicamanager_underreplicatedpartitions 0",
                "kafka_server_replicamanager_isrshrinks_total 0",
                "kafka_controller_kafkacontroller_activecontrollercount 1",
                "kafka_controller_kafkacontroller_offlinepartitionscount 0",
                "kafka_controller_controllerstats_uncleanleaderelections_total 0",
                "kafka_server_kafkaserver_brokerstate 3",
                "streamlog_cleaner_unreadable_batches_total 0",
                "kafka_server_raftmetrics_current_leader 1",
            ):
                assert line in lines
            assert (await fetch(endpoint, "/elsewhere"))[0] == 404

    asyncio.run(main())


def test_a_starting_broker_is_not_ready() -> None:
    async def main() -> None:
        async with Broker.open("data", files=MemoryFiles()) as broker:
            broker._member._session._lifecycle.epoch = -1
            broker._member._session._lifecycle.state = type(broker.status().state).STARTING
            report = BrokerHealth(broker).ready()
            assert (report.is_well, report.facts["state"]) == (False, "starting")
            assert b"brokerstate 1\n" in await exposition(broker.directory.metrics)

    asyncio.run(main())


def test_a_broker_serves_http_only_when_configured(capsys: pytest.CaptureFixture[str]) -> None:
    async def main(web: str) -> None:
        config = BrokerConfig(web=web)
        async with (
            Broker.open("data", files=MemoryFiles(), config=config) as broker,
            web_of(broker),
        ):
            pass

    asyncio.run(main(""))
    assert not capsys.readouterr().out
    asyncio.run(main(":0"))
    assert "web       http://127.0.0.1:" in capsys.readouterr().out


def test_a_web_address_in_use_is_reported() -> None:
    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles()) as broker,
            serve_health(broker, "127.0.0.1:0") as taken,
        ):
            with pytest.raises(ListenError, match="the web server can't listen on"):
                async with serve_health(broker, taken.removeprefix("http://")):
                    pass

    asyncio.run(main())
