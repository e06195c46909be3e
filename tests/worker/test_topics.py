"""The topics that a worker creates have the settings that the app declared."""

from __future__ import annotations

import asyncio
from pathlib import Path

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
