"""A group's leader tells topics that it may not describe from those that do not exist."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.log import Log
from streamlog.protocol.acls import Operation, ResourceType
from tests.servers.secured_broker import access, allowed, secured_broker


async def poll_for_ever(consumer: Consumer) -> None:
    while True:
        await consumer.poll(timeout_ms=50)


def test_a_leader_names_the_topics_that_it_may_not_describe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(120),
            secured_broker(tmp_path) as url,
            Log.open(url, security=access("root")) as root,
            Log.open(url, security=access("shop")) as shop,
        ):
            await root.admin().create_topics([NewTopic("own", 1), NewTopic("other", 1)])
            await root.admin().create_acls(
                [
                    allowed(ResourceType.TOPIC, "own", Operation.READ),
                    allowed(ResourceType.GROUP, "g", Operation.READ),
                ]
            )
            async with shop.consumer(group_id="g") as leader, root.consumer(group_id="g") as member:
                await leader.subscribe(["own"])
                while not leader.assignment():
                    await leader.poll(timeout_ms=50)
                await member.subscribe(["other"])
                async with asyncio.TaskGroup() as group:
                    polls = [group.create_task(poll_for_ever(each)) for each in (leader, member)]
                    while "topic other" not in caplog.text:  # noqa: ASYNC110 - of the log alone
                        await asyncio.sleep(0.02)
                    for each in polls:
                        each.cancel()

    asyncio.run(main())
    said = {record.getMessage() for record in caplog.records}
    assert "group g: topic other can't be assigned: this consumer may not describe it" in said
    assert "group g: topic other does not exist" not in said
