"""The topics that a worker creates have the settings that the app declared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.worker.topics import declare_topics, ensure_topics


def test_declared_settings_reach_the_log(tmp_path: Path) -> None:
    app = App("shop")
    app.topic("sales", key=str, value=str, partitions=3, retention="1h30m")
    app.topic("prices", key=str, value=str, compact=True)

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'log'}", listen=False) as log:
            counts = await declare_topics(log, app.topics)
            assert counts["sales"] == 3
            sales = await log.admin().describe_configs("sales")
            prices = await log.admin().describe_configs("prices")
            assert sales["retention.ms"].value == "5400000"
            assert sales["cleanup.policy"].value == "delete"
            assert prices["cleanup.policy"].value == "compact"

    asyncio.run(main())


def test_an_app_has_to_do_with_its_own_topics_alone(tmp_path: Path) -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=str, partitions=3)
    app.stream(sales).group_by(lambda _, sale: sale, name="by-sale").count(name="n")

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'log'}", listen=False) as log:
            await log.admin().create_topics([NewTopic("of-others", 7)])
            counts = await ensure_topics(log, app.topology(), app.topics, required=())
            assert counts == {
                "sales": 3,
                "shop-by-sale-repartition": 3,
                "shop-1-changelog": 3,
            }

    asyncio.run(main())


def test_an_existing_topic_that_differs_from_what_is_declared_is_told_with_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("shop")
    app.topic("prices", key=str, value=str, partitions=1, compact=True)
    app.topic("rates", key=str, value=str, partitions=1, compact=True, retention="1h")
    app.topic("fitting", key=str, value=str, partitions=1, compact=True)
    app.topic("made", key=str, value=str, partitions=1, compact=True)
    app.topic("plain", key=str, value=str, partitions=1)
    there = {"prices": {}, "rates": {}, "plain": {"cleanup.policy": "compact"}}
    there["fitting"] = {"cleanup.policy": "delete,compact"}

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'log'}", listen=False) as log:
            await log.admin().create_topics([NewTopic(n, 1, configs=c) for n, c in there.items()])
            await ensure_topics(log, app.topology(), app.topics, required=())

    asyncio.run(main())
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 3
    assert "topic prices has cleanup.policy=delete, and this app declares compact=True" in told[0]
    assert "streamlog configs alter --topic prices --set cleanup.policy=compact --log" in told[0]
    assert "topic rates has cleanup.policy=delete" in told[1]
    assert "topic rates has retention.ms=-1, and this app declares retention=" in told[2]
