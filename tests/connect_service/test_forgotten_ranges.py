"""A sink whose settings changed while a range was being written: given up by an operator."""

from __future__ import annotations

import asyncio
from pathlib import Path

from typer.testing import CliRunner

from streamlog.cli.operate.connectors_command import connectors
from streamlog.cli.session import Session
from streamlog.client.admin import NewTopic
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.connect.sink_progress import WriteRange
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.connect_service.running import Client, worker_with_http

AT = TopicPartition("orders", 0)
BEGUN = WriteRange(3, "beef")


async def begin_a_range(client: Client) -> None:
    async with client.service.log.consumer(group_id="connect-out") as consumer:
        consumer.assign([AT])
        await consumer.commit({AT: OffsetAndMetadata(1, BEGUN.encode())})


async def command(client: Client, *arguments: str) -> str:
    at = ("--connect", f"http://{client.service.worker_id}")
    run = CliRunner().invoke
    result = await asyncio.to_thread(run, connectors, ["offsets", *arguments, *at], obj=Session())
    return result.output if result.exception is None else str(result.exception)


async def until_refused(client: Client) -> str:
    async with asyncio.timeout(30):
        while True:
            _, status = await client.ask("GET", "/connectors/out/status")
            for each in status.get("tasks", ()):
                if "--forget-range" in each.get("trace", ""):
                    return str(each["trace"])
            await asyncio.sleep(0.02)


def test_an_operator_gives_up_a_range_of_other_settings(tmp_path: Path) -> None:
    config = {"connector.class": "Objects", "url": f"{tmp_path}/out", "topics": "orders",
              "format": "jsonl", "flush.every": "50ms"}  # fmt: skip

    async def main() -> None:
        async with (
            asyncio.timeout(90),
            Log.open(f"embedded:{tmp_path / 'log'}") as log,
            worker_with_http(log) as client,
        ):
            await log.admin().create_topics([NewTopic("orders", 1)])
            async with log.producer() as producer:
                for number in range(4):
                    await (await producer.send("orders", b'{"n":%d}' % number))
            await begin_a_range(client)
            assert (await client.ask("PUT", "/connectors/out/config", config))[0] == 201
            assert "up to offset 3" in await until_refused(client)
            assert "STOPPED state" in await command(client, "out", "--forget-range", "--execute")
            await client.ask("PUT", "/connectors/out/stop")
            await client.until_state("out", "STOPPED", 0)
            assert "contradict" in await command(client, "out", "--forget-range", "--reset")
            assert "say --execute" in await command(client, "out", "--forget-range")
            group = log.admin().group_offsets_and_metadata
            assert (await group("connect-out"))[AT].metadata == BEGUN.encode()
            told = await command(client, "out", "--forget-range", "--execute")
            assert "Forgot the range of orders-0 from 1 to 3" in told
            assert (await group("connect-out"))[AT][:2] == (1, "")
            assert "no range" in await command(client, "out", "--forget-range", "--execute")
            assert (await client.ask("DELETE", "/connectors/no/offsets/ranges"))[0] == 404
            await client.ask("PUT", "/connectors/out/resume")
            async with asyncio.timeout(30):
                while (await group("connect-out"))[AT].offset != 4:  # noqa: ASYNC110 - as `until`
                    await asyncio.sleep(0.02)
        texts = [each.read_text() for each in (tmp_path / "out").rglob("*.jsonl")]
        assert [f'"n":{n}' in "".join(texts).replace(" ", "") for n in range(4)] == [
            False, True, True, True,
        ]  # fmt: skip

    asyncio.run(main())
